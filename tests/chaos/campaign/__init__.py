"""Random lives of one checkpoint: flows that change, deaths, stops, migrations at any moment.

``python -m tests.chaos.campaign --rounds 500 --seed 1`` runs as many rounds as are asked for; a
history that ends wrong is named with the command that repeats it.  With ``--timed`` they are lives
of a flow over event time, written down in another way in each round and taken back to backups.
"""

"""TypeChecker the simulator's cost model to real epochs, and holding it against others.

``python -m experiments.calibration measure`` runs a few short streams on Spark (two cores) and
keeps what their epochs took; ``python -m experiments.calibration fit`` fits the
parameters to some of the runs, simulates the others, and writes parameters, a table and a figure.
"""

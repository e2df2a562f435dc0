"""Fit the simulator's cost model to real epochs, and compare it with others.

``python -m godwit_lab.experiments.calibration measure`` runs a few short streams on Spark (two
cores) and keeps what their epochs took; ``python -m godwit_lab.experiments.calibration fit`` fits
the parameters to some of the runs, simulates the others, and writes parameters, a table and a
figure.
"""

"""One run of a flow on Spark's driver: epochs, and the threads beside them.

Begin with `run`, whose docstring is the epoch protocol; `opening` puts its parts together.
"""

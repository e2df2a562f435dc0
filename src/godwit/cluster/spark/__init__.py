"""The runtime on Spark: one epoch as one chain of stages, placed on chosen executors.

`epoch` carries out one epoch on the driver, `source_side` and `lane` are what its stages run,
`exchange` is the shuffle and the placement between them, `query` is what the user holds.
"""

"""The runtime on Spark: one epoch as one chain of stages, placed on chosen executors.

`query` is what the user holds; `run` is one run on the driver; `stages` are an epoch as Spark jobs,
and `resident` are lanes that wait for small epochs; `platform` has executors, `observe` events and
figures.
"""

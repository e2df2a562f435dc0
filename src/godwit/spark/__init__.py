"""Flows on Spark: one epoch as one chain of stages, placed on chosen executors.

`stages` are an epoch as Spark jobs, and `resident` are lanes that wait for small epochs; `platform`
has sessions and executors.
"""

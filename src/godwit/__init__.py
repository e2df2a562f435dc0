"""Godwit: elastic, stateful stream processing on Apache Spark, from Python.

The state of a running PySpark stream is split into key groups that move between executors while
the stream keeps flowing, exactly once.  ``docs/architecture.md`` is the map.

Examples
--------
>>> import godwit as gw
>>> flow = gw.Flow("delays")
>>> flights = flow.source("flights", spark.readStream.schema(...).parquet("in/"))  # doctest: +SKIP
>>> by_plane = flights.key_by("tailnum").compute(total=gw.sum("arr_delay"))  # doctest: +SKIP
>>> flow.sink("by_plane", by_plane, gw.sinks.parquet("out/"))  # doctest: +SKIP
>>> query = flow.start(checkpoint="checkpoint/")  # doctest: +SKIP
"""

from __future__ import annotations

from godwit import sinks
from godwit.dataflow.aggregates import (
    Aggregator,
    approx_distinct,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004  gw.max reads as Spark's F.max does
    mean,
    min,  # noqa: A004
    stddev,
    sum,  # noqa: A004
    top_k,
    variance,
)
from godwit.dataflow.codec import State
from godwit.dataflow.flow import Flow
from godwit.dataflow.process import KeyRows
from godwit.dataflow.runtime import Runtime, register
from godwit.migration import Bounds, LossPolicy, Policy, Strategy
from godwit.model.assignment import Assignment, Move, even_assignment
from godwit.model.errors import GodwitError
from godwit.spark.query import Migration, Query
from godwit.spark.read_state import read_state

__all__ = [
    "Aggregator",
    "Assignment",
    "Bounds",
    "Flow",
    "GodwitError",
    "KeyRows",
    "LossPolicy",
    "Migration",
    "Move",
    "Policy",
    "Query",
    "State",
    "Strategy",
    "__version__",
    "approx_distinct",
    "collect_set",
    "count",
    "even_assignment",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "read_state",
    "register",
    "sinks",
    "stddev",
    "sum",
    "top_k",
    "variance",
]

__version__ = "0.1.0"


def _spark_runtime() -> Runtime:
    from godwit.spark.runtime import SparkRuntime  # noqa: PLC0415  at first use: it loads Spark

    return SparkRuntime()


register(_spark_runtime)

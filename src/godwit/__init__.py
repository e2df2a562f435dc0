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

from importlib import import_module
from typing import TYPE_CHECKING

from godwit import sinks
from godwit.control.problems import Means
from godwit.control.scaling import fixed, latency, scripted, utilisation
from godwit.control.settings import Control
from godwit.control.worth import Budget
from godwit.dataflow.aggregates import (
    Aggregator,
    approx_distinct,
    approx_median,
    approx_percentile,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004  gw.max reads as Spark's F.max does
    max_by,
    mean,
    min,  # noqa: A004
    min_by,
    stddev,
    sum,  # noqa: A004
    top_k,
    variance,
)
from godwit.dataflow.codec import State
from godwit.dataflow.keyed_stream import KeyedStream
from godwit.dataflow.missing_names import CALLS, no_such_name
from godwit.dataflow.process import KeyRows
from godwit.dataflow.states.declared import ListState, MapState, ValueState
from godwit.dataflow.states.of_key import ListOfKey, MapOfKey, States, ValueOfKey
from godwit.dataflow.stream import Stream
from godwit.dataflow.timers import FiredTimer, TimedRows, Timers
from godwit.dataflow.windowed_stream import WindowedStream
from godwit.dataflow.windows.calls import Window
from godwit.dataflow.windows.spec import hopping, session, tumbling
from godwit.epoch.fusing import Fusion
from godwit.epoch.splitting import Splitting
from godwit.migration.strategy import Bounds, CopiesFrom, LossPolicy, Policy, Strategy
from godwit.model import errors, events
from godwit.model.assignment import Assignment, Move, even_assignment
from godwit.model.errors import GodwitError
from godwit.spark.flow import Flow
from godwit.spark.triggers import Trigger

if TYPE_CHECKING:
    from typing import Any

    from godwit.spark.migrations import Migration
    from godwit.spark.query import Query
    from godwit.spark.read_state import read_state

__all__ = [
    "Aggregator",
    "Assignment",
    "Bounds",
    "Budget",
    "Control",
    "CopiesFrom",
    "FiredTimer",
    "Flow",
    "Fusion",
    "GodwitError",
    "KeyRows",
    "KeyedStream",
    "ListOfKey",
    "ListState",
    "LossPolicy",
    "MapOfKey",
    "MapState",
    "Means",
    "Migration",
    "Move",
    "Policy",
    "Query",
    "Splitting",
    "State",
    "States",
    "Strategy",
    "Stream",
    "TimedRows",
    "Timers",
    "Trigger",
    "ValueOfKey",
    "ValueState",
    "Window",
    "WindowedStream",
    "__version__",
    "approx_distinct",
    "approx_median",
    "approx_percentile",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "errors",
    "even_assignment",
    "events",
    "first",
    "fixed",
    "hopping",
    "last",
    "latency",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "read_state",
    "scripted",
    "session",
    "sinks",
    "stddev",
    "sum",
    "top_k",
    "tumbling",
    "utilisation",
    "variance",
]

__version__ = "0.1.0"

_LOADS_SPARK = {
    "Migration": "godwit.spark.migrations",
    "Query": "godwit.spark.query",
    "read_state": "godwit.spark.read_state",
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import at its first use what needs Spark."""
        if name not in _LOADS_SPARK:
            raise no_such_name(__name__, name, [n for n in __all__ if n.islower()], CALLS)
        value = getattr(import_module(_LOADS_SPARK[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)

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

from godwit import sinks, sources
from godwit.api.names import CALLS
from godwit.api.streams import KeyedStream, Stream, WindowedStream
from godwit.cluster.spark.query.flow import Flow
from godwit.cluster.spark.query.settings import (
    Adaptation,
    Checkpointing,
    Observability,
    Sizing,
    Trigger,
)
from godwit.engine.settings import Lanes
from godwit.migration.strategy import Bounds, CopiesFrom, LossPolicy, Policy, Strategy
from godwit.model import errors, events
from godwit.model.assignment import Assignment, Move, even_assignment
from godwit.model.errors import GodwitError
from godwit.model.naming import no_such_name
from godwit.operators.aggregates import (
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
from godwit.operators.asynchronous import Async
from godwit.operators.calls import FiredTimer, TimedRows, Timers
from godwit.operators.process import KeyRows
from godwit.operators.states.declared import ListState, MapState, ValueState
from godwit.operators.states.lists import ListOfKey
from godwit.operators.states.maps import MapOfKey
from godwit.operators.states.operator import States
from godwit.operators.states.values import ValueOfKey
from godwit.operators.windows.process import Window
from godwit.operators.windows.rows import rows
from godwit.operators.windows.spec import hopping, session, tumbling
from godwit.values.codec import State

if TYPE_CHECKING:
    from typing import Any

    from godwit import testing
    from godwit.adapt.fusing import Fusion
    from godwit.adapt.load_range import load_range
    from godwit.adapt.scaling import fixed, latency, scripted, utilisation
    from godwit.adapt.settings import Budget, Cadence, Control, Means, Search, Worth
    from godwit.adapt.spreading import Spreading
    from godwit.adapt.windows import Splitting
    from godwit.cluster.spark.query.placement import Migration
    from godwit.cluster.spark.query.query import Query
    from godwit.cluster.spark.query.read_state import read_state
    from godwit.sources import formats

__all__ = [
    "Adaptation",
    "Aggregator",
    "Assignment",
    "Async",
    "Bounds",
    "Budget",
    "Cadence",
    "Checkpointing",
    "Control",
    "CopiesFrom",
    "FiredTimer",
    "Flow",
    "Fusion",
    "GodwitError",
    "KeyRows",
    "KeyedStream",
    "Lanes",
    "ListOfKey",
    "ListState",
    "LossPolicy",
    "MapOfKey",
    "MapState",
    "Means",
    "Migration",
    "Move",
    "Observability",
    "Policy",
    "Query",
    "Search",
    "Sizing",
    "Splitting",
    "Spreading",
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
    "Worth",
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
    "formats",
    "hopping",
    "last",
    "latency",
    "load_range",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "read_state",
    "rows",
    "scripted",
    "session",
    "sinks",
    "sources",
    "stddev",
    "sum",
    "testing",
    "top_k",
    "tumbling",
    "utilisation",
    "variance",
]

__version__ = "0.1.0"

_LOADED_LATER = {
    "Budget": "godwit.adapt.settings",
    "Cadence": "godwit.adapt.settings",
    "Control": "godwit.adapt.settings",
    "Fusion": "godwit.adapt.fusing",
    "Means": "godwit.adapt.settings",
    "Search": "godwit.adapt.settings",
    "Splitting": "godwit.adapt.windows",
    "Spreading": "godwit.adapt.spreading",
    "Worth": "godwit.adapt.settings",
    "fixed": "godwit.adapt.scaling",
    "latency": "godwit.adapt.scaling",
    "load_range": "godwit.adapt.load_range",
    "scripted": "godwit.adapt.scaling",
    "utilisation": "godwit.adapt.scaling",
    "Migration": "godwit.cluster.spark.query.placement",
    "Query": "godwit.cluster.spark.query.query",
    "read_state": "godwit.cluster.spark.query.read_state",
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import at its first use what needs Spark, or what few flows need."""
        if name == "testing":
            return import_module("godwit.testing")
        if name == "formats":
            return import_module("godwit.sources.formats")
        if name not in _LOADED_LATER:
            raise no_such_name(__name__, name, [n for n in __all__ if n.islower()], CALLS)
        value = getattr(import_module(_LOADED_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)

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

from godwit.columns.vectors import avoid_slow_sorts

if TYPE_CHECKING:
    from typing import Any

    from godwit import sinks, sources, testing
    from godwit.api.streams import KeyedStream, Stream, WindowedStream
    from godwit.columns.python_values import KeyRows
    from godwit.control.forecast import Forecast
    from godwit.control.fusing import Fusion
    from godwit.control.scaling import fixed, latency, load_range, scripted, utilisation
    from godwit.control.settings import Budget, Cadence, Control, Means, Search, Worth
    from godwit.control.spreading import Spreading
    from godwit.control.windows import Splitting
    from godwit.engine.settings import Lanes
    from godwit.migration.strategy import Bounds, CopiesFrom, LossPolicy, Policy, Strategy
    from godwit.model import errors, events
    from godwit.model.assignment import Assignment, Move, even_assignment
    from godwit.model.errors import GodwitError
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
        max_by,
        mean,
        min_by,
        most_frequent,
        stddev,
        top_k,
        variance,
    )
    from godwit.operators.aggregates import (
        max as max,  # noqa: A004  gw.max reads as Spark's F.max does
    )
    from godwit.operators.aggregates import (
        min as min,  # noqa: A004
    )
    from godwit.operators.aggregates import (
        sum as sum,  # noqa: A004
    )
    from godwit.operators.asynchronous import Async
    from godwit.operators.calls import FiredTimer, TimedRows, Timers
    from godwit.operators.states.declared import ListState, MapState, ValueState
    from godwit.operators.states.lists import ListOfKey
    from godwit.operators.states.maps import MapOfKey
    from godwit.operators.states.operator import States
    from godwit.operators.states.values import ValueOfKey
    from godwit.operators.windows.process import Window
    from godwit.operators.windows.rows import rows
    from godwit.operators.windows.spec import hopping, session, tumbling
    from godwit.runtime.placement import Migration
    from godwit.runtime.query import Query
    from godwit.runtime.settings import (
        Adaptation,
        Checkpointing,
        Observability,
        Sizing,
        Trigger,
    )
    from godwit.sources import formats
    from godwit.spark.flow import Flow
    from godwit.spark.platform.local_cluster import LocalCluster
    from godwit.spark.read_state import read_state
    from godwit.values.codec import State

# a flow and its streams
__all__ = [
    "Flow",
    "KeyedStream",
    "Stream",
    "WindowedStream",
    "formats",
    "sinks",
    "sources",
]
# aggregates; `sum`, `min` and `max` are there too, and left out here since ``import *`` would
# put them in place of Python's own
__all__ += [
    "Aggregator",
    "approx_distinct",
    "approx_median",
    "approx_percentile",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "last",
    "max_by",
    "mean",
    "min_by",
    "most_frequent",
    "stddev",
    "top_k",
    "variance",
]
# windows
__all__ += [
    "Window",
    "hopping",
    "rows",
    "session",
    "tumbling",
]
# functions per key: what they are given and declare
__all__ += [
    "Async",
    "FiredTimer",
    "KeyRows",
    "ListOfKey",
    "ListState",
    "MapOfKey",
    "MapState",
    "State",
    "States",
    "TimedRows",
    "Timers",
    "ValueOfKey",
    "ValueState",
]
# a running query
__all__ += [
    "Migration",
    "Query",
    "Trigger",
    "read_state",
]
# settings of a query
__all__ += [
    "Adaptation",
    "Checkpointing",
    "Lanes",
    "Observability",
    "Sizing",
]
# the controller
__all__ += [
    "Budget",
    "Cadence",
    "Control",
    "Forecast",
    "Fusion",
    "Means",
    "Search",
    "Splitting",
    "Spreading",
    "Worth",
    "fixed",
    "latency",
    "load_range",
    "scripted",
    "utilisation",
]
# executors; where key groups are, and migrations
__all__ += [
    "Assignment",
    "Bounds",
    "CopiesFrom",
    "LocalCluster",
    "LossPolicy",
    "Move",
    "Policy",
    "Strategy",
    "even_assignment",
]
# what happens and what fails; tests; the version
__all__ += [
    "GodwitError",
    "__version__",
    "errors",
    "events",
    "testing",
]

__version__ = "0.1.0"

avoid_slow_sorts()  # before anything imports NumPy

# A process imports what it uses: a lane's has no need of the calls that build a flow.
_MODULES = {
    "errors": "godwit.model.errors",
    "events": "godwit.model.events",
    "formats": "godwit.sources.formats",
    "sinks": "godwit.sinks",
    "sources": "godwit.sources",
    "testing": "godwit.testing",
}
_HOMES = {
    "godwit.control.forecast": ("Forecast",),
    "godwit.control.fusing": ("Fusion",),
    "godwit.control.scaling": ("fixed", "latency", "load_range", "scripted", "utilisation"),
    "godwit.control.settings": ("Budget", "Cadence", "Control", "Means", "Search", "Worth"),
    "godwit.control.spreading": ("Spreading",),
    "godwit.control.windows": ("Splitting",),
    "godwit.api.streams": ("KeyedStream", "Stream", "WindowedStream"),
    "godwit.spark.platform.local_cluster": ("LocalCluster",),
    "godwit.spark.flow": ("Flow",),
    "godwit.runtime.placement": ("Migration",),
    "godwit.runtime.query": ("Query",),
    "godwit.spark.read_state": ("read_state",),
    "godwit.runtime.settings": (
        "Adaptation",
        "Checkpointing",
        "Observability",
        "Sizing",
        "Trigger",
    ),
    "godwit.engine.settings": ("Lanes",),
    "godwit.migration.strategy": ("Bounds", "CopiesFrom", "LossPolicy", "Policy", "Strategy"),
    "godwit.model.assignment": ("Assignment", "Move", "even_assignment"),
    "godwit.model.errors": ("GodwitError",),
    "godwit.operators.aggregates": (
        "Aggregator",
        "approx_distinct",
        "approx_median",
        "approx_percentile",
        "avg",
        "collect_list",
        "collect_set",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "max_by",
        "mean",
        "min",
        "min_by",
        "most_frequent",
        "stddev",
        "sum",
        "top_k",
        "variance",
    ),
    "godwit.operators.asynchronous": ("Async",),
    "godwit.operators.calls": ("FiredTimer", "TimedRows", "Timers"),
    "godwit.columns.python_values": ("KeyRows",),
    "godwit.operators.states.declared": ("ListState", "MapState", "ValueState"),
    "godwit.operators.states.lists": ("ListOfKey",),
    "godwit.operators.states.maps": ("MapOfKey",),
    "godwit.operators.states.operator": ("States",),
    "godwit.operators.states.values": ("ValueOfKey",),
    "godwit.operators.windows.process": ("Window",),
    "godwit.operators.windows.rows": ("rows",),
    "godwit.operators.windows.spec": ("hopping", "session", "tumbling"),
    "godwit.values.codec": ("State",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_NAMES = sorted({*__all__, *_HOME_OF})

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import a name at its first use."""
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name not in _HOME_OF:
            naming, names = import_module("godwit.model.naming"), import_module("godwit.api.names")
            known = [public for public in _NAMES if public.islower()]
            raise naming.no_such_name(__name__, name, known, names.calls())
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return _NAMES

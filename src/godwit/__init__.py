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

    from godwit import control, migration, sinks, sources, testing, types
    from godwit.adopt.explain import explain
    from godwit.adopt.writer import read_plan, sql, write_stream
    from godwit.control.settings import Control
    from godwit.engine.settings import Lanes
    from godwit.library.aggregates import (
        approx_distinct,
        approx_median,
        approx_percentile,
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
    from godwit.library.aggregates import (
        max as max,  # noqa: A004  gw.max reads as Spark's F.max does
    )
    from godwit.library.aggregates import (
        min as min,  # noqa: A004
    )
    from godwit.library.aggregates import (
        sum as sum,  # noqa: A004
    )
    from godwit.model import errors, events
    from godwit.operators.declared import ListState, MapState, ValueState
    from godwit.operators.window_specs import hopping, rows, session, tumbling
    from godwit.ops.read_state import read_state
    from godwit.runtime.settings import Checkpointing, Observability, Sizing
    from godwit.runtime.several import await_all
    from godwit.sources import formats
    from godwit.spark.flow import Flow

# a flow; what it reads, and what it writes
__all__ = [
    "Flow",
    "formats",
    "sinks",
    "sources",
]
# aggregates; `sum`, `min` and `max` are there too, and left out here since ``import *`` would
# put them instead of Python's own
__all__ += [
    "approx_distinct",
    "approx_median",
    "approx_percentile",
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
# Spark queries, as they are
__all__ += [
    "explain",
    "read_plan",
    "sql",
    "write_stream",
]
# windows
__all__ += [
    "hopping",
    "rows",
    "session",
    "tumbling",
]
# functions per key
__all__ += [
    "ListState",
    "MapState",
    "ValueState",
    "types",
]
# settings of a query; the controller; migrations
__all__ += [
    "Checkpointing",
    "Control",
    "Lanes",
    "Observability",
    "Sizing",
    "control",
    "migration",
]
# queries, and state at rest
__all__ += [
    "await_all",
    "read_state",
]
# what happens and what fails; tests; the version
__all__ += [
    "__version__",
    "errors",
    "events",
    "testing",
]

__version__ = "0.1.0"

avoid_slow_sorts()  # before anything imports NumPy

# A process imports what it uses: a lane's has no need of the calls that build a flow.
_MODULES = {
    "control": "godwit.control",
    "errors": "godwit.model.errors",
    "events": "godwit.model.events",
    "formats": "godwit.sources.formats",
    "migration": "godwit.migration",
    "sinks": "godwit.sinks",
    "sources": "godwit.sources",
    "testing": "godwit.testing",
    "types": "godwit.types",
}
_HOMES = {
    "godwit.control.settings": ("Control",),
    "godwit.adopt.explain": ("explain",),
    "godwit.adopt.writer": ("read_plan", "sql", "write_stream"),
    "godwit.spark.flow": ("Flow",),
    "godwit.ops.read_state": ("read_state",),
    "godwit.runtime.several": ("await_all",),
    "godwit.runtime.settings": ("Checkpointing", "Observability", "Sizing"),
    "godwit.engine.settings": ("Lanes",),
    "godwit.library.aggregates": (
        "approx_distinct",
        "approx_median",
        "approx_percentile",
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
    "godwit.operators.declared": ("ListState", "MapState", "ValueState"),
    "godwit.operators.window_specs": ("hopping", "rows", "session", "tumbling"),
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
            meant = names.calls()
            if spelling := "" if name.startswith("_") else naming.public_name(name):
                meant = {**meant, name: spelling}
            raise naming.no_such_name(__name__, name, known, meant)
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return _NAMES

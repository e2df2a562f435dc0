"""Types for annotations of users' functions and variables, and values for arguments of streams.

`Aggregator` is for users to derive from, and `Async`, `Identity`, `OnTimer` and `Output` are for
users to make; calls of Godwit make the others.
"""

from typing import TYPE_CHECKING

from godwit.model.naming import lazily

if TYPE_CHECKING:
    from godwit.api.declarations import Identity, OnTimer, Output
    from godwit.api.streams import KeyedStream, Stream, WindowedStream
    from godwit.columns.python_values import KeyRows
    from godwit.library.states.lists import ListOfKey
    from godwit.library.states.maps import MapOfKey
    from godwit.library.states.values import ValueOfKey
    from godwit.library.windows.process import Window
    from godwit.operators.aggregate import Aggregator
    from godwit.operators.asynchronous import Async
    from godwit.operators.declared import States
    from godwit.operators.timers import FiredTimer, TimedRows, Timers
    from godwit.runtime.placement import Migration
    from godwit.runtime.query import Query
    from godwit.runtime.settings import Trigger
    from godwit.values.codec import State

__all__ = [
    "Aggregator",
    "Async",
    "FiredTimer",
    "Identity",
    "KeyRows",
    "KeyedStream",
    "ListOfKey",
    "MapOfKey",
    "Migration",
    "OnTimer",
    "Output",
    "Query",
    "State",
    "States",
    "Stream",
    "TimedRows",
    "Timers",
    "Trigger",
    "ValueOfKey",
    "Window",
    "WindowedStream",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "godwit.api.declarations": ("Identity", "OnTimer", "Output"),
            "godwit.api.streams": ("KeyedStream", "Stream", "WindowedStream"),
            "godwit.columns.python_values": ("KeyRows",),
            "godwit.operators.aggregate": ("Aggregator",),
            "godwit.operators.asynchronous": ("Async",),
            "godwit.operators.timers": ("FiredTimer", "TimedRows", "Timers"),
            "godwit.library.states.lists": ("ListOfKey",),
            "godwit.library.states.maps": ("MapOfKey",),
            "godwit.operators.declared": ("States",),
            "godwit.library.states.values": ("ValueOfKey",),
            "godwit.library.windows.process": ("Window",),
            "godwit.runtime.placement": ("Migration",),
            "godwit.runtime.query": ("Query",),
            "godwit.runtime.settings": ("Trigger",),
            "godwit.values.codec": ("State",),
        },
        {},
    )

"""Events of a run: one frozen value for everything that happened.

``query.events`` yields these; the dashboard, the command line and the tests read the same values.
An event says what is already durable or already decided, never what is hoped for.  Time comes from
the caller, so a simulated run tells the same story as a real one.

The inputs of the migration protocol are another vocabulary (``godwit.migration.inputs``): those
are facts that the runtime reports *to* the protocol, these are facts told *to people*.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from godwit.model.errors import GodwitError
from godwit.model.events.deciding import (
    DecisionSkipped,
    ExecutorKept,
    ExecutorRemoved,
    ExecutorsMissing,
    ExecutorsRequested,
    ExecutorsReturned,
    LanesBalanced,
    LoadMeasured,
    ManualOverrideRespected,
    PlanAbandoned,
    PlannerFailed,
    RebalancingStarted,
    ScaledIn,
    ScaledOut,
    ScalingFailed,
    ScalingFinished,
    ScalingRefused,
    ScalingStarted,
    WindowStateChosen,
)
from godwit.model.events.event import Event
from godwit.model.events.moving import (
    AssignmentSwitched,
    ComponentsRegrouped,
    FormsCompared,
    KeyGroupsLoaded,
    KeyGroupsResumed,
    KeyGroupsSuspended,
    KeyGroupsWarmed,
    MigrationCancelled,
    MigrationFinished,
    MigrationStarted,
    PeerTransferFailed,
    RegroupingCancelled,
    RegroupingStarted,
    WarmingStarted,
)
from godwit.model.events.running import (
    BackgroundFailed,
    EpochAborted,
    EpochCommitted,
    EpochsHeld,
    EpochsReleased,
    ExecutorAdded,
    ExecutorDraining,
    ExecutorLost,
    FilesCollected,
    FlowChanged,
    ListenerFailed,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    RowsLeftOut,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "AssignmentSwitched",
    "BackgroundFailed",
    "ComponentsRegrouped",
    "DecisionSkipped",
    "EpochAborted",
    "EpochCommitted",
    "EpochsHeld",
    "EpochsReleased",
    "Event",
    "ExecutorAdded",
    "ExecutorDraining",
    "ExecutorKept",
    "ExecutorLost",
    "ExecutorRemoved",
    "ExecutorsMissing",
    "ExecutorsRequested",
    "ExecutorsReturned",
    "FilesCollected",
    "FlowChanged",
    "FormsCompared",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "LanesBalanced",
    "ListenerFailed",
    "LoadMeasured",
    "ManualOverrideRespected",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "PeerTransferFailed",
    "PlanAbandoned",
    "PlannerFailed",
    "QueryFailed",
    "QueryStarted",
    "QueryStopped",
    "RebalancingStarted",
    "RegroupingCancelled",
    "RegroupingStarted",
    "RowsLeftOut",
    "ScaledIn",
    "ScaledOut",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingRefused",
    "ScalingStarted",
    "WarmingStarted",
    "WindowStateChosen",
    "event_from_dict",
]

_KINDS: Mapping[Any, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AssignmentSwitched,
        BackgroundFailed,
        ComponentsRegrouped,
        DecisionSkipped,
        EpochAborted,
        EpochCommitted,
        EpochsHeld,
        EpochsReleased,
        ExecutorAdded,
        ExecutorDraining,
        ExecutorKept,
        ExecutorLost,
        ExecutorRemoved,
        ExecutorsMissing,
        ExecutorsRequested,
        ExecutorsReturned,
        FilesCollected,
        FlowChanged,
        FormsCompared,
        KeyGroupsLoaded,
        KeyGroupsResumed,
        KeyGroupsSuspended,
        KeyGroupsWarmed,
        LanesBalanced,
        ListenerFailed,
        LoadMeasured,
        ManualOverrideRespected,
        MigrationCancelled,
        MigrationFinished,
        MigrationStarted,
        PeerTransferFailed,
        PlanAbandoned,
        PlannerFailed,
        QueryFailed,
        QueryStarted,
        QueryStopped,
        RebalancingStarted,
        RegroupingCancelled,
        RegroupingStarted,
        RowsLeftOut,
        ScaledIn,
        ScaledOut,
        ScalingFailed,
        ScalingFinished,
        ScalingRefused,
        ScalingStarted,
        WarmingStarted,
        WindowStateChosen,
    )
} | {"HandRespected": ManualOverrideRespected}  # its name in older journals


def _whole(value: Any) -> int:
    if isinstance(value, float | list | dict):
        msg = f"{value!r:.100} is no whole number"
        raise TypeError(msg)
    return int(value)


def _number(value: Any) -> float:
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"{value!r:.100} is no text"
        raise TypeError(msg)
    return value


def _several(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def several(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(of(item) for item in value)
        msg = f"{value!r:.100} is no list"
        raise TypeError(msg)

    return several


def _by_name(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def by_name(value: Any) -> Any:
        if isinstance(value, dict):
            return {_text(name): of(item) for name, item in value.items()}
        msg = f"{value!r:.100} is no object"
        raise TypeError(msg)

    return by_name


_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _number,
    "float | None": lambda value: None if value is None else _number(value),
    "str": _text,
    "bool": bool,
    "tuple[int, ...]": _several(_whole),
    "tuple[str, ...]": _several(_text),
    "Mapping[str, float]": _by_name(_number),
    "Mapping[str, int]": _by_name(_whole),
    "Mapping[str, str]": _by_name(_text),
}
"""Annotation of an event's field → what makes such a value of a plain one, or raises."""


def event_from_dict(values: Any) -> Event:
    """Undo `Event.to_dict`."""
    kind = values.get("kind") if isinstance(values, dict) else None
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise _no_event(f"There is no event of kind {kind!r:.100}.", kind)
    types = {field.name: _TYPES[str(field.type)] for field in fields(known)}
    try:
        event = known(
            **{name: types[name](value) for name, value in values.items() if name != "kind"}
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _no_event(f"These are not the values of an event {kind}: {error}.", kind) from None
    if not math.isfinite(event.at_s):
        raise _no_event(f"An event {kind} happened at {event.at_s} s.", kind)
    return event


def _no_event(problem: str, kind: Any) -> GodwitError:
    return GodwitError(
        problem,
        remedy="Read the log with the version of Godwit that wrote it.",
        kind=kind,
    )

"""What a user sees of a run: one frozen value for everything that happened.

``query.events`` yields these; the dashboard, the command line and the tests read the same values.
An event says what is already durable or already decided, never what is hoped for.  Time comes from
the caller, so a simulated run tells the same story as a real one.

The inputs of the migration protocol are another vocabulary (``godwit.migration.inputs``): those
are facts that the runtime reports *to* the protocol, these are facts told *to people*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.model.errors import GodwitError
from godwit.model.events.deciding import (
    DecisionSkipped,
    ExecutorsReturned,
    HandRespected,
    LanesBalanced,
    LoadMeasured,
    PlanAbandoned,
    PlannerFailed,
    RebalancingStarted,
    ScaledIn,
    ScaledOut,
    ScalingRefused,
)
from godwit.model.events.event import Event
from godwit.model.events.moving import (
    AssignmentSwitched,
    KeyGroupsLoaded,
    KeyGroupsResumed,
    KeyGroupsSuspended,
    KeyGroupsWarmed,
    MigrationCancelled,
    MigrationFinished,
    MigrationStarted,
    PeerTransferFailed,
    WarmingStarted,
)
from godwit.model.events.pooling import (
    ExecutorKept,
    ExecutorRemoved,
    ExecutorsMissing,
    ExecutorsRequested,
    ScalingFailed,
    ScalingFinished,
    ScalingStarted,
)
from godwit.model.events.regrouping import (
    ComponentsRegrouped,
    FormsCompared,
    RegroupingCancelled,
    RegroupingStarted,
)
from godwit.model.events.running import (
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
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AssignmentSwitched",
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
    "HandRespected",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "LanesBalanced",
    "ListenerFailed",
    "LoadMeasured",
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
    "ScaledIn",
    "ScaledOut",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingRefused",
    "ScalingStarted",
    "WarmingStarted",
    "event_from_dict",
]

_KINDS: Mapping[Any, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AssignmentSwitched,
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
        HandRespected,
        KeyGroupsLoaded,
        KeyGroupsResumed,
        KeyGroupsSuspended,
        KeyGroupsWarmed,
        LanesBalanced,
        ListenerFailed,
        LoadMeasured,
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
        ScaledIn,
        ScaledOut,
        ScalingFailed,
        ScalingFinished,
        ScalingRefused,
        ScalingStarted,
        WarmingStarted,
    )
}


def event_from_dict(values: Mapping[str, Any]) -> Event:
    """Undo `Event.to_dict`.

    Raises
    ------
    GodwitError
        If ``kind`` names no event of this version.
    """
    kind = values.get("kind")
    if kind not in _KINDS:
        raise GodwitError(
            f"There is no event of kind {kind!r}.",
            remedy="Read the log with the version of Godwit that wrote it.",
            kind=kind,
        )
    made: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name != "kind"
    }
    return _KINDS[kind](**made)

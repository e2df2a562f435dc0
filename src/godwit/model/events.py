"""Events of a run: immutable values, one class for each kind of thing that happens.

``query.events`` has them; the live page, the command line and the tests read the same values. An
event reports something that is already durable or decided, and a decision has the numbers that it
is based on. So readers of the journal, people or the controller of the next run, need nothing else.
Times come from the caller, so a simulated run has the same events as a real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.model.decision_events import (
    Decision,
    DecisionJudged,
    DecisionSkipped,
    ExecutorKept,
    ExecutorRemoved,
    ExecutorsMissing,
    ExecutorsRequested,
    ExecutorsReturned,
    ForecastJudged,
    HotKeySpread,
    KeyGroupsTooFew,
    LanesBalanced,
    LoadMeasured,
    ManualOverrideRespected,
    MigrationsPlanned,
    ModelCorrected,
    PlanAbandoned,
    PlannerFailed,
    RebalancingJudged,
    RebalancingStarted,
    ScaledIn,
    ScaledOut,
    ScalingFailed,
    ScalingFinished,
    ScalingRefused,
    ScalingStarted,
    WindowStateChosen,
)
from godwit.model.event import Event, read_event
from godwit.model.migration_events import (
    AssignmentSwitched,
    ComponentsRegrouped,
    KeyGroupsLoaded,
    KeyGroupsResumed,
    KeyGroupsSuspended,
    KeyGroupsWarmed,
    LayoutsCompared,
    MigrationCancelled,
    MigrationFinished,
    MigrationStarted,
    OperatorsRepartitioned,
    PartitioningCompared,
    PeerTransferFailed,
    RegroupingCancelled,
    RegroupingStarted,
    WarmingStarted,
)
from godwit.model.run_events import (
    BackgroundFailed,
    CallsFailed,
    DeletesWaited,
    EndRequested,
    EpochAborted,
    EpochCommitted,
    EpochsHeld,
    EpochsReleased,
    ExecutorAdded,
    ExecutorDraining,
    ExecutorLost,
    FeedbackPaused,
    FilesCollected,
    FlowChanged,
    InitialStateIgnored,
    InitialStateWritten,
    KeyGroupsChanged,
    ListenerFailed,
    QueryFailed,
    QueryStarted,
    QueryStopped,
    ResidentLanesEnded,
    ResidentLanesFailed,
    ResidentLanesStarted,
    RowsLeftOut,
    RowsUnreadable,
    SourceReported,
    StartedFromEpoch,
    StateEvicted,
    TargetMaintained,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AssignmentSwitched",
    "BackgroundFailed",
    "CallsFailed",
    "ComponentsRegrouped",
    "DecisionJudged",
    "DecisionSkipped",
    "DeletesWaited",
    "EndRequested",
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
    "FeedbackPaused",
    "FilesCollected",
    "FlowChanged",
    "ForecastJudged",
    "HotKeySpread",
    "InitialStateIgnored",
    "InitialStateWritten",
    "KeyGroupsChanged",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsTooFew",
    "KeyGroupsWarmed",
    "LanesBalanced",
    "LayoutsCompared",
    "ListenerFailed",
    "LoadMeasured",
    "ManualOverrideRespected",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "MigrationsPlanned",
    "ModelCorrected",
    "OperatorsRepartitioned",
    "PartitioningCompared",
    "PeerTransferFailed",
    "PlanAbandoned",
    "PlannerFailed",
    "QueryFailed",
    "QueryStarted",
    "QueryStopped",
    "RebalancingJudged",
    "RebalancingStarted",
    "RegroupingCancelled",
    "RegroupingStarted",
    "ResidentLanesEnded",
    "ResidentLanesFailed",
    "ResidentLanesStarted",
    "RowsLeftOut",
    "RowsUnreadable",
    "ScaledIn",
    "ScaledOut",
    "ScalingFailed",
    "ScalingFinished",
    "ScalingRefused",
    "ScalingStarted",
    "SourceReported",
    "StartedFromEpoch",
    "StateEvicted",
    "TargetMaintained",
    "WarmingStarted",
    "WindowStateChosen",
    "event_from_dict",
]

_KINDS: Mapping[str, type[Event]] = {
    name: globals()[name] for name in __all__ if name not in ("Event", "event_from_dict")
}

DECISIONS = frozenset(k.__name__ for k in _KINDS.values() if issubclass(k, Decision))
"""Kinds of events by which the controller and the pool of executors tell what they decided."""


def event_from_dict(values: Any) -> Event:
    """Return the event that ``to_dict`` turned into plain values, such as an entry of the journal.

    Parameters
    ----------
    values
        Result of ``to_dict`` of an event, also after a way through JSON.

    Raises
    ------
    GodwitError
        If these are not the values of an event of this version of Godwit.

    Examples
    --------
    >>> lost = gw.events.ExecutorLost(epoch=4, at_s=1.0, executor="2")
    >>> gw.events.event_from_dict(lost.to_dict()) == lost
    True
    """
    return read_event(_KINDS, values)


if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Raise an error that suggests a known name close to the unknown one."""
        if name.startswith("_"):
            raise AttributeError(name)
        from godwit.model.naming import no_such_name  # noqa: PLC0415  it imports this module

        raise no_such_name("gw.events", name, __all__, {})

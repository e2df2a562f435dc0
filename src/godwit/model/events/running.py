"""Events of the run itself: query, epochs, executors, checkpoint, controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BackgroundFailed",
    "EpochAborted",
    "EpochCommitted",
    "EpochsHeld",
    "EpochsReleased",
    "ExecutorAdded",
    "ExecutorDraining",
    "ExecutorLost",
    "FilesCollected",
    "FlowChanged",
    "ListenerFailed",
    "QueryFailed",
    "QueryStarted",
    "QueryStopped",
    "RowsLeftOut",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted(Event):
    """A query began to run; `resumed` tells whether its checkpoint held epochs already."""

    name: str
    resumed: bool = False

    def _line(self) -> str:
        how = f"resumed after epoch {self.epoch}" if self.resumed else "started"
        return f"query {self.name} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChanged(Event):
    """A query goes on with another flow than the one that its checkpoint was written by."""

    added: tuple[str, ...] = ()  # operators that start without state
    # operators that had been removed, and find the state that they left
    returned: tuple[str, ...] = ()
    # operators that are gone from the flow; the checkpoint keeps their state until it is dropped
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)  # old name → new name
    # what became of the results of operators that aggregate, of sinks and of their columns, in
    # words
    results: tuple[str, ...] = ()

    def _line(self) -> str:
        told = [f"{name} starts empty" for name in self.added]
        told += [f"{name} is back, with the state it left" for name in self.returned]
        told += [f"{name} is gone, its state is kept" for name in self.removed]
        told += [f"{old} is now {new}" for old, new in self.renamed.items()]
        return f"flow changed after epoch {self.epoch}: {'; '.join((*told, *self.results))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopped(Event):
    """A query ended because it was asked to, or because its input did."""

    name: str

    def _line(self) -> str:
        return f"query {self.name} stopped after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed(Event):
    """A query ended by an error; what was committed stays."""

    name: str
    error: str

    def _line(self) -> str:
        return f"query {self.name} failed after epoch {self.epoch}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted(Event):
    """An epoch's record is durable."""

    # rows_in, rows_out: rows read from the sources and given to the sinks
    rows_in: int = 0
    rows_out: int = 0
    duration_ms: float = 0.0  # from the start of the epoch to its commit, in milliseconds
    # source → watermark, in milliseconds of event time
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # number of key groups whose rows went to a wait buffer in this epoch
    waiting_key_groups: int = 0

    def _line(self) -> str:
        waiting = self.waiting_key_groups
        waits = f", {counted(waiting, 'key group')} waiting" if waiting else ""
        return (
            f"epoch {self.epoch} committed: {counted(self.rows_in, 'row')} in, "
            f"{self.rows_out} out, {self.duration_ms:.0f} ms{waits}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLeftOut(Event):
    """An operator over event time left rows out in an epoch; told once for each of them."""

    operator: str  # its name
    # late, ahead, untimed: rows of which all windows were closed, that were too far ahead of the
    # driver's clock, and that had no event time
    late: int = 0
    ahead: int = 0
    untimed: int = 0
    sink: str = ""  # name of the sink that the rows went to; empty if they are gone
    # sources of the operator whose watermark has no slack: any row out of order is late
    no_slack: tuple[str, ...] = ()

    @property
    def is_warning(self) -> bool:
        """True if the rows are gone."""
        return not self.sink

    def _line(self) -> str:
        reasons = {
            "late": self.late,
            "ahead of the clock": self.ahead,
            "without an event time": self.untimed,
        }
        told = ", ".join(f"{counted(n, 'row')} {reason}" for reason, n in reasons.items() if n)
        where = f"; sink {self.sink} has them" if self.sink else ""
        slack = ""
        if self.late and self.no_slack:
            slack = (
                f"; the watermark of {', '.join(self.no_slack)} has no slack, so what is out of "
                'order may be late: give flow.source(..., slack="10 minutes")'
            )
        return f"operator {self.operator} left out in epoch {self.epoch}: {told}{where}{slack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAborted(Event):
    """An attempt at an epoch came to nothing; it left only files that nobody names."""

    reason: str

    def _line(self) -> str:
        return f"epoch {self.epoch} aborted: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsHeld(Event):
    """No further epoch starts until `EpochsReleased`."""

    reason: str

    def _line(self) -> str:
        return f"epochs held after epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsReleased(Event):
    """Epochs may start again."""

    def _line(self) -> str:
        return f"epochs released after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAdded(Event):
    """An executor joined; it owns nothing until a migration gives it key groups."""

    executor: str
    lanes: int

    def _line(self) -> str:
        return f"executor {self.executor} added with {counted(self.lanes, 'lane')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDraining(Event):
    """An executor is to be removed: nothing moves onto it any more."""

    executor: str

    def _line(self) -> str:
        return f"executor {self.executor} is draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLost(Event):
    """An executor and its local store are gone."""

    executor: str
    reason: str = ""

    def _line(self) -> str:
        return f"executor {self.executor} lost" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCollected(Event):
    """Files of the checkpoint that no retained record names were removed."""

    files: int
    freed_bytes: int = 0

    def _line(self) -> str:
        return f"{counted(self.files, 'file')} collected, {human_bytes(self.freed_bytes)} freed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFailed(Event):
    """A listener raised; it stays, and this is told once for each kind of error that it raises."""

    listener: str  # name of the function
    error: str  # the error's kind and text, in one line
    heard: str  # kind of the event that it was told

    def _line(self) -> str:
        return f"listener {self.listener} failed on {self.heard}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundFailed(Event):
    """Something beside the epochs failed and goes on, or a part could not be closed at the end."""

    what: str  # what it does, as in "watching executors"
    error: str  # the error's kind and text, in one line

    def _line(self) -> str:
        return f"{self.what} failed: {self.error}"

"""What a user sees of a run: one frozen value for everything that happened.

``query.events`` yields these; the dashboard, the command line and the tests read the same values.
An event says what is already durable or already decided, never what is hoped for.  Time comes from
the caller, so a simulated run tells the same story as a real one.

The inputs of the migration protocol are another vocabulary (``godwit.migration.inputs``): those
are facts that the runtime reports *to* the protocol, these are facts told *to people*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from godwit.model.errors import GodwitError

__all__ = [
    "AssignmentSwitched",
    "DecisionTaken",
    "EpochAborted",
    "EpochCommitted",
    "EpochsHeld",
    "EpochsReleased",
    "Event",
    "ExecutorAdded",
    "ExecutorDraining",
    "ExecutorLost",
    "FilesCollected",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "QueryFailed",
    "QueryStarted",
    "QueryStopped",
    "SnapshotWritten",
    "WarmingStarted",
    "event_from_dict",
]


def _listed(key_groups: Sequence[int], *, limit: int = 8) -> str:
    """Write key groups for people: all of a few, the first few of many."""
    shown = ", ".join(map(str, key_groups[:limit]))
    noun = "key group" if len(key_groups) == 1 else "key groups"
    more = f", … {len(key_groups)} in all" if len(key_groups) > limit else ""
    return f"{noun} {shown}{more}" if key_groups else "no key groups"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a run.

    Attributes
    ----------
    epoch
        The last epoch committed when it happened; -1 before the first. An event about an epoch
        itself carries that epoch.
    at_s
        When it happened, in seconds, on the clock of whoever made the event.
    """

    epoch: int
    at_s: float

    def describe(self) -> str:
        """Tell it in one line."""
        told = ", ".join(
            f"{f.name} {getattr(self, f.name)}"
            for f in fields(self)
            if f.name not in {"epoch", "at_s"}
        )
        return f"{type(self).__name__} {told}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain values (JSON can hold them); ``kind`` names the class."""
        values: dict[str, Any] = {"kind": type(self).__name__}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, tuple):
                value = list(value)
            elif isinstance(value, Mapping):
                value = dict(value)
            values[f.name] = value
        return values


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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted(Event):
    """A query began to run; `resumed` tells whether its checkpoint held epochs already."""

    name: str
    resumed: bool = False

    def describe(self) -> str:
        """Tell it in one line."""
        how = f"resumed after epoch {self.epoch}" if self.resumed else "started"
        return f"query {self.name} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopped(Event):
    """A query ended because it was asked to, or because its input did."""

    name: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"query {self.name} stopped after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed(Event):
    """A query ended by an error; what was committed stays."""

    name: str
    error: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"query {self.name} failed after epoch {self.epoch}: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCommitted(Event):
    """An epoch's record is durable.

    Attributes
    ----------
    rows_in, rows_out
        Rows read from the sources and given to the sinks.
    duration_ms
        From the start of the epoch to its commit, in milliseconds.
    watermarks
        Source → watermark, in milliseconds of event time.
    waiting_key_groups
        Number of key groups whose rows went to a wait buffer in this epoch.
    """

    rows_in: int = 0
    rows_out: int = 0
    duration_ms: float = 0.0
    watermarks: Mapping[str, int] = field(default_factory=dict)
    waiting_key_groups: int = 0

    def describe(self) -> str:
        """Tell it in one line."""
        waits = (
            f", {_count(self.waiting_key_groups, 'key group')} waiting"
            if self.waiting_key_groups
            else ""
        )
        return (
            f"epoch {self.epoch} committed: {_count(self.rows_in, 'row')} in, "
            f"{self.rows_out} out, {self.duration_ms:.0f} ms{waits}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAborted(Event):
    """An attempt at an epoch came to nothing; it left only files that nobody names."""

    reason: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"epoch {self.epoch} aborted: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsHeld(Event):
    """No further epoch starts until `EpochsReleased`."""

    reason: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"epochs held after epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsReleased(Event):
    """Epochs may start again."""

    def describe(self) -> str:
        """Tell it in one line."""
        return f"epochs released after epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorAdded(Event):
    """An executor joined; it owns nothing until a migration gives it key groups."""

    executor: str
    lanes: int

    def describe(self) -> str:
        """Tell it in one line."""
        return f"executor {self.executor} added with {_count(self.lanes, 'lane')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDraining(Event):
    """An executor is to be removed: nothing moves onto it any more."""

    executor: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"executor {self.executor} is draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLost(Event):
    """An executor and its local store are gone."""

    executor: str
    reason: str = ""

    def describe(self) -> str:
        """Tell it in one line."""
        return f"executor {self.executor} lost" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStarted(Event):
    """A plan was accepted and is being carried out."""

    migration: str
    component: str
    strategy: str
    moves: int
    state_bytes: int = 0

    def describe(self) -> str:
        """Tell it in one line."""
        return (
            f"migration {self.migration} of {self.component} started ({self.strategy}): "
            f"{_count(self.moves, 'key group')}, {_size(self.state_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFinished(Event):
    """A migration is over, and an epoch has been committed under its last assignment."""

    migration: str
    component: str
    moved: int
    withdrawn: int = 0

    def describe(self) -> str:
        """Tell it in one line."""
        rest = f", {self.withdrawn} withdrawn" if self.withdrawn else ""
        return (
            f"migration {self.migration} of {self.component} finished: "
            f"{_count(self.moved, 'key group')} moved{rest}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationCancelled(Event):
    """A migration ended early; what had moved stays where it is."""

    migration: str
    component: str
    reason: str
    moved: int = 0
    withdrawn: int = 0

    def describe(self) -> str:
        """Tell it in one line."""
        return (
            f"migration {self.migration} of {self.component} cancelled: {self.reason} "
            f"({self.moved} moved, {self.withdrawn} withdrawn)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyGroupEvent(Event):
    component: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingStarted(_KeyGroupEvent):
    """An executor began to load copies in the background."""

    executor: str

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{self.component}: warming {_listed(self.key_groups)} at {self.executor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsWarmed(_KeyGroupEvent):
    """An executor holds fresh copies of key groups that it may own soon."""

    executor: str
    state_bytes: int = 0
    duration_ms: float = 0.0

    def describe(self) -> str:
        """Tell it in one line."""
        return (
            f"{self.component}: {_listed(self.key_groups)} warm at {self.executor} "
            f"({_size(self.state_bytes)} in {self.duration_ms:.0f} ms)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSwitched(Event):
    """The next epoch runs under another assignment.

    Attributes
    ----------
    version
        Version of the new assignment.
    key_groups
        Those that changed executor (none where only lanes changed).
    """

    component: str
    version: int
    key_groups: tuple[int, ...] = ()

    def describe(self) -> str:
        """Tell it in one line."""
        moved = f"moves {_listed(self.key_groups)}" if self.key_groups else "changes lanes only"
        return f"{self.component}: assignment {self.version} {moved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsSuspended(_KeyGroupEvent):
    """Key groups have no state where they are; from now on their rows wait."""

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{self.component}: {_listed(self.key_groups)} suspended, their rows wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsResumed(_KeyGroupEvent):
    """The next epoch processes the rows that waited, in order, and then its own."""

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{self.component}: {_listed(self.key_groups)} resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsLoaded(_KeyGroupEvent):
    """The next epoch loads key groups before it processes them."""

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{self.component}: {_listed(self.key_groups)} loaded by the next epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten(Event):
    """Snapshots of key groups replaced long changelogs."""

    operator: str
    key_groups: tuple[int, ...]
    state_bytes: int

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{self.operator}: snapshot of {_listed(self.key_groups)}, {_size(self.state_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCollected(Event):
    """Files of the checkpoint that no retained record names were removed."""

    files: int
    freed_bytes: int = 0

    def describe(self) -> str:
        """Tell it in one line."""
        return f"{_count(self.files, 'file')} collected, {_size(self.freed_bytes)} freed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTaken(Event):
    """The controller decided something (to plan, to add, to drain, to leave things be).

    Attributes
    ----------
    decision
        What it decided, in a few words.
    reason
        Why.
    numbers
        What the reason rests on: name (with its unit) → value.
    """

    decision: str
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def describe(self) -> str:
        """Tell it in one line."""
        told = ", ".join(f"{name} {value:g}" for name, value in self.numbers.items())
        return f"{self.decision}: {self.reason}" + (f" ({told})" if told else "")


_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AssignmentSwitched,
        DecisionTaken,
        EpochAborted,
        EpochCommitted,
        EpochsHeld,
        EpochsReleased,
        ExecutorAdded,
        ExecutorDraining,
        ExecutorLost,
        FilesCollected,
        KeyGroupsLoaded,
        KeyGroupsResumed,
        KeyGroupsSuspended,
        KeyGroupsWarmed,
        MigrationCancelled,
        MigrationFinished,
        MigrationStarted,
        QueryFailed,
        QueryStarted,
        QueryStopped,
        SnapshotWritten,
        WarmingStarted,
    )
}

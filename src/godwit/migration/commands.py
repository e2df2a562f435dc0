"""Commands of the protocol to the runtime, carried out in order.

Orders about an assignment, suspension or loading concern the next epoch to start, never the one
that runs; `MigrationProtocol.next_epoch` gives the same as one value.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCopies:
    """Key groups whose copies a peer is to send."""

    executor: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWarming:
    """Bring copies of key groups at `executor` forward to the last committed epoch."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    # To be repeated in the report. A newer attempt for the same key groups replaces an older one,
    # which may go on or stop as the runtime likes.
    attempt: str
    states: tuple[Any, ...] = ()  # the component's states, as it is when this is ordered
    # who else holds copies that are to be taken first, and of which key groups; what they do not
    # send, and what their copies miss, is read from the checkpoint
    peers: tuple[PeerCopies, ...] = ()
    why: str = ""  # why from there; empty where there was nothing to choose


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAssignment:
    """Run the next epoch under `assignment`; record it durably before that epoch starts."""

    component: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendKeyGroups:
    """From the next epoch on, put the rows of these key groups into their wait buffers."""

    component: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeKeyGroups:
    """From the next epoch on, process these key groups: first the rows that waited, in order."""

    component: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKeyGroups:
    """In the next epoch, bring these key groups forward from wherever they are, then process."""

    component: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopies:
    """Delete copies that nobody will run from; they may be gone or incomplete."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    states: tuple[Any, ...] = ()  # the component's states, as it is when this is ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEpochs:
    """Start no epoch until `ReleaseEpochs`; send `EpochHeld` whenever one would have been due."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEpochs:
    """Epochs may start again."""


class MigrationOutcome(StrEnum):
    """Final state of a migration."""

    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMigration:
    """End of a migration: the component is free for the next one."""

    id: str  # of the migration
    component: str
    # finished (after a commit under its last assignment), or cancelled (on request, or because not
    # a single move was left)
    outcome: MigrationOutcome
    moved: int  # key groups that changed executor as planned
    withdrawn: int  # planned moves that were given up
    reason: str = ""  # why moves were withdrawn; empty where none were


Command = (
    StartWarming
    | SwitchAssignment
    | SuspendKeyGroups
    | ResumeKeyGroups
    | LoadKeyGroups
    | DropCopies
    | HoldEpochs
    | ReleaseEpochs
    | EndMigration
)


_ANNOUNCED: Mapping[type, type[events.Event]] = {
    StartWarming: events.WarmingStarted,
    SuspendKeyGroups: events.KeyGroupsSuspended,
    ResumeKeyGroups: events.KeyGroupsResumed,
    LoadKeyGroups: events.KeyGroupsLoaded,
    HoldEpochs: events.EpochsHeld,
    ReleaseEpochs: events.EpochsReleased,
}
"""Command → the event that announces it, by fields of the same names."""


def announcement(
    command: Command, *, epoch: int, at_s: float, before: Assignment | None = None
) -> events.Event | None:
    """Return the event that announces a command of the protocol; ``None`` if none does.

    `before`: the component's assignment until now.
    """
    kind = _ANNOUNCED.get(type(command))
    more: dict[str, Any] = {}
    match command:
        case StartWarming():
            more = {"peers": tuple(peer.executor for peer in command.peers)}
        case SwitchAssignment(assignment=after):
            kind = events.AssignmentSwitched
            moved = before.moves_to(after) if before is not None else ()
            key_groups = tuple(move.key_group for move in moved)
            more = {"version": after.version, "key_groups": key_groups}
        case EndMigration():
            finished = command.outcome is MigrationOutcome.FINISHED
            kind = events.MigrationFinished if finished else events.MigrationCancelled
            more = {"migration": command.id}
    if kind is None:
        return None
    shared = {f.name for f in fields(kind)} & {f.name for f in fields(command)} - more.keys()
    return kind(epoch=epoch, at_s=at_s, **{n: getattr(command, n) for n in shared}, **more)

"""Commands of the protocol to the runtime, carried out in order.

A switch of the assignment concerns the next epoch to start, never the one that runs; as do
suspension and loading. `MigrationProtocol.next_epoch` gives all of these as one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model import events
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
class DropCopies:
    """Delete copies that nobody will run from; they may be gone or incomplete."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    states: tuple[Any, ...] = ()  # the component's states, as it is when this is ordered


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce what the protocol decided, such as key groups that are suspended.

    What it says is part of `MigrationProtocol.next_epoch`.
    """

    event: type[events.Event]
    values: Mapping[str, Any] = field(default_factory=dict)  # its fields, but epoch and time


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


Command = StartWarming | SwitchAssignment | DropCopies | EndMigration | Announce

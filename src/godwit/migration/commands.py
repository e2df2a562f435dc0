"""Commands of the protocol to the runtime, carried out in order.

Switches of the assignment, suspension and loading concern the next epoch, never the running one.
`MigrationProtocol.next_epoch` returns all of these as one value.
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
    # repeated in the report; a newer attempt for the same key groups replaces an older one, which
    # may go on or stop
    attempt: str
    states: tuple[Any, ...] = ()  # the component's states at the time of the order
    # executors with copies to use first, and their key groups; key groups that they do not send,
    # and changes that their copies lack, are read from the checkpoint
    peers: tuple[PeerCopies, ...] = ()
    why: str = ""  # reason for the source; empty without a choice


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchAssignment:
    """Run the next epoch under `assignment`; record it durably before that epoch starts."""

    component: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopies:
    """Delete unused copies; they may be gone or incomplete."""

    component: str
    executor: str
    key_groups: tuple[int, ...]  # ascending
    states: tuple[Any, ...] = ()  # the component's states at the time of the order


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce a decision of the protocol, such as suspended key groups.

    The decision is part of `MigrationProtocol.next_epoch`.
    """

    event: type[events.Event]
    values: Mapping[str, Any] = field(default_factory=dict)  # its fields, except epoch and time


class MigrationOutcome(StrEnum):
    """Final state of a migration."""

    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMigration:
    """End of a migration: the component is free for the next one."""

    id: str  # of the migration
    component: str
    # finished (after a commit under its last assignment), or cancelled (on request, or because all
    # moves were withdrawn)
    outcome: MigrationOutcome
    moved: int  # key groups that changed executor as planned
    withdrawn: int  # planned moves that were cancelled
    reason: str = ""  # why moves were withdrawn; empty if none were


Command = StartWarming | SwitchAssignment | DropCopies | EndMigration | Announce

"""The orders that the protocol gives.  The runtime carries them out in the order they come.

Orders about an assignment, suspension or loading concern the next epoch to start, never the one
that runs; `MigrationProtocol.next_epoch` gives the same as one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit.model.assignment import Assignment

__all__ = [
    "Command",
    "DropCopies",
    "EndMigration",
    "HoldEpochs",
    "LoadKeyGroups",
    "MigrationOutcome",
    "PeerCopies",
    "ReleaseEpochs",
    "ResumeKeyGroups",
    "StartWarming",
    "SuspendKeyGroups",
    "SwitchAssignment",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCopies:
    """Key groups of which an executor is to send its copies."""

    executor: str
    key_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWarming:
    """Bring copies of key groups at `executor` forward to the last committed epoch.

    Attributes
    ----------
    component, executor, key_groups
        What, and where. Key groups ascend.
    attempt
        To be repeated in the report. A newer attempt for the same key groups replaces an older
        one, which may go on or stop as the runtime likes.
    states
        The component's states, as it is when this is ordered.
    peers
        Who else holds copies that are to be taken first, and of which key groups; what they do not
        send, and what their copies miss, is read from the checkpoint.
    why
        Why from there; empty where there was nothing to choose.
    """

    component: str
    executor: str
    key_groups: tuple[int, ...]
    attempt: str
    states: tuple[Any, ...] = ()
    peers: tuple[PeerCopies, ...] = ()
    why: str = ""


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
    """Delete copies that nobody will run from. They may not be there, or only in part.

    Attributes
    ----------
    component, executor, key_groups
        What, and where. Key groups ascend.
    states
        The component's states, as it is when this is ordered.
    """

    component: str
    executor: str
    key_groups: tuple[int, ...]
    states: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEpochs:
    """Start no epoch until `ReleaseEpochs`; send `EpochHeld` whenever one would have been due."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEpochs:
    """Epochs may start again."""


class MigrationOutcome(StrEnum):
    """How a migration ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMigration:
    """Tell whoever asked that the migration is over; the component is free for the next one.

    Attributes
    ----------
    id, component
        The migration.
    outcome
        Finished (after a commit under its last assignment), or cancelled (on request, or because
        not a single move was left).
    moved, withdrawn
        Key groups that changed executor as planned, and planned moves that were given up.
    reason
        Why moves were withdrawn; empty where none were.
    """

    id: str
    component: str
    outcome: MigrationOutcome
    moved: int
    withdrawn: int
    reason: str = ""


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

"""Telling people what the protocol ordered: commands as events of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.migration.commands import (
    Command,
    DropCopies,
    EndMigration,
    HoldEpochs,
    LoadKeyGroups,
    MigrationOutcome,
    ReleaseEpochs,
    ResumeKeyGroups,
    StartWarming,
    SuspendKeyGroups,
    SwitchAssignment,
)
from godwit.model import events

if TYPE_CHECKING:
    from godwit.model.assignment import Assignment

__all__ = ["narrate"]


def narrate(
    command: Command, *, epoch: int, at_s: float, before: Assignment | None = None
) -> events.Event | None:
    """Return the event that a command amounts to; ``None`` where it is of no interest.

    Parameters
    ----------
    command
        What the protocol ordered.
    epoch
        The last committed epoch.
    at_s
        Now, in seconds, on the caller's clock.
    before
        For `SwitchAssignment`: the assignment until now, to tell which key groups move.
    """
    match command:
        case StartWarming(component=component, executor=executor, key_groups=key_groups):
            return events.WarmingStarted(
                epoch=epoch,
                at_s=at_s,
                component=component,
                executor=executor,
                key_groups=key_groups,
                peers=tuple(peer.executor for peer in command.peers),
                why=command.why,
            )
        case SwitchAssignment(component=component, assignment=assignment):
            moved = before.moves_to(assignment) if before is not None else ()
            return events.AssignmentSwitched(
                epoch=epoch,
                at_s=at_s,
                component=component,
                version=assignment.version,
                key_groups=tuple(move.key_group for move in moved),
            )
        case SuspendKeyGroups(component=component, key_groups=key_groups):
            return events.KeyGroupsSuspended(
                epoch=epoch, at_s=at_s, component=component, key_groups=key_groups
            )
        case ResumeKeyGroups(component=component, key_groups=key_groups):
            return events.KeyGroupsResumed(
                epoch=epoch, at_s=at_s, component=component, key_groups=key_groups
            )
        case LoadKeyGroups(component=component, key_groups=key_groups):
            return events.KeyGroupsLoaded(
                epoch=epoch, at_s=at_s, component=component, key_groups=key_groups
            )
        case HoldEpochs(reason=reason):
            return events.EpochsHeld(epoch=epoch, at_s=at_s, reason=reason)
        case ReleaseEpochs():
            return events.EpochsReleased(epoch=epoch, at_s=at_s)
        case EndMigration(outcome=MigrationOutcome.FINISHED):
            return events.MigrationFinished(
                epoch=epoch,
                at_s=at_s,
                migration=command.id,
                component=command.component,
                moved=command.moved,
                withdrawn=command.withdrawn,
            )
        case EndMigration():
            return events.MigrationCancelled(
                epoch=epoch,
                at_s=at_s,
                migration=command.id,
                component=command.component,
                moved=command.moved,
                withdrawn=command.withdrawn,
                reason=command.reason,
            )
        case DropCopies():
            return None

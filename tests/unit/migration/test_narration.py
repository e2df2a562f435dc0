"""Commands told as events."""

from __future__ import annotations

import pytest

from godwit.migration import (
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
from godwit.migration.commands import announcement
from godwit.model import events
from godwit.model.assignment import even_assignment

BEFORE = even_assignment(4, ["a", "b"], [1, 1])


def ended(outcome: MigrationOutcome, reason: str = "") -> EndMigration:
    return EndMigration(
        id="m", component="sum", outcome=outcome, moved=1, withdrawn=2, reason=reason
    )


@pytest.mark.parametrize(
    ("command", "event"),
    [
        (
            StartWarming(component="sum", executor="a", key_groups=(1,), attempt="r/1"),
            events.WarmingStarted(
                epoch=3, at_s=2.0, component="sum", executor="a", key_groups=(1,)
            ),
        ),
        (
            SwitchAssignment(component="sum", assignment=BEFORE.moved({1: "a"})),
            events.AssignmentSwitched(
                epoch=3, at_s=2.0, component="sum", version=1, key_groups=(1,)
            ),
        ),
        (
            SuspendKeyGroups(component="sum", key_groups=(1, 2)),
            events.KeyGroupsSuspended(epoch=3, at_s=2.0, component="sum", key_groups=(1, 2)),
        ),
        (
            ResumeKeyGroups(component="sum", key_groups=(1, 2)),
            events.KeyGroupsResumed(epoch=3, at_s=2.0, component="sum", key_groups=(1, 2)),
        ),
        (
            LoadKeyGroups(component="sum", key_groups=(1, 2)),
            events.KeyGroupsLoaded(epoch=3, at_s=2.0, component="sum", key_groups=(1, 2)),
        ),
        (HoldEpochs(reason="why"), events.EpochsHeld(epoch=3, at_s=2.0, reason="why")),
        (ReleaseEpochs(), events.EpochsReleased(epoch=3, at_s=2.0)),
        (
            ended(MigrationOutcome.FINISHED),
            events.MigrationFinished(
                epoch=3, at_s=2.0, migration="m", component="sum", moved=1, withdrawn=2
            ),
        ),
        (
            ended(MigrationOutcome.CANCELLED, "why"),
            events.MigrationCancelled(
                epoch=3, at_s=2.0, migration="m", component="sum", moved=1, withdrawn=2,
                reason="why",
            ),
        ),
        (DropCopies(component="sum", executor="a", key_groups=(1,)), None),
    ],
)  # fmt: skip
def test_a_command_is_told_as_its_event(command: Command, event: events.Event | None) -> None:
    assert announcement(command, epoch=3, at_s=2.0, before=BEFORE) == event


def test_a_switch_from_an_unknown_assignment_names_no_key_groups() -> None:
    command = SwitchAssignment(component="sum", assignment=BEFORE)
    event = announcement(command, epoch=3, at_s=2.0)
    assert event == events.AssignmentSwitched(epoch=3, at_s=2.0, component="sum", version=0)

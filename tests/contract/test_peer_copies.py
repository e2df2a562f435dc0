"""Copies that executors send one another are as good as those of the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.contract.one_process import OneProcess
from tests.contract.scenario import Migrate, Rows, Scenario
from tests.contract.scenarios import PEERS, drawn, scenario
from tests.contract.verdict import play
from tests.support.rounds import rounds

from godwit.migration import CopiesFrom
from godwit.model import events

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.checkpoint.records import StateId
    from godwit.migration.messages import PeerCopies, StartWarming


@pytest.mark.parametrize("seed", range(200, 200 + rounds(2, 4)))
def test_whatever_is_drawn_copies_from_other_executors_are_as_good_as_the_checkpoints(
    tmp_path: Path, seed: int
) -> None:
    played = drawn(seed)
    policy = replace(played.policy, copies_from=CopiesFrom.PEERS)
    play(played, OneProcess(tmp_path, deep=played.deep, policy=policy))


def test_who_sends_copies_is_told(tmp_path: Path) -> None:
    played = scenario("a migration of copies that executors send one another")
    run = OneProcess(tmp_path, deep=played.deep, policy=played.policy)
    play(played, run)
    began = [event for event in run.events if isinstance(event, events.WarmingStarted)]
    assert {(event.executor, event.peers, event.why) for event in began if event.peers} == {
        ("local-0", ("local-1",), "by setting"),
        ("local-1", ("local-0",), "by setting"),
    }
    warmed = [event for event in run.events if isinstance(event, events.KeyGroupsWarmed)]
    assert sum(event.peer_bytes for event in warmed)
    assert not any(isinstance(event, events.PeerTransferFailed) for event in run.events)


class _Unreachable(OneProcess):
    """Executors cannot send one another anything."""

    def fetch(self, order: StartWarming, copies: PeerCopies) -> dict[StateId, dict[int, int]]:
        msg = f"{copies.executor} does not answer"
        raise ConnectionError(msg)


def test_a_peer_that_cannot_be_reached_costs_nothing_but_time(tmp_path: Path) -> None:
    played = scenario("a migration of copies that executors send one another")
    run = _Unreachable(tmp_path, deep=played.deep, policy=played.policy)
    play(played, run)
    failed = [event for event in run.events if isinstance(event, events.PeerTransferFailed)]
    assert {(event.executor, event.source, event.reason) for event in failed} == {
        ("local-0", "local-1", "local-1 does not answer"),
        ("local-1", "local-0", "local-0 does not answer"),
    }
    assert not any(e.peer_bytes for e in run.events if isinstance(e, events.KeyGroupsWarmed))


class _Ahead(OneProcess):
    """Executors send copies of an epoch that nobody has committed."""

    def fetch(self, order: StartWarming, copies: PeerCopies) -> dict[StateId, dict[int, int]]:
        return {state: dict.fromkeys(copies.key_groups, 999) for state in order.states}


def test_a_copy_ahead_of_what_is_committed_never_counts(tmp_path: Path) -> None:
    run = _Ahead(tmp_path, deep=False, policy=PEERS)
    played = Scenario(
        name="copies ahead",
        steps=(*(Rows(),) * 3, Migrate(component="order"), *(Rows(),) * 12),
        same_epochs=True,
        told=("WarmingStarted", "MigrationCancelled"),
        never=("KeyGroupsWarmed", "AssignmentSwitched"),
    )
    play(played, run)

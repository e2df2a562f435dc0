"""Copies in the simulator: from the checkpoint, from peers, and from peers that die meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from godwit.migration import Bounds, CopiesFrom, Policy
from godwit.migration.messages import MigrationRequested, PeerCopies, StartWarming
from godwit.model import events
from godwit_lab.simulator import (
    Death,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
)
from godwit_lab.simulator.holdings import Holdings
from godwit_lab.simulator.transfers import Warming

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.migration.coordinator import Warmed

KEY_BYTES = 1000
MACHINE = Machine(bytes_per_s=10_000)


def warming(holders: Iterable[str], *, checkpoint_bytes_per_s: float = 1000.0) -> Warming:
    """Four key groups of ten keys; `holders` have copies that are ten keys behind."""
    held = Holdings(key_groups=4, key_bytes=KEY_BYTES)
    held.set_initial_state(np.full(4, 10.0))
    made = Warming(
        holdings={"sums": held}, fixed_s=1.0, checkpoint_bytes_per_s=checkpoint_bytes_per_s
    )
    for name in ("a", "b", "c"):
        made.add_executor(name, MACHINE)
    for name in holders:
        held.catch_up(name, np.arange(4), held.written_bytes.copy())
    held.changelog_bytes += 500.0
    held.written_bytes += 500.0
    return made


def order(*peers: PeerCopies) -> StartWarming:
    return StartWarming(
        component="sums", executor="c", key_groups=(0, 1, 2, 3), attempt="r/1", peers=peers
    )


def warm(made: Warming, *orders: StartWarming) -> list[Warmed]:
    """Carry out orders; return what came of them, in the order of their ends."""
    for ordered in orders:
        made.queue_order(ordered)
    ended: list[Warmed] = []
    while len(ended) < len(orders):
        ended += [warmed for _, warmed in made.advance(1e6, 7)]
    return ended


def test_what_peers_send_goes_over_their_links_and_the_rest_comes_from_the_checkpoint() -> None:
    made = warming(["a", "b"])
    (warmed,) = warm(
        made,
        order(
            PeerCopies(executor="a", key_groups=(0, 1)), PeerCopies(executor="b", key_groups=(2,))
        ),
    )
    sent_s = (1 + 20_000 / 10_000) + (1 + 10_000 / 10_000)
    # Three copies miss what was changed since; of the fourth there is nothing at all.
    read_s = 1 + (3 * 500 + 10_500) / 1000
    assert warmed.duration_ms / 1e3 == pytest.approx(sent_s + read_s)
    assert [(d.source, d.key_groups, d.failure) for d in warmed.deliveries] == [
        ("a", (0, 1), ""),
        ("b", (2,), ""),
        (None, (3,), ""),
    ]
    assert warmed.deliveries[0].duration_ms == pytest.approx(3000)
    assert made.moved_bytes == 30_000 + 12_000
    assert warmed.reach == dict.fromkeys(range(4), 7)
    assert not made.holdings["sums"].missing_bytes("c").any()


def test_a_peer_that_holds_less_has_sent_nothing_and_costs_its_time() -> None:
    made = warming(["a"])
    (warmed,) = warm(made, order(PeerCopies(executor="b", key_groups=(0, 1, 2, 3))))
    assert warmed.duration_ms / 1e3 == pytest.approx(1 + 1 + 42_000 / 1000)
    assert [(d.source, d.failure) for d in warmed.deliveries] == [
        ("b", "it does not hold all of them"),
        (None, ""),
    ]


def test_what_a_peer_was_sending_when_it_died_is_read_from_the_checkpoint() -> None:
    made = warming(["a"])
    made.queue_order(order(PeerCopies(executor="a", key_groups=(0, 1, 2, 3))))
    made.advance(1.0, 7)
    made.advance(2.0, 7)
    made.remove_executor("a")
    (warmed,) = warm(made, order())
    assert [(d.source, d.failure) for d in warmed.deliveries] == [
        ("a", "executor a was lost"),
        (None, ""),
    ]
    assert warmed.duration_ms / 1e3 == pytest.approx(2 + 1 + 42_000 / 1000)


def test_an_executor_sends_to_one_other_at_a_time() -> None:
    made = warming(["a"], checkpoint_bytes_per_s=1e9)
    both = [
        StartWarming(
            component="sums",
            executor=name,
            key_groups=(0, 1, 2, 3),
            attempt=name,
            peers=(PeerCopies(executor="a", key_groups=(0, 1, 2, 3)),),
        )
        for name in ("b", "c")
    ]
    took_s = [warmed.duration_ms / 1e3 for warmed in warm(made, *both)]
    assert took_s == pytest.approx([1 + 4 + 1, 2 * (1 + 4) + 1], abs=0.3)


def stream(policy: Policy, deaths: tuple[Death, ...] = ()) -> tuple[Simulation, float]:
    """Move half of executor 0's key groups to executor 3, slowly read; say how long it takes."""
    scenario = Scenario(
        cluster=SimulatedCluster(
            machines=(Machine(bytes_per_s=50e6),) * 4, checkpoint_bytes_per_s=2e6, deaths=deaths
        ),
        components=(SimulatedComponent(name="sums", key_groups=64, row_ms=0.05, key_bytes=5000),),
        rate=Rate(rows_per_s=2000),
        keys=Keys(number=20_000),
        duration_s=60,
        policy=policy,
        held=True,
    )
    simulation = Simulation(scenario, seed=3)
    simulation.run(2.0)
    (view,) = simulation.coordinator.view.components.values()
    sizes = simulation.flow.holdings["sums"].state_bytes
    simulation.coordinator.migrate(
        MigrationRequested(
            id="by hand",
            component="sums",
            target=view.assignment.moved(
                dict.fromkeys(view.assignment.key_groups("0").tolist(), "3")
            ),
            bounds=Bounds(max_moves=4),
            state_bytes=dict(enumerate(sizes.astype(int).tolist())),
        )
    )
    simulation.run()
    simulation.run(settle_s=10.0)
    (ended,) = simulation.history.of_kind(events.MigrationFinished, events.MigrationCancelled)
    for buffer in simulation.flow.buffers.values():
        assert (buffer.arrived == buffer.processed).all()
    return simulation, ended.at_s - 2.0


def test_where_the_checkpoint_is_slow_peers_are_measured_and_taken() -> None:
    _, from_checkpoint_s = stream(Policy(copies_from=CopiesFrom.CHECKPOINT))
    chosen, chosen_s = stream(Policy())
    assert chosen_s < from_checkpoint_s / 2
    orders = [e for e in chosen.history.of_kind(events.WarmingStarted) if e.why]
    assert not orders[0].peers
    measured = [e for e in orders if "give" in e.why]
    assert measured
    assert all(e.peers for e in measured)
    checkpoint, peers = chosen.coordinator.copies_bytes_per_s
    assert peers is not None
    assert checkpoint is not None
    assert peers > 5 * checkpoint


def test_a_peer_that_dies_while_it_sends_costs_time_and_no_row() -> None:
    simulation, _ = stream(
        Policy(copies_from=CopiesFrom.PEERS), deaths=(Death(executor="0", at_s=2.2),)
    )
    (failed,) = simulation.history.of_kind(events.PeerTransferFailed)
    assert failed.source == "0"

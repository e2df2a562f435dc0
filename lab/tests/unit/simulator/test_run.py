"""A simulated run drives the real coordinator: epochs, losses, moves, levels, back-pressure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from godwit.migration import Bounds, Strategy
from godwit.migration.messages import MigrationRequested
from godwit.model import events
from godwit.model.errors import InvalidProblemError
from godwit.model.events import EpochCommitted
from godwit_lab.simulator import (
    CostModel,
    Death,
    Join,
    Keys,
    Machine,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    Slowdown,
    UpstreamFeed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.engine.policies import CommittedEpoch
    from godwit.migration.outcome import EpochOutcome
    from godwit.model.latency import LatencyHistogram

COSTS = CostModel(
    fixed_ms=100, source_row_ms=0.0, row_ms=0.0, key_ms=0.0, key_group_ms=0.0, warm_fixed_ms=50
)


def scenario(**changes: Any) -> Scenario:
    plain = Scenario(
        cluster=SimulatedCluster(machines=(Machine(),) * 4),
        components=(SimulatedComponent(name="sums", key_groups=32, row_ms=1.0, key_bytes=1000),),
        rate=Rate(rows_per_s=1000),
        keys=Keys(number=1000, zipf=0.5),
        duration_s=10,
        costs=COSTS,
    )
    return replace(plain, **changes)


def rows_processed(simulation: Simulation, component: str = "sums") -> int:
    buffers = simulation.flow.buffers[component]
    assert np.array_equal(buffers.arrived, buffers.processed)
    return int(buffers.processed.sum())


def test_every_row_is_processed_once_and_its_delay_is_counted() -> None:
    simulation = Simulation(scenario(), seed=1)
    history = simulation.run(settle_s=5)
    assert rows_processed(simulation) == 10_000
    assert history.delays().rows == pytest.approx(10_000)
    assert history.column("rows").sum() == 10_000
    assert history.epochs[-1].lag_rows == 0


def test_events_have_the_latency_of_the_epochs_rows() -> None:
    history = Simulation(scenario(max_rows=100), seed=1).run()
    told = {event.epoch: event.latency_ms for event in history.of_kind(EpochCommitted)}
    for record in history.epochs:
        if record.rows:
            took_ms = told[record.epoch]
            assert took_ms["p99"] == pytest.approx(1e3 * record.delays.quantile_s(0.99), rel=0.02)
            assert took_ms["max"] == pytest.approx(1e3 * record.delays.greatest_s, abs=0.1)


def test_equal_seeds_give_equal_histories_and_others_do_not() -> None:
    one, same, other = (
        Simulation(scenario(rate=Rate(rows_per_s=1000, noise=0.1)), seed=seed).run()
        for seed in (1, 1, 2)
    )
    assert one.summary() == same.summary() != other.summary()
    assert [e.describe() for e in one.events] == [e.describe() for e in same.events]


def test_an_epoch_takes_its_fixed_time_and_its_slowest_lane() -> None:
    simulation = Simulation(scenario(max_rows=400, rate=Rate(rows_per_s=10_000)), seed=1)
    history = simulation.run()
    expected = simulation.flow.expected_ms(400, 0)["sums"]
    owner = simulation.coordinator.view.components["sums"].assignment.executor_of
    slowest = np.bincount(owner, weights=expected).max()
    assert history.column("took_s").mean() == pytest.approx((100 + slowest) / 1000, rel=0.1)


def test_rows_wait_at_the_source_when_more_come_than_epochs_take() -> None:
    history = Simulation(scenario(max_rows=100), seed=1).run()
    lag = history.column("lag_rows")
    assert (np.diff(lag) >= 0).mean() > 0.9
    assert history.delays().greatest_s > 2
    assert history.column("rows").max() == 100


def test_a_slow_executor_makes_epochs_longer_while_it_is_slow() -> None:
    slow = Slowdown(executor="2", start_s=4, end_s=8, factor=3)
    history = Simulation(
        scenario(cluster=SimulatedCluster(machines=(Machine(),) * 4, slowdowns=(slow,)))
    )
    took = history.run()
    per_row = [
        (part.column("took_s") - 0.1).sum() / part.column("rows").sum()
        for part in (took.between(1, 4), took.between(4.5, 8), took.between(8.5, 10))
    ]
    assert per_row[1] > 2.5 * per_row[0]
    assert per_row[2] == pytest.approx(per_row[0], rel=0.15)


def test_an_executor_that_dies_aborts_its_epoch_and_no_row_is_lost() -> None:
    cluster = SimulatedCluster(machines=(Machine(),) * 4, deaths=(Death(executor="1", at_s=5.05),))
    simulation = Simulation(scenario(cluster=cluster), seed=3)
    history = simulation.run(settle_s=5)
    assert rows_processed(simulation) == 10_000
    assert history.aborted == 1
    assert history.of_kind(events.ExecutorLost)
    assert max(r.waiting_rows for r in history.epochs) > 0
    assert history.epochs[-1].waiting_rows == 0
    assert "1" not in simulation.coordinator.view.components["sums"].assignment.executors


def test_a_stream_without_executors_stands_still_until_one_comes() -> None:
    cluster = SimulatedCluster(
        machines=(Machine(),), deaths=(Death(executor="0", at_s=3),), joins=(Join(at_s=6),)
    )
    light = (SimulatedComponent(name="sums", key_groups=32, row_ms=0.1),)
    simulation = Simulation(scenario(cluster=cluster, components=light), seed=1)
    history = simulation.run(settle_s=10)
    assert not history.between(3.0, 6.0).epochs
    assert rows_processed(simulation) == 10_000


def migrate_to_last(simulation: Simulation, strategy: Strategy, bounds: Bounds) -> None:
    current = simulation.coordinator.view.components["sums"].assignment
    simulation.coordinator.migrate(
        MigrationRequested(
            id="m1",
            component="sums",
            target=current.moved(dict.fromkeys(range(0, 32, 4), "3")),
            strategy=strategy,
            bounds=bounds,
        )
    )


@pytest.mark.parametrize(
    "strategy",
    # A simulated checkpoint has no blocks from which lanes could fetch entries.
    [s for s in Strategy if not s.activates_standby and s is not Strategy.ON_DEMAND],
)
def test_key_groups_migrate_within_bounds_and_no_row_is_lost(strategy: Strategy) -> None:
    simulation = Simulation(scenario(), seed=1)
    simulation.run(3.0)
    migrate_to_last(simulation, strategy, Bounds(max_moves=2))
    while simulation.coordinator.ended("m1") is None:
        simulation.step()
        flying = simulation.coordinator.view.components["sums"].transfers
        assert len(flying) <= 2 or strategy is not Strategy.LIVE
    ended = simulation.coordinator.ended("m1")
    assert ended is not None
    assert ended.moved == 8
    simulation.run(settle_s=5)
    assert rows_processed(simulation) == 10_000
    assert simulation.history.column("moves").sum() == 8
    assert simulation.history.column("moved_bytes").sum() > 0


def test_to_stop_the_world_costs_an_epoch_more_than_to_move_live() -> None:
    longest = {}
    big = (SimulatedComponent(name="sums", key_groups=32, row_ms=0.2, key_bytes=10**6),)
    for strategy in (Strategy.LIVE, Strategy.DISRUPTIVE, Strategy.STOP_THE_WORLD):
        simulation = Simulation(scenario(components=big), seed=1)
        simulation.run(3.0)
        migrate_to_last(simulation, strategy, Bounds())
        history = simulation.run(settle_s=20)
        longest[strategy] = history.delays().greatest_s
    assert longest[Strategy.LIVE] < longest[Strategy.DISRUPTIVE] / 1.5
    assert longest[Strategy.LIVE] < longest[Strategy.STOP_THE_WORLD] / 1.5


class WatchingController:
    """A controller that only watches."""

    def __init__(self) -> None:
        self.outcomes: list[EpochOutcome] = []
        self.turns = self.delivered_rows = 0

    def made(self, _: Simulation) -> WatchingController:
        return self

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        pass

    def observe(self, epoch: CommittedEpoch) -> None:
        self.outcomes.append(epoch.outcome)

    def delivered(self, latency: LatencyHistogram, _spent_s: Mapping[str, float]) -> None:
        self.delivered_rows += latency.rows

    def step(self) -> None:
        self.turns += 1


def test_a_controller_sees_every_epoch_and_gets_its_turn_between_them() -> None:
    noting = WatchingController()
    simulation = Simulation(scenario(), seed=1, control=noting.made)
    history = simulation.run(settle_s=2)
    assert [o.epoch for o in noting.outcomes] == [r.epoch for r in history.epochs]
    assert noting.turns > len(history.epochs)
    assert noting.delivered_rows == history.column("rows").sum()
    assert simulation.topology.stages == (("sums",),)


def test_rows_go_through_the_levels_and_cross_executors_less_when_paired() -> None:
    crossed = []
    for paired in (0.0, 1.0):
        chain = (
            SimulatedComponent(name="sums", key_groups=32, row_ms=0.5),
            SimulatedComponent(
                name="tops",
                key_groups=32,
                row_ms=0.5,
                feeds=(
                    UpstreamFeed(upstream="sums", selectivity=0.5, paired=paired, row_bytes=10),
                ),
            ),
        )
        noting = WatchingController()
        simulation = Simulation(scenario(components=chain), seed=1, control=noting.made)
        simulation.run(settle_s=5)
        assert rows_processed(simulation) == 10_000
        assert rows_processed(simulation, "tops") == pytest.approx(5_000, rel=0.05)
        assert sum(sum(o.traffic["tops"].rows) for o in noting.outcomes) == rows_processed(
            simulation, "tops"
        )
        crossed.append(sum(o.traffic["tops"].crossed_bytes for o in noting.outcomes))
    assert crossed[0] == pytest.approx(0.75 * 50_000, rel=0.1)
    assert crossed[1] == 0


def test_a_trigger_keeps_micro_batches_apart() -> None:
    history = Simulation(scenario(trigger_s=1.0), seed=1).run()
    began = history.column("began_s")[history.column("rows") > 0]
    assert np.diff(began).min() >= 1.0 - 1e-9


def test_a_run_in_which_no_row_came_cannot_be_summed_up() -> None:
    history = Simulation(scenario(rate=Rate(rows_per_s=0)), seed=1).run()
    with pytest.raises(InvalidProblemError, match="No row was taken"):
        history.summary()


def test_scenarios_and_costs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="cannot be simulated"):
        scenario(duration_s=0)
    with pytest.raises(InvalidProblemError, match="key_ms is -1"):
        replace(COSTS, key_ms=-1)

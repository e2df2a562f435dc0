"""Latency targets in the simulator: what no number of executors can cure asks for none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from benchmarks.control import steps
from tests.support.controls import control_of
from tests.support.long_tests import chosen
from tests.support.rounds import rounds

from godwit.control import Budget
from godwit.control.scaling import WantedExecutors, custom, latency, utilisation
from godwit.model import events
from godwit_lab.simulator import (
    CostModel,
    History,
    Keys,
    Machine,
    Pool,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    Surge,
    controlled_by,
)
from godwit_lab.simulator.flow import EpochWork, SimulatedFlow

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation

COSTS = CostModel(
    fixed_ms=100, source_row_ms=0.0, row_ms=0.0, key_ms=0.0, key_group_ms=0.0, warm_fixed_ms=50
)
HEAVY = Keys(number=40, zipf=2.5)  # one of them has three rows of four


def play(
    target: float = 0.0,
    *,
    executors: int = 2,
    cores: int = 1,
    rows_per_s: float = 1000.0,
    operators: int = 1,
    row_ms: float = 1.0,
    seconds: float = 80.0,
    key_groups: int = 32,
    key_bytes: int = 100,
    keys: Keys | None = None,
    surges: tuple[Surge, ...] = (),
    **changed: Any,
) -> History:
    """Play a stream with a target for its mean latency, or another scaling model."""
    machine = Machine(cores=cores)
    settings: dict[str, Any] = {"period": "4 seconds", "planner": "flux"}
    settings |= {n: changed.pop(n) for n in ("budget", "max_executors", "scaling") if n in changed}
    if "scaling" not in settings:
        settings["scaling"] = latency(f"{target} seconds")
    scenario = Scenario(
        cluster=SimulatedCluster(
            machines=(machine,) * executors, added=machine, pool=Pool(start_s=(1.0, 2.0))
        ),
        components=tuple(
            SimulatedComponent(
                name=f"sums{n}", key_groups=key_groups, row_ms=row_ms, key_bytes=key_bytes
            )
            for n in range(operators)
        ),
        rate=Rate(rows_per_s=rows_per_s, noise=0.05, surges=surges),
        keys=keys or Keys(number=1000, zipf=0.3),
        duration_s=seconds,
        **({"costs": COSTS} | changed),
    )
    return Simulation(scenario, seed=3, control=controlled_by(control_of(**settings))).run()


def scaled(history: History) -> list[tuple[int, int]]:
    return [(e.before, e.wanted) for e in history.of_kind(events.ScaledOut, events.ScaledIn)]


DECIDED = (events.ScaledOut, events.ScaledIn, events.ScalingRefused)


def test_a_trigger_longer_than_the_target_is_told_of_once_with_what_can_be_had() -> None:
    history = play(2.0, executors=3, rows_per_s=600, trigger_s=6.0, seconds=120)
    (decided,) = history.of_kind(*DECIDED)
    assert not isinstance(decided, events.ScaledIn)
    assert "epochs begin only every 6 s" in decided.reason
    measured_s = history.between(60, 120).delays().mean_s
    assert decided.numbers["expected_s"] == pytest.approx(measured_s, rel=0.1)


def test_a_busiest_lane_beside_idle_ones_is_seen_and_its_key_group_named() -> None:
    """Executors of four lanes: the mean lane is busy for a seventh of its time."""
    history = play(0.8, cores=4, rows_per_s=1230, keys=HEAVY)
    assert history.between(40, 80).delays().mean_s > 0.8
    (decided,) = history.of_kind(*DECIDED)
    assert not isinstance(decided, events.ScaledOut)
    assert re.search(r"alone needs 0\.[89]", decided.reason)


@pytest.mark.parametrize("operators", chosen({"6": 6, "20": 20}, only_long=["20"]).values())
def test_many_operators_with_little_to_do_need_no_executor_each(operators: int) -> None:
    history = play(10.0, operators=operators, rows_per_s=25.0, key_groups=8, seconds=32)
    assert not history.of_kind(events.ScaledOut)
    told = history.of_kind(events.ScaledIn)
    assert len(told) <= 1
    assert history.between(16, 32).delays().mean_s < 1.0


@pytest.mark.parametrize("executors", chosen({"3": 3, "12": 12}, only_long=["3"]).values())
def test_one_heavy_key_group_asks_for_no_executor_after_the_other(executors: int) -> None:
    history = play(0.3, executors=executors, rows_per_s=1060, keys=HEAVY, max_executors=24)
    assert not history.of_kind(events.ScaledOut)
    assert len(scaled(history)) <= 1
    assert sum("alone needs" in e.reason for e in history.events if hasattr(e, "reason")) == 1


def test_without_a_budget_for_moves_nobody_is_asked_for() -> None:
    history = play(0.2, rows_per_s=1500, budget=Budget(max_moves=0), max_executors=48)
    assert not scaled(history)
    (refused,) = history.of_kind(events.ScalingRefused)
    assert "allows no moves of key groups" in refused.reason


def test_an_executor_that_was_asked_for_gets_key_groups_whatever_their_state_costs() -> None:
    """Half of five gigabytes takes longer than the moves gain within the horizon."""
    keys = Keys(number=200_000, zipf=0.3)
    history = play(0.3, executors=1, rows_per_s=600, keys=keys, key_bytes=25_000, seconds=120)
    assert scaled(history) == [(1, 2)]
    late = history.between(80, 120)
    assert late.column("load_distance").max() < 0.3
    assert late.delays().mean_s < 0.3


def test_executors_that_join_one_by_one_are_planned_for_between_epochs() -> None:
    """But for the last one: each plan begins the copies anew, and none takes effect before."""
    history = play(
        0.5,
        rows_per_s=600,
        surges=(Surge(start_s=20.0, end_s=1000.0, factor=8.0),),
        longest_epoch_s=2.0,
        key_groups=256,
        max_executors=48,
        seconds=40,
    )
    joined = [e.at_s for e in history.of_kind(events.ExecutorAdded)]
    assert len(joined) > 8
    begun = [record.began_s for record in history.epochs]
    for one in history.of_kind(events.RebalancingStarted):
        if joined[0] <= one.at_s < joined[-1]:
            epoch_s = max(at_s for at_s in begun if at_s <= one.at_s)
            assert not any(epoch_s < at_s <= one.at_s for at_s in joined)
    assert history.between(30, 40).column("load_distance").max() < 0.2


def test_where_a_budget_fills_executors_slowly_no_more_are_asked_for_meanwhile() -> None:
    history = play(
        0.5,
        rows_per_s=600,
        surges=(Surge(start_s=20.0, end_s=1000.0, factor=8.0),),
        longest_epoch_s=4.0,
        key_groups=256,
        key_bytes=50_000,
        budget=Budget(max_moves=4),
        max_executors=48,
        seconds=160,
    )
    assert len(scaled(history)) <= 2
    # By then they are filled, and what has waited meanwhile may be worked off.
    assert history.between(0, 145).column("executors").max() <= 11
    assert sum(event.moves for event in history.of_kind(events.RebalancingStarted)) > 40
    (refused,) = history.of_kind(events.ScalingRefused)
    assert "leaves an executor with less than half of the mean load" in refused.reason


def test_where_a_backlog_asked_for_a_third_of_all_executors_they_go_three_epochs_after_it() -> None:
    """The period ends with the backlog; more epochs passed where it took its four seconds."""
    history = play(
        1.0,
        executors=1,
        rows_per_s=600,
        surges=(Surge(start_s=17.0, end_s=60.0, factor=6.0),),
        longest_epoch_s=2.0,
        key_groups=96,
        trigger_s=0.5,
        seconds=32,
    )
    out, back = history.of_kind(events.ScaledOut, events.ScaledIn)
    assert (out.wanted, back.before) == (9, 9)
    later = [epoch for epoch in history.epochs if out.at_s < epoch.ended_s <= back.at_s]
    assert sum(epoch.delays.mean_s <= 1.0 for epoch in later) <= 4
    assert history.between(back.at_s, 32.0).delays().mean_s < 1.0


def test_a_stream_runs_whose_epochs_take_longer_than_their_limit_whatever_is_in_them() -> None:
    """Fewer rows make them no shorter, so two executors go on with half of their time for rows."""
    costs = replace(COSTS, fixed_ms=2500)
    history = play(6.0, rows_per_s=500, longest_epoch_s=2.0, costs=costs, seconds=120)
    assert not history.of_kind(*DECIDED)
    assert history.between(60, 120).delays().mean_s < 6.0
    assert history.epochs[-1].lag_rows < 2000  # of one epoch


def test_nobody_goes_whose_rows_have_no_room_in_epochs_that_may_not_be_longer() -> None:
    """Two would meet the target in epochs of 4 s, which have the rows of 2 s."""
    costs = replace(COSTS, fixed_ms=900)
    history = play(
        30.0, executors=4, rows_per_s=1480, longest_epoch_s=2.0, costs=costs, seconds=160
    )
    assert scaled(history) == [(4, 3)]
    assert history.between(100, 160).delays().mean_s < 4.0


def test_a_target_that_nothing_meets_ends_at_the_knee_with_one_decision() -> None:
    history = play(0.05, executors=4, rows_per_s=1440, max_executors=64)
    assert len(scaled(history)) <= 1
    assert not history.of_kind(events.ScalingRefused) or not scaled(history)
    assert 5 <= history.epochs[-1].executors <= 14


def test_executors_that_an_unreachable_target_asked_for_go_when_the_load_falls() -> None:
    surges = (Surge(start_s=15.0, end_s=45.0, factor=4.0),)
    history = play(0.05, executors=4, rows_per_s=1440, surges=surges, max_executors=64, seconds=110)
    before, at_most, after = (
        history.between(0, at_s).epochs[-1].executors for at_s in (15.0, 45.0, 110.0)
    )
    assert at_most > 2 * before
    assert 5 <= after <= 14  # as where nothing but the knee is aimed at
    assert len(scaled(history)) <= 5
    assert len(history.of_kind(events.ScalingRefused)) <= 1


def test_executors_beyond_the_knee_of_an_unreachable_target_go() -> None:
    history = play(0.05, executors=40, rows_per_s=1440, max_executors=64, seconds=120)
    assert 5 <= history.epochs[-1].executors <= 16
    assert len(scaled(history)) <= 2
    assert len(history.of_kind(events.ScalingRefused)) <= 1


@pytest.mark.parametrize(("factor", "target"), [(3.0, 0.3), (8.0, 0.4)])
def test_what_is_predicted_is_what_comes(factor: float, target: float) -> None:
    history = play(target, rows_per_s=500 * factor, max_executors=32, seconds=100)
    assert len(scaled(history)) <= 2
    late = history.between(60, 100).delays().mean_s
    assert late <= target * 1.05
    first, *_ = history.of_kind(events.ScaledOut)
    assert first.numbers["expected_s"] <= target


class SlowSink(SimulatedFlow):
    """Takes 0.3 ms more for every row, outside the lanes."""

    def work(self, epoch: int, *args: Any, **rest: Any) -> EpochWork:
        done = super().work(epoch, *args, **rest)
        return replace(done, took_s=done.took_s + 0.3e-3 * done.batch.rows)


def test_rows_that_take_time_outside_the_lanes_get_the_executors_that_leave_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2,500 rows/s it takes three quarters of the time, and lanes have the rest."""
    monkeypatch.setattr("godwit_lab.simulator.run.SimulatedFlow", SlowSink)
    options: dict[str, Any] = {"trigger_s": 0.5, "longest_epoch_s": 5.0}
    history = play(
        3.0,
        executors=4,
        rows_per_s=2500,
        seconds=300,
        key_groups=256,
        costs=replace(COSTS, key_ms=0.01),
        **options,
    )
    assert history.between(150, 300).delays().mean_s < 3.0
    assert len(scaled(history)) <= 4


class SlowStart(SimulatedFlow):
    """A flow whose first twenty epochs take up to seven times as long, beside what rows cost."""

    def work(self, epoch: int, *args: Any, **rest: Any) -> EpochWork:
        made = super().work(epoch, *args, **rest)
        return replace(made, took_s=made.took_s + 6 * COSTS.fixed_ms / 1000 * 0.8**epoch)


def test_the_slow_epochs_of_a_start_spoil_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target goes up and down, and what was expected of each decision comes."""
    monkeypatch.setattr("godwit_lab.simulator.run.SimulatedFlow", SlowStart)

    def wanted(situation: ScalingSituation) -> WantedExecutors:
        phase = int((situation.now_s - situation.started_s) / 40.0)
        return latency(("0.6 seconds", "0.26 seconds")[phase % 2]).wanted(situation)

    history = play(
        executors=4, cores=2, rows_per_s=2000, seconds=240, scaling=custom(wanted), max_executors=8
    )
    judged = [e for e in history.of_kind(events.DecisionJudged) if e.measured is not None]
    assert len(judged) >= 4
    errors = [abs(e.expected - e.measured) / e.measured for e in judged]
    assert np.median(errors) <= 0.15
    assert max(errors[1:]) <= 0.25  # the first is made while epochs still become quicker


@pytest.mark.parametrize("seed", chosen({"0": 0, "5": 5}, only_long=["0"]).values())
def test_a_step_takes_two_decisions_at_most_to_the_fewest_executors_or_one_more(seed: int) -> None:
    """Streams of the table of `benchmarks.control.steps`, which plays hundreds of them."""
    step = steps.play(steps.draw(seed))
    assert step.met
    assert step.fewest is not None
    assert 0 <= step.executors - step.fewest <= 1
    assert 1 <= step.decisions <= 2


@pytest.mark.parametrize(("scaling", "seed"), [(latency("2 seconds"), 2), (utilisation(0.7), 2)])
def test_noise_of_half_the_rate_makes_one_decision_at_most(scaling: Any, seed: int) -> None:
    """Without a test at its standard error, six and four decisions moved 176 and 166 key groups."""
    machine = Machine()
    scenario = Scenario(
        cluster=SimulatedCluster(
            machines=(machine,) * 4, added=machine, pool=Pool(start_s=(1.0, 2.0))
        ),
        components=(SimulatedComponent(name="w", key_groups=128, row_ms=1.0, key_bytes=10_000),),
        rate=Rate(rows_per_s=2400, noise=0.5),
        keys=Keys(number=20_000, zipf=0.4),
        duration_s=rounds(180, 340),
        trigger_s=0.5,
        longest_epoch_s=5.0,
    )
    control = control_of(scaling=scaling)
    history = Simulation(scenario, seed=seed, control=controlled_by(control)).run()
    assert len(scaled(history)) <= 1
    late = [event for event in history.of_kind(events.RebalancingStarted) if event.at_s > 60]
    assert not late

"""Latency by the number of executors: the model, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.controls import control_of
from tests.unit.control.test_scaling import situation

from godwit.control.cost_benefit import Terms, select_moves
from godwit.control.interfaces import MeasuredProblem
from godwit.control.latency_model import Learning, busy_share, latency_curve, predicted_latency_s
from godwit.control.planning import Planned, Planning
from godwit.control.resizing import slowness_reason
from godwit.control.scaling import latency
from godwit.control.settings import Budget
from godwit.control.situation import Learned, ScalingSituation, StageLoad
from godwit.engine.policies import Topology
from godwit.model.latency import LatencyHistogram
from godwit.placement import Problem


def stage(*loads: float) -> StageLoad:
    return StageLoad(loads=np.array(loads), component="sums", key_group=17)


def epochs(*stages: StageLoad, **changed: Any) -> Any:
    """Executors of one lane each, in a flow whose epochs take 0.1 s at least."""
    values = {"lanes": 1.0, "cores": 1.0, "stages": stages, "fixed_s": 0.1} | changed
    return situation(**values)


def took(seconds: float) -> LatencyHistogram:
    return LatencyHistogram.of_us(np.full(200, round(seconds * 1e6)))


def note(learning: Learning, at: ScalingSituation) -> None:
    """Add a steady period."""
    learning.note_costs(at)
    learning.note_latency(at)


def test_rows_that_take_time_outside_the_lanes_are_no_fixed_cost() -> None:
    """A tenth of a lane less shortens epochs by much where rows take most of the time elsewhere."""
    at = epochs(stage(*[0.01] * 100), per_row_s=0.8 / 4000, arrival_per_s=4000.0, most=64)
    curve = latency_curve(at)
    assert not np.isfinite(curve[3])  # 80 % outside, and a quarter of the time in lanes
    assert curve[9] == pytest.approx(1.5 * 0.1 / (1 - 0.8 - 0.1))
    assert curve[19] == pytest.approx(1.5 * 0.1 / (1 - 0.8 - 0.05))


@pytest.mark.parametrize(
    ("per_row_s", "said"),
    [
        (0.4 / 4000, r"a row takes 0.1 ms outside the lanes, 40% of the time at this rate, "),
        (0.0, "an epoch takes at least 0.1 s, "),
    ],
)
def test_a_target_out_of_reach_names_what_takes_the_time(per_row_s: float, said: str) -> None:
    outside_s = {"plan": 0.01, "stages": 0.02, "commit": 0.01, "sink 'store'": 0.12}
    at = epochs(stage(*[0.01] * 50), per_row_s=per_row_s, outside_s=outside_s)
    reason = latency("0.01 seconds").wanted(at).unattainable
    assert said + "0.12 of 0.16 s of an epoch for sink 'store'" in reason


@pytest.mark.parametrize(
    ("loads", "lanes", "busiest"),
    [
        ((0.5, 0.5, 0.5, 0.5), 2, 1.0),  # an even share
        ((0.8, 0.1, 0.1), 4, 0.8),  # the heaviest alone
        ((0.5, 0.5, 0.4), 2, 0.9),  # two of the first three are together
        ((0.2,) * 6, 5, 0.4),  # six on five lanes
        ((0.2,) * 11, 5, 0.6),  # and one more than two each
        ((0.5, 0.2, 0.2, 0.2, 0.1), 2, 0.6),  # an even share is more than three of the lightest
    ],
)
def test_the_busiest_lane_has_no_less_than_no_assignment_can_avoid(
    loads: tuple[float, ...], lanes: int, busiest: float
) -> None:
    assert stage(*loads).busiest(lanes, 1.0) == pytest.approx(busiest)
    assert stage(*loads).busiest(lanes, 0.5) == pytest.approx(2 * busiest)


def test_a_lane_serves_all_operators_of_its_places() -> None:
    """Twenty operators of 2.5 % of a lane are half a lane, not twenty cores."""
    at = epochs(*(stage(*[0.025 / 8] * 8) for _ in range(20)), executors=1)
    assert predicted_latency_s(at, 1) == pytest.approx(1.5 * 0.1 / (1 - 0.5))
    assert latency("10 seconds").wanted(at).executors == 1


def test_a_row_waits_half_the_triggers_interval_and_its_epoch() -> None:
    at = epochs(stage(0.3), trigger_s=6.0)
    assert predicted_latency_s(at, 4) == pytest.approx(3.0 + 0.1 + 0.3 * 6.0)
    slow = epochs(stage(0.9), trigger_s=0.5)  # no epoch is done within the interval
    assert predicted_latency_s(slow, 4) == pytest.approx(1.5 * 0.1 / (1 - 0.9))


def test_longer_epochs_than_their_limit_of_rows_allows_do_not_keep_up() -> None:
    loads = stage(*[0.3] * 12)  # four executors have 0.9 of a lane each, and epochs of 1 s
    within = epochs(loads, longest_epoch_s=1.01)
    beyond = epochs(loads, longest_epoch_s=0.99)
    assert predicted_latency_s(within, 4) == pytest.approx(1.5)
    assert predicted_latency_s(beyond, 4) == math.inf
    assert predicted_latency_s(beyond, 6) == predicted_latency_s(within, 6) < 0.5
    wanted = [latency("10 seconds").wanted(at) for at in (within, beyond)]
    assert [each.executors for each in wanted] == [4, 6]
    # A little more load would be too much for four: nobody goes as long as there are six.
    assert [each.comfortable for each in wanted] == [6, 6]
    # At least half of an epoch is for its rows, however little it may take.
    short = latency("10 seconds").wanted(epochs(loads, longest_epoch_s=0.05))
    assert (short.executors, short.unattainable) == (12, "")
    busy = epochs(stage(*[0.6] * 12), longest_epoch_s=0.05)
    assert "cannot keep up" in latency("10 seconds").wanted(busy).unattainable


def test_a_trigger_that_is_too_long_for_the_target_is_named() -> None:
    wanted = latency("2 seconds").wanted(epochs(stage(0.1), trigger_s=6.0))
    assert "epochs begin only every 6 s" in wanted.unattainable
    assert wanted.comfortable <= 2


def test_a_key_group_that_fills_a_lane_is_named_and_nobody_is_asked_for() -> None:
    for have in (3, 5, 12):
        wanted = latency("300 ms").wanted(epochs(stage(0.8, 0.05, 0.05), executors=have))
        assert wanted.executors <= 2
        assert "key group 17 of 'sums' alone needs 0.8 of a lane" in wanted.unattainable
    over = latency("300 ms").wanted(epochs(stage(1.3, 0.05, 0.05)))
    assert over.executors <= 2
    assert "cannot keep up" in over.unattainable
    assert "needs 1.3 of a lane" in over.unattainable


@pytest.mark.parametrize("fixed_s", [0.09, 0.1, 0.11])
def test_a_target_out_of_reach_ends_at_the_knee_whatever_the_noise(fixed_s: float) -> None:
    at = epochs(stage(*[0.015] * 96), fixed_s=fixed_s, most=64, executors=4)
    wanted = latency("50 ms").wanted(at)
    assert wanted.unattainable
    aim = wanted.aim or 0
    assert wanted.executors <= aim <= wanted.comfortable
    assert 6 <= aim <= 14  # 64 would be a tenth faster


def test_what_is_measured_corrects_what_is_predicted() -> None:
    at = epochs(stage(*[0.05] * 40), executors=4, latency=took(0.6), busiest=0.55)
    learning = Learning()
    for _ in range(6):
        note(learning, at)
    learned = learning.learned
    known = replace(at, learned=learned)
    assert learned.unevenness == pytest.approx({4: 1.1}, abs=0.01)
    assert predicted_latency_s(known, 4) == pytest.approx(0.6, rel=0.01)
    # The nearest number that was seen stands for others.
    assert learned.ratio_at(6) == learned.ratio_at(4) == learned.ratio_at(1)


def test_one_odd_period_is_smoothed_and_a_wild_one_is_bounded() -> None:
    at = epochs(stage(*[0.05] * 40), executors=4, latency=took(0.3))
    learning = Learning()
    note(learning, at)
    assert learning.learned.ratio_at(4) == pytest.approx(1.0, rel=0.01)
    note(learning, replace(at, latency=took(0.6)))
    assert learning.learned.ratio_at(4) == pytest.approx(1.5, rel=0.01)
    wild = Learning()
    note(wild, replace(at, latency=took(300.0)))
    assert wild.learned.ratio_at(4) == 8.0


def test_without_measured_latency_nothing_is_corrected() -> None:
    learning = Learning()
    note(learning, epochs(stage(*[0.05] * 40), executors=4))
    assert not learning.learned.ratio


def test_the_fixed_cost_of_an_epoch_grows_as_it_was_seen_to() -> None:
    learning = Learning()
    for executors in (2, 2, 4):
        note(learning, epochs(stage(0.1), executors=executors, fixed_s=0.05 * executors))
    learned = learning.learned
    assert learned.fixed_at(8, 0.0) == pytest.approx(0.4)
    assert Learned(fixed_s={2: 0.1, 4: 0.105}).fixed_at(8, 0.0) == 0.105  # noise
    curve = latency_curve(epochs(stage(*[0.02] * 50), learned=learned))
    assert 1 < int(np.argmin(curve)) + 1 < 16  # more lanes cost more than they bring
    assert math.isinf(curve[0])


@pytest.mark.parametrize("start", [(2.0, 1.2, 0.8, 0.5), (2.0,)])
def test_the_slow_epochs_of_a_start_are_forgotten(start: tuple[float, ...]) -> None:
    learning = Learning()
    for fixed_s in start:
        note(learning, epochs(stage(0.1), executors=4, fixed_s=fixed_s))
        assert learning.learned.fixed_at(2, 0.0) == fixed_s
    note(learning, epochs(stage(0.1), executors=2, fixed_s=0.1))
    for executors in (1, 2, 4):
        assert learning.learned.fixed_at(executors, 0.0) == pytest.approx(0.1)


def test_epochs_that_are_held_up_once_are_no_start() -> None:
    learning = Learning()
    for fixed_s in (0.1, 0.1, 0.3, 0.1):
        note(learning, epochs(stage(0.1), executors=4, fixed_s=fixed_s))
    assert learning.learned.fixed_at(4, 0.0) == 0.1


def test_no_number_of_executors_has_epochs_for_nothing() -> None:
    learned = Learned(fixed_s={2: 0.1, 4: 0.9})
    assert learned.fixed_at(1, 0.0) == pytest.approx(0.05)
    assert learned.fixed_at(8, 0.0) == pytest.approx(1.8)
    assert learned.fixed_at(3, 0.0) == pytest.approx(0.5)


def test_lanes_that_are_fewer_and_have_more_rows_each_differ_by_less() -> None:
    learned = Learned(unevenness={4: 1.3})
    fewer, same, more = (learned.unevenness_at(n, 2.0) - 1 for n in (2, 4, 8))
    assert fewer == pytest.approx(0.3 / 1.65, rel=0.01)  # √2 for the rows, 1.17 for the lanes
    assert same == more == pytest.approx(0.3)
    assert Learned().unevenness_at(4, 2.0) == 1.0


def test_behind_lanes_with_one_key_group_more_the_others_differences_do_not_show() -> None:
    """Eight key groups on four lanes are even; on three, one lane has half as much more."""
    at, learned = epochs(stage(*[0.1] * 8)), Learned(unevenness={4: 1.1})
    assert busy_share(at, 4, learned) == pytest.approx(1.1 * 0.2)
    assert busy_share(at, 3, learned) == pytest.approx(0.3)  # and not 1.1 times that
    assert busy_share(at, 2, learned) > 0.4
    assert busy_share(at, 3, Learned(unevenness={3: 1.1})) == pytest.approx(1.1 * 0.3)


def test_what_lanes_differ_by_when_executors_have_just_come_is_waited_out() -> None:
    """Seen once, before lanes were balanced, it would stand for all numbers nearby permanently."""
    loads, learning = stage(*[0.05] * 40), Learning()
    for _ in range(2):
        note(learning, epochs(loads, executors=4, busiest=0.51))
    note(learning, epochs(loads, executors=8, busiest=0.4))
    assert learning.learned.unevenness_at(8, 1.0) == pytest.approx(1.02)
    note(learning, epochs(loads, executors=8, busiest=0.26))
    assert learning.learned.unevenness_at(8, 1.0) == pytest.approx(1.04)
    note(learning, epochs(loads, executors=8, busiest=0.3))  # from then on all of them count
    assert learning.learned.unevenness_at(8, 1.0) == pytest.approx(1.12)


def test_epochs_that_become_quicker_leave_nothing_in_the_ratio() -> None:
    """Each period's latency is beside the costs of the same period."""
    learning = Learning()
    for fixed_s in (1.0, 0.9, 0.5, 0.2):
        at = epochs(stage(0.0), executors=4, fixed_s=fixed_s, latency=took(1.5 * fixed_s))
        note(learning, at)
    assert learning.learned.ratio_at(4) == pytest.approx(1.0, rel=0.02)


def test_only_so_many_numbers_of_executors_are_remembered() -> None:
    learning = Learning()
    for executors in range(1, 100):
        note(learning, epochs(stage(0.1), executors=executors, latency=took(0.2)))
    assert len(learning.learned.ratio) == len(learning.learned.fixed_s) == 32
    assert max(learning.learned.ratio) == 99


def test_a_stream_that_works_off_a_backlog_in_long_epochs_is_not_at_rest() -> None:
    """Otherwise the ratio of measured to modelled latency would be that of the backlog."""
    for backlog_rows, steady in ((0, True), (20_000, False)):
        planning = Planning(
            control_of(scaling=latency("2.0 seconds")),
            Topology(stages=(("sum",),)),
            lambda plan, **_: plan(),
            0.0,
            lambda *_, **__: None,
        )
        at = epochs(
            stage(*[0.05] * 40),
            epoch_s=8.0,  # twice as many rows come meanwhile
            latency=took(9.0),
            busiest=0.5,
            backlog_rows=backlog_rows,
        )
        for said in (False, steady):
            at, is_steady = planning.learn(at, changing=False, settled=True)
            assert is_steady is said
        assert (at.learned.ratio_at(4) > 2) is steady


@pytest.mark.parametrize(
    ("left", "target_s", "slow"),
    # With lanes that are busy for 60 % 0.375 s are predicted, and 0.4 s with 4 % more load.
    [(3, 0.3, False), (1, 0.3, True), (1, 0.38, True), (1, 0.42, False)],
)
def test_nobody_goes_if_the_plan_without_them_has_lanes_too_busy_for_the_target(
    left: int, target_s: float, *, slow: bool
) -> None:
    """Six equal key groups, four lanes: two on a lane, or three where an executor has five."""
    places = np.array([1] * left + [0] * (6 - left), np.int32)
    problem = Problem(
        executors=("a", "b"),
        load=np.full(6, 0.2),
        state_bytes=np.zeros(6),
        current=places,
        cores=np.array([2, 2], np.int32),
        capacity=np.array([2.0, 2.0]),
    )
    measured = MeasuredProblem(
        problem=problem,
        parts={"sums": slice(0, 6)},
        rows_per_s=np.ones(6),
        link_bytes_per_s=1.0,
        held_bytes=np.zeros(6),
    )
    terms = Terms(max_load_distance=0.1, even_enough=0.1, horizon_s=1.0, seconds_per_byte=0.0)
    selected = select_moves(problem, places, terms, Budget())
    plan = Planned(measured=measured, assignment=places, selected=selected, planner="milp")
    at = epochs(stage(*[0.2] * 6), lanes=2.0, cores=2.0, executors=3, offered=1.2)
    wanted = latency(f"{target_s} seconds").wanted(at)
    said = slowness_reason([plan], at, wanted, 2)
    assert bool(said) == slow
    assert not slow or "busy for 60%" in said
    # Before, the busiest lane had a third more in an epoch than in the mean, by chance: with as
    # many rows on it then, the busiest of those that are left will have, too.
    before = replace(
        at, busiest=at.offered / problem.load.sum() * (0.6 if left == 1 else 0.4) * 4 / 3
    )
    assert "busy for 80%" in slowness_reason([plan], before, wanted, 2) or left == 3
    # Of epochs under other places, it was not the same lane.
    moved = replace(before, settled=False)
    assert slowness_reason([plan], moved, wanted, 2) == said

"""Speeds of executors, estimated from the cost of the same work on each."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.executor_speeds import Speeds, changed_speed
from godwit.control.statistics import AssignmentPeriod, ComponentStatistics, PeriodStatistics
from godwit.model.assignment import Assignment, even_assignment

FOUR = ["a", "b", "c", "d"]


class Machines:
    """Periods of one component with key groups of different cost and executors of some speed."""

    def __init__(self, key_groups: int, differ: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.assignment = even_assignment(key_groups, FOUR, [2] * 4)
        self.row_s = 1e-3 * np.exp(self.rng.normal(0, differ, key_groups))
        self.rows = self.rng.zipf(1.7, key_groups).clip(1, 3000) * 10.0

    def period(self, slow: dict[str, float], on: Assignment | None = None) -> PeriodStatistics:
        assignment = self.assignment if on is None else on
        factor = np.array([slow.get(e, 1.0) for e in assignment.executors])
        busy_s = (self.rows * self.row_s + 0.01) * factor[assignment.executor_of]
        busy_s = busy_s * self.rng.uniform(0.9, 1.1, len(self.rows))
        span = AssignmentPeriod(
            assignment=assignment,
            rows=self.rows,
            busy_s=busy_s,
            epochs=np.full(len(self.rows), 20.0),
        )
        nothing = np.zeros(len(self.rows))
        component = ComponentStatistics(
            by_assignment=(span,), in_bytes=nothing, state_bytes=nothing
        )
        return PeriodStatistics(
            began_s=0.0,
            ended_s=10.0,
            epochs=20,
            missing=0,
            rows=float(self.rows.sum()),
            covered=1.0,
            arrival_per_s=1.0,
            epoch_s=0.5,
            fixed_s=0.1,
            backlog_rows=None,
            components={"sum": component},
        )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("key_groups", [16, 64, 256])
def test_equal_machines_have_equal_speeds_under_noise(key_groups: int, seed: int) -> None:
    machines, speeds = Machines(key_groups, 0.0, seed), Speeds()
    for _ in range(6):
        assert set(speeds.update(machines.period({})).values()) == {1.0}


@pytest.mark.parametrize("differ", [0.0, 0.5])
def test_a_machine_three_times_slower_is_found_in_the_period_in_which_it_becomes_so(
    differ: float,
) -> None:
    machines, speeds = Machines(256, differ, 1), Speeds()
    speeds.update(machines.period({}))
    found = speeds.update(machines.period({"b": 3.0}))
    assert found["b"] == pytest.approx(1 / 3, rel=0.2)
    assert {e for e, speed in found.items() if speed != 1.0} == {"b"}
    for _ in range(5):
        found = speeds.update(machines.period({}))
    assert found["b"] == 1.0


def test_dear_key_groups_that_are_dear_wherever_they_go_do_not_make_a_machine_slow() -> None:
    machines, speeds = Machines(64, 0.0, 2), Speeds()
    machines.row_s[machines.assignment.executor_of == 1] *= 3  # all of b's, as it happens
    speeds.update(machines.period({}))
    moved = {k: FOUR[(k + 1) % 4] for k in range(64)}
    found: dict[str, float] = {}
    for _ in range(4):
        found = dict(speeds.update(machines.period({}, machines.assignment.moved(moved))))
    assert set(found.values()) == {1.0}


def test_dear_key_groups_that_stay_where_they_are_make_no_machine_slow() -> None:
    machines, speeds = Machines(64, 0.0, 2), Speeds()
    machines.row_s[machines.assignment.executor_of == 1] *= 3
    for _ in range(6):
        assert set(speeds.update(machines.period({})).values()) == {1.0}


@pytest.mark.parametrize("factor", [2.1, 3.0])
def test_a_machine_that_became_slow_within_a_period_is_known_from_the_next_one_on(
    factor: float,
) -> None:
    machines, speeds = Machines(256, 0.3, 3), Speeds()
    for _ in range(3):
        speeds.update(machines.period({}))
    speeds.update(machines.period({"b": (1 + factor) / 2}))
    for _ in range(6):
        found = speeds.update(machines.period({"b": factor}))
        assert found["b"] == pytest.approx(1 / factor, rel=0.06)
        assert {e for e, speed in found.items() if speed != 1.0} == {"b"}


def test_a_machine_that_was_slow_for_one_period_is_as_fast_as_before_in_the_next() -> None:
    machines, speeds = Machines(64, 0.3, 5), Speeds()
    speeds.update(machines.period({}))
    assert speeds.update(machines.period({"b": 3.0}))["b"] < 0.4
    assert set(speeds.update(machines.period({})).values()) == {1.0}


def test_a_period_that_has_not_ended_is_looked_at_and_forgotten() -> None:
    (machines, speeds), (_, other) = ((Machines(64, 0.3, 6), Speeds()) for _ in range(2))
    periods = [machines.period({"c": slow}) for slow in (1.0, 2.5, 2.5, 2.5)]
    for period in periods:
        seen = speeds.update(period, ended=False)
        found = other.update(period)
        assert speeds.update(period) == found
    assert seen["c"] == pytest.approx(1 / 2.5, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_was_slow_from_the_first_is_found_by_what_moves_off_it(seed: int) -> None:
    machines, speeds = Machines(64, 0.3, seed), Speeds()
    slow = {"b": 3.0}
    assert set(speeds.update(machines.period(slow)).values()) == {1.0}
    moved = {k: FOUR[(0, 2, 3)[k // 4 % 3]] for k in range(1, 48, 4)}
    found = speeds.update(machines.period(slow, machines.assignment.moved(moved)))
    assert found["b"] == pytest.approx(1 / 3, rel=0.25)
    assert {e for e, speed in found.items() if speed != 1.0} == {"b"}


def test_a_key_that_becomes_dear_makes_its_machine_no_slower() -> None:
    machines, speeds = Machines(64, 0.3, 4), Speeds()
    for _ in range(3):
        speeds.update(machines.period({}))
    machines.row_s[[1, 5]] *= 20  # two of the sixteen key groups of b
    for _ in range(4):
        assert set(speeds.update(machines.period({})).values()) == {1.0}


@pytest.mark.parametrize("seed", range(10))
def test_machines_that_do_other_things_besides_are_equally_fast(seed: int) -> None:
    machines, speeds = Machines(64, 0.5, seed), Speeds()
    for _ in range(30):
        held_up = dict(zip(FOUR, np.exp(machines.rng.normal(0, 0.04, 4)).tolist(), strict=True))
        assert set(speeds.update(machines.period(held_up)).values()) == {1.0}


def test_a_period_without_figures_says_nothing_of_speeds() -> None:
    machines, speeds = Machines(16, 0.0, 0), Speeds()
    empty = machines.period({})
    assert (
        speeds.update(
            PeriodStatistics(
                began_s=0.0,
                ended_s=1.0,
                epochs=0,
                missing=0,
                rows=0.0,
                covered=1.0,
                arrival_per_s=0.0,
                epoch_s=0.0,
                fixed_s=0.0,
                backlog_rows=None,
                components={},
            )
        )
        == {}
    )
    assert set(speeds.update(empty).values()) == {1.0}


def test_a_speed_that_is_half_as_much_again_is_another_one() -> None:
    before = {"a": 1.0, "b": 0.3}
    assert not changed_speed(before, {"a": 0.8, "b": 0.28, "new": 0.2})
    assert changed_speed(before, {"a": 0.6, "b": 0.3})
    assert changed_speed(before, {"b": 0.9})
    assert not changed_speed({}, {"a": 0.3})

"""Moves that pay where some of them carry no state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.controlled import ControlledCluster, Part

from godwit.control import Budget, Means
from godwit.control.cost_benefit import SelectedMoves, Terms, is_uneven, select_moves
from godwit.control.planning import measured_problem
from godwit.control.statistics import Statistics
from godwit.engine.policies import Topology
from godwit.placement import Limits, Problem

if TYPE_CHECKING:
    from godwit.control.interfaces import MeasuredProblem
    from godwit.engine.policies import CommittedEpoch

TERMS = Terms(max_load_distance=0.1, even_enough=0.02, horizon_s=100.0, seconds_per_byte=1e-8)
FREE = Budget(max_bytes=None)
EVENED = np.array([0, 0, 1, 1], np.int32)
"""A plan that takes the last two of four key groups from the first executor to the second."""


def uneven(state_bytes: float) -> Problem:
    return Problem(
        executors=("a", "b"),
        load=np.array([0.2, 0.2, 0.2, 0.2]),
        state_bytes=np.full(4, state_bytes),
        current=np.zeros(4, np.int32),
    )


def instant(problem: Problem, planned: np.ndarray, budget: Budget = FREE) -> SelectedMoves:
    """Judge a plan all of whose moves turn to empty slots."""
    light = replace(problem, state_bytes=np.zeros(problem.num_key_groups))
    return select_moves(light, planned, TERMS, budget, held_bytes=problem.state_bytes)


def test_a_move_that_costs_more_than_it_gains_is_made_where_no_state_moves() -> None:
    problem = uneven(state_bytes=2.5e9)
    live = select_moves(problem, EVENED, TERMS, FREE)
    assert live.reason == "moving the state costs more than it gains"
    turned = instant(problem, EVENED)
    assert not turned.reason
    assert turned.order.tolist() == [2, 3]
    assert turned.moved_bytes == 0.0


def test_an_executor_that_was_asked_for_is_filled_whatever_its_state_costs() -> None:
    fills = replace(TERMS, fills=True)
    filled = select_moves(uneven(state_bytes=2.5e9), EVENED, fills, FREE)
    assert filled.order.tolist() == [2, 3]
    assert filled.cost_s > filled.gain_s
    # An executor with a third of what the other has is lean, one with two thirds is not.
    for load, moves in ((0.09, True), (0.2, False)):
        problem = replace(uneven(state_bytes=2.5e9), load=np.array([0.15, 0.15, 0.0, load]))
        problem = replace(problem, current=np.array([0, 0, 0, 1], np.int32))
        even = np.array([0, 1, 1, 0], np.int32)
        assert bool(len(select_moves(problem, even, fills, FREE).order)) == moves


def test_what_a_budget_cuts_into_small_parts_is_moved_all_the_same() -> None:
    count = 200
    problem = Problem(
        executors=("a", "b"),
        load=np.full(count, 0.8 / count),
        state_bytes=np.full(count, 1e3),
        current=np.zeros(count, np.int32),
        limits=Limits(max_moves=2),
    )
    planned = problem.current.copy()
    planned[:2] = 1
    assert select_moves(problem, planned, TERMS, Budget(max_moves=2)).order.tolist() == [0, 1]
    whole = replace(problem, limits=Limits())
    refused = select_moves(whole, planned, TERMS, FREE)
    assert refused.reason == "no plan makes the load more balanced"


def test_keys_that_are_held_twice_for_a_while_cost_their_merging_shared_by_all() -> None:
    turned = instant(uneven(state_bytes=1e9), EVENED)
    assert turned.cost_s == pytest.approx(2e9 * TERMS.seconds_per_byte / 2)
    far = instant(uneven(state_bytes=1e10), EVENED)
    assert far.reason == "moving the state costs more than it gains"


def test_a_budget_in_bytes_does_not_keep_back_what_moves_without_any() -> None:
    problem, little = uneven(state_bytes=1e6), Budget(max_bytes=1e6)
    assert len(select_moves(problem, EVENED, TERMS, little).order) == 1
    assert len(instant(problem, EVENED, little).order) == 2


@given(seed=st.integers(0, 2**16), executors=st.integers(2, 6), key_groups=st.integers(2, 30))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_what_is_worth_carrying_is_worth_turning_for_and_costs_no_more(
    seed: int, executors: int, key_groups: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=rng.lognormal(0.0, 1.0, key_groups) / key_groups,
        state_bytes=np.full(key_groups, rng.uniform(0.0, 1e9)),
        current=rng.integers(0, executors, key_groups).astype(np.int32),
        limits=Limits(),
    )
    planned = rng.integers(0, executors, key_groups).astype(np.int32)
    live, turned = select_moves(problem, planned, TERMS, FREE), instant(problem, planned)
    assert len(turned.order) >= len(live.order)
    if live.order.tolist() == turned.order.tolist():
        assert turned.cost_s <= live.cost_s * (1 + 1e-9)


class Observing:
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        pass

    def observe(self, epoch: CommittedEpoch) -> None:
        self._statistics.observe(epoch, 0.5)

    def step(self) -> None: ...


def asked(turning: set[int], *, draining: frozenset[str] = frozenset()) -> MeasuredProblem:
    """Problem that planners get of a component some of whose key groups have an empty slot."""
    world = ControlledCluster({"w": Part(rows=np.full(4, 10.0), state_bytes=500)}, {"a": 1, "b": 1})
    topology = Topology(stages=(("w",),))
    statistics = Statistics(topology, 0.0, {"w": dict.fromkeys(range(4), 500)})
    world.control = Observing(statistics)  # type: ignore[assignment]
    world.run(1.0)
    view = world.coordinator.view
    component = replace(view.components["w"], instant=frozenset(turning))
    return measured_problem(
        ["w"],
        statistics=statistics.close(1.0),
        view=replace(view, components={"w": component}),
        speeds={},
        means=Means(memory_bytes=1000),
        limits=Limits(),
        draining=draining,
        topology=topology,
    )


def test_planners_see_no_state_where_none_would_move_and_memory_sees_it_still() -> None:
    asked_now = asked({0, 1})
    assert asked_now.problem.state_bytes.tolist() == [0, 0, 500, 500]
    assert asked_now.held_bytes.tolist() == [500] * 4
    memory = asked_now.problem.resources.index("memory")
    assert asked_now.problem.load[:, memory].tolist() == [0.5] * 4


def test_both_slots_have_to_leave_an_executor_that_is_to_go() -> None:
    asked_now = asked({0, 1, 2, 3}, draining=frozenset({"a"}))
    on_a = asked_now.problem.current == asked_now.problem.executors.index("a")
    assert asked_now.problem.state_bytes[on_a].tolist() == [500, 500]
    assert asked_now.problem.state_bytes[~on_a].tolist() == [0, 0]


def drained(size: int = 8, state_bytes: float = 1e5) -> Problem:
    """Half of the key groups are on an executor that is to go; the other two are uneven."""
    current = np.array([2] * (size // 2) + [0] * (size // 2), np.int32)
    return Problem(
        executors=("a", "b", "c"),
        load=np.repeat([0.1, 0.3], size // 2),
        state_bytes=np.full(size, state_bytes),
        current=current,
        draining=np.array([False, False, True]),
    )


SPREAD = np.array([0, 1, 0, 1, 0, 1, 0, 1], np.int32)


@pytest.mark.parametrize("budget", [Budget(max_moves=0), Budget(max_bytes=0.0)])
def test_a_budget_of_nothing_moves_nothing_not_even_off_an_executor_that_is_to_go(
    budget: Budget,
) -> None:
    chosen = select_moves(drained(), SPREAD, TERMS, budget)
    assert not len(chosen.order)
    assert chosen.reason == "the budget allows no key group to leave draining executors"


def test_draining_has_its_share_of_a_budget_that_balancing_would_use_up() -> None:
    problem = drained()
    chosen = select_moves(problem, SPREAD, TERMS, Budget(max_moves=2))
    assert len(chosen.order) == 2
    assert problem.draining[problem.current[chosen.order]].sum() == 1
    alone = select_moves(problem, SPREAD, TERMS, Budget(max_moves=1))
    assert problem.draining[problem.current[alone.order]].all()


def test_only_one_key_group_is_too_large_for_its_budget_in_a_period() -> None:
    chosen = select_moves(drained(), SPREAD, TERMS, Budget(max_bytes=5e4))
    assert chosen.moved_bytes == 1e5
    rest = select_moves(drained(), SPREAD, TERMS, Budget(max_bytes=5e4), alone=False)
    assert not len(rest.order)


@pytest.mark.parametrize(("rows", "moves"), [(60, False), (60_000, True)])
def test_what_so_many_rows_cannot_tell_moves_nothing(rows: int, *, moves: bool) -> None:
    """One executor has a quarter more than the other, as measured by so many rows each."""
    problem = Problem(
        executors=("a", "b"),
        load=np.array([0.25, 0.25, 0.2, 0.2]),
        state_bytes=np.zeros(4),
        current=np.array([0, 0, 1, 1], np.int32),
    )
    planned = np.array([0, 1, 1, 0], np.int32)
    variance = (problem.weight**2) / rows
    chosen = select_moves(problem, planned, TERMS, FREE, variance=variance)
    assert bool(len(chosen.order)) == moves
    if not moves:
        assert chosen.reason == "too few rows to detect an uneven load"


@pytest.mark.parametrize(
    ("apart", "even_for", "moves"),
    [(0.11, 1, True), (0.11, 15, False), (0.13, 15, True), (0.12, 1000, False), (0.13, 1000, True)],
)
def test_a_load_that_was_even_for_long_must_differ_by_more(
    apart: float, even_for: int, *, moves: bool
) -> None:
    """The bound of 10 % becomes one of 12.5 % within thirty periods."""
    problem = Problem(
        executors=("a", "b"),
        load=np.array([1 + apart, 1 - apart]),
        state_bytes=np.zeros(2),
        current=np.array([0, 1], np.int32),
    )
    assert is_uneven(problem, None, 0.1, even_for) == moves


def test_a_plan_is_carried_out_as_it_is_where_any_gain_will_do() -> None:
    problem, worse = uneven(state_bytes=2.5e9), np.array([1, 1, 1, 0], np.int32)
    free = replace(TERMS, any_gain=True)
    for plan in (EVENED, worse):
        selected = select_moves(problem, plan, free, FREE)
        assert selected.assignment.tolist() == plan.tolist()
        assert not selected.reason
    (first,) = select_moves(problem, worse, free, Budget(max_moves=1, max_bytes=None)).order
    assert first in {0, 1, 2}  # the budget holds
    nothing = select_moves(problem, problem.current, free, FREE)
    assert nothing.reason == "the planner proposes no moves"


def test_what_evens_out_the_load_of_a_draining_executor_is_worth_its_gain_then() -> None:
    """Before that the load is even; without the other moves one executor would have twice the mean.

    The heavy key group of `c` goes to `a`, and those of `a` make room for it.
    """
    problem = Problem(
        executors=("a", "b", "c"),
        load=np.array([0.2, 0.2, 0.2, 0.2, 0.4]),
        state_bytes=np.ones(5),
        current=np.array([0, 0, 1, 1, 2], np.int32),
        draining=np.array([False, False, True]),
    )
    planned = np.array([0, 1, 1, 1, 0], np.int32)
    chosen = select_moves(problem, planned, TERMS, FREE)
    assert chosen.order.tolist() == [1, 4]
    assert chosen.distance_after < 0.01 < TERMS.max_load_distance
    stays = select_moves(problem, planned, replace(TERMS, max_load_distance=0.9), FREE)
    assert stays.order.tolist() == [4]

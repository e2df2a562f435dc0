from __future__ import annotations

import numpy as np
import pytest

from godwit.model.errors import InvalidPlanError
from godwit.placement import metrics
from godwit.placement.problem import Limits, Problem, Traffic
from godwit.placement.solution import Solution, Status, make_solution, validate_solution

LOAD = np.array([4.0, 3.0, 2.0, 1.0])


def _problem(limits: Limits | None = None, **values: object) -> Problem:
    fields: dict[str, object] = {
        "executors": ("a", "b"),
        "load": LOAD,
        "state_bytes": np.array([40.0, 10.0, 5.0, 1.0]),
        "current": np.array([0, 0, 0, 1], np.int32),
        "limits": limits or Limits(),
        "seconds_per_byte": 0.5,
    }
    return Problem(**(fields | values))  # type: ignore[arg-type]  # values of mixed fields


def _plan(problem: Problem, assignment: list[int], status: Status = Status.FEASIBLE) -> Solution:
    return Solution(
        problem=problem, method="test", assignment=np.array(assignment, np.int32), status=status
    )


def test_numbers_of_a_solution_are_those_of_the_papers() -> None:
    plan = _plan(_problem(), [0, 1, 1, 1])
    assert plan.load_index.tolist() == [4.0, 6.0]
    assert plan.load_distance == 1.0
    assert plan.variance == 1.0
    assert plan.moved_bytes == 15.0
    assert plan.migration_cost_s == 7.5
    assert plan.num_moves == 2


def test_load_index_divides_by_capacity_and_ignores_draining_executors() -> None:
    problem = _problem(
        executors=("a", "b", "c"),
        capacity=np.array([1.0, 2.0, 1.0]),
        draining=np.array([False, False, True]),
    )
    assert metrics.mean_index(problem) == pytest.approx(10 / 3)
    assert metrics.load_distance(problem, np.array([0, 1, 1, 1])) == pytest.approx(2 / 3)


def test_collocation_factor_is_the_share_of_traffic_on_one_executor() -> None:
    traffic = Traffic(source=np.array([0, 1]), target=np.array([3, 2]), rate=np.array([1.0, 3.0]))
    problem = _problem(traffic=traffic)
    assert metrics.collocation_factor(problem, problem.current) == 0.75
    assert metrics.collocation_factor(_problem(), problem.current) == 0.0


def test_history_imbalance_sums_the_variance_over_windows() -> None:
    problem = _problem(history=np.array([[1.0, 1, 1, 3], [2.0, 0, 0, 0]]))
    assert metrics.history_imbalance(problem, problem.current) == pytest.approx(0.0 + 1.0)


def test_gap_is_relative_to_the_objective() -> None:
    plan = make_solution(
        _problem(), np.array([0, 0, 0, 1]), method="test", objective=4.0, bound=3.0
    )
    assert plan.gap == 0.25
    assert _plan(_problem(), [0, 0, 0, 1]).gap is None


def test_moves_relieve_the_most_overloaded_executor_per_byte_first() -> None:
    problem = Problem(
        executors=("a", "b", "c"),
        load=np.array([5.0, 5.0, 4.0, 4.0]),
        state_bytes=np.array([50.0, 10.0, 1.0, 1.0]),
        current=np.array([0, 0, 1, 1], np.int32),
    )
    # a (10) first, by its cheaper key group 1; then b (8 against 5): 2 before 3; then a's other.
    assert [m.key_group for m in _plan(problem, [2, 2, 2, 2]).moves] == [1, 2, 0, 3]


def test_moves_off_draining_executors_come_last() -> None:
    problem = Problem(
        executors=("a", "b", "c"),
        load=np.array([9.0, 1.0, 1.0]),
        state_bytes=np.ones(3),
        current=np.array([0, 1, 1], np.int32),
        draining=np.array([True, False, False]),
    )
    assert [m.key_group for m in _plan(problem, [2, 2, 1]).moves] == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_ordered_moves_are_the_key_groups_that_move(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem(
        executors=tuple("abcde"),
        load=rng.random(40),
        state_bytes=rng.random(40),
        current=rng.integers(0, 5, 40, np.int32),
    )
    plan = _plan(problem, rng.integers(0, 5, 40).tolist())
    assert sorted(m.key_group for m in plan.moves) == plan.moved.tolist()


@pytest.mark.parametrize(
    ("limits", "assignment", "words"),
    [
        (Limits(max_moves=1), [1, 1, 0, 1], "2 moves exceed max_moves = 1"),
        (Limits(max_bytes=39), [1, 0, 0, 1], "exceed max_bytes"),
        (Limits(tau=0.1), [0, 0, 0, 1], "executor a has 1.8 times its fair share"),
        (Limits(target_executors=1), [0, 0, 0, 1], "2 executors own key groups"),
        (Limits(max_usage=(8.0,)), [0, 0, 0, 1], "uses 9 of cpu"),
    ],
)
def test_a_broken_limit_is_infeasible_and_says_why(
    limits: Limits, assignment: list[int], words: str
) -> None:
    problem = _problem(limits)
    plan = make_solution(problem, np.array(assignment), method="test", optimal=True)
    assert plan.status is Status.INFEASIBLE
    assert words in plan.reason
    validate_solution(plan)
    with pytest.raises(InvalidPlanError, match=r"exceed|has|own|uses"):
        validate_solution(_plan(problem, assignment))


def test_intervals_are_a_limit_too() -> None:
    problem = _problem(intervals=True)
    assert "owns 2 ranges" in make_solution(problem, np.array([0, 1, 0, 0]), method="test").reason


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ([0, 0, 0], "shape"),
        ([0, 0, 0, 2], "executor 2, but there are 2"),
        ([0, 0, 0, -1], "executor -1"),
    ],
)
def test_an_assignment_that_is_not_total_is_illegal(assignment: list[int], words: str) -> None:
    with pytest.raises(InvalidPlanError, match=words):
        validate_solution(_plan(_problem(), assignment, Status.INFEASIBLE))


def test_a_move_onto_a_draining_executor_is_illegal_but_staying_there_is_not() -> None:
    problem = _problem(draining=np.array([True, False]))
    validate_solution(_plan(problem, [0, 0, 1, 1]))
    with pytest.raises(InvalidPlanError, match="draining"):
        validate_solution(_plan(problem, [0, 0, 0, 0]))


def test_an_infeasible_plan_must_say_why() -> None:
    with pytest.raises(InvalidPlanError, match="does not say why"):
        validate_solution(_plan(_problem(), [0, 0, 0, 1], Status.INFEASIBLE))

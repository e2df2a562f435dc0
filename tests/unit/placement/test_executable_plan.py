from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.control.planners.allocation.milp import plan_milp
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import InvalidPlanError
from godwit.placement.metrics import SplitKeys
from godwit.placement.preview import preview
from godwit.placement.problem import ComponentFacts, Limits, Problem, joint_problem
from godwit.placement.solution import Solution, Status, executable_plan, make_solution


def uneven(running: Assignment, **limits: Any) -> Problem:
    loads = np.arange(running.num_key_groups, dtype=np.float64)
    facts = ComponentFacts(
        assignment=running, load=loads[None], state_bytes=np.full(running.num_key_groups, 10.0)
    )
    return joint_problem({"c": facts}, {}, **limits)


def test_a_solution_is_carried_out_in_the_order_that_its_preview_shows() -> None:
    running = even_assignment(12, ["a", "b", "c"], [1, 1, 1]).moved(dict.fromkeys(range(12), "a"))
    solution = plan_milp(uneven(running))
    plan = executable_plan(solution)
    assert plan.moves == preview(solution).moves == solution.moves
    assert plan.moves
    assert list(plan.places) == [move.key_group for move in plan.moves]
    assert plan.moved_bytes == solution.moved_bytes
    assert plan.load_before == (66.0, 0.0, 0.0)
    assert plan.load_after == tuple(solution.load_index.tolist())
    relief = [move.relief_per_byte for move in plan.moves]
    assert relief == sorted(relief, reverse=True)
    sent = {piece.move.key_group for phase in plan.phases for piece in phase.pieces}
    assert sent == plan.places.keys()


def test_the_target_is_what_the_planner_answered() -> None:
    running = even_assignment(8, ["a", "b"], [2, 1]).moved({0: "b", 2: "b"})
    solution = plan_milp(uneven(running))
    target = executable_plan(solution).target(running)
    assert target.executor_of.tolist() == solution.assignment.tolist()


def test_a_plan_for_another_assignment_is_refused() -> None:
    running = even_assignment(8, ["a", "b"], [1, 1]).moved(dict.fromkeys(range(8), "a"))
    plan = executable_plan(plan_milp(uneven(running)))
    moved = running.moved({plan.moves[0].key_group: "b"})
    with pytest.raises(InvalidPlanError, match="the plan of 'milp' found it on 'a'"):
        plan.target(moved)


def test_what_is_carried_out_was_judged() -> None:
    problem = Problem(
        executors=("a", "b"),
        load=np.ones(2),
        state_bytes=np.ones(2),
        current=np.array([0, 0], np.int32),
        limits=Limits(max_moves=0),
    )
    lies = Solution(
        problem=problem, method="test", assignment=np.array([0, 1]), status=Status.OPTIMAL
    )
    with pytest.raises(InvalidPlanError, match="exceed max_moves"):
        executable_plan(lies)
    first, half = np.array([0, 0], np.int32), np.array([1.0, 0.5])
    second = np.array([0, 1], np.int32)
    split = SplitKeys(first=first, second=second, share=half, merging=np.zeros(2))
    with pytest.raises(InvalidPlanError, match="splits"):
        executable_plan(make_solution(problem, problem.current, method="test", split=split))


def test_capacity_is_the_number_of_lanes_and_empty_executors_are_there() -> None:
    problem = uneven(even_assignment(2, ["a", "b", "c"], [2, 1, 4]), draining=["b"])
    assert problem.capacity[:, 0].tolist() == [2, 1, 4]
    assert problem.draining.tolist() == [False, True, False]

"""Plans, bounds and strategies that `migrate` accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from godwit.migration import Bounds, Strategy
from godwit.model.assignment import even_assignment
from godwit.model.errors import InvalidPlanError
from godwit.model.naming import NoSuchCallError
from godwit.placement import planner
from godwit.placement.problem import ComponentFacts, joint_problem
from godwit.runtime.placement import (
    QueryPlacement,
    checked_bounds,
    checked_moves,
    resolve_plan,
)
from godwit.runtime.query import Query
from godwit.runtime.scaling import QueryScaling


def test_moves_come_back_as_plain_numbers_and_names() -> None:
    moves = checked_moves({0: "a", np.int32(7): "b"})
    assert moves == {0: "a", 7: "b"}
    assert all(type(number) is int for number in moves)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (None, r"plan of type NoneType\. Give the moves, as in \{0: \"2\""),
        ([(0, "a")], r"plan of type list"),
        ({}, "a plan without moves"),
        ({"0": "a"}, r"names key group '0', of type str\. Key groups are whole numbers"),
        ({1.5: "a"}, r"names key group 1\.5, of type float"),
        ({1.0: "a"}, r"names key group 1\.0, of type float"),
        ({True: "a"}, r"names key group True, of type bool"),
        ({None: "a"}, r"names key group None, of type NoneType"),
        ({0: 2}, r"sends key group 0 to 2, of type int\. Name executors by text"),
        ({0: None}, r"sends key group 0 to None"),
    ],
)
def test_plans_of_other_shapes_are_refused_by_what_they_hold(plan: Any, told: str) -> None:
    with pytest.raises(InvalidPlanError, match=told):
        checked_moves(plan)


def test_bounds_are_bounds_and_the_default_ones_where_none_are_given() -> None:
    assert checked_bounds(None) == Bounds()
    assert checked_bounds(Bounds(max_moves=3)).max_moves == 3
    with pytest.raises(
        InvalidPlanError, match=r"bounds of type dict.*gw\.migration\.Bounds\(max_moves=8\)"
    ):
        checked_bounds({"max_moves": 3})


def test_strategies_go_by_name() -> None:
    assert Strategy("live") is Strategy.LIVE
    with pytest.raises(InvalidPlanError, match=r"no strategy 'gentle'.*live, disruptive"):
        Strategy("gentle")
    with pytest.raises(InvalidPlanError, match="no strategy None"):
        Strategy(None)  # type: ignore[arg-type]


def test_a_plan_leads_to_an_assignment_whatever_it_is_given_as() -> None:
    places = even_assignment(4, ["a", "b"], [1, 1])
    moved, order = resolve_plan({0: "b"}, places)
    assert (moved.executor(0), order) == ("b", ())
    assert resolve_plan(moved, places) == (moved, ())
    facts = ComponentFacts(
        assignment=places, load=np.array([[9.0, 1, 1, 1]]), state_bytes=np.ones(4)
    )
    solution = planner("milp")(joint_problem({"one": facts}, {}))
    target, order = resolve_plan(solution, places)
    assert target.executor_of.tolist() == solution.assignment.tolist()
    assert order == tuple(move.key_group for move in solution.moves)


def test_a_solution_of_several_components_is_refused_for_one() -> None:
    facts = ComponentFacts(
        assignment=even_assignment(4, ["a"], [1]), load=np.ones((1, 4)), state_bytes=np.ones(4)
    )
    solution = planner("milp")(joint_problem({"one": facts, "two": facts}, {}))
    with pytest.raises(InvalidPlanError, match="moves key groups of 'one', 'two'"):
        resolve_plan(solution, facts.assignment)


@pytest.mark.parametrize(
    ("part", "verb"),
    [
        (QueryPlacement, "migrate"),
        (QueryPlacement, "balance"),
        (QueryPlacement, "drain"),
        (QueryPlacement, "executors"),
        (QueryScaling, "scale"),
    ],
)
def test_verbs_are_methods_of_the_query_alone(part: Any, verb: str) -> None:
    with pytest.raises(NoSuchCallError, match=rf"Use query\.{verb}\.") as refused:
        getattr(part.__new__(part), verb)
    assert hasattr(Query, verb)
    assert isinstance(refused.value, AttributeError)


def test_a_part_of_a_query_suggests_its_own_names() -> None:
    with pytest.raises(NoSuchCallError, match="assignments"):
        _ = QueryPlacement.__new__(QueryPlacement).assignment  # type: ignore[attr-defined]

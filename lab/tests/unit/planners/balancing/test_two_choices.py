"""PKG and PoTC: two candidates per key group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.problems import placed

from godwit.model.errors import InvalidProblemError
from godwit.placement.metrics import SplitKeys
from godwit.placement.preview import preview
from godwit.placement.problem import Problem, Traffic
from godwit_lab.planners.baselines import plan_pkg, plan_potc, two_candidates

if TYPE_CHECKING:
    from godwit.placement.solution import Solution


def problem(m: int, n: int, *, seed: int = 0, draining: int | None = None) -> Problem:
    rng = np.random.default_rng(seed)
    load, state_bytes = rng.uniform(0, 2, m), rng.uniform(0, 100, m)
    drains = np.array([executor == draining for executor in range(n)])
    return placed(load, rng.integers(0, n, m), n, state_bytes=state_bytes, draining=drains)


def test_candidates_differ_and_stay_off_draining_executors() -> None:
    first, second = two_candidates(problem(2000, 5, draining=3), 7)
    assert (first != second).all()
    assert set(first.tolist()) == set(second.tolist()) == {0, 1, 2, 4}


def test_one_executor_is_both_candidates() -> None:
    first, second = two_candidates(problem(5, 1), 0)
    assert first.tolist() == second.tolist() == [0] * 5


def test_pkg_takes_one_of_the_two_and_balances_better_than_one_choice() -> None:
    asked = problem(2000, 10)
    first, second = two_candidates(asked, 0)
    solution = plan_pkg(asked)
    assert ((solution.assignment == first) | (solution.assignment == second)).all()
    one_choice = np.bincount(first, weights=asked.weight)
    assert solution.variance < 0.1 * one_choice.var()


def split_of(solution: Solution) -> SplitKeys:
    assert solution.split is not None
    return solution.split


def test_potc_splits_rows_so_that_load_without_merges_is_even() -> None:
    asked = problem(2000, 10)
    solution = plan_potc(asked, merge_load=0.0)
    assert solution.load_distance < 0.01 * asked.weight.sum() / 10
    assert solution.details["merge_load"] == 0
    share = split_of(solution).share
    assert ((share >= 0) & (share <= 1)).all()
    assert solution.load_index.sum() == pytest.approx(asked.weight.sum())


def test_merging_costs_load_and_balance() -> None:
    asked = problem(200, 10)
    plain, merged = plan_potc(asked, merge_load=0.0), plan_potc(asked, merge_cost=0.05)
    assert merged.load_distance > 2 * plain.load_distance
    assert merged.load_index.sum() == pytest.approx(
        asked.weight.sum() + merged.details["merge_load"]
    )


def test_a_split_shows_its_own_load_and_moves_nothing() -> None:
    asked = problem(300, 10)
    solution = plan_potc(asked)
    shown = preview(solution)
    assert solution.num_moves == 0
    assert shown.moves == ()
    assert shown.moved_bytes == 0
    assert shown.split_key_groups == split_of(solution).num_split > 0
    assert "splits" in shown.to_text()
    assert shown.load_distance_after == solution.objective
    assert [change.load_after for change in shown.executors] == solution.load_index.tolist()
    assert sum(change.key_groups_after for change in shown.executors) == (
        300 + split_of(solution).num_split
    )


def test_traffic_of_split_keys_is_counted_by_shares() -> None:
    asked = Problem(
        executors=("a", "b"),
        load=np.ones(2),
        state_bytes=np.ones(2),
        current=np.array([0, 1], np.int32),
        traffic=Traffic(source=np.array([0]), target=np.array([1]), rate=np.array([8.0])),
    )
    split = SplitKeys(
        first=np.array([0, 0], np.int32),
        second=np.array([1, 1], np.int32),
        share=np.array([0.25, 1.0]),
        merging=np.zeros(2),
    )
    assert split.collocation_factor(asked) == pytest.approx(0.25)
    assert split.load_index(asked).tolist() == [1.25, 0.75]
    assert split.num_split == 1


def test_seed_chooses_the_candidates() -> None:
    asked = problem(100, 5)
    assert not np.array_equal(plan_pkg(asked).assignment, plan_pkg(asked, seed=1).assignment)


@pytest.mark.parametrize("option", ["merge_cost", "merge_load"])
def test_negative_merge_costs_are_named(option: str) -> None:
    wrong = {option: -1.0}
    with pytest.raises(InvalidProblemError, match=f"{option} = -1"):
        plan_potc(problem(2, 2), **wrong)  # type: ignore[arg-type] # the option varies

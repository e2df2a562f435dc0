from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.problems import placed

from godwit.model.errors import InvalidProblemError
from godwit_lab.planners.baselines import hash_choice, plan_universal_hashing, universal_hash

if TYPE_CHECKING:
    from godwit.placement.problem import Problem


def problem(m: int = 1000, n: int = 8) -> Problem:
    return placed(np.ones(m), np.zeros(m), n, draining=np.arange(n) == 2)


def test_choices_are_spread_evenly() -> None:
    counts = np.bincount(hash_choice(80_000, 8, 3), minlength=8)
    assert counts.min() > 9_600
    assert counts.max() < 10_400


def test_choices_of_two_seeds_are_unrelated() -> None:
    same = hash_choice(80_000, 8, 3) == hash_choice(80_000, 8, 4)
    assert same.mean() == pytest.approx(1 / 8, abs=0.01)


def test_two_key_groups_collide_as_rarely_as_a_universal_family_promises() -> None:
    rng = np.random.default_rng(1)
    hashes = np.array([universal_hash(20, 5, rng) for _ in range(2000)])
    for i, j in ((0, 1), (3, 17), (4, 9)):
        assert (hashes[:, i] == hashes[:, j]).mean() < 1 / 5 + 0.04


def test_planner_leaves_draining_executors_and_uses_all_others() -> None:
    solution = plan_universal_hashing(problem())
    assert set(solution.assignment.tolist()) == {0, 1, 3, 4, 5, 6, 7}


def test_several_draws_keep_the_most_even_one() -> None:
    one = plan_universal_hashing(problem(60), rng=np.random.default_rng(2))
    best = plan_universal_hashing(problem(60), rng=np.random.default_rng(2), choices=30)
    assert best.variance < one.variance


def test_no_draw_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="choices = 0"):
        plan_universal_hashing(problem(), choices=0)

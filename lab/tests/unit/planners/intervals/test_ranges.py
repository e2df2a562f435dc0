from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from godwit.placement.arrays import is_contiguous
from godwit.placement.problem import Problem
from godwit_lab.planners.intervals.ranges import even_cuts, gather_ranges


@given(st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_whatever_the_assignment_every_executor_that_stays_gets_one_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    draining = rng.random(n) < 0.3
    draining[rng.integers(n)] = False
    problem = Problem(
        executors=tuple("abcdef"[:n]),
        load=rng.integers(0, 4, m).astype(np.float64),
        state_bytes=rng.integers(0, 4, m).astype(np.float64),
        current=rng.integers(0, n, m).astype(np.int32),
        draining=draining,
    )
    gathered = gather_ranges(problem)
    assert is_contiguous(gathered, n)
    assert not problem.draining[gathered].any()
    assert len(np.unique(gathered)) == min(m, len(problem.available))


@pytest.mark.parametrize(
    ("weight", "cuts"),
    [
        ([1, 1, 1, 1, 1, 1], [0, 2, 4, 6]),
        ([6, 1, 1, 1, 1, 2], [0, 1, 3, 6]),
        ([0, 0, 0, 0, 0, 0], [0, 2, 4, 6]),
        ([9, 0, 0, 0, 0, 0], [0, 1, 2, 6]),
        ([0, 0, 0, 0, 0, 9], [0, 4, 5, 6]),
    ],
)
def test_cuts_are_even_by_weight_and_leave_no_interval_empty(
    weight: list[float], cuts: list[int]
) -> None:
    assert even_cuts(np.array(weight, np.float64), 3).tolist() == cuts

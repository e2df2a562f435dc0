from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.problems import placed

from godwit.model.errors import InvalidProblemError
from godwit.placement import metrics
from godwit_lab.planners.balancing import plan_clb, split_by_covariance

if TYPE_CHECKING:
    from godwit.placement.problem import Problem

WAVES = np.array([[1, 9, 1, 9], [2, 8, 2, 8], [9, 1, 9, 1], [8, 2, 8, 2]], np.float64)


def problem(series: np.ndarray, executors: int, **fields: Any) -> Problem:
    current = fields.pop("current", np.arange(len(series)) % executors)
    return placed(series[:, -1], current, executors, history=series.T, **fields)


def test_substreams_that_rise_together_end_up_apart() -> None:
    group = split_by_covariance(WAVES, 2)
    assert group[0] != group[1]
    # The paper's split keeps what falls with the chosen substream beside it.
    assert group[0] == group[2] == group[3]


@pytest.mark.parametrize("windows", [5, 300])
@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_split_equals_the_one_by_the_whole_covariance_matrix(
    windows: int, threshold: float
) -> None:
    series = np.random.default_rng(windows).normal(size=(300, windows))
    covariance = np.cov(series, bias=True)
    expected = np.zeros(300, np.int64)
    counted = np.where(covariance >= threshold * np.trace(covariance) / 300, covariance, 0.0)
    counted = np.maximum(counted, 0.0)
    np.fill_diagonal(counted, 0.0)
    for new in range(1, 7):
        contribution = (counted * (expected[:, None] == expected)).sum(axis=1)
        k = int(contribution.argmax())
        expected[(expected == expected[k]) & (counted[k] > 0)] = new
    assert np.array_equal(split_by_covariance(series, 7, threshold=threshold), expected)


def test_refined_plan_cancels_opposite_waves() -> None:
    asked = problem(WAVES, 2, current=np.array([0, 0, 1, 1]))
    solution = plan_clb(asked)
    assert solution.objective is not None
    assert solution.objective < 0.05 * metrics.history_imbalance(asked, asked.current)


def test_assignment_that_is_as_even_already_stays() -> None:
    assert plan_clb(problem(WAVES, 2)).num_moves == 0


def test_constant_loads_cannot_be_split_by_covariance_but_are_evened_out() -> None:
    flat = np.full((6, 3), 2.0)
    assert (split_by_covariance(flat, 3) == 0).all()
    assert plan_clb(problem(flat, 3)).load_index.tolist() == [4.0, 4.0, 4.0]


def test_sets_go_where_their_state_is() -> None:
    # The sets are {0, 2} and {1, 3} or {0, 3} and {1, 2}; most bytes of each stay.
    asked = problem(
        WAVES, 2, current=np.array([1, 0, 1, 0]), state_bytes=np.array([50.0, 50.0, 1.0, 1.0])
    )
    solution = plan_clb(asked)
    assert solution.assignment[:2].tolist() == [1, 0]


def test_draining_executor_gets_nothing_and_faster_ones_more() -> None:
    rng = np.random.default_rng(1)
    series = rng.poisson(20, (60, 10)).astype(np.float64)
    asked = problem(
        series,
        3,
        current=np.zeros(60, np.int32),
        capacity=np.array([1.0, 1.0, 3.0]),
        draining=np.array([True, False, False]),
    )
    solution = plan_clb(asked)
    assert not (solution.assignment == 0).any()
    held = metrics.loads(asked, solution.assignment)
    assert held[2] == pytest.approx(3 * held[1], rel=0.1)


def test_assignment_that_is_nearly_as_even_stays() -> None:
    # Sets made anew would differ from these in most key groups, for less than a per cent.
    rng = np.random.default_rng(3)
    series = rng.poisson(100, (100, 12)).astype(np.float64)
    even = plan_clb(problem(series, 5), least_gain=0.0)
    again = problem(series, 5, current=even.assignment)
    assert plan_clb(again, refine=0).num_moves > 50
    assert plan_clb(again).num_moves == 0


def test_uneven_load_is_evened_out_from_where_it_is() -> None:
    rng = np.random.default_rng(4)
    series = rng.poisson(rng.uniform(50, 150, 100)[:, None], (100, 10)).astype(np.float64)
    asked = problem(series, 5, current=rng.integers(0, 5, 100))
    evened, anew = plan_clb(asked), plan_clb(asked, refine=0)
    assert evened.objective is not None
    assert anew.objective is not None
    assert evened.objective < anew.objective
    assert evened.objective < 0.03 * metrics.history_imbalance(asked, asked.current)
    assert evened.num_moves < 30 < anew.num_moves


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"threshold": 1.0}, "threshold = 1"),
        ({"refine": -1}, "refine = -1"),
        ({"least_gain": -1.0}, "least_gain = -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidProblemError, match=names):
        plan_clb(problem(WAVES, 2), **options)


def test_one_window_is_too_few() -> None:
    with pytest.raises(InvalidProblemError, match="1 windows"):
        plan_clb(problem(WAVES[:, :1], 2))

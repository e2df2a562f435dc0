"""Delays are exact: they agree with every single row's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from godwit_lab.simulator.history import Delays
from godwit_lab.simulator.workload import Rate, RowArrivals, Surge


def test_rows_of_one_batch_are_delayed_between_the_last_and_the_first_one() -> None:
    delays = Delays.of(np.array([[100.0, 1.0, 2.0]]), left_s=5.0)
    assert delays.rows == 100
    assert delays.mean_s == pytest.approx(3.5)
    assert delays.greatest_s == 4.0
    assert [delays.quantile_s(q) for q in (0, 0.5, 0.99, 1)] == pytest.approx([3, 3.5, 3.99, 4])


def test_rows_that_arrived_together_are_a_jump() -> None:
    delays = Delays.all_of(
        [
            Delays.of(np.array([[10.0, 0.0, 0.0]]), left_s=1.0),
            Delays.of(np.array([[30.0, 0.0, 0.0]]), left_s=2.0),
        ]
    )
    assert [delays.quantile_s(q) for q in (0.1, 0.25, 0.26, 1)] == [1, 1, 2, 2]


def test_no_rows_have_no_delay() -> None:
    nothing = Delays.all_of([])
    assert math.isnan(nothing.mean_s)
    assert math.isnan(nothing.quantile_s(0.5))


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_those_of_all_rows_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rate = Rate(rows_per_s=3000, noise=0.3, surges=(Surge(start_s=3, end_s=5, factor=4),))
    curve = RowArrivals(rate, 10.0, rng)
    ends = np.sort(rng.choice(np.arange(1, curve.total), 12, replace=False)).tolist()
    batches, singles, left_s, first = [], [], 0.0, 0
    for last in [*ends, curve.total]:
        left_s = max(left_s, curve.time_of(last)) + rng.uniform(0.1, 1.0)
        batches.append(Delays.of(curve.pieces(first, last), left_s))
        rows = np.arange(first, last) + 0.5
        singles.append(left_s - np.array([curve.time_of(r) for r in rows[::7]]))
        first = last
    exact, sampled = Delays.all_of(batches), np.concatenate(singles)
    assert exact.rows == pytest.approx(curve.total)
    assert exact.mean_s == pytest.approx(sampled.mean(), rel=2e-3)
    for share in (0.05, 0.5, 0.9, 0.99):
        assert exact.quantile_s(share) == pytest.approx(np.quantile(sampled, share), abs=0.01)

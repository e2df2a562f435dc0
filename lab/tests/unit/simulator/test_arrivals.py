"""The cumulative curve of arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator.workload import Rate, RowArrivals, Surge


def arrivals(rate: Rate, duration_s: float = 10.0, seed: int = 1) -> RowArrivals:
    return RowArrivals(rate, duration_s, np.random.default_rng(seed))


def test_a_steady_rate_is_a_straight_line() -> None:
    curve = arrivals(Rate(rows_per_s=100))
    assert [curve.arrived_by(t) for t in (0, 1, 2.5, 10, 99)] == [0, 100, 250, 1000, 1000]
    assert curve.time_of(250) == pytest.approx(2.5)
    assert curve.total == 1000


def test_a_surge_multiplies_the_rate_between_its_ends() -> None:
    curve = arrivals(Rate(rows_per_s=100, surges=(Surge(start_s=2, end_s=4, factor=4),)))
    assert [curve.arrived_by(t) for t in (2, 4, 10)] == [200, 1000, 1600]


def test_a_surge_may_have_a_fraction_as_its_factor() -> None:
    curve = arrivals(Rate(rows_per_s=100, surges=(Surge(start_s=2, end_s=4, factor=1.5),)))
    assert curve.arrived_by(10) == 1100


def test_noise_stays_within_its_share_and_depends_on_the_seed_alone() -> None:
    rate = Rate(rows_per_s=1000, noise=0.1)
    curve, again, other = arrivals(rate), arrivals(rate), arrivals(rate, seed=2)
    seconds = [curve.arrived_by(t + 1) - curve.arrived_by(t) for t in range(10)]
    assert min(seconds) >= 899
    assert max(seconds) <= 1101
    assert len(set(seconds)) > 5
    assert curve.total == again.total != other.total


def test_a_batch_that_spans_a_surge_is_cut_where_the_curve_bends() -> None:
    curve = arrivals(Rate(rows_per_s=100, surges=(Surge(start_s=2, end_s=4, factor=4),)))
    pieces = curve.pieces(100, 1200)
    assert pieces[:, 0].sum() == pytest.approx(1100)
    per_s = pieces[:, 0] / (pieces[:, 2] - pieces[:, 1])
    surging = (pieces[:, 1] >= 2 - 1e-9) & (pieces[:, 2] <= 4 + 1e-9)
    assert per_s[surging] == pytest.approx(400)
    assert per_s[~surging] == pytest.approx(100)
    assert len(curve.pieces(5, 5)) == 0


def test_rates_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="rate of -1"):
        Rate(rows_per_s=-1)
    with pytest.raises(InvalidProblemError, match="noise 2"):
        Rate(rows_per_s=1, noise=2)

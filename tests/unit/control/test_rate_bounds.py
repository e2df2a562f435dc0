"""Rates that noise leaves possible: it crosses no bound; what is more than noise does at once."""

from __future__ import annotations

import numpy as np

from godwit.control.arrivals import ArrivalCurve
from godwit.control.rate_bounds import RateBounds


def test_noise_alone_leaves_the_true_rate_possible_for_an_hour() -> None:
    crossed = set()
    for seed in range(50):
        rng, bounds = np.random.default_rng(seed), RateBounds()
        for rate in 1000 * (1 + 0.29 / np.sqrt(10) * rng.normal(size=360)):
            bounds.add(float(rate), 0.29 / np.sqrt(10))
            if not bounds.low <= 1000 <= bounds.high:
                crossed.add(seed)
    assert len(crossed) <= 5  # one of twenty on either side, at most


def test_many_periods_tell_what_one_cannot() -> None:
    bounds = RateBounds()
    bounds.add(1000.0, 0.09)
    after_one = bounds.high - bounds.low
    for _ in range(63):
        bounds.add(1000.0, 0.09)
    assert bounds.high - bounds.low < after_one / 2
    assert bounds.low < 1000 < bounds.high


def test_a_step_beyond_noise_is_possible_from_its_first_period_on() -> None:
    bounds = RateBounds()
    for _ in range(100):
        bounds.add(1000.0, 0.03)
    bounds.add(1500.0, 0.03)
    assert bounds.low > 1300
    assert bounds.high < 1700


def test_a_drift_is_followed_within_its_noise() -> None:
    bounds, rate = RateBounds(), 1000.0
    for _ in range(60):
        rate *= 1.02
        bounds.add(rate, 0.01)
        assert bounds.low > 0.94 * rate
        assert bounds.high < 1.06 * rate


def test_the_error_of_a_rate_is_that_of_noise_which_lasts_for_several_intervals() -> None:
    errors = []
    for seed in range(30):
        rng, curve, rates = np.random.default_rng(seed), ArrivalCurve(), []
        for second in range(40):
            rates.append(1000 * (1 + rng.uniform(-0.5, 0.5)))
            for half in (0.0, 0.5):
                curve.add_epoch(int(rates[-1] / 2), second + half, 0)
        errors.append(curve.error_since(20.0))
    expected = 0.29 / np.sqrt(20)
    assert 0.6 * expected < np.median(errors) < 1.6 * expected


def test_the_error_of_a_steady_rate_knows_no_trend_and_no_step() -> None:
    rates = {"trend": [1000 * 1.02**n for n in range(40)], "step": [1000.0] * 20 + [3000.0] * 20}
    for name, each in rates.items():
        curve = ArrivalCurve()
        for second, rate in enumerate(each):
            curve.add_epoch(int(rate), float(second), 0)
        assert curve.error_since(30.0) < 0.04, name

"""Trend of the arrival rate: a rise is seen, and neither noise nor a step passes for one."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from godwit.control.loop import Controller
from godwit.control.rate_trend import RateTrend, Trend


def seen(rates: np.ndarray, interval_s: float = 1.0) -> RateTrend:
    """Give the rows of intervals with these rates."""
    trend, rows = RateTrend(), 0.0
    trend.add(0.0, 0.0)
    for number, rate in enumerate(rates, 1):
        rows += rate * interval_s
        trend.add(number * interval_s, rows)
    return trend


def noisy(rates: np.ndarray, noise: float, seed: int) -> np.ndarray:
    strayed: np.ndarray = rates * (1 + noise * np.random.default_rng(seed).normal(size=len(rates)))
    return strayed


def test_a_steady_rise_is_continued_from_its_end() -> None:
    trend = seen(1000.0 + 50.0 * (np.arange(8) + 0.5)).trend
    assert trend is not None
    assert trend.rise == pytest.approx(50.0)
    assert trend.rate_per_s == pytest.approx(1400.0)
    assert trend.rate_at(trend.at_s + 4) == pytest.approx(1600.0)


def test_a_rise_is_believed_for_no_longer_than_it_has_been_seen() -> None:
    trend = Trend(at_s=100.0, rate_per_s=1000.0, rise=10.0, seen_s=8.0)
    assert trend.rate_at(90.0) == 1000.0
    assert trend.rate_at(108.0) == trend.rate_at(500.0) == 1080.0


@pytest.mark.parametrize("interval_s", [0.5, 2.0])
def test_a_rise_under_noise_is_seen_at_about_its_slope(interval_s: float) -> None:
    rising = 1000.0 * (1 + 0.04 * np.arange(20) * interval_s)
    trends = [seen(noisy(rising, 0.05, seed), interval_s).trend for seed in range(40)]
    rises = [trend.rise for trend in trends if trend is not None]
    assert len(rises) >= (20 if interval_s < 1 else 38)
    assert np.median(rises) == pytest.approx(40.0, rel=0.4)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.5])
def test_noise_is_no_trend(noise: float) -> None:
    """Each of 500 looks at 24 intervals of a rate that stays."""
    flat = np.full(24, 1000.0)
    trends = [seen(noisy(flat, noise, seed)).trend for seed in range(500)]
    assert sum(trend is not None for trend in trends) <= 5


@pytest.mark.parametrize("height", [1.3, 3.0, 10.0])
@pytest.mark.parametrize("mixed", [0.0, 0.5])
def test_a_step_has_no_trend_however_long_ago_it_was(height: float, mixed: float) -> None:
    """`mixed`: share of the interval of the step that had the new rate already."""
    seen_trends = 0
    for seed in range(20):
        step = 1000.0 * np.r_[np.ones(12), 1 + mixed * (height - 1), np.full(12, height)]
        rates = noisy(step, 0.02, seed)
        seen_trends += sum(seen(rates[:end]).trend is not None for end in range(13, 25))
    assert seen_trends <= 4


def test_a_fall_is_no_trend() -> None:
    assert seen(2000.0 - 50.0 * np.arange(16)).trend is None


def test_the_forecast_of_a_wave_is_nearer_than_its_rate_while_it_rises() -> None:
    """Ten seconds ahead, on the way from a trough to a peak a minute later."""
    times_s = np.arange(0.5, 60.0)
    wave = 6000.0 - 4000.0 * np.cos(np.pi * times_s / 60)
    as_now, foreseen = [], []
    for end in range(20, 45):
        trend = seen(noisy(wave[:end], 0.02, end)).trend
        ahead = float(np.interp(end + 10, times_s, wave))
        as_now.append(abs(wave[end - 3 : end].mean() - ahead))
        foreseen.append(as_now[-1] if trend is None else abs(trend.rate_at(end + 10) - ahead))
    assert np.mean(foreseen) < 0.6 * np.mean(as_now)


def test_points_of_the_same_time_replace_each_other() -> None:
    trend, rows = RateTrend(), np.cumsum(1000.0 + 50.0 * np.arange(8))
    for at_s, total in enumerate(rows.tolist()):
        trend.add(float(at_s), total - 10)
        trend.add(float(at_s), total)
    points = seen(np.diff(rows))
    assert trend.trend is not None
    assert points.trend is not None
    assert trend.trend.rise == pytest.approx(points.trend.rise)
    trend.clear()
    assert trend.trend is None


def test_points_after_a_clock_that_was_set_back_replace_all_later_ones() -> None:
    trend = RateTrend()
    for at_s in (*range(10), *range(5, 12)):
        trend.add(float(at_s), 1000.0 * at_s + 25.0 * at_s**2)
    assert trend.trend is not None
    assert trend.trend.rise == pytest.approx(50.0)


def test_a_rise_that_the_period_does_not_have_asks_for_no_executor() -> None:
    controller: Any = SimpleNamespace(
        _forecaster=None,
        _recent_rates=deque([1000.0, 980.0], maxlen=2),
        _settings=SimpleNamespace(period_s=5.0),
    )
    situation: Any = SimpleNamespace(lead_s=2.0, epoch_s=1.0)
    expected = []
    for rate in (990.0, 1010.0):
        rising = SimpleNamespace(rate_at=lambda _: 1200.0)
        period: Any = SimpleNamespace(arrival_per_s=rate, rising=rising)
        expected.append(Controller._expected_per_s(controller, period, situation, 0.0))
    assert expected == [None, 1200.0]

"""Latency histograms against exact figures of the same rows, and curves against exact arrivals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from godwit.engine.cluster import SourceLook
from godwit.engine.latency import LatencyMeter, SeenArrivals
from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    import numpy.typing as npt

_AGES = st.lists(
    st.one_of(
        st.integers(0, 2_000), st.integers(0, 10**7), st.integers(0, 10**15), st.integers(-5, 5)
    ),
    min_size=1,
    max_size=60,
)
_SHARES = st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.99, 1.0])


def _of(ages_us: list[int]) -> LatencyHistogram:
    return LatencyHistogram.of_us(np.array(ages_us, np.int64))


def _exact_s(ages_us: npt.ArrayLike, share: float) -> float:
    """Return the latency that `share` of the rows do not exceed, by sorting them."""
    ordered = np.sort(np.asarray(ages_us, np.float64).clip(min=0))
    return float(ordered[math.ceil(share * len(ordered) - 1e-9) - 1]) / 1e6


@given(_AGES, _SHARES)
def test_a_quantile_is_within_a_hundredth_of_the_row_that_has_it(
    ages_us: list[int], share: float
) -> None:
    histogram = _of(ages_us)
    exact_s = _exact_s(ages_us, share)
    assert abs(histogram.quantile_s(share) - exact_s) <= 0.008 * exact_s + 1e-6
    floored = np.array(ages_us, np.float64).clip(min=0)
    assert histogram.rows == len(ages_us)
    assert histogram.ahead == sum(age < 0 for age in ages_us)
    assert math.isclose(histogram.mean_s, floored.mean() / 1e6, rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(histogram.max_s, floored.max() / 1e6)


@given(st.lists(_AGES, max_size=4))
def test_merged_histograms_are_the_histogram_of_all_rows(parts: list[list[int]]) -> None:
    merged = LatencyHistogram.merged(_of(part) for part in parts)
    whole = _of([age for part in parts for age in part])
    assert merged.buckets.tolist() == whole.buckets.tolist()
    assert merged.counts.tolist() == whole.counts.tolist()
    assert (merged.ahead, merged.max_s) == (whole.ahead, whole.max_s)
    assert math.isclose(merged.sum_s, whole.sum_s, rel_tol=1e-9)


@given(_AGES, st.integers(0, 10**9), _SHARES)
def test_rows_that_age_together_keep_quantiles_within_two_hundredths(
    ages_us: list[int], by_us: int, share: float
) -> None:
    later = _of(ages_us).later(by_us / 1e6)
    exact_s = _exact_s([max(age, 0) + by_us for age in ages_us], share)
    assert abs(later.quantile_s(share) - exact_s) <= 0.02 * exact_s + 1e-6
    assert later.rows == len(ages_us)


@given(_AGES)
def test_a_histogram_survives_bytes_and_plain_values(ages_us: list[int]) -> None:
    histogram = _of(ages_us)
    for again in (
        LatencyHistogram.from_bytes(histogram.to_bytes()),
        LatencyHistogram.from_dict(histogram.to_dict()),
    ):
        assert again.figures_ms() == histogram.figures_ms()
        assert (again.rows, again.ahead) == (histogram.rows, histogram.ahead)


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 10**7), st.integers(0, 10**7)),
        min_size=1,
        max_size=5,
    ),
    _SHARES,
)
def test_rows_that_are_evenly_spread_are_counted_as_if_one_by_one(
    stretches: list[tuple[int, int, int]], share: float
) -> None:
    pieces = [(n, min(a, b) / 1e6, max(a, b) / 1e6) for n, a, b in stretches]
    histogram = LatencyHistogram.spread(np.array(pieces))
    rows_s = np.concatenate([a + (np.arange(n) + 0.5) / n * (b - a) for n, a, b in pieces])
    assert histogram.rows == len(rows_s)
    assert math.isclose(histogram.mean_s, rows_s.mean(), rel_tol=1e-6, abs_tol=1e-9)
    # A row may be counted in the place of its neighbour, in each of the stretches.
    ordered, rank = np.sort(rows_s), math.ceil(share * len(rows_s) - 1e-9) - 1
    near = len(stretches)
    least, most = ordered[max(rank - near, 0)], ordered[min(rank + near, len(ordered) - 1)]
    widest = max((b - a) / n for n, a, b in pieces)
    value = histogram.quantile_s(share)
    assert 0.99 * least - widest - 1e-6 <= value <= 1.01 * most + widest + 1e-6


def _played(
    rate: npt.NDArray[np.float64],  # arrivals in each tenth of a second
    *,
    limit: int,
    interval_s: float,
    epoch_s: float,
    tells: bool,  # whether the source says what it holds back
) -> tuple[list[float], list[float]]:
    """Play epochs of rows that arrive; return measured and exact p50 of each that had rows."""
    rng = np.random.default_rng(7)
    arrived_s = np.sort(
        np.concatenate([at / 10 + rng.random(round(n)) / 10 for at, n in enumerate(rate)])
    )
    meter, taken, now_s = LatencyMeter(0), 0, 0.0
    before: tuple[tuple[int, float], ...] = ()
    nothing_us: dict[str, int] = {}
    measured: list[float] = []
    exact: list[float] = []
    while taken < len(arrived_s):
        there = int(np.searchsorted(arrived_s, now_s, "right"))
        rows = min(there - taken, limit)
        if not rows:
            nothing_us = {"s": int(now_s * 1e6)}
            now_s += 0.1
            continue
        look = SourceLook(at_us=int(now_s * 1e6), nothing_us=nothing_us, before={"s": before})
        ended_s = now_s + epoch_s
        latency = meter.measure(look, {"s": rows}, int(ended_s * 1e6), ages={}, ago_s=0.0)["s"]
        assert latency.arrival == "seen"
        measured.append(latency.histogram.quantile_s(0.5))
        exact.append(float(np.median(ended_s - arrived_s[taken : taken + rows])))
        taken += rows
        before = ((int(now_s * 1e6), float(there - taken)),) if tells else ()
        now_s = max(ended_s, now_s + interval_s)
    return measured, exact


def test_the_curve_of_arrivals_gives_the_latency_of_rows_that_are_held_back() -> None:
    # A steady rate, three times as much for four seconds, and a pause; 60 rows an epoch at most.
    rate = np.concatenate([np.full(60, 10.0), np.full(40, 30.0), np.zeros(30), np.full(60, 10.0)])
    measured, exact = _played(rate, limit=60, interval_s=0.5, epoch_s=0.3, tells=True)
    errors = np.abs(np.array(measured) - exact) / exact
    assert max(exact) > 5  # what is held back does wait
    assert np.median(errors) < 0.05
    assert errors.max() < 0.35
    # A source that says nothing hides what waits: the figure is of what is taken.
    unaware, _ = _played(rate, limit=60, interval_s=0.5, epoch_s=0.3, tells=False)
    assert max(unaware) < 2


def test_the_curve_knows_rows_that_come_after_a_pause() -> None:
    rate = np.concatenate([np.full(20, 10.0), np.zeros(100), np.full(20, 10.0)])
    measured, exact = _played(rate, limit=10**6, interval_s=0.0, epoch_s=0.2, tells=False)
    assert np.allclose(measured, exact, atol=0.1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12))
def test_the_curve_gives_every_row_once_and_the_oldest_first(
    epochs: list[tuple[int, int]],  # rows taken, and rows that are held back
) -> None:
    curve, at_us, last_us = SeenArrivals(0), 0, 0.0
    for rows, held_back in epochs:
        at_us += 1_000
        curve.record_backlog(at_us, rows + held_back)
        pieces = curve.pop_oldest(rows)
        assert math.isclose(pieces[:, 0].sum(), rows, abs_tol=1e-6)
        for _, first_us, to_us in pieces:
            assert last_us - 1e-6 <= first_us <= to_us <= at_us
            last_us = to_us

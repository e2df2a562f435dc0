r"""Arrival rate at the sources, and the time of its last change.

The processing rate shows the capacity of a query, not the load it has to carry (Kalavri et al.,
"Three steps is all you need", OSDI 2018).  All rows that have ever arrived are those that were
taken and those that sources hold back, at the times at which they say so; the slope of that curve
is the arrival rate. Sources that do not say are taken to hold nothing back when an epoch begins.

The mean of a window in which the rate changes is neither the old nor the new rate, and a decision
based on it has to be corrected. So the curve looks for the last change: the logarithms of the
intervals' rates are taken to have a mean that steps, and normal noise, whose deviation is estimated
from the intervals before (the median of their differences, so that a few outliers do not count).
For every number
:math:`k` of last intervals these are compared with those before by the generalised likelihood
ratio; the :math:`k` that differs most is the change if it does by more than noise explains.  This
is Page's CUSUM (1954) for a step of unknown size (Siegmund and Venkatraman, "Using the generalized
likelihood ratio statistic for sequential detection of a change-point", 1995).

The interval in which the rate changed has some of both rates, so the rate since a change is that of
the intervals after it.  If only the last interval differs, a change cannot be told from noise;
`ArrivalCurve.is_unsettled` says so, and a decision had better wait for the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.control.rate_trend import RateTrend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.placement.arrays import FloatArray

_MAX_INTERVALS = 40
_STEP_INTERVALS = 2
"""Number of intervals in a row that establish a change."""
_MIN_USUAL_INTERVALS = 4
"""Min. number of earlier intervals for the usual rate; the max. is four times as many."""
_LENGTHS = (1, 2, 4)
"""Numbers of consecutive intervals over which noise is measured."""
_MIN_NOISE_EPOCHS = 4 * _LENGTHS[-1]
"""Min. number of epochs to measure noise; with fewer, the last measurement is kept."""
_LEAST_STEP = np.log(1.5)
"""Rise of the rate that ends the statistics period."""
_LEAST_CHANGE = np.log(1.2)
"""Min. change of the rate that is detected; below it, the mean is accurate enough."""
_ERRORS = 4.0
_CHANGE_ERRORS = 5.0
_MAD_TO_SIGMA = 1.4826
_RATE_FLOOR = 1e-9
_NOISE_FLOOR = 0.01


class ArrivalCurve:
    """Cumulative curve of arrivals at the sources; its slope is the arrival rate.

    A *step* is two intervals in a row that both rose above the usual by more than noise explains,
    the last one by half of it: the first may have some of the rate before. It ends the statistics
    period. A *change* is where the rate is another since, up or down. Input that strays by a tenth
    is neither.
    """

    def __init__(self, usual: Sequence[float] = ()) -> None:  # rates that an earlier run saw last
        self._times_s: list[float] = []
        self._rows: list[float] = []
        self._rows_processed, self._is_reported = 0.0, False
        self._rates_before = [float(rate) for rate in usual][-_MAX_INTERVALS:]
        # standard deviation of the rate over a second, as a share; 0: not known
        self._relative_deviation = 0.0
        self.rises = RateTrend()
        self._cached_intervals_since_change: tuple[int | None] | None = (
            None  # see `_intervals_since_change`; ``None``: not known
        )

    def add_epoch(self, rows: int, at_s: float, backlog_rows: int | None) -> None:
        """Add an epoch of `rows` rows at `at_s`, when sources had `backlog_rows` more rows.

        ``None``: sources do not report a backlog.
        """
        self._rows_processed += rows
        self._cached_intervals_since_change = None
        if backlog_rows is None and self._is_reported:
            return  # what they hold back is not known now
        if backlog_rows is not None and not self._is_reported:
            self._is_reported = True
            self._times_s.clear()
            self._rows.clear()
            self.rises.clear()
        if self._times_s and at_s <= self._times_s[-1]:
            self._times_s.pop()
            self._rows.pop()
        self._times_s.append(at_s)
        self._rows.append(self._rows_processed + (backlog_rows or 0))
        self.rises.add(at_s, self._rows[-1])

    def rate_since(self, since_s: float) -> float | None:
        """Return the mean arrival rate since a time, in rows a second.

        ``None`` if it is unknown: rows of a run's first epoch may have arrived at any time before
        it.
        """
        times, rows = self._times_s, self._rows
        if len(times) < 2:
            return None
        first = int(np.searchsorted(times, min(since_s, times[-1])))
        base = max(first - 1, 0)
        return max(0.0, (rows[-1] - rows[base]) / (times[-1] - times[base]))

    def error_since(self, since_s: float) -> float:
        """Return the standard error of `rate_since`, as a share of it; 0 if it is unknown.

        Noise is measured by second differences of the rate, in intervals of several lengths, since
        deviations may last: trends and steps are not noise.
        """
        times_s, rows = np.array(self._times_s), np.array(self._rows)
        deviation = 0.0
        for length in _LENGTHS:
            rates = np.diff(rows[::-length]) / np.diff(times_s[::-length])
            if len(rates) > _MIN_USUAL_INTERVALS:
                bends = np.abs(np.diff(np.log(rates.clip(min=_RATE_FLOOR)), 2))
                each_s = float(times_s[-1] - times_s[0]) * length / len(times_s)
                sigma = _MAD_TO_SIGMA * _median(bends) * np.sqrt(each_s / 6)
                deviation = max(deviation, sigma)
        if len(times_s) >= _MIN_NOISE_EPOCHS:
            self._relative_deviation = deviation
        if not self._relative_deviation or len(times_s) < 2:
            return 0.0
        first = int(np.searchsorted(times_s, min(since_s, times_s[-1])))
        return float(self._relative_deviation / np.sqrt(times_s[-1] - times_s[max(first - 1, 0)]))

    @property
    def step_s(self) -> float | None:
        """End of the first interval at the rate after a step up; ``None``: there is no step."""
        rates = np.log(self._last_rates(4 * _MIN_USUAL_INTERVALS + _STEP_INTERVALS))
        if (
            len(rates) < _MIN_USUAL_INTERVALS + _STEP_INTERVALS
            or len(self._times_s) < _STEP_INTERVALS + 1
        ):
            return None
        middle, noise = _median_and_noise(rates[:-_STEP_INTERVALS])
        above = rates[-_STEP_INTERVALS:] - middle
        if above[-1] <= _LEAST_STEP or above.min() <= max(_LEAST_CHANGE, _ERRORS * noise):
            return None
        mixed = above[0] <= _LEAST_STEP  # it may have some of the rate before
        return self._times_s[-1 if mixed else -_STEP_INTERVALS]

    @property
    def change_s(self) -> float | None:
        """End of the interval in which the arrival rate last changed; ``None`` if it has not."""
        last = self._intervals_since_change()
        return None if last is None else self._times_s[-last]

    @property
    def rate_since_change(self) -> float | None:
        """Arrival rate since its last change, in rows a second; ``None`` if it has not changed."""
        num_intervals = self._intervals_since_change()
        if num_intervals is None:
            return None
        times, rows = self._times_s, self._rows
        return max(0.0, (rows[-1] - rows[-num_intervals]) / (times[-1] - times[-num_intervals]))

    @property
    def is_unsettled(self) -> bool:
        """True if only the last interval has another rate, which may be a change or noise."""
        rates = np.log(self._last_rates(4 * _MIN_USUAL_INTERVALS + 1))
        if len(rates) < _MIN_USUAL_INTERVALS + 1 or len(self._times_s) < 2:
            return False
        middle, noise = _median_and_noise(rates[:-1])
        last = float(abs(rates[-1] - middle))
        return (
            last > max(_LEAST_CHANGE, _CHANGE_ERRORS * noise) and not self._intervals_since_change()
        )

    @property
    def recent_rates(self) -> list[float]:
        """Arrival rates of the last intervals, in rows a second, for the next run."""
        return [round(rate, 3) for rate in self._last_rates(4 * _MIN_USUAL_INTERVALS).tolist()]

    def _intervals_since_change(self) -> int | None:
        """Return how many intervals ago the rate changed (cached); ``None`` if it has not."""
        if self._cached_intervals_since_change is None:
            self._cached_intervals_since_change = (self._find_change(),)
        return self._cached_intervals_since_change[0]

    def _find_change(self) -> int | None:
        """Find the most likely change of the arrival rate, by likelihood ratio.

        Returns how many intervals ago it was; ``None`` if there is none.
        """
        rates = np.log(self._last_rates(_MAX_INTERVALS))
        if not len(rates) or rates.max() - rates.min() <= _LEAST_CHANGE:
            return None
        max_intervals = min(len(rates) - _MIN_USUAL_INTERVALS, len(self._times_s) - 1)
        largest_errors, change = 0.0, None
        for last in range(_STEP_INTERVALS, max_intervals + 1):
            usual_rates = rates[-last - 4 * _MIN_USUAL_INTERVALS : -last]
            usual_rate, noise = _median_and_noise(usual_rates)
            difference = float(abs(np.mean(rates[-last:]) - usual_rate))
            scale = float(np.sqrt(1 / last + 1 / len(usual_rates)))
            latest_differences = (rates[-_STEP_INTERVALS:] - usual_rate) * np.sign(
                rates[-1] - usual_rate
            )
            if float(latest_differences.min()) < max(_LEAST_CHANGE, noise) / 2:
                continue  # the very last one alone may be a bad moment
            # Noise as it was before decides whether it is a change; which one, the same noise for
            # all: a few quiet intervals would be worth more than the step after them.
            is_certain = difference > max(_LEAST_CHANGE, _CHANGE_ERRORS * noise * scale)
            if is_certain and difference / scale > largest_errors:
                largest_errors, change = difference / scale, last
        return change

    def _last_rates(self, count: int) -> FloatArray:
        """Return the arrival rates of the last `count` intervals, in rows a second."""
        rows, times_s = self._rows[-count - 1 :], self._times_s[-count - 1 :]
        rates = np.diff(rows) / np.diff(times_s) if len(rows) > 1 else np.empty(0)
        earlier = self._rates_before[max(0, len(self._rates_before) + len(rates) - count) :]
        every: FloatArray = np.concatenate((earlier, rates)).clip(min=_RATE_FLOOR)
        return every

    def drop_old(self) -> None:
        """Drop the points that no rate needs; after a change, all points before it."""
        since_change = self._intervals_since_change()
        num_kept = _MAX_INTERVALS
        if self.step_s is not None:
            num_kept = _STEP_INTERVALS + 1
        elif since_change is not None:
            num_kept = since_change + 1
        if num_kept < _MAX_INTERVALS:
            self._rates_before = []
        del self._times_s[:-num_kept], self._rows[:-num_kept]
        self._cached_intervals_since_change = None


def _median_and_noise(rates: FloatArray) -> tuple[float, float]:
    """Return the median of the rates' logarithms, and the standard deviation of their noise."""
    middle = _median(rates)
    return middle, max(_MAD_TO_SIGMA * _median(np.abs(rates - middle)), _NOISE_FLOOR)


def _median(values: FloatArray) -> float:
    """Return the median of a few values; twenty times as fast as ``np.median``."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2

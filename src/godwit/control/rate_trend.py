r"""Trend of the arrival rate: its rise over the last intervals, and how far it is extrapolated.

A decision takes effect only once executors have come.  Where the rate rises all the time, one that
is made for the rate of its period is too small by then, and so is the next: the stream stays
behind until the rate is at its peak.

The trend is the slope of a line through the rates of the last intervals between epochs, by least
squares.  A line is believed only (1) where its slope is above noise by :math:`4 \sigma`, which is
measured by second differences, so that neither a step nor a trend passes for noise, in intervals of
several lengths, since deviations may last, and (2) where rates stray from it no more than from the
best single step (a step has no trend, and its rate is known without one).  The shortest number of
last intervals that shows one counts, since a trend bends.  No trend is believed to last longer than
it has been seen.

Only rises count: a foreseen fall that does not come would leave too few executors.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray

_LENGTHS = (6, 8, 12, 16)
"""Numbers of last intervals that are tested for a trend."""
_MAX_INTERVALS = 32
"""Max. number of intervals for measuring noise."""
_INTERVALS_TOGETHER = (1, 2, 4)
"""Numbers of consecutive intervals over which it is measured."""
_MIN_DIFFERENCES = 4
"""Min. number of second differences of merged intervals for measuring it."""
_ERRORS = 4.0
_MAD_TO_SIGMA = 1.4826
_NOISE_FLOOR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A rise of the arrival rate."""

    at_s: float  # when it was seen last
    rate_per_s: float  # the rate at that time, by the line
    rise: float  # rows a second, each second; above 0
    seen_s: float  # for how long it has risen

    def rate_at(self, time_s: float) -> float:
        """Return the forecast rate at a time; it rises for as long as was observed."""
        return self.rate_per_s + self.rise * min(max(time_s - self.at_s, 0.0), self.seen_s)


class RateTrend:
    """Rates of the last intervals between epochs, and their trend."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_MAX_INTERVALS + 1)

    def add(self, at_s: float, rows: float) -> None:
        """Add a point: all `rows` that had arrived by `at_s`."""
        while self._points and at_s <= self._points[-1][0]:
            self._points.pop()
        self._points.append((at_s, rows))

    def clear(self) -> None:
        """Drop all points, since rows are counted differently from now on."""
        self._points.clear()

    @property
    def trend(self) -> Trend | None:
        """The current rise of the rate; ``None`` if noise may explain it."""
        if len(self._points) < _LENGTHS[0] + 1:
            return None
        times_s, rows = np.array(self._points).T
        rates, middles_s = np.diff(rows) / np.diff(times_s), (times_s[1:] + times_s[:-1]) / 2
        noise = max(_rate_deviation(times_s, rows), _NOISE_FLOOR * float(rates[-1]))
        for length in _LENGTHS:
            if length > len(rates):
                break
            last, last_s = rates[-length:], middles_s[-length:]
            offsets_s = last_s - last_s.mean()
            squares = float(offsets_s @ offsets_s)
            rise = float(offsets_s @ last) / squares
            strayed = last - last.mean() - rise * offsets_s
            beyond_noise = rise > _ERRORS * noise / math.sqrt(squares)
            variance = float(strayed @ strayed) / (length - 2)
            if beyond_noise and variance <= _variance_of_step(last):
                at_s = float(times_s[-1])
                return Trend(
                    at_s=at_s,
                    rate_per_s=float(last.mean()) + rise * (at_s - float(last_s.mean())),
                    rise=rise,
                    seen_s=at_s - float(times_s[-length - 1]),
                )
        return None


def _rate_deviation(times_s: FloatArray, rows: FloatArray) -> float:
    """Return the standard deviation of an interval's rate, from sums of intervals.

    Deviations may last longer than an interval; then those of several together tell.
    """
    noise = 0.0
    for length in _INTERVALS_TOGETHER:
        rates = np.diff(rows[::-length]) / np.diff(times_s[::-length])
        bends = np.abs(np.diff(rates, 2))
        if length == 1 or len(bends) >= _MIN_DIFFERENCES:
            sigma = _MAD_TO_SIGMA * float(np.median(bends)) / math.sqrt(6)
            noise = max(noise, sigma * math.sqrt(length))
    return noise


def _variance_of_step(rates: FloatArray) -> float:
    """Return the variance of rates about the best single step.

    The interval of a step has some of both rates, and counts for neither.
    """
    sums, squares = (np.r_[0.0, np.cumsum(part)] for part in (rates, rates * rates))
    num_rates, steps = len(rates), np.arange(1, len(rates) - 1)
    squares_before = squares[steps] - sums[steps] ** 2 / steps
    squares_after = squares[-1] - squares[steps + 1]
    squares_after = squares_after - (sums[-1] - sums[steps + 1]) ** 2 / (num_rates - steps - 1)
    return max(float((squares_before + squares_after).min()), 0.0) / (num_rates - 4)

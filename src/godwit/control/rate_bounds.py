r"""Bounds of the arrival rate, given noise, from the last periods.

The rate of a period is an estimate with a standard error: the standard deviation of intervals, over
the root of their number.  A number of executors is changed only if every rate that noise leaves
possible asks for it.  One period shows a step in the rate, or a stream with little noise, at once;
several together may show a change that one of them cannot tell from noise, so the last 1, 2, 3, 4,
… periods are tested, and the strictest test counts.

A test that is repeated for an hour is wrong at some time.  So the k-th test since the rate last
changed has an error probability of :math:`\alpha / (k (k + 1))`, divided by the number of lengths,
which sums up to at most :math:`\alpha`, however long a stream runs (sequential tests that spend
their error; Lan and DeMets, "Discrete sequential boundaries for clinical trials", 1983).

The deviation is measured by second differences, so neither a step nor a drift passes for noise.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import NormalDist, median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALPHA = 0.05
"""Probability that noise alone exceeds a bound, on either side, between two changes of the rate."""
_PERIODS = np.array((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))
"""Numbers of last periods that are tested together."""
_MOST = int(_PERIODS[-1])
_NOISY = 0.04
"""Min. standard error of a period's rate for the test.

Below it, the range between too few and too many executors is wider than noise.
"""
_PERIODS_OF_NOISE = 16
_MIN_DIFFERENCES = 4
"""Min. number of second differences of the rate for measuring its deviation."""
_MAD_TO_SIGMA = 1.4826


class RateBounds:
    """Lowest and highest arrival rate that are consistent with the last periods."""

    def __init__(self) -> None:
        # rate in rows a second, and its standard error, of each
        self._periods: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._rates: deque[float] = deque(maxlen=_MOST)
        self._errors: deque[float] = deque(maxlen=_PERIODS_OF_NOISE)  # as shares
        self._num_periods = 0
        self.low, self.high = 0.0, math.inf

    def add(self, rate: float, error: float) -> None:
        """Add a period: its rate in rows a second, and the rate's standard error as a share."""
        self._rates.append(rate)
        error = max(rate * error, _deviation_from_trend(self._rates))
        self._errors.append(error / rate if rate > 0 else 0.0)
        self._periods.append((rate, error))
        self._num_periods += 1
        self._update_bounds()
        if self.low > self.high:  # the last periods and those before had different rates
            self._periods = deque([(rate, error)], maxlen=_MOST)
            self._num_periods = 1
            self._update_bounds()

    @property
    def noisy(self) -> bool:
        """True if a period's rate is so uncertain that it needs the test."""
        return median(self._errors) > _NOISY

    def _update_bounds(self) -> None:
        """Update the bounds of the rate from the last periods."""
        share = _ALPHA / len(_PERIODS) / (self._num_periods * (self._num_periods + 1))
        quantile = NormalDist().inv_cdf(1 - share)
        rates, error = np.array(self._periods)[::-1].T
        counts = _PERIODS[len(rates) >= _PERIODS]
        mean = np.cumsum(rates)[counts - 1] / counts
        margin = quantile * np.sqrt(np.cumsum(error**2)[counts - 1]) / counts
        self.low = max(0.0, float((mean - margin).max()))
        self.high = float((mean + margin).min())


def _deviation_from_trend(rates: Iterable[float]) -> float:
    """Return the standard deviation of periods' rates from a constant or linear trend.

    0 if they are too few to tell.
    """
    series = list(rates)
    bends = [abs(a - 2 * b + c) for a, b, c in zip(series, series[1:], series[2:], strict=False)]
    return _MAD_TO_SIGMA * median(bends) / math.sqrt(6) if len(bends) >= _MIN_DIFFERENCES else 0.0

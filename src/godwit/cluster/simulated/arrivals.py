"""When rows arrive: a cumulative curve, known before the run.

Problem: runs under two policies can only be compared if the same rows arrive at the same times,
however long epochs take; and delays are exact only if every row's arrival is known.

Invariant: the curve depends on the workload and the seed alone.  Row number *r* (from 0) arrives
where the curve passes *r*; between points of its grid it is a straight line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray

__all__ = ["Arrivals", "Rate", "Surge"]

_GRID_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The rate is `factor` times the usual from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many rows arrive.

    Attributes
    ----------
    rows_per_s
        The usual rate.
    surges
        Times at which it is another one; where they overlap, their factors multiply.
    noise
        Share by which the rate strays, up or down, evenly and anew in every `noise_s`.
    noise_s
        How long one such deviation lasts.
    """

    rows_per_s: float
    surges: tuple[Surge, ...] = ()
    noise: float = 0.0
    noise_s: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rows_per_s >= 0 and 0 <= self.noise <= 1 and self.noise_s > 0):
            raise InvalidProblemError(
                f"A rate of {self.rows_per_s} rows per second with noise {self.noise} is wrong.",
                remedy="Give a rate that is not negative, and noise between 0 and 1.",
                field="rate",
            )

    def at(self, times_s: FloatArray) -> FloatArray:
        """Rows per second at some times, without the noise."""
        rate = np.full(len(times_s), self.rows_per_s, np.float64)
        for surge in self.surges:
            rate[(times_s >= surge.start_s) & (times_s < surge.end_s)] *= surge.factor
        return rate


class Arrivals:
    """The cumulative curve of arrivals over one run.

    Parameters
    ----------
    rate
        How many rows arrive.
    duration_s
        Until when; none arrive later.
    rng
        Draws the noise.
    """

    def __init__(self, rate: Rate, duration_s: float, rng: np.random.Generator) -> None:
        steps = max(1, round(duration_s / _GRID_S))
        self._times: FloatArray = np.linspace(0.0, duration_s, steps + 1)
        width = duration_s / steps
        periods = int(duration_s / rate.noise_s) + 1
        stray = 1 + rate.noise * rng.uniform(-1, 1, periods)
        within = (self._times[:-1] / rate.noise_s).astype(np.int64).clip(max=periods - 1)
        per_step = rate.at(self._times[:-1] + width / 2) * stray[within] * width
        self._rows: FloatArray = np.concatenate(([0.0], np.cumsum(per_step)))

    def until(self, time_s: float) -> int:
        """How many rows have arrived by `time_s`."""
        return int(np.interp(time_s, self._times, self._rows) + 1e-9)

    @property
    def total(self) -> int:
        """How many rows arrive in all."""
        return int(self._rows[-1] + 1e-9)

    def time_of(self, row: float) -> float:
        """When as many as `row` rows have arrived."""
        return float(np.interp(row, self._rows, self._times))

    def pieces(self, first: int, last: int) -> FloatArray:
        """Shape ``(n, 3)``: rows ``first <= r < last`` as (count, from, to) of even arrival.

        Cut where the curve bends, so within a piece rows arrive at equal distances.
        """
        if last <= first:
            return np.empty((0, 3))
        bends = self._rows[(self._rows > first) & (self._rows < last)]
        rows = np.concatenate(([first], np.unique(bends), [last]))
        times = np.interp(rows, self._rows, self._times)
        return np.column_stack((np.diff(rows), times[:-1], times[1:]))

"""How many rows reach the sources a second, and whether that has just risen by a step.

Problem: what a stream takes says what it can do, not what is needed of it (Kalavri et al., "Three
steps is all you need", 2018); and a period that ends on schedule sees a step late, or only in part.

The idea: all rows that have ever arrived are those that were taken and those that sources hold
back, at the moments at which they say so: a curve whose slope is the rate, however long epochs
take.  Sources that do not say are taken to hold nothing back when an epoch begins.  A step is two
intervals in a row that both rose above the usual by more than noise explains; noise is what the
intervals before them differ by.

Invariant: input that strays by a tenth, up or down, is no step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray

__all__ = ["Arrivals"]

_KEPT = 40
_STEP = 2
"""Intervals in a row that a step takes."""
_USUAL = 4
"""Intervals before them that say what is usual, at least; and four times as many at most."""
_LEAST_STEP = np.log(1.5)
_ERRORS = 4.0
_MAD_TO_SIGMA = 1.4826
_RATE_FLOOR = 1e-9


class Arrivals:
    """The cumulative curve of arrivals at the sources, point by point."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._rows: list[float] = []
        self._taken, self._told = 0.0, False

    def note(self, rows: int, at_s: float, backlog_rows: int | None) -> None:
        """Take note of an epoch that took `rows` rows.

        rows: What it took.
        at_s, backlog_rows: When sources had so many rows beside those; ``None``: they do not say.
        """
        self._taken += rows
        if backlog_rows is None and self._told:
            return  # what they hold back is not known now
        if backlog_rows is not None and not self._told:
            self._told = True
            self._times_s.clear()
            self._rows.clear()
        if self._times_s and at_s <= self._times_s[-1]:
            self._times_s.pop()
            self._rows.pop()
        self._times_s.append(at_s)
        self._rows.append(self._taken + (backlog_rows or 0))

    def rate_since(self, since_s: float) -> float | None:
        """Rows a second from the last point before a time on; the last interval counts always.

        ``None`` where nothing tells: what the first epoch of a run takes has been lying there for
        nobody knows how long.
        """
        times, rows = self._times_s, self._rows
        if len(times) < 2:
            return None
        first = int(np.searchsorted(times, min(since_s, times[-1])))
        base = max(first - 1, 0)
        return max(0.0, (rows[-1] - rows[base]) / (times[-1] - times[base]))

    @property
    def step_s(self) -> float | None:
        """When a step up began, if the last intervals show one."""
        rates = self._rates(4 * _USUAL + _STEP)
        usual = np.log(rates[:-_STEP])
        if len(usual) < _USUAL:
            return None
        middle = float(np.median(usual))
        noise = _MAD_TO_SIGMA * float(np.median(np.abs(usual - middle)))
        above = np.log(rates[-_STEP:]) - middle
        if (above <= max(_LEAST_STEP, _ERRORS * noise)).any():
            return None
        return self._times_s[-_STEP]

    def _rates(self, count: int) -> FloatArray:
        """Rows a second of each of the last intervals between two points."""
        rows, times_s = self._rows[-count - 1 :], self._times_s[-count - 1 :]
        rates: FloatArray = np.diff(rows) / np.diff(times_s)
        return rates.clip(min=_RATE_FLOOR)

    def forget(self) -> None:
        """Forget what is long past; after a step, all before it, since that is usual no more."""
        kept = _KEPT if self.step_s is None else _STEP + 1
        del self._times_s[:-kept], self._rows[:-kept]

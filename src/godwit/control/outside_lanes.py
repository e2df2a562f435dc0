r"""Time of epochs outside the lanes: a fixed part, and a part that grows with the rows.

A sink, the driver or a map may take time for every row, which no number of executors shortens.
Such a part must not pass for a fixed one: if rows that came in an interval take a share
:math:`\sigma` of it outside the lanes and :math:`\rho` in the busiest ones, an epoch takes
:math:`T = F / (1 - \rho - \sigma)`, so a little less :math:`\rho` shortens it by much.

The time per row is the slope of a line through recent epochs, with an intercept for every number of
executors.  Without a trigger, an epoch has the rows that came during the one before, so whatever
makes epochs slow for a while looks like a time per row: the slope is believed only where epochs
differ much in rows, and beside two terms for the first epochs of a run, which become quicker.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_WINDOW_EPOCHS = 64
"""Max. number of recent epochs for the regression line."""
_WARMING = np.array([4.0, 16.0])
"""Number of epochs within which the first epochs of a run speed up."""
_SPARE_EPOCHS = 2
"""Min. number of epochs beyond those that a line needs."""
_RECENT_EPOCHS = 8
"""Recent epochs whose time outside the lanes bounds that of their rows."""
_MIN_ROWS_RATIO = 1.8
"""Min. ratio of rows in large and small epochs among those that are compared."""
_MIN_APART = 3
"""Max. number of outliers, above and below, that the ratio ignores: a tenth of the epochs at most.

A step of the load is answered after few epochs, which are long under overload.
"""
_MIN_SLOPE_SIGMAS = 6.0
"""Min. slope, in its standard errors."""
_OUTLIER_DISTANCES = 4.0
"""Distance from the line, in median distances, above which an epoch is ignored."""
_MIN_GROWING_SHARE = 0.1
"""Min. share of the time outside the lanes that grows with the rows."""


class _Epoch(NamedTuple):
    number: int  # since the run began
    executors: int
    rows: int
    outside_s: float


class OutsideLanes:
    """Seconds that a source row takes outside the lanes, estimated from epochs."""

    def __init__(self) -> None:
        self._epochs: deque[_Epoch] = deque(maxlen=_WINDOW_EPOCHS)
        self._count = 0
        self.per_row_s = 0.0
        """Seconds of a row outside the lanes; 0 until epochs show otherwise."""

    def add(self, *, executors: int, rows: int, outside_s: float) -> None:
        """Add an epoch: number of executors, source rows, seconds outside the busiest lanes."""
        self._epochs.append(_Epoch(self._count, executors, rows, max(outside_s, 0.0)))
        self._count += 1

    def update(self) -> float:
        """Fit the line again, and return the seconds per row."""
        if not self._epochs:
            return self.per_row_s
        rows = sorted(epoch.rows for epoch in self._epochs)
        few = min(len(rows) // 10, _MIN_APART)
        low, high = rows[few], rows[-1 - few]
        if high >= _MIN_ROWS_RATIO * max(low, 1):
            slope = _certain_slope(self._epochs)
            if slope * sum(rows) >= _MIN_GROWING_SHARE * sum(
                epoch.outside_s for epoch in self._epochs
            ):
                self.per_row_s = slope
        # What all of it takes bounds what the rows take: a sink may have become quicker.
        recent = list(self._epochs)[-_RECENT_EPOCHS:]
        recent_rows = sum(epoch.rows for epoch in recent)
        if recent_rows:
            bound = sum(epoch.outside_s for epoch in recent) / recent_rows
            self.per_row_s = min(self.per_row_s, bound)
        return self.per_row_s


def _certain_slope(epochs: Sequence[_Epoch]) -> float:
    """Return the seconds per row by a line of each number of executors; 0 if they may be noise."""
    number, executors, rows, outside_s = (
        np.array(column, np.float64) for column in zip(*epochs, strict=True)
    )
    intercepts = executors[:, None] == np.unique(executors)
    warming = np.exp(-number[:, None] / _WARMING)
    terms = np.column_stack((rows / rows.mean(), intercepts, warming))
    counts = np.ones(len(rows), np.bool_)
    for last in (False, True):
        x, y = terms[counts], outside_s[counts]
        inverse = np.linalg.pinv(x.T @ x)
        line = inverse @ (x.T @ y)
        distance = np.abs(y - x @ line)
        free = len(y) - np.linalg.matrix_rank(x)
        if free < _SPARE_EPOCHS:
            return 0.0
        if last:
            error = math.sqrt(float(distance @ distance) / free * max(float(inverse[0, 0]), 0.0))
            return float(line[0] / rows.mean()) if line[0] > _MIN_SLOPE_SIGMAS * error else 0.0
        near = distance <= _OUTLIER_DISTANCES * float(np.median(distance))
        if near.sum() >= len(near) / 2:
            counts[np.flatnonzero(counts)[~near]] = False
    return 0.0

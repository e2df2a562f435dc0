"""Trend of the backlog of sources: falling, still growing, or permanent.

A backlog is worked off, or still grows, if it has a trend beyond its own noise: the slope of a line
through its last periods, for parts of several lengths, since a backlog that grew before it fell has
no slope as a whole.  Only a stream whose noise would not hide a fall of a twentieth a period lags
permanently, which needs more periods the noisier it is; who falls by less is not told from it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray

_FEWEST_BACKLOGS = 6
"""Number of consecutive periods with a backlog after which its noise is known."""
_MOST_BACKLOGS = 16
"""Number of periods that are tested for a trend."""
_SHORTEST_TREND = 4
"""Number of periods of the shortest trend."""
_STUDENT = (
    2.919986, 2.353363, 2.131847, 2.015048, 1.943180, 1.894579, 1.859548,
    1.833113, 1.812461, 1.795885, 1.782288, 1.770933, 1.761310,
)  # fmt: skip
"""95 % quantiles of Student's t, for parts of `_SHORTEST_TREND` to `_MOST_BACKLOGS` periods.

A line takes two degrees of freedom. SciPy, which has the quantiles, is an extra.
"""
_MATERIAL_SLOPE = 0.05
"""Fall of a backlog per period, as a share, that must be detected."""
_UNCHANGED_FACTOR = 1.1
"""Factor within which a backlog counts as constant if its noise is unknown."""


class BacklogTrend:
    """Backlog of the last periods under one number of executors, and its trend."""

    def __init__(self) -> None:
        self._last_backlog, self._executors = 0, 0
        self._rows: deque[int] = deque(maxlen=_MOST_BACKLOGS)  # of periods in a row that lagged

    def is_changing(self, rows: int, executors: int, *, behind: bool) -> bool:
        """Add a period's backlog; return whether it falls, or still grows.

        `behind`: it is more than an epoch takes anyway; otherwise it counts as worked off.
        """
        if executors != self._executors or not behind:
            self._rows.clear()
        earlier = [*self._rows] or [self._last_backlog]
        self._last_backlog, self._executors = rows, executors
        if not behind:
            return False
        self._rows.append(rows)
        if len(self._rows) < _FEWEST_BACKLOGS:
            # Too few to know their noise: one that stays within a tenth does not change.
            return not max(earlier) <= rows <= _UNCHANGED_FACTOR * min(earlier)
        return _has_trend(np.array(self._rows, np.float64))


def _has_trend(series: FloatArray) -> bool:
    """Return whether a series rises or falls at its end by more than noise, or may do so.

    It may where noise would hide `_MATERIAL_SLOPE`, as long as more values are to come.
    """
    shown = len(series) >= _MOST_BACKLOGS
    for count in range(_SHORTEST_TREND, len(series) + 1):
        part = series[-count:]
        offsets = np.arange(count) - (count - 1) / 2
        squares = float(offsets @ offsets)
        slope = float(offsets @ part) / squares
        strayed = part - part.mean() - slope * offsets
        error = math.sqrt(float(strayed @ strayed) / (count - 2) / squares)
        hidden = _STUDENT[count - _SHORTEST_TREND] * error
        if abs(slope) > hidden + 1e-9 * float(part.mean()):
            return True
        shown = shown or hidden <= _MATERIAL_SLOPE * float(part.mean())
    return not shown

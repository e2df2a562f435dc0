"""Rows of an epoch at most, so that epochs of an overloaded stream do not grow without end.

Problem: an epoch takes what has come while the one before ran.  Where rows come three times as fast
as they are processed, each epoch takes three times as long as the last; and since an epoch runs
under one assignment, executors that come meanwhile are of no use until it has ended.  Three such
epochs after a step, a stream stands still for minutes with idle executors beside it.

The rule: an epoch takes no more rows than were processed of late in a set time.  What is beyond
waits at the source, where the controller sees it as a backlog.  Throughput is that of the last
epoch that lasted at least a quarter of that time, in which its fixed part is small, or that the
limit itself cut short.  So an epoch that was cut and went quickly (executors have come) raises the
limit at once, and a stream that keeps up is never limited.
"""

from __future__ import annotations

import math

_TELLING = 0.25
"""Share of the longest time from which on an epoch tells of the throughput."""
_CUT = 0.9
"""Share of the limit from which on an epoch was cut short by it: sources keep to it roughly."""
_LEAST = 0.25
"""An odd epoch, such as one that was repeated after a loss, lowers the limit to this share."""


class RowLimit:
    """Limit on the rows of an epoch, from what epochs took."""

    def __init__(self, longest_s: float) -> None:  # that an epoch is to last
        self._longest_s = longest_s
        self.rows: int | None = None
        """The limit; ``None`` until an epoch was long enough to tell."""
        self.cut = False
        """True if the limit cut the last epoch short: the next one need not wait for a trigger."""

    def record_epoch(self, rows: int | None, took_s: float) -> None:
        """Adjust the limit after an epoch of `rows` rows (``None``: unknown) that took `took_s`."""
        self.cut = self.rows is not None and (rows or 0) >= _CUT * self.rows
        if not rows or took_s <= 0:
            return
        if not self.cut and took_s < _TELLING * self._longest_s:
            return
        limit = rows * self._longest_s / took_s
        if self.rows is not None:
            limit = max(limit, _LEAST * self.rows)
        self.rows = max(1, math.ceil(limit))

    def per_source(self, sources: int) -> int | None:
        """Return the limit of rows for each of `sources` sources; ``None``: no limit."""
        return None if self.rows is None else max(1, self.rows // max(sources, 1))

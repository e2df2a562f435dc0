"""Limit on the rows of an epoch, so that epochs of an overloaded stream do not grow without end.

Problem: an epoch takes the rows that arrived during the previous one.  If rows arrive three times
as fast as they are processed, each epoch takes three times as long as the last; and since an epoch
runs under one assignment, new executors stay idle until it has ended.  A few epochs after a step of
the load, the stream stands still for minutes beside idle executors.

Rule: an epoch takes no more rows than are processed in a set time, apart from the fixed part of an
epoch, which does not depend on its rows.  Other rows wait at the source, where the controller sees
them as backlog.  The time per row is that of the last epoch that lasted at least a quarter of the
set time, or was cut by the limit.  So an epoch that was cut and ran quickly (executors have joined)
raises the limit at once, and a stream that keeps up is never limited.

The fixed part is estimated from two recent epochs of different sizes.  Fewer rows do not shorten
it: if it is more than half of the set time, epochs may last twice as long as the fixed part, since
they would process hardly any rows otherwise.

An epoch under another assignment takes another time for a row: the busiest lanes' time of the last
epoch is known by key group, so it is known how long its rows would take under the assignment of the
next one.  The limit is changed by as much at once, up or down: executors that have just got their
key groups would otherwise be idle for most of an epoch, which is cut by what fewer could do.  While
as many executors are to join as there are, or have no key groups yet, epochs get half of the rows:
an epoch takes place where it began, and what few executors do meanwhile is little beside what all
of them do as soon as it has ended.

Several sources share the limit: each may give an even share, or its share of the last epoch, if
that is more.  So a busy source among idle ones soon has the whole limit; and when others become
busy too, one or two epochs are too long, at most twice.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.engine.policies import PlacementChange

_TELLING = 0.25
"""Minimum share of the set time for an epoch to measure the throughput."""
_TO_SPARE = 0.5
"""Maximum share of the set time for an epoch that was not cut to leave the limit as it is.

A longer one shows that rows take longer than before, such as on a slow executor: under the former
limit the next epoch would take several times the set time.
"""
_CUT = 0.9
"""Minimum share of the limit for an epoch to count as cut: sources keep the limit roughly."""
_LEAST, _MOST = 0.25, 4.0
"""Minimum and maximum factor by which one odd epoch, such as a retried one, changes the limit."""
_APART = 1.8
"""Minimum ratio of the rows of two epochs to estimate the fixed part."""
_FEW = 8
"""Rows up to which a larger epoch measures better than a smaller one."""
_SUSPECT = 0.5
"""Minimum share of the set time for a cut epoch to be suspected to be mostly its fixed part."""
_REMEMBERED = 32
"""Cut epochs for which an estimate of the fixed part stays valid."""
_COMPARED = 4
"""Recent epochs that are compared to estimate the fixed part."""
_ODD = 0.25
"""Tolerance of the estimate of the fixed part, as a share of an epoch."""
_SHORT = 0.5
"""Factor on the limit while many executors are to join or get their key groups."""
_MOST_SHORT = 8
"""Number of such epochs in a row, should they not come."""
_LITTLE = 0.25
"""Maximum share of the set time for the fixed part of such an epoch: it would be most of it."""
_PER_ROW = 0.1
"""Minimum share of an epoch for its rows, for any estimate of the fixed part."""


def longest_epoch_s(limited_s: float, fixed_s: float) -> float:
    """Return the maximum duration, in seconds, of epochs limited to `limited_s`.

    `fixed_s`: fixed part of an epoch, in seconds.
    """
    return max(limited_s, 2 * fixed_s)


class RowLimit:
    """Limit on the rows of an epoch, from the durations of epochs."""

    def __init__(self, longest_s: float) -> None:  # set time of an epoch
        self._longest_s = longest_s
        self.applies = math.isfinite(longest_s)
        """True if a time is set, without which no limit is measured."""
        self._shares: Mapping[str, float] = {}  # source → its share of the last epoch's rows
        self._fixed_s = 0.0  # of an epoch
        self._measured: tuple[int, float] | None = None  # limit by the last epoch, and its time
        # whether the next epoch has another assignment, and whether many executors are to join
        self._moved = self._awaits_many = False
        self._short = 0  # epochs in a row with fewer rows because many are to join
        self._since_estimate = _REMEMBERED  # cut epochs since the last estimate
        # rows and time of the last epochs with rows
        self._recent: deque[tuple[int, float]] = deque(maxlen=_COMPARED)
        self.rows: int | None = None
        """The limit; ``None`` until an epoch was long enough to measure."""
        self.cut = False
        """True if the limit cut the last epoch: the next one need not wait for a trigger."""

    def record_epoch(self, rows_of: Mapping[str, int | None], took_s: float) -> None:
        """Adjust the limit after an epoch that took `took_s`.

        `rows_of`: every source → its rows in that epoch; ``None``: unknown.
        """
        counts = {source: count for source, count in rows_of.items() if count is not None}
        limits = self.per_source(rows_of) or {}
        self.cut = any(counts.get(source, 0) >= _CUT * most for source, most in limits.items())
        rows = sum(counts.values())
        if not rows or len(counts) < len(rows_of) or took_s <= 0 or not self.applies:
            return
        self._shares = {source: count / rows for source, count in counts.items()}
        if self._moved:
            self._recent.clear()  # more rows in the same time tell nothing of its fixed part then
        self._learn_fixed(rows, took_s)
        if self.cut or took_s >= _TELLING * self._longest_s:
            self.rows = max(1, math.ceil(self._next_limit(rows, took_s)))
        self._measured = None if self.rows is None else (self.rows, took_s)
        self._short = self._short + 1 if self._awaits_many else 0
        self._moved = self._awaits_many = False

    def adapt(self, change: PlacementChange) -> None:
        """Adapt the limit to what the next epoch will have; of several calls the last counts."""
        self._moved, self._awaits_many = change.lanes_s > 0, change.awaits_many
        if self._measured is None:
            return
        rows, took_s = self._measured
        rows_s = max(took_s - self._fixed_s, _PER_ROW * took_s)
        faster = rows_s / max(rows_s - change.lanes_s + change.next_s, rows_s / _MOST)
        short = change.awaits_many and self._short < _MOST_SHORT
        if short and self._fixed_s <= _LITTLE * self._longest_s:
            faster = min(faster, _SHORT)
        self.rows = max(1, math.ceil(rows * max(faster, _LEAST)))

    def _next_limit(self, rows: int, took_s: float) -> float:
        """Return the limit after an epoch that measures the time per row."""
        fixed_s = self._fixed_s
        longest_s = longest_epoch_s(self._longest_s, fixed_s)
        per_row_s = max(took_s - fixed_s, _PER_ROW * took_s) / rows
        most = 2 if took_s > self._longest_s else _MOST
        # If one of several sources used its share, the others have left some of the limit.
        counted = max(rows, self.rows or 0 if self.cut else 0)
        limit = min((longest_s - fixed_s) / per_row_s, most * counted)
        self._since_estimate += self.cut
        if self._since_estimate > _REMEMBERED and took_s > _SUSPECT * self._longest_s:
            # A smaller epoch gives an estimate if it is shorter; for few rows, a larger one does.
            limit = min(limit, rows / 2) if rows > _FEW else _MOST * rows
        if self.rows is None:
            return limit
        has_time = not self.cut and took_s <= _TO_SPARE * longest_s
        return max(limit, (1 if has_time else _LEAST) * self.rows)

    def _learn_fixed(self, rows: int, took_s: float) -> None:
        """Estimate the fixed part of an epoch, if this one and a recent one differ much in rows.

        Only recent epochs count: earlier ones may have run on other executors.
        """
        self._fixed_s = min(self._fixed_s, took_s)
        rows_before, before_s = max(
            self._recent,
            key=lambda epoch: max(rows, epoch[0]) / min(rows, epoch[0]),
            default=(rows, took_s),
        )
        self._recent.append((rows, took_s))
        if max(rows, rows_before) < _APART * min(rows, rows_before):
            return
        per_row_s = (took_s - before_s) / (rows - rows_before)
        least_s, fixed_s = min(took_s, before_s), took_s - per_row_s * rows
        # Implausible estimates: an epoch was delayed, or executors joined or left.
        if -_ODD * least_s <= fixed_s <= (1 + _ODD) * least_s:
            estimate_s = min(max(fixed_s, 0.0), least_s)
            has_estimate = self._since_estimate < _REMEMBERED
            self._fixed_s = (self._fixed_s + estimate_s) / 2 if has_estimate else estimate_s
            self._since_estimate = 0

    def per_source(self, sources: Collection[str]) -> dict[str, int] | None:
        """Return the limit of rows of each of `sources`; ``None``: no limit."""
        if self.rows is None:
            return None
        even = 1 / max(len(sources), 1)
        shares = {source: max(self._shares.get(source, 0.0), even) for source in sources}
        return {source: max(1, int(share * self.rows)) for source, share in shares.items()}

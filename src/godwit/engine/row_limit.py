"""Rows of an epoch at most, so that epochs of an overloaded stream do not grow without end.

Problem: an epoch takes what has come while the one before ran.  Where rows come three times as fast
as they are processed, each epoch takes three times as long as the last; and since an epoch runs
under one assignment, executors that come meanwhile are of no use until it has ended.  Three such
epochs after a step, a stream stands still for minutes with idle executors beside it.

The rule: an epoch takes no more rows than are processed in a set time, beside the part of an epoch
that takes as long whatever is in it.  What is beyond waits at the source, where the controller sees
it as a backlog.  How long a row takes is that of the last epoch that lasted at least a quarter of
that time, or that the limit itself cut short.  So an epoch that was cut and went quickly (executors
have come) raises the limit at once, and a stream that keeps up is never limited.

The fixed part is told from two of the last epochs of different sizes.  Fewer rows do not make it
shorter: where it is more than half of the set time, epochs may last twice as long as it does, or
they would do nothing but that.

Several sources share the limit: each may give an even share, or the share that it had in the last
epoch, if that is more.  So a busy source among idle ones soon has all of it; and where others
become busy too, one epoch or two are longer than they should be, at most twice as long.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TELLING = 0.25
"""Share of the longest time from which on an epoch tells of the throughput."""
_CUT = 0.9
"""Share of the limit from which on an epoch was cut short by it: sources keep to it roughly."""
_LEAST, _MOST = 0.25, 4.0
"""An odd epoch, such as one that was repeated after a loss, changes the limit by so much."""
_APART = 1.8
"""Factor by which the rows of two epochs differ, at least, that tell the fixed part."""
_FEW = 8
"""Rows up to which a larger epoch tells more than a smaller one."""
_SUSPECT = 0.5
"""Share of the longest time from which on an epoch that was cut may consist of its fixed part."""
_REMEMBERED = 32
"""Epochs, cut by the limit, for which the fixed part is taken to be what it was."""
_COMPARED = 4
"""Epochs with one of which the next is compared to tell the fixed part."""
_ODD = 0.25
"""By how much the fixed part may be estimated too low or too high, as a share of an epoch."""
_PER_ROW = 0.1
"""Share of an epoch that is for its rows, at least, whatever is taken to be the fixed part."""


def longest_epoch_s(limited_s: float, fixed_s: float) -> float:
    """Return the seconds that epochs last at most that are limited to `limited_s`.

    `fixed_s`: seconds that they take whatever is in them.
    """
    return max(limited_s, 2 * fixed_s)


class RowLimit:
    """Limit on the rows of an epoch, from what epochs took."""

    def __init__(self, longest_s: float) -> None:  # that an epoch is to last
        self._longest_s = longest_s
        self._shares: Mapping[str, float] = {}  # source → its share of the last epoch's rows
        self._fixed_s = 0.0  # of an epoch
        self._untold = _REMEMBERED  # epochs that were cut since something told it
        # rows and time of the last epochs with rows
        self._recent: deque[tuple[int, float]] = deque(maxlen=_COMPARED)
        self.rows: int | None = None
        """The limit; ``None`` until an epoch was long enough to tell."""
        self.cut = False
        """True if the limit cut the last epoch short: the next one need not wait for a trigger."""

    def record_epoch(self, rows_of: Mapping[str, int | None], took_s: float) -> None:
        """Adjust the limit after an epoch that took `took_s`.

        `rows_of`: every source → its rows in that epoch; ``None``: not known.
        """
        counts = {source: count for source, count in rows_of.items() if count is not None}
        limits = self.per_source(rows_of) or {}
        self.cut = any(counts.get(source, 0) >= _CUT * most for source, most in limits.items())
        rows = sum(counts.values())
        if not rows or len(counts) < len(rows_of) or took_s <= 0 or math.isinf(self._longest_s):
            return
        self._shares = {source: count / rows for source, count in counts.items()}
        self._learn_fixed(rows, took_s)
        if self.cut or took_s >= _TELLING * self._longest_s:
            self.rows = max(1, math.ceil(self._next_limit(rows, took_s)))

    def _next_limit(self, rows: int, took_s: float) -> float:
        """Return the limit after an epoch that tells how long rows take."""
        fixed_s = self._fixed_s
        longest_s = longest_epoch_s(self._longest_s, fixed_s)
        per_row_s = max(took_s - fixed_s, _PER_ROW * took_s) / rows
        most = 2 if took_s > self._longest_s else _MOST
        # Of a limit that one of several sources has used up, the others have left something.
        counted = max(rows, self.rows or 0 if self.cut else 0)
        limit = min((longest_s - fixed_s) / per_row_s, most * counted)
        self._untold += self.cut
        if self._untold > _REMEMBERED and took_s > _SUSPECT * self._longest_s:
            # A smaller epoch will tell, if it is shorter; of a few rows, a larger one.
            limit = min(limit, rows / 2) if rows > _FEW else _MOST * rows
        if self.rows is None:
            return limit
        has_time = not self.cut and took_s <= longest_s
        return max(limit, (1 if has_time else _LEAST) * self.rows)

    def _learn_fixed(self, rows: int, took_s: float) -> None:
        """Estimate the fixed part of an epoch, if this one and another differ much in their rows.

        The other is one of the last few: earlier ones ran on other executors, perhaps.
        """
        self._fixed_s = min(self._fixed_s, took_s)
        before, before_s = max(
            self._recent,
            key=lambda epoch: max(rows, epoch[0]) / min(rows, epoch[0]),
            default=(rows, took_s),
        )
        self._recent.append((rows, took_s))
        if max(rows, before) < _APART * min(rows, before):
            return
        per_row_s = (took_s - before_s) / (rows - before)
        least_s, fixed_s = min(took_s, before_s), took_s - per_row_s * rows
        # Far from what can be, one was held up, or executors have come or gone.
        if -_ODD * least_s <= fixed_s <= (1 + _ODD) * least_s:
            told_s = min(max(fixed_s, 0.0), least_s)
            known = self._untold < _REMEMBERED
            self._fixed_s = (self._fixed_s + told_s) / 2 if known else told_s
            self._untold = 0

    def per_source(self, sources: Collection[str]) -> dict[str, int] | None:
        """Return the limit of rows of each of `sources`; ``None``: no limit."""
        if self.rows is None:
            return None
        even = 1 / max(len(sources), 1)
        shares = {source: max(self._shares.get(source, 0.0), even) for source in sources}
        return {source: max(1, int(share * self.rows)) for source, share in shares.items()}

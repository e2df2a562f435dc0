"""Traffic from key group to key group, as far as it is worth knowing.

The problem: between two components of m key groups there may be m² pairs, and where an operator
sends to all key groups alike, which is the rule, none of them says anything.  What a planner can
use is the other case: a key group that sends most of its rows to one, or to a few.

The invariant: of each sender at most eight pairs are kept, those that get an eighth of its rows or
more; what it sends to all others is one number.  So there are never more than nine entries for a
key group, and sums over lanes and epochs lose nothing but which of the others it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NO_PAIRS", "OTHERS", "KeyGroupPairs"]

OTHERS: Final = -1
"""Stands for all targets that have no entry of their own."""

_SHARE: Final = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyGroupPairs:
    """Rows from key groups of one component to key groups of another.

    Shape ``(n,)`` each, ordered by source and target, each pair once.
    """

    source: npt.NDArray[np.int64]  # key group that sends
    target: npt.NDArray[np.int64]  # key group that receives, or `OTHERS`
    rows: npt.NDArray[np.float64]  # rows, or an estimate of them

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def counted(
        cls,
        source: npt.NDArray[np.integer],
        target: npt.NDArray[np.integer],
        rows: npt.NDArray[np.float64] | float = 1.0,
    ) -> KeyGroupPairs:
        """Count rows by pair, and keep the pairs that matter.

        `source`, `target`: shape ``(k,)``: of each row, or of entries to be added up.
        `rows`: shape ``(k,)``: what each stands for.
        """
        if not len(source):
            return NO_PAIRS
        first, width = int(target.min()), int(target.max()) - int(target.min()) + 1
        codes = source.astype(np.int64) * width + (target.astype(np.int64) - first)
        found, inverse = np.unique(codes, return_inverse=True)
        weights = np.broadcast_to(np.asarray(rows, np.float64), codes.shape)
        sums = np.bincount(inverse, weights).astype(np.float64)
        return _frequent(cls(source=found // width, target=found % width + first, rows=sums))

    @classmethod
    def total(cls, parts: Sequence[KeyGroupPairs]) -> KeyGroupPairs:
        """Add up what several lanes, or epochs, have counted."""
        if not parts:
            return NO_PAIRS
        return cls.counted(
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.rows for part in parts]),
        )

    def times(self, factor: float) -> KeyGroupPairs:
        """Return as many rows, by a factor."""
        return KeyGroupPairs(source=self.source, target=self.target, rows=self.rows * factor)

    @property
    def known(self) -> KeyGroupPairs:
        """The pairs alone, without what went to others."""
        of = self.target != OTHERS
        return KeyGroupPairs(source=self.source[of], target=self.target[of], rows=self.rows[of])


def _frequent(pairs: KeyGroupPairs) -> KeyGroupPairs:
    """Let targets that get too little of a source's rows count as others."""
    sent = np.bincount(pairs.source, pairs.rows)
    rare = (pairs.rows < sent[pairs.source] * _SHARE) & (pairs.target != OTHERS)
    if not rare.any():
        return pairs
    rest = rare | (pairs.target == OTHERS)
    others = np.bincount(pairs.source[rest], pairs.rows[rest])
    sources = np.unique(pairs.source[rest])
    source = np.concatenate([pairs.source[~rest], sources])
    target = np.concatenate([pairs.target[~rest], np.full(len(sources), OTHERS, np.int64)])
    rows = np.concatenate([pairs.rows[~rest], others[sources]])
    order = np.lexsort((target, source))
    return KeyGroupPairs(source=source[order], target=target[order], rows=rows[order])


NO_PAIRS: Final = KeyGroupPairs(
    source=np.empty(0, np.int64), target=np.empty(0, np.int64), rows=np.empty(0)
)

"""Matching of rows with equal keys within a range of event time, without a loop over rows.

Rows are sorted by key and moment once; a reach is then a slice, found by binary search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from godwit.operators.ordering import expand_ranges

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """For each of n rows, a range of other rows."""

    order: IntArray  # shape ``(m,)``: the others by key, time, and as they came
    # begins, ends: shape ``(n,)``: those of row i are ``order[begins[i]:ends[i]]``
    begins: IntArray
    ends: IntArray

    @property
    def is_nonempty(self) -> npt.NDArray[np.bool_]:
        """Shape ``(n,)``: true where the range of matching rows is not empty."""
        return self.ends > self.begins

    @property
    def last(self) -> IntArray:
        """Shape ``(n,)``: position of the last row of each range, -1 where the range is empty."""
        last = np.full(len(self.ends), -1, np.int64)
        last[self.is_nonempty] = self.order[self.ends[self.is_nonempty] - 1]
        return last

    def pairs(self) -> tuple[IntArray, IntArray]:
        """Return all matching pairs as two arrays of positions, ordered by row, key and time."""
        row, place = expand_ranges(self.begins, self.ends - self.begins)
        return row, self.order[place]


def within(
    key: IntArray, first: IntArray, last: IntArray, other_key: IntArray, moment: IntArray
) -> Slices:
    """Find, for n rows, the range of other rows of the same key whose time is in an interval.

    Row i matches other rows with ``first[i] <= moment <= last[i]``. `key`, `first`, `last`: shape
    ``(n,)``. `other_key`, `moment`: key and time of the other rows.

    Examples
    --------
    >>> one = np.array
    >>> found = within(one([7, 7]), one([0, 5]), one([9, 6]), one([7, 8, 7]), one([4, 4, 9]))
    >>> [part.tolist() for part in found.pairs()]
    [[0, 0], [0, 2]]
    """
    order = np.lexsort((moment, other_key))
    # Moments become ranks, so that key and rank fit in one integer that can be searched for.
    ranks = np.unique(moment)
    width = len(ranks) + 1
    place = other_key[order] * width + np.searchsorted(ranks, moment[order])
    begins = np.searchsorted(place, key * width + np.searchsorted(ranks, first, side="left"))
    ends = np.searchsorted(place, key * width + np.searchsorted(ranks, last, side="right"))
    return Slices(order=order, begins=begins, ends=np.maximum(begins, ends))

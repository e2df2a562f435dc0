"""A set of 64-bit hashes: open addressing over one array, as operations on whole arrays.

A slot is zero (free) or a hash.  The home of a hash is chosen by a random multiplier, so that
hashes which were chosen to be alike do not share one.  At most half of the slots are used.

Source: linear probing is Knuth, TAOCP vol. 3, §6.4, algorithm L.
"""

from __future__ import annotations

import os
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.int64]
_UInt64Array = npt.NDArray[np.uint64]
_FREE = np.uint64(0)
_BITS = 64
_T = TypeVar("_T", np.int64, np.uint64)


def distinct(numbers: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Return distinct numbers, ascending; faster than `numpy.unique` where most of them are.

    Examples
    --------
    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ascending = np.sort(numbers)
    first: npt.NDArray[_T] = ascending[1:][ascending[1:] != ascending[:-1]]
    return np.concatenate((ascending[:1], first))


class HashSet:
    """Set of hashes. The hash 0 is never in it.

    Examples
    --------
    >>> hashes = HashSet()
    >>> hashes.add(np.array([7, 9]))
    >>> hashes.contains(np.array([7, 8])).tolist()
    [True, False]
    """

    def __init__(self) -> None:
        self._slots: _UInt64Array = np.zeros(1024, np.uint64)
        self._multiplier = np.uint64(int.from_bytes(os.urandom(8), "little") | 1)
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of memory of the set."""
        return self._slots.nbytes

    def values(self) -> _Integers:
        """Return the hashes in the set, in any order."""
        hashes: _Integers = self._slots[self._slots != _FREE].view(np.int64)
        return hashes

    def contains(self, hashes: _Integers) -> npt.NDArray[np.bool_]:
        """Return a mask of the hashes that are in the set."""
        words, mask = hashes.view(np.uint64), np.uint64(len(self._slots) - 1)
        slots, present = self._homes(words), np.zeros(len(words), np.bool_)
        open_ = np.flatnonzero(words != _FREE)
        words, slots = words[open_], slots[open_]
        while open_.size:
            stored = self._slots[slots]
            equal = stored == words
            present[open_[equal]] = True
            on = np.flatnonzero(~equal & (stored != _FREE))
            open_, words, slots = open_[on], words[on], (slots[on] + np.uint64(1)) & mask
        return present

    def add(self, hashes: _Integers) -> None:
        """Add hashes, which may repeat."""
        words = distinct(hashes[~self.contains(hashes)]).view(np.uint64)
        words = words[words != _FREE]
        self._count += len(words)
        if 2 * self._count > len(self._slots):
            words = np.concatenate((self.values().view(np.uint64), words))
            self._slots = np.zeros(1 << (2 * self._count).bit_length(), np.uint64)
        slots, mask = self._homes(words), np.uint64(len(self._slots) - 1)
        while words.size:
            free = self._slots[slots] == _FREE
            self._slots[slots[free]] = words[free]
            # Of several that chose one slot the last is in it; the others go on to the next.
            lost = np.flatnonzero(self._slots[slots] != words)
            words, slots = words[lost], (slots[lost] + np.uint64(1)) & mask

    def _homes(self, words: _UInt64Array) -> _UInt64Array:
        """Return the home slots of hashes."""
        bits = len(self._slots).bit_length() - 1
        return (words * self._multiplier) >> np.uint64(_BITS - bits)

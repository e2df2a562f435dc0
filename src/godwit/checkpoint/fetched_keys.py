"""The keys of a state that a process has fetched from the checkpoint, as their 64-bit hashes.

Open addressing over one array of hashes, where zero is a free slot, and one of ages.  An entry is
valid while its age is that of its key group, so a key group is forgotten by increasing its age,
whatever the number of its entries.  At most half of the slots are used; before more would be, the
valid entries are copied to new arrays.  The home slot of a hash is chosen by a
random multiplier, so that hashes which were chosen to be alike do not share one.

Source: linear probing is Knuth, TAOCP vol. 3, §6.4, algorithm L.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from godwit.model.key_groups import key_groups_of
from godwit.store.compiled import kernel, read_only
from godwit.store.index import distinct

_Integers = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_UInt64Array = npt.NDArray[np.uint64]
_Ages = npt.NDArray[np.uint8]
_FREE, _ONE = np.uint64(0), np.uint64(1)
_BITS = 64
_OLDEST = 255
_MIN_SLOTS = 1024


class FetchedKeys:
    """Hashes of fetched keys. The hash 0 is never remembered.

    Examples
    --------
    >>> fetched = FetchedKeys(2)
    >>> fetched.add(np.array([7, 9, 10]))
    >>> fetched.contains(np.array([7, 8, 10])).tolist()
    [True, False, True]
    >>> fetched.forget(np.array([1]))  # the key group of odd hashes
    >>> fetched.contains(np.array([7, 8, 10])).tolist()
    [False, False, True]
    """

    def __init__(self, num_key_groups: int) -> None:
        self._age = np.zeros(num_key_groups, np.uint8)
        self._multiplier = np.uint64(int.from_bytes(os.urandom(8), "little") | 1)
        self._clear(_MIN_SLOTS)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory."""
        return self._slots.nbytes + self._ages.nbytes

    def contains(self, hashes: _Integers) -> _Mask:
        """Return a mask of the hashes that are remembered."""
        words, ages = hashes.view(np.uint64), self._ages_of(hashes)
        if (search := _search.ready(len(hashes))) is not None:
            ends = np.empty(len(hashes), np.int64)
            search(self._slots, words, self._multiplier, self._home_shift, ends)
            present: _Mask = (self._slots[ends] == words) & (words != _FREE)
            present &= self._ages[ends] == ages
            return present
        present = np.zeros(len(hashes), np.bool_)
        open_ = np.flatnonzero(words != _FREE)
        words, ages = words[open_], ages[open_]
        slots = self._homes(words)
        while open_.size:
            stored = self._slots[slots]
            equal = stored == words
            present[open_[equal]] = self._ages[slots[equal]] == ages[equal]
            on = np.flatnonzero(~equal & (stored != _FREE))
            open_, words, ages = open_[on], words[on], ages[on]
            slots = self._following(slots[on])
        return present

    def add(self, hashes: _Integers) -> None:
        """Remember hashes, which may repeat."""
        if 2 * (self._used + len(hashes)) > len(self._slots):
            hashes = distinct(hashes[~self.contains(hashes)])
        if 2 * (self._used + len(hashes)) > len(self._slots):
            self._rebuild(len(hashes))
        self._place(hashes)

    def forget(self, key_groups: _Integers) -> None:
        """Forget all hashes of key groups."""
        if (self._age[key_groups] == _OLDEST).any():
            self._rebuild(0)
        self._age[key_groups] += 1

    def _rebuild(self, more: int) -> None:
        """Copy the valid entries to arrays with room for more; all ages begin again."""
        hashes = self._slots.view(np.int64)
        used = np.flatnonzero(hashes)
        hashes, ages = hashes[used], self._ages[used]
        hashes = hashes[ages == self._ages_of(hashes)]
        self._age[:] = 0
        # Room for a quarter more: else the next call might do this again.
        self._clear(max(_MIN_SLOTS, 1 << (5 * (len(hashes) + more) // 2).bit_length()))
        self._place(hashes)

    def _clear(self, num_slots: int) -> None:
        """Begin with empty arrays."""
        self._slots: _UInt64Array = np.zeros(num_slots, np.uint64)
        self._ages: _Ages = np.zeros(num_slots, np.uint8)
        self._home_shift = np.uint64(_BITS + 1 - num_slots.bit_length())
        self._used = 0

    def _place(self, hashes: _Integers) -> None:
        """Write hashes into their slots; there is room."""
        hashes = hashes[hashes != 0]
        if (place := _place.ready(len(hashes))) is not None:
            ends = np.empty(len(hashes), np.int64)
            words = hashes.view(np.uint64)
            self._used += place(self._slots, words, self._multiplier, self._home_shift, ends)
            self._ages[ends] = self._ages_of(hashes)
            return
        hashes = distinct(hashes)
        words, ages = hashes.view(np.uint64), self._ages_of(hashes)
        slots = self._homes(words)
        while words.size:
            free = self._slots[slots] == _FREE
            self._slots[slots[free]] = words[free]
            # Of several that chose one slot the last is in it; the others go on to the next.
            placed = self._slots[slots] == words
            self._used += int((placed & free).sum())
            self._ages[slots[placed]] = ages[placed]
            on = np.flatnonzero(~placed)
            words, ages, slots = words[on], ages[on], self._following(slots[on])

    def _ages_of(self, hashes: _Integers) -> _Ages:
        """Return the ages of the key groups of hashes."""
        return self._age[key_groups_of(hashes, len(self._age))]

    def _homes(self, words: _UInt64Array) -> _UInt64Array:
        """Return the home slots of hashes."""
        return (words * self._multiplier) >> self._home_shift

    def _following(self, slots: _UInt64Array) -> _UInt64Array:
        """Return the slots after some."""
        return (slots + _ONE) & np.uint64(len(self._slots) - 1)


_WORDS = read_only("uint64")


@kernel(f"void({_WORDS}, {_WORDS}, uint64, uint64, int64[::1])")
def _search(
    slots: _UInt64Array,
    words: _UInt64Array,
    multiplier: np.uint64,
    shift: np.uint64,
    ends: _Integers,
) -> None:
    """Write the slot of each hash into `ends`, or the free one where its search ends."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(words)):
        place = (words[i] * multiplier) >> shift
        while slots[place] != words[i] and slots[place] != _FREE:
            place = (place + _ONE) & mask
        ends[i] = np.int64(place)


@kernel(f"int64(uint64[::1], {_WORDS}, uint64, uint64, int64[::1])")
def _place(
    slots: _UInt64Array,
    words: _UInt64Array,
    multiplier: np.uint64,
    shift: np.uint64,
    ends: _Integers,
) -> int:
    """Do as `_search`, and write hashes into the free slots; return the number of these."""
    mask, taken = np.uint64(len(slots) - 1), 0
    for i in range(len(words)):
        place = (words[i] * multiplier) >> shift
        while slots[place] != words[i] and slots[place] != _FREE:
            place = (place + _ONE) & mask
        taken += slots[place] == _FREE
        slots[place] = words[i]
        ends[i] = np.int64(place)
    return taken

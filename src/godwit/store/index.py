"""Hash index of rows: open addressing with linear probing over one array of 64-bit slots.

A slot is zero (free) or holds the upper 32 bits of a hash, its *tag*, above a 32-bit row number
plus one, so a probe of eight bytes yields both a comparison of hashes and the row.  The upper bits
of the tag are the hash's home, so a larger index is built from the slots alone.  Its entries have
the same order, so it can be built in steps, from the first home slot to the last (`SplitIndex`).
Slots are never freed: a removed key keeps its slot and its row until the table is rebuilt.  Hence
the invariant that probing relies on: no slot between a hash's home slot and the slot of its row is
free, and a free slot ends the search.

Equal tags do not prove equal keys.  The caller compares the keys, and asks `HashIndex.following`
for the next candidate where they differ; so two keys with one hash both find their rows.

Source: linear probing is Knuth, TAOCP vol. 3, §6.4, algorithm L.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from godwit.store.compiled import kernel, read_only

Rows = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
_T = TypeVar("_T", np.int64, np.uint64)

_TAG_MASK = np.uint64(0xFFFF_FFFF_0000_0000)
_TAGGED = np.uint64(1 << 32)  # slot XOR tag is below this if and only if the tags are equal
_FREE, _ONE = np.uint64(0), np.uint64(1)
_OVERFLOW = 64  # slots in which a free one is searched for at once
_COPIED_SLOTS = 1 << 15  # at a time: they stay in the cache
_STEPS = 4  # slots probed one by one before a search continues by eight
_WINDOW = np.arange(1, 9)[None, :]  # eight slots are one cache line


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


def slots_for(rows: int) -> int:
    """Return the number of slots for up to `rows` rows: a power of two, at most half of them used.

    Examples
    --------
    >>> slots_for(64), slots_for(65)
    (128, 256)
    """
    return max(2, 1 << (2 * rows - 1).bit_length())


def _home_shift(slots: UInt64Array) -> np.uint64:
    """Return by how many bits a hash is shifted to get its home slot in an array."""
    return np.uint64(64 - (len(slots) - 1).bit_length())


class HashIndex:
    """Hash → row numbers, over a given array of slots.

    `slots`: shape ``(S,)``, uint64, S a power of two; zeros where nothing was inserted.  At most
    half of them are used, so that probes stay short and always end at a free slot.
    """

    __slots__ = ("_home_shift", "_mask", "_slots")

    def __init__(self, slots: UInt64Array) -> None:
        self._slots = slots
        self._mask = len(slots) - 1
        self._home_shift = _home_shift(slots)

    @property
    def slots(self) -> tuple[UInt64Array, np.uint64]:
        """The array, and by how many bits a hash is shifted to get its home slot."""
        return self._slots, self._home_shift

    def first(self, hashes: UInt64Array) -> tuple[Rows, Rows]:
        """Find the first row whose key may have each hash (a candidate).

        `hashes`: shape ``(n,)``; with well mixed bits. Returns the rows, shape ``(n,)``, -1
        for none; and the slots, shape ``(n,)``, where the searches ended, free where the row is -1.
        Raises `IndexError` if no slot is free: the array is damaged.
        """
        if (search := _search_first.ready(len(hashes))) is not None:
            rows, ends = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
            if not search(*self.slots, hashes, _FREE, False, rows, ends):
                raise _full_error(self._slots)
            return rows, ends
        ends = (hashes >> self._home_shift).view(np.int64)
        tags = hashes & _TAG_MASK
        slots = self._slots.take(ends)
        words = slots ^ tags
        hit = words < _TAGGED
        rows = words.view(np.int64) - 1
        if hit.all():
            return rows, ends
        rows[~hit] = -1
        passed = np.flatnonzero(~hit & (slots != _FREE))
        if passed.size:
            self._probe(tags, ends, rows, passed)
        return rows, ends

    def following(self, hashes: UInt64Array, ends: Rows) -> tuple[Rows, Rows]:
        """Find the next candidate rows, after slots `ends` whose rows have other keys.

        `hashes`, `ends`: shape ``(n,)``. Returns as `first`.
        """
        ends, rows = ends.copy(), np.full(len(ends), -1, np.int64)
        if (search := _search_following.ready(len(hashes))) is not None:
            if not search(self._slots, hashes, rows, ends):
                raise _full_error(self._slots)
            return rows, ends
        self._probe(hashes & _TAG_MASK, ends, rows, np.arange(len(ends)))
        return rows, ends

    def insert(self, hashes: UInt64Array, rows: Rows, ends: Rows | None = None) -> None:
        """Store hash → row in free slots.

        `hashes`: shape ``(n,)``.
        `rows`: shape ``(n,)``: row numbers that are in no slot yet.
        `ends`: shape ``(n,)``: slot where a search for each hash ended; its home slot if omitted.
        """
        if ends is None:
            ends = (hashes >> self._home_shift).view(np.int64)
        self._place_entries((hashes & _TAG_MASK) | (rows + 1).view(np.uint64), ends)

    def copy_from(self, slots: UInt64Array, first: int = 0, end: int | None = None) -> None:
        """Copy the entries of a smaller index whose home there is in a range, by default all.

        `slots`: its array. Entries that are here already are left out.
        """
        home_shift = _home_shift(slots)
        end = len(slots) if end is None else end
        for begin in range(first, end, _COPIED_SLOTS):
            until = min(begin + _COPIED_SLOTS, end)
            entries = np.concatenate((slots[begin:until], _up_to_free_slot(slots, until)))
            homes = (entries >> home_shift).view(np.int64)
            here = (entries != _FREE) & (homes >= begin) & (homes < until)
            entries = entries[here]
            self._place_entries(entries, (entries >> self._home_shift).view(np.int64))

    def _place_entries(self, entries: UInt64Array, starts: Rows) -> None:
        """Write entries into the first free slots from `starts` on, unless they are before these.

        All entries are written at once and then checked: of several that chose one slot, the last
        one is in it, and the others continue to the next slot.
        """
        slots = self._slots
        if (place := _place.ready(len(entries))) is not None:
            if not place(slots, entries, starts):
                raise _full_error(self._slots)
            return
        while entries.size:
            free = slots.take(starts) == _FREE
            slots[starts[free]] = entries[free]
            lost = np.flatnonzero(slots.take(starts) != entries)
            starts, entries = (starts[lost] + 1) & self._mask, entries[lost]

    def _probe(self, tags: UInt64Array, ends: Rows, rows: Rows, open_: Rows) -> None:
        """Continue the searches at positions `open_`; store results in `ends` and `rows`.

        The next few slots are probed one by one, which ends most searches at half the cost.
        """
        for _ in range(_STEPS):
            if not open_.size:
                return
            next_ = (ends[open_] + 1) & self._mask
            slots = self._slots.take(next_)
            word = slots ^ tags[open_]
            hit = word < _TAGGED
            ends[open_] = next_
            rows[open_] = np.where(hit, word.view(np.int64) - 1, -1)
            open_ = open_[~hit & (slots != _FREE)]
        for _ in range(len(self._slots) // _WINDOW.size + 2):
            window = (ends[open_][:, None] + _WINDOW) & self._mask
            slots = self._slots.take(window)
            words = slots ^ tags[open_][:, None]
            ending = (words < _TAGGED) | (slots == _FREE)
            line, column = np.arange(len(open_)), ending.argmax(axis=1)
            ended = ending[line, column]
            column[~ended] = _WINDOW.size - 1
            ends[open_] = window[line, column]
            word = words[line, column]
            rows[open_] = np.where(word < _TAGGED, word.view(np.int64) - 1, -1)
            open_ = open_[~ended]
            if not open_.size:
                return
        raise _full_error(self._slots)


class SplitIndex:
    """An index while its entries move to a larger one; used as `HashIndex` is.

    Those of hashes whose home in the `smaller` index is below slot `moved` are in the `larger`.
    """

    __slots__ = ("_larger", "_smaller", "_smallest")

    def __init__(self, smaller: UInt64Array, larger: UInt64Array, moved: int) -> None:
        self._smaller, self._larger = HashIndex(smaller), HashIndex(larger)
        self._smallest = np.uint64(moved) << _home_shift(smaller)  # hash of the smaller one

    def first(self, hashes: UInt64Array) -> tuple[Rows, Rows]:
        """Find the first candidates; see `HashIndex.first`."""
        rows, ends = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
        if (search := _search_first.ready(len(hashes))) is not None:
            for index, is_larger in ((self._larger, True), (self._smaller, False)):
                if not search(*index.slots, hashes, self._smallest, is_larger, rows, ends):
                    raise _full_error(index.slots[0])
            return rows, ends
        for index, own in self._parts(hashes):
            rows[own], ends[own] = index.first(hashes[own])
        return rows, ends

    def following(self, hashes: UInt64Array, ends: Rows) -> tuple[Rows, Rows]:
        """Find the next candidates; see `HashIndex.following`."""
        rows, ends = np.empty(len(hashes), np.int64), ends.copy()
        for index, own in self._parts(hashes):
            rows[own], ends[own] = index.following(hashes[own], ends[own])
        return rows, ends

    def insert(self, hashes: UInt64Array, rows: Rows, ends: Rows | None = None) -> None:
        """Store hash → row in free slots; see `HashIndex.insert`."""
        for index, own in self._parts(hashes):
            index.insert(hashes[own], rows[own], None if ends is None else ends[own])

    def _parts(self, hashes: UInt64Array) -> tuple[tuple[HashIndex, Rows], ...]:
        """Return both indexes with the positions of their hashes."""
        smaller = hashes >= self._smallest
        parts = (self._larger, np.flatnonzero(~smaller)), (self._smaller, np.flatnonzero(smaller))
        return tuple((index, own) for index, own in parts if own.size)


def _up_to_free_slot(slots: UInt64Array, start: int) -> UInt64Array:
    """Return the entries from a slot up to the next free one; after the last slot comes the first.

    Raises `IndexError` if no slot is free: the array is damaged.
    """
    parts, size, begin = [], len(slots), start
    while begin < start + size:
        window = slots[begin % size : begin % size + _OVERFLOW]
        free = np.flatnonzero(window == _FREE)
        parts.append(window[: free[0]] if free.size else window)
        if free.size:
            return np.concatenate(parts)
        begin += len(window)
    raise _full_error(slots)


def _full_error(slots: UInt64Array) -> IndexError:
    """Return the error that no slot is free, so that searches do not end."""
    return IndexError(f"All {len(slots)} slots are used; half of them should be free.")


_HASHES = read_only("uint64")
_AT_ONCE = 256  # hashes whose first slots are read before any is compared: memory answers at once


@kernel(f"boolean({_HASHES}, uint64, {_HASHES}, uint64, boolean, int64[::1], int64[::1])")
def _search_first(  # noqa: PLR0917  kernels take no names
    slots: UInt64Array,
    home_shift: np.uint64,
    hashes: UInt64Array,
    bound: np.uint64,
    below: bool,
    rows: Rows,
    ends: Rows,
) -> bool:
    """Search the hashes `below` a bound, or the others, each from its home on.

    Writes `rows` and `ends` as `HashIndex.first` returns them. Returns false if no slot is free.
    """
    mask, searched = np.uint64(len(slots) - 1), np.empty(_AT_ONCE, np.uint64)
    for first in range(0, len(hashes), _AT_ONCE):
        count = 0
        for i in range(first, min(first + _AT_ONCE, len(hashes))):
            # Without a branch: the next one writes again, unless this one is searched.
            searched[count] = i
            count += (hashes[i] < bound) == below
        for i in searched[:count]:
            ends[i] = np.int64(slots[hashes[i] >> home_shift])
        for i in searched[:count]:
            tag, place = hashes[i] & _TAG_MASK, hashes[i] >> home_shift
            slot, probes = np.uint64(ends[i]), 0
            while slot ^ tag >= _TAGGED and slot != _FREE:
                probes += 1
                if probes > len(slots):
                    return False
                place = (place + _ONE) & mask
                slot = slots[place]
            ends[i] = np.int64(place)
            rows[i] = np.int64(slot ^ tag) - 1 if slot ^ tag < _TAGGED else -1
    return True


@kernel(f"boolean({_HASHES}, {_HASHES}, int64[::1], int64[::1])")
def _search_following(slots: UInt64Array, hashes: UInt64Array, rows: Rows, ends: Rows) -> bool:
    """Search each hash after its slot in `ends`; write and return as `_search_first` does."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(hashes)):
        tag, place, probes = hashes[i] & _TAG_MASK, np.uint64(ends[i]), 0
        while True:
            place = (place + _ONE) & mask
            slot = slots[place]
            if slot ^ tag < _TAGGED or slot == _FREE:
                break
            probes += 1
            if probes > len(slots):
                return False
        ends[i] = np.int64(place)
        rows[i] = np.int64(slot ^ tag) - 1 if slot ^ tag < _TAGGED else -1
    return True


@kernel(f"boolean(uint64[::1], {_HASHES}, {read_only('int64')})")
def _place(slots: UInt64Array, entries: UInt64Array, starts: Rows) -> bool:
    """Write each entry to the first free slot from its start on, unless it is before that.

    Returns false if no slot is free.
    """
    mask = np.uint64(len(slots) - 1)
    for i in range(len(entries)):
        place, probes = np.uint64(starts[i]) & mask, 0
        while slots[place] != _FREE and slots[place] != entries[i]:
            probes += 1
            if probes > len(slots):
                return False
            place = (place + _ONE) & mask
        slots[place] = entries[i]
    return True

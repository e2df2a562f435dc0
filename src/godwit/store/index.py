"""Hash index of rows: open addressing with linear probing over one array of 64-bit slots.

A slot is zero (free) or holds the upper 32 bits of a hash, its *tag*, above a 32-bit row number
plus one, so a probe of eight bytes yields both a comparison of hashes and the row.  The upper bits
of the tag are the hash's home, so a larger index is built from the slots alone.
Slots are never freed: a removed key keeps its slot and its row until the table is rebuilt.  Hence
the invariant that probing relies on: no slot between a hash's home slot and the slot of its row is
free, and a free slot ends the search.

Equal tags do not prove equal keys.  The caller compares the keys, and asks `HashIndex.following`
for the next candidate where they differ; so two keys with one hash both find their rows.

Source: linear probing is Knuth, TAOCP vol. 3, §6.4, algorithm L.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_TAG_MASK = np.uint64(0xFFFF_FFFF_0000_0000)
_TAGGED = np.uint64(1 << 32)  # slot XOR tag is below this if and only if the tags are equal
_FREE = np.uint64(0)
_STEPS = 4  # slots probed one by one before a search continues by eight
_WINDOW = np.arange(1, 9)[None, :]  # eight slots are one cache line


def slots_for(rows: int) -> int:
    """Return the number of slots for up to `rows` rows: a power of two, at most half of them used.

    Examples
    --------
    >>> slots_for(64), slots_for(65)
    (128, 256)
    """
    return max(2, 1 << (2 * rows - 1).bit_length())


class HashIndex:
    """Hash → row numbers, over a given array of slots.

    `slots`: shape ``(S,)``, uint64, S a power of two; zeros where nothing was inserted.  At most
    half of them are used, so that probes stay short and always end at a free slot.
    """

    __slots__ = ("_home_shift", "_mask", "_slots")

    def __init__(self, slots: UInt64Array) -> None:
        self._slots = slots
        self._mask = len(slots) - 1
        self._home_shift = np.uint64(64 - self._mask.bit_length())

    def first(self, hashes: UInt64Array) -> tuple[Rows, Rows]:
        """Find the first row whose key may have each hash (a candidate).

        `hashes`: shape ``(n,)``; with well mixed bits. Returns the rows, shape ``(n,)``, -1
        for none; and the slots, shape ``(n,)``, where the searches ended, free where the row is -1.
        Raises `IndexError` if no slot is free: the array is damaged.
        """
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

    def copy_from(self, slots: UInt64Array) -> None:
        """Copy all entries of a smaller index into this empty index; `slots`: its array."""
        entries = slots[slots != _FREE]
        self._place_entries(entries, (entries >> self._home_shift).view(np.int64))

    def _place_entries(self, entries: UInt64Array, starts: Rows) -> None:
        """Write entries into the first free slots from `starts` on.

        All entries are written at once and then checked: of several that chose one slot, the last
        one is in it, and the others continue to the next slot.
        """
        slots = self._slots
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
        raise IndexError(f"All {len(self._slots)} slots are used; half of them should be free.")

"""Index of the rows of blocks by hash: sorted arrays of codes.

A code has the rank of the key group and the upper bits of the hash, together 32 bits, above the
number of a row.  So the entries of a key are found by binary search, and a few other rows whose
hashes share these bits.  Segments mostly have their rows in the order of codes
(`godwit.columns.groups`), so a run of one block takes some 5 ns a row to make, and merging runs
15 ns a row; the rows of a block in any other order are sorted first.  An index takes 8 bytes a row;
a search some 0.1 µs a hash and run, however many rows there are (`Buckets`).
"""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from godwit.model.key_groups import key_groups_of
from godwit.store.hash_set import distinct
from godwit.store.image import storage_full

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]

_MIN_BYTES: Final = 1 << 20  # of codes that are put in a file
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFF_FFFF)
_SIGN: Final = np.uint64(1 << 63)
_BITS: Final = 64
_CACHED_ROWS: Final = 1 << 15  # whose codes are made at a time
_BUCKET_ROWS: Final = 16
_SAMPLED: Final = 16  # one of as many keys is counted, to estimate their number


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupRange:
    """Consecutive key groups, whose rows have codes."""

    num_key_groups: int  # of the component
    first: int
    count: int

    def prefixes(self, hashes: Integers) -> Codes:
        """Return the codes of hashes of these key groups, without numbers of rows."""
        bits = (self.count - 1).bit_length()
        codes = hashes.view(np.uint64) ^ _SIGN
        if bits:
            codes >>= np.uint64(bits)
            ranks = (key_groups_of(hashes, self.num_key_groups) - self.first).astype(np.uint64)
            ranks <<= np.uint64(_BITS - bits)
            codes |= ranks
        codes &= ~_LOW
        return codes


class Buckets:
    """Positions of sorted codes by their upper bits: a search reads a few lines of memory.

    `numpy.searchsorted` reads one for each step, and takes 2.5 to 4 times as long.
    """

    __slots__ = ("_codes", "_first", "_last", "_shift", "_starts")

    def __init__(self, codes: Codes) -> None:
        self._codes, self._first, self._last = codes, codes[0], codes[-1]
        bits = int(self._last - self._first).bit_length()
        self._shift = np.uint64(max(0, bits - (len(codes) // _BUCKET_ROWS).bit_length()))
        counts = np.bincount(self._bucket_of(codes))
        self._starts = np.concatenate(([0], np.cumsum(counts))).astype(np.uint32)

    def _bucket_of(self, codes: Codes) -> Integers:
        """Return the number of the bucket that each code belongs to."""
        bucket: Integers = ((codes - self._first) >> self._shift).view(np.int64)
        return bucket

    def first(self, codes: Codes) -> Integers:
        """Return the position of the first sorted code that is not below each of `codes`."""
        bucket = self._bucket_of(np.clip(codes, self._first, self._last))
        low = self._starts.take(bucket).astype(np.int64)
        high = self._starts.take(bucket + 1).astype(np.int64)
        for _ in range(_BITS):
            open_ = low < high
            if not open_.any():
                break
            middle = (low + high) >> 1
            below = open_ & (self._codes.take(middle, mode="clip") < codes)
            np.copyto(high, middle, where=open_ & ~below)
            np.copyto(low, middle + 1, where=below)
        return low


@dataclass(frozen=True, kw_only=True, eq=False)
class SortedRun:
    """Sorted codes of rows, which are numbered from older to newer blocks."""

    key_groups: KeyGroupRange
    codes: Codes
    # starts, firsts, owners: of each span of consecutive rows in a block: number of the first row,
    # its position in the block, and the number of the block.  The first ends with all rows
    starts: Integers
    firsts: Integers
    owners: Integers

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    @cached_property
    def _buckets(self) -> Buckets:
        """Buckets of the codes."""
        return Buckets(self.codes)

    @classmethod
    def build(
        cls,
        spans: Iterable[tuple[int, Integers, Integers, Integers]],
        key_groups: KeyGroupRange,
        directory: Path | None,
    ) -> SortedRun:
        """Sort the codes of rows.

        `spans`: number of a block, positions of the first rows of spans there, their numbers of
        rows, and the hashes of all these rows. `directory`: of the file with the codes; ``None``:
        they are in memory.
        """
        no_rows = np.empty(0, np.int64)
        owners, firsts, counts, hashes = [no_rows], [no_rows], [no_rows], list[Integers]()
        for owner, first, count, row_hashes in spans:
            owners.append(np.full(len(first), owner))
            firsts.append(first)
            counts.append(count)
            hashes.append(row_hashes)
        starts = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
        assert starts[-1] <= _LOW, "a key group has fewer rows than a table's maximum"
        codes, end = np.empty(starts[-1], np.uint64), 0
        for block_hashes in hashes:
            begin, end = end, end + len(block_hashes)
            for first_row in range(begin, end, _CACHED_ROWS):
                rows = np.arange(first_row, min(first_row + _CACHED_ROWS, end), dtype=np.uint64)
                cached_hashes = block_hashes[first_row - begin : first_row - begin + len(rows)]
                np.bitwise_or(
                    key_groups.prefixes(cached_hashes), rows, out=codes[first_row:][: len(rows)]
                )
            if _is_unsorted(codes[begin:end]):
                codes[begin:end].sort()
        if _is_unsorted(codes):
            codes.sort(kind="stable")
        return cls(
            key_groups=key_groups,
            codes=in_mapped_file(codes, directory),
            starts=starts,
            firsts=np.concatenate(firsts),
            owners=np.concatenate(owners),
        )

    def followed_by(self, newer: SortedRun, directory: Path | None) -> SortedRun:
        """Return one run of these rows and of newer ones."""
        codes = np.concatenate((self.codes, newer.codes + np.uint64(self.num_rows)))
        codes.sort(kind="stable")  # which merges sorted parts
        return SortedRun(
            key_groups=self.key_groups,
            codes=in_mapped_file(codes, directory),
            starts=np.concatenate((self.starts[:-1], newer.starts + self.num_rows)),
            firsts=np.concatenate((self.firsts, newer.firsts)),
            owners=np.concatenate((self.owners, newer.owners)),
        )

    def renumbered(self, numbers: Integers) -> SortedRun:
        """Return the run with other numbers of blocks, in the same order."""
        return replace(self, owners=numbers[self.owners])

    def find(self, codes: Codes) -> tuple[Integers, Integers]:
        """Return numbers of blocks, and positions there, of all rows with hashes, and of a few.

        `codes`: of the hashes, distinct and ascending. The rows are in their order.
        """
        first = self._buckets.first(codes)
        nearest = self.codes[np.minimum(first, len(self.codes) - 1)]
        present = (nearest & ~_LOW) == codes
        codes, first = codes[present], first[present]
        counts = np.searchsorted(self.codes, codes | _LOW, side="right") - first
        rows = (self.codes[consecutive(first, counts)] & _LOW).view(np.int64)
        rows.sort()
        span = np.searchsorted(self.starts, rows, side="right") - 1
        return self.owners[span], rows + (self.firsts - self.starts[:-1])[span]


def consecutive(first: Integers, counts: Integers) -> Integers:
    """Return the integers of several spans, by the first of each and its number of integers.

    Examples
    --------
    >>> consecutive(np.array([5, 0]), np.array([2, 1])).tolist()
    [5, 6, 0]
    """
    before = np.cumsum(counts) - counts
    integers: Integers = np.repeat(first - before, counts)
    integers += np.arange(len(integers))
    return integers


def estimate_num_keys(runs: Sequence[SortedRun]) -> int:
    """Return the number of keys that the rows of runs have, nearly."""
    largest = max((run.codes for run in runs), key=len)
    num_sampled = -(-len(largest) // _SAMPLED)
    last_sampled = largest[num_sampled - 1] | _LOW
    sampled_codes = [
        run.codes[: np.searchsorted(run.codes, last_sampled, side="right")] for run in runs
    ]
    keys = distinct(np.concatenate(sampled_codes) >> _HALF)
    return len(keys) * len(largest) // int(np.searchsorted(largest, last_sampled, side="right"))


def _is_unsorted(codes: Codes) -> bool:
    """Return true if codes are not in order."""
    return bool((codes[1:] < codes[:-1]).any())


def in_mapped_file(codes: Codes, directory: Path | None) -> Codes:
    """Return many codes in a mapped file without a name in a directory, if there is one.

    So the kernel can take their memory back; the file is gone with them, or with the process.
    Raises `StorageFullError` if the disk is full.
    """
    if directory is None or codes.nbytes < _MIN_BYTES:
        return codes
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(codes.data)
            file.flush()
            memory: Any = mmap.mmap(file.fileno(), codes.nbytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise storage_full(error, directory, codes.nbytes) from error
    return np.frombuffer(memory, codes.dtype)

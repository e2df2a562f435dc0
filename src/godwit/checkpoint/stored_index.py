"""Index of the rows of blocks by hash: a sorted array of codes in a mapped file.

A code has the upper 32 bits of a hash above the number of a row.  So the entries of a key are found
by binary search, and a few other rows whose hashes share these bits.  Making a run takes 20 to
80 ns and 8 bytes a row; a search some 0.2 µs a hash, however many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.store.hash_set import distinct
from godwit.store.mapped import mapped

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SortedRun:
    """Sorted codes of rows, which are numbered from older to newer blocks."""

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

    @property
    def num_keys(self) -> int:
        """Number of keys, nearly."""
        return 1 + int(np.count_nonzero(np.diff(self.codes >> _HALF)))

    @classmethod
    def build(cls, spans: Iterable[tuple[int, int, Integers]], directory: Path) -> SortedRun:
        """Sort the hashes of spans: number of a block, position of the first row, and hashes."""
        starts, firsts, owners, hashes = [0], list[int](), list[int](), [np.empty(0, np.int64)]
        for owner, first, of_rows in spans:
            hashes.append(of_rows)
            starts.append(starts[-1] + len(of_rows))
            firsts.append(first)
            owners.append(owner)
        assert starts[-1] <= _LOW, "a key group has fewer rows than a table's maximum"
        codes = prefixes(np.concatenate(hashes))
        codes |= np.arange(starts[-1], dtype=np.uint64)
        codes.sort()
        return cls(
            codes=mapped(codes, directory),
            starts=np.array(starts),
            firsts=np.array(firsts, np.int64),
            owners=np.array(owners, np.int64),
        )

    def followed_by(self, newer: SortedRun, directory: Path) -> SortedRun:
        """Return one run of these rows and of newer ones."""
        codes = np.concatenate((self.codes, newer.codes + np.uint64(self.num_rows)))
        codes.sort(kind="stable")  # which merges sorted parts
        return SortedRun(
            codes=mapped(codes, directory),
            starts=np.concatenate((self.starts[:-1], newer.starts + self.num_rows)),
            firsts=np.concatenate((self.firsts, newer.firsts)),
            owners=np.concatenate((self.owners, newer.owners)),
        )

    def find(self, hashes: Integers) -> tuple[Integers, Integers]:
        """Return numbers of blocks, and positions there, of all rows with hashes, and of a few."""
        codes = distinct(prefixes(hashes))
        first = np.searchsorted(self.codes, codes)
        counts = np.searchsorted(self.codes, codes | _LOW, side="right") - first
        before = np.cumsum(counts) - counts
        positions = np.repeat(first - before, counts) + np.arange(counts.sum())
        rows = (self.codes[positions] & _LOW).view(np.int64)
        span = np.searchsorted(self.starts, rows, side="right") - 1
        return self.owners[span], rows + (self.firsts - self.starts[:-1])[span]


def prefixes(hashes: Integers) -> Codes:
    """Return the codes of hashes, without numbers of rows."""
    codes: Codes = hashes.view(np.uint64) & ~_LOW
    return codes

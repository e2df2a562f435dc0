"""Index of the rows of blocks by hash: sorted arrays of codes.

A code has the rank of the key group and the upper bits of the hash, together 32 bits, above the
number of a row.  So the entries of a key are found by binary search, and a few other rows whose
hashes share these bits.  Segments mostly have their rows in the order of codes
(`godwit.columns.groups`), so a run of one block takes some 5 ns a row to make, and merging runs
15 ns a row; the rows of a block in any other order are sorted first.  An index takes 8 bytes a row;
a search some 0.1 µs a hash and run, however many rows there are (`Buckets`).

A *prepared index* (`PreparedIndex`) is made before an epoch needs it.  Before a migration on demand
switches, a job beside the epochs verifies and reads the blocks of the moving key groups at the
destination, and writes the index of their rows to a file of the local store.  The lanes there,
mostly other processes, use it in the first epoch after the switch
(`godwit.checkpoint.stored_chains`).

Invariants: an index serves the key groups whose blocks, up to its epoch, are those that it was made
of; the blocks of others are indexed by the lane.  A block counts as verified while its file is the
same and unchanged.  A file that cannot be read whole is not used.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from godwit.model.key_groups import key_groups_of
from godwit.store.image import storage_full
from godwit.store.index import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from godwit.checkpoint.records import BlockRef
    from godwit.checkpoint.storage import CheckpointStorage


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


_NAME: Final = "prepared.npz"
_ARRAYS: Final = ("codes", "starts", "firsts", "owners", "key_groups")
_UNREADABLE: Final = (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile)

Address = tuple[int, int, str, int, int, int]
"""Epoch and lane of a segment (epoch and ``-1 - key_group`` of a snapshot), and of its block the
file, offset, length and checksum."""


class IndexedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block, and the key groups of its rows in the index."""

    address: Address
    key_groups: tuple[int, ...]
    # of the file, when the block was verified; ``None``: it has no file that stays
    identity: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedPart:
    """Index of some key groups (ascending), which have some `num_keys` keys."""

    key_groups: npt.NDArray[np.int64]
    num_keys: int
    run: SortedRun


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a part, whose arrays are stored beside it."""

    num_keys: int
    num_key_groups: int
    first: int
    count: int


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the arrays."""

    epoch: int
    blocks: tuple[IndexedBlock, ...]
    parts: tuple[_Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedIndex:
    """Index of all rows that some key groups have in the checkpoint at a committed `epoch`.

    `blocks`: in the order of their numbers in the runs.
    """

    epoch: int
    blocks: Sequence[IndexedBlock]
    parts: Sequence[IndexedPart]

    def save(self, directory: Path) -> None:
        """Write the index to a directory of the local store; it replaces an earlier one.

        Raises `StorageFullError` if the disk is full.
        """
        header = _Header(
            epoch=self.epoch,
            blocks=tuple(self.blocks),
            parts=tuple(
                _Part(
                    num_keys=part.num_keys,
                    num_key_groups=part.run.key_groups.num_key_groups,
                    first=part.run.key_groups.first,
                    count=part.run.key_groups.count,
                )
                for part in self.parts
            ),
        )
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.frombuffer(msgspec.msgpack.encode(header), np.uint8)
        }
        for number, part in enumerate(self.parts):
            run = part.run
            values = (run.codes, run.starts, run.firsts, run.owners, part.key_groups)
            arrays |= {f"{name}{number}": v for name, v in zip(_ARRAYS, values, strict=True)}
        temporary = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                temporary = Path(file.name)
                np.savez(file, allow_pickle=False, **arrays)
            temporary.replace(directory / _NAME)
        except OSError as error:
            raise storage_full(error, directory, sum(a.nbytes for a in arrays.values())) from error
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path, place_in: Path | None = None) -> PreparedIndex | None:
        """Return the index in a directory; ``None`` if there is none that can be read.

        `place_in`: directory of mapped files for the codes; ``None``: they are in memory.
        """
        try:
            with (
                (directory / _NAME).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,  # which verifies checksums
            ):
                header = msgspec.msgpack.decode(stored["header"].tobytes(), type=_Header)
                parts = []
                for number, part in enumerate(header.parts):
                    codes, starts, firsts, owners, part_groups = (
                        stored[f"{array_name}{number}"] for array_name in _ARRAYS
                    )
                    key_groups = KeyGroupRange(
                        num_key_groups=part.num_key_groups, first=part.first, count=part.count
                    )
                    run = SortedRun(
                        key_groups=key_groups,
                        codes=in_mapped_file(codes, place_in),
                        starts=starts,
                        firsts=firsts,
                        owners=owners,
                    )
                    parts.append(
                        IndexedPart(key_groups=part_groups, num_keys=part.num_keys, run=run)
                    )
        except (*_UNREADABLE, msgspec.MsgspecError):
            return None
        return cls(epoch=header.epoch, blocks=header.blocks, parts=parts)

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove the index in a directory, if there is one."""
        with suppress(OSError):
            os.unlink(directory / _NAME)  # noqa: PTH108  of a path that may be gone


class VerifiedBlocks:
    """Blocks that were verified on this machine, in files that have not changed since.

    The files stay mapped.
    """

    def __init__(self, storage: CheckpointStorage, prepared: PreparedIndex) -> None:
        self._storage = storage
        self._identities = {b.address[2:]: b.identity for b in prepared.blocks if b.identity}
        self._files: dict[str, tuple[tuple[int, ...] | None, pa.Buffer]] = {}

    def read(self, ref: BlockRef) -> pa.Buffer | None:
        """Return the bytes of a block; ``None`` if it has to be verified."""
        identity = self._identities.get((ref.file, ref.offset, ref.length, ref.checksum))
        if identity is None:
            return None
        if ref.file not in self._files:
            identity_before, content = (
                self._storage.identity(ref.file),
                self._storage.read(ref.file),
            )
            is_unchanged = identity_before == self._storage.identity(
                ref.file
            )  # while it was mapped
            self._files[ref.file] = identity_before if is_unchanged else None, content
        current_identity, content = self._files[ref.file]
        end = ref.offset + ref.length
        return (
            content[ref.offset : end]
            if current_identity == identity and end <= content.size
            else None
        )

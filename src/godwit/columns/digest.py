"""A digest of rows, to tell whether two reads of the same thing gave the same rows.

Invariant: it depends on the values, their order and nothing else.  How the rows are cut into
batches, where buffers begin, and the contents of null slots make no difference; a value that
differs, or two rows that have changed places, do (but for one case in about 2³²).

Numbers are added up, each times an odd number that grows with its row; bytes are summed by
Adler-32.  Both can go on from one batch to the next, and cost about what reading the memory costs.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import (
    blob_bytes,
    boundaries_of,
    mask_of,
    numpy_type,
    values_of,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WORD = 2**64
_BYTES = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)


class RowsDigest:
    """Digest of rows that come batch by batch; all batches have the same columns."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: list[_Sum] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows to the digest, after those so far."""
        self.rows += batch.num_rows
        parts = [part for column in batch.columns for part in _parts_to_digest(column)]
        sums = self._sums or [(0, 0, 1) for _ in parts]
        self._sums = [_added(so_far, part) for so_far, part in zip(sums, parts, strict=True)]

    @property
    def value(self) -> int:
        """Digest of all rows so far, a number of 64 bits."""
        sums = [struct.pack("<QI", total, adler) for _, total, adler in self._sums]
        packed = [struct.pack("<Q", self.rows), *sums]
        digest = hashlib.blake2b(b"".join(packed), digest_size=8).digest()
        return int.from_bytes(digest, "little")


_Sum = tuple[int, int, int]
"""Sum of one sequence of numbers or bytes: how many numbers, their total, checksum of the bytes."""


def _added(so_far: _Sum, part: npt.NDArray[Any] | int) -> _Sum:
    """Return a sum with `part` added: 64-bit numbers, bytes, or a number of zeros."""
    count, total, adler = so_far
    if isinstance(part, int):
        return count + part, total, adler
    if part.dtype == np.uint8:
        return count, total, zlib.adler32(part.data, adler)
    if not len(part):
        return so_far
    # Each number times 2 * (its place in the whole sequence) + 1.
    shifted = 2 * count * int(part.sum(dtype=np.uint64))
    total = (total + shifted + int(np.dot(part, _odd_numbers(len(part))))) % _WORD
    return count + len(part), total, adler


@lru_cache(maxsize=4)
def _odd_numbers(count: int) -> npt.NDArray[np.uint64]:
    """Return the first `count` odd numbers."""
    return np.arange(1, 2 * count + 1, 2, dtype=np.uint64)


def _parts_to_digest(array: pa.Array) -> Iterator[npt.NDArray[Any] | int]:
    """Yield a column's null marks and content as arrays of 64-bit numbers or of bytes.

    An integer n stands for n zeros.
    """
    mask = mask_of(array)
    yield len(array) if mask is None else (~mask).astype(np.uint64)
    dtype = array.type
    if pa.types.is_null(dtype):
        return
    if numpy_type(dtype) is not None:
        yield _as_words(values_of(array), mask)
    elif pa.types.is_decimal128(dtype):
        for words in words_of(array):
            yield _as_words(words, mask)
    elif any(is_type(dtype) for is_type in _BYTES):
        present = array if mask is None else array.drop_null()
        boundaries = boundaries_of(present)
        yield _as_words(np.diff(boundaries_of(array)), mask)
        yield blob_bytes(present)[boundaries[0] : boundaries[-1]]
    elif pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from _parts_to_digest(child)
    elif pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        lengths = pc.list_value_length(array).fill_null(0)
        yield _as_words(values_of(lengths), mask)
        yield from _parts_to_digest(array.flatten())
    else:
        yield np.frombuffer(_reprs(array.to_pylist()), np.uint8)


def _as_words(
    values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.uint64]:
    """Return values of up to 64 bits as unsigned integers, 0 where null."""
    if values.dtype.kind == "f":
        values = values.view(f"u{values.dtype.itemsize}")
    words = values.astype(np.uint64) if values.itemsize < 8 else values.view(np.uint64)
    return words if mask is None else np.where(mask, words, np.uint64(0))


def _reprs(values: Iterable[Any]) -> bytes:
    """Return the concatenated reprs of values, for types that have no faster encoding."""
    return "".join(f"{value!r};" for value in values).encode()

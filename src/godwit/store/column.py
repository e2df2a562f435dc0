"""What a column of a table can do, and the form in which values travel between tables.

Values are bits: floats are equal if their bits are, and nulls are zeros, or empty, with a flag
beside them, so that equality of keys never has to ask what a type means.

Source: the layouts are those of the Arrow columnar format (offsets, bytes, little-endian bits).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "COLUMN_WORDS",
    "ENTRIES",
    "HEAP",
    "LIVE",
    "NULLS",
    "Column",
    "Encoded",
    "Nulls",
    "Per",
    "Rows",
    "Section",
    "as_arrow",
    "null_bytes",
    "offsets_of",
    "unpack_bits",
    "validity_bits",
]

Rows = npt.NDArray[np.int64]
Nulls = npt.NDArray[np.uint8]

COLUMN_WORDS = 4
NULLS, ENTRIES, HEAP, LIVE = range(COLUMN_WORDS)
"""Words of a column in the header: null seen, entries, bytes of entries, bytes of live entries."""
_ONE = np.uint8(1)

Per = Literal["row", "entry", "byte"]
"""What an array has places for: the table's rows, a column's entries, the bytes of its entries."""


class Section(NamedTuple):
    """One array of a column."""

    dtype: np.dtype[Any]  # type of its elements
    per: Per  # what it has a place for
    width: int | None = None  # elements per place; ``None`` for an array of plain elements
    more: int = 0  # places beyond those


@dataclass(frozen=True, slots=True)
class Encoded:
    """Values of one column as it stores them."""

    # a NumPy array of bits, one row a value; or, where lengths vary, an Arrow array of large binary
    # without nulls
    values: Any
    nulls: Nulls | None  # shape ``(n,)``, uint8: 1 where the value is null; ``None`` where none is

    def take(self, which: Rows) -> Encoded:
        """Return the values at `which`."""
        nulls = None if self.nulls is None else self.nulls.take(which)
        if isinstance(self.values, np.ndarray):
            return Encoded(self.values.take(which, axis=0), nulls)
        return Encoded(self.values.take(as_arrow(which)), nulls)

    def heap_bytes(self) -> int:
        """Return the bytes that the values need beside their rows."""
        if isinstance(self.values, np.ndarray) or not len(self.values):
            return 0
        offsets = offsets_of(self.values)
        return int(offsets[-1]) - int(offsets[0])

    def lengths(self) -> Rows | None:
        """Return the bytes that each value needs beside its row; ``None`` where none does."""
        if isinstance(self.values, np.ndarray) or not len(self.values):
            return None
        return np.diff(offsets_of(self.values)).view(np.int64)


class Column(ABC):
    """One column of a mapped table."""

    __slots__ = ("_nulls", "_words", "dtype", "row_bytes")

    dtype: pa.DataType
    row_bytes: int  # bytes of state that each row holds, entries not included
    _nulls: Nulls
    _words: Any

    @abstractmethod
    def __init__(self, dtype: pa.DataType, arrays: list[npt.NDArray[Any]], words: Any) -> None: ...

    @staticmethod
    @abstractmethod
    def sections(dtype: pa.DataType, *, key: bool) -> list[Section]:
        """Arrays that a key column or a state column needs."""

    @abstractmethod
    def encode(self, array: pa.Array) -> Encoded:
        """Turn an Arrow array into what the column stores; nulls become zero or empty.

        Fixed-width values without nulls are not copied.

        Raises `pyarrow.ArrowInvalid` if the array has another type, and a value that this column's
        type cannot hold.
        """

    @abstractmethod
    def decode(self, encoded: Encoded) -> pa.Array:
        """Undo `encode`."""

    @abstractmethod
    def gather(self, rows: Rows) -> Encoded:
        """Copy the values of `rows` out.

        Raises `IndexError` if a row, or the bytes of its value, are not within the column.
        """

    @abstractmethod
    def equal(self, rows: Rows, encoded: Encoded) -> npt.NDArray[np.bool_]:
        """Compare the values of `rows` with as many others (anything goes where a row is -1)."""

    @abstractmethod
    def append(self, first: int, encoded: Encoded) -> None:
        """Write the values of a key column's new rows, `first` and those after it."""

    @abstractmethod
    def put(self, rows: Rows, encoded: Encoded) -> None:
        """Write values of a state column, over those that the rows had."""

    @abstractmethod
    def lengths(self, rows: Rows) -> Rows | None:
        """Return the bytes of the entries of `rows`; ``None`` if the column has none."""

    @abstractmethod
    def release(self, rows: Rows) -> None:
        """Count the entries of `rows` as garbage from now on; a state column forgets them."""

    @abstractmethod
    def revive(self, rows: Rows) -> None:
        """Count the entries of a key column's released rows as live again."""

    @abstractmethod
    def clear(self, rows: int) -> None:
        """Forget the values of all rows, which are so many."""

    def _nulls_of(self, rows: Rows) -> Nulls | None:
        return self._nulls.take(rows) if self._words[NULLS] else None

    def _put_nulls(self, rows: Rows | slice, encoded: Encoded) -> None:
        if encoded.nulls is not None:
            self._words[NULLS] = 1
            self._nulls[rows] = encoded.nulls
        elif self._words[NULLS]:
            self._nulls[rows] = 0

    def _with_nulls_equal(
        self, same: npt.NDArray[np.bool_], rows: Rows, encoded: Encoded
    ) -> npt.NDArray[np.bool_]:
        """Narrow `same` to where both values are null or neither is."""
        if encoded.nulls is not None:
            same &= self._nulls.take(rows) == encoded.nulls
        elif self._words[NULLS]:
            same &= self._nulls.take(rows) == 0
        return same


def as_arrow(which: Rows) -> pa.Array:
    """Return row numbers as an Arrow array over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(which), [None, pa.py_buffer(which)])


def offsets_of(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Offsets of an array of large binary that is not empty: its length and one more."""
    return np.ndarray((len(array) + 1,), np.uint64, array.buffers()[1], array.offset * 8)


def unpack_bits(buffer: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """Unpack `count` bits from bit `offset` on, into bytes of 0 and 1."""
    first = offset // 8
    octets = np.frombuffer(buffer, np.uint8, (offset + count + 7) // 8 - first, first)
    bits = np.unpackbits(octets, count=offset % 8 + count, bitorder="little")
    return bits[offset % 8 :]


def null_bytes(array: pa.Array) -> Nulls:
    """Return 1 for each null and 0 for each value of an array that has nulls."""
    return unpack_bits(array.buffers()[0], array.offset, len(array)) ^ _ONE


def validity_bits(nulls: Nulls | None, offset: int = 0) -> pa.Buffer | None:
    """Arrow's validity bits, or nothing where nothing is null."""
    if nulls is None or not nulls.any():
        return None
    valid = np.concatenate((np.zeros(offset, np.uint8), nulls ^ _ONE))
    return pa.py_buffer(np.packbits(valid, bitorder="little"))

"""The two kinds of columns of a table file, over mapped memory.

A fixed-width column is one array with a place per row.  A variable-width column is a list of
*entries* that is only ever appended to, in the layout of an Arrow array (offsets and bytes), so
Arrow reads it where it lies; a key's entry is its row, a state value's entry is named by its row
and left behind when the value changes.

Invariants: an entry never changes once it is written; entry 0 of a state column is empty; the last
row is never used and stays zero, so row -1 reads as zeros and empty strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.state.column import (
    ENTRIES,
    HEAP,
    LIVE,
    Column,
    Encoded,
    Rows,
    Sections,
    as_arrow,
    null_bytes,
    offset_type,
    offsets_of,
    unpack_bits,
    validity_bits,
)
from godwit.state.schema import is_variable_width

__all__ = ["column_class", "heap_limit"]


def column_class(dtype: pa.DataType) -> type[Column]:
    """Return the class of columns of `dtype`."""
    return _VariableColumn if is_variable_width(dtype) else _FixedColumn


def heap_limit(dtype: pa.DataType) -> int:
    """Bytes that all entries of one column can have: what offsets of the Arrow type can count."""
    return int(np.iinfo(offset_type(dtype)).max) >> 1


class _FixedColumn(Column):
    """A column whose values have one size; see `Column`."""

    __slots__ = ("_data", "_is_boolean")

    def __init__(self, dtype: pa.DataType, arrays: list[npt.NDArray[Any]], words: Any) -> None:
        self.dtype = dtype
        self._data, self._nulls = arrays
        self._words = words
        self._is_boolean = pa.types.is_boolean(dtype)
        self.row_bytes = self._data.dtype.itemsize * (self._data.shape[1:] or (1,))[0]

    @staticmethod
    def sections(dtype: pa.DataType, rows: int, entries: int, heap: int) -> Sections:
        assert not entries
        assert not heap
        width = 1 if pa.types.is_boolean(dtype) else dtype.bit_width // 8
        data: tuple[np.dtype[Any], tuple[int, ...]]
        if width in (1, 2, 4, 8):
            data = np.dtype(f"u{width}"), (rows,)
        elif width and width % 8 == 0:
            data = np.dtype("u8"), (rows, width // 8)
        else:
            data = np.dtype("u1"), (rows, width)
        return [data, (np.dtype(np.uint8), (rows,))]

    def encode(self, array: pa.Array) -> Encoded:
        if array.type != self.dtype:
            array = array.cast(self.dtype)
        nulls = null_bytes(array) if array.null_count else None
        count, unit, more = len(array), self._data.dtype, self._data.shape[1:]
        values: npt.NDArray[Any]
        if not count or not self.row_bytes:
            values = np.zeros((count, *more), unit)
        elif self._is_boolean:
            values = unpack_bits(array.buffers()[1], array.offset, count)
        else:
            start = array.offset * self.row_bytes
            values = np.ndarray((count, *more), unit, array.buffers()[1], start)
        if nulls is not None:
            values = values.copy()
            values[nulls.view(np.bool_)] = 0
        return Encoded(values, nulls)

    def decode(self, encoded: Encoded) -> pa.Array:
        values = encoded.values
        count = len(values)
        if self._is_boolean:
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(
            self.dtype, count, [validity_bits(encoded.nulls), pa.py_buffer(values)]
        )

    def gather(self, rows: Rows) -> Encoded:
        return Encoded(self._data.take(rows, axis=0), self._nulls_of(rows))

    def equal(self, rows: Rows, encoded: Encoded) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = np.equal(self._data.take(rows, axis=0), encoded.values)
        if same.ndim > 1:
            same = np.logical_and.reduce(same, axis=1)
        return self._with_nulls_equal(same, rows, encoded)

    def append(self, first: int, encoded: Encoded) -> None:
        rows = slice(first, first + len(encoded.values))
        self._data[rows] = encoded.values
        self._put_nulls(rows, encoded)

    def put(self, rows: Rows, encoded: Encoded) -> None:
        self._data[rows] = encoded.values
        self._put_nulls(rows, encoded)

    def release(self, rows: Rows) -> None:
        pass  # a dead row keeps its place

    def revive(self, rows: Rows) -> None:
        pass

    def fits(self, encoded: Encoded) -> bool:
        return not encoded.heap_bytes()

    def live_bytes(self) -> int:
        return 0


class _VariableColumn(Column):
    """A column of strings or binaries; see `Column`."""

    __slots__ = ("_entries", "_heap", "_offsets", "_refs")

    def __init__(self, dtype: pa.DataType, arrays: list[npt.NDArray[Any]], words: Any) -> None:
        self.dtype = dtype
        self.row_bytes = 0
        self._offsets, self._heap, self._nulls, refs = arrays
        self._refs: npt.NDArray[np.uint32] | None = refs if len(refs) else None
        self._words = words
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._heap)]
        self._entries = pa.Array.from_buffers(dtype, len(self._offsets) - 1, buffers)

    @staticmethod
    def sections(dtype: pa.DataType, rows: int, entries: int, heap: int) -> Sections:
        byte = np.dtype(np.uint8)
        refs = rows if entries else 0
        return [
            (offset_type(dtype), ((entries or rows) + 1,)),
            (byte, (heap,)),
            (byte, (rows,)),
            (np.dtype(np.uint32), (refs,)),
        ]

    def encode(self, array: pa.Array) -> Encoded:
        if array.type != self.dtype:
            array = array.cast(self.dtype)
        if not array.null_count:
            return Encoded(array, None)
        empty = pa.scalar(b"", pa.binary()).cast(self.dtype)
        return Encoded(pc.fill_null(array, empty), null_bytes(array))

    def decode(self, encoded: Encoded) -> pa.Array:
        values = encoded.values
        if encoded.nulls is None:
            return values
        _, offsets, heap = values.buffers()
        buffers = [validity_bits(encoded.nulls, values.offset), offsets, heap]
        return pa.Array.from_buffers(self.dtype, len(values), buffers, offset=values.offset)

    def gather(self, rows: Rows) -> Encoded:
        return Encoded(self._take(rows), self._nulls_of(rows))

    def _take(self, rows: Rows) -> pa.Array:
        """Copy entries; bounds first, since Arrow follows offsets wherever they lead."""
        if self._refs is None:
            which = np.maximum(rows, 0)
        else:
            which = self._refs.take(rows).astype(np.int64)
        ends = self._offsets[1:].take(which)
        if len(which) and (
            (self._offsets.take(which) > ends).any() or ends.max() > len(self._heap)
        ):
            raise IndexError(f"An entry of a {self.dtype} column is not within its heap.")
        return self._entries.take(as_arrow(which))

    def equal(self, rows: Rows, encoded: Encoded) -> npt.NDArray[np.bool_]:
        held = self._take(rows)
        if held.equals(encoded.values):  # one pass over bytes; by far the most frequent answer
            same = np.ones(len(rows), np.bool_)
        else:
            same = pc.equal(held, encoded.values).to_numpy(zero_copy_only=False, writable=True)
        return self._with_nulls_equal(same, rows, encoded)

    def append(self, first: int, encoded: Encoded) -> None:
        self._append_entries(first, encoded)
        self._put_nulls(slice(first, first + len(encoded.values)), encoded)

    def put(self, rows: Rows, encoded: Encoded) -> None:
        assert self._refs is not None
        first = self._words[ENTRIES] + 1  # entry 0 stays empty
        self._words[LIVE] -= self._lengths(self._refs.take(rows))
        self._append_entries(first, encoded)
        self._refs[rows] = np.arange(first, first + len(rows), dtype=np.uint32)
        self._words[ENTRIES] += len(rows)
        self._put_nulls(rows, encoded)

    def _append_entries(self, first: int, encoded: Encoded) -> None:
        values = encoded.values
        if not len(values):
            return
        offsets = offsets_of(values)
        begin, count = int(offsets[0]), encoded.heap_bytes()
        tail = self._words[HEAP]
        if count:
            source = np.ndarray((count,), np.uint8, values.buffers()[2], begin)
            self._heap[tail : tail + count] = source
        # Unsigned and modulo 2^32 or 2^64, so it does not matter which of begin and tail is larger.
        shift = offsets.dtype.type(tail) - offsets[:1]
        self._offsets[first + 1 : first + 1 + len(values)] = offsets[1:] + shift
        self._words[HEAP] = tail + count
        self._words[LIVE] += count

    def release(self, rows: Rows) -> None:
        if self._refs is None:
            self._words[LIVE] -= self._lengths(rows)
        else:
            self._words[LIVE] -= self._lengths(self._refs.take(rows))
            self._refs[rows] = 0

    def revive(self, rows: Rows) -> None:
        self._words[LIVE] += self._lengths(rows)

    def _lengths(self, entries: npt.NDArray[Any]) -> int:
        """Return the bytes of `entries` together."""
        lengths = self._offsets[1:].take(entries) - self._offsets.take(entries)
        return int(lengths.sum(dtype=np.int64))

    def fits(self, encoded: Encoded) -> bool:
        if self._words[HEAP] + encoded.heap_bytes() > len(self._heap):
            return False
        count = self._words[ENTRIES] + 1 + len(encoded.values)
        return self._refs is None or count < len(self._offsets)

    def live_bytes(self) -> int:
        return int(self._words[LIVE])

"""Strings and binaries whose values all have one length, as arrays of fixed width.

Keys often have one length: UUIDs, hashes, padded numbers, codes.  Arrow keeps an offset for each
value all the same, and copies, comparisons and hashes follow the offsets.  If the offsets show one
length, the bytes are an array of fixed width: NumPy copies a value in one step, and reads the same
word of all values as a view.

Invariant: only columns without nulls whose values have one length, which is not zero, become such
arrays; the result is the same for all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

FixedWidth = npt.NDArray[np.void]
"""Shape ``(N,)``, each element as many bytes as a value has."""

_OFFSETS: Final[dict[pa.DataType, np.dtype[Any]]] = {
    pa.string(): np.dtype(np.int32),
    pa.binary(): np.dtype(np.int32),
    pa.large_string(): np.dtype(np.int64),
    pa.large_binary(): np.dtype(np.int64),
}
_MIN_ROWS: Final = 1024  # for fewer rows, checking the offsets does not pay
_MANY_ROWS: Final = 8192  # for fewer rows, one Arrow call for all columns is fastest
_MAX_WIDTH: Final = 256
_BLOCK: Final = 16_384  # values compared at a time: their copies stay in the cache


def fixed_width(column: pa.Array) -> FixedWidth | None:
    """View strings or binaries of one length as fixed-width bytes; ``None`` if they are not."""
    offset_type, count = _OFFSETS.get(column.type), len(column)
    if offset_type is None or count < _MIN_ROWS or column.null_count:
        return None
    _, places, data = column.buffers()
    start = column.offset * offset_type.itemsize
    offsets = np.ndarray((count + 1,), offset_type, places, start)
    first, width = int(offsets[0]), int(offsets[1]) - int(offsets[0])
    if not 0 < width <= _MAX_WIDTH or int(offsets[-1]) - first != width * count:
        return None
    if not np.all(np.diff(offsets) == width):
        return None
    return np.ndarray((count,), f"V{width}", data, first)


def word_at(values: FixedWidth, offset: int, dtype: str) -> npt.NDArray[Any]:
    """Return a view of the little-endian integers (type `dtype`) at byte `offset` of each value."""
    width = values.dtype.itemsize
    data = values.view(np.uint8)
    return np.ndarray((len(values),), dtype, data, offset, strides=(width,))


def take_rows(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the given rows of a batch; for many rows faster than Arrow's ``take``.

    Faster are columns of values of one length, and columns that are all null, such as aggregates'
    columns for rare cases.
    """
    if len(rows) < _MANY_ROWS:
        return batch.take(pa.array(rows))
    which = pa.array(rows)
    columns = [_take_column(column, rows, which) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _take_column(column: pa.Array, rows: npt.NDArray[np.int64], which: pa.Array) -> pa.Array:
    """Return the values of a column at `rows`; `which`: the same row numbers as an Arrow array."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    # Checking all offsets pays if at least a quarter of the values is taken.
    values = fixed_width(column) if 4 * len(rows) >= len(column) else None
    if values is None:
        return column.take(which)
    width, count = values.dtype.itemsize, len(rows)
    offset_type = _OFFSETS[column.type]
    if width * count > np.iinfo(offset_type).max:
        return column.take(which)
    offsets = np.arange(count + 1, dtype=offset_type) * offset_type.type(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.take(rows).view(np.uint8))]
    return pa.Array.from_buffers(column.type, count, buffers)


def values_differ(
    values: FixedWidth, rows: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return a mask: where the values at ``rows[i]`` and ``others[i]`` differ."""
    unequal = np.zeros(len(rows), np.bool_)
    for first in range(0, len(rows), _BLOCK):
        block = slice(first, first + _BLOCK)
        left, right = values.take(rows[block]), values.take(others[block])
        for offset, dtype in words_in(values.dtype.itemsize):
            unequal[block] |= word_at(left, offset, dtype) != word_at(right, offset, dtype)
    return unequal


def words_in(width: int) -> Iterator[tuple[int, str]]:
    """Yield offset and NumPy type of integers that cover `width` bytes; the last may overlap."""
    size = next(size for size in (8, 4, 2, 1) if size <= width)
    for offset in range(0, width - size + 1, size):
        yield offset, f"<u{size}"
    if width % size:
        yield width - size, f"<u{size}"

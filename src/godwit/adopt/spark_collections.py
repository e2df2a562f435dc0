"""Collections in Spark's buffers: lists of values, and counts of values, in Spark's binary rows.

A list is an ``UnsafeRow`` with one array: the array's place and size in the second word of the row,
then, in the array, the number of elements, a bit for each null, and the elements.  Counts are rows
of a value and its number, each after its size, until the size -1.  Values of fixed width are in
place, others at the place and of the size that their word says.

Source: `UnsafeRow`, `UnsafeArrayData`, `Collect` and `TypedAggregateWithHashMapAsBuffer` of Spark.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import column_of
from godwit.model.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]

_WIDTHS: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "?",
    pa.int8(): "<i1",
    pa.int16(): "<i2",
    pa.int32(): "<i4",
    pa.date32(): "<i4",
    pa.int64(): "<i8",
    pa.float32(): "<f4",
    pa.float64(): "<f8",
}
_WORD: Final = 8
_END: Final = -1


def can_unpack(dtype: pa.DataType) -> bool:
    """Return whether values of a type are read here."""
    return dtype in _WIDTHS or pa.types.is_timestamp(dtype) or pa.types.is_string(dtype)


def lists_in(buffers: pa.Array, dtype: pa.DataType) -> tuple[IntArray, pa.Array]:
    """Return, for collected lists, the values and the buffer number of each."""
    code, size = _code_of(dtype)
    counts: list[int] = []
    parts: list[bytes] = []
    texts: list[bytes] = []
    for buffer in buffers.to_pylist():
        place, _ = _place_in(buffer, _WORD)
        (count,) = struct.unpack_from("<q", buffer, place)
        first = place + _WORD
        begin = first + _WORD * -(-count // 64)
        if any(buffer[first:begin]):
            raise CorruptCheckpointError(
                "A list in Spark's state has a null.",
                remedy="Start the query without its state.",
                uri="",
            )
        counts.append(count)
        if code:
            parts.append(buffer[begin : begin + count * size])
            continue
        for number in range(count):
            start, length = _place_in(buffer, begin + number * _WORD)
            texts.append(buffer[place + start : place + start + length])
    groups = np.repeat(np.arange(len(counts)), counts)
    return groups, _fixed_width_values(b"".join(parts), code, dtype) if code else _texts_of_utf8(
        texts
    )


def counts_in(buffers: pa.Array, dtype: pa.DataType) -> tuple[IntArray, pa.Array, IntArray]:
    """Return buffer numbers, values, and the count of each value."""
    code, size = _code_of(dtype)
    groups: list[int] = []
    counts: list[int] = []
    parts: list[bytes] = []
    for group, buffer in enumerate(buffers.to_pylist()):
        place = 0
        for _ in range(len(buffer) // 4):
            (length,) = struct.unpack_from(">i", buffer, place)
            if length == _END:
                break
            row = buffer[place + 4 : place + 4 + length]
            (count,) = struct.unpack_from("<q", row, 2 * _WORD)
            begin, width = (_WORD, size) if code else _place_in(row, _WORD)
            parts.append(row[begin : begin + width])
            groups.append(group)
            counts.append(count)
            place += 4 + length
    values = _fixed_width_values(b"".join(parts), code, dtype) if code else _texts_of_utf8(parts)
    return np.array(groups, np.int64), values, np.array(counts, np.int64)


def _code_of(dtype: pa.DataType) -> tuple[str, int]:
    """Return NumPy's code of a type of fixed width, and the width; empty for text."""
    code = "<i8" if pa.types.is_timestamp(dtype) else _WIDTHS.get(dtype, "")
    return code, np.dtype(code).itemsize if code else 0


def _place_in(data: bytes, word: int) -> tuple[int, int]:
    """Return the offset and the size in a word."""
    size, place = struct.unpack_from("<ii", data, word)
    return place, size


def _fixed_width_values(data: bytes, code: str, dtype: pa.DataType) -> pa.Array:
    """Return values of fixed width that lie side by side."""
    return column_of(np.frombuffer(data, code), None, dtype)


def _texts_of_utf8(parts: list[bytes]) -> pa.Array:
    """Return texts, given in UTF-8."""
    return pa.array([part.decode() for part in parts], pa.string())

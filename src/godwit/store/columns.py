"""Columns of a table: the schema of an operator's state, and its columns over mapped memory.

Values are bits: floats are equal if their bits are, and nulls are zeros, or empty, with a flag
beside them, so equality of keys does not depend on types.  Structured Python state
is one binary column.

A fixed-width column is one array with a place per row.  A variable-width column is an
append-only list of *entries* in the layout of an Arrow array (offsets and bytes), so Arrow reads it
in place; a key's entry number is its row number, a state value's entry number is stored in its row
and replaced when the value changes.  Offsets of all types have 64 bits: a table
holds the state of many key groups.

Keys often have one length: UUIDs, hashes, padded numbers, codes.  If the offsets of a column
without nulls show one length above 0, its bytes are viewed as an array of fixed width
(`fixed_width`): NumPy copies a value in one step, and reads the same word of all values as a view.
The result of every function is the same with and without that view.

Invariants: an entry never changes once it is written; entry 0 of a state column is empty; the last
row is never used and stays zero, so row -1 reads as zeros and empty strings.

Source: the layouts are those of the Arrow columnar format (offsets, bytes, little-endian bits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.model.errors import InvalidFlowError, StateEncodingError
from godwit.store.compiled import kernel, read_only

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE_WIDTH = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})


def is_variable_width(dtype: pa.DataType) -> bool:
    """Return true for types of variable length: strings and binary, large or not."""
    return dtype in _VARIABLE_WIDTH


def can_be_state(dtype: pa.DataType) -> bool:
    """Return true for types that state columns can have: fixed width, string or binary."""
    return bool(
        is_variable_width(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_timestamp(dtype)
        or pa.types.is_duration(dtype)
        or pa.types.is_decimal128(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    )


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Columns of an operator's state.

    Raises `InvalidFlowError` if a column is neither fixed-width nor a string or binary.
    """

    keys: pa.Schema  # Key columns. Nulls are values like any other.
    values: pa.Schema  # state columns; any of them may hold nulls

    def __post_init__(self) -> None:
        for field in [*self.keys, *self.values]:
            if not can_be_state(field.type):
                raise InvalidFlowError(
                    f"Column {field.name!r} has type {field.type}, which state cannot hold.",
                    remedy="Use a primitive type, a string or binary.",
                )


Rows = npt.NDArray[np.int64]
Nulls = npt.NDArray[np.uint8]

COLUMN_WORDS = 4
NULLS, ENTRIES, HEAP, LIVE = range(COLUMN_WORDS)
"""Words of a column in the header: null seen, entries, bytes of entries, bytes of live entries."""
_ONE = np.uint8(1)

Per = Literal["row", "entry", "byte"]
"""Unit of an array's places: the table's rows, a column's entries, the bytes of its entries."""


class Section(NamedTuple):
    """One array of a column in the file."""

    dtype: np.dtype[Any]  # type of its elements
    per: Per  # unit of its places
    width: int | None = None  # elements per place; ``None`` for an array of plain elements
    more: int = 0  # additional places


@dataclass(frozen=True, slots=True)
class Encoded:
    """Values of one column in its stored form."""

    # a NumPy array of bits, one row a value; or, where lengths vary, an Arrow array of large binary
    # without nulls
    values: Any
    nulls: Nulls | None  # shape ``(n,)``, uint8: 1 where the value is null; ``None`` where none is

    def take(self, positions: Rows) -> Encoded:
        """Return the encoded values at the given positions."""
        nulls = None if self.nulls is None else self.nulls.take(positions)
        if isinstance(self.values, np.ndarray):
            return Encoded(self.values.take(positions, axis=0), nulls)
        return Encoded(self.values.take(as_arrow(positions)), nulls)

    def heap_bytes(self) -> int:
        """Return the bytes of all values of variable width; 0 for a fixed-width column."""
        if isinstance(self.values, np.ndarray) or not len(self.values):
            return 0
        offsets = offsets_of(self.values)
        return int(offsets[-1]) - int(offsets[0])

    def lengths(self) -> Rows | None:
        """Return the byte length of each value; ``None`` for a fixed-width column."""
        if isinstance(self.values, np.ndarray) or not len(self.values):
            return None
        return np.diff(offsets_of(self.values)).view(np.int64)


def as_arrow(which: Rows) -> pa.Array:
    """Return row numbers as an Arrow array over the same memory, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(which), [None, pa.py_buffer(which)])


def offsets_of(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the N + 1 offsets of a non-empty array of N large binary values."""
    return np.ndarray((len(array) + 1,), np.uint64, array.buffers()[1], array.offset * 8)


def unpack_bits(buffer: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """Return `count` bits, from bit `offset` of a buffer on, as bytes of 0 and 1."""
    first = offset // 8
    octets = np.frombuffer(buffer, np.uint8, (offset + count + 7) // 8 - first, first)
    bits = np.unpackbits(octets, count=offset % 8 + count, bitorder="little")
    return bits[offset % 8 :]


def null_bytes(array: pa.Array) -> Nulls:
    """Return one byte per value of an array that has nulls: 1 for null, else 0."""
    return unpack_bits(array.buffers()[0], array.offset, len(array)) ^ _ONE


def validity_bits(nulls: Nulls | None, offset: int = 0) -> pa.Buffer | None:
    """Pack null marks into Arrow's validity bitmap; ``None`` if nothing is null."""
    if nulls is None or not nulls.any():
        return None
    valid = np.concatenate((np.zeros(offset, np.uint8), nulls ^ _ONE))
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


_MAX_OFFSET = 2**31 - 1
_BYTE = np.dtype(np.uint8)


def column_class(dtype: pa.DataType) -> type[Column]:
    """Return the class that stores columns of type `dtype`."""
    return VariableColumn if is_variable_width(dtype) else FixedColumn


class FixedColumn:
    """One column of a mapped table, whose values have one size.

    `nulls`: 1 for each row whose value is null. `words`: the column's words in the header.
    `row_bytes`: bytes of state that each row holds, without entries.
    """

    __slots__ = ("_data", "_is_boolean", "dtype", "nulls", "row_bytes", "words")

    def __init__(self, dtype: pa.DataType, arrays: list[npt.NDArray[Any]], words: Any) -> None:
        self.dtype = dtype
        self._data, self.nulls = arrays
        self.words = words
        self._is_boolean = pa.types.is_boolean(dtype)
        self.row_bytes = self._data.dtype.itemsize * (self._data.shape[1:] or (1,))[0]

    @staticmethod
    def sections(dtype: pa.DataType, *, key: bool) -> list[Section]:  # noqa: ARG004  keys are like state
        """Return the arrays of a key or state column in the file: values and null marks of rows."""
        width = 1 if pa.types.is_boolean(dtype) else dtype.bit_width // 8
        if width in (1, 2, 4, 8):
            data = Section(np.dtype(f"u{width}"), "row")
        elif width and width % 8 == 0:
            data = Section(np.dtype("u8"), "row", width // 8)
        else:
            data = Section(_BYTE, "row", width)
        return [data, Section(_BYTE, "row")]

    def encode(self, array: pa.Array) -> Encoded:
        """Encode an Arrow array as the column stores it; nulls become zero or empty.

        Values are viewed as unsigned integers of their width, and not copied where nothing is null.
        Raises `pyarrow.ArrowInvalid` if the array has another type, and a value that this column's
        type cannot hold.
        """
        if array.type != self.dtype:
            array = array.cast(self.dtype)
        count, unit, more = len(array), self._data.dtype, self._data.shape[1:]
        values: npt.NDArray[Any]
        if array.null_count == count:
            nulls = np.ones(count, np.uint8) if count else None
            return Encoded(np.zeros((count, *more), unit), nulls)
        nulls = null_bytes(array) if array.null_count else None
        if not self.row_bytes:
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
        """Decode values to an Arrow array."""
        values = encoded.values
        count = len(values)
        if self._is_boolean:
            values = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(
            self.dtype, count, [validity_bits(encoded.nulls), pa.py_buffer(values)]
        )

    def gather(self, rows: Rows) -> Encoded:
        """Copy the values of rows; `IndexError` if one, or its bytes, are not in the column."""
        nulls = _nulls_in(self, rows)
        if nulls is not None and nulls.all():  # as in columns of rare events
            return Encoded(np.zeros((len(rows), *self._data.shape[1:]), self._data.dtype), nulls)
        return Encoded(self._data.take(rows, axis=0), nulls)

    def equal(self, rows: Rows, encoded: Encoded) -> npt.NDArray[np.bool_]:
        """Return a mask: where the value of row ``rows[i]`` equals encoded value i."""
        same: npt.NDArray[np.bool_] = np.equal(self._data.take(rows, axis=0), encoded.values)
        if same.ndim > 1:
            same = np.logical_and.reduce(same, axis=1)
        return _with_nulls_equal(self, same, rows, encoded)

    def append(self, first: int, encoded: Encoded) -> None:
        """Write values of a key column to new rows, from row `first` on."""
        rows = slice(first, first + len(encoded.values))
        self._data[rows] = encoded.values
        _put_nulls(self, rows, encoded)

    def put(self, rows: Rows, encoded: Encoded) -> None:
        """Overwrite the values of a state column in the given rows."""
        self._data[rows] = encoded.values
        _put_nulls(self, rows, encoded)

    def lengths(self, rows: Rows) -> Rows | None:  # noqa: ARG002
        """Return the byte length of each row's value; ``None`` for a fixed-width column."""
        return None

    def release(self, rows: Rows) -> None:
        """Count the bytes of removed rows' values as garbage; a fixed-width column has none."""

    def revive(self, rows: Rows) -> None:
        """Count the bytes of values of removed rows of a key column as live again."""

    def clear(self, rows: int) -> None:
        """Remove the values of all `rows` rows; here, nothing has to be done."""


class VariableColumn:
    """A column of strings or binaries, used as `FixedColumn` is."""

    __slots__ = ("_entries", "_heap", "_offsets", "_refs", "dtype", "nulls", "row_bytes", "words")

    def __init__(self, dtype: pa.DataType, arrays: list[npt.NDArray[Any]], words: Any) -> None:
        self.dtype = dtype
        self.row_bytes = 0
        self._offsets, self._heap, self.nulls, *refs = arrays
        self._refs: npt.NDArray[np.uint32] | None = refs[0] if refs else None
        self.words = words
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._heap)]
        self._entries = pa.Array.from_buffers(pa.large_binary(), len(self._offsets) - 1, buffers)

    @staticmethod
    def sections(dtype: pa.DataType, *, key: bool) -> list[Section]:  # noqa: ARG004  all types alike
        """Return the arrays of a column in the file: offsets, bytes and null marks.

        A state column also has the entry number of each row.
        """
        # One more than entries; entry 0 of a state column, which stays empty, is not counted.
        per: Per = "row" if key else "entry"
        offsets = Section(np.dtype(np.uint64), per, more=1 if key else 2)
        refs = [] if key else [Section(np.dtype(np.uint32), "row")]
        return [offsets, Section(_BYTE, "byte"), Section(_BYTE, "row"), *refs]

    def encode(self, array: pa.Array) -> Encoded:
        """Return the values as large binary without nulls (null: empty), and their null marks."""
        if array.type != self.dtype:
            array = array.cast(self.dtype)
        nulls = None
        if array.null_count:
            nulls = null_bytes(array)
            array = pc.fill_null(array, pa.scalar(b"", pa.binary()).cast(self.dtype))
        return Encoded(_as_large_binary(array), nulls)

    def decode(self, encoded: Encoded) -> pa.Array:
        """Build an Arrow array from encoded values; raise if they are too many bytes for one."""
        values = encoded.values
        _, offsets, heap = values.buffers()
        heap = pa.py_buffer(b"") if heap is None else heap
        if not (pa.types.is_large_string(self.dtype) or pa.types.is_large_binary(self.dtype)):
            ends = offsets_of(values) if len(values) else np.zeros(1, np.uint64)
            if int(ends[-1]) > _MAX_OFFSET:
                raise StateEncodingError(
                    f"An epoch touches {int(ends[-1])} bytes of state in one column of type "
                    f"{self.dtype} on one lane; such a column holds at most {_MAX_OFFSET}.",
                    remedy="Use large_string or large_binary, more lanes, or smaller epochs.",
                    bytes=int(ends[-1]),
                )
            offsets = pa.py_buffer(ends.astype(np.uint32))
            buffers = [validity_bits(encoded.nulls), offsets, heap]
            return pa.Array.from_buffers(self.dtype, len(values), buffers)
        buffers = [validity_bits(encoded.nulls, values.offset), offsets, heap]
        return pa.Array.from_buffers(self.dtype, len(values), buffers, offset=values.offset)

    def gather(self, rows: Rows) -> Encoded:
        return Encoded(self._copy_entries(rows), _nulls_in(self, rows))

    def _copy_entries(self, rows: Rows) -> pa.Array:
        """Copy values by row; bounds are checked first, since Arrow does not check offsets."""
        which = self._entries_of(rows)
        if self._refs is not None and len(which) and int(which.max()) > self.words[ENTRIES]:
            raise IndexError(f"A row of a {self.dtype} column names an entry that does not exist.")
        ends = self._offsets[1:].take(which)
        if len(which) and (
            (self._offsets.take(which) > ends).any() or int(ends.max()) > self.words[HEAP]
        ):
            raise IndexError(f"An entry of a {self.dtype} column is not within its heap.")
        return self._entries.take(as_arrow(which))

    def _entries_of(self, rows: Rows) -> Rows:
        """Return the entry number of each row; in a key column it is the row itself."""
        if self._refs is None:
            return np.maximum(rows, 0)
        return self._refs.take(rows).astype(np.int64)

    def equal(self, rows: Rows, encoded: Encoded) -> npt.NDArray[np.bool_]:
        if self._refs is None and (compare := _entries_equal.ready(len(rows))) is not None:
            same = np.empty(len(rows), np.bool_)
            if len(rows) and not compare(
                self._offsets,
                self._heap,
                words_anywhere(self._heap),
                self.words[HEAP],
                rows,
                offsets_of(encoded.values),
                *_bytes_and_words(encoded.values.buffers()[2]),
                same,
            ):
                raise IndexError(f"An entry of a {self.dtype} column is not within its heap.")
            return _with_nulls_equal(self, same, rows, encoded)
        stored = self._copy_entries(rows)
        if stored.equals(encoded.values):  # one pass over bytes; by far the most frequent case
            same = np.ones(len(rows), np.bool_)
        else:
            same = pc.equal(stored, encoded.values).to_numpy(zero_copy_only=False, writable=True)
        return _with_nulls_equal(self, same, rows, encoded)

    def append(self, first: int, encoded: Encoded) -> None:
        self._append_entries(first, encoded)
        _put_nulls(self, slice(first, first + len(encoded.values)), encoded)

    def put(self, rows: Rows, encoded: Encoded) -> None:
        """Append values and point the rows at them; their previous values become garbage."""
        assert self._refs is not None
        first = self.words[ENTRIES] + 1  # entry 0 stays empty
        self.words[LIVE] -= int(self.lengths(rows).sum())
        self._append_entries(first, encoded)
        self._refs[rows] = np.arange(first, first + len(rows), dtype=np.uint32)
        self.words[ENTRIES] += len(rows)
        _put_nulls(self, rows, encoded)

    def _append_entries(self, first: int, encoded: Encoded) -> None:
        """Append values to the column's bytes, and their ends to its offsets."""
        values = encoded.values
        if not len(values):
            return
        offsets = offsets_of(values)
        begin, count = int(offsets[0]), encoded.heap_bytes()
        tail = self.words[HEAP]
        if count:
            source = np.ndarray((count,), np.uint8, values.buffers()[2], begin)
            self._heap[tail : tail + count] = source
        # Unsigned and modulo 2^64, so it does not matter which of begin and tail is larger.
        shift = np.uint64(tail) - offsets[:1]
        self._offsets[first + 1 : first + 1 + len(values)] = offsets[1:] + shift
        self.words[HEAP] = tail + count
        self.words[LIVE] += count

    def lengths(self, rows: Rows) -> Rows:
        entries = self._entries_of(rows)
        lengths: Rows = self._offsets[1:].take(entries).view(np.int64)
        return lengths - self._offsets.take(entries).view(np.int64)

    def release(self, rows: Rows) -> None:
        self.words[LIVE] -= int(self.lengths(rows).sum())
        if self._refs is not None:
            self._refs[rows] = 0

    def revive(self, rows: Rows) -> None:
        self.words[LIVE] += int(self.lengths(rows).sum())

    def clear(self, rows: int) -> None:
        self.words[ENTRIES] = self.words[HEAP] = self.words[LIVE] = 0
        if self._refs is not None:
            self._refs[:rows] = 0


_OFFSETS_TYPE, _BYTES_TYPE = read_only("uint64"), read_only("uint8")
_WORDS_TYPE = read_only("uint64", anywhere=True)


@kernel(
    f"boolean({_OFFSETS_TYPE}, {_BYTES_TYPE}, {_WORDS_TYPE}, uint64, {read_only('int64')},"
    f" {_OFFSETS_TYPE}, {_BYTES_TYPE}, {_WORDS_TYPE}, boolean[::1])"
)
def _entries_equal(  # noqa: PLR0917
    offsets: npt.NDArray[np.uint64],
    heap: npt.NDArray[np.uint8],
    heap_words: npt.NDArray[np.uint64],
    heap_used: np.uint64,
    rows: Rows,
    value_offsets: npt.NDArray[np.uint64],
    data: npt.NDArray[np.uint8],
    data_words: npt.NDArray[np.uint64],
    same: npt.NDArray[np.bool_],
) -> bool:
    """Compare the key of each row, row -1 as row 0, with a value; `same`: where they are equal.

    `heap_words`, `data_words`: as `words_anywhere` returns them. Returns false if a row or a value
    is not within its column.
    """
    eight = np.uint64(8)
    for i in range(len(rows)):
        row = max(rows[i], 0)
        if row + 1 >= len(offsets):
            return False
        begin, end = offsets[row], offsets[row + 1]
        at_value, value_end = value_offsets[i], value_offsets[i + 1]
        if begin > end or end > heap_used or end > np.uint64(len(heap)):
            return False
        if at_value > value_end or value_end > np.uint64(len(data)):
            return False
        equal = end - begin == value_end - at_value
        while equal and begin + eight <= end:
            equal = heap_words[begin] == data_words[at_value]
            begin += eight
            at_value += eight
        while equal and begin < end:
            equal = heap[begin] == data[at_value]
            begin += np.uint64(1)
            at_value += np.uint64(1)
        same[i] = equal
    return True


def words_anywhere(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """View the eight bytes from every byte on as a little-endian word; none if there are fewer."""
    return np.ndarray((max(len(data) - 7, 0),), "<u8", data, strides=(1,))


def _bytes_and_words(
    buffer: pa.Buffer | None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Return the bytes of an Arrow buffer, and their words as `words_anywhere` does."""
    data = np.frombuffer(buffer or b"", np.uint8)
    return data, words_anywhere(data)


Column: TypeAlias = FixedColumn | VariableColumn


def _nulls_in(column: Column, rows: Rows) -> Nulls | None:
    """Return the null marks (1: null) of rows of a column; ``None`` if it has none."""
    return column.nulls.take(rows) if column.words[NULLS] else None


def _put_nulls(column: Column, rows: Rows | slice, encoded: Encoded) -> None:
    """Store the null marks of encoded values in rows of a column."""
    if encoded.nulls is not None:
        column.words[NULLS] = 1
        column.nulls[rows] = encoded.nulls
    elif column.words[NULLS]:
        column.nulls[rows] = 0


def _with_nulls_equal(
    column: Column, same: npt.NDArray[np.bool_], rows: Rows, encoded: Encoded
) -> npt.NDArray[np.bool_]:
    """Return `same`, false where only one of the stored and the encoded value is null."""
    if encoded.nulls is not None:
        same &= column.nulls.take(rows) == encoded.nulls
    elif column.words[NULLS]:
        same &= column.nulls.take(rows) == 0
    return same


def _as_large_binary(array: pa.Array) -> pa.Array:
    """Return strings or binaries without nulls as large binary, over the same bytes."""
    dtype, count = array.type, len(array)
    _, offsets, data = array.buffers()
    if not count:
        return pa.array([], pa.large_binary())
    if pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype):
        return pa.Array.from_buffers(
            pa.large_binary(), count, [None, offsets, data], offset=array.offset
        )
    ends = np.ndarray((count + 1,), np.uint32, offsets, array.offset * 4).astype(np.uint64)
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), data])


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
    if (are_steps := _ARE_STEPS[offset_type.itemsize].ready(count)) is not None:
        is_fixed = are_steps(offsets, width)
    else:
        is_fixed = bool(np.all(np.diff(offsets) == width))
    return np.ndarray((count,), f"V{width}", data, first) if is_fixed else None


def _are_steps(offsets: npt.NDArray[Any], width: int) -> bool:
    """Return whether each offset is `width` after the one before."""
    differing = np.int64(0)
    for i in range(1, len(offsets)):
        differing |= np.int64(offsets[i]) - np.int64(offsets[i - 1]) ^ width
    return bool(differing == 0)


_ARE_STEPS: Final = {
    size: kernel(f"boolean({read_only(f'int{8 * size}', anywhere=True)}, int64)")(_are_steps)
    for size in (4, 8)
}


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
    columns = [take_values(column, rows) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def place_rows(batch: pa.RecordBatch, places: Rows) -> pa.RecordBatch:
    """Return the rows of a batch in another order; `places`: the new place of each, all distinct.

    Where places are in few runs, a cache has all lines that are written, as `take_rows` reads all.
    """
    columns, order = [], None
    for column in batch.columns:
        placed = _copy(column, places, scattered=True)
        if placed is None:
            if order is None:
                order = np.empty(len(places), np.int64)
                order[places] = np.arange(len(places))
            placed = take_values(column, order)
        columns.append(placed)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def take_values(column: pa.Array, rows: Rows) -> pa.Array:
    """Return the values of a column at many rows; see `take_rows`."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    # Checking an offset takes a hundredth of the time that Arrow takes to copy a value.
    taken = _copy(column, rows) if 32 * len(rows) >= len(column) else None
    return column.take(pa.array(rows)) if taken is None else taken


def _copy(column: pa.Array, rows: Rows, *, scattered: bool = False) -> pa.Array | None:
    """Copy values of one width from `rows`, or, if `scattered`, all values to these.

    ``None`` if values have several widths, other ones than 64 bits, or nulls.
    """
    dtype, count = column.type, len(rows)
    values: npt.NDArray[np.void] | None = fixed_width(column)
    is_word = not column.null_count and pa.types.is_primitive(dtype) and dtype.bit_width == 64
    if values is None and is_word and len(column):
        values = np.ndarray((len(column),), "V8", column.buffers()[1], column.offset * 8)
    if values is None:
        return None
    width, offset_type = values.dtype.itemsize, _OFFSETS.get(dtype)
    if offset_type is None:
        return pa.Array.from_buffers(dtype, count, [None, _copy_bytes(values, rows, scattered)])
    if width * count > np.iinfo(offset_type).max:
        return None
    offsets = pa.py_buffer(np.arange(0, width * (count + 1), width, dtype=offset_type))
    buffers = [None, offsets, _copy_bytes(values, rows, scattered)]
    return pa.Array.from_buffers(dtype, count, buffers)


def _copy_bytes(values: FixedWidth, rows: Rows, scattered: bool) -> pa.Buffer:
    """Return the bytes of the values at `rows`, or at their places; see `_copy`."""
    width, size = values.dtype.itemsize, values.dtype.itemsize * len(rows)
    if width > 8 and (copy := _copy_words.ready(len(rows))) is not None:
        words, copied = words_anywhere(values.view(np.uint8)), np.empty(size, np.uint8)
        which = np.ascontiguousarray(rows, np.int64)
        if copy(words, width, which, words_anywhere(copied), scattered):
            return pa.py_buffer(copied)
    if not scattered:
        return pa.py_buffer(values.take(rows).view(np.uint8))
    placed = np.empty(len(rows), values.dtype)
    placed[rows] = values
    return pa.py_buffer(placed.view(np.uint8))


@kernel(
    f"boolean({_WORDS_TYPE}, int64, {read_only('int64')},"
    f" {_WORDS_TYPE.replace('True', 'False')}, boolean)"
)
def _copy_words(
    words: npt.NDArray[np.uint64],  # the 8 bytes at each offset of N values, one after another
    width: int,  # of each value, at least 8
    rows: Rows,
    copies: npt.NDArray[np.uint64],  # the 8 bytes at each offset of as many values as rows
    scattered: bool,
) -> bool:
    """Do what `_copy` does; return false if a row does not exist."""
    if width < 8 or (len(rows) and len(copies) < len(rows) * width - 7):
        return False
    count = (len(words) + 7) // width
    if scattered and count < len(rows):
        return False
    limit = len(rows) if scattered else count
    last, number = np.uint64(width - 8), np.uint64(0)
    for row in rows:
        if row < 0 or row >= limit:
            return False
        place, target = np.uint64(row) * np.uint64(width), number
        if scattered:
            place, target = target, place
        offset = np.uint64(0)  # unsigned, since Numba lets indexes below 0 count from the end
        while offset < last:
            copies[target + offset] = words[place + offset]
            offset += np.uint64(8)
        copies[target + last] = words[place + last]
        number += np.uint64(width)
    return True


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

"""Layout of a table's file, and detection of files of another layout.

The file is a header of 64-bit words, a directory of key groups, the index, and arrays with a place
per row, entry or byte.  The *capacity* in the header decides where each begins, so opening a table
computes addresses and parses nothing.  A file is sparse and has far more places than it uses: its
*room* is the part for which blocks are allocated, and grows in place.

Invariant: a file is a table only if its header agrees with schema and file size in every detail;
nothing else is read before this check.  Blocks of the last page of a file are never allocated, so a
truncated file never grows back to its size.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from godwit.store.columns import COLUMN_WORDS, Per, Section, column_class
from godwit.store.index import slots_for

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Sequence

    from godwit.store.columns import StateSchema

_MAGIC = int.from_bytes(b"GODWITKG", sys.byteorder)
_LAYOUT = 7
_IS, _LAID_OUT, _SCHEMA, _FILE_BYTES, KEY_GROUPS, _ROWS = range(6)
"""Header: magic, layout's version, schema, size, number of key groups, places for rows."""
DAMAGED, SECRET, _SECRET_2, ROOM, INDEX, USED, LIVE_ROWS, REWRITTEN, WORDS = range(6, 15)
"""Flag of a damaged table, secret of its hash, rows with allocated blocks, `index_size`, rows used,
live rows, number of rewrites in place; and start of the columns' words."""
_COLUMN_CAPACITY, _COLUMN_ROOM, _COLUMN_OWN = 0, 2, 4
WORDS_PER_COLUMN = _COLUMN_OWN + COLUMN_WORDS
"""A column's capacities and room (entries, bytes), and the words that the column itself updates."""
MAX_ROWS = (1 << 31) - 2
"""With more rows, more than half of an index with 32-bit homes would be used."""
_PAGE = 4096
_DIRECTORY = (np.int64, np.int64, np.int64, np.uint8, np.int64, np.int64)
"""Per key group: version, keys, bytes of strings and binaries, mark while it is being written, the
base of a partial copy, and its serial number."""


Capacity: TypeAlias = tuple[int, ...]
"""Numbers of places in a file: for rows, of which the last is never used; then, for every column,
key columns first, for its entries (variable-width state columns only) and for the bytes of its
entries (variable-width columns only)."""


def places_in(capacity: Capacity, per: Per, column: int) -> int:
    """Return the number of rows, or of a column's entries or bytes (`per`), in a capacity."""
    return capacity[0 if per == "row" else 2 * column + (1 if per == "entry" else 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """One growing array of the file: of a column, or (column -1) of the table itself."""

    start: int
    section: Section
    column: int

    def end(self, room: Capacity) -> int:
        """Return the offset in the file at which the array ends if it is allocated for `room`."""
        section = self.section
        places = places_in(room, section.per, self.column) + section.more
        return self.start + places * _bytes_per_place(section)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Offsets of the parts of one file; see `layout_of`."""

    words: int  # words of the header
    directory: tuple[int, ...]  # starts of the directory's arrays
    # index, slots: start of the index, and its maximum number of slots.  An index of S slots
    # lies S slots after the start, so a larger one never covers a smaller one.
    index: int
    slots: int
    file_bytes: int  # size of the file
    capacity: Capacity
    _arrays: tuple[_Array, ...]

    def directory_arrays(self, memory: Any, num_key_groups: int) -> list[np.ndarray[Any, Any]]:
        """Return arrays over `memory` of the directory: a place for each key group."""
        return [
            np.ndarray((num_key_groups,), dtype, memory, start)
            for dtype, start in zip(_DIRECTORY, self.directory, strict=True)
        ]

    def arrays(self, memory: Any, column: int) -> list[np.ndarray[Any, Any]]:
        """Return the arrays of a column over `memory`; of column -1: those of the table itself."""
        return [
            np.ndarray(
                _section_shape(array.section, self.capacity, column),
                array.section.dtype,
                memory,
                array.start,
            )
            for array in self._arrays
            if array.column == column
        ]

    def fixed_extents(self) -> Iterator[tuple[int, int]]:
        """Yield start and length, in bytes, of each part that is allocated from the beginning.

        These are the header, the directory, the last row, which is read as row -1, and the last
        offset of entries, which Arrow reads when it is given an array.
        """
        yield 0, self.index
        for array in self._arrays:
            section, size = array.section, _bytes_per_place(array.section)
            places = places_in(self.capacity, section.per, array.column)
            if section.per == "row":
                yield array.start + (places - 1) * size, size
            if section.more:
                yield array.start + (places + section.more - 1) * size, size

    def index_extent(self, slots: int) -> tuple[int, int]:
        """Return start and length, in bytes, of a hash index with `slots` slots."""
        return self.index + 8 * slots, 8 * slots

    def extents(self, old: Capacity | None, new: Capacity) -> Iterator[tuple[int, int]]:
        """Yield start and length, in bytes, of each part to allocate to grow to `new`."""
        for array in self._arrays:
            start = array.start if old is None else array.end(old)
            length = array.end(new) - start
            if length > 0:
                yield start, length


_OF_TABLE = (
    Section(np.dtype(np.int64), "row"),  # hash that chooses the key group
    Section(np.dtype(np.uint16), "row"),  # key group
    Section(np.dtype(np.bool_), "row"),  # alive
)


@lru_cache(maxsize=256)
def layout_of(schema: StateSchema, num_key_groups: int, capacity: Capacity) -> Layout:
    """Compute the offsets of header, directory, index and columns in a table's file."""
    fields = [*schema.keys, *schema.values]
    words = WORDS + WORDS_PER_COLUMN * len(fields)
    offset = _whole_pages(8 * words)
    directory = []
    for dtype in _DIRECTORY:
        directory.append(offset)
        offset += _whole_pages(np.dtype(dtype).itemsize * num_key_groups)
    index, slots = offset, slots_for(capacity[0])
    offset += _whole_pages(16 * slots)
    sections = [(section, -1) for section in _OF_TABLE]
    for number, field in enumerate(fields):
        own = column_class(field.type).sections(field.type, key=number < len(schema.keys))
        sections += [(section, number) for section in own]
    arrays = []
    for section, column in sections:
        arrays.append(_Array(start=offset, section=section, column=column))
        offset += _whole_pages(
            prod(_section_shape(section, capacity, column)) * section.dtype.itemsize
        )
    return Layout(
        words=words,
        directory=tuple(directory),
        index=index,
        slots=slots,
        file_bytes=offset + _PAGE,
        capacity=capacity,
        _arrays=tuple(arrays),
    )


def write_header(
    head: memoryview,
    schema: StateSchema,
    num_key_groups: int,
    layout: Layout,
    secret: tuple[int, int],
) -> None:
    """Write the header of an empty table over zeros; no block is allocated for rows yet."""
    head[_IS], head[_LAID_OUT], head[_SCHEMA] = _MAGIC, _LAYOUT, _fingerprint(schema)
    head[_FILE_BYTES], head[KEY_GROUPS] = layout.file_bytes, num_key_groups
    head[SECRET], head[_SECRET_2] = secret
    _write_capacity(head, _ROWS, _COLUMN_CAPACITY, layout.capacity)


def read_room(head: memoryview, columns: int) -> Capacity:
    """Read from a table's header the capacity that blocks are allocated for."""
    return _read_capacity(head, ROOM, _COLUMN_ROOM, columns)


def write_room(head: memoryview, room: Capacity) -> None:
    """Write to a table's header the capacity that blocks are allocated for."""
    _write_capacity(head, ROOM, _COLUMN_ROOM, room)


def capacity_in(memory: mmap.mmap, schema: StateSchema, num_key_groups: int) -> Capacity | None:
    """Read the capacity from a table's header; ``None`` if it is not an intact table of `schema`.

    A table marked as damaged is not intact; a table that is being written may be.
    """
    columns = len(schema.keys) + len(schema.values)
    words = WORDS + WORDS_PER_COLUMN * columns
    if len(memory) < 8 * words:
        return None
    head = memoryview(memory)[: 8 * words].cast("q").tolist()
    expected = [_MAGIC, _LAYOUT, _fingerprint(schema), len(memory), num_key_groups]
    if head[_IS : KEY_GROUPS + 1] != expected or head[DAMAGED]:
        return None
    capacity = _read_capacity(head, _ROWS, _COLUMN_CAPACITY, columns)
    room = _read_capacity(head, ROOM, _COLUMN_ROOM, columns)
    if (
        head[REWRITTEN] < 0
        or not 0 <= head[LIVE_ROWS] <= head[USED] <= room[0] < capacity[0] <= MAX_ROWS + 1
    ):
        return None
    for i in range(columns):
        start = _column_words(i) + _COLUMN_OWN
        _, entries, heap, live = head[start : start + COLUMN_WORDS]
        own, heap_room = room[2 * i + 1 : 2 * i + 3]
        max_entries, max_heap = capacity[2 * i + 1 : 2 * i + 3]
        if not (0 <= live <= heap <= heap_room <= max_heap and 0 <= entries <= own <= max_entries):
            return None
    layout = layout_of(schema, num_key_groups, capacity)
    slots, moved = index_size(max(head[INDEX], 1))
    max_used = slots // (2 if 2 * moved == slots else 4)
    if not 2 <= slots <= layout.slots or 2 * moved > slots or head[USED] > max_used:
        return None
    return capacity if layout.file_bytes == len(memory) else None


def index_size(word: int) -> tuple[int, int]:
    """Return the slots of the hash index, and from how many of half of them entries have moved.

    One word has their sum, which changes at once for readers: half as many again as the first, a
    power of two, once all entries have moved from the index that is half as large.

    Examples
    --------
    >>> index_size(64 + 5), index_size(64 + 32)
    ((64, 5), (64, 32))
    """
    slots = 1 << (word.bit_length() - 1)
    return slots, word - slots


def column_header(head: memoryview, column: int) -> memoryview:
    """Return the words of a table's header that belong to column number `column`."""
    start = _column_words(column) + _COLUMN_OWN
    return head[start : start + COLUMN_WORDS]


def _column_words(column: int) -> int:
    """Return the position of the first word of a column in a table's header."""
    return WORDS + WORDS_PER_COLUMN * column


def _read_capacity(
    head: Sequence[int] | memoryview, rows: int, of_column: int, columns: int
) -> Capacity:
    """Read one of a table's capacities (of its file, or the allocated room) from header words.

    `rows`: position of the word with the number of rows. `of_column`: offset, from the first word
    of each of the `columns` columns, of two words: its numbers of entries and of bytes.
    """
    starts = [_column_words(i) + of_column for i in range(columns)]
    return (head[rows], *(places for start in starts for places in head[start : start + 2]))


def _write_capacity(head: memoryview, rows: int, of_column: int, capacity: Capacity) -> None:
    """Write a capacity to header words; see `_read_capacity`."""
    head[rows] = capacity[0]
    for i, places in enumerate(capacity[1:]):
        head[_column_words(i // 2) + of_column + i % 2] = places


def _section_shape(section: Section, capacity: Capacity, column: int) -> tuple[int, ...]:
    """Return the shape of one array (`section`) of a column in a file of a capacity."""
    places = places_in(capacity, section.per, column) + section.more
    return (places,) if section.width is None else (places, section.width)


def _bytes_per_place(section: Section) -> int:
    """Return the bytes that a column's array takes per row, entry or byte."""
    return section.dtype.itemsize * (1 if section.width is None else section.width)


def _whole_pages(size: int) -> int:
    """Round a size in bytes up to whole pages."""
    return -(-size // _PAGE) * _PAGE


@lru_cache(maxsize=256)
def _fingerprint(schema: StateSchema) -> int:
    """Return a number that identifies names, types and order of a schema's columns."""
    text = repr([[(f.name, str(f.type)) for f in part] for part in (schema.keys, schema.values)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

"""Where everything lies in the file of a table, and how a table is told from anything else.

The file is a header of 64-bit words, the index, the rows' hashes and live flags, and the arrays of
every column, each section on a cache line of its own.  All of it follows from the schema and the
capacity, and the capacity is in the header, so opening a table computes addresses and parses
nothing.

Invariant: a header that does not agree with schema and size of the file in every detail is no
table's, and nothing else in the file is looked at before that is known.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from godwit.state.column import COLUMN_WORDS, Sections
from godwit.state.columns import column_class
from godwit.state.index import slots_for

if TYPE_CHECKING:
    import mmap

    from godwit.state.schema import StateSchema

__all__ = [
    "DIRTY",
    "LIVE_ROWS",
    "MAX_ROWS",
    "PEEK_BYTES",
    "ROWS",
    "USED",
    "VERSION",
    "WORDS",
    "WORDS_PER_COLUMN",
    "Capacity",
    "arrange",
    "capacity_in",
    "file_bytes",
    "peek_version",
    "write_header",
]

_MAGIC = int.from_bytes(b"GODWITKG", sys.byteorder)
_LAYOUT = 1
_IS, _LAID_OUT, _SCHEMA, _FILE_BYTES, DIRTY, VERSION, ROWS, USED, LIVE_ROWS, WORDS = range(10)
"""Words of the header: what it is, the layout's version, schema, size, whether somebody is writing,
version of the state, places for rows, rows used, rows alive; and where those of the columns start.
"""
WORDS_PER_COLUMN = 2 + COLUMN_WORDS
"""A column's two capacities and the words that it keeps itself."""
MAX_ROWS = (1 << 32) - 2
"""A slot of the index has 32 bits for the row plus one."""
PEEK_BYTES = 8 * WORDS
"""How much of a file `peek_version` has to see."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a file has room for.

    Attributes
    ----------
    rows
        Places for rows; the last is never used.
    columns
        For every column, key columns first: its entries (variable-width state columns only) and
        the bytes of its entries (variable-width columns only).
    """

    rows: int
    columns: tuple[tuple[int, int], ...]


def write_header(head: memoryview, schema: StateSchema, capacity: Capacity) -> None:
    """Write the header of an empty table at version -1 over zeros."""
    head[_IS], head[_LAID_OUT], head[_SCHEMA] = _MAGIC, _LAYOUT, _fingerprint(schema)
    head[_FILE_BYTES], head[VERSION] = file_bytes(schema, capacity), -1
    head[ROWS] = capacity.rows
    for i, (entries, heap) in enumerate(capacity.columns):
        first = WORDS + WORDS_PER_COLUMN * i
        head[first], head[first + 1] = entries, heap


def file_bytes(schema: StateSchema, capacity: Capacity) -> int:
    """Size of the file of a table with this capacity."""
    return arrange(schema, capacity)[1][-1]


def capacity_in(memory: mmap.mmap, schema: StateSchema) -> Capacity | None:
    """Read the capacity of a table from its header; ``None`` if this is no whole table of `schema`.

    Whether the table is dirty is not looked at.
    """
    words = WORDS + WORDS_PER_COLUMN * (len(schema.keys) + len(schema.values))
    if len(memory) < 8 * words:
        return None
    head = memoryview(memory)[: 8 * words].cast("q").tolist()
    expected = (_MAGIC, _LAYOUT, _fingerprint(schema), len(memory))
    if (head[_IS], head[_LAID_OUT], head[_SCHEMA], head[_FILE_BYTES]) != expected:
        return None
    if not 0 <= head[LIVE_ROWS] <= head[USED] < head[ROWS] <= MAX_ROWS + 1:
        return None
    columns: list[tuple[int, int]] = []
    for first in range(WORDS, words, WORDS_PER_COLUMN):
        max_entries, max_heap, _, entries, heap, live = head[first : first + WORDS_PER_COLUMN]
        if not (0 <= live <= heap <= max_heap and 0 <= entries <= max_entries):
            return None
        columns.append((max_entries, max_heap))
    capacity = Capacity(rows=head[ROWS], columns=tuple(columns))
    return capacity if file_bytes(schema, capacity) == len(memory) else None


def peek_version(first_bytes: bytes, size: int) -> int | None:
    """Read the version of a table from the first `PEEK_BYTES` of its file of `size` bytes.

    Returns
    -------
    int or None
        ``None`` where this is not the start of a whole, clean table.
    """
    if len(first_bytes) < PEEK_BYTES:
        return None
    head = memoryview(first_bytes)[:PEEK_BYTES].cast("q")
    if (head[_IS], head[_LAID_OUT], head[_FILE_BYTES], head[DIRTY]) != (_MAGIC, _LAYOUT, size, 0):
        return None
    return int(head[VERSION])


@lru_cache(maxsize=1024)
def arrange(schema: StateSchema, capacity: Capacity) -> tuple[Sections, tuple[int, ...]]:
    """Lay out a table: everything in the file, and where it starts.

    Returns
    -------
    sections
        Types and shapes of header, index, hashes, live flags, and the arrays of each column.
    starts
        Where each section starts and, last, where the file ends.
    """
    rows = capacity.rows
    words = WORDS + WORDS_PER_COLUMN * len(capacity.columns)
    sections: Sections = [
        (np.dtype(np.int64), (words,)),
        (np.dtype(np.uint64), (slots_for(rows),)),
        (np.dtype(np.int64), (rows,)),
        (np.dtype(np.bool_), (rows,)),
    ]
    fields = [*schema.keys, *schema.values]
    for field, (entries, heap) in zip(fields, capacity.columns, strict=True):
        sections += column_class(field.type).sections(field.type, rows, entries, heap)
    starts = [0]
    for dtype, shape in sections:
        size = dtype.itemsize * prod(shape)
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return sections, tuple(starts)


@lru_cache(maxsize=256)
def _fingerprint(schema: StateSchema) -> int:
    """Return a number that changes with names and types of columns and with their order."""
    text = repr([[(f.name, str(f.type)) for f in part] for part in (schema.keys, schema.values)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

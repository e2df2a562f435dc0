"""A table in mapped memory: a header, an index and columns; rows are found and written here.

Problem: the state of a key group must be found, read and changed in time that grows with the keys
touched, by whichever process has the key group this epoch, with nothing to parse when it is opened.
So the file *is* the data structure: a capacity decides where everything lies, and a table that has
outgrown it is copied, without its dead rows, into a new file of another capacity.

Invariants: a row is appended once and never moves within a file; a removed row stays, dead, and
comes back to life if its key does; the version and the counts of the header are true while `dirty`
is not set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.model.errors import StateEncodingError
from godwit.state.column import COLUMN_WORDS, Column, Encoded, Rows
from godwit.state.columns import column_class, heap_limit
from godwit.state.index import HashIndex
from godwit.state.layout import (
    DIRTY,
    LIVE_ROWS,
    MAX_ROWS,
    ROWS,
    USED,
    VERSION,
    WORDS,
    WORDS_PER_COLUMN,
    Capacity,
    arrange,
    write_header,
)
from godwit.state.schema import is_variable_width

if TYPE_CHECKING:
    import mmap

    import pyarrow as pa

    from godwit.state.schema import StateSchema

__all__ = ["Hashes", "Rows", "TableImage", "Upserts"]

Hashes = npt.NDArray[np.int64]

_MIN_ROWS = 32
_SPARE_EPOCHS = 16  # changes like these that a small table has room for
_SPARE_ENTRIES = 8192
_SPARE_BYTES = 128 * 2**10
_MIN_HEAP_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """Rows to be written, as the columns store them.

    Attributes
    ----------
    hashes
        Shape ``(n,)``.
    keys, values
        n values of every key column and of every state column.
    """

    hashes: Hashes
    keys: tuple[Encoded, ...]
    values: tuple[Encoded, ...]

    def take(self, which: Rows) -> Upserts:
        """Return the rows at `which`."""
        return Upserts(
            hashes=self.hashes.take(which),
            keys=tuple(column.take(which) for column in self.keys),
            values=tuple(column.take(which) for column in self.values),
        )


class TableImage:
    """One table over memory that somebody else provides.

    Parameters
    ----------
    schema
        Columns of the table.
    memory
        Writable, ``file_bytes(schema, capacity)`` long; all zero if `create`.
    capacity
        What `memory` has room for.
    create
        Whether to write the header of an empty table at version -1.

    Attributes
    ----------
    keys, values
        Key columns and state columns.
    """

    __slots__ = ("_hashes", "_head", "_index", "_live", "_schema", "keys", "values")

    def __init__(
        self,
        schema: StateSchema,
        memory: mmap.mmap | bytearray,
        capacity: Capacity,
        *,
        create: bool = False,
    ) -> None:
        self._schema = schema
        sections, starts = arrange(schema, capacity)
        self._head = memoryview(memory)[: starts[1]].cast("q")
        if create:
            write_header(self._head, schema, capacity)
        arrays: list[npt.NDArray[Any]] = [
            np.ndarray(shape, dtype, memory, start)
            for (dtype, shape), start in zip(sections[1:], starts[1:-1], strict=True)
        ]
        self._index = HashIndex(arrays[0])
        self._hashes: Hashes = arrays[1]
        self._live: npt.NDArray[np.bool_] = arrays[2]
        columns: list[Column] = []
        at, word = 3, WORDS + 2
        for field in [*schema.keys, *schema.values]:
            cls = column_class(field.type)
            end = at + len(cls.sections(field.type, 0, 0, 0))
            words = self._head[word : word + COLUMN_WORDS]
            columns.append(cls(field.type, arrays[at:end], words))
            at, word = end, word + WORDS_PER_COLUMN
        self.keys = tuple(columns[: len(schema.keys)])
        self.values = tuple(columns[len(schema.keys) :])

    @property
    def version(self) -> int:
        """Epoch whose changes are in."""
        return int(self._head[VERSION])

    @version.setter
    def version(self, epoch: int) -> None:
        self._head[VERSION] = epoch

    @property
    def dirty(self) -> bool:
        """Whether somebody is writing, or was when they died."""
        return self._head[DIRTY] != 0

    @dirty.setter
    def dirty(self, value: bool) -> None:
        self._head[DIRTY] = value

    @property
    def num_keys(self) -> int:
        """Number of live rows."""
        return int(self._head[LIVE_ROWS])

    @property
    def state_bytes(self) -> int:
        """Bytes of the keys and state of live rows; neither index nor garbage."""
        columns = self.keys + self.values
        per_row = sum(column.row_bytes for column in columns)
        return self.num_keys * per_row + sum(column.live_bytes() for column in columns)

    def encode_keys(self, keys: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Turn a batch of keys into what the key columns store."""
        return tuple(c.encode(keys.column(i)) for i, c in enumerate(self.keys))

    def encode_values(self, values: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Turn a batch of state into what the state columns store."""
        return tuple(c.encode(values.column(i)) for i, c in enumerate(self.values))

    def search(self, hashes: Hashes, keys: tuple[Encoded, ...]) -> tuple[Rows, Rows]:
        """Find rows, live or dead, by keys that are compared value for value.

        Returns
        -------
        rows
            Shape ``(n,)``: -1 where there is none.
        at
            Shape ``(n,)``: where the search in the index ended.

        Raises
        ------
        IndexError
            If something leads out of the table: the file is damaged.
        """
        rows, at = self._index.first(hashes)
        if not self._head[USED]:
            return rows, at
        # A slot of a damaged file may name a row that is not there; taking that raises.
        wrong = self._differing(rows, keys)
        for _ in range(self._head[USED]):
            if not wrong.size:
                return rows, at
            rows[wrong], at[wrong] = self._index.following(hashes[wrong], at[wrong])
            some = tuple(column.take(wrong) for column in keys)
            wrong = wrong[self._differing(rows[wrong], some)]
        if wrong.size:
            raise IndexError("The index leads to the same rows again and again.")
        return rows, at

    def _differing(self, rows: Rows, keys: tuple[Encoded, ...]) -> Rows:
        """Return where a row was found whose key is another one."""
        same = np.ones(len(rows), np.bool_)
        for column, encoded in zip(self.keys, keys, strict=True):
            same &= column.equal(rows, encoded)
        return np.flatnonzero(~same & (rows >= 0)) if not same.all() else _NONE

    def live_only(self, rows: Rows) -> Rows:
        """Replace dead rows by -1."""
        if self._head[LIVE_ROWS] == self._head[USED]:
            return rows
        return np.where(self._live.take(rows), rows, -1)

    def live_rows(self) -> Rows:
        """Return all live rows, oldest first."""
        return np.flatnonzero(self._live[: self._head[USED]])

    def gather(self, rows: Rows) -> Upserts:
        """Copy rows out, in the form in which another image takes them."""
        return Upserts(
            hashes=self._hashes.take(rows),
            keys=tuple(column.gather(rows) for column in self.keys),
            values=tuple(column.gather(rows) for column in self.values),
        )

    def fits(self, upserts: Upserts, fresh: Upserts | None) -> bool:
        """Whether there is room for `upserts`, of which `fresh` have no row yet."""
        if not all(c.fits(e) for c, e in zip(self.values, upserts.values, strict=True)):
            return False
        return fresh is None or (
            self._head[USED] + len(fresh.hashes) < self._head[ROWS]
            and all(c.fits(e) for c, e in zip(self.keys, fresh.keys, strict=True))
        )

    def capacity_with(self, upserts: Upserts, fresh: Upserts | None) -> Capacity:
        """Capacity for what is alive and `upserts`, of which `fresh` are not alive, and slack.

        Rows and keys get half as much again, so that a growing table is copied less than thrice
        per key.  State of varying length gets double, since every change leaves garbage behind, and
        small tables more: making a file takes as long as ten small changes.

        Raises
        ------
        StateEncodingError
            If the table can hold that many keys, or so many bytes in a column, at no size.
        """
        needed = self.num_keys + (0 if fresh is None else len(fresh.hashes))
        _check_limit(needed, MAX_ROWS, "keys")
        rows = min(max(needed + needed // 2, _MIN_ROWS), MAX_ROWS) + 1
        sizes: list[tuple[int, int]] = []
        for i, key in enumerate(self.keys):
            heap = _heap_needed(key, None if fresh is None else fresh.keys[i])
            sizes.append((0, _roomy(key.dtype, heap, heap + heap // 2)))
        alive = self.num_keys + len(upserts.hashes)
        entries = 2 * alive + _MIN_ROWS
        _check_limit(entries, MAX_ROWS, "versions of state")
        entries = max(entries, alive + min(_SPARE_EPOCHS * len(upserts.hashes), _SPARE_ENTRIES))
        for value, encoded in zip(self.values, upserts.values, strict=True):
            heap = _heap_needed(value, encoded)
            own = entries if is_variable_width(value.dtype) else 0
            spare = min(_SPARE_EPOCHS * encoded.heap_bytes(), _SPARE_BYTES)
            sizes.append((own, _roomy(value.dtype, heap, heap + max(heap, spare))))
        return Capacity(rows=rows, columns=tuple(sizes))

    def write(self, upserts: Upserts, rows: Rows, at: Rows, fresh: Upserts | None) -> None:
        """Write the state of keys that `search` found in `rows`, or not, ending `at`.

        Parameters
        ----------
        upserts
            n rows, with distinct keys.
        rows, at
            Shape ``(n,)``, from `search`; `rows` is filled in.
        fresh
            The rows of `upserts` that have no row yet, if any.
        """
        head = self._head
        if head[LIVE_ROWS] != head[USED]:
            dead = rows[(rows >= 0) & ~self._live.take(rows)]
            for key in self.keys:
                key.revive(dead)
            self._live[dead] = True
            head[LIVE_ROWS] += len(dead)
        if fresh is None:
            self._put_values(rows, upserts)
            return
        first, count = head[USED], len(fresh.hashes)
        added = np.arange(first, first + count)
        new = np.flatnonzero(rows < 0)
        if len(new) != count:
            raise IndexError(f"{len(new)} keys have no row where {count} should have none.")
        rows[new] = added
        self._hashes[first : first + count] = fresh.hashes
        for key, encoded in zip(self.keys, fresh.keys, strict=True):
            key.append(first, encoded)
        self._put_values(rows, upserts)
        self._live[first : first + count] = True
        # Last, so that a reader who should not be there follows no slot to a row half written.
        self._index.insert(fresh.hashes, added, at[new])
        head[USED] = first + count
        head[LIVE_ROWS] += count

    def _put_values(self, rows: Rows, upserts: Upserts) -> None:
        for value, encoded in zip(self.values, upserts.values, strict=True):
            value.put(rows, encoded)

    def fill(self, upserts: Upserts) -> None:
        """Write rows into an empty table."""
        rows, at = self._index.first(upserts.hashes)
        self.write(upserts, rows, at, upserts)

    def remove(self, rows: Rows) -> None:
        """Let live rows die."""
        for column in self.keys + self.values:
            column.release(rows)
        self._live[rows] = False
        self._head[LIVE_ROWS] -= len(rows)


_NONE: Rows = np.empty(0, np.int64)


def _heap_needed(column: Column, more: Encoded | None) -> int:
    return column.live_bytes() + (0 if more is None else more.heap_bytes())


def _roomy(dtype: pa.DataType, needed: int, wanted: int) -> int:
    """Return the bytes of a heap that has to hold `needed` and had better hold `wanted`."""
    if not is_variable_width(dtype):
        return 0
    limit = heap_limit(dtype)
    _check_limit(needed, limit, f"bytes of {dtype} in one column")
    return min(max(wanted, _MIN_HEAP_BYTES), limit)


def _check_limit(needed: int, limit: int, what: str) -> None:
    if needed > limit:
        raise StateEncodingError(
            f"One key group would hold {needed} {what}; the local store holds at most {limit}.",
            remedy="Start with more key groups, or use large_string and large_binary columns.",
            needed=needed,
            limit=limit,
        )

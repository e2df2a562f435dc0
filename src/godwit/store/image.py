"""A table in a mapped file: a header, a directory, an index and columns, as one data structure.

Problem: any process must be able to find, read and change the state of many key groups by few calls
over whole columns, in time that grows with the keys touched, without parsing the file when it is
opened.  So the file *is* the data structure.

Invariants: a row is appended once and never moves within a file, except when the whole table is
rewritten in place, which a counter records; a removed row stays, marked as removed, and is live
again when its key returns.  A *marked* key group is being written, or its writer died while writing
it; all other key groups are as the directory says, even while another process writes: rows are
published after they are complete, and only marked key groups change.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.model.errors import LocalStoreError, StorageFullError
from godwit.store.columns import ENTRIES, HEAP, LIVE, Column, Encoded, Rows, column_class
from godwit.store.index import HashIndex, SplitIndex
from godwit.store.key_hash import keyed_hashes
from godwit.store.layout import (
    DAMAGED,
    INDEX,
    LIVE_ROWS,
    REWRITTEN,
    ROOM,
    SECRET,
    USED,
    Capacity,
    capacity_in,
    column_header,
    index_size,
    layout_of,
    read_room,
    write_header,
    write_room,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.store.columns import StateSchema

Hashes = npt.NDArray[np.int64]
KeyGroups = npt.NDArray[np.uint16]
UInt64Array = npt.NDArray[np.uint64]
Search = tuple[Rows, UInt64Array, Rows]
"""Result of `TableImage.search`."""
FileIdentity = tuple[int, int]
"""Device and inode: unique among files as long as one of them is mapped."""

_REMEMBERED_ROWS = 1 << 20  # of the last search, while its result is valid
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SCANNED_ROWS = 1 << 15  # at a time: their marks stay in the cache
_FEWEST_SLOTS = 512
_GROWS_IN_STEPS = 1 << 20  # slots; a smaller index is enlarged at once
_STEP_SLOTS = 1 << 14  # by which moved slots are rounded up
_AHEAD_SLOTS = 1 << 17  # of the larger index, with blocks: entries may be after their homes


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """Rows to write, in the columns' encoding."""

    hashes: Hashes  # shape ``(n,)``: the hash that chooses a key's key group
    key_groups: KeyGroups  # shape ``(n,)``
    # keys, values: n values of every key column and of every state column
    keys: tuple[Encoded, ...]
    values: tuple[Encoded, ...]

    def take(self, positions: Rows) -> Upserts:
        """Return the rows at the given positions."""
        return Upserts(
            hashes=self.hashes.take(positions),
            key_groups=self.key_groups.take(positions),
            keys=tuple(column.take(positions) for column in self.keys),
            values=tuple(column.take(positions) for column in self.values),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Upserts | None:
        """Return the rows that `mask` selects; ``None`` if there are none."""
        which = np.flatnonzero(mask)
        if not which.size:
            return None
        return self if which.size == mask.size else self.take(which)


class TableImage:
    """One table over a given piece of memory: that of a mapped file, or memory without a file.

    `file`: the path and the descriptor of the mapped file; the image closes the descriptor.
    `secret`: if given, the header of an empty table without room is written, whose hash uses this
    secret.
    `versions`: Shape ``(num_key_groups,)``: epoch whose changes are in; -1 where the table does not
    hold the key group.
    `num_keys`: Shape ``(num_key_groups,)``: keys with state.
    `marks`: Shape ``(num_key_groups,)``: 1 where a key group is being written.
    `bases`: Shape ``(num_key_groups,)``: -1 where a key group is whole. Of a *partial* one, whose
    other entries are in the checkpoint alone, the minimum version at which these are as of now.
    `serials`: Shape ``(num_key_groups,)``: random numbers. While that of a key group stays, entries
    leave the table only by the key group's changes.
    """

    __slots__ = (
        "__weakref__",
        "_fd",
        "_hashes",
        "_head",
        "_heap_bytes",
        "_key_groups",
        "_last_search",
        "_live",
        "_memory",
        "_secret",
        "bases",
        "identity",
        "keys",
        "layout",
        "marks",
        "num_keys",
        "path",
        "serials",
        "values",
        "versions",
    )

    def __init__(
        self,
        schema: StateSchema,
        num_key_groups: int,
        memory: mmap.mmap | bytearray,
        capacity: Capacity,
        *,
        file: tuple[Path, int] | None = None,
        secret: tuple[int, int] | None = None,
    ) -> None:
        layout = self.layout = layout_of(schema, num_key_groups, capacity)
        self._memory = memory
        self._head = memoryview(memory)[: 8 * layout.words].cast("q")
        directory = layout.directory_arrays(memory, num_key_groups)
        self.versions, self.num_keys, self._heap_bytes, self.marks, self.bases = directory[:5]
        self.serials = directory[5]
        if secret is not None:
            write_header(self._head, schema, num_key_groups, layout, secret)
            self.versions[:], self.bases[:] = -1, -1
        self._secret = self._head[SECRET], self._head[SECRET + 1]
        self._hashes, self._key_groups, self._live = layout.arrays(memory, -1)
        columns: list[Column] = []
        for number, field in enumerate([*schema.keys, *schema.values]):
            words = column_header(self._head, number)
            cls = column_class(field.type)
            columns.append(cls(field.type, layout.arrays(memory, number), words))
        # keys, values: key columns and state columns
        self.keys = tuple(columns[: len(schema.keys)])
        self.values = tuple(columns[len(schema.keys) :])
        self._last_search: tuple[pa.RecordBatch, tuple[int, ...], Search] | None = None
        self.path: Path | None
        self._fd: int | None
        self.path, self._fd = file or (None, None)
        self.identity: FileIdentity | None = None
        if self._fd is not None:
            self.identity = identity_of(os.fstat(self._fd))
            weakref.finalize(self, os.close, self._fd)

    @property
    def is_whole(self) -> bool:
        """True if the file, if there is one, still has its full size."""
        return self._fd is None or os.fstat(self._fd).st_size == self.layout.file_bytes

    def grow(self, room: Capacity, slots: int) -> None:
        """Allocate blocks for `room`, and enlarge the index to at least `slots` slots."""
        if room != self.room:
            self.allocate(self.layout.extents(self.room, room))
            self.room = room
        if slots > self.slots:
            self.allocate([self.layout.index_extent(slots)])
            self.enlarge_index(slots)

    def allocate(self, extents: Iterable[tuple[int, int]]) -> None:
        """Allocate blocks of the file for each start and length, in bytes."""
        assert self.path is not None
        assert self._fd is not None
        size = 0
        try:
            for start, size in extents:
                os.posix_fallocate(self._fd, start, size)
        except OSError as error:
            raise storage_full(error, self.path, size) from error

    @property
    def room(self) -> Capacity:
        """Capacity (rows, and entries and bytes of columns) that blocks are allocated for."""
        return read_room(self._head, len(self.columns))

    @room.setter
    def room(self, room: Capacity) -> None:
        write_room(self._head, room)

    @property
    def slots(self) -> int:
        """Number of slots of the table's hash index."""
        return index_size(self._head[INDEX])[0]

    @property
    def grows_in_steps(self) -> bool:
        """True if the index is so large that it is enlarged in steps."""
        return self.slots >= _GROWS_IN_STEPS

    @property
    def used(self) -> int:
        """Number of rows of the table, live or removed."""
        return int(self._head[USED])

    @property
    def live(self) -> int:
        """Number of rows of the table that are not removed."""
        return int(self._head[LIVE_ROWS])

    @property
    def damaged(self) -> bool:
        """True if a reader has marked the table as damaged."""
        return self._head[DAMAGED] != 0

    @damaged.setter
    def damaged(self, value: bool) -> None:
        self._head[DAMAGED] = value

    @property
    def rewritten(self) -> int:
        """Number of rewrites in place; a read during which it changes is invalid."""
        return int(self._head[REWRITTEN])

    @property
    def extent(self) -> tuple[int, ...]:
        """Number of rewrites and rows, and size of the index: until a `search` becomes invalid."""
        return self.rewritten, self.used, self._head[INDEX]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Key columns of the table, then state columns."""
        return self.keys + self.values

    def entries(self, number: int) -> tuple[int, int, int]:
        """Return a column's number of entries, their bytes, and the bytes of live entries."""
        words = column_header(self._head, number)
        return words[ENTRIES], words[HEAP], words[LIVE]

    def state_bytes(self, key_groups: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the bytes of keys and state of each key group, without index and garbage."""
        per_row = sum(column.row_bytes for column in self.columns)
        sizes: npt.NDArray[np.int64] = self.num_keys[key_groups] * per_row
        sizes += self._heap_bytes[key_groups]
        return sizes

    def encode_keys(self, keys: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Encode a batch of keys as the key columns store them."""
        return tuple(c.encode(keys.column(i)) for i, c in enumerate(self.keys))

    def encode_values(self, values: pa.RecordBatch) -> tuple[Encoded, ...]:
        """Encode a batch of state as the state columns store it."""
        return tuple(c.encode(values.column(i)) for i, c in enumerate(self.values))

    def find(self, keys: pa.RecordBatch) -> Rows:
        """Return the row of each distinct key; -1 for a key without state.

        The search is remembered for `recall`: an epoch's changes are applied in the next epoch, to
        the keys that were looked up.
        """
        extent = self.extent
        result = self.search(self.encode_keys(keys), keys.num_rows)
        self._last_search = None
        if self.path is not None and keys.num_rows <= _REMEMBERED_ROWS:
            self._last_search = keys, extent, result
        return self.live_only(result[0])

    def recall(self, keys: pa.RecordBatch) -> Search | None:
        """Return the result of the last `find` once, if it was for these keys and is valid."""
        last, self._last_search = self._last_search, None
        if last is None or last[1] != self.extent:
            return None
        # Arrow compares floats by value, tables by their bits.
        same = all(
            ours.equals(theirs) and not pa.types.is_floating(ours.type)
            for ours, theirs in zip(last[0].columns, keys.columns, strict=True)
        )
        return last[2] if same else None

    def search(self, keys: tuple[Encoded, ...], count: int) -> Search:
        """Find the rows of `count` encoded keys, live or removed, by hash and comparison.

        Returns the rows, shape ``(count,)``, -1 for an absent key; and, for `write`, the keys'
        hashes and the index slots where the searches ended. Raises `IndexError` if the file is
        damaged.
        """
        hashes = keyed_hashes(keys, count, self._secret)
        used, index = self.used, self._index()
        rows, ends = index.first(hashes)
        if used:
            self._check_blocks(rows)
            wrong = self._mismatches(rows, keys)
            for _ in range(used):
                if not wrong.size:
                    break
                rows[wrong], ends[wrong] = index.following(hashes[wrong], ends[wrong])
                self._check_blocks(rows[wrong])
                some = tuple(column.take(wrong) for column in keys)
                wrong = wrong[self._mismatches(rows[wrong], some)]
            if wrong.size:
                raise IndexError("The index leads to the same rows repeatedly.")
        return rows, hashes, ends

    def _check_blocks(self, rows: Rows) -> None:
        """Raise `IndexError` for row numbers beyond the allocated blocks, as in a damaged file."""
        if rows.size and int(rows.max()) >= self._head[ROOM]:
            raise IndexError("A slot of the index names a row that does not exist.")

    def _index(self) -> HashIndex | SplitIndex:
        """Return the hash index of the table."""
        slots, moved = index_size(self._head[INDEX])
        if 2 * moved == slots:
            return HashIndex(self.index_slots(slots))
        return SplitIndex(self.index_slots(slots // 2), self.index_slots(slots), moved)

    def index_slots(self, slots: int) -> UInt64Array:
        """Return the array of the hash index with `slots` slots (see `Layout.index`)."""
        return np.ndarray((slots,), np.uint64, self._memory, self.layout.index + 8 * slots)

    def _mismatches(self, rows: Rows, keys: tuple[Encoded, ...]) -> Rows:
        """Return the positions i at which row ``rows[i]`` does not have key i of `keys`."""
        same = np.ones(len(rows), np.bool_)
        for column, encoded in zip(self.keys, keys, strict=True):
            same &= column.equal(rows, encoded)
        return np.flatnonzero(~same & (rows >= 0)) if not same.all() else _NONE

    def live_only(self, rows: Rows) -> Rows:
        """Return `rows` with removed rows replaced by -1."""
        if self._head[LIVE_ROWS] == self._head[USED]:
            return rows
        return np.where(self._live.take(rows), rows, -1)

    def rows_of(self, selected: npt.NDArray[np.bool_]) -> Rows:
        """Return the live rows of the selected key groups, oldest first; `selected`: mask."""
        used, chosen, rows = self.used, np.flatnonzero(selected).astype(np.uint16), [_NONE]
        for first in range(0, used, _SCANNED_ROWS):
            block = slice(first, min(first + _SCANNED_ROWS, used))
            key_groups = self._key_groups[block]
            # A comparison takes a tenth of the time of a look-up for each row.
            mask = key_groups == chosen[0] if len(chosen) == 1 else selected.take(key_groups)
            mask &= self._live[block]
            if mask.any():
                rows.append(np.flatnonzero(mask) + first)
        return np.concatenate(rows)

    def gather(self, rows: Rows) -> Upserts:
        """Copy the given rows, in the columns' encoding."""
        return Upserts(
            hashes=self._hashes.take(rows),
            key_groups=self._key_groups.take(rows),
            keys=tuple(column.gather(rows) for column in self.keys),
            values=tuple(column.gather(rows) for column in self.values),
        )

    def enlarge_index(self, slots: int) -> None:
        """Rebuild the hash index with `slots` slots, whose space is already allocated."""
        if self._head[INDEX]:
            before, moved = index_size(self._head[INDEX])
            index = HashIndex(self.index_slots(slots))
            if 2 * moved < before:
                index.copy_from(self.index_slots(before // 2), moved)
            if moved:
                index.copy_from(self.index_slots(before))
        self._head[INDEX] = slots + slots // 2

    def grow_index(self, rows: int) -> None:
        """Move entries to an index with twice the slots, in proportion to `rows`.

        An index has more than a quarter as many rows as slots from the first step on, and half as
        many after the last one. So no epoch does the work for all rows.
        """
        slots, moved = index_size(self._head[INDEX])
        while self.grows_in_steps:
            if 2 * moved == slots:
                if 4 * rows <= slots or 2 * slots > self.layout.slots:
                    return
                slots, moved = 2 * slots, 0
            half = slots // 2
            until = min(-(-(4 * rows - half) // _STEP_SLOTS) * _STEP_SLOTS, half)
            if until <= moved:
                return
            start, _ = self.layout.index_extent(slots)
            ahead = min(2 * until + _AHEAD_SLOTS, slots)
            self.allocate([(start, 8 * _AHEAD_SLOTS), (start + 16 * moved, 8 * ahead - 16 * moved)])
            self._move_entries(slots, moved, until)
            moved = until

    def _move_entries(self, slots: int, moved: int, until: int) -> None:
        """Move entries to the index of a size from slots of the one that is half as large."""
        index = HashIndex(self.index_slots(slots))
        index.copy_from(self.index_slots(slots // 2), moved, until)
        self._head[INDEX] = slots + until  # last, so that readers find the entries in either

    def renew(self, key_groups: npt.NDArray[np.int64]) -> None:
        """Draw new serial numbers for key groups."""
        self.serials[key_groups] = int.from_bytes(os.urandom(8), "little") >> 1

    def write(
        self,
        upserts: Upserts,
        fresh: Upserts | None,
        rows: Rows,
        hashes: UInt64Array,
        ends: Rows | None,
    ) -> None:
        """Write the state of keys after a `search` for them.

        `rows`, `hashes`, `ends`: results of the search; `ends`: index slots, ``None`` if the index
        was enlarged since. `fresh`: the part of `upserts` whose keys have no row yet.
        """
        head = self._head
        if head[LIVE_ROWS] != head[USED]:
            dead = rows[(rows >= 0) & ~self._live.take(rows)]
            for key in self.keys:
                key.revive(dead)
            self._account(self._key_groups.take(dead), 1, [key.lengths(dead) for key in self.keys])
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
        self._key_groups[first : first + count] = fresh.key_groups
        for key, encoded in zip(self.keys, fresh.keys, strict=True):
            key.append(first, encoded)
        self._account(fresh.key_groups, 1, [encoded.lengths() for encoded in fresh.keys])
        self._put_values(rows, upserts)
        self._live[first : first + count] = True
        # Last, so that a reader of other key groups follows no slot to a row half written.
        self._index().insert(hashes[new], added, None if ends is None else ends[new])
        head[USED] = first + count
        head[LIVE_ROWS] += count

    def _put_values(self, rows: Rows, upserts: Upserts) -> None:
        """Write state values to rows, and update the bytes of their key groups."""
        for value, encoded in zip(self.values, upserts.values, strict=True):
            before = value.lengths(rows)
            value.put(rows, encoded)
            if before is not None:
                after = encoded.lengths()
                self._account(upserts.key_groups, 0, [None if after is None else after - before])

    def _account(self, key_groups: KeyGroups, keys: int, sizes: list[Rows | None]) -> None:
        """Add for each row to its key group: `keys` (1, 0 or -1) keys, and the bytes in `sizes`."""
        if keys:
            np.add.at(self.num_keys, key_groups, keys)
        for lengths in sizes:
            if lengths is not None:
                np.add.at(self._heap_bytes, key_groups, lengths)

    def rewrite(self, upserts: Upserts) -> None:
        """Replace all rows by `upserts` in place, within the allocated blocks.

        No other process may read the table meanwhile; all its key groups must be marked as written.
        The index must not be one that grows in steps: a killed one may have left entries behind it.
        """
        head = self._head
        head[REWRITTEN] += 1
        self.index_slots(self.slots)[:] = 0
        self._live[: self.used] = False
        self.num_keys[:], self._heap_bytes[:] = 0, 0
        for column in self.columns:
            column.clear(self.used)
        head[USED] = head[LIVE_ROWS] = 0
        self.append(upserts)

    def append(self, upserts: Upserts) -> None:
        """Append rows whose keys the table does not have."""
        count = len(upserts.hashes)
        hashes = keyed_hashes(upserts.keys, count, self._secret)
        self.write(upserts, upserts, np.full(count, -1, np.int64), hashes, None)

    def remove(self, rows: Rows) -> None:
        """Mark the given live rows as removed."""
        key_groups = self._key_groups.take(rows)
        sizes = [column.lengths(rows) for column in self.columns]
        self._account(key_groups, -1, [None if size is None else -size for size in sizes])
        for column in self.columns:
            column.release(rows)
        self._live[rows] = False
        self._head[LIVE_ROWS] -= len(rows)


_NONE: Rows = np.empty(0, np.int64)


@lru_cache(maxsize=256)
def blank_image(schema: StateSchema, num_key_groups: int) -> TableImage:
    """Return an empty table without a file or room; it is shared, and never written."""
    capacity = (1, *(0, 0) * len(schema.keys), *(2, 0) * len(schema.values))
    memory = bytearray(layout_of(schema, num_key_groups, capacity).file_bytes)
    image = TableImage(schema, num_key_groups, memory, capacity, secret=(0, 0))
    image.enlarge_index(2)
    return image


def create_file(
    path: Path, schema: StateSchema, num_key_groups: int, capacity: Capacity, room: Capacity
) -> TableImage:
    """Create the file of an empty table, and map it.

    `capacity`: size of the sparse file. `room`: part of it that blocks are allocated for.
    """
    layout = layout_of(schema, num_key_groups, capacity)
    slots = min(_FEWEST_SLOTS, layout.slots)
    # Before anything is mapped: on a tmpfs even a read allocates a block.
    extents = [*layout.fixed_extents(), *layout.extents(None, room), layout.index_extent(slots)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never reuse a file that a killed process left: it may still be mapped.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, layout.file_bytes)
            for start, length in extents:
                os.posix_fallocate(fd, start, length)
            memory = mmap.mmap(fd, layout.file_bytes)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise storage_full(error, path, sum(length for _, length in extents)) from error
    secret = tuple(int.from_bytes(os.urandom(8), "little") >> 1 for _ in range(2))
    image = TableImage(
        schema, num_key_groups, memory, capacity, file=(path, fd), secret=(secret[0], secret[1])
    )
    image.room = room
    image.enlarge_index(slots)
    return image


def open_file(path: Path, schema: StateSchema, num_key_groups: int) -> TableImage | None:
    """Map the file at `path`; ``None`` if it is not an intact table of `schema`.

    Raises `FileNotFoundError` if the file does not exist, and `LocalStoreError` if it is not a
    regular file.
    """
    try:
        # O_NONBLOCK, which has no effect on files: opening a pipe would block without it.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_file() and not path.is_symlink():
            raise
        raise _not_a_file_error(path) from error
    image = None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file_error(path)
        memory = mmap.mmap(fd, status.st_size) if status.st_size else None
        capacity = None if memory is None else capacity_in(memory, schema, num_key_groups)
        if memory is not None and capacity is not None:
            with suppress(pa.ArrowInvalid):  # offsets of entries lead out of the file
                image = TableImage(schema, num_key_groups, memory, capacity, file=(path, fd))
    finally:
        if image is None:
            os.close(fd)
    return image


def _not_a_file_error(path: Path) -> LocalStoreError:
    """Return the error that a table's path is not a regular file."""
    return LocalStoreError(
        f"The local store expects a table at {path}, which is not a regular file.",
        remedy="Another program created it while the query was running: remove it. The state is "
        "restored from the checkpoint.",
        path=str(path),
    )


def identity_of(status: os.stat_result) -> FileIdentity:
    """Return the identity of a file, which differs from that of a later file at the same path."""
    return status.st_dev, status.st_ino


def storage_full(error: OSError, path: Path, size: int) -> OSError | StorageFullError:
    """Return `StorageFullError` if the disk is full, else `error`."""
    if error.errno not in _FULL:
        return error
    return StorageFullError(
        f"The local store needs {size} bytes for {path}, and the file system is full.",
        remedy="Free space there, or put the local store on a larger file system.",
        path=str(path),
        needed_bytes=size,
    )

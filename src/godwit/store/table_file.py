"""The file of a table, and how much room it gets: when it grows in place, when it is made anew.

Rows and keys get half as much again as they need, so that a growing table asks for blocks seldom.
State of varying length gets thrice, since every change leaves garbage behind, and small tables more
than that.  A table that runs out of room grows in place, unless with its garbage it would be larger
than a new one: then what is alive is copied into a new file.  Either way the work is a constant
factor of what was written since the last time.

Files of tables are created sparse, and given blocks before they are written.

Invariants: a file keeps the size it was made with, which its header states; a file of another size
was cut short, and nothing that was read from it counts.  Blocks are allocated before anything is
written to them, so a full disk is an error here and not a signal in the middle of a write.  A table
that is made anew gets a new file under the same name; whoever mapped the old one keeps it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import (
    LocalStoreError,
    StateEncodingError,
    StorageFullError,
)
from godwit.store.columns import is_variable_width
from godwit.store.image import TableImage
from godwit.store.layout import MAX_ROWS, Capacity, capacity_in, layout_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.store.columns import StateSchema
    from godwit.store.image import Upserts

__all__ = [
    "TableFile",
    "blank_image",
    "capacity_for",
    "create_file",
    "grown_room",
    "open_file",
    "room_for",
]

_MIN_ROWS = 256
_MIN_CAPACITY_ROWS = 1 << 20
_MIN_CAPACITY_BYTES = 1 << 26
_HEADROOM = 16  # places in a file, which is sparse, per place that has blocks
_SPARE_EPOCHS = 16  # changes like these that a table has room for
_SPARE_ENTRIES = 8192
_SPARE_BYTES = 128 * 2**10
_MIN_HEAP_BYTES = 4096
_MAX_ENTRIES = (1 << 32) - 2
_MAX_HEAP_BYTES = 1 << 42


def grown_room(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity | None:
    """Room in which a table takes `upserts`, of which `fresh` have no row yet.

    Returns what the table has, or more; ``None`` where it is to be made anew.
    """
    columns = []
    for number, (entries, heap) in enumerate(_added(image, upserts, fresh)):
        used_entries, used_bytes, _ = image.entries(number)
        columns.append((used_entries + entries, used_bytes + heap))
    rows = image.used + (0 if fresh is None else len(fresh.hashes))
    needed_room, room = Capacity(rows=rows, columns=tuple(columns)), image.room
    if _covers(room, needed_room):
        return room
    new = room_for(image, upserts, fresh)
    if not _covers(new, needed_room) or not _covers(image.layout.capacity, new, spare_rows=1):
        return None
    pairs = zip(room.columns, new.columns, strict=True)
    return Capacity(
        rows=max(room.rows, new.rows),
        columns=tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs),
    )


def room_for(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> Capacity:
    """Room of a new table for what is alive and `upserts`, of which `fresh` are not alive.

    Raises `StateEncodingError` if a table can hold that many keys, or so many bytes in a column, at
    no size.
    """
    rows = image.live + (0 if fresh is None else len(fresh.hashes))
    _check_limit(rows, MAX_ROWS, "keys")
    alive = image.live + len(upserts.hashes)
    _check_limit(2 * alive, _MAX_ENTRIES, "versions of state")
    spare = min(_SPARE_EPOCHS * len(upserts.hashes), _SPARE_ENTRIES)
    entries = min(max(3 * alive, alive + spare) + _MIN_ROWS, _MAX_ENTRIES)
    columns = []
    for number, (_, added) in enumerate(_added(image, upserts, fresh)):
        column, needed = image.columns[number], image.entries(number)[2] + added
        _check_limit(needed, _MAX_HEAP_BYTES, "bytes in one column")
        if not is_variable_width(column.dtype):
            columns.append((0, 0))
        elif number < len(image.keys):
            columns.append((0, max(needed + needed // 2, _MIN_HEAP_BYTES)))
        else:
            spare_bytes = max(2 * needed, min(_SPARE_EPOCHS * added, _SPARE_BYTES))
            columns.append((entries, max(needed + spare_bytes, _MIN_HEAP_BYTES)))
    return Capacity(rows=min(max(rows + rows // 2, _MIN_ROWS), MAX_ROWS), columns=tuple(columns))


def capacity_for(room: Capacity) -> Capacity:
    """Places of a new file that is to have `room`."""
    rows = min(max(_HEADROOM * room.rows, _MIN_CAPACITY_ROWS), MAX_ROWS)
    return Capacity(
        rows=rows + 1,
        columns=tuple(
            (
                min(max(_HEADROOM * entries, rows), _MAX_ENTRIES) if entries else 0,
                max(_HEADROOM * heap, _MIN_CAPACITY_BYTES) if heap else 0,
            )
            for entries, heap in room.columns
        ),
    )


def _added(image: TableImage, upserts: Upserts, fresh: Upserts | None) -> list[tuple[int, int]]:
    """Entries (of variable-width state) and bytes that each column gets."""
    keys = [0] * len(image.keys) if fresh is None else [k.heap_bytes() for k in fresh.keys]
    count = len(upserts.hashes)
    return [(0, size) for size in keys] + [
        (count if is_variable_width(column.dtype) else 0, encoded.heap_bytes())
        for column, encoded in zip(image.values, upserts.values, strict=True)
    ]


def _covers(room: Capacity, needed: Capacity, *, spare_rows: int = 0) -> bool:
    return room.rows >= needed.rows + spare_rows and all(
        entries >= needed_entries and heap >= needed_heap
        for (entries, heap), (needed_entries, needed_heap) in zip(
            room.columns, needed.columns, strict=True
        )
    )


def _check_limit(needed: int, limit: int, what: str) -> None:
    if needed > limit:
        raise StateEncodingError(
            f"One lane's table would hold {needed} {what}; the local store holds at most {limit}.",
            remedy="Spread the key groups over more lanes.",
            needed=needed,
            limit=limit,
        )


FileIdentity = tuple[int, int]
"""Device and inode: two files at one path differ in it while either of them is mapped."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FEWEST_SLOTS = 512


@lru_cache(maxsize=256)
def blank_image(schema: StateSchema, num_key_groups: int) -> TableImage:
    """Return an empty table that has no file and no room; it is shared and never written."""
    columns = ((0, 0),) * len(schema.keys) + ((2, 0),) * len(schema.values)
    capacity = Capacity(rows=1, columns=columns)
    memory = bytearray(layout_of(schema, num_key_groups, capacity).file_bytes)
    image = TableImage(schema, num_key_groups, memory, capacity, secret=(0, 0))
    image.enlarge_index(2)
    return image


class TableFile:
    """A file that is mapped."""

    def __init__(self, path: Path, fd: int, image: TableImage) -> None:
        self.path, self.image = path, image
        self.identity = identity_of(os.fstat(fd))  # which file it is
        self._fd = fd
        self._close = weakref.finalize(self, os.close, fd)

    @property
    def is_whole(self) -> bool:
        """Return whether the file still has its size."""
        return os.fstat(self._fd).st_size == self.image.layout.file_bytes

    def grow(self, room: Capacity, slots: int) -> None:
        """Give the table more room, and its index at least so many slots."""
        image = self.image
        if room != image.room:
            self.allocate(image.layout.extents(image.room, room))
            image.room = room
        if slots > image.slots:
            self.allocate([image.layout.index_extent(slots)])
            image.enlarge_index(slots)

    def allocate(self, extents: Iterable[tuple[int, int]]) -> None:
        """Allocate blocks for each (start, length)."""
        at = needed = 0
        try:
            for start, length in extents:
                at, needed = start, length
                os.posix_fallocate(self._fd, at, needed)
        except OSError as error:
            raise _full(error, self.path, needed) from error


def create_file(
    path: Path, schema: StateSchema, num_key_groups: int, capacity: Capacity, room: Capacity
) -> TableFile:
    """Create the file of an empty table and map it."""
    layout = layout_of(schema, num_key_groups, capacity)
    slots = min(_FEWEST_SLOTS, layout.slots)
    # Before anything is mapped: on a tmpfs even reading a place without a block takes one.
    extents = [*layout.fixed_extents(), *layout.extents(None, room), layout.index_extent(slots)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed process left here may still be mapped by nobody but it: never reuse it.
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
        raise _full(error, path, sum(length for _, length in extents)) from error
    secret = tuple(int.from_bytes(os.urandom(8), "little") >> 1 for _ in range(2))
    image = TableImage(schema, num_key_groups, memory, capacity, secret=(secret[0], secret[1]))
    image.room = room
    image.enlarge_index(slots)
    return TableFile(path, fd, image)


def open_file(
    path: Path, schema: StateSchema, num_key_groups: int
) -> tuple[TableFile | None, FileIdentity] | None:
    """Map the file at `path`.

    Returns the file, or ``None`` if it is no whole table of `schema`; and which file it was.
    ``None`` instead of both where there is no file.
    Raises `LocalStoreError` if something else than a file is there, such as a directory.
    """
    try:
        # A pipe would make an open wait without O_NONBLOCK, which means nothing for files.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_file() and not path.is_symlink():
            raise
        raise _no_file(path) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path)
        image = _mapped(fd, status.st_size, schema, num_key_groups)
        if image is not None:
            file = TableFile(path, os.dup(fd), image)
            return file, file.identity
        return None, identity_of(status)
    finally:
        os.close(fd)


def _no_file(path: Path) -> LocalStoreError:
    return LocalStoreError(
        f"The local store expects a table at {path}, and something else than a file is there.",
        remedy="Somebody put it there while the query was running: remove it. State is in the "
        "checkpoint and is restored from it.",
        path=str(path),
    )


def _mapped(fd: int, size: int, schema: StateSchema, num_key_groups: int) -> TableImage | None:
    if size == 0:
        return None
    memory = mmap.mmap(fd, size)
    capacity = capacity_in(memory, schema, num_key_groups)
    if capacity is None:
        return None
    try:
        return TableImage(schema, num_key_groups, memory, capacity)
    except pa.ArrowInvalid:  # offsets of entries lead out of the file
        return None


def identity_of(stat: os.stat_result) -> FileIdentity:
    """Return the identity of a file, unlike that of its successor at the same path."""
    return stat.st_dev, stat.st_ino


def _full(error: OSError, path: Path, size: int) -> OSError | StorageFullError:
    if error.errno not in _FULL:
        return error
    return StorageFullError(
        f"The local store needs {size} bytes for {path}, and there is no room for them.",
        remedy="Free space there, or put the local store on a larger file system.",
        path=str(path),
        needed_bytes=size,
    )

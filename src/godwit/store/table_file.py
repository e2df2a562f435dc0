"""Files of tables: created sparse, given blocks before they are written, told from anything else.

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

from godwit.model.errors import LocalStoreError, StorageFullError
from godwit.store.image import TableImage
from godwit.store.layout import Capacity, capacity_in, layout_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.store.schema import StateSchema

__all__ = ["FileIdentity", "TableFile", "blank_image", "create_file", "identity_of", "open_file"]

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
        """Whether the file still has its size."""
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
        """Give (start, length) each their blocks."""
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
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _no_file(path)
        image = _mapped(fd, found.st_size, schema, num_key_groups)
        if image is not None:
            file = TableFile(path, os.dup(fd), image)
            return file, file.identity
        return None, identity_of(found)
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
    """Return what tells a file from its successor at the same path."""
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

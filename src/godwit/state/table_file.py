"""Files of tables: created with their space, mapped, told apart from what is no table.

Invariants: a file is never truncated or written past its end, and its blocks are allocated before
it is mapped, so a full disk is an error here and not a signal in the middle of a write.  A table
that outgrows its file gets a new one under the same name; whoever mapped the old one keeps it.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import StorageFullError
from godwit.state.image import TableImage
from godwit.state.layout import PEEK_BYTES, Capacity, capacity_in, file_bytes, peek_version

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.state.schema import StateSchema

__all__ = ["FileIdentity", "blank_image", "create_file", "identity_of", "map_file", "version_in"]

FileIdentity = tuple[int, int]
"""Device and inode: two files at one path differ in it while either of them is mapped."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


def blank_image(schema: StateSchema) -> TableImage:
    """Return an empty table at version -1 that has no file and no room."""
    fields = len(schema.keys) + len(schema.values)
    capacity = Capacity(rows=1, columns=((0, 0),) * fields)
    return TableImage(schema, bytearray(file_bytes(schema, capacity)), capacity, create=True)


def create_file(
    path: Path, schema: StateSchema, capacity: Capacity
) -> tuple[TableImage, FileIdentity]:
    """Create the file of an empty table at version -1 and map it.

    Raises
    ------
    StorageFullError
        If the file system has no room for it; nothing is left behind.
    """
    size = file_bytes(schema, capacity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed process left here may still be mapped by nobody but it: never reuse it.
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            identity = identity_of(os.fstat(fd))
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise StorageFullError(
                f"The local store needs {size} bytes for {path}, and there is no room for them.",
                remedy="Free space there, or put the local store on a larger file system.",
                path=str(path),
                needed_bytes=size,
            ) from error
        raise
    return TableImage(schema, memory, capacity, create=True), identity


def map_file(path: Path, schema: StateSchema) -> tuple[TableImage | None, FileIdentity] | None:
    """Map the file at `path`.

    Returns
    -------
    tuple or None
        The table, or ``None`` if the file is no whole table of `schema`; and which file it was.
        ``None`` instead of both where there is no file.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        stat = os.fstat(fd)
        identity = identity_of(stat)
        if stat.st_size == 0:
            return None, identity
        memory = mmap.mmap(fd, stat.st_size)
    finally:
        os.close(fd)
    capacity = capacity_in(memory, schema)
    if capacity is None:
        return None, identity
    try:
        return TableImage(schema, memory, capacity), identity
    except pa.ArrowInvalid:  # offsets of entries lead out of the file
        return None, identity


def version_in(path: Path | str) -> int | None:
    """Version of the table in a file; ``None`` if it is no whole, clean table, or is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return peek_version(os.pread(fd, PEEK_BYTES, 0), os.fstat(fd).st_size)
    finally:
        os.close(fd)


def identity_of(stat: os.stat_result) -> FileIdentity:
    """Return what tells a file from its successor at the same path."""
    return stat.st_dev, stat.st_ino

"""What a file system raises, turned into errors that say what is wrong and what to do."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import (
    CheckpointError,
    CorruptCheckpointError,
    GodwitError,
    StorageFullError,
)
from godwit.model.secrets import unless_confidential

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["length_to_read", "translated"]

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RESTORE = "Restore it from a copy of the checkpoint, or start with a new checkpoint."


@contextmanager
def translated(uri: str, path: str, doing: str) -> Iterator[None]:
    """Turn what a file system raises into errors that say what to do.

    What says that somebody else was first passes: `FileExistsError` and `BlockingIOError`.

    `doing` is ``"reading"``, ``"writing"``, ``"listing"``, ``"locking"`` or ``"deleting"``.
    """
    try:
        yield
    except (FileExistsError, BlockingIOError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise _translation(error, uri, path, doing) from unless_confidential(error)


def _translation(error: Exception, uri: str, path: str, doing: str) -> GodwitError:
    if isinstance(error, FileNotFoundError) and doing == "reading":
        return CorruptCheckpointError(
            f"The file {path!r} is missing from the checkpoint {uri!r}.",
            remedy=_RESTORE,
            file=path,
            uri=uri,
        )
    if isinstance(error, NotADirectoryError):
        return CheckpointError(
            f"{uri!r} is a file, or lies within one, and not the directory of a checkpoint.",
            remedy="Give the directory that was given to flow.start(checkpoint=...), or one that "
            "does not exist yet.",
            file=path,
            uri=uri,
        )
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return StorageFullError(
            f"There is no room left for the checkpoint {uri!r} ({doing} {path!r}).",
            remedy="Free some space or raise the quota, then start the query again: nothing of the "
            "unfinished epoch counts, and the last committed one is intact.",
            file=path,
            uri=uri,
        )
    return CheckpointError(
        f"The checkpoint's storage failed while {doing} {path!r} in {uri!r}: {error}.",
        remedy="Check that the location is reachable and may be written by this user.",
        file=path,
        uri=uri,
    )


def length_to_read(uri: str, path: str, size: int, offset: int, length: int | None) -> int:
    """Bytes to read of a file of `size` bytes; everything from `offset` without a `length`."""
    if size < offset + (length or 0):
        raise CorruptCheckpointError(
            f"The file {path!r} of the checkpoint {uri!r} is truncated: it has {size} bytes and "
            f"{offset + (length or 0)} are needed.",
            remedy=_RESTORE,
            file=path,
            uri=uri,
        )
    return size - offset if length is None else length

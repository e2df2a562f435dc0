"""What a sink wrote to a local disk, made to survive a loss of power.

A file that was closed is still only in memory, and so is its name.  Forced from the inside out
(files, then the directories that name them), and before the rename that shows them, no name ever
stands for a file whose bytes are lost (Pillai et al., "All file systems are not created equal",
OSDI 2014).  Object stores and HDFS see to this themselves when a file is closed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["force_file", "force_names", "force_tree", "local_path"]

# Of network file systems, and of those that nothing is written to.
_CANNOT_FORCE_DIRECTORIES: Final = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS}


def local_path(filesystem: pafs.FileSystem, path: str) -> Path | None:
    """Where `path` is on this machine's disks; None if it is elsewhere or that cannot be told."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return local_path(filesystem.base_fs, f"{filesystem.base_path}/{path}")
    return Path(path) if isinstance(filesystem, pafs.LocalFileSystem) else None


def force_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_tree(directory: Path) -> None:
    """Make all files and names under `directory` durable, but not its own name."""
    for inner, _, names in os.walk(directory, topdown=False):
        for name in names:
            force_file(Path(inner, name))
        force_names([Path(inner)])


def force_names(directories: Iterable[Path]) -> None:
    """Make the names in `directories` durable."""
    for directory in directories:
        try:
            force_file(directory)
        except OSError as error:
            if error.errno not in _CANNOT_FORCE_DIRECTORIES:
                raise

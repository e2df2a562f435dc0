"""The files of one operator's tables on one executor, and who may write them.

Invariants: a table is one file at a path that follows from its number; who writes it holds its
lock, one byte of a lock file, and the kernel lets go of the locks of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["TableDirectory"]

_SUFFIX = ".table"


class TableDirectory:
    """Directory of the tables of one operator; created when the first is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._close: weakref.finalize[[int], TableDirectory] | None = None

    def path_of(self, number: int) -> Path:
        """Path of a table's file."""
        return self.path / f"{number:06d}{_SUFFIX}"

    def numbers(self) -> list[int]:
        """Numbers of the tables that exist, ascending."""
        try:
            names = [path.stem for path in self.path.iterdir() if path.suffix == _SUFFIX]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    @contextmanager
    def locked(self, number: int) -> Iterator[None]:
        """Be the only process on this executor to write a table."""
        fd = self._lock_file()
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, number)

    def _lock_file(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink:
            return self._fd
        if self._close is not None:  # the whole directory was removed, and the lock file with it
            self._close()
        self.path.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._close = weakref.finalize(self, os.close, self._fd)
        return self._fd

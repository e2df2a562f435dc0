"""The local store: all tables of one run on one executor, in one directory.

Problem: lanes run in whichever Python process Spark picks, several at a time, and each must find
the key groups that any of them left behind.

Invariants: a table is one file at a path that follows from operator and key group; who writes it
holds its lock, and the kernel lets go of the locks of a process that dies.  The store is a cache:
whatever is missing or not whole here is brought back from the checkpoint.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import weakref
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from godwit.state.table import KeyGroupTable
from godwit.state.table_file import version_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.state.schema import StateSchema

__all__ = ["LocalStore"]

_SUFFIX = ".table"
_MANY = 1 << 20
_MAX_NAME = 200  # file systems take names of up to 255 bytes


class LocalStore:
    """Tables of one run of one application on one executor.

    Cheap to construct; keeps the tables it has opened, as many as file descriptors allow (a
    mapping holds one until Python 3.13).  Make one in each process, after any fork.

    Parameters
    ----------
    root
        Directory of this run on this executor; created when the first table is written.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._operators: dict[str, _OperatorDirectory] = {}
        self._tables: OrderedDict[tuple[str, int], KeyGroupTable] = OrderedDict()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_tables = _MANY if files == resource.RLIM_INFINITY else max(64, files // 2)

    def table(self, operator: str, key_group: int, schema: StateSchema) -> KeyGroupTable:
        """Open a table as it is now; an empty one at version -1 if there is none.

        A table that is not whole, or has another schema, is discarded.

        Parameters
        ----------
        operator
            Name of the operator.
        key_group
            The key group.
        schema
            Key columns and state columns of the operator.
        """
        table = self._tables.get((operator, key_group))
        if table is not None and (table.schema is schema or table.schema == schema):
            self._tables.move_to_end((operator, key_group))
            table.refresh()
            return table
        directory = self._directory(operator)
        table = KeyGroupTable(
            directory.path_of(key_group), schema, lambda: directory.locked(key_group)
        )
        self._tables[operator, key_group] = table
        while len(self._tables) > self._max_tables:
            self._tables.popitem(last=False)
        return table

    def versions(self, operator: str) -> dict[int, int]:
        """Return the version of every table of `operator` that exists and is clean.

        Returns
        -------
        dict
            Key group → version, ascending by key group.
        """
        found = {}
        for path in self._directory(operator).files():
            version = version_in(path)
            if version is not None:
                found[int(path.stem)] = version
        return dict(sorted(found.items()))

    def drop(self, operator: str, key_group: int) -> None:
        """Forget a table and free its space; nothing if there is none."""
        directory = self._directory(operator)
        self._tables.pop((operator, key_group), None)
        path = directory.path_of(key_group)
        if path.exists():
            with directory.locked(key_group):
                path.unlink(missing_ok=True)
                path.with_suffix(".new").unlink(missing_ok=True)

    def disk_bytes(self, operator: str | None = None) -> int:
        """Disk space that the tables of `operator` take, or of all operators, in bytes."""
        if operator is not None:
            directories = [self._directory(operator).path]
        else:
            directories = list(self.root.iterdir()) if self.root.exists() else []
        blocks = 0
        for directory in directories:
            for path in directory.glob("*"):
                try:
                    blocks += path.stat().st_blocks
                except FileNotFoundError:  # replaced by another process just now
                    continue
        return blocks * 512  # the unit of st_blocks whatever the file system's block size

    def _directory(self, operator: str) -> _OperatorDirectory:
        directory = self._operators.get(operator)
        if directory is None:
            directory = _OperatorDirectory(self.root / _file_name(operator))
            self._operators[operator] = directory
        return directory


class _OperatorDirectory:
    """Files of one operator, and the lock file whose byte g is the lock of key group g."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._close: weakref.finalize[[int], _OperatorDirectory] | None = None

    def path_of(self, key_group: int) -> Path:
        return self.path / f"{key_group:06d}{_SUFFIX}"

    def files(self) -> list[Path]:
        return list(self.path.glob(f"*{_SUFFIX}"))

    @contextmanager
    def locked(self, key_group: int) -> Iterator[None]:
        """Be the only process on this executor to write a table."""
        fd = self._lock_file()
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, key_group)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, key_group)

    def _lock_file(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink:
            return self._fd
        if self._close is not None:  # the whole directory was removed, and the lock file with it
            self._close()
        self.path.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._close = weakref.finalize(self, os.close, self._fd)
        return self._fd


def _file_name(operator: str) -> str:
    """Return a directory name for `operator` that is its own and that any file system takes."""
    name = "op=" + quote(operator, safe="")
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.blake2b(operator.encode(), digest_size=16).hexdigest()
    return f"{name[: _MAX_NAME - len(digest)]}#{digest}"

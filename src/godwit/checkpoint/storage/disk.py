"""The few calls that change a local disk, behind a port, and what is built from them.

Crash safety is a claim about the order of these calls, and about what is lost if the machine stops
between two of them; with a port, a test can stop it between any two.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

__all__ = ["Access", "Disk", "PosixDisk", "append", "create_directory", "create_file"]

Access = Literal["owner", "umask"]
"""Who may read a checkpoint: its owner alone, or whomever the process's umask lets."""

_MODES: Final = {"owner": (0o600, 0o700), "umask": (0o666, 0o777)}


class Disk(Protocol):
    """The calls that change a disk; they fail with `OSError`."""

    def create(self, path: Path) -> int:
        """Create a file that does not exist yet, for writing; return its descriptor."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append some or all of `data`; return how many bytes."""

    def sync(self, descriptor: int) -> None:
        """Make what was written durable."""

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the second name `target`, which must not exist."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, whether or not `target` exists."""

    def lock(self, path: Path, *, wait: bool) -> int:
        """Take the lock of a file, which is created if need be; closing the descriptor lets go.

        Raises `BlockingIOError` if somebody else has it and `wait` is false.
        """

    def unlink(self, path: Path) -> None:
        """Remove a name."""

    def make_directory(self, path: Path) -> None:
        """Create a directory."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""


class PosixDisk:
    """The disk of this machine.

    `access`: who may read what is created.
    """

    _file_mode, _directory_mode = _MODES["owner"]

    def __init__(self, access: Access = "owner") -> None:
        self._file_mode, self._directory_mode = _MODES[access]

    def create(self, path: Path) -> int:
        """Create a file that does not exist yet, for writing; return its descriptor."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        return os.open(path, flags, self._file_mode)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append some or all of `data`; return how many bytes."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Make what was written durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the second name `target`, which must not exist."""
        target.hardlink_to(source)

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, whether or not `target` exists."""
        source.replace(target)

    def lock(self, path: Path, *, wait: bool) -> int:
        """Take the lock of a file; of the descriptor, not of the process, so threads compete."""
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, self._file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """Create a directory."""
        path.mkdir(mode=self._directory_mode)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def create_file(disk: Disk, path: Path) -> int:
    """Create a file, and durably the directories above it that are missing."""
    try:
        return disk.create(path)
    except FileNotFoundError:
        create_directory(disk, path.parent)
        return disk.create(path)


def create_directory(disk: Disk, path: Path) -> None:
    """Create a directory, and durably those above it that are missing; nothing if it is there."""
    if path.is_dir():
        return
    create_directory(disk, path.parent)
    with suppress(FileExistsError):
        disk.make_directory(path)
    disk.sync_directory(path.parent)


def append(disk: Disk, descriptor: int, data: bytes | memoryview | pa.Buffer) -> None:
    """Write all of `data`, however many calls that takes."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[disk.write(descriptor, rest) :]

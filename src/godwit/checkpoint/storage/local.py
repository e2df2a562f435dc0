"""A checkpoint on a disk of this machine, or on one that is mounted on every machine.

Crash safety comes from a temporary file, ``fsync``, a second name, and an ``fsync`` of the
directory (Pillai et al., OSDI 2014, on why each of them is needed).  The second name is a hard
link, which the kernel gives to one writer only.  File systems without hard links are asked for a
lock on the directory instead, under which looking and renaming are one step; where there are no
locks either, nothing is created exclusively.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakSet

import pyarrow as pa

from godwit.checkpoint.storage.disk import PosixDisk, append, create_directory, create_file
from godwit.checkpoint.storage.errors import length_to_read, translated
from godwit.checkpoint.storage.storage import CheckpointStorage, FileEntry, OutputFile
from godwit.model.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.storage.disk import Disk
    from godwit.checkpoint.storage.storage import StorageLock

__all__ = ["LocalStorage"]

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})
_LOCK = ".lock"


class LocalStorage(CheckpointStorage):
    """A checkpoint on a file system that the kernel mounts."""

    def __init__(self, root: str | Path, *, disk: Disk | None = None) -> None:
        self._root = Path(root).absolute()
        self.disk: Disk = PosixDisk() if disk is None else disk
        self.uri = str(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_local, (self.uri, self.disk)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.create_exclusive`."""
        target = self._root / path
        with translated(self.uri, path, "writing"), self._temporary(target, data) as temporary:
            try:
                self.disk.link(temporary, target)
            except FileExistsError:
                # Over a network the answer to a request that succeeded may be lost, and the
                # request be sent again.
                if not temporary.samefile(target):
                    raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._rename_to_new(temporary, target, path)

    def _rename_to_new(self, temporary: Path, target: Path, path: str) -> None:
        try:
            lock = self.disk.lock(target.with_name(_LOCK), wait=True)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise CheckpointError(
                f"The file system of the checkpoint {self.uri!r} has neither hard links nor file "
                f"locks, so two drivers could commit one epoch there without noticing.",
                remedy="Put the checkpoint on another file system, or on an object store.",
                uri=self.uri,
            ) from error
        try:
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            self.disk.replace(temporary, target)
        finally:
            self.disk.close(lock)

    def write_atomic(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.write_atomic`."""
        target = self._root / path
        with translated(self.uri, path, "writing"), self._temporary(target, data) as temporary:
            self.disk.replace(temporary, target)

    def open_output(self, path: str) -> OutputFile:
        """See `CheckpointStorage.open_output`."""
        with translated(self.uri, path, "writing"):
            return _LocalOutput(self.disk, self._root / path, uri=self.uri, path=path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """See `CheckpointStorage.read`."""
        full = self._root / path
        with translated(self.uri, path, "reading"):
            found = full.lstat()
            if not stat.S_ISREG(found.st_mode):
                raise CorruptCheckpointError(
                    f"{path!r} in the checkpoint {self.uri!r} is no plain file.",
                    remedy="Replace it by the file from a copy of the checkpoint.",
                    file=path,
                    uri=self.uri,
                )
            count = length_to_read(self.uri, path, found.st_size, offset, length)
            if count == 0:  # an empty file cannot be mapped
                return pa.py_buffer(b"")
            with pa.memory_map(str(full)) as mapped:
                mapped.seek(offset)
                return mapped.read_buffer(count)

    def list(self, directory: str) -> tuple[FileEntry, ...]:
        """See `CheckpointStorage.list`."""
        prefix = f"{directory}/" if directory else ""
        found = []
        with translated(self.uri, directory, "listing"):
            try:
                entries = os.scandir(self._root / directory)
            except FileNotFoundError:
                return ()
            with entries:
                for entry in entries:
                    # A file may go between being listed and being looked at.
                    with suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False):
                            size = entry.stat().st_size
                            found.append(FileEntry(path=prefix + entry.name, size_bytes=size))
        return tuple(sorted(found))

    def delete(self, path: str) -> None:
        """See `CheckpointStorage.delete`."""
        with translated(self.uri, path, "deleting"), suppress(FileNotFoundError):
            self.disk.unlink(self._root / path)

    def lock(self, path: str, note: bytes) -> StorageLock | None:
        """See `CheckpointStorage.lock`."""
        full = self._root / path
        with translated(self.uri, path, "locking"):
            create_directory(self.disk, full.parent)
            while True:
                try:
                    descriptor = self.disk.lock(full, wait=False)
                except OSError as error:
                    if error.errno in _NO_LOCKS:
                        return None
                    raise
                # Whoever breaks a lock removes the file; a lock on what has no name is none.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), full.lstat()):
                        break
                os.close(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, note)
        return _FileLock(descriptor, full)

    @contextmanager
    def _temporary(self, target: Path, data: bytes) -> Iterator[Path]:
        """Write a durable temporary file; afterwards drop it and make the names durable."""
        temporary = target.with_name(f"{target.name}.{uuid4().hex}.tmp")
        descriptor = create_file(self.disk, temporary)
        try:
            try:
                append(self.disk, descriptor, data)
                self.disk.sync(descriptor)
            finally:
                self.disk.close(descriptor)
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                self.disk.unlink(temporary)
        self.disk.sync_directory(target.parent)


def _reopen_local(root: str, disk: Disk) -> LocalStorage:
    return LocalStorage(root, disk=disk)


class _FileLock:
    """A lock belongs to the open file, which a forked child would hold on to."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        _locks.add(self)

    @property
    def held(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is away for a moment tells nothing
            return True

    def release(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_locks: WeakSet[_FileLock] = WeakSet()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


class _LocalOutput(OutputFile):
    def __init__(self, disk: Disk, full: Path, *, uri: str, path: str) -> None:
        self._disk = disk
        self._full = full
        self._names = (uri, path)
        self._descriptor = create_file(disk, full)

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        with translated(*self._names, "writing"):
            append(self._disk, self._descriptor, data)

    def close(self) -> None:
        with translated(*self._names, "writing"):
            try:
                self._disk.sync(self._descriptor)
            finally:
                self._disk.close(self._descriptor)
            self._disk.sync_directory(self._full.parent)

    def abort(self) -> None:
        with translated(*self._names, "deleting"), suppress(FileNotFoundError):
            self._disk.close(self._descriptor)
            self._disk.unlink(self._full)

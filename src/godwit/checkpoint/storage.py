"""The directory of a checkpoint: on a local disk, or on any file system that ``pyarrow.fs`` opens.

Invariants: when a method that writes returns, its data survive a loss of power; a file
created by `CheckpointStorage.create_exclusive` or `CheckpointStorage.write_atomic` is never seen
half-written; and of any number of writers that create one file exclusively, one succeeds.  On
file systems that cannot guarantee the last, such files are not created at all
(`docs/design/checkpoint.md`).

*Local disks*: crash safety comes from a temporary file, ``fsync``, a second name, and an ``fsync``
of the directory (Pillai et al., OSDI 2014, on why each of them is needed).  The second name is a
hard link, which the kernel gives to one writer only; without hard links, a rename under a lock on
the directory.

*Object stores*: whole objects are created by a single PUT, exclusively if the request has the
condition (``If-None-Match: *``, ``ifGenerationMatch=0``); see `godwit.checkpoint.object_store`.

*Other remote file systems*: whole files are created by a rename.  ``pyarrow.fs`` cannot create a
file exclusively on any of them: its rename on HDFS replaces an existing target; checking before and
after would let two drivers commit one epoch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4
from weakref import WeakSet

import pyarrow as pa
import pyarrow.fs

from godwit.checkpoint.object_store import (
    ObjectStore,
    StoreIgnoresConditionError,
    open_object_store,
)
from godwit.model.errors import (
    CheckpointError,
    CorruptCheckpointError,
    GodwitError,
    StorageFullError,
)
from godwit.model.locations import check_location, local_path, spelled_location
from godwit.model.secrets import Secrets, shown_uri, unless_confidential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RESTORE = "Restore it from a copy of the checkpoint, or start with a new checkpoint."


@contextmanager
def translate_errors(uri: str, path: str, doing: str) -> Iterator[None]:
    """Context that raises errors with a remedy instead of the file system's.

    `FileExistsError` and `BlockingIOError`, which mean that another process was first, are not
    translated. `doing`: ``"reading"``, ``"writing"``, ``"listing"``, ``"locking"`` or
    ``"deleting"``.
    """
    try:
        yield
    except (FileExistsError, BlockingIOError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise _translate_error(error, uri, path, doing) from unless_confidential(error)


def _translate_error(error: Exception, uri: str, path: str, doing: str) -> GodwitError:
    """Return the error with a remedy for a file system's error on `path` of checkpoint `uri`.

    `doing`: see `translate_errors`.
    """
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
    """Return the number of bytes to read of a file of `size` bytes; raise if it is too short.

    `length`: bytes requested from `offset` on; ``None``: all.
    """
    if size < offset + (length or 0):
        raise CorruptCheckpointError(
            f"The file {path!r} of the checkpoint {uri!r} is truncated: it has {size} bytes and "
            f"{offset + (length or 0)} are needed.",
            remedy=_RESTORE,
            file=path,
            uri=uri,
        )
    return size - offset if length is None else length


class OutputFile:
    """A file being written, which ends by `close` or `abort`.

    `write`, `close`, `abort`: their implementation on the file system of the checkpoint.
    """

    def __init__(
        self,
        uri: str,
        path: str,
        *,
        write: Callable[[Any], object],
        close: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        self._uri, self._path = uri, path
        self._write, self._close, self._abort = write, close, abort

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append bytes to the file."""
        with translate_errors(self._uri, self._path, "writing"):
            self._write(data)

    def close(self) -> None:
        """Make the bytes written durable, and close the file."""
        with translate_errors(self._uri, self._path, "writing"):
            self._close()

    def abort(self) -> None:
        """Try to remove the unfinished file; errors are ignored."""
        with translate_errors(self._uri, self._path, "deleting"), suppress(FileNotFoundError):
            self._abort()


class CheckpointStorage(ABC):
    """A checkpoint's directory. Paths are relative to it, with ``/``; instances can be pickled.

    Every method raises `StorageFullError` if there is no room, `CorruptCheckpointError` if a file
    that is read is missing or shorter than it must be, and `CheckpointError` for anything else the
    file system refuses.
    """

    uri: str  # as given, without its secrets: for messages

    @property
    def maps(self) -> bool:
        """True if files that were read stay readable, without a copy, after they are deleted."""
        return False

    def identity(self, path: str) -> tuple[int, ...] | None:  # noqa: ARG002
        """Return numbers that change if a file is written or replaced; ``None``: not known."""
        return None

    @staticmethod
    def open(
        uri: str | os.PathLike[str], *, access: Access = "owner", single_driver: bool = False
    ) -> CheckpointStorage:
        """Return the storage of the checkpoint at `uri`; nothing is created or read yet.

        `access`: who may read files written to local disks: ``"owner"``, or ``"umask"`` for those
        whom the process's umask allows. `single_driver`: the user guarantees that no other driver
        ever writes here; needed only for stores that cannot create a file exclusively.
        """
        check_location(uri, CheckpointError)
        text = os.fspath(uri)
        secrets = Secrets.of_uri(text)
        disk = PosixDisk(access)
        if (path := local_path(text)) is not None:
            return LocalStorage(path, disk=disk)
        spelled = spelled_location(text, error=CheckpointError)
        try:
            if (store := open_object_store(spelled)) is not None:
                return ObjectStorage(text, store, single_driver=single_driver)
            filesystem, root = pyarrow.fs.FileSystem.from_uri(spelled)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint's location {shown_uri(text)!r} cannot be opened: {error}.",
                remedy="Use a path or a URI that pyarrow.fs understands, such as s3://, gs:// or "
                "hdfs://, and check that its credentials and libraries are installed.",
                uri=shown_uri(text),
            ) from secrets.cause(error)
        return RemoteStorage(
            filesystem,
            root,
            uri=text,
            renames=filesystem.type_name == "hdfs",
            single_driver=single_driver,
        )

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a file with these bytes atomically; raise `FileExistsError` if it exists."""

    @abstractmethod
    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically (on HDFS, replacing is not atomic)."""

    @abstractmethod
    def open_output(self, path: str) -> OutputFile:
        """Create a file for writing; its name must be unique, for example by a random part."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Read `length` bytes of a file from `offset` on (without a length, to the end).

        Local files are mapped, not copied; the mapping lives as long as the buffer.
        """

    @abstractmethod
    def list(self, directory: str) -> dict[str, int]:
        """Return path → size in bytes of the files directly in a directory, ordered by path.

        Empty if the directory does not exist. Symbolic links are left out.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    @abstractmethod
    def lock(self, path: str, note: bytes) -> StorageLock | None:
        """Acquire the lock of a file, and write `note` into it for other processes to read.

        Returns ``None`` if the file system has no locks. Raises `BlockingIOError` if this or
        another process holds the lock.
        """

    def requests_beside(self) -> dict[str, int]:
        """Return kind → requests since the last call that belong to no `counting_requests`.

        Empty except on object stores.
        """
        return {}


Access = Literal["owner", "umask"]
"""Readers that a checkpoint allows: its owner alone, or those that the process's umask allows."""

_MODES: Final = {"owner": (0o600, 0o700), "umask": (0o666, 0o777)}


class PosixDisk:
    """System calls that change a disk; tests may crash between any two of them.

    `access`: of created files. `durable`: false for checkpoints of tests, which need
    not survive a crash of the machine.
    """

    _file_mode, _directory_mode = _MODES["owner"]
    _durable = True

    def __init__(self, access: Access = "owner", *, durable: bool = True) -> None:
        self._file_mode, self._directory_mode = _MODES[access]
        self._durable = durable

    def create(self, path: Path) -> int:
        """Create a file that does not exist yet, for writing; return its descriptor."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        return os.open(path, flags, self._file_mode)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append some or all of `data` to an open file; return the number of bytes written."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Make the bytes written to an open file durable (fsync)."""
        if self._durable:
            os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file descriptor."""
        os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the second name `target`, which must not exist."""
        target.hardlink_to(source)

    def replace(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing an existing `target`."""
        source.replace(target)

    def lock(self, path: Path, *, wait: bool) -> int:
        """Lock a file, created if need be, and return its descriptor.

        Closing that releases the lock.

        The lock belongs to the descriptor, not to the process, so threads compete. Raises
        `BlockingIOError` if another descriptor holds it and `wait` is false.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, self._file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """Create a directory."""
        path.mkdir(mode=self._directory_mode)

    def sync_directory(self, path: Path) -> None:
        """Make the file names in a directory durable (fsync)."""
        if not self._durable:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_OWN_DISKS: Final = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
_MOUNTS: Final = Path("/proc/self/mountinfo")


def is_on_own_disk(path: Path, *, mounts: Path = _MOUNTS) -> bool:
    """Return whether only this machine changes the files of a file system.

    These stay as they are while they are mapped, even without a name. On others, such as NFS, CIFS
    and most of FUSE, a page of a file that another machine has deleted cannot be read, and SIGBUS
    ends the process. Unknown types, and platforms that do not tell them, count as such.

    `mounts`: the kernel's table of mounts, as in proc_pid_mountinfo(5).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = Path(f"/proc/self/fdinfo/{descriptor}").read_text().split()
        finally:
            os.close(descriptor)
        mount = fields[fields.index("mnt_id:") + 1]
        for line in mounts.read_text().splitlines():
            mount_fields, _, file_system = line.partition(" - ")
            if mount_fields.split()[0] == mount:
                return file_system.split()[0] in _OWN_DISKS
    except (OSError, ValueError):
        pass
    return False


def create_file(disk: PosixDisk, path: Path) -> int:
    """Create a file for writing, with its missing directories (durably); return its descriptor."""
    try:
        return disk.create(path)
    except FileNotFoundError:
        create_directory(disk, path.parent)
        return disk.create(path)


def create_directory(disk: PosixDisk, path: Path) -> None:
    """Create a directory unless it exists, with missing parents, durably."""
    if path.is_dir():
        return
    create_directory(disk, path.parent)
    with suppress(FileExistsError):
        disk.make_directory(path)
    disk.sync_directory(path.parent)


def append(disk: PosixDisk, descriptor: int, data: bytes | memoryview | pa.Buffer) -> None:
    """Write all of `data` to a file descriptor, in as many calls as it takes."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[disk.write(descriptor, rest) :]


_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL})
_LOCK = ".lock"


class LocalStorage(CheckpointStorage):
    """Checkpoint on a mounted file system."""

    def __init__(self, root: str | Path, *, disk: PosixDisk | None = None) -> None:
        self._root = Path(root).absolute()
        self.disk = PosixDisk() if disk is None else disk
        self.uri = str(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalStorage, disk=self.disk), (self.uri,)

    @property
    def maps(self) -> bool:
        return is_on_own_disk(self._root)

    def identity(self, path: str) -> tuple[int, ...] | None:
        try:
            status = (self._root / path).lstat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a file atomically, by linking a temporary one.

        Raise `FileExistsError` if it exists.
        """
        target = self._root / path
        with (
            translate_errors(self.uri, path, "writing"),
            self._durable_temporary_file(target, data) as temporary,
        ):
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
        """Rename a temporary file to `target`, which must not exist; without links, under a lock.

        `path`: its path in the checkpoint.
        """
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
        """Create or replace a file atomically, by renaming a temporary one."""
        target = self._root / path
        with (
            translate_errors(self.uri, path, "writing"),
            self._durable_temporary_file(target, data) as temporary,
        ):
            self.disk.replace(temporary, target)

    def open_output(self, path: str) -> OutputFile:
        full = self._root / path
        with translate_errors(self.uri, path, "writing"):
            descriptor = create_file(self.disk, full)

        def close() -> None:
            """Make the file durable, and close it."""
            try:
                self.disk.sync(descriptor)
            finally:
                self.disk.close(descriptor)
            self.disk.sync_directory(full.parent)

        def abort() -> None:
            """Close and remove the unfinished file."""
            self.disk.close(descriptor)
            self.disk.unlink(full)

        write = partial(append, self.disk, descriptor)
        return OutputFile(self.uri, path, write=write, close=close, abort=abort)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Return a file, or a part of it, mapped into memory; raise if it is not a plain file."""
        full = self._root / path
        with translate_errors(self.uri, path, "reading"):
            status = full.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise CorruptCheckpointError(
                    f"{path!r} in the checkpoint {self.uri!r} is not a plain file.",
                    remedy="Replace it by the file from a copy of the checkpoint.",
                    file=path,
                    uri=self.uri,
                )
            count = length_to_read(self.uri, path, status.st_size, offset, length)
            if count == 0:  # an empty file cannot be mapped
                return pa.py_buffer(b"")
            with pa.memory_map(str(full)) as mapped:
                mapped.seek(offset)
                return mapped.read_buffer(count)

    def list(self, directory: str) -> dict[str, int]:
        prefix = f"{directory}/" if directory else ""
        files = {}
        with translate_errors(self.uri, directory, "listing"):
            try:
                entries = os.scandir(self._root / directory)
            except FileNotFoundError:
                return {}
            with entries:
                for entry in entries:
                    # A file may go between being listed and being looked at.
                    with suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False):
                            files[prefix + entry.name] = entry.stat().st_size
        return dict(sorted(files.items()))

    def delete(self, path: str) -> None:
        with translate_errors(self.uri, path, "deleting"), suppress(FileNotFoundError):
            self.disk.unlink(self._root / path)

    def lock(self, path: str, note: bytes) -> StorageLock | None:
        """Lock a file by the operating system, and write `note` into it; ``None``: no locks."""
        full = self._root / path
        with translate_errors(self.uri, path, "locking"):
            create_directory(self.disk, full.parent)
            while True:
                try:
                    descriptor = self.disk.lock(full, wait=False)
                except OSError as error:
                    if error.errno in _NO_LOCKS:
                        return None
                    raise
                # Breaking a lock removes the file; a lock on a removed file is void.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), full.lstat()):
                        break
                os.close(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, note)
        return StorageLock(descriptor, full)

    @contextmanager
    def _durable_temporary_file(self, target: Path, data: bytes) -> Iterator[Path]:
        """Context with a durable temporary file.

        At its end the file is deleted, and names are durable.
        """
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


class StorageLock:
    """Lock that the kernel releases with the process.

    It belongs to the open file, which a forked child would hold on to.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """True if the lock is valid: its file has not been deleted."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is away for a moment tells nothing
            return True

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.close()

    def close(self) -> None:
        """Close this process's handle of the lock's file.

        The kernel releases the lock when no process has that handle: a forked child that closes its
        own leaves the lock with the parent.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_locks: WeakSet[StorageLock] = WeakSet()


def _close_in_child() -> None:
    """Close locks inherited by a forked process: they belong to the parent."""
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


class ObjectStorage(CheckpointStorage):
    """Checkpoint on an object store, each of whose requests is counted.

    `store`: the store at `uri`.
    """

    def __init__(self, uri: str, store: ObjectStore, *, single_driver: bool = False) -> None:
        self.uri = shown_uri(uri)
        self._location = uri
        Secrets.of_uri(uri)  # noted, so that messages hide its secrets
        self._store, self._single_driver = store, single_driver

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CheckpointStorage.open, single_driver=self._single_driver), (self._location,)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create an object by a conditional put; raise `FileExistsError` if it exists."""
        with translate_errors(self.uri, path, "writing"):
            if self._single_driver:  # the store may not know conditions
                self._store.create_unconditionally(path, data)
                return
            try:
                self._store.create(path, data)
            except StoreIgnoresConditionError:
                raise CheckpointError(
                    "The object store of the checkpoint ignores the condition that a file is "
                    "created only if it is new, so two drivers could commit one epoch without "
                    "noticing.",
                    remedy="Use a store that honours If-None-Match, or, if no second driver can "
                    "ever be started, guarantee it with gw.Checkpointing(single_driver=True).",
                ) from None

    def write_atomic(self, path: str, data: bytes) -> None:
        with translate_errors(self.uri, path, "writing"):
            self._store.put(path, data)

    def open_output(self, path: str) -> OutputFile:
        with translate_errors(self.uri, path, "writing"):
            writer = self._store.open_writer(path)

        def abort() -> None:
            """Complete the object, so that no parts stay, and delete it."""
            writer.close()
            self._store.delete(path)

        return OutputFile(self.uri, path, write=writer.write, close=writer.close, abort=abort)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        with translate_errors(self.uri, path, "reading"):
            data = self._store.get(path, offset, length)
            if length is not None and data.size < length:
                size = self._store.size(path) or 0
                length_to_read(self.uri, path, size, offset, length)
            return data

    def list(self, directory: str) -> dict[str, int]:
        with translate_errors(self.uri, directory, "listing"):
            return dict(sorted(self._store.list(directory).items()))

    def delete(self, path: str) -> None:
        with translate_errors(self.uri, path, "deleting"), suppress(FileNotFoundError):
            self._store.delete(path)

    def lock(self, path: str, note: bytes) -> None:
        """Return None: object stores have no locks."""

    def requests_beside(self) -> dict[str, int]:
        return self._store.requests.taken()


class RemoteStorage(CheckpointStorage):
    """Checkpoint on a file system of ``pyarrow.fs`` that `ObjectStorage` is not for."""

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        root: str,
        *,
        uri: str,
        renames: bool,
        single_driver: bool = False,
    ) -> None:
        self.uri = shown_uri(uri)
        self._location = uri
        Secrets.of_uri(uri)  # noted, so that messages hide its secrets
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._renames = renames
        self._single_driver = single_driver

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CheckpointStorage.open, single_driver=self._single_driver), (self._location,)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a file, if the user guarantees that no other driver does.

        Raise `FileExistsError` if it exists.
        """
        with translate_errors(self.uri, path, "writing"):
            info = self._filesystem.get_file_info(self._full_path(path))
            if info.type != pyarrow.fs.FileType.NotFound:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            if not self._single_driver:
                raise CheckpointError(
                    f"On the store of the checkpoint {self.uri!r}, a file cannot be created only "
                    f"if it is new, so two drivers could commit one epoch without noticing.",
                    remedy="For s3://, gs:// and abfss:// install the client that can, with "
                    "pip install 'godwit-streams[object-stores]'. If no second driver can ever be "
                    "started, guarantee it with gw.Checkpointing(single_driver=True).",
                    uri=self.uri,
                )
            self._write_whole(path, data)

    def write_atomic(self, path: str, data: bytes) -> None:
        with translate_errors(self.uri, path, "writing"):
            self._write_whole(path, data)

    def _write_whole(self, path: str, data: bytes) -> None:
        """Write a file so that readers see all of it or nothing."""
        if not self._renames:
            self._write_object(path, data)
            return
        temporary = f"{path}.{uuid4().hex}.tmp"
        self._write_object(temporary, data)
        # Arrow deletes a file that is there and then renames.
        self._filesystem.move(self._full_path(temporary), self._full_path(path))

    def open_output(self, path: str) -> OutputFile:
        full = self._full_path(path)
        with translate_errors(self.uri, path, "writing"):
            file = _open_remote(self._filesystem, full)

        def abort() -> None:
            """Close the stream, and delete the object."""
            # Arrow has no way to drop a stream, so the file is completed and then deleted.
            file.close()
            self._filesystem.delete_file(full)

        return OutputFile(self.uri, path, write=file.write, close=file.close, abort=abort)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        with (
            translate_errors(self.uri, path, "reading"),
            self._filesystem.open_input_file(self._full_path(path)) as file,
        ):
            count = length_to_read(self.uri, path, file.size(), offset, length)
            file.seek(offset)
            return file.read_buffer(count)

    def list(self, directory: str) -> dict[str, int]:
        selector = pyarrow.fs.FileSelector(self._full_path(directory), allow_not_found=True)
        prefix = f"{directory}/" if directory else ""
        with translate_errors(self.uri, directory, "listing"):
            files = self._filesystem.get_file_info(selector)
        return dict(sorted((prefix + file.base_name, file.size) for file in files if file.is_file))

    def delete(self, path: str) -> None:
        with translate_errors(self.uri, path, "deleting"), suppress(FileNotFoundError):
            self._filesystem.delete_file(self._full_path(path))

    def lock(self, path: str, note: bytes) -> None:
        """Return None: these file systems have no locks."""

    def _full_path(self, path: str) -> str:
        """Return the path on the file system of a file of the checkpoint."""
        return f"{self._root}/{path}" if path else self._root

    def _write_object(self, path: str, data: bytes) -> None:
        """Write an object in one piece."""
        with _open_remote(self._filesystem, self._full_path(path)) as file:
            file.write(data)


def _open_remote(filesystem: pyarrow.fs.FileSystem, full: str) -> pa.NativeFile:
    """Open a file by its full path for writing; create its directory if absent."""
    try:
        return filesystem.open_output_stream(full)
    except FileNotFoundError:
        # Object stores have no directories to create; where there are some, this is the first
        # file in one.
        filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(full)

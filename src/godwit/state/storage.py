"""The directory that a checkpoint lives in, on any file system that ``pyarrow.fs`` opens.

The checkpoint needs little of a file system, and little can be had everywhere: whole files that
appear at once or not at all, files that are streamed and then durable, reading a range, listing a
directory, deleting.  No file is ever changed in place.

Invariant: when a method that writes returns, what it wrote survives a loss of power, and a file
created by `CheckpointStorage.create_exclusive` or `CheckpointStorage.write_atomic` is never seen
half-written.  Local disks get this from a temporary file, ``fsync``, a link and an ``fsync`` of the
directory (Pillai et al., OSDI 2014, on why each of them is needed); HDFS from a rename; object
stores from a single PUT.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs

from godwit.model.errors import CheckpointError
from godwit.state.disk import PosixDisk, append, create_file
from godwit.state.storage_errors import length_to_read, translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from godwit.state.disk import Disk

__all__ = ["CheckpointStorage", "FileEntry", "LocalStorage", "OutputFile", "RemoteStorage"]

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileEntry:
    """A file of the checkpoint: its path within it, and its size in bytes."""

    path: str
    size_bytes: int


class OutputFile(ABC):
    """A file being written. Leaving the context closes it, or drops it after an exception."""

    @abstractmethod
    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        """Append `data`."""

    @abstractmethod
    def close(self) -> None:
        """Make everything written durable."""

    @abstractmethod
    def abort(self) -> None:
        """Give up: remove what was written, as far as that is possible."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class CheckpointStorage(ABC):
    """A checkpoint's directory. Paths are relative to it, with ``/``; instances can be pickled.

    Every method raises `StorageFullError` if there is no room, `CorruptCheckpointError` if a file
    that is read is missing or shorter than it must be, and `CheckpointError` for anything else the
    file system refuses.

    Attributes
    ----------
    uri
        What it was opened with.
    """

    uri: str

    @staticmethod
    def open(uri: str | os.PathLike[str]) -> CheckpointStorage:
        """Open the directory at `uri`; nothing is created or read yet.

        Parameters
        ----------
        uri
            A path, or a URI as ``pyarrow.fs.FileSystem.from_uri`` understands it: ``file://``,
            ``s3://bucket/path?region=...``, ``gs://``, ``abfss://``, ``hdfs://host:port/path``.
            Spark's spellings ``s3a://`` and ``s3n://`` are understood too.
        """
        text = os.fspath(uri)
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", text)
        if scheme is None:
            return LocalStorage(text)
        spelled = re.sub(r"^s3[an]://", "s3://", text)
        try:
            filesystem, root = pyarrow.fs.FileSystem.from_uri(spelled)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint's location {text!r} cannot be opened: {error}.",
                remedy="Use a path or a URI that pyarrow.fs understands, such as s3://, gs:// or "
                "hdfs://, and check that its credentials and libraries are installed.",
                uri=text,
            ) from error
        if filesystem.type_name == "local":
            return LocalStorage(root)
        renames = filesystem.type_name == "hdfs"
        return RemoteStorage(filesystem, root, uri=text, renames=renames)

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a whole file at once, only if there is none of that name.

        Raises
        ------
        FileExistsError
            If there is one. Object stores offer no such operation through Arrow: there, the file
            is looked for before and compared after, which tells two writers apart unless the
            second overwrites the first after the first has looked.
        """

    @abstractmethod
    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace a whole file at once (on HDFS, replacing is not atomic)."""

    @abstractmethod
    def open_output(self, path: str) -> OutputFile:
        """Begin a new file; its name must be unique, for example by a random part."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Read `length` bytes at `offset` (to the end, without a length).

        Local files are mapped, not copied; the mapping lives as long as the buffer.
        """

    @abstractmethod
    def list(self, directory: str) -> tuple[FileEntry, ...]:
        """Files directly in `directory`, ordered by path; none if it does not exist."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; it is no error if there is none."""


class LocalStorage(CheckpointStorage):
    """A checkpoint on a file system of this machine, or one that is mounted on every machine.

    Parameters
    ----------
    root
        Path; created when something is written.
    disk
        What changes the disk; pickled along.
    """

    def __init__(self, root: str | Path, *, disk: Disk | None = None) -> None:
        self._root = Path(root).absolute()
        self._disk: Disk = PosixDisk() if disk is None else disk
        self.uri = str(self._root)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_local, (self.uri, self._disk)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.create_exclusive`."""
        target = self._root / path
        with translated(self.uri, path, "writing"), self._temporary(target, data) as temporary:
            try:
                self._disk.link(temporary, target)
            except FileExistsError:
                raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # Without hard links, looking first is the best there is.
                if target.exists():
                    raise FileExistsError(errno.EEXIST, "File exists", path) from error
                self._disk.replace(temporary, target)

    def write_atomic(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.write_atomic`."""
        target = self._root / path
        with translated(self.uri, path, "writing"), self._temporary(target, data) as temporary:
            self._disk.replace(temporary, target)

    def open_output(self, path: str) -> OutputFile:
        """See `CheckpointStorage.open_output`."""
        with translated(self.uri, path, "writing"):
            return _LocalOutput(self._disk, self._root / path, uri=self.uri, path=path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """See `CheckpointStorage.read`."""
        full = self._root / path
        with translated(self.uri, path, "reading"):
            count = length_to_read(self.uri, path, full.stat().st_size, offset, length)
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
                        if entry.is_file():
                            size = entry.stat().st_size
                            found.append(FileEntry(path=prefix + entry.name, size_bytes=size))
        return tuple(sorted(found))

    def delete(self, path: str) -> None:
        """See `CheckpointStorage.delete`."""
        with translated(self.uri, path, "deleting"), suppress(FileNotFoundError):
            self._disk.unlink(self._root / path)

    @contextmanager
    def _temporary(self, target: Path, data: bytes) -> Iterator[Path]:
        """Write a durable temporary file; afterwards drop it and make the names durable."""
        temporary = target.with_name(f"{target.name}.{uuid4().hex}.tmp")
        descriptor = create_file(self._disk, temporary)
        try:
            try:
                append(self._disk, descriptor, data)
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                self._disk.unlink(temporary)
        self._disk.sync_directory(target.parent)


def _reopen_local(root: str, disk: Disk) -> LocalStorage:
    return LocalStorage(root, disk=disk)


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


class RemoteStorage(CheckpointStorage):
    """A checkpoint on a file system of ``pyarrow.fs``.

    Parameters
    ----------
    filesystem
        The file system.
    root
        Path of the checkpoint in it.
    uri
        What to open it with again, in another process.
    renames
        Whether files appear by being renamed (HDFS), and not by a single PUT (object stores).
    """

    def __init__(
        self, filesystem: pyarrow.fs.FileSystem, root: str, *, uri: str, renames: bool
    ) -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._renames = renames

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointStorage.open, (self.uri,)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.create_exclusive`."""
        with translated(self.uri, path, "writing"):
            self._refuse_existing(path)
            if not self._renames:
                self._put(path, data)
                if self.read(path) != pa.py_buffer(data):
                    raise FileExistsError(errno.EEXIST, "Another writer came after", path)
                return
            temporary = f"{path}.{uuid4().hex}.tmp"
            self._put(temporary, data)
            try:
                # HDFS refuses to rename onto a file that exists.
                self._filesystem.move(self._full(temporary), self._full(path))
            except OSError:
                _delete_remote(self._filesystem, self._full(temporary))
                self._refuse_existing(path)
                raise

    def write_atomic(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.write_atomic`."""
        with translated(self.uri, path, "writing"):
            if not self._renames:
                self._put(path, data)
                return
            temporary = f"{path}.{uuid4().hex}.tmp"
            self._put(temporary, data)
            _delete_remote(self._filesystem, self._full(path))
            self._filesystem.move(self._full(temporary), self._full(path))

    def open_output(self, path: str) -> OutputFile:
        """See `CheckpointStorage.open_output`."""
        with translated(self.uri, path, "writing"):
            return _RemoteOutput(self._filesystem, self._full(path), uri=self.uri, path=path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """See `CheckpointStorage.read`."""
        with (
            translated(self.uri, path, "reading"),
            self._filesystem.open_input_file(self._full(path)) as file,
        ):
            count = length_to_read(self.uri, path, file.size(), offset, length)
            file.seek(offset)
            return file.read_buffer(count)

    def list(self, directory: str) -> tuple[FileEntry, ...]:
        """See `CheckpointStorage.list`."""
        selector = pyarrow.fs.FileSelector(self._full(directory), allow_not_found=True)
        prefix = f"{directory}/" if directory else ""
        with translated(self.uri, directory, "listing"):
            return tuple(
                sorted(
                    FileEntry(path=prefix + info.base_name, size_bytes=info.size)
                    for info in self._filesystem.get_file_info(selector)
                    if info.is_file
                )
            )

    def delete(self, path: str) -> None:
        """See `CheckpointStorage.delete`."""
        with translated(self.uri, path, "deleting"):
            _delete_remote(self._filesystem, self._full(path))

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _refuse_existing(self, path: str) -> None:
        info = self._filesystem.get_file_info(self._full(path))
        if info.type != pyarrow.fs.FileType.NotFound:
            raise FileExistsError(errno.EEXIST, "File exists", path)

    def _put(self, path: str, data: bytes) -> None:
        with _open_remote(self._filesystem, self._full(path)) as file:
            file.write(data)


def _open_remote(filesystem: pyarrow.fs.FileSystem, full: str) -> pa.NativeFile:
    try:
        return filesystem.open_output_stream(full)
    except FileNotFoundError:
        # Object stores have no directories to create; where there are some, this is the first
        # file in one.
        filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(full)


def _delete_remote(filesystem: pyarrow.fs.FileSystem, full: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.delete_file(full)


class _RemoteOutput(OutputFile):
    def __init__(
        self, filesystem: pyarrow.fs.FileSystem, full: str, *, uri: str, path: str
    ) -> None:
        self._filesystem = filesystem
        self._full = full
        self._names = (uri, path)
        self._file = _open_remote(filesystem, full)

    def write(self, data: bytes | memoryview | pa.Buffer) -> None:
        with translated(*self._names, "writing"):
            self._file.write(data)

    def close(self) -> None:
        with translated(*self._names, "writing"):
            self._file.close()

    def abort(self) -> None:
        with translated(*self._names, "deleting"):
            # Arrow has no way to drop a stream, so the file is completed and then deleted.
            self._file.close()
            _delete_remote(self._filesystem, self._full)

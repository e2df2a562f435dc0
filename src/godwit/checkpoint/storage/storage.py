"""The directory that a checkpoint lives in, on any file system that ``pyarrow.fs`` opens.

The checkpoint needs little of a file system, and little can be had everywhere: whole files that
appear at once or not at all, files that are streamed and then durable, reading a range, listing a
directory, deleting, and creating a file only if there is none.  No file that counts is ever changed
in place.

Invariants: when a method that writes returns, what it wrote survives a loss of power; a file
created by `CheckpointStorage.create_exclusive` or `CheckpointStorage.write_atomic` is never seen
half-written; and of any number of writers that create one file exclusively, one succeeds.  Where
the last cannot be had, such a file is not created at all (decision 0008).
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.fs

from godwit.checkpoint.storage.disk import PosixDisk
from godwit.model.errors import CheckpointError
from godwit.model.secrets import Secrets, shown_uri

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from godwit.checkpoint.storage.disk import Access

__all__ = ["CheckpointStorage", "FileEntry", "OutputFile", "StorageLock"]


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


class StorageLock(Protocol):
    """A lock that the kernel lets go of with the process."""

    @property
    def held(self) -> bool:
        """Whether the lock still counts: nobody has broken it by removing its file."""

    def release(self) -> None:
        """Let go of it; again does nothing."""


class CheckpointStorage(ABC):
    """A checkpoint's directory. Paths are relative to it, with ``/``; instances can be pickled.

    Every method raises `StorageFullError` if there is no room, `CorruptCheckpointError` if a file
    that is read is missing or shorter than it must be, and `CheckpointError` for anything else the
    file system refuses.
    """

    uri: str  # what it was opened with, without what is confidential in it: for people

    @staticmethod
    def open(
        uri: str | os.PathLike[str], *, access: Access = "owner", single_driver: bool = False
    ) -> CheckpointStorage:
        """Open the directory at `uri`; nothing is created or read yet.

        `access`: who may read what is written on local disks: ``"owner"``, or ``"umask"`` for
        whomever the process's umask lets.
        `single_driver`: the user vouches that no other driver ever writes here. Needed only for
        stores where creating a file cannot be made exclusive.
        """
        from godwit.checkpoint.storage.local import LocalStorage  # noqa: PLC0415  implements this
        from godwit.checkpoint.storage.remote import RemoteStorage  # noqa: PLC0415

        text = os.fspath(uri)
        secrets = Secrets.of_uri(text)
        disk = PosixDisk(access)
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", text)
        if scheme is None:
            return LocalStorage(text, disk=disk)
        spelled = re.sub(r"^s3[an]://", "s3://", text)
        try:
            filesystem, root = pyarrow.fs.FileSystem.from_uri(spelled)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint's location {shown_uri(text)!r} cannot be opened: {error}.",
                remedy="Use a path or a URI that pyarrow.fs understands, such as s3://, gs:// or "
                "hdfs://, and check that its credentials and libraries are installed.",
                uri=shown_uri(text),
            ) from secrets.cause(error)
        if filesystem.type_name == "local":
            return LocalStorage(root, disk=disk)
        return RemoteStorage(
            filesystem,
            root,
            uri=text,
            renames=filesystem.type_name == "hdfs",
            single_driver=single_driver,
        )

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create a whole file at once, only if there is none of that name.

        Raises `FileExistsError` if there is one.
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
        """Files directly in `directory`, ordered by path; none if it does not exist.

        Symbolic links are no files of a checkpoint.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file; it is no error if there is none."""

    @abstractmethod
    def lock(self, path: str, note: bytes) -> StorageLock | None:
        """Take the lock of a file, and leave a note in it for others to read.

        Returns ``None`` where there are no locks.
        Raises `BlockingIOError` if it is taken, by this process or any other.
        """

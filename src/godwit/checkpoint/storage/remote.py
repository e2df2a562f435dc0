"""A checkpoint on a file system that ``pyarrow.fs`` reaches over the network.

Whole files come into being by a single PUT on object stores, and by a rename on HDFS.  Creating a
file only if there is none is beyond ``pyarrow.fs`` on all of them: its PUT overwrites, and its
rename on HDFS deletes a target that exists.  See `godwit.checkpoint.storage.claims`.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs

from godwit.checkpoint.storage.claims import claims_for
from godwit.checkpoint.storage.errors import length_to_read, translated
from godwit.checkpoint.storage.storage import CheckpointStorage, FileEntry, OutputFile
from godwit.model.errors import CheckpointError
from godwit.model.secrets import Secrets, shown_uri

if TYPE_CHECKING:
    from godwit.checkpoint.storage.claims import Claims

__all__ = ["RemoteStorage"]


class RemoteStorage(CheckpointStorage):
    """A checkpoint on a file system of ``pyarrow.fs``."""

    def __init__(
        self,
        filesystem: pyarrow.fs.FileSystem,
        root: str,
        *,
        uri: str,
        renames: bool,
        single_driver: bool = False,
        claims: Claims | None = None,
    ) -> None:
        self.uri = shown_uri(uri)
        self._location = uri
        Secrets.of_uri(uri)  # noted, so that nothing repeats what is confidential in it
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._renames = renames
        self._single_driver = single_driver
        self._claims = claims

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CheckpointStorage.open, single_driver=self._single_driver), (self._location,)

    def create_exclusive(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.create_exclusive`."""
        with translated(self.uri, path, "writing"):
            if self._claims is None:
                self._claims = claims_for(self._location)
            if self._claims is not None:
                self._claims.create(path, data)
                return
            info = self._filesystem.get_file_info(self._full(path))
            if info.type != pyarrow.fs.FileType.NotFound:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            if not self._single_driver:
                raise CheckpointError(
                    f"On the store of the checkpoint {self.uri!r}, a file cannot be created only "
                    f"if there is none, so two drivers could commit one epoch without noticing.",
                    remedy="For s3://, gs:// and abfss:// install the client that can, with "
                    "pip install 'godwit-streams[object-stores]'. If no second driver can ever be "
                    "started, vouch for it with flow.start(single_driver=True).",
                    uri=self.uri,
                )
            self._write_whole(path, data)

    def write_atomic(self, path: str, data: bytes) -> None:
        """See `CheckpointStorage.write_atomic`."""
        with translated(self.uri, path, "writing"):
            self._write_whole(path, data)

    def _write_whole(self, path: str, data: bytes) -> None:
        if not self._renames:
            self._put(path, data)
            return
        temporary = f"{path}.{uuid4().hex}.tmp"
        self._put(temporary, data)
        # Arrow deletes a file that is there and then renames.
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

    def lock(self, path: str, note: bytes) -> None:
        """See `CheckpointStorage.lock`: there are none."""

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

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

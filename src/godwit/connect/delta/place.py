"""Files of a Delta table, on a local disk or in an object store, with absolute paths too."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from godwit.model.errors import GodwitError, SourceError
from godwit.model.locations import is_uri, local_path
from godwit.model.secrets import Secrets, shown_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class TablePlace:
    """Place of a table; a value that can be pickled."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None) -> None:
        local = local_path(path)
        self._path = path if local is None else local  # absolute, in other processes too
        self._options = dict(storage_options or {})
        self.shown = shown_uri(path) if local is None else local
        self.secrets = Secrets.of_uri(path) | Secrets.of_values(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name != "_filesystem_and_path"
        }

    @functools.cached_property
    def _filesystem_and_path(self) -> tuple[pafs.FileSystem, str]:
        """File system, and the table's directory on it."""
        if not is_uri(self._path):
            return pafs.LocalFileSystem(), self._path.rstrip("/")
        return table_files(self._path, self._options)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """File system of the table."""
        return self._filesystem_and_path[0]

    def full_path(self, path: str) -> str:
        """Return a file's path on the file system, from its path within the table."""
        return f"{self._filesystem_and_path[1]}/{path}"

    def open_file(self, path: str) -> pa.NativeFile:
        """Open a file for reading: its path is within the table, or absolute."""
        place, inner = self.place_of(path)
        return place.filesystem.open_input_file(place.full_path(inner))

    def place_of(self, path: str) -> tuple[TablePlace, str]:
        """Return where a file is, and its path there; an absolute path may leave the table."""
        if path.startswith("/"):
            return TablePlace("/", {}), path[1:]
        if path.startswith("file:"):
            return TablePlace("/", {}), re.sub("^file:/+", "", path)
        if not is_uri(path):
            return self, path
        table_prefix = self._path.rstrip("/") + "/"
        if path.startswith(table_prefix):
            return self, path[len(table_prefix) :]
        scheme, _, bucket_and_path = path.partition("://")
        store, _, path_in_store = bucket_and_path.partition("/")
        return TablePlace(f"{scheme}://{store}", self._options), path_in_store

    @contextlib.contextmanager
    def reading(self, what: str, version: int | None = None) -> Iterator[None]:
        """Translate errors of a block that reads the log, or a file of a version."""
        try:
            yield
        except GodwitError:
            raise
        except FileNotFoundError as error:
            if version is None:
                raise self._unreadable_error(what, error) from self.secrets.cause(error)
            raise SourceError(
                f"The {what} of version {version} of the Delta table {self.shown!r} "
                "was removed before it was read, presumably by VACUUM.",
                remedy="Start a new query, with a new checkpoint, from the newest version. Let "
                "VACUUM keep removed files for longer than a query stops or lags behind "
                "(delta.deletedFileRetentionDuration).",
                path=self.shown,
                version=version,
            ) from self.secrets.cause(error)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise self._unreadable_error(what, error) from self.secrets.cause(error)

    def _unreadable_error(self, what: str, error: Exception) -> SourceError:
        """Return the error that the log or a file cannot be read."""
        return SourceError(
            f"The {what} of the Delta table {self.shown!r} cannot be read: "
            f"{self.secrets.hide(error_text(error))}.",
            remedy="Check the path, the credentials (storage_options=), and whether other "
            "engines can read the table.",
            path=self.shown,
        )


def table_files(uri: str, storage_options: Mapping[str, str] | None) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a table, and the table's directory in it."""
    if urlsplit(uri).scheme == "file":
        return pafs.LocalFileSystem(), unquote(urlsplit(uri).path).rstrip("/")
    options = dict(storage_options) if storage_options else None
    return pafs.PyFileSystem(_TableFiles(uri, options)), ""


def error_text(error: Exception) -> str:
    r"""Return the text of a deltalake error on one line, without colours.

    Examples
    --------
    >>> error_text(OSError("Generic error\n  \x1b[31m\u21b3\x1b[0m no such bucket\n"))
    'Generic error: no such bucket'
    """
    lines = re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", str(error)).splitlines()
    text = ": ".join(line.strip() for line in lines if line.strip()).rstrip(".")
    return text or type(error).__name__


class _TableFiles(DeltaStorageHandler):
    """Files in a table's store; the library's own streams refuse pyarrow's buffers."""

    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        """Open a file for writing; an existing file is replaced."""
        stream = self._handler.open_output_stream(path, metadata)
        return pa.PythonFile(_BytesOnly(stream), mode="w")


class _BytesOnly:
    """Stream that passes buffers on as bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write a buffer; return its size in bytes."""
        self._stream.write(bytes(data))
        return len(data)

"""Directories of files that a source reads, on any file system of ``pyarrow.fs``.

A file is known by its path within the directory, its size and its modification time. A listing has
the files in the order in which they are read: by modification time, then by path. Every file has a
*key*, 64 bits of a hash of its path, and a *version*, 32 bits of a hash of size and modification
time; the files that were read are remembered by these (`godwit.connect.files.directory`).
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from godwit.model.errors import SourceError
from godwit.model.locations import check_location, is_remote, spelled_location
from godwit.model.naming import type_name
from godwit.model.secrets import shown_uri
from godwit.sinks.file_systems import open_any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.sources.source import Position


_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ATTEMPTS: Final = 3
_MANY: Final = 1000  # files, which it costs much to look at
_TRUSTED_S: Final = 60.0
_GRAIN_NS: Final = 2 * 10**9  # some file systems tell times no closer
_WRITE_ELSEWHERE: Final = (
    "Write a file under a name that begins with '_' or '.', or in another directory, and rename it "
    "when it is complete."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file as it was listed."""

    path: str  # within the directory
    size: int  # bytes
    modified_ns: int  # Unix time; 0 where the file system does not say


class Listing:
    """Files that existed at one time, in the order in which they are read."""

    def __init__(self, files: Sequence[File], keys: npt.NDArray[np.uint64]) -> None:
        order = sorted(
            range(len(files)), key=lambda number: (files[number].modified_ns, files[number].path)
        )
        self.files = [files[number] for number in order]
        self.keys = keys[order]
        self.versions = hash_versions(self.files)
        self._sorter = np.argsort(self.keys, kind="stable")
        equal_keys = np.flatnonzero(np.diff(self.keys[self._sorter]) == 0)
        if len(equal_keys):
            path, other = (
                self.files[self._sorter[number]].path
                for number in (equal_keys[0], equal_keys[0] + 1)
            )
            raise SourceError(
                f"The names of the files {path!r} and {other!r} have the same hash.",
                remedy="Rename one of them.",
            )

    def find(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the positions of files with these keys in the listing; -1 for missing files."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        places = np.searchsorted(self.keys, keys, sorter=self._sorter)
        places = self._sorter[np.minimum(places, len(self.keys) - 1)]
        return np.where(self.keys[places] == keys, places, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A listing of a local directory, reused while its directories do not change."""

    listing: Listing
    modified_ns: Mapping[str, int]  # of every directory in it, before it was listed
    at_s: float  # monotonic

    def is_current(self) -> bool:
        """Return whether the listed directories have had no file added or removed since."""
        if time.monotonic() - self.at_s > _TRUSTED_S:
            return False
        try:
            return all(os.stat(path).st_mtime_ns == ns for path, ns in self.modified_ns.items())  # noqa: PTH116
        except OSError:
            return False


class Directory:
    """A directory, or one file; a value that can be pickled."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        filesystem: pafs.FileSystem | None,
        pattern: str | None,
        *,
        recursive: bool = True,
    ) -> None:
        for option, value, kinds in (
            ("path", path, (str, os.PathLike)),
            ("filesystem", filesystem, (pafs.FileSystem, type(None))),
            ("pattern", pattern, (str, type(None))),
        ):
            if not isinstance(value, kinds):
                raise SourceError(
                    f"The option {option} of a file source is of type {type_name(value)}.",
                    remedy="Give a path or URI, a pyarrow.fs.FileSystem as filesystem=, and a "
                    'pattern of names such as "*.csv".',
                )
        self._text = os.fspath(path)
        if filesystem is None:
            self._text = spelled_location(self._text, error=SourceError)
        if not self._text:
            raise SourceError(
                "The path of a file source is empty.",
                remedy='Give a directory or a file; "." is the working directory.',
            )
        if filesystem is None:
            check_location(self._text, SourceError)
        self._opened: tuple[pafs.FileSystem, str] | None = None
        if filesystem is not None or not is_remote(self._text):  # opening some asks their server
            self._opened = open_any(self._text, filesystem, error=SourceError)
        is_local = isinstance(self._opened and self._opened[0], pafs.LocalFileSystem)
        self.shown = self._opened[1] if self._opened and is_local else shown_uri(self._text)
        # path or URI, if that alone says where it is
        self.location = self._text if filesystem is None else self.shown if is_local else None
        self._pattern, self._recursive = pattern, recursive
        self._keys: dict[str, int] = {}  # path → key, of the last listing
        self._directories: dict[str, int] = {}  # those of a local disk → when they changed
        self._look: _Look | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keys": {}, "_directories": {}, "_look": None}

    @property
    def filesystem(self) -> pafs.FileSystem:
        """File system of the directory."""
        return self._open_directory[0]

    @property
    def _open_directory(self) -> tuple[pafs.FileSystem, str]:
        """Return the directory's file system and path, opened on first use."""
        if self._opened is None:
            self._opened = open_any(self._text, None, error=SourceError)
        return self._opened

    @property
    def _root(self) -> str:
        """Path of the directory on its file system."""
        return self._open_directory[1]

    def list(self) -> Listing:
        """Return the files that may be read; empty files are skipped until they have data.

        With many files, the last listing is returned if the directories' modification times show no
        added or removed file. A changed file, which is an error, is then found by a later listing.
        Raises `SourceError` if the directory does not exist or cannot be listed.
        """
        if self._look is not None and self._look.is_current():
            return self._look.listing
        for attempt in range(_ATTEMPTS):
            try:
                return self._list_files()
            except FileNotFoundError as error:  # a directory within it may have vanished meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise self._listing_error(error, self._missing_remedy()) from error
            except (OSError, pa.ArrowException) as error:
                raise self._listing_error(
                    error,
                    "Check that it is reachable, and that you have the permission to list it.",
                ) from error
        raise AssertionError

    def _missing_remedy(self) -> str:
        """Return what to do if the directory does not exist."""
        head, _, name = self._text.rpartition("/")
        if set("*?[{") & {*name}:
            return f"Give the directory and a pattern of names: {head or '.'!r}, pattern={name!r}."
        return "Create it before the start, or correct the path."

    def _listing_error(self, error: Exception, remedy: str) -> SourceError:
        """Build the error that the directory cannot be listed."""
        return SourceError(
            f"The directory {self.shown!r} cannot be listed: {_first_line(error)}.",
            remedy=remedy,
            path=self.shown,
        )

    def _list_files(self) -> Listing:
        """List the files now, on a local disk or another file system."""
        known, self._keys = self._keys, {}
        self._look, self._directories = None, {}
        files, waits = [], False
        began_ns = time.time_ns()
        is_local = isinstance(self.filesystem, pafs.LocalFileSystem)
        for file in self._local_files() if is_local else self._remote_files():
            path = file.path
            if path and not self._matches(path):
                continue
            if not file.size:
                waits = True
                continue
            key = known.get(path)
            self._keys[path] = key_of(path) if key is None else key
            files.append(file)
        listing = Listing(files, np.fromiter(self._keys.values(), np.uint64, len(files)))
        # Two changes in quick succession may have one time.
        old = all(ns < began_ns - _GRAIN_NS for ns in self._directories.values())
        if self._directories and old and not waits and len(files) >= _MANY:
            self._look = _Look(
                listing=listing, modified_ns=self._directories, at_s=time.monotonic()
            )
        return listing

    def _remote_files(self) -> Iterator[File]:
        """Yield the directory's files on a remote file system; raise if it reports no sizes."""
        root = self.filesystem.get_file_info(self._root)
        if root.type == pafs.FileType.File:
            infos, start = [root], len(self._root)
        else:
            selector = pafs.FileSelector(self._root, recursive=self._recursive)
            infos = self.filesystem.get_file_info(selector)
            start = len(self._root.rstrip("/")) + 1
        for info in infos:
            if not info.is_file:
                continue
            if info.size is None:
                raise SourceError(
                    f"The file system of {self.shown!r} does not report the size of files.",
                    remedy="Give another filesystem=.",
                    path=self.shown,
                )
            yield File(path=info.path[start:], size=info.size, modified_ns=info.mtime_ns or 0)

    def _local_files(self) -> Iterator[File]:
        """Yield the files below a local directory.

        Links to directories within it are not followed.
        """
        root = self._root
        if not os.path.isdir(root):  # noqa: PTH112  as quick as can be
            status = os.stat(root)  # noqa: PTH116
            yield File(path="", size=status.st_size, modified_ns=status.st_mtime_ns)
            return
        start, waiting = len(root.rstrip("/")) + 1, [root]
        while waiting:
            directory = waiting.pop()
            # What vanishes meanwhile is not there; the directory itself must be.
            with suppress(*([] if directory == root else [FileNotFoundError])):
                self._directories[directory] = os.stat(directory).st_mtime_ns  # noqa: PTH116
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_symlink() and self._is_link_inside(entry.path):
                            continue
                        if entry.is_dir():
                            waiting += [entry.path] if self._recursive else []
                        elif entry.is_file():
                            with suppress(FileNotFoundError):
                                yield self._local_file(entry, start)

    def _local_file(self, entry: os.DirEntry[str], start: int) -> File:
        """Return a local file with size and time.

        `start`: length of the directory's path before it.
        """
        path, status = entry.path[start:], entry.stat()
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"The name of the file {path!r} in {self.shown!r} is not UTF-8.",
                remedy="Rename it, or move it out of the directory.",
                path=self.shown,
            ) from error
        return File(path=path, size=status.st_size, modified_ns=status.st_mtime_ns)

    def _is_link_inside(self, link: str) -> bool:
        """Return whether a link points to a directory that is also read by another path."""
        root, target = os.path.realpath(self._root), os.path.realpath(link)
        parent = os.path.realpath(os.path.dirname(link))  # noqa: PTH120
        if f"{parent}/".startswith(f"{target}/"):
            return True  # it leads round in a circle
        within = f"{target}/".startswith(f"{root}/") and target != root
        return within and self._matches(target[len(root.rstrip("/")) + 1 :])

    def reads(self, path: str) -> bool:
        """Return whether a file of this path within the directory would be read."""
        return (self._recursive or "/" not in path) and self._matches(path)

    def _matches(self, path: str) -> bool:
        """Return whether a file matches the pattern and is not hidden (``_``, ``.``)."""
        *directories, name = path.split("/")
        if path[0] in "._" or "/." in path or "/_" in path:
            hidden = (
                part[0] == "." or (part[0] == "_" and "=" not in part) for part in directories
            )
            if name[0] in "._" or any(hidden):
                return False
        if name.endswith("._COPYING_"):
            return False
        return self._pattern is None or fnmatch.fnmatchcase(name, self._pattern)

    def full_path(self, path: str) -> str:
        """Return a file's path on its file system, from its path within the directory."""
        return f"{self._root.rstrip('/')}/{path}" if path else self._root

    def file_name(self, file: File) -> str:
        """Return a file's path for error messages."""
        return f"{self.shown.rstrip('/')}/{file.path}" if file.path else self.shown

    def check_unchanged(self, file: File) -> None:
        """Raise if a file was changed or deleted since the listing."""
        try:
            info = self.filesystem.get_file_info(self.full_path(file.path))
        except (OSError, pa.ArrowException) as error:
            raise self.unreadable_error(file, error) from error
        if info.type != pafs.FileType.File:
            raise SourceError(
                f"The file {self.file_name(file)!r} was removed before it was read completely.",
                remedy="Put the file back and start the query again, or start it without the "
                "file to continue without its rows. A file may be removed after it was read.",
                file=self.file_name(file),
            )
        if (info.size, info.mtime_ns or 0) != (file.size, file.modified_ns):
            raise self.changed_error(file)

    def changed_error(self, file: File) -> SourceError:
        """Return the error that a file changed before it was read."""
        return SourceError(
            f"The file {self.file_name(file)!r} changed while it was being read. A listed "
            "file must not change.",
            remedy=f"Start the query again to read it as it is now. {_WRITE_ELSEWHERE}",
            file=self.file_name(file),
        )

    def changed_after_error(self, file: File) -> SourceError:
        """Return the error that a file changed after it was read."""
        return SourceError(
            f"The file {self.file_name(file)!r} changed after it was read, so its rows differ "
            "from those that were processed.",
            remedy="Write new rows to new files. To continue without the changes, move the file "
            "out of the directory and start the query again.",
            file=self.file_name(file),
        )

    def unreadable_error(self, file: File, error: Exception) -> SourceError:
        """Return the error that a file cannot be read."""
        if isinstance(error, SourceError):
            return error
        return SourceError(
            f"The file {self.file_name(file)!r} cannot be read: {_first_line(error)}.",
            remedy="Repair it, or move it out of the directory, and start the query again. "
            f"{_WRITE_ELSEWHERE} pattern= selects the files to read.",
            file=self.file_name(file),
        )


def key_of(path: str) -> int:
    """Return the 64-bit hash of a file's path, the same in every process."""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "little")


def hash_versions(files: Sequence[File]) -> npt.NDArray[np.uint32]:
    """Return a hash of size and modification time of each file, to detect changes."""
    modified_ns = np.array([file.modified_ns for file in files], np.int64).astype(np.uint64)
    sizes = np.array([file.size for file in files], np.int64).astype(np.uint64)
    words = modified_ns * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(29))) + sizes
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return (words >> np.uint64(32)).astype(np.uint32)


@functools.lru_cache(maxsize=1024)
def _partition_values(directory: str) -> dict[str, str | None]:
    """Return column → value from directory names such as ``day=2024-05-01``.

    Hive's null is null.
    """
    values: dict[str, str | None] = {}
    for part in directory.split("/"):
        name, equals, value = part.partition("=")
        if equals and name:
            values[_unescape(name)] = None if value == _NULL_PARTITION else _unescape(value)
    return values


def _unescape(text: str) -> str:
    """Return a part of a directory's name with its ``%XX`` decoded.

    They are bytes of UTF-8, as Arrow writes them; else the codes of characters, as for Spark.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return unquote(text, encoding="latin-1")


def partitions_of(file: File) -> dict[str, str | None]:
    """Return column → value from a file's directories, such as ``day=2024-05-01``."""
    directory, slash, _ = file.path.rpartition("/")
    return _partition_values(directory) if slash else {}


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0].removesuffix(".")


OffsetUnit: TypeAlias = Literal["row", "byte"]

_KEY: Final = np.dtype("<u8")
_VERSION: Final = np.dtype("<u4")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """A file that is read up to an offset."""

    file: File
    offset: int
    unit: OffsetUnit | None = None  # None: of a position that does not say

    @property
    def key(self) -> int:
        """Key of the file: the hash of its path (`godwit.connect.files.directory.key_of`)."""
        return key_of(self.file.path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilePosition:
    """Position of a source of files: the set of files that were read.

    It has the key and the version of every file that was read to its end and was still listed at
    the last listing, 12 bytes a file, and the offset in the one file that is read in part. The
    order of files says nothing: a file that appears with an older modification time than files that
    were read is not in the set, so it is read.
    """

    keys: npt.NDArray[np.uint64]  # ascending
    versions: npt.NDArray[np.uint32]  # of the files of these keys
    partly: PartlyRead | None = None

    @staticmethod
    def beginning() -> FilePosition:
        """Return the position before the first file."""
        return FilePosition(keys=np.zeros(0, np.uint64), versions=np.zeros(0, np.uint32))

    @staticmethod
    def of(position: Position) -> FilePosition:
        """Decode a position from a commit record."""
        partly = position["file"]
        return FilePosition(
            keys=np.frombuffer(position["keys"], _KEY).astype(np.uint64),
            versions=np.frombuffer(position["versions"], _VERSION).astype(np.uint32),
            partly=None
            if partly is None
            else PartlyRead(
                file=File(**{field.name: partly[field.name] for field in fields(File)}),
                offset=partly["offset"],
                unit=partly.get("unit"),
            ),
        )

    def encoded(self) -> dict[str, Any]:
        """Encode the position for a commit record."""
        order = np.argsort(self.keys, kind="stable")
        partly = self.partly
        return {
            "keys": self.keys[order].astype(_KEY).tobytes(),
            "versions": self.versions[order].astype(_VERSION).tobytes(),
            "file": None
            if partly is None
            else {**asdict(partly.file), "offset": partly.offset, "unit": partly.unit},
        }

    def describe(self) -> dict[str, Any]:
        """Return the position as a few short values for people."""
        description: dict[str, Any] = {"files": len(self.keys)}
        if (partly := self.partly) is not None:
            offset = " ".join([partly.unit or "", f"{partly.offset:,}"]).strip()
            file_size = f" of {partly.file.size:,}" if partly.unit == "byte" else ""
            description["reading"] = f"{partly.file.path} at {offset}{file_size}"
        return description

    def has_read(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the files (by key) that have been read to the end."""
        return np.isin(keys, self.keys)


def describe_position(position: Position) -> Position:
    """Return a position of a file source as short values for people; other positions unchanged."""
    is_of_files = isinstance(position, dict) and position.keys() == {"keys", "versions", "file"}
    return FilePosition.of(position).describe() if is_of_files else position

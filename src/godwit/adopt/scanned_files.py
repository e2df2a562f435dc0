"""Files of a scan: those that Spark lists, with the partition columns of its directories."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.connect.files.directory import partitions_of
from godwit.connect.files.source import FileSource
from godwit.model.errors import SourceError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.connect.files.directory import File, FilePosition, Listing
    from godwit.connect.files.file_formats import FileFormat, FileRange
    from godwit.sources.source import Position

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_OTHER_ESCAPE: Final = re.compile("%(?![0-7][0-9A-Fa-f])")


def is_of_directories(dtype: pa.DataType) -> bool:
    """Return whether partition values of a type are read as by Spark."""
    types = pa.types
    return bool(types.is_string(dtype) or types.is_signed_integer(dtype) or types.is_date(dtype))


class ScannedFiles(FileSource):
    """Files that a Spark scan reads.

    `partitions`: columns whose values are in the names of directories, from the outermost in.
    `is_pattern`: the pattern is the end of the path, so that it also matches directories.
    `max_bytes_per_epoch`: size of the files of an epoch, of which the first one may be larger.
    `newest_first`: the newest unread files of a new listing are read first.
    """

    def __init__(
        self,
        file_format: FileFormat,
        path: str,
        *,
        schema: pa.Schema,
        partitions: pa.Schema,
        pattern: str | None,
        is_pattern: bool,
        max_files_per_epoch: int | None,
        max_bytes_per_epoch: int | None,
        newest_first: bool,
    ) -> None:
        super().__init__(
            file_format,
            path,
            schema=schema,
            filesystem=None,
            pattern=pattern,
            max_rows_per_epoch=None,
            max_files_per_epoch=max_files_per_epoch,
            recursive=bool(partitions),
        )
        self._partitions, self._is_pattern = partitions, is_pattern
        self._max_bytes, self._newest_first = max_bytes_per_epoch, newest_first

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        if self._newest_first:
            self._listing = None  # newer files may have come
        return super().latest(position, limit=limit, until=until)

    def _unread_ranges(
        self, listing: Listing, read: FilePosition, bound: FilePosition | None
    ) -> Iterator[FileRange]:
        """Yield the unread ranges of files in the order in which they are read.

        A position has one file that is read in part, so that one goes on first.
        """
        ranges = super()._unread_ranges(listing, read, bound)
        if not self._newest_first:
            return ranges
        newest = [*ranges][::-1]
        return iter(sorted(newest, key=lambda piece: piece.start == 0))

    def _ranges_of_epoch(self, pieces: Iterator[FileRange]) -> Iterator[FileRange]:
        """Yield the first ranges, as many as an epoch may read files and bytes."""
        sizes = 0
        for place, piece in enumerate(super()._ranges_of_epoch(pieces)):
            sizes += piece.file.size
            if place and self._max_bytes is not None and sizes > self._max_bytes:
                return
            yield piece

    def _list_directory(self, read: FilePosition) -> Listing:
        """Return the listed files; raise for a directory that the pattern matches."""
        files = super()._list_directory(read)
        if self._is_pattern and self._pattern is not None:
            with os.scandir(self.directory.shown) as entries:
                for entry in entries:
                    if entry.is_dir() and fnmatch.fnmatchcase(entry.name, self._pattern):
                        raise SourceError(
                            f"The pattern {self._pattern!r} matches the directory {entry.path!r}, "
                            "whose files Spark would read, too.",
                            remedy="Move it, or omit own_sources().",
                            file=entry.path,
                        )
        return files

    def _check_path(self, file: File) -> None:
        """Raise for a file that is not in directories of the partitions, or has another value."""
        super()._check_path(file)
        if not self._partitions:
            return
        directory = file.path.rpartition("/")[0]
        values = partitions_of(file)
        names = [part.partition("=")[0] for part in directory.split("/")]
        if names != self._partitions.names or _OTHER_ESCAPE.search(directory):
            raise self._refusal(file, f"is not in directories {listing(self._partitions.names)}")
        for field in self._partitions:
            text: Any = values.get(field.name)
            form = None if pa.types.is_string(field.type) else _WHOLE
            form = _DATE if pa.types.is_date(field.type) else form
            if text is not None and form is not None and not form.fullmatch(text):
                raise self._refusal(file, f"has {field.name}={text}, which is not {field.type}")

    def _refusal(self, file: File, why: str) -> SourceError:
        """Return the error that a file would not be read as by Spark."""
        name = self.directory.file_name(file)
        return SourceError(
            f"The file {name!r} {why}.",
            remedy="Move it out of the directory, or omit own_sources().",
            file=name,
        )

"""Files that appear in a directory: `gw.sources.parquet`, `csv`, `json` and `arrow`.

The driver lists the directory, and an epoch reads files that were not read before: first the rest
of a file that the last epoch has begun, then the others by modification time and path, as they were
listed. While files of a listing are left it does not list again. Every file is looked at before
and after it is read: one that is not what it was when it was listed is refused by its name, so a
split gives the same rows again or raises.

A row is never lost or read twice, because the position is the set of the files that were read, and
not the last of them (`godwit.connect.files.directory`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import has_leaf
from godwit.columns.types import plain_schema, to_schema
from godwit.connect.files.directory import (
    Directory,
    File,
    FilePosition,
    Listing,
    PartlyRead,
    hash_versions,
    key_of,
    partitions_of,
)
from godwit.connect.files.file_formats import BadLine, FileRange
from godwit.connect.files.file_types import (
    cast_column,
    common_schema,
    with_types_of,
    without_layouts,
)
from godwit.connect.formats.text_values import from_text
from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import check_number
from godwit.model.naming import listing as quoted
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split, Unreadable, check_on_bad

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow.fs as pafs

    from godwit.columns.types import SchemaLike
    from godwit.connect.files.file_formats import FileFormat, FileLayout
    from godwit.sources.source import Position

_MIN_SPLIT_BYTES: Final = 64 << 10
_FEW_FILES: Final = 64  # up to this number, an epoch counts the rows before it reads them
_FEW_BYTES: Final = 1 << 20
_LAYOUTS_AT_ONCE: Final = 16
_MAX_LAYOUTS: Final = 4096  # remembered
_FILES_FOR_TYPES: Final = 16  # that may be asked for the type of a column without values
_UNREADABLE: Final = pa.schema(
    [("path", pa.string()), ("value", pa.binary()), ("error", pa.string())]
)
_logger = logging.getLogger("godwit")
_missing: set[tuple[str, str]] = set()  # sources and columns of which a warning was logged


class FileSource(Source):
    """Rows of the files of a directory; options are those of `gw.sources.parquet`."""

    def __init__(
        self,
        file_format: FileFormat,
        path: str | os.PathLike[str],
        *,
        schema: SchemaLike | None,
        filesystem: pafs.FileSystem | None,
        pattern: str | None,
        max_rows_per_epoch: int | None,
        max_files_per_epoch: int | None,
        recursive: bool = True,
        on_bad: str = "refuse",  # lines of text
        rejects: Any = None,
    ) -> None:
        for option, value in (
            ("max_rows_per_epoch", max_rows_per_epoch),
            ("max_files_per_epoch", max_files_per_epoch),
        ):
            if value is not None:
                check_number(option, value, least=1, error=SourceError)
        self._format, self._max_rows = file_format, max_rows_per_epoch
        self._max_files = max_files_per_epoch
        self._directory = Directory(path, filesystem, pattern, recursive=recursive)
        self._pattern = pattern
        check_on_bad(self.identity, on_bad, rejects)
        self._on_bad, self.rejects = on_bad, rejects
        if on_bad != "refuse":
            self.unreadable = _UNREADABLE
        self._schema: pa.Schema | None = None
        if schema is not None:
            where = f"The schema of {self.identity}"
            self._schema = without_layouts(plain_schema(to_schema(schema, where=where)))
            file_format.check_schema(self._schema)
        self._listing: Listing | None = None
        self._idle_at: Position | None = None  # a position behind all that the listing has
        # key → version and file, of those that the last result of `latest` or `end` added
        self._taken: dict[int, tuple[int, File]] = {}
        self._layouts: dict[File, FileLayout | None] = {}

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the driver's caches and the sink; copies only read splits."""
        forgotten: dict[str, Any] = {"_listing": None, "_idle_at": None, "_taken": {}}
        forgotten["rejects"] = None
        return {**self.__dict__, **forgotten, "_layouts": {}}

    @property
    def schema(self) -> pa.Schema:
        """Columns given by the user, or those of the first file."""
        if self._schema is None:
            self._schema = self._look_up_schema()
        return self._schema

    @property
    def directory(self) -> Directory:
        """Directory that is read."""
        return self._directory

    @property
    def identity(self) -> str:
        """Directory and format, without credentials; the same over restarts."""
        pattern = "" if self._pattern is None else f", {self._pattern}"
        return f"{self._format.name} files in {self._directory.shown}{pattern}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The directory."""
        return (self._directory.shown,)

    def _look_up_schema(self) -> pa.Schema:
        """Read the first file's schema, with its directories' columns; raise if there is none."""
        listing = self._listing or self._directory.list()
        if not listing.files:
            raise SourceError(
                f"There are no files in {self._directory.shown!r} to infer a schema from.",
                remedy="Give schema=, or put a file there first.",
                path=self._directory.shown,
            )
        first = listing.files[0]
        stored = self._schema_of(first)
        for file in listing.files[1:_FILES_FOR_TYPES]:
            if not any(has_leaf(field.type, pa.types.is_null) for field in stored):
                break
            with contextlib.suppress(SourceError):  # it is refused when it is read
                stored = with_types_of(stored, self._schema_of(file))
        schema = common_schema(stored)
        values: dict[str, list[str | None]] = {}
        for file in listing.files:
            for name, value in partitions_of(file).items():
                values.setdefault(name, []).append(value)
        fields = {field.name: field.type for field in schema}
        fields.update({name: _type_of_values(texts) for name, texts in values.items()})
        where = f"The file {self._directory.file_name(first)!r}"
        return to_schema(pa.schema(list(fields.items())), where=where)

    def _schema_of(self, file: File) -> pa.Schema:
        """Return the schema of a file, or raise."""
        try:
            return self._format.schema(self._directory, file)
        except (OSError, ValueError, pa.ArrowException, GodwitError) as error:
            raise self._directory.unreadable_error(file, error) from error

    # -- what there is to read --------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """List the directory; raise if files that were read before `position` have changed."""
        self._listing = self._list_directory(
            FilePosition.beginning() if position is None else FilePosition.of(position)
        )

    def start(self) -> Position:
        return FilePosition.beginning().encoded()

    def _list_directory(self, read: FilePosition) -> Listing:
        """Return the listed files.

        Raise if a file that the position `read` covers has changed since.
        """
        listing = self._directory.list()
        self._check_listing(listing, read)
        self._idle_at = None
        return listing

    def _check_listing(self, listing: Listing, read: FilePosition) -> None:
        """Raise if a file that the position `read` covers was deleted or changed."""
        places = listing.find(read.keys)
        exists = places >= 0
        changed = listing.versions[places[exists]] != read.versions[exists]
        if changed.any():
            raise self._directory.changed_after_error(
                listing.files[int(places[exists][changed][0])]
            )
        if read.partly is not None:
            self._directory.check_unchanged(read.partly.file)

    def end(self, position: Position) -> Position:
        """Return the position after all files of a new listing."""
        read = FilePosition.of(position)
        self._listing = self._list_directory(read)
        pieces = list(self._unread_ranges(self._listing, read, None))
        return self._position_after(position, read, pieces, None)

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        idle = until is None and self._idle_at is not None and self._idle_at == position
        if idle:
            listing_before, self._listing = self._listing, self._directory.list()
            if self._listing is listing_before:
                return position
        read = FilePosition.of(position)
        bound = None if until is None else FilePosition.of(until)
        pieces: Iterator[FileRange] = iter(())
        if self._listing is not None:
            self._check_listing(self._listing, read)
            pieces = self._unread_ranges(self._listing, read, bound)
        first = next(pieces, None)
        if first is None and not idle and (bound is None or self._listing is None):
            self._listing = self._list_directory(read)
            pieces = self._unread_ranges(self._listing, read, bound)
            first = next(pieces, None)
        if bound is None:
            self._idle_at = position if first is None else None
        if first is None:
            return position
        pieces = self._ranges_of_epoch(itertools.chain([first], pieces))
        limits = [max_rows for max_rows in (limit, self._max_rows) if max_rows is not None]
        if limits:
            return self._position_after(position, read, *self._take_ranges(pieces, min(limits)))
        ranges = list(pieces)
        return self._position_after(position, read, ranges, ranges[-1].stop)

    def _unread_ranges(
        self, listing: Listing, read: FilePosition, bound: FilePosition | None
    ) -> Iterator[FileRange]:
        """Yield the unread ranges of files, oldest file first; `bound`: position not to exceed."""
        is_new = ~read.has_read(listing.keys)
        last_partly = None if bound is None else bound.partly
        if bound is not None:
            is_within = bound.has_read(listing.keys)
            if last_partly is not None:
                is_within |= listing.keys == np.uint64(last_partly.key)
            is_new &= is_within
        if (partly := read.partly) is not None:
            is_new &= listing.keys != np.uint64(partly.key)
            if bound is None or bound.has_read(np.array([partly.key], np.uint64))[0]:
                yield FileRange(file=partly.file, start=partly.offset)
            elif (
                last_partly is not None
                and last_partly.file == partly.file
                and partly.offset < last_partly.offset
            ):
                yield FileRange(file=partly.file, start=partly.offset, stop=last_partly.offset)
        for number in np.flatnonzero(is_new).tolist():
            file = listing.files[number]
            stop = (
                last_partly.offset if last_partly is not None and last_partly.file == file else None
            )
            yield FileRange(file=file, stop=stop)

    def _ranges_of_epoch(self, pieces: Iterator[FileRange]) -> Iterator[FileRange]:
        """Yield the first ranges, up to the number of files that an epoch may read."""
        return itertools.islice(pieces, self._max_files)

    def _take_ranges(
        self, pieces: Iterable[FileRange], rows: int
    ) -> tuple[list[FileRange], int | None]:
        """Return the first ranges with about `rows` rows, and the offset to cut the last one at.

        ``None``: it is not cut.
        """
        taken, rows_left, unread = [], rows, iter(pieces)
        while rows_left > 0 and (next_pieces := list(itertools.islice(unread, _LAYOUTS_AT_ONCE))):
            layouts = self._layouts_of([piece.file for piece in next_pieces])
            for piece, layout in zip(next_pieces, layouts, strict=True):
                taken.append(piece)
                with _reading_unchanged(self._directory, piece.file):
                    stop, count = self._format.advance(
                        self._directory, piece.file, layout, piece.start, rows_left
                    )
                    end = self._format.end(piece.file, layout)
                if piece.stop is not None and stop >= piece.stop:
                    return taken, piece.stop
                if stop < end:
                    return taken, stop
                rows_left -= count
                if rows_left <= 0:
                    break
        return taken, None

    def _position_after(
        self, position: Position, read: FilePosition, taken: Sequence[FileRange], cut: int | None
    ) -> Position:
        """Return the position after the ranges `taken`.

        `cut`: offset where the last one was cut. Raise for a file whose name says that it cannot be
        read.
        """
        if not taken:
            return position
        for piece in taken:
            self._check_path(piece.file)
        assert self._listing is not None, "pieces come from a listing"
        listing = self._listing
        partly = (
            None
            if cut is None
            else PartlyRead(file=taken[-1].file, offset=cut, unit=self._format.unit)
        )
        read_whole = taken if cut is None else taken[:-1]
        files = [piece.file for piece in read_whole]
        keys = np.array([key_of(file.path) for file in files], np.uint64)
        versions = hash_versions(files)
        exists = listing.find(read.keys) >= 0
        versioned = zip(versions.tolist(), files, strict=True)
        self._taken = dict(zip(keys.tolist(), versioned, strict=True))
        return FilePosition(
            keys=np.concatenate([read.keys[exists], keys]),
            versions=np.concatenate([read.versions[exists], versions]),
            partly=partly,
        ).encoded()

    def _check_path(self, file: File) -> None:
        """Raise if a file's name shows that it cannot be read."""
        try:
            self._format.check_path(file.path or self._directory.full_path(""))
        except ValueError as error:
            raise self._directory.unreadable_error(file, error) from error

    # -- splits -----------------------------------------------------------------------------------

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones."""
        pieces = self._ranges_between(FilePosition.of(begin), FilePosition.of(end))
        if not pieces:
            return []
        layouts: dict[File, FileLayout | None] = {}
        total = sum(piece.file.size for piece in pieces)
        target = max(total / max(parallelism, 1), _MIN_SPLIT_BYTES)
        files_with_layout = [
            piece.file
            for piece in pieces
            if len(pieces) <= _FEW_FILES or piece.file.size > target or piece.is_cut
        ]
        layouts.update(zip(files_with_layout, self._layouts_of(files_with_layout), strict=True))
        parts = [part for piece in pieces for part in self._cut_range(piece, layouts, target / 8)]
        num_bytes = sum((size for _, size in parts), 0.0)
        target = max(num_bytes / max(parallelism, 1), _MIN_SPLIT_BYTES)
        grouped: dict[int, list[tuple[FileRange, float]]] = {}
        bytes_before = 0.0
        for part, size in parts:
            grouped.setdefault(int((bytes_before + size / 2) / target), []).append((part, size))
            bytes_before += size
        is_small = num_bytes <= _FEW_BYTES and len(pieces) <= _FEW_FILES
        return [self._make_split(group, layouts, few=is_small) for group in grouped.values()]

    def _ranges_between(self, begin: FilePosition, end: FilePosition) -> list[FileRange]:
        """Return the ranges of files between two positions, oldest file first."""
        new = ~begin.has_read(end.keys)
        first, last = begin.partly, end.partly
        files = self._files_of_keys(end.keys[new], end.versions[new])
        files.sort(key=lambda file: (file.modified_ns, file.path))
        pieces = []
        if first is not None and first.file in files:
            pieces.append(FileRange(file=first.file, start=first.offset))
        pieces += [FileRange(file=file) for file in files if first is None or file != first.file]
        if last is not None:
            start = first.offset if first is not None and first.file == last.file else 0
            if start < last.offset:
                pieces.append(FileRange(file=last.file, start=start, stop=last.offset))
        return pieces

    def _files_of_keys(
        self, keys: npt.NDArray[np.uint64], versions: npt.NDArray[np.uint32]
    ) -> list[File]:
        """Return the files with these keys; raise if one was deleted or changed since."""
        if self._listing is None:
            self._listing = self._directory.list()
        files = []
        for key, version, place in zip(
            keys.tolist(), versions.tolist(), self._listing.find(keys).tolist(), strict=True
        ):
            taken = self._taken.get(key)
            if taken is not None and taken[0] == version:
                files.append(taken[1])
            elif place < 0:
                raise SourceError(
                    f"A file in {self._directory.shown!r} was removed before it was read.",
                    remedy="Start the query again to continue without its rows.",
                )
            elif self._listing.versions[place] != version:
                raise self._directory.changed_error(self._listing.files[place])
            else:
                files.append(self._listing.files[place])
        return files

    def _cut_range(
        self, piece: FileRange, layouts: dict[File, FileLayout | None], target: float
    ) -> Iterator[tuple[FileRange, float]]:
        """Yield parts of about `target` bytes of a range, each with its size in bytes.

        The range is left whole if `layouts` lacks its file.
        """
        file = piece.file
        if file not in layouts:
            yield piece, file.size
            return
        layout = layouts[file]
        end = self._format.end(file, layout)
        stop = end if piece.stop is None else piece.stop
        bounded = replace(piece, stop=stop)
        cuts = self._format.cut_offsets(self._directory, bounded, layout, target)
        for start, part_end in itertools.pairwise([piece.start, *cuts, stop]):
            part = replace(piece, start=start, stop=piece.stop if part_end == stop else part_end)
            yield part, file.size * (part_end - start) / max(end, 1)

    def _make_split(
        self,
        group: list[tuple[FileRange, float]],  # with sizes in bytes
        layouts: dict[File, FileLayout | None],
        *,
        few: bool,  # the split has few rows, so counting these exactly is worth reading the file
    ) -> Split:
        """Return a split of ranges; adjacent ranges of one file become one range."""
        pieces: list[FileRange] = []
        for part, _ in group:
            if pieces and pieces[-1].file == part.file and pieces[-1].stop == part.start:
                pieces[-1] = replace(pieces[-1], stop=part.stop)
            else:
                pieces.append(part)
        counts = [self._count_rows(piece, layouts.get(piece.file), few=few) for piece in pieces]
        known_counts = [count for count in counts if count is not None]
        first = pieces[0]
        if len(pieces) > 1:
            description = f"{counted(len(pieces), 'file')} from {first.file.path}"
        else:
            cut = "" if not first.is_cut else f" from {first.start} to {first.stop or 'end'}"
            description = f"{first.file.path or self._directory.shown}{cut}"
        return Split(
            rows=sum(known_counts) if len(known_counts) == len(counts) else None,
            exact=all(layouts.get(piece.file) is not None for piece in pieces),
            size_bytes=int(sum(size for _, size in group)),
            what=description,
            payload=tuple(pieces),
            # A store that does not say when a file was written says 0.
            arrived_us=tuple(p.file.modified_ns // 1000 for p in pieces if p.file.modified_ns),
        )

    def _count_rows(self, piece: FileRange, layout: FileLayout | None, *, few: bool) -> int | None:
        """Return the number of rows of a range, or a bound of it; ``None`` if unknown.

        `few`: the range is small, so read the file if only that shows the number.
        """
        if layout is not None:
            return (layout.rows if piece.stop is None else piece.stop) - piece.start
        if not few:
            return None
        with _reading_unchanged(self._directory, piece.file):
            return self._format.max_rows(self._directory, piece)

    def _layouts_of(self, files: Sequence[File]) -> list[FileLayout | None]:
        """Return the layouts of several files, read in parallel."""
        wanted = [file for file in dict.fromkeys(files) if file not in self._layouts]
        if len(self._layouts) + len(wanted) > _MAX_LAYOUTS:
            self._layouts = {file: self._layouts[file] for file in files if file in self._layouts}
        if len(wanted) > 2:
            with ThreadPoolExecutor(min(len(wanted), _LAYOUTS_AT_ONCE)) as pool:
                self._layouts.update(zip(wanted, pool.map(self._layout_of, wanted), strict=True))
        else:
            self._layouts.update({file: self._layout_of(file) for file in wanted})
        return [self._layouts[file] for file in files]

    def _layout_of(self, file: File) -> FileLayout | None:
        """Return the offsets at which a file can be split; ``None`` if its format lists none."""
        with _reading_unchanged(self._directory, file):
            return self._format.layout(self._directory, file)

    # -- rows -------------------------------------------------------------------------------------

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield the rows of a split; raise if one of its files has changed."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for piece in split.payload:
            with _reading_unchanged(self._directory, piece.file):
                yield from self._read_range(piece, schema)
                self._directory.check_unchanged(piece.file)

    def _read_range(
        self, piece: FileRange, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield the rows of one range of a file, in columns and types of the schema."""
        file = piece.file
        partitions = partitions_of(file)
        # A line is good or bad whichever columns are asked for.
        parsed = schema if self._on_bad == "refuse" else self.schema
        fields = [field for field in parsed if field.name not in partitions]
        batches = self._format.read(self._directory, piece, fields, self.schema.names)
        file_name = self._directory.file_name(file)
        bad: list[BadLine] = []
        checked = not fields or not self._format.has_columns
        for batch in batches:
            if isinstance(batch, BadLine):
                bad.append(batch)
                continue
            if not checked:
                missing = [f.name for f in fields if f.name not in batch.schema.names]
                if len(missing) == len(fields):
                    self._check_columns(file)
                self._warn_of_missing(file_name, missing)
            checked = True
            columns = []
            for field in schema:
                place = batch.schema.get_field_index(field.name)
                if field.name in partitions:
                    columns.append(
                        _constant_column(partitions[field.name], field, batch.num_rows, file_name)
                    )
                elif place >= 0:
                    columns.append(cast_column(batch.column(place), field, file_name))
                else:
                    columns.append(pa.nulls(batch.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if bad:
            yield self._to_unreadable(file_name, bad)

    def _check_columns(self, file: File) -> None:
        """Raise if a file has no column of the schema, so that all its values would be null."""
        names = self._format.schema(self._directory, file).names
        if set(names).isdisjoint(self.schema.names):
            named = self._directory.file_name(file)
            raise SourceError(
                f"The file {named!r} has no column of the schema, which has "
                f"{quoted(self.schema.names)}; it has {quoted(names)}.",
                remedy="Move it out of the directory, or give a schema= with columns of the file.",
                file=named,
            )

    def _warn_of_missing(self, file: str, missing: Sequence[str]) -> None:
        """Log that a file lacks columns, once for each column of the source in a process."""
        new = [name for name in missing if (self.identity, name) not in _missing]
        if new:
            _missing.update((self.identity, name) for name in new)
            _logger.warning(
                "The file %r has no %s, which will be null in its rows.", file, quoted(new)
            )

    def _to_unreadable(self, file: str, bad: Sequence[BadLine]) -> Unreadable:
        """Return lines that cannot be parsed as unreadable rows of a file."""
        if self._on_bad == "skip":
            _logger.warning(
                "The file %r: %s cannot be read (%s) and will be skipped.",
                file,
                counted(len(bad), "line"),
                bad[0].reason,
            )
        columns = [
            pa.array([file] * len(bad)),
            pa.array([line.text.rstrip(b"\r\n") for line in bad], pa.binary()),
            pa.array([line.reason for line in bad]),
        ]
        return Unreadable(rows=pa.RecordBatch.from_arrays(columns, schema=_UNREADABLE))

    # -- reports ----------------------------------------------------------------------------------

    def lag(self, position: Position) -> Lag:
        """Return the lag: bytes of unread files of the last listing, and the oldest one's time."""
        if self._listing is None:
            return Lag()
        if self._idle_at is not None and self._idle_at == position:
            return Lag(rows=0, size_bytes=0)
        read = FilePosition.of(position)
        pieces = list(self._unread_ranges(self._listing, read, None))
        modified_ns = [piece.file.modified_ns for piece in pieces if piece.file.modified_ns]
        return Lag(
            rows=None if pieces else 0,
            size_bytes=sum(piece.file.size for piece in pieces),
            oldest_us=min(modified_ns) // 1000 if modified_ns else None,
        )

    def describe(self, position: Position) -> dict[str, Any]:
        return FilePosition.of(position).describe()


@contextlib.contextmanager
def _reading_unchanged(directory: Directory, file: File) -> Iterator[None]:
    """Check that a file is unchanged, then run the block; its read errors name the file."""
    directory.check_unchanged(file)
    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise directory.unreadable_error(file, error) from error


def _type_of_values(texts: Sequence[str | None]) -> pa.DataType:
    """Return the type of a partition column: bigint if all texts are whole numbers, else text."""
    numbers = all(
        text is None or (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19)
        for text in texts
    )
    return pa.int64() if numbers else pa.string()


def _constant_column(text: str | None, field: pa.Field, rows: int, file: str) -> pa.Array:
    """Return a column of `rows` equal values, parsed from a partition's value, or raise."""
    if text is None:
        return pa.nulls(rows, field.type)
    try:
        value = from_text(pa.array([text]), field)
    except (ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"The directory of the file {file!r} has {field.name}={text}, which is not of type "
            f"{field.type} ({error}).",
            remedy="Give it another type in schema=, such as string, or move the file.",
            file=file,
            column=field.name,
        ) from error
    return pa.repeat(value[0], rows)

"""File formats: Parquet and Arrow IPC, which index their rows, and the port of all formats.

A place within a file is an *offset*: a number of rows where a file says how many it has, a number
of bytes in text. Rows between two offsets can be read without those before them, as cheaply as the
format allows: Parquet by row groups, Arrow files by record batches, text by bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from godwit.columns.arrays import decode_dictionary, has_leaf
from godwit.connect.files.magic_numbers import NUM_FIRST_BYTES, name_of_format
from godwit.connect.files.parquet_times import times_of, true_schema

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from godwit.connect.files.directory import Directory, File, OffsetUnit

_BATCH_ROWS: Final = 1 << 16
_LARGE_BATCH_ROWS, _LARGE_BATCH_BYTES = 1 << 20, 32 << 20
_MIN_REPEATED_ROWS: Final = 1 << 15
_REPEATED_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Rows of a file, between two offsets."""

    file: File
    start: int = 0
    stop: int | None = None  # None: to the end

    @property
    def is_cut(self) -> bool:
        """True if the range is not the whole file."""
        return self.start > 0 or self.stop is not None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a file that cannot be read, and is skipped or diverted."""

    text: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileLayout:
    """Rows of a file, and the offsets between its row groups or record batches."""

    edges: npt.NDArray[np.int64]  # from 0 to the number of rows

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return int(self.edges[-1])


class FilePlace(Protocol):
    """A place of files, such as a directory."""

    @property
    def filesystem(self) -> pafs.FileSystem:
        """File system of the files."""

    def full_path(self, path: str) -> str:
        """Return a file's path on the file system, from its path within the place."""


class FileFormat(ABC):
    """A format of files; a value that can be pickled.

    What a method cannot read it raises as it comes; the source says which file it was.
    """

    name: str
    unit: OffsetUnit  # of offsets
    has_columns = True  # whether a file has columns, and not each row its own

    @abstractmethod
    def schema(self, directory: Directory, file: File) -> pa.Schema:
        """Return the columns that a file declares; called if the user gave no schema."""

    def check_schema(self, schema: pa.Schema) -> None:  # noqa: B027  many have columns of any type
        """Raise `SourceError` if files never have columns of a type of the schema."""

    def check_path(self, path: str) -> None:  # noqa: B027  files may have any name
        """Raise ValueError if a file's name shows that it cannot be read."""

    def layout(self, directory: Directory, file: File) -> FileLayout | None:
        """Return where a file can be split; ``None`` if that requires reading all of it."""
        del directory, file
        return None

    @abstractmethod
    def advance(
        self, directory: Directory, file: File, layout: FileLayout | None, start: int, rows: int
    ) -> tuple[int, int]:
        """Return the offset about `rows` rows after `start`, and the number of rows in between.

        Offsets are rows or bytes, depending on the format.
        """

    @abstractmethod
    def end(self, file: File, layout: FileLayout | None) -> int:
        """Return the offset at the end of a file."""

    @abstractmethod
    def cut_offsets(
        self, directory: Directory, piece: FileRange, layout: FileLayout | None, num_bytes: float
    ) -> list[int]:
        """Return offsets that divide a range into parts of about `num_bytes` bytes.

        `piece`: a range with an end.
        """

    def max_rows(self, directory: Directory, part: FileRange) -> int | None:
        """Return an upper bound of the rows of a range; ``None`` if it is expensive to find.

        Called for small parts of files without a layout.
        """
        del directory, part
        return None

    @abstractmethod
    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch | BadLine]:
        """Yield the rows of a range of a file, and its bad lines unless these are refused.

        Of the columns `fields`, those that the file has, perhaps with others and with other types.
        `known`: names of all columns of the schema.
        """


class _RowFormat(FileFormat):
    """Offsets are rows, which the file counts."""

    unit = "row"

    @abstractmethod
    def layout(self, directory: Directory, file: File) -> FileLayout:
        """Return the rows at which row groups or record batches begin, and the file's end."""

    def advance(
        self, directory: Directory, file: File, layout: FileLayout | None, start: int, rows: int
    ) -> tuple[int, int]:
        """Return row ``start + rows`` or the last one's end, and the number of rows in between."""
        layout = layout or self.layout(directory, file)
        stop = min(start + rows, layout.rows)
        return stop, stop - start

    def end(self, file: File, layout: FileLayout | None) -> int:
        del file
        assert layout is not None, "called only for files whose layout is known"
        return layout.rows

    def cut_offsets(
        self, directory: Directory, piece: FileRange, layout: FileLayout | None, num_bytes: float
    ) -> list[int]:
        del directory
        assert layout is not None, "called only for files whose layout is known"
        return self.cut_row_groups(piece, layout, num_bytes)

    @staticmethod
    def cut_row_groups(piece: FileRange, layout: FileLayout, num_bytes: float) -> list[int]:
        """Return starts of row groups that divide a range into parts of about `num_bytes` bytes."""
        assert piece.stop is not None, "called only for ranges with an end"
        part = num_bytes * layout.rows / max(piece.file.size, 1)
        inner = layout.edges[(layout.edges > piece.start) & (layout.edges < piece.stop)]
        cuts, last = [], piece.start
        for edge in inner.tolist():
            if edge - last >= part:
                cuts.append(edge)
                last = edge
        return cuts


class ParquetFormat(_RowFormat):
    """Parquet: row groups, columns pruned."""

    name = "Parquet"

    def _open(
        self,
        directory: FilePlace,
        file: File,
        *,
        metadata: pq.FileMetaData | None = None,  # of the file, if it is known
        repeated: Sequence[str] = (),
    ) -> pq.ParquetFile:
        """Open a Parquet file; the columns `repeated` are read as dictionaries."""
        is_local = isinstance(directory.filesystem, pafs.LocalFileSystem)
        stream = directory.filesystem.open_input_file(directory.full_path(file.path))
        try:
            return pq.ParquetFile(
                stream,
                metadata=metadata,
                read_dictionary=list(repeated),
                pre_buffer=not is_local,
                coerce_int96_timestamp_unit="us",
            )
        except pa.ArrowInvalid as error:
            raise _explained(error, stream) from error

    def schema(self, directory: FilePlace, file: File) -> pa.Schema:
        with self._open(directory, file) as opened:
            return true_schema(opened, opened.schema_arrow)

    def layout(self, directory: FilePlace, file: File) -> FileLayout:
        with self._open(directory, file) as opened:
            return self._layout_of(opened.metadata)

    def _layout_of(self, metadata: pq.FileMetaData) -> FileLayout:
        """Compute the rows at which row groups begin, from the footer."""
        rows = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        return FileLayout(edges=np.cumsum([0, *rows], dtype=np.int64))

    def read(
        self,
        directory: FilePlace,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        with self._open(directory, part.file) as opened:
            edges = self._layout_of(opened.metadata).edges
            start, stop = part.start, int(edges[-1]) if part.stop is None else part.stop
            groups = np.flatnonzero((edges[:-1] < stop) & (edges[1:] > start)).tolist()
            if not groups:
                return
            stored = opened.schema_arrow
            check_names(stored.names, fields, known)
            names = [field.name for field in fields if _has_column(stored, field.name)]
            schema = pa.schema([stored.field(name) for name in names])
            restore = times_of(opened, stored, names)
            repeated_text = _repeated_text(opened.metadata, schema, groups)
            reader, batch_rows = opened, _BATCH_ROWS
            if repeated_text:
                reader = self._open(
                    directory, part.file, metadata=opened.metadata, repeated=repeated_text
                )
                batch_rows = _large_batch_rows(opened.metadata, groups)
            # Arrow cannot join the nested dictionaries of several row groups.
            one_by_one = any(
                pa.types.is_nested(field.type) and has_leaf(field.type, pa.types.is_dictionary)
                for field in schema
            )
            group_batches = [[group] for group in groups] if one_by_one else [groups]
            batches = (
                reader.iter_batches(
                    batch_rows, row_groups=row_groups, columns=names, use_threads=False
                )
                for row_groups in group_batches
            )
            first_row = int(edges[groups[0]])
            for batch in chain.from_iterable(batches):
                rows = batch.slice(max(start - first_row, 0), stop - max(start, first_row))
                first_row += batch.num_rows
                if rows.num_rows:
                    rows = _decode_dictionaries(rows, schema) if repeated_text else rows
                    yield rows if restore is None else restore(rows)


class ArrowFormat(_RowFormat):
    """Arrow IPC files (Feather 2): record batches, columns pruned."""

    name = "Arrow"

    def _open(
        self, directory: Directory, file: File, columns: Sequence[int] = ()
    ) -> pa.ipc.RecordBatchFileReader:
        """Open an Arrow IPC file, for some of its columns."""
        options = pa.ipc.IpcReadOptions(included_fields=list(columns), use_threads=False)
        stream = directory.filesystem.open_input_file(directory.full_path(file.path))
        try:
            return pa.ipc.open_file(stream, options=options)
        except pa.ArrowInvalid as error:
            raise _explained(error, stream) from error

    def schema(self, directory: Directory, file: File) -> pa.Schema:
        with self._open(directory, file) as opened:
            return opened.schema

    def layout(self, directory: Directory, file: File) -> FileLayout:
        """Return the rows at which record batches begin, by reading the narrowest column."""
        with self._open(directory, file) as opened:
            schema = opened.schema
        widths = [_width(field.type) for field in schema]
        narrow = [widths.index(min(widths))] if widths else []
        with self._open(directory, file, narrow) as opened:
            rows = [opened.get_batch(n).num_rows for n in range(opened.num_record_batches)]
        return FileLayout(edges=np.cumsum([0, *rows], dtype=np.int64))

    def read(
        self,
        directory: Directory,
        part: FileRange,
        fields: Sequence[pa.Field],
        known_names: Container[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        file = part.file
        with self._open(directory, file) as opened:
            schema = opened.schema
        check_names(schema.names, fields, known_names)
        columns = [
            schema.get_field_index(field.name)
            for field in fields
            if _has_column(schema, field.name)
        ]
        edges = self.layout(directory, file).edges if part.is_cut else None
        with self._open(directory, file, columns or [0]) as opened:
            for number in range(opened.num_record_batches):
                if edges is None:
                    yield opened.get_batch(number)
                    continue
                first, end = int(edges[number]), int(edges[number + 1])
                stop = end if part.stop is None else min(end, part.stop)
                if first < stop and end > part.start:
                    skipped = max(part.start - first, 0)
                    yield opened.get_batch(number).slice(skipped, stop - first - skipped)


def check_names(names: Sequence[str], fields: Iterable[pa.Field], known: Container[str]) -> None:
    """Raise if a file lacks a column, but has one whose name differs in case or blanks.

    `names`: columns of the file. `known`: names of all columns of the schema.
    """
    missing = [field.name for field in fields if field.name not in names]
    if not missing:
        return
    similar = {name.strip().casefold(): name for name in names if name not in known}
    for name in missing:
        if (other := similar.get(name.strip().casefold())) is not None:
            msg = (
                f"it has no column {name!r}, but it has {other!r}: use the file's spelling in "
                "schema=, or change it in the file"
            )
            raise ValueError(msg)


def _repeated_text(
    metadata: pq.FileMetaData, schema: pa.Schema, groups: Sequence[int]
) -> list[str]:
    """Return the text columns that a file stores almost only as dictionary indices.

    Reading the indices, and making text of them all at once, takes half the time of making each
    value by itself, as long as few batches share the work of making a dictionary.
    """
    if sum(metadata.row_group(n).num_rows for n in groups) < _MIN_REPEATED_ROWS:
        return []
    texts = {f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)}
    names = []
    for place in range(metadata.num_columns):
        chunks = [metadata.row_group(n).column(place) for n in groups]
        if chunks[0].path_in_schema in texts and all(
            chunk.has_dictionary_page
            and chunk.total_uncompressed_size < _REPEATED_BYTES * chunk.num_values
            for chunk in chunks
        ):
            names.append(chunks[0].path_in_schema)
    return names


def _decode_dictionaries(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with dictionary columns replaced by their values."""
    columns = [
        decode_dictionary(column, field.type) if pa.types.is_dictionary(column.type) else column
        for field, column in zip(schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def _large_batch_rows(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    """Return the number of rows to read per batch, so that a batch fits into memory."""
    rows = sum(int(metadata.row_group(n).num_rows) for n in groups)
    size = sum(int(metadata.row_group(n).total_byte_size) for n in groups)
    few = _LARGE_BATCH_BYTES * rows // max(size, 1)
    return max(_BATCH_ROWS, min(few, _LARGE_BATCH_ROWS))


def _has_column(schema: pa.Schema, name: str) -> bool:
    """Return whether a file has the column `name`; raise if it has several."""
    count = len(schema.get_all_field_indices(name))
    if count > 1:
        msg = f"it has {count} columns named {name!r}"
        raise ValueError(msg)
    return count == 1


def _explained(error: ValueError, stream: pa.NativeFile) -> ValueError:
    """Return the error that a file cannot be opened, with the format that it seems to have."""
    stream.seek(0)
    name = name_of_format(stream.read(NUM_FIRST_BYTES))
    if name is None:
        return error
    return ValueError(f"{str(error).splitlines()[0].removesuffix('.')}. It is {name}")


def _width(dtype: pa.DataType) -> int:
    """Return the number of bits of a type's values; a large number for variable width."""
    try:
        return int(dtype.bit_width)
    except ValueError:  # it has no fixed width
        return 1 << 20

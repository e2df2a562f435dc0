"""Rows of a piece of an Iceberg table, in any process.

Columns are found in a file by their field ids; files without ids have those of the table's name
mapping.  Godwit's own reader of Parquet files reads them, and pyiceberg converts nested columns,
whose fields may have been renamed, added or promoted, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload

import godwit.connect.iceberg.null_lists  # noqa: F401
from godwit.columns.signed import CHANGE
from godwit.sources.directory import File
from godwit.sources.file_formats import FileRange, ParquetFormat
from godwit.sources.file_types import cast_column, widens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow.fs as pafs
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.types import NestedField

    from godwit.connect.iceberg.history import Deletes, Piece

FORMAT: Final = ParquetFormat()
SNAPSHOT: Final = "snapshot"
INCLUDED: Final = {SNAPSHOT: pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
"""Columns about the commit of a row."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file is."""

    filesystem: pafs.FileSystem

    def full_path(self, path: str) -> str:
        """Return a path on the file system."""
        return path


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the files of a table are read now; a value that can be pickled."""

    properties: Mapping[str, str] = field(repr=False)  # of the store, with credentials
    name_mapping: NameMapping | None
    format_version: int

    def file(self, location: str, size: int) -> tuple[_Place, File]:
        """Return where a file is, and the file."""
        scheme, host, path = PyArrowFileIO.parse_location(location, dict(self.properties))
        store = _store(tuple(sorted(self.properties.items())))
        place = _Place(store.fs_by_scheme(scheme, host))
        return place, File(path=path, size=max(size, 1), modified_ns=0)

    def open_file(self, location: str) -> pa.NativeFile:
        """Open a file for reading."""
        place, file = self.file(location, 1)
        return place.filesystem.open_input_file(file.path)


@lru_cache(8)
def _store(properties: tuple[tuple[str, str], ...]) -> PyArrowFileIO:
    """Return the files of a store, whose connections are kept in this process."""
    return PyArrowFileIO(dict(properties))


@dataclass(frozen=True, kw_only=True)
class PieceReader:
    """Reads pieces of a table; can be pickled."""

    columns: Mapping[str, NestedField]  # of rows and filters, by name
    schema: pa.Schema  # types of these columns
    filters: Sequence[Sequence[tuple[str, str, Any]]]
    include: Mapping[str, str]  # kind → name
    signed: bool  # rows have a sign

    def read(self, access: Access, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece with the columns `names`."""
        further = [name for group in self.filters for name, _, _ in group]
        needed = [n for n in dict.fromkeys([*names, *further]) if n in self.columns]
        place, file = access.file(piece.path, piece.size)
        stored = FORMAT.schema(place, file)
        file_schema = pyarrow_to_schema(
            stored,
            access.name_mapping,
            downcast_ns_timestamp_to_us=access.format_version <= 2,
            format_version=access.format_version,  # type: ignore[arg-type]
        )
        by_id = {column.field_id: column.name for column in file_schema.fields}
        sources = {name: by_id.get(self.columns[name].field_id) for name in needed}
        from_file = [stored.field(source) for source in sources.values() if source is not None]
        deleted = _Deleted(access, piece.path)
        gone = deleted.rows_of(piece.gone)
        among = None if piece.among is None else deleted.rows_of(piece.among)
        constants = dict(piece.constants)
        part = FileRange(file=file, start=piece.start, stop=piece.stop)
        row = piece.start
        for batch in FORMAT.read(place, part, from_file, [f.name for f in from_file]):
            chosen = _selected(row, batch.num_rows, gone, among)
            row += batch.num_rows
            rows = batch if chosen is None else batch.take(pa.array(chosen))
            if not rows.num_rows:
                continue
            values = {}
            for name in needed:
                column, source = self.columns[name], sources[name]
                target = self.schema.field(name)
                if source is None:
                    value = constants.get(column.field_id)
                    value = column.initial_default if value is None else value
                    values[name] = _repeated(value, column, target, rows.num_rows, piece.path)
                    continue
                array = rows.column(source)
                if file_schema.find_type(column.field_id) != column.field_type or not widens(
                    array.type, target.type
                ):
                    array = _requested(rows.select([source]), column, file_schema, access)
                values[name] = cast_column(array, target, piece.path)
            yield from self._rows(piece, values, rows.num_rows, names)

    def _rows(
        self, piece: Piece, values: dict[str, pa.Array], count: int, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with further columns, for which the filters hold."""
        for kind, name in self.include.items():
            value = piece.snapshot if kind == SNAPSHOT else piece.timestamp_ms * 1000
            values[name] = pa.repeat(pa.scalar(value, INCLUDED[kind]), count)
        if self.signed:
            values[CHANGE.name] = pa.repeat(pa.scalar(piece.sign, CHANGE.type), count)
        if not self.filters:
            yield pa.RecordBatch.from_arrays([values[name] for name in names], list(names))
            return
        rows = pa.table(values).filter(pq.filters_to_expression([list(g) for g in self.filters]))
        for batch in rows.select(list(names)).to_batches():
            if batch.num_rows:
                yield batch


class _Deleted:
    """Deleted rows of one data file."""

    def __init__(self, access: Access, path: str) -> None:
        self._access, self._path = access, path

    def rows_of(self, files: Sequence[Deletes]) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that delete files name, in order."""
        parts = [self._read(file) for file in files]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def _read(self, file: Deletes) -> npt.NDArray[np.int64]:
        with self._access.open_file(file.path) as stream:
            if file.blob is not None:
                offset, size = file.blob
                payload = _extract_vector_payload(stream.read_at(size, offset))
                vector = DeletionVector(self._path, DeletionVector._deserialize_bitmap(payload))  # noqa: SLF001
                return _numbers(vector.to_vector())
            rows = pq.read_table(
                stream, columns=["file_path", "pos"], filters=[("file_path", "=", self._path)]
            )
        return _numbers(rows.column("pos"))


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a column of numbers."""
    numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return numbers


def _selected(
    first: int, count: int, gone: npt.NDArray[np.int64], among: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.int64] | None:
    """Return the places, in a batch, of the rows that a piece has; ``None``: all.

    `first`: number of the batch's first row in the file; `count`: its rows.
    """
    low, high = np.searchsorted(gone, [first, first + count])
    if among is None and low == high:
        return None
    mask = np.full(count, among is None)
    if among is not None:
        start, stop = np.searchsorted(among, [first, first + count])
        mask[among[start:stop] - first] = True
    mask[gone[low:high] - first] = False
    return np.flatnonzero(mask)


def _repeated(value: Any, column: NestedField, target: pa.Field, count: int, path: str) -> pa.Array:
    """Return a column of equal values: of an identity partition, a default, or null."""
    if value is None:
        return pa.nulls(count, target.type)
    stored = pa.scalar(value, schema_to_pyarrow(column.field_type, include_field_ids=False))
    return cast_column(pa.repeat(stored, count), target, path)


def _requested(
    rows: pa.RecordBatch, column: NestedField, file_schema: Schema, access: Access
) -> pa.Array:
    """Return a nested column of a file as the table has it."""
    batch = _to_requested_schema(
        Schema(column),
        file_schema,
        rows,
        downcast_ns_timestamp_to_us=access.format_version <= 2,
        allow_timestamp_tz_mismatch=True,
    )
    return batch.column(0)

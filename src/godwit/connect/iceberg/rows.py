"""Rows of a piece of an Iceberg table, in any process.

Columns are found in a file by their field ids; files without ids have those of the table's name
mapping.  Godwit's own reader of Parquet files reads them, and pyiceberg converts nested columns,
whose fields may have been renamed, added or promoted, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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

import godwit.connect.iceberg.repairs  # noqa: F401
from godwit.connect.files.directory import File
from godwit.connect.files.file_formats import FileRange
from godwit.connect.files.file_types import cast_column, widens
from godwit.connect.lakes.table_pieces import PARQUET, selected_rows
from godwit.model.secrets import shown_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow.fs as pafs
    from pyiceberg.table.name_mapping import NameMapping
    from pyiceberg.types import NestedField

    from godwit.connect.iceberg.history import Deletes, IcebergPiece
    from godwit.connect.lakes.table_rows import TableRows


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a file."""

    filesystem: pafs.FileSystem

    def full_path(self, path: str) -> str:
        """Return a path on the file system."""
        return path


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the files of a table are currently read; a value that can be pickled."""

    properties: Mapping[str, str] = field(repr=False)  # of the store, with credentials
    name_mapping: NameMapping | None
    format_version: int

    def file(self, location: str, size: int) -> tuple[_Place, File]:
        """Return the location of a file, and the file."""
        scheme, host, path = PyArrowFileIO.parse_location(location, dict(self.properties))
        store = _cached_file_io(tuple(sorted(self.properties.items())))
        place = _Place(store.fs_by_scheme(scheme, host))
        return place, File(path=path, size=max(size, 1), modified_ns=0)

    def open_file(self, location: str) -> pa.NativeFile:
        """Open a file for reading."""
        place, file = self.file(location, 1)
        return place.filesystem.open_input_file(file.path)


@lru_cache(8)
def _cached_file_io(properties: tuple[tuple[str, str], ...]) -> PyArrowFileIO:
    """Return the files of a store, whose connections are kept in this process."""
    return PyArrowFileIO(dict(properties))


@dataclass(frozen=True, kw_only=True)
class IcebergPieceReader:
    """Reads pieces of a table; can be pickled."""

    columns: Mapping[str, NestedField]  # of rows and filters, by name
    types: pa.Schema  # of these columns
    schema: pa.Schema  # of all rows
    rows: TableRows

    def read(
        self, access: Access, piece: IcebergPiece, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece with the columns `names`."""
        read_names = [
            name_ for name_ in dict.fromkeys([*names, *self.rows.filtered]) if name_ in self.columns
        ]
        place, file = access.file(piece.path, piece.size)
        stored = PARQUET.schema(place, file)
        file_schema = pyarrow_to_schema(
            stored,
            access.name_mapping,
            downcast_ns_timestamp_to_us=access.format_version <= 2,
            format_version=access.format_version,  # type: ignore[arg-type]
        )
        by_id = {column.field_id: column.name for column in file_schema.fields}
        sources = {name: by_id.get(self.columns[name].field_id) for name in read_names}
        from_file = [stored.field(source) for source in sources.values() if source is not None]
        deleted = _Deleted(access, piece.path)
        deleted_rows = deleted.rows_of(piece.gone)
        among = None if piece.among is None else deleted.rows_of(piece.among)
        constants = dict(piece.constants)
        part = FileRange(file=file, start=piece.start, stop=piece.stop)
        row = piece.start
        schema = pa.schema([self.schema.field(name) for name in names])
        for batch in PARQUET.read(place, part, from_file, [column.name for column in from_file]):
            selected = selected_rows(row, batch.num_rows, deleted_rows, among)
            row += batch.num_rows
            rows = batch if selected is None else batch.take(pa.array(selected))
            if not rows.num_rows:
                continue
            values = {}
            for name in read_names:
                column, source = self.columns[name], sources[name]
                target = self.types.field(name)
                if source is None:
                    value = constants.get(column.field_id)
                    value = column.initial_default if value is None else value
                    values[name] = _constant_column(
                        value, column, target, rows.num_rows, piece.path
                    )
                    continue
                array = rows.column(source)
                if file_schema.find_type(column.field_id) != column.field_type or not widens(
                    array.type, target.type
                ):
                    array = _requested_nested(rows.select([source]), column, file_schema, access)
                values[name] = cast_column(array, target, piece.path)
            yield from self.rows.completed(values, rows.num_rows, piece, piece.snapshot, schema)


class _Deleted:
    """Deleted rows of one data file."""

    def __init__(self, access: Access, path: str) -> None:
        self._access, self._path = access, path

    def rows_of(self, files: Sequence[Deletes]) -> npt.NDArray[np.int64]:
        """Return the row numbers in delete files, in order."""
        parts = [self._read_deleted_positions(file) for file in files]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def _read_deleted_positions(self, file: Deletes) -> npt.NDArray[np.int64]:
        with self._access.open_file(file.path) as stream:
            if file.blob is not None:
                offset, size = file.blob
                payload = _extract_vector_payload(stream.read_at(size, offset))
                vector = DeletionVector(self._path, DeletionVector._deserialize_bitmap(payload))  # noqa: SLF001
                return _as_integers(vector.to_vector())
            rows = pq.read_table(
                stream, columns=["file_path", "pos"], filters=[("file_path", "=", self._path)]
            )
        return _as_integers(rows.column("pos"))


def _as_integers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a column of numbers."""
    numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return numbers


def _constant_column(
    value: Any, column: NestedField, target: pa.Field, count: int, path: str
) -> pa.Array:
    """Return a constant column: a value of an identity partition, a default, or null."""
    if value is None:
        return pa.nulls(count, target.type)
    stored = pa.scalar(value, schema_to_pyarrow(column.field_type, include_field_ids=False))
    return cast_column(pa.repeat(stored, count), target, path)


def _requested_nested(
    rows: pa.RecordBatch, column: NestedField, file_schema: Schema, access: Access
) -> pa.Array:
    """Return a nested column of a file with the table's fields."""
    batch = _to_requested_schema(
        Schema(column),
        file_schema,
        rows,
        downcast_ns_timestamp_to_us=access.format_version <= 2,
        allow_timestamp_tz_mismatch=True,
    )
    return batch.column(0)


def place_of_table(properties: Mapping[str, Any], catalog: str, table: str) -> str:
    """Return a text that identifies a table, independent of its catalog's name; without secrets."""
    uri = properties.get("uri")
    return f"iceberg:{shown_uri(str(uri)) if uri else catalog}:{table}"

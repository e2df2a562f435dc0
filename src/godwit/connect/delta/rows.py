"""Rows of a piece of a Delta table, in any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE
from godwit.connect.delta.columns import (
    Column,
    from_stored,
    names_by_id,
    partition_value,
    schema_with_ids,
)
from godwit.connect.delta.vectors import deleted_rows
from godwit.sources.directory import File
from godwit.sources.file_formats import FileRange, ParquetFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.connect.delta.pieces import Piece
    from godwit.connect.delta.place import Table
    from godwit.connect.delta.pruning import RowFilter

FORMAT: Final = ParquetFormat()
VERSION: Final = "version"
INCLUDED: Final = {VERSION: pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
"""Columns about a row's commit."""

_TYPE: Final = pa.field("_change_type", pa.string())  # of the change data feed
_TYPE_COLUMN: Final = Column(field=_TYPE, stored=_TYPE)
_SIGNS: Final = {
    -1: pa.array(["delete", "update_preimage"]),
    1: pa.array(["insert", "update_postimage"]),
}


def file_of(table: Table, piece: Piece) -> tuple[Table, File]:
    """Return where a piece's file is."""
    place, path = table.place_of(piece.file.path)
    modified_ns = piece.file.modified_ms * 10**6
    return place, File(path=path, size=piece.file.size, modified_ns=modified_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReader:
    """Reads pieces of a table; can be pickled."""

    table: Table
    schema: pa.Schema  # of all rows
    columns: Mapping[str, Column]  # of the rows and filters
    row_filter: RowFilter | None
    include: Mapping[str, str]  # kind → name
    signed: bool  # rows have a sign

    def read(self, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece with the columns `names`."""
        partition = piece.file.partition or {}
        needed = dict.fromkeys([*names, *(self.row_filter.names if self.row_filter else ())])
        columns = [self.columns[name] for name in needed if name in self.columns]
        from_file = [column for column in columns if column.stored.name not in partition]
        place, file = file_of(self.table, piece)
        stored = self._stored_names(piece, from_file)
        fields = [column.stored.with_name(stored[column.field.name]) for column in from_file]
        fields += [_TYPE] if piece.from_feed else []
        deleted, among = self._vectors_of(piece)
        part = FileRange(file=file, start=piece.start, stop=piece.stop)
        row = piece.start
        schema = pa.schema([self.schema.field(name) for name in names])
        for batch in FORMAT.read(place, part, fields, [f.name for f in fields]):
            selected = _selected(row, batch.num_rows, deleted, among)
            row += batch.num_rows
            if piece.from_feed:
                types = from_stored(batch.column(_TYPE.name), _TYPE_COLUMN, piece.file.path)
                is_right = pc.is_in(types, _SIGNS[piece.sign]).to_numpy(zero_copy_only=False)
                selected = np.flatnonzero(is_right)  # files of the feed have no deletion vectors
            count = batch.num_rows if selected is None else len(selected)
            if not count:
                continue
            values = {}
            for column in columns:
                name = column.field.name
                if column.stored.name in partition:
                    text = partition[column.stored.name]
                    scalar = partition_value(text, column.field, piece.file.path)
                    values[name] = pa.repeat(scalar, count)
                elif (index := batch.schema.get_field_index(stored[name])) >= 0:
                    array = from_stored(batch.column(index), column, piece.file.path)
                    values[name] = array if selected is None else array.take(pa.array(selected))
                else:
                    values[name] = pa.nulls(count, column.field.type)
            for kind, name in self.include.items():
                value = piece.version if kind == VERSION else piece.timestamp_ms * 1000
                values[name] = pa.repeat(pa.scalar(value, INCLUDED[kind]), count)
            values[CHANGE.name] = (
                pa.repeat(pa.scalar(piece.sign, CHANGE.type), count)
                if self.signed
                else values.get(CHANGE.name)
            )
            if self.row_filter is None:
                arrays = [values[name] for name in names]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                continue
            both = list(dict.fromkeys([*names, *self.row_filter.names]))
            whole = pa.RecordBatch.from_arrays([values[name] for name in both], both)
            for chosen in self.row_filter.kept([whole]).select(list(names)).to_batches():
                if chosen.num_rows:
                    yield pa.RecordBatch.from_arrays(chosen.columns, schema=schema)

    def _stored_names(self, piece: Piece, columns: Sequence[Column]) -> dict[str, str]:
        """Return the names that a file has for columns: by default those of the mapping."""
        names = {column.field.name: column.stored.name for column in columns}
        if any(column.field_id is not None for column in columns):
            with self.table.open_file(piece.file.path) as stream:
                by_id = names_by_id(schema_with_ids(stream))
            for column in columns:
                if by_id and column.field_id is not None:
                    name = by_id.get(column.field_id, column.stored.name)
                    names[column.field.name] = name
        return names

    def _vectors_of(
        self, piece: Piece
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return the rows that a piece leaves out, and those that it is about (``None``: all)."""
        deleted = deleted_rows(self.table, piece.file.vector)
        among = None if piece.among is None else deleted_rows(self.table, piece.among)
        return deleted, among


def _selected(
    first: int,
    count: int,
    deleted: npt.NDArray[np.int64],
    among: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64] | None:
    """Return the places, in a batch, of the rows that a piece has; ``None``: all.

    `first`: number of the batch's first row in the file; `count`: its rows.
    """
    low, high = np.searchsorted(deleted, [first, first + count])
    if among is None and low == high:
        return None
    mask = np.full(count, among is None)
    if among is not None:
        start, stop = np.searchsorted(among, [first, first + count])
        mask[among[start:stop] - first] = True
    mask[deleted[low:high] - first] = False
    return np.flatnonzero(mask)

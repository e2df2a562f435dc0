"""Rows of a piece of a Delta table, in any process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.connect.delta.columns import (
    DeltaColumn,
    from_stored,
    names_by_id,
    partition_value,
    schema_with_ids,
)
from godwit.connect.delta.pieces import DeltaFiles
from godwit.connect.delta.vectors import deleted_rows
from godwit.connect.files.file_formats import FileRange
from godwit.connect.lakes.table_pieces import PARQUET, selected_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.connect.delta.pieces import DeltaPiece
    from godwit.connect.delta.place import TablePlace
    from godwit.connect.lakes.table_rows import TableRows

_TYPE: Final = pa.field("_change_type", pa.string())  # of the change data feed
_TYPE_COLUMN: Final = DeltaColumn(field=_TYPE, stored=_TYPE)
_SIGNS: Final = {
    -1: pa.array(["delete", "update_preimage"]),
    1: pa.array(["insert", "update_postimage"]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPieceReader:
    """Reads pieces of a table; can be pickled."""

    table: TablePlace
    schema: pa.Schema  # of all rows
    columns: Mapping[str, DeltaColumn]  # of the rows and filters
    rows: TableRows

    def read(self, piece: DeltaPiece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece with the columns `names`."""
        partition = piece.file.partition or {}
        read_names = dict.fromkeys([*names, *self.rows.filtered])
        columns = [self.columns[name] for name in read_names if name in self.columns]
        from_file = [column for column in columns if column.stored.name not in partition]
        place, file = DeltaFiles(self.table).file_of(piece)
        stored = self._stored_names(piece, from_file)
        fields = [column.stored.with_name(stored[column.field.name]) for column in from_file]
        fields += [_TYPE] if piece.from_feed else []
        deleted, among = self._vectors_of(piece)
        part = FileRange(file=file, start=piece.start, stop=piece.stop)
        row = piece.start
        schema = pa.schema([self.schema.field(name) for name in names])
        for batch in PARQUET.read(place, part, fields, [f.name for f in fields]):
            selected = selected_rows(row, batch.num_rows, deleted, among)
            row += batch.num_rows
            if piece.from_feed:
                types = from_stored(batch.column(_TYPE.name), _TYPE_COLUMN, piece.file.path)
                has_sign = pc.is_in(types, _SIGNS[piece.sign]).to_numpy(zero_copy_only=False)
                selected = np.flatnonzero(has_sign)  # files of the feed have no deletion vectors
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
            yield from self.rows.completed(values, count, piece, piece.version, schema)

    def _stored_names(self, piece: DeltaPiece, columns: Sequence[DeltaColumn]) -> dict[str, str]:
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
        self, piece: DeltaPiece
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return the rows that a piece excludes, and those that it selects (``None``: all)."""
        deleted = deleted_rows(self.table, piece.file.vector)
        among = None if piece.among is None else deleted_rows(self.table, piece.among)
        return deleted, among

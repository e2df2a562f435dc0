"""Parquet files with nested columns, read like by Spark's reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.columns.arrays import mask_of
from godwit.connect.files.file_formats import ParquetFormat

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from godwit.connect.files.file_formats import FilePlace, FileRange


class SparkParquet(ParquetFormat):
    """Parquet files whose nested columns have the types of the schema.

    A struct may have more fields, which are left out, or fewer, which are null; all else raises.
    """

    def read(
        self,
        directory: FilePlace,
        part: FileRange,
        fields: Sequence[pa.Field],
        known: Container[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        nested = [field for field in fields if pa.types.is_nested(field.type)]
        for batch in super().read(directory, part, fields, known):
            rows = batch
            for field in nested:
                place = rows.schema.get_field_index(field.name)
                if place >= 0:
                    column = _with_fields_of(rows.column(place), field.type, field.name)
                    rows = rows.set_column(place, field.name, column)
            yield rows


def _with_fields_of(column: pa.Array, dtype: pa.DataType, name: str) -> pa.Array:
    """Return a column with the fields of a type; raise ValueError for types that differ."""
    if not (pa.types.is_struct(dtype) and pa.types.is_struct(column.type)):
        if not _types_equal(column.type, dtype):
            msg = f"its column {name!r} has type {column.type}, but {dtype} in the schema"
            raise ValueError(msg)
        return column
    stored_names = [column.type.field(number).name for number in range(column.type.num_fields)]
    expected_fields = [dtype.field(number) for number in range(dtype.num_fields)]
    missing = {field.name.lower() for field in expected_fields} - {*stored_names}
    if len(missing) == len(expected_fields) or missing & {
        stored_name.lower() for stored_name in stored_names
    }:
        msg = f"its column {name!r} has the fields {stored_names}, not those of {dtype}"
        raise ValueError(msg)
    parts = [
        _with_fields_of(
            column.field(stored_names.index(field.name)), field.type, f"{name}.{field.name}"
        )
        if field.name in stored_names
        else pa.nulls(len(column), field.type)
        for field in expected_fields
    ]
    valid = mask_of(column)
    mask = None if valid is None else pa.array(~valid)
    return pa.StructArray.from_arrays(
        parts, names=[field.name for field in expected_fields], mask=mask
    )


def _types_equal(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether two types are equal, ignoring the names of list items."""
    types = pa.types
    for is_one in (types.is_list, types.is_map, types.is_struct):
        if is_one(source) or is_one(target):
            return bool(
                is_one(source)
                and is_one(target)
                and source.num_fields == target.num_fields
                and all(
                    _types_equal(source.field(n).type, target.field(n).type)
                    and (
                        is_one is not types.is_struct
                        or source.field(n).name == target.field(n).name
                    )
                    for n in range(source.num_fields)
                )
            )
    return bool(source.equals(target))

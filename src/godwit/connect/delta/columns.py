"""Columns of a Delta table: their types, their names in data files, and values of partitions.

With column mapping, the columns of data files have names or numbers of their own, so that a column
of the table can be renamed; names at any depth are mapped.  Types may have been widened: the older
files have the narrower type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.connect.files.file_types import cast_column, widens
from godwit.connect.formats.text_values import from_text
from godwit.model.errors import SourceError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.connect.delta.log import Metadata

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_ID: Final = "delta.columnMapping.id"


class UnknownDeltaTypeError(ValueError):
    """A type of Delta Lake that the source does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaColumn:
    """A column of a table, and how data files store it."""

    field: pa.Field  # name and type in the table
    stored: pa.Field  # in data files, with names of their own at any depth
    field_id: int | None = None  # by which data files have it, if not by name


def table_columns(metadata: Metadata) -> dict[str, DeltaColumn | str]:
    """Return the columns of a table by name; a string is the type of an unreadable column."""
    columns: dict[str, DeltaColumn | str] = {}
    for field in json.loads(metadata.schema_json)["fields"]:
        try:
            columns[field["name"]] = _column_of_field(field, metadata.mapping)
        except UnknownDeltaTypeError as error:
            columns[field["name"]] = str(error)
    return columns


def _column_of_field(field: Mapping[str, Any], mapping: str) -> DeltaColumn:
    """Return a column; `mapping`: mode of column mapping."""
    is_mapped = mapping in {"name", "id"}
    facts = field.get("metadata") or {}
    return DeltaColumn(
        field=pa.field(field["name"], _arrow_type(field["type"], mapped=False)),
        stored=pa.field(
            _stored_name(field, mapped=is_mapped), _arrow_type(field["type"], mapped=is_mapped)
        ),
        field_id=int(facts[_ID]) if mapping == "id" and _ID in facts else None,
    )


def _stored_name(field: Mapping[str, Any], *, mapped: bool) -> str:
    """Return the name of a field in data files."""
    name = (field.get("metadata") or {}).get(_PHYSICAL) if mapped else None
    return str(name or field["name"])


def _arrow_type(dtype: Any, *, mapped: bool) -> pa.DataType:
    """Return a type of Delta's schema as an Arrow type; `mapped`: with the names of data files."""
    if isinstance(dtype, str):
        if dtype in _TYPES:
            return _TYPES[dtype]
        if dtype.startswith("decimal"):
            inner = dtype.removeprefix("decimal").strip("()") or "10,0"
            precision, _, scale = inner.partition(",")
            return pa.decimal128(int(precision), int(scale or 0))
        raise UnknownDeltaTypeError(dtype)
    if dtype["type"] == "struct":
        return pa.struct(
            [
                pa.field(_stored_name(f, mapped=mapped), _arrow_type(f["type"], mapped=mapped))
                for f in dtype["fields"]
            ]
        )
    if dtype["type"] == "array":
        return pa.list_(_arrow_type(dtype["elementType"], mapped=mapped))
    if dtype["type"] == "map":
        parts = [_arrow_type(dtype[part], mapped=mapped) for part in ("keyType", "valueType")]
        return pa.map_(*parts)
    raise UnknownDeltaTypeError(str(dtype["type"]))


def chosen_columns(
    metadata: Metadata, names: Sequence[str] | None, shown: str
) -> dict[str, DeltaColumn]:
    """Return the columns `names` of a table, by default all; raise if one cannot be read."""
    columns = table_columns(metadata)
    missing = [name for name in names or () if name not in columns]
    if missing:
        raise SourceError(
            f"The Delta table {shown!r} has no {listing(missing)}; its columns are "
            f"{listing(list(columns))}.",
            remedy="Use only columns of the table in columns= and filters=.",
            path=shown,
        )
    selected: dict[str, DeltaColumn] = {}
    for name in columns if names is None else names:
        column = columns[name]
        if isinstance(column, str):
            raise SourceError(
                f"Column {name!r} of the Delta table {shown!r} is of type {column}, which the "
                "source does not read.",
                remedy="Leave it out: list the other columns in columns=.",
                path=shown,
                column=name,
            )
        selected[name] = column
    return selected


def check_later_columns(
    columns: Iterable[DeltaColumn], later: Metadata, shown: str, version: int, *, follows: bool
) -> list[str]:
    """Raise if a version's columns cannot be read as `columns`; return its further columns.

    `follows`: the version is later than `columns`, so a column that it lacks was dropped; else the
    column is younger than the version, and null in its rows.
    """
    stored_columns = {
        column.stored.name if isinstance(column, DeltaColumn) else name: column
        for name, column in table_columns(later).items()
    }
    names = set()
    for column in columns:
        stored = stored_columns.get(column.stored.name)
        names.add(column.stored.name)
        problem = None
        if stored is None:
            problem = "drops" if follows else None
        elif isinstance(stored, str) or not _is_equal_or_widened(
            stored.stored.type, column.stored.type
        ):
            dtype = stored if isinstance(stored, str) else stored.field.type
            problem = f"has it as {dtype}, which changes the type of"
        elif follows and stored.field.name != column.field.name:
            problem = f"renames (to {stored.field.name!r})"
        if problem is not None:
            raise SourceError(
                f"Version {version} of the Delta table {shown!r} {problem} column "
                f"{column.field.name!r}, which is of type {column.field.type} in the query.",
                remedy="Start the query again to read the table with its new columns, if the flow "
                "can do so. If not, start a new query, with a new checkpoint, or leave the column "
                "out by columns=.",
                path=shown,
                version=version,
                column=column.field.name,
            )
    return [
        name if isinstance(column, str) else column.field.name
        for name, column in stored_columns.items()
        if name not in names
    ]


def _is_equal_or_widened(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a type can be read as another: equal to it, or widened to it later."""
    if pa.types.is_date(source) and pa.types.is_timestamp(target):
        return target.tz is None
    return widens(source, target)


def from_stored(values: pa.Array, column: DeltaColumn, file: str) -> pa.Array:
    """Return values of a data file as those of the table's column; raise if a value is lost."""
    stored, dtype, types = column.stored, column.field.type, pa.types
    if types.is_timestamp(dtype):
        if types.is_date(values.type) and dtype.tz is None:  # the type was widened
            values = values.cast(dtype)
        if types.is_timestamp(values.type) and values.type.tz is None and dtype.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit, "UTC"))  # as older writers do
    values = cast_column(values, stored, file)
    if stored.type.equals(dtype):
        return values
    return pa.array(_Renamed(values, dtype))


class _Renamed:
    """An array whose nested fields get other names, without a copy."""

    def __init__(self, values: pa.Array, dtype: pa.DataType) -> None:
        self._values, self._type = values, dtype

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        del requested_schema
        return self._type.__arrow_c_schema__(), self._values.__arrow_c_array__()[1]


def names_by_id(schema: pa.Schema) -> dict[int, str]:
    """Return the names of a data file's columns by their field ids."""
    return {
        int((field.metadata or {})[b"PARQUET:field_id"]): field.name
        for field in schema
        if b"PARQUET:field_id" in (field.metadata or {})
    }


def schema_with_ids(stream: pa.NativeFile) -> pa.Schema:
    """Return the schema of a Parquet file, with the field ids of its columns."""
    return pq.read_schema(stream)


def partition_value(text: str | None, field: pa.Field, file: str) -> pa.Scalar:
    """Return the value of a partition column from its text in the log; raise if it is not one.

    By the protocol, an empty text is null.
    """
    if text is None or text == "":
        return pa.scalar(None, field.type)
    try:
        if pa.types.is_binary(field.type):
            raise ValueError("writers encode binary values differently")  # noqa: TRY301
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            text = text.removesuffix("Z")
        return from_text(pa.array([text]), field)[0]
    except (ValueError, pa.ArrowException) as error:
        raise SourceError(
            f"The log has {field.name}={text!r} for the file {file!r}, which is not of type "
            f"{field.type} ({error}).",
            remedy="Leave the column out: list the other columns in columns=.",
            file=file,
            column=field.name,
        ) from error

"""Rows as users write them (dicts, tuples, Arrow, pandas), as Arrow tables of a source's schema."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.model.errors import InvalidInputError
from godwit.model.naming import did_you_mean, listing, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EXAMPLE = '{"symbol": "A", "price": 9.5}'


def table_of(source: str, rows: Any, schema: pa.Schema, needed: Iterable[str] = ()) -> pa.Table:
    """Return rows for a source, such as dicts, as an Arrow table of the source's schema.

    `needed`: columns that must be present. Raises `InvalidInputError` if a column is missing or
    unknown, or a value is not of its column's type.
    """
    if rows is None:
        return schema.empty_table()
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif is_pandas(rows):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.Table):
        return _cast_table(source, rows, schema, set(needed))
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise not_rows_error(source, rows)
    return _table_of_rows(source, rows, schema, set(needed))


def _table_of_rows(
    source: str, rows: Sequence[Any], schema: pa.Schema, needed: set[str]
) -> pa.Table:
    """Return dicts or tuples as an Arrow table; `needed`: columns that must be present."""
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            by_name = row
        elif isinstance(row, tuple) and len(row) == len(schema):
            by_name = dict(zip(schema.names, row, strict=True))
        else:
            what = f"a tuple of {len(row)}" if isinstance(row, tuple) else repr(row)
            raise InvalidInputError(
                f"Row {number} of source {source!r} is {what}.",
                remedy=f"Give dicts, such as {_EXAMPLE}, or tuples of all columns "
                f"({listing(schema.names)}).",
                source=source,
                row=number,
            )
        _check_columns(source, by_name, schema, needed, f"Row {number} of source {source!r}")
        for name, values in columns.items():
            values.append(by_name.get(name))
    arrays = [_source_column(source, field, columns[field.name]) for field in schema]
    return pa.Table.from_arrays(arrays, schema=_nullable(schema))


def _check_columns(
    source: str, columns: Iterable[Any], schema: pa.Schema, needed: set[str], what: str
) -> None:
    """Raise if a column is unknown, or a `needed` one missing; `what`: the rows, for errors."""
    names = set(columns)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        name = min(map(str, unknown))
        raise InvalidInputError(
            f"{what} has a column {name!r}, which the source does not have.",
            remedy=f"{did_you_mean(name, schema.names)}Its columns are {listing(schema.names)}.",
            source=source,
            column=name,
        )
    missing = sorted(needed - names)
    if missing:
        raise InvalidInputError(
            f"{what} has no column {missing[0]!r}, which the flow reads.",
            remedy=f"Give it a value, or None. The flow reads {listing(sorted(needed))}.",
            source=source,
            column=missing[0],
        )


def _source_column(source: str, field: pa.Field, values: list[Any]) -> pa.Array:
    """Convert a source's Python values to a column; raise for the first that does not fit."""
    read = _converter(field.type)
    try:
        return pa.array([read(value) for value in values], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for number, value in enumerate(values):
            try:
                pa.array([read(value)], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as first:
                raise InvalidInputError(
                    f"Row {number} of source {source!r} has {value!r} in column {field.name!r}, "
                    f"whose type is {field.type}: {first}.",
                    remedy=f"Give a value of that type, such as {_example_value(field.type)}.",
                    source=source,
                    row=number,
                    column=field.name,
                ) from error
        raise


def _converter(dtype: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts Python values for a type; times may be ISO 8601 text."""
    if pa.types.is_timestamp(dtype):

        def moment(value: Any) -> Any:
            """Parse ISO 8601 text; take a datetime without time zone as UTC."""
            if isinstance(value, str):
                value = dt.datetime.fromisoformat(value)
            if isinstance(value, dt.datetime) and value.tzinfo is None and dtype.tz is not None:
                value = value.replace(tzinfo=dt.UTC)
            return value

        return moment
    if pa.types.is_date(dtype):
        return lambda value: dt.date.fromisoformat(value) if isinstance(value, str) else value
    return lambda value: value


def _example_value(dtype: pa.DataType) -> str:
    """Return an example of a value of a type, as text for errors."""
    if pa.types.is_timestamp(dtype):
        return '"2024-05-01 08:00" or a datetime'
    if pa.types.is_floating(dtype):
        return "1.5"
    if pa.types.is_integer(dtype):
        return "1"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return '"text"'
    return f"one that pyarrow takes for {dtype}"


def _cast_table(source: str, table: pa.Table, schema: pa.Schema, needed: set[str]) -> pa.Table:
    """Return a table as the schema's columns, or raise; `needed`: see `table_of`."""
    _check_columns(source, table.column_names, schema, needed, f"The table of source {source!r}")
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowException, TypeError) as error:
            raise InvalidInputError(
                f"Column {field.name!r} of the table of source {source!r} is of type "
                f"{column.type}, which cannot be converted to {field.type}: {error}.",
                remedy="Give a table of the source's types.",
                source=source,
                column=field.name,
            ) from error
    return pa.Table.from_arrays(columns, schema=_nullable(schema))


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns nullable."""
    return pa.schema([field.with_nullable(True) for field in schema])


def is_table(value: Any) -> bool:
    """Return whether a value is an Arrow table or record batch, or a pandas DataFrame."""
    return isinstance(value, pa.Table | pa.RecordBatch) or is_pandas(value)


def is_pandas(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame, without importing pandas."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns")


def not_rows_error(source: str, value: Any) -> InvalidInputError:
    """Return the error that a value given as the rows of a source is none."""
    return InvalidInputError(
        f"Source {source!r} was given a value of type {type_name(value)} for rows.",
        remedy=f"Give a list of dicts, such as [{_EXAMPLE}], a pyarrow.Table or RecordBatch, or a "
        "pandas DataFrame; or a list of these, one an epoch.",
        source=source,
    )


def micros(moment: dt.datetime | str, what: str) -> int:
    """Return a datetime or ISO 8601 text in microseconds, or raise; `what`: for errors."""
    try:
        read = dt.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if read.tzinfo is None:
            read = read.replace(tzinfo=dt.UTC)
        return (read - _UNIX_EPOCH) // dt.timedelta(microseconds=1)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{moment!r} was given for {what}.",
            remedy='Give a datetime, or text such as "2024-05-01 08:00".',
        ) from error

"""State that a flow begins with: rows as users give them, as entries of an operator's state.

The rows have the key columns and the columns that `gw.read_state` shows, so the state of one query
can begin another one.  Columns that only Godwit needs (buckets of a join, slots of sessions) are
computed, by `KeyedOperator.complete_entries`, from all entries of a key together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.types import is_keyed_by_none, with_hidden_key
from godwit.model.errors import InvalidInputError
from godwit.model.naming import RESERVED_PREFIX, did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt


VALUE = "value"
"""Column of a function's state as plain values; ``state`` has it as JSON text."""


def with_keys(rows: pa.RecordBatch, keys: pa.Schema) -> pa.RecordBatch:
    """Return rows with the hidden key column, if their operator works on a whole stream."""
    if is_keyed_by_none(keys) and not is_keyed_by_none(rows.schema):
        return with_hidden_key(rows, rows.schema.names)
    return rows


def stored_columns(
    operator: str,
    rows: pa.RecordBatch,
    fields: Iterable[pa.Field],
    absent: Mapping[str, Callable[[int], pa.Array]] | None = None,
) -> list[pa.Array]:
    """Return the columns of `fields` from initial rows, which may lack Godwit's prefix.

    `absent`: name of a column → function that makes it for a number of rows, if the rows lack it.
    Raises `InvalidInputError` if a column is missing or of another type.
    """
    absent = absent or {}
    columns = []
    for field in fields:
        column = column_or_none(rows, field.name)
        if column is None and field.name in absent:
            columns.append(absent[field.name](rows.num_rows).cast(field.type))
            continue
        if column is None:
            name = shown(field.name)
            raise InvalidInputError(
                f"The initial state of operator {operator!r} has no column {name!r}.",
                remedy=f"{did_you_mean(name, rows.schema.names)}Give the key columns, and the "
                "columns that gw.read_state shows of this operator: these rows have "
                f"{listing(rows.schema.names)}.",
                operator=operator,
                column=name,
            )
        columns.append(converted(operator, shown(field.name), column, field.type))
    return columns


def converted(operator: str, name: str, column: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return a column of initial rows as a type of the state; raise if it has another type."""
    if column.type == dtype:
        return column
    try:
        return column.cast(dtype)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidInputError(
            f"Column {name!r} of the initial state of operator {operator!r} is of type "
            f"{column.type}, which cannot be converted to {dtype}: {error}.",
            remedy="Give the types that gw.read_state shows of this operator.",
            operator=operator,
            column=name,
        ) from error


def with_column(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Return rows with a column of the state, instead of one of the same name."""
    if name in rows.schema.names:
        rows = rows.drop_columns(name)
    return rows.append_column(name, column)


def column_or_none(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column of initial rows by its name in the state or its shown name."""
    for known in (name, shown(name)):
        if known in rows.schema.names:
            return rows.column(known)
    return None


def shown(name: str) -> str:
    """Return the name of a state column as `gw.read_state` shows it."""
    return name.removeprefix(f"{RESERVED_PREFIX}_")


def times_of(operator: str, rows: pa.RecordBatch, name: str, dtype: pa.DataType) -> Any:
    """Return a column of event times in microseconds; raise if it is missing, or has nulls."""
    (column,) = stored_columns(operator, rows, [pa.field(name, dtype)])
    check_no_nulls(operator, name, column)
    return values_of(column)


def check_no_nulls(operator: str, name: str, column: pa.Array) -> None:
    """Raise if a column of initial rows has nulls."""
    if column.null_count:
        raise InvalidInputError(
            f"Column {shown(name)!r} of the initial state of operator {operator!r} has nulls.",
            remedy="Leave out the rows without a value there.",
            operator=operator,
            column=shown(name),
        )


def numbers_in_runs(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the number, from 0, of each row among those with the same values, in their order."""
    count = len(columns[0])
    order = np.lexsort(columns[::-1])
    starts = np.zeros(count, np.bool_)
    starts[:1] = True
    for column in columns:
        starts[1:] |= column[order][1:] != column[order][:-1]
    first = np.maximum.accumulate(np.where(starts, np.arange(count), 0))
    numbers = np.empty(count, np.int64)
    numbers[order] = np.arange(count) - first
    return numbers

"""State that a flow begins with: rows as users give them, as entries of an operator's state.

The rows have the key columns and the columns that `gw.read_state` shows, so the state of one query
can begin another one.  Columns that only Godwit needs (buckets of a join, slots of sessions) are
computed, by `KeyedOperator.complete_entries`, from all entries of a key together.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.python_values import python_values
from godwit.columns.types import is_keyed_by_none, with_hidden_key
from godwit.model.errors import InvalidInputError, StateEncodingError
from godwit.model.naming import RESERVED_PREFIX, did_you_mean, listing
from godwit.time.grid import END
from godwit.values.checks import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.values.codec import StateCodec

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


# -- states of functions ----------------------------------------------------------------------


def function_states(
    operator: str, rows: pa.RecordBatch, codec: StateCodec, *, whole: bool = False
) -> list[Any]:
    """Return the states in initial rows as values of the declared type.

    They are the column ``value``, as plain values, or ``state``, as JSON text. `whole`: the codec
    is of the elements of a list or the values of a map, and the rows have all of these.
    """
    names = rows.schema.names
    if (
        codec.name == "pickle"
        and "state" in names
        and pa.types.is_large_binary(rows.schema.field("state").type)
    ):
        return codec.decode([memoryview(blob) for blob in rows.column("state").to_pylist()])
    if VALUE in names:
        values = python_values(rows.column(VALUE))
    elif "state" in names:
        texts = rows.column("state").to_pylist()
        values = [None if text is None else msgspec.json.decode(text) for text in texts]
    else:
        raise InvalidInputError(
            f"The initial state of operator {operator!r} has neither a column 'value' nor 'state'.",
            remedy="Give the state of a key in a column 'value' (a number, a struct, a list ...), "
            "or in a column 'state' as JSON text, as gw.read_state shows it. These rows have "
            f"{listing(names)}.",
            operator=operator,
        )
    if not whole:
        return [typed_state(operator, value, codec) for value in values]
    # The codec's type is a list of elements; items of a map come as pairs.
    is_map = VALUE in names and pa.types.is_map(rows.schema.field(VALUE).type)
    if not is_map:
        return [typed_state(operator, value or [], codec) for value in values]
    mappings = [dict(value or ()) for value in values]
    return [
        dict(zip(mapping, typed_state(operator, list(mapping.values()), codec), strict=True))
        for mapping in mappings
    ]


def typed_state(operator: str, value: Any, codec: StateCodec) -> Any:
    """Return a plain value as the declared type of a state; raise if it is none of that type."""
    try:
        return msgspec.convert(value, codec.state_type, strict=False)
    except TypeError:  # a type that msgspec does not know: the codec checks the value
        return value
    except msgspec.ValidationError as error:
        raise InvalidInputError(
            f"The initial state of operator {operator!r} has a value that does not have "
            f"the declared type: {error}; it is {value!r:.100}.",
            remedy="Give values of the declared type: a class is a struct of its fields.",
            operator=operator,
        ) from error


def encoded_states(
    operator: str, states: Sequence[Any], codec: StateCodec, key_of: Callable[[int], Any]
) -> pa.Array:
    """Encode the states of initial rows; `key_of`: row number → its key, for errors."""
    try:
        blobs = codec.encode(states)
    except UnencodableError as error:
        raise StateEncodingError(
            f"The initial state of operator {operator!r} for key {key_of(error.index)!r} cannot "
            f"be written: {error}.",
            remedy="Give values of the declared type.",
            operator=operator,
            key=key_of(error.index),
        ) from error
    return pa.array(blobs, pa.large_binary())


def timers_in(operator: str, rows: pa.RecordBatch) -> list[list[int]]:
    """Return the timers of each key in microseconds, ascending, from a column of lists of times."""
    return [sorted(set(moments)) for moments in _lists_of_times(operator, rows, "timers")]


def expiries_of_elements(operator: str, rows: pa.RecordBatch) -> list[list[int]]:
    """Return when the elements of each list, or the items of each map, expire; empty: unknown."""
    return _lists_of_times(operator, rows, "expires")


def _lists_of_times(operator: str, rows: pa.RecordBatch, name: str) -> list[list[int]]:
    """Return a column of lists of times in microseconds; empty lists without the column."""
    column = column_or_none(rows, name)
    if column is None:
        return [[] for _ in range(rows.num_rows)]
    list_type = pa.list_(pa.timestamp("us", tz="UTC"))
    lists = converted(operator, name, column, list_type)
    times = values_of(lists.values)
    edges = lists.offsets.to_pylist()
    is_valid = mask_of(lists)
    return [
        times[first:end].tolist() if is_valid is None or is_valid[row] else []
        for row, (first, end) in enumerate(itertools.pairwise(edges))
    ]


def expiries_in(operator: str, rows: pa.RecordBatch) -> pa.Array:
    """Return the expiry of each key in microseconds; without a column, or if null, it has none."""
    column = column_or_none(rows, "expires")
    if column is None:
        return column_of(np.full(rows.num_rows, END), None, pa.int64())
    moments = converted(operator, "expires", column, pa.timestamp("us", tz="UTC"))
    return moments.cast(pa.int64()).fill_null(END)

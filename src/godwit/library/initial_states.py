"""Initial state of functions per key: values, timers and expiries in rows as users give them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.python_values import python_values
from godwit.model.errors import InvalidInputError, StateEncodingError
from godwit.model.naming import listing
from godwit.operators.initial import VALUE, column_or_none, converted
from godwit.time.grid import END
from godwit.values.checks import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.values.codec import StateCodec


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

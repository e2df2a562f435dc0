"""Functions of Spark over arrays and maps as Arrow columns; see `godwit.adopt.functions`.

Elements are compared and ordered by their order keys (`godwit.adopt.encoding`), so elements of
every type that Spark orders are, with its order of nulls, NaN and parts of structs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.encoding import order_keys
from godwit.columns.arrays import mask_of, values_of
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.operators.ordering import descending_ranks, order_by, starts_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.casts import FunctionSpec

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def rows_and_elements(lists: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the row of each element of arrays or maps, and the elements; null rows have none."""
    if pa.types.is_map(lists.type):
        lists = lists.cast(pa.list_(pa.struct([lists.type.key_field, lists.type.item_field])))
    sizes = values_of(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    return np.repeat(np.arange(len(lists)), sizes), lists.flatten()


def lists_of_rows(
    rows: Integers, elements: pa.Array, like: pa.Array, dtype: pa.DataType
) -> pa.Array:
    """Return arrays of elements, which are ordered by row; null where `like` is null."""
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(like))))
    mask = mask_of(like)
    return pa.ListArray.from_arrays(
        pa.array(starts.astype(np.int32)),
        elements if elements.type == dtype.value_type else elements.cast(dtype.value_type),
        type=dtype,
        mask=None if mask is None else pa.array(~mask),
    )


def codes_of(*columns: pa.Array) -> list[Integers]:
    """Return order-preserving codes for the values of columns of one type; -1: null."""
    wrapped = [pa.StructArray.from_arrays([column], names=["value"]) for column in columns]
    keys = pa.concat_arrays([order_keys(column) for column in wrapped])
    ranks = descending_ranks(keys)
    ascending = ranks.max(initial=0) - ranks
    cuts = np.cumsum([len(column) for column in columns])[:-1]
    parts = np.split(ascending, cuts)
    return [
        part if (mask := mask_of(column)) is None else np.where(mask, part, -1)
        for part, column in zip(parts, columns, strict=True)
    ]


def _sort_ascending_or_descending(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return sorted arrays: ascending with nulls first, or descending with nulls last."""
    rows, elements = rows_and_elements(lists)
    (codes,) = codes_of(elements)
    ranks = codes + 1 if call.options[0] else codes.max(initial=0) - codes
    order = order_by(rows, ranks)
    return lists_of_rows(rows, elements.take(pa.array(order)), lists, call.dtype)


def _sort_nulls_last(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return arrays sorted ascending, with nulls last."""
    rows, elements = rows_and_elements(lists)
    (codes,) = codes_of(elements)
    order = order_by(rows, np.where(codes < 0, codes.max(initial=0) + 1, codes))
    return lists_of_rows(rows, elements.take(pa.array(order)), lists, call.dtype)


def _flatten(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Flatten arrays of arrays; null where an inner array is null."""
    rows, inner_lists = rows_and_elements(lists)
    row_of_element, elements = rows_and_elements(inner_lists)
    has_null = np.bincount(rows[~values_of(inner_lists.is_valid())], minlength=len(lists)) > 0
    rows = rows[row_of_element]
    selected = np.flatnonzero(~has_null[rows])
    validity = pc.if_else(pa.array(has_null), None, lists.is_valid())
    validity = pc.if_else(lists.is_valid(), validity, None)
    return lists_of_rows(rows[selected], elements.take(pa.array(selected)), validity, call.dtype)


def _array_min_or_max(largest: bool) -> Callable[[FunctionSpec, pa.Array], pa.Array]:
    """Return ``array_max`` or ``array_min``, which skip nulls."""

    def evaluate(_call: FunctionSpec, lists: pa.Array) -> pa.Array:
        rows, elements = rows_and_elements(lists)
        (codes,) = codes_of(elements)
        not_null = np.flatnonzero(codes >= 0)
        ranks = codes[not_null] if not largest else codes.max(initial=0) - codes[not_null]
        order = not_null[order_by(rows[not_null], ranks)]
        first = np.full(len(lists), -1)
        first[rows[order][::-1]] = order[::-1]
        return elements.take(pa.array(first, mask=first < 0))

    return evaluate


def _distinct(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return arrays without elements that equal an earlier one."""
    rows, elements = rows_and_elements(lists)
    return _first_of_each(call, lists, rows, elements, codes_of(elements)[0])


def _first_of_each(
    call: FunctionSpec, like: pa.Array, rows: Integers, elements: pa.Array, codes: Integers
) -> pa.Array:
    """Return arrays of the first element of each code."""
    order = order_by(rows, codes + 1)
    first = np.sort(order[starts_run(rows[order], codes[order])]) if len(order) else order
    return lists_of_rows(rows[first], elements.take(pa.array(first)), like, call.dtype)


def _contains(_call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return whether a value is an element; null if it is not, and an element is null."""
    rows, elements = rows_and_elements(lists)
    element_codes, wanted_codes = codes_of(elements, values.cast(elements.type))
    count = len(lists)
    equal = np.bincount(rows[element_codes == wanted_codes[rows]], minlength=count) > 0
    unknown = (np.bincount(rows[element_codes < 0], minlength=count) > 0) & ~equal
    result = pa.array(equal, mask=unknown)
    return pc.if_else(values.is_valid(), result, pa.scalar(None, pa.bool_()))


def _position(_call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return the position of the first element that is equal to a value, from 1; else 0."""
    rows, elements = rows_and_elements(lists)
    own_codes, wanted = codes_of(elements, values.cast(elements.type))
    position_in_row = _positions_in_row(rows)
    matches = np.flatnonzero(own_codes == wanted[rows])[::-1]
    result = np.zeros(len(lists), np.int64)
    result[rows[matches]] = position_in_row[matches] + 1
    return pc.if_else(values.is_valid(), pa.array(result), pa.scalar(None, pa.int64()))


def _positions_in_row(rows: Integers) -> Integers:
    """Return the number of each element in its row, from 0."""
    starts = np.flatnonzero(starts_run(rows)) if len(rows) else rows
    sizes = np.diff(starts, append=len(rows))
    return np.arange(len(rows)) - np.repeat(starts, sizes)


def _remove(call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return arrays without the elements that are equal to a value."""
    rows, elements = rows_and_elements(lists)
    element_codes, wanted_codes = codes_of(elements, values.cast(elements.type))
    stays = np.flatnonzero(element_codes != wanted_codes[rows])
    return lists_of_rows(rows[stays], elements.take(pa.array(stays)), values, call.dtype)


def _union(call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return the distinct elements of two arrays."""
    (rows, elements), (other_rows, other_elements) = (
        rows_and_elements(left),
        rows_and_elements(right),
    )
    order = order_by(np.concatenate([rows, other_rows]))
    all_elements = pa.concat_arrays([elements, other_elements.cast(elements.type)]).take(
        pa.array(order)
    )
    all_rows = np.concatenate([rows, other_rows])[order]
    return _first_of_each(call, right, all_rows, all_elements, codes_of(all_elements)[0])


def _intersect_or_except(included: bool) -> Callable[[FunctionSpec, pa.Array, pa.Array], pa.Array]:
    """Return ``array_intersect``, or ``array_except``, by membership in the second array."""

    def evaluate(call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
        (rows, elements), (other_rows, other_elements) = (
            rows_and_elements(left),
            rows_and_elements(right),
        )
        element_codes, other_codes = codes_of(elements, other_elements.cast(elements.type))
        width = max(int(element_codes.max(initial=0)), int(other_codes.max(initial=0))) + 2
        is_in_both = np.isin(rows * width + element_codes + 1, other_rows * width + other_codes + 1)
        chosen_positions = np.flatnonzero(is_in_both == included)
        chosen_elements = elements.take(pa.array(chosen_positions))
        return _first_of_each(
            call, right, rows[chosen_positions], chosen_elements, element_codes[chosen_positions]
        )

    return evaluate


def _overlap(_call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return whether arrays share an element; null if they do not, and one of them has a null."""
    (rows, elements), (other_rows, other_elements) = (
        rows_and_elements(left),
        rows_and_elements(right),
    )
    element_codes, other_codes = codes_of(elements, other_elements.cast(elements.type))
    width, count = (
        max(int(element_codes.max(initial=0)), int(other_codes.max(initial=0))) + 1,
        len(left),
    )
    shared = np.isin(
        rows * width + element_codes,
        other_rows[other_codes >= 0] * width + other_codes[other_codes >= 0],
    )
    has_shared = np.bincount(rows[shared & (element_codes >= 0)], minlength=count) > 0
    is_unknown = (
        np.bincount(
            np.append(rows[element_codes < 0], other_rows[other_codes < 0]), minlength=count
        )
        > 0
    )
    for rows_of_side in (rows, other_rows):  # an empty array shares nothing
        is_unknown &= np.bincount(rows_of_side, minlength=count) > 0
    result = pa.array(has_shared, mask=is_unknown & ~has_shared)
    return pc.if_else(right.is_valid(), result, pa.scalar(None, pa.bool_()))


def _sequence(call: FunctionSpec, start: pa.Array, stop: pa.Array) -> pa.Array:
    """Return the integers from one to another, also downwards."""
    first, last = (values_of(column).astype(np.int64) for column in (start, stop))
    mask = mask_of(stop)
    sizes = abs(last - first) + 1
    sizes = sizes if mask is None else np.where(mask, sizes, 0)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    numbers = first[rows] + _positions_in_row(rows) * np.where(last < first, -1, 1)[rows]
    elements = pa.array(numbers).cast(call.dtype.value_type)
    return lists_of_rows(rows, elements, stop, call.dtype)


def _join(_call: FunctionSpec, lists: pa.Array, delimiter: pa.Array) -> pa.Array:
    """Join the texts of arrays, without nulls."""
    return _joined_texts(lists, delimiter, None)


def _join_with_nulls(
    _call: FunctionSpec, lists: pa.Array, delimiter: pa.Array, null: pa.Array
) -> pa.Array:
    """Join the texts of arrays, with a text for nulls."""
    return _joined_texts(lists, delimiter, null)


def _joined_texts(lists: pa.Array, delimiter: pa.Array, null: pa.Array | None) -> pa.Array:
    """Return joined texts; null where the last column is."""
    last = delimiter if null is None else null
    rows, elements = rows_and_elements(lists)
    positions = np.arange(len(rows))
    if null is None:
        positions = np.flatnonzero(values_of(elements.is_valid()))
    else:
        elements = pc.coalesce(elements, null.take(pa.array(rows)))
    texts = lists_of_rows(
        rows[positions], elements.take(pa.array(positions)), last, pa.list_(pa.string())
    )
    return pc.binary_join(texts, delimiter)


def _slice(call: FunctionSpec, lists: pa.Array, start: pa.Array, length: pa.Array) -> pa.Array:
    """Return parts of arrays, from a position that is counted from 1, or from the end."""
    rows, elements = rows_and_elements(lists)
    sizes = np.bincount(rows, minlength=len(lists))
    first, count = (values_of(column).astype(np.int64) for column in (start, length))
    valid = mask_of(length)
    for wrong, reason, name in (
        (first == 0, "positions begin at 1", "START"),
        (count < 0, "a length is not negative", "LENGTH"),
    ):
        fails = wrong if valid is None else wrong & valid
        if fails.any():
            raise EvaluationError(int(np.argmax(fails)), reason, f"INVALID_PARAMETER_VALUE.{name}")
    first = np.where(first > 0, first - 1, sizes + first)
    position_in_row = _positions_in_row(rows)
    is_in_slice = (
        (position_in_row >= first[rows])
        & (position_in_row < first[rows] + count[rows])
        & (first[rows] >= 0)
    )
    selected = np.flatnonzero(is_in_slice)
    return lists_of_rows(rows[selected], elements.take(pa.array(selected)), length, call.dtype)


def _reverse(call: FunctionSpec, values: pa.Array) -> pa.Array:
    """Return arrays in reverse order, or text."""
    if not pa.types.is_list(values.type):
        return pc.utf8_reverse(values)
    rows, elements = rows_and_elements(values)
    order = order_by(rows, (len(rows) - np.arange(len(rows))))
    return lists_of_rows(rows, elements.take(pa.array(order)), values, call.dtype)


def _keys(call: FunctionSpec, maps: pa.Array) -> pa.Array:
    """Return the keys of maps."""
    rows, entries = rows_and_elements(maps)
    return lists_of_rows(rows, entries.flatten()[0], maps, call.dtype)


def _values(call: FunctionSpec, maps: pa.Array) -> pa.Array:
    """Return the values of maps."""
    rows, entries = rows_and_elements(maps)
    return lists_of_rows(rows, entries.flatten()[1], maps, call.dtype)


def value_of_key(call: FunctionSpec, maps: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the value of a key; null if a map has none."""
    rows, entries = rows_and_elements(maps)
    own_keys, items = entries.flatten()
    key_codes, wanted = codes_of(own_keys, keys.cast(own_keys.type))
    matches = np.flatnonzero(key_codes == wanted[rows])
    position = np.full(len(maps), -1)
    position[rows[matches]] = matches
    result = items.take(pa.array(position, mask=position < 0))
    return pc.if_else(keys.is_valid(), result, pa.scalar(None, call.dtype))


def _size(_call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return the number of elements or entries."""
    if pa.types.is_map(lists.type):
        rows, _ = rows_and_elements(lists)
        sizes = np.bincount(rows, minlength=len(lists)).astype(np.int32)
        mask = mask_of(lists)
        return pa.array(sizes, mask=None if mask is None else ~mask)
    return pc.list_value_length(lists).cast(pa.int32())


ARRAYS: dict[str, Callable[..., Any]] = {
    "ArrayContains": _contains,
    "ArrayDistinct": _distinct,
    "ArrayExcept": _intersect_or_except(included=False),
    "ArrayIntersect": _intersect_or_except(included=True),
    "ArrayJoin": lambda call, *columns: (_join if len(columns) == 2 else _join_with_nulls)(
        call, *columns
    ),
    "ArrayMax": _array_min_or_max(largest=True),
    "ArrayMin": _array_min_or_max(largest=False),
    "ArrayPosition": _position,
    "ArrayRemove": _remove,
    "ArraySort": _sort_nulls_last,
    "ArrayUnion": _union,
    "ArraysOverlap": _overlap,
    "Flatten": _flatten,
    "GetMapValue": value_of_key,
    "MapKeys": _keys,
    "MapValues": _values,
    "Reverse": _reverse,
    "Sequence": _sequence,
    "Size": _size,
    "Slice": _slice,
    "SortArray": _sort_ascending_or_descending,
}
"""Spark's expression class → its function of columns; null where the last of these is null."""

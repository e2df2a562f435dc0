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
from godwit.operators.aggregates.arithmetic import EvaluationError
from godwit.operators.ordering import descending_ranks, order_by, starts_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adopt.casts import FunctionSpec

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def opened(lists: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the row of each element of arrays or maps, and the elements; null rows have none."""
    if pa.types.is_map(lists.type):
        lists = lists.cast(pa.list_(pa.struct([lists.type.key_field, lists.type.item_field])))
    sizes = values_of(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    return np.repeat(np.arange(len(lists)), sizes), lists.flatten()


def listed(rows: Integers, elements: pa.Array, like: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Return arrays of elements, which are in order of rows; null where `like` is null."""
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(like))))
    mask = mask_of(like)
    return pa.ListArray.from_arrays(
        pa.array(starts.astype(np.int32)),
        elements if elements.type == dtype.value_type else elements.cast(dtype.value_type),
        type=dtype,
        mask=None if mask is None else pa.array(~mask),
    )


def codes_of(*columns: pa.Array) -> list[Integers]:
    """Return numbers for the values of columns of one type, smaller for smaller ones; -1: null."""
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


def _sort(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return sorted arrays: ascending with nulls first, or descending with nulls last."""
    rows, elements = opened(lists)
    (codes,) = codes_of(elements)
    ranks = codes + 1 if call.options[0] else codes.max(initial=0) - codes
    order = order_by(rows, ranks)
    return listed(rows, elements.take(pa.array(order)), lists, call.dtype)


def _sort_nulls_last(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return arrays sorted ascending, with nulls last."""
    rows, elements = opened(lists)
    (codes,) = codes_of(elements)
    order = order_by(rows, np.where(codes < 0, codes.max(initial=0) + 1, codes))
    return listed(rows, elements.take(pa.array(order)), lists, call.dtype)


def _flatten(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return the elements of arrays in arrays; null where one of these is null."""
    rows, inner = opened(lists)
    within, elements = opened(inner)
    missing = np.bincount(rows[~values_of(inner.is_valid())], minlength=len(lists)) > 0
    rows = rows[within]
    stays = np.flatnonzero(~missing[rows])
    like = pc.if_else(pa.array(missing), None, lists.is_valid())
    like = pc.if_else(lists.is_valid(), like, None)
    return listed(rows[stays], elements.take(pa.array(stays)), like, call.dtype)


def _extreme(largest: bool) -> Callable[[FunctionSpec, pa.Array], pa.Array]:
    """Return ``array_max`` or ``array_min``, which skip nulls."""

    def evaluate(_call: FunctionSpec, lists: pa.Array) -> pa.Array:
        rows, elements = opened(lists)
        (codes,) = codes_of(elements)
        some = np.flatnonzero(codes >= 0)
        ranks = codes[some] if not largest else codes.max(initial=0) - codes[some]
        order = some[order_by(rows[some], ranks)]
        first = np.full(len(lists), -1)
        first[rows[order][::-1]] = order[::-1]
        return elements.take(pa.array(first, mask=first < 0))

    return evaluate


def _distinct(call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return arrays without elements that an earlier one is equal to."""
    rows, elements = opened(lists)
    return _first_of_each(call, lists, rows, elements, codes_of(elements)[0])


def _first_of_each(
    call: FunctionSpec, like: pa.Array, rows: Integers, elements: pa.Array, codes: Integers
) -> pa.Array:
    """Return arrays of the first element of each code."""
    order = order_by(rows, codes + 1)
    first = np.sort(order[starts_run(rows[order], codes[order])]) if len(order) else order
    return listed(rows[first], elements.take(pa.array(first)), like, call.dtype)


def _contains(_call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return whether a value is an element; null if it is not, and an element is null."""
    rows, elements = opened(lists)
    own, wanted = codes_of(elements, values.cast(elements.type))
    count = len(lists)
    equal = np.bincount(rows[own == wanted[rows]], minlength=count) > 0
    unknown = (np.bincount(rows[own < 0], minlength=count) > 0) & ~equal
    result = pa.array(equal, mask=unknown)
    return pc.if_else(values.is_valid(), result, pa.scalar(None, pa.bool_()))


def _position(_call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return the position of the first element that is equal to a value, from 1; else 0."""
    rows, elements = opened(lists)
    own, wanted = codes_of(elements, values.cast(elements.type))
    within = _numbers(rows)
    which = np.flatnonzero(own == wanted[rows])[::-1]
    result = np.zeros(len(lists), np.int64)
    result[rows[which]] = within[which] + 1
    return pc.if_else(values.is_valid(), pa.array(result), pa.scalar(None, pa.int64()))


def _numbers(rows: Integers) -> Integers:
    """Return the number of each element in its row, from 0."""
    starts = np.flatnonzero(starts_run(rows)) if len(rows) else rows
    sizes = np.diff(starts, append=len(rows))
    return np.arange(len(rows)) - np.repeat(starts, sizes)


def _remove(call: FunctionSpec, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Return arrays without the elements that are equal to a value."""
    rows, elements = opened(lists)
    own, wanted = codes_of(elements, values.cast(elements.type))
    stays = np.flatnonzero(own != wanted[rows])
    return listed(rows[stays], elements.take(pa.array(stays)), values, call.dtype)


def _union(call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return the distinct elements of two arrays."""
    (rows, elements), (others, more) = opened(left), opened(right)
    order = order_by(np.concatenate([rows, others]))
    every = pa.concat_arrays([elements, more.cast(elements.type)]).take(pa.array(order))
    numbers = np.concatenate([rows, others])[order]
    return _first_of_each(call, right, numbers, every, codes_of(every)[0])


def _among(included: bool) -> Callable[[FunctionSpec, pa.Array, pa.Array], pa.Array]:
    """Return ``array_intersect``, or ``array_except``: by whether an element is in the second."""

    def evaluate(call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
        (rows, elements), (others, more) = opened(left), opened(right)
        own, theirs = codes_of(elements, more.cast(elements.type))
        width = max(int(own.max(initial=0)), int(theirs.max(initial=0))) + 2
        both = np.isin(rows * width + own + 1, others * width + theirs + 1)
        which = np.flatnonzero(both == included)
        taken = elements.take(pa.array(which))
        return _first_of_each(call, right, rows[which], taken, own[which])

    return evaluate


def _overlap(_call: FunctionSpec, left: pa.Array, right: pa.Array) -> pa.Array:
    """Return whether arrays share an element; null if they do not, and one of them has a null."""
    (rows, elements), (others, more) = opened(left), opened(right)
    own, theirs = codes_of(elements, more.cast(elements.type))
    width, count = max(int(own.max(initial=0)), int(theirs.max(initial=0))) + 1, len(left)
    shared = np.isin(rows * width + own, others[theirs >= 0] * width + theirs[theirs >= 0])
    equal = np.bincount(rows[shared & (own >= 0)], minlength=count) > 0
    unknown = np.bincount(np.append(rows[own < 0], others[theirs < 0]), minlength=count) > 0
    for some in (rows, others):  # an empty array shares nothing
        unknown &= np.bincount(some, minlength=count) > 0
    result = pa.array(equal, mask=unknown & ~equal)
    return pc.if_else(right.is_valid(), result, pa.scalar(None, pa.bool_()))


def _sequence(call: FunctionSpec, start: pa.Array, stop: pa.Array) -> pa.Array:
    """Return the integers from one to another, also downwards."""
    first, last = (values_of(column).astype(np.int64) for column in (start, stop))
    mask = mask_of(stop)
    sizes = abs(last - first) + 1
    sizes = sizes if mask is None else np.where(mask, sizes, 0)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    numbers = first[rows] + _numbers(rows) * np.where(last < first, -1, 1)[rows]
    elements = pa.array(numbers).cast(call.dtype.value_type)
    return listed(rows, elements, stop, call.dtype)


def _join(_call: FunctionSpec, lists: pa.Array, delimiter: pa.Array) -> pa.Array:
    """Return the texts of arrays, joined, without nulls."""
    return _joined(lists, delimiter, None)


def _join_with_nulls(
    _call: FunctionSpec, lists: pa.Array, delimiter: pa.Array, null: pa.Array
) -> pa.Array:
    """Return the texts of arrays, joined, with a text for nulls."""
    return _joined(lists, delimiter, null)


def _joined(lists: pa.Array, delimiter: pa.Array, null: pa.Array | None) -> pa.Array:
    """Return joined texts; null where the last column is."""
    last = delimiter if null is None else null
    rows, elements = opened(lists)
    which = np.arange(len(rows))
    if null is None:
        which = np.flatnonzero(values_of(elements.is_valid()))
    else:
        elements = pc.coalesce(elements, null.take(pa.array(rows)))
    texts = listed(rows[which], elements.take(pa.array(which)), last, pa.list_(pa.string()))
    return pc.binary_join(texts, delimiter)


def _slice(call: FunctionSpec, lists: pa.Array, start: pa.Array, length: pa.Array) -> pa.Array:
    """Return parts of arrays, from a position that is counted from 1, or from the end."""
    rows, elements = opened(lists)
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
    within = _numbers(rows)
    stays = (within >= first[rows]) & (within < first[rows] + count[rows]) & (first[rows] >= 0)
    which = np.flatnonzero(stays)
    return listed(rows[which], elements.take(pa.array(which)), length, call.dtype)


def _reverse(call: FunctionSpec, values: pa.Array) -> pa.Array:
    """Return arrays in reverse order, or text."""
    if not pa.types.is_list(values.type):
        return pc.utf8_reverse(values)
    rows, elements = opened(values)
    order = order_by(rows, (len(rows) - np.arange(len(rows))))
    return listed(rows, elements.take(pa.array(order)), values, call.dtype)


def _keys(call: FunctionSpec, maps: pa.Array) -> pa.Array:
    """Return the keys of maps."""
    rows, entries = opened(maps)
    return listed(rows, entries.flatten()[0], maps, call.dtype)


def _values(call: FunctionSpec, maps: pa.Array) -> pa.Array:
    """Return the values of maps."""
    rows, entries = opened(maps)
    return listed(rows, entries.flatten()[1], maps, call.dtype)


def value_of_key(call: FunctionSpec, maps: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the value of a key; null if a map has none."""
    rows, entries = opened(maps)
    own, items = entries.flatten()
    mine, wanted = codes_of(own, keys.cast(own.type))
    which = np.flatnonzero(mine == wanted[rows])
    position = np.full(len(maps), -1)
    position[rows[which]] = which
    result = items.take(pa.array(position, mask=position < 0))
    return pc.if_else(keys.is_valid(), result, pa.scalar(None, call.dtype))


def _size(_call: FunctionSpec, lists: pa.Array) -> pa.Array:
    """Return the number of elements or entries."""
    if pa.types.is_map(lists.type):
        rows, _ = opened(lists)
        sizes = np.bincount(rows, minlength=len(lists)).astype(np.int32)
        mask = mask_of(lists)
        return pa.array(sizes, mask=None if mask is None else ~mask)
    return pc.list_value_length(lists).cast(pa.int32())


ARRAYS: dict[str, Callable[..., Any]] = {
    "ArrayContains": _contains,
    "ArrayDistinct": _distinct,
    "ArrayExcept": _among(included=False),
    "ArrayIntersect": _among(included=True),
    "ArrayJoin": lambda call, *columns: (_join if len(columns) == 2 else _join_with_nulls)(
        call, *columns
    ),
    "ArrayMax": _extreme(largest=True),
    "ArrayMin": _extreme(largest=False),
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
    "SortArray": _sort,
}
"""Spark's expression class → its function of columns; null where the last of these is null."""

"""Spark aggregates that only adopted queries have, and aggregates of nested values.

`EncodedAggregate` makes an aggregate of plain values one of structs, arrays and maps: these are
encoded before the aggregate sees them (`godwit.adopt.encoding`), and its result is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.adopt.encoding import can_be_encoded, decoded, encoded, is_nested, order_keys
from godwit.checkpoint.evolution import type_text
from godwit.columns.arrays import (
    binary_column,
    blob_bytes,
    boundaries_of,
    column_of,
    mask_of,
    values_of,
)
from godwit.library.aggregates.collected import PackedRows
from godwit.library.aggregates.packing import PackedColumn, unpack
from godwit.model.errors import EpochFailedError, InvalidFlowError
from godwit.operators.aggregate import Aggregate, BoundAggregate, BuiltIn, column_type
from godwit.operators.ordering import descending_ranks, order_by, rows_by_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.columns.arrays import BoolArray

_BITMAP_BYTES: Final = 4096
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Floats: TypeAlias = tuple[FloatArray, ...]
"""State columns of an aggregate of doubles, the number of values first."""
How: TypeAlias = Literal["value", "identity", "order"]
"""Purpose of an encoded column: to be decoded, compared, or ordered."""


# -- nested values


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedAggregate:
    """An unbound aggregate of columns that may be nested."""

    aggregate: Aggregate  # of columns ``c0``, ``c1`` and so on
    sources: tuple[tuple[str, How], ...]  # column of the stream for each of these
    elements: bool = False  # it is of the elements of an array

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the aggregate reads."""
        return tuple(dict.fromkeys(name for name, _ in self.sources))

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the columns of a stream; raise for types that are not encoded."""
        types = []
        for name, how in self.sources:
            dtype = column_type(inputs, name, repr(self.aggregate))
            dtype = dtype.value_type if self.elements else dtype
            if is_nested(dtype) and not (
                can_be_encoded(dtype) and (how != "order" or _is_ordered(dtype))
            ):
                raise InvalidFlowError(
                    f"{self.aggregate!r} does not accept a column of type {dtype}.",
                    remedy="Convert it to a struct of plain values first.",
                    aggregate=repr(self.aggregate),
                )
            types.append(dtype)
        stored = [
            pa.large_binary() if is_nested(dtype) and how != "order" else dtype
            for dtype, (_, how) in zip(types, self.sources, strict=True)
        ]
        stored = [pa.binary() if is_nested(dtype) else dtype for dtype in stored]
        bound = self.aggregate.bind(
            pa.schema([(f"c{number}", stored_type) for number, stored_type in enumerate(stored)])
        )
        result = types[0]
        output = bound.output
        if is_nested(result) and output == pa.large_binary():
            output = result
        elif is_nested(result) and output == pa.list_(pa.large_binary()):
            output = pa.list_(result)
        return _BoundEncoded(
            aggregate=bound,
            sources=self.sources,
            columns=self.columns,
            elements=self.elements,
            state=bound.state,
            output=output,
            identity={**bound.describe(), "encoded": [type_text(dtype) for dtype in types]},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundEncoded(BuiltIn):
    """An aggregate of encoded columns."""

    aggregate: BoundAggregate
    sources: tuple[tuple[str, How], ...]
    columns: tuple[str, ...]
    elements: bool

    @property
    def commutative(self) -> bool:
        return self.aggregate.commutative

    @property
    def idempotent(self) -> bool:
        return self.aggregate.idempotent

    def create(self, count: int) -> pa.RecordBatch:
        return self.aggregate.create(count)

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Encode the columns, and add them."""
        if self.elements:
            (lists,) = columns
            sizes = values_of(pc.list_value_length(lists).fill_null(0))
            groups, columns = np.repeat(groups, sizes), (lists.flatten(),)
        columns_by_name = dict(zip(self.columns, columns, strict=True))
        arguments = [_encoded_for(columns_by_name[name], how) for name, how in self.sources]
        return self.aggregate.update(states, groups, *arguments)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.aggregate.merge(left, right)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the decoded results."""
        result = self.aggregate.finish(states)
        if result.type == self.output:
            return result
        if pa.types.is_large_binary(result.type):
            return decoded(result, self.output)
        values = decoded(result.flatten(), self.output.value_type)
        sizes = values_of(pc.list_value_length(result).fill_null(0))
        offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=self.output)


def _encoded_for(column: pa.Array, how: How) -> pa.Array:
    """Return a column in the form for an aggregate of plain values."""
    if not is_nested(column.type):
        return column
    return order_keys(column) if how == "order" else encoded(column, canonical=how == "identity")


def _is_ordered(dtype: pa.DataType) -> bool:
    """Return whether Spark orders values of a type: whether no part of it is a map."""
    if pa.types.is_struct(dtype):
        return all(_is_ordered(field.type) for field in dtype)
    if pa.types.is_list(dtype):
        return _is_ordered(dtype.value_type)
    return not pa.types.is_map(dtype)


# -- numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """An unbound aggregate of numbers; see `_NUMERIC` for its names."""

    name: str
    columns: tuple[str, ...]

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to columns of doubles, or (of bits) of integers."""
        types = [column_type(inputs, name, self.name) for name in self.columns]
        identity = {"aggregate": self.name, "types": [str(dtype) for dtype in types]}
        if self.name in _COMBINED:
            function, neutral = _COMBINED[self.name]
            return _Combined(
                function=function,
                neutral=neutral,
                state=pa.schema({"value": types[0]}),
                output=types[0],
                identity=identity,
            )
        if self.name.startswith("bitmap"):
            return _Bitmap(
                both=self.name == "bitmap_and",
                state=pa.schema({"bits": pa.large_binary()}),
                output=pa.binary(),
                identity=identity,
            )
        parts, finish, result = _NUMERIC[self.name]
        identity["aggregate"] = parts  # the state is the same for all of its results
        bound: BoundAggregate = finish(
            result=result,
            state=pa.schema([(name, pa.float64()) for name in parts.split()]),
            output=pa.float64(),
            identity=identity,
        )
        return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combined(BuiltIn):
    """All values combined, such as their bits; null without values."""

    commutative = True
    function: np.ufunc
    neutral: int  # a value that changes none

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        values, mask = values_of(columns[0]), mask_of(columns[0])
        if mask is not None:
            groups, values = groups[mask], values[mask]
        known = mask_of(states.column(0))
        seen = np.ones(states.num_rows, np.bool_) if known is None else known.copy()
        bits = np.where(seen, values_of(states.column(0)), values.dtype.type(self.neutral))
        self.function.at(bits, groups, values)
        seen[groups] = True
        return self._states_of(bits, seen)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        both_valid = pc.and_(left.column(0).is_valid(), right.column(0).is_valid())
        bits = self.function(values_of(left.column(0)), values_of(right.column(0)))
        combined = column_of(bits, None, self.output)
        valid_side = pc.coalesce(left.column(0), right.column(0))
        return self.states(pc.if_else(both_valid, combined, valid_side))

    def _states_of(self, bits: npt.NDArray[Any], seen: BoolArray) -> pa.RecordBatch:
        """Return states, null where `seen` is false."""
        return self.states(column_of(bits, None if seen.all() else seen, self.output))


_COMBINED: Final[dict[str, tuple[np.ufunc, int]]] = {
    "bit_and": (np.bitwise_and, -1),
    "bit_or": (np.bitwise_or, 0),
    "bit_xor": (np.bitwise_xor, 0),
    "product": (np.multiply, 1),
}
"""Name → the function that combines two values, and its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bitmap(BuiltIn):
    """Bitmaps joined by OR, or by AND (`both`), or the bitmap of numbers of bits."""

    commutative = True
    idempotent = True
    both: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self._states_of(np.full((count, _BITMAP_BYTES), 255 if self.both else 0, np.uint8))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add bitmaps, or numbers of bits, that are not null."""
        bits, (column,) = self._bitmaps(states).copy(), columns
        not_null = np.flatnonzero(values_of(column.is_valid()))
        column, groups = column.take(pa.array(not_null)), groups[not_null]
        if pa.types.is_integer(column.type):
            numbers = values_of(column).astype(np.int64)
            if ((numbers < 0) | (numbers >= 8 * _BITMAP_BYTES)).any():
                raise EpochFailedError(
                    f"[INVALID_BITMAP_POSITION] A bitmap has bits 0 to {8 * _BITMAP_BYTES - 1}.",
                    remedy="Pass the result of bitmap_bit_position(...) to bitmap_construct_agg.",
                )
            masks = (1 << (numbers % 8)).astype(np.uint8)
            np.bitwise_or.at(bits, (groups, numbers // 8), masks)
            return self._states_of(bits)
        for group, data in zip(groups.tolist(), column.to_pylist(), strict=True):
            other = np.zeros(_BITMAP_BYTES, np.uint8)
            cut = np.frombuffer(data, np.uint8)[:_BITMAP_BYTES]
            other[: len(cut)] = cut
            bits[group] = bits[group] & other if self.both else bits[group] | other
        return self._states_of(bits)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        join = np.bitwise_and if self.both else np.bitwise_or
        return self._states_of(join(self._bitmaps(left), self._bitmaps(right)))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0).cast(pa.binary())

    def _bitmaps(self, states: pa.RecordBatch) -> npt.NDArray[np.uint8]:
        """Return the bitmaps of states, a row each."""
        column = states.column(0)
        first, last = boundaries_of(column)[[0, -1]]
        return blob_bytes(column)[first:last].reshape(-1, _BITMAP_BYTES)

    def _states_of(self, bits: npt.NDArray[np.uint8]) -> pa.RecordBatch:
        """Return states of bitmaps."""
        return self.states(binary_column(bits.ravel(), np.arange(len(bits) + 1) * _BITMAP_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDoubles(BuiltIn):
    """Base of aggregates whose state is doubles, the number of values first."""

    commutative = True
    result: Callable[[Floats], tuple[FloatArray, BoolArray]]  # values, and where there is one

    def create(self, count: int) -> pa.RecordBatch:
        return self._states_of(tuple(np.zeros(count) for _ in self.state))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add the rows that have all columns."""
        valid = np.ones(len(groups), np.bool_)
        for column in columns:
            mask = mask_of(column)
            valid &= True if mask is None else mask
        values = tuple(values_of(column)[valid] for column in columns)
        with np.errstate(all="ignore"):
            added = self.computed(groups[valid], values, states.num_rows)
        return self._merge_states(states, added)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._merge_states(left, tuple(values_of(column) for column in right.columns))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the result of each state."""
        with np.errstate(all="ignore"):
            values, valid = self.result(tuple(values_of(column) for column in states.columns))
        return column_of(values, None if valid.all() else valid, self.output)

    def computed(self, groups: IntArray, values: Floats, count: int) -> Floats:
        """Return the states of these rows only."""
        raise NotImplementedError

    def combined(self, left: Floats, right: Floats) -> Floats:
        """Merge two states; the result is arbitrary if one is empty."""
        raise NotImplementedError

    def _merge_states(self, states: pa.RecordBatch, right: Floats) -> pa.RecordBatch:
        """Merge states; if one side is empty, the result is the other one, bit by bit."""
        left = tuple(values_of(column) for column in states.columns)
        with np.errstate(all="ignore"):
            merged = self.combined(left, right)
        return self._states_of(
            tuple(
                np.where(
                    right[0] == 0, left_values, np.where(left[0] == 0, right_values, merged_values)
                )
                for left_values, right_values, merged_values in zip(
                    left, right, merged, strict=True
                )
            )
        )

    def _states_of(self, columns: Floats) -> pa.RecordBatch:
        """Return states of these columns."""
        return self.states(*(column_of(column, None, pa.float64()) for column in columns))


def _means_and_deviations(
    groups: IntArray, values: FloatArray, n: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the mean of each group, and each value's deviation from it, in two passes."""
    count, divisor = len(n), np.maximum(n, 1)
    mean = np.bincount(groups, values, count) / divisor
    deviation = values - mean[groups]
    error = np.bincount(groups, deviation, count) / divisor
    error[~np.isfinite(error)] = 0
    return mean + error, deviation - error[groups]


def _sums_of_groups(groups: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Return the sum of the values of each of `count` groups."""
    sums: FloatArray = np.bincount(groups, values, count).astype(np.float64, copy=False)
    return sums


class _Moments(_OfDoubles):
    """Number, mean, and sums of the second to fourth powers of deviations from it."""

    __slots__ = ()

    def computed(self, groups: IntArray, values: Floats, count: int) -> Floats:
        n = np.bincount(groups, minlength=count).astype(np.float64)
        mean, deviation = _means_and_deviations(groups, values[0], n)
        powers = (_sums_of_groups(groups, deviation**power, count) for power in (2, 3, 4))
        return (n, mean, *powers)

    def combined(self, left: Floats, right: Floats) -> Floats:
        """Return the moments of all values, by Pébay's formulas."""
        n1, mean1, p2, p3, p4 = left
        n2, mean2, q2, q3, q4 = right
        n = n1 + n2
        delta = mean2 - mean1
        share = delta / n
        second = p2 + q2 + delta * share * n1 * n2
        third = p3 + q3 + share * share * delta * n1 * n2 * (n1 - n2)
        third += 3 * share * (n1 * q2 - n2 * p2)
        fourth = p4 + q4 + share**3 * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
        fourth += 6 * share**2 * (n1 * n1 * q2 + n2 * n2 * p2) + 4 * share * (n1 * q3 - n2 * p3)
        return n, mean1 + share * n2, second, third, fourth


class _Pairs(_OfDoubles):
    """Number, both means, and sums of products of deviations: of both, of each with itself."""

    __slots__ = ()

    def computed(self, groups: IntArray, values: Floats, count: int) -> Floats:
        n = np.bincount(groups, minlength=count).astype(np.float64)
        (x, dx), (y, dy) = (_means_and_deviations(groups, column, n) for column in values)
        products = (_sums_of_groups(groups, part, count) for part in (dx * dy, dx * dx, dy * dy))
        return (n, x, y, *products)

    def combined(self, left: Floats, right: Floats) -> Floats:
        """Return the sums of all pairs."""
        n1, x1, y1, xy1, xx1, yy1 = left
        n2, x2, y2, xy2, xx2, yy2 = right
        n = n1 + n2
        dx, dy = x2 - x1, y2 - y1
        weight = n1 * n2 / n
        return (
            n,
            x1 + dx / n * n2,
            y1 + dy / n * n2,
            xy1 + xy2 + dx * dy * weight,
            xx1 + xx2 + dx * dx * weight,
            yy1 + yy2 + dy * dy * weight,
        )


def _skewness(state: Floats) -> tuple[FloatArray, BoolArray]:
    n, _, second, third, _ = state
    return np.sqrt(n) * third / np.sqrt(second**3), (n > 0) & (second != 0)


def _kurtosis(state: Floats) -> tuple[FloatArray, BoolArray]:
    n, _, second, _, fourth = state
    return n * fourth / (second * second) - 3, (n > 0) & (second != 0)


def _second_moment(state: Floats) -> tuple[FloatArray, BoolArray]:
    return state[2], state[0] > 0


def _covar_pop(state: Floats) -> tuple[FloatArray, BoolArray]:
    return state[3] / state[0], state[0] > 0


def _covar_samp(state: Floats) -> tuple[FloatArray, BoolArray]:
    return state[3] / (state[0] - 1), state[0] > 1


def _regr_sxy(state: Floats) -> tuple[FloatArray, BoolArray]:
    return state[3], state[0] > 0


def _corr(state: Floats) -> tuple[FloatArray, BoolArray]:
    n, _, _, xy, xx, yy = state
    root = np.sqrt(xx * yy)
    return xy / root, (n > 1) & (root != 0)


def _regr_r2(state: Floats) -> tuple[FloatArray, BoolArray]:
    """Return the squared correlation of y (first) and x; 1 where y does not vary."""
    _, _, _, xy, yy, xx = state
    correlation = xy / np.sqrt(xx * yy)
    return np.where(yy == 0, 1.0, correlation * correlation), xx != 0


def _regr_slope(state: Floats) -> tuple[FloatArray, BoolArray]:
    """Return the slope of y (first) over x."""
    return state[3] / state[5], state[5] != 0


def _regr_intercept(state: Floats) -> tuple[FloatArray, BoolArray]:
    """Return the value of the line of y (first) over x where x is 0."""
    return state[1] - state[3] / state[5] * state[2], state[5] != 0


_MOMENTS: Final = "count mean second third fourth"
_PAIRS: Final = "count x y xy xx yy"
_NUMERIC: Final[dict[str, tuple[str, Any, Callable[[Floats], tuple[FloatArray, BoolArray]]]]] = {
    "skewness": (_MOMENTS, _Moments, _skewness),
    "kurtosis": (_MOMENTS, _Moments, _kurtosis),
    "regr_s": (_MOMENTS, _Moments, _second_moment),
    "covar_pop": (_PAIRS, _Pairs, _covar_pop),
    "covar_samp": (_PAIRS, _Pairs, _covar_samp),
    "corr": (_PAIRS, _Pairs, _corr),
    "regr_sxy": (_PAIRS, _Pairs, _regr_sxy),
    "regr_r2": (_PAIRS, _Pairs, _regr_r2),
    "regr_slope": (_PAIRS, _Pairs, _regr_slope),
    "regr_intercept": (_PAIRS, _Pairs, _regr_intercept),
}
"""Name of an aggregate → columns of its state, its class, and its result of the state."""


# -- text


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedText:
    """Unbound ``listagg``: texts joined by a delimiter, in order of arrival or of other columns."""

    text: str  # column of the texts
    delimiter: str | bytes
    orders: tuple[tuple[str, bool, bool], ...]  # column, whether descending, and nulls first

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the aggregate reads."""
        return tuple(dict.fromkeys([self.text, *(name for name, _, _ in self.orders)]))

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the columns of a stream."""
        dtype = column_type(inputs, self.text, "listagg")
        layout = [PackedColumn(dtype=dtype, nullable=False)]
        layout += [PackedColumn(dtype=pa.binary(), nullable=False) for _ in self.orders]
        return _JoinedText(
            delimiter=self.delimiter,
            orders=self.orders,
            columns=self.columns,
            text=self.text,
            layout=tuple(layout),
            state=pa.schema({"rows": pa.large_binary()}),
            output=dtype,
            identity={
                "aggregate": "listagg",
                "type": str(dtype),
                "orders": [list(order[1:]) for order in self.orders],
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedText(PackedRows):
    """Bound ``listagg``; the state has all texts, with keys of their order."""

    delimiter: str | bytes
    orders: tuple[tuple[str, bool, bool], ...]
    columns: tuple[str, ...]
    text: str

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Append texts that are not null."""
        own = dict(zip(self.columns, columns, strict=True))
        texts = own[self.text]
        not_null = pa.array(np.flatnonzero(values_of(texts.is_valid())))
        rows = [texts.take(not_null)]
        rows += [_order_bytes(own[name], not_null, *order) for name, *order in self.orders]
        return self._pack_kept(
            states.num_rows, self._unpacked_rows(states), (groups[not_null.to_numpy()], rows)
        )

    def rows_to_keep(
        self,
        groups: IntArray,
        columns: list[pa.Array],  # noqa: ARG002
        count: int,
    ) -> tuple[IntArray, IntArray]:
        return rows_by_group(groups, count)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the joined texts; null if there are none."""
        starts, (texts, *keys) = unpack(states.column(0), self.layout)
        if keys:
            groups = np.repeat(np.arange(states.num_rows), np.diff(starts))
            ranks = [descending_ranks(key) for key in keys]
            order = order_by(groups, *(rank.max(initial=0) - rank for rank in ranks))
            texts = texts.take(pa.array(order))
        lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), texts)
        joined = pc.binary_join(lists, pa.scalar(self.delimiter, texts.type))
        return pc.if_else(pa.array(np.diff(starts) > 0), joined, pa.scalar(None, self.output))


def _order_bytes(
    column: pa.Array, indices: pa.Array, descending: bool, nulls_first: bool
) -> pa.Array:
    """Return binaries whose byte order is that of an ``ORDER BY``."""
    column = column.take(indices)
    keys = pa.StructArray.from_arrays([column], names=["key"])
    encoded = order_keys(keys).to_pylist()
    valid = column.is_valid().to_pylist()
    flip = bytes(255 - byte for byte in range(256))
    null = b"\x00" if nulls_first else b"\xff\xff"
    ordered = [
        null if not is_valid else b"\x01" + (key.translate(flip) if descending else key)
        for key, is_valid in zip(encoded, valid, strict=True)
    ]
    return pa.array(ordered, pa.binary())

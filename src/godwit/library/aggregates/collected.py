"""Aggregates that keep rows: all, the first, the distinct, or the largest.

A state is packed rows (`godwit.library.aggregates.packing`), chosen by
`PackedRows.rows_to_keep`.  A bound on the *first* rows is mergeable: the first n of two parts, one
after the other, need only the first n of each part.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.evolution import type_text
from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.hashing import canonical_floats
from godwit.library.aggregates.arithmetic import as_doubles
from godwit.library.aggregates.packing import (
    PackedColumn,
    pack,
    pack_nothing,
    unpack,
    unpack_rows,
)
from godwit.model.errors import EpochFailedError
from godwit.operators.aggregate import BoundAggregate, BuiltIn
from godwit.operators.ordering import (
    descending_ranks,
    first_of_each,
    order_by,
    rows_by_group,
    starts_of,
    starts_run,
)
from godwit.store.columns import can_be_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateUpgrade

IntArray = npt.NDArray[np.int64]


def bind_values(column: pa.Field, *, name: str, limit: int | None = None) -> BoundAggregate | None:
    """Bind the collecting aggregate `name`; ``None`` if it cannot take the column's type.

    `limit`: maximum number of values of a key.
    """
    if not can_be_state(column.type):
        return None
    bound = {} if limit is None else {"limit": limit}
    aggregate_class = _VALUES[name]
    return aggregate_class(
        layout=(PackedColumn(dtype=column.type, nullable=False),),
        state=pa.schema({"values": pa.large_binary()}),
        output=pa.int64() if aggregate_class is _CountDistinct else pa.list_(column.type),
        identity={
            "aggregate": name,
            "column": column.name,
            "type": str(column.type),
            **bound,
        },
        limit=limit or 0,
    )


def bind_top_k(column: pa.Field, by: pa.Field | None = None, *, k: int) -> BoundAggregate | None:
    """Bind ``top_k`` to a column, ordered by `by`; ``None`` if it cannot take their types."""
    fields = [column] if by is None else [column, by]
    if not all(can_be_state(field.type) for field in fields):
        return None
    item = column.type if by is None else pa.struct(fields)
    return _TopK(
        limit=k,
        layout=tuple(
            PackedColumn(dtype=field.type, nullable=number < len(fields) - 1)
            for number, field in enumerate(fields)
        ),
        state=pa.schema({"rows": pa.large_binary()}),
        output=pa.list_(item),
        identity={
            "aggregate": "top_k",
            "columns": [field.name for field in fields],
            "types": [str(field.type) for field in fields],
            "k": k,
        },
    )


def bind_most_frequent(column: pa.Field, *, k: int) -> BoundAggregate | None:
    """Bind ``most_frequent`` to a column; ``None`` if it cannot take the column's type.

    `k`: number of values in the result. The state has all values, whatever it is.
    """
    if not can_be_state(column.type):
        return None
    fields = [pa.field("value", column.type), pa.field("count", pa.int64())]
    return _MostFrequent(
        limit=k,
        layout=tuple(PackedColumn(dtype=f.type, nullable=False) for f in fields),
        state=pa.schema({"counts": pa.large_binary()}),
        output=pa.list_(pa.struct(fields)),
        identity={
            "aggregate": "most_frequent",
            "column": column.name,
            "type": str(column.type),
        },
    )


def bind_from_counts(
    column: pa.Field,
    times: pa.Field | None = None,
    *,
    name: str,
    percentages: tuple[float, ...] = (),
    listed: bool = False,
    descending: bool = False,
) -> BoundAggregate | None:
    """Bind an aggregate of exact counts of values: ``mode``, ``percentile`` or ``rank``.

    ``mode``: the most frequent value. ``percentile``: interpolated between values, in doubles.
    ``rank``: the smallest value with that share of all values at or below it; ``percentile_disc``:
    the same, as a double. `times`: how many times each value is counted. `percentages`: of all but
    ``mode``; `listed`: the result is a list of them. `descending`: in the reverse order of values.
    ``None`` for types that it cannot take.
    """
    bound = bind_most_frequent(column, k=1)
    dtype = column.type
    is_percentile = name.startswith("percentile")
    numeric = pa.types.is_integer(dtype) or pa.types.is_floating(dtype)
    if bound is None or (is_percentile and not numeric and not pa.types.is_decimal128(dtype)):
        return None
    if times is not None and not pa.types.is_integer(times.type):
        return None
    value = pa.float64() if is_percentile else dtype
    assert isinstance(bound, _MostFrequent)
    return _FromCounts(
        limit=1,
        layout=bound.layout,
        state=bound.state,
        output=pa.list_(value) if listed else value,
        identity=bound.identity,
        name=name,
        percentages=percentages,
        listed=listed,
        descending=descending,
    )


def bind_row_collector(*columns: pa.Field) -> BoundAggregate | None:
    """Bind the aggregate that collects whole rows, for the `process` of session windows."""
    if not columns or not all(can_be_state(column.type) for column in columns):
        return None
    return _Rows(
        columns=columns,
        layout=_nullable_layout(columns),
        state=pa.schema({"rows": pa.large_binary()}),
        output=pa.large_binary(),
        identity={"aggregate": "rows", "columns": [[c.name, type_text(c.type)] for c in columns]},
    )


def rows_of(states: pa.Array, columns: pa.Schema) -> tuple[IntArray, pa.RecordBatch]:
    """Unpack states of collected rows; return where each state's rows start, and all rows.

    State g has the rows ``starts[g]:starts[g + 1]``.
    """
    starts, arrays = unpack(states, _nullable_layout(columns))
    return starts, pa.RecordBatch.from_arrays(arrays, schema=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows(BuiltIn):
    """An aggregate whose state is rows packed into one binary value."""

    layout: tuple[PackedColumn, ...]
    limit: int = 0  # most rows of a key, where there is a bound

    @abstractmethod
    def rows_to_keep(
        self, groups: IntArray, columns: list[pa.Array], count: int
    ) -> tuple[IntArray, IntArray]:
        """Return the positions of the rows to keep, ordered by group, and each group's start.

        `groups`: group (0 to `count` - 1) of each row. `columns`: the rows.
        """

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(pack_nothing(count, self.layout))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Append rows to the states of their groups, and drop rows that states do not keep."""
        rows = list(columns)
        mask = None if self.layout[-1].nullable else mask_of(rows[-1])
        if mask is not None:
            counted = np.flatnonzero(mask)
            groups, rows = groups[counted], [column.take(pa.array(counted)) for column in rows]
        return self._pack_kept(states.num_rows, self._unpacked_rows(states), (groups, rows))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._pack_kept(left.num_rows, self._unpacked_rows(left), self._unpacked_rows(right))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the collected values of each state as a list."""
        starts, columns = unpack(states.column(0), self.layout)
        values = columns[0]
        if len(columns) > 1:
            values = pa.StructArray.from_arrays(columns, fields=list(self.output.value_type))
        offsets = pa.array(starts.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=self.output)

    def _unpacked_rows(self, states: pa.RecordBatch) -> tuple[IntArray, list[pa.Array]]:
        """Unpack states; return the state's position of each row, and the rows' columns."""
        return unpack_rows(states.column(0), self.layout)

    def _pack_kept(self, count: int, *parts: tuple[IntArray, list[pa.Array]]) -> pa.RecordBatch:
        """Pack the rows of `parts` that `rows_to_keep` chooses into `count` states.

        Each part has the group of each row, and the rows' columns; earlier rows come first.
        """
        groups = np.concatenate([part[0] for part in parts])
        columns = [
            pa.concat_arrays(pieces) for pieces in zip(*(part[1] for part in parts), strict=True)
        ]
        rows, starts = self.rows_to_keep(groups, columns, count)
        kept_rows = pa.array(rows)
        return self.states(
            pack(starts, [column.take(kept_rows) for column in columns], self.layout)
        )


class _CollectList(PackedRows):
    """The first values, in order of arrival."""

    __slots__ = ()

    def rows_to_keep(
        self,
        groups: IntArray,
        columns: list[pa.Array],  # noqa: ARG002
        count: int,
    ) -> tuple[IntArray, IntArray]:
        return first_of_each(*rows_by_group(groups, count), self.limit)


class _CollectSet(PackedRows):
    """The first distinct values, in order of first arrival."""

    __slots__ = ()

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Append rows to the states of their groups; -0.0 and all NaN are normalized first."""
        (column,) = columns
        if pa.types.is_floating(column.type):
            column = canonical_floats(column)  # equal ones are one value
        return super().update(states, groups, column)

    def rows_to_keep(
        self, groups: IntArray, columns: list[pa.Array], count: int
    ) -> tuple[IntArray, IntArray]:
        """Keep one row of each of the first `limit` distinct values of a group."""
        codes = columns[0].dictionary_encode().indices.to_numpy().astype(np.int64)
        rows = np.sort(_first_per_code(groups, codes))  # back in order of arrival
        order, starts = first_of_each(*rows_by_group(groups[rows], count), self.limit)
        return rows[order], starts


class _CountDistinct(_CollectSet):
    """All distinct values, sorted, so that equal sets have equal states."""

    __slots__ = ()
    commutative = True
    idempotent = True

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        starts, _ = unpack(states.column(0), self.layout)
        return pa.array(np.diff(starts), pa.int64())

    def rows_to_keep(
        self, groups: IntArray, columns: list[pa.Array], count: int
    ) -> tuple[IntArray, IntArray]:
        """Keep one row of each distinct value of a group, in order of values."""
        rows = _first_per_code(groups, descending_ranks(columns[0]))
        return rows, starts_of(groups[rows], count)


class _MostFrequent(_CollectSet):
    """All distinct values with their numbers of rows, sorted as by `_CountDistinct`."""

    __slots__ = ()
    commutative = True

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Count the rows of each non-null value; a second column, if any, has counts."""
        column, *times = columns
        mask = mask_of(column)
        counts = pa.array(np.ones(len(column), np.int64))
        if times:
            counts = times[0].cast(pa.int64()).fill_null(0)
            _check_times(counts)
            counted = values_of(counts) > 0
            mask = counted if mask is None else mask & counted
        if mask is not None:
            taken = pa.array(np.flatnonzero(mask))
            groups, column, counts = groups[mask], column.take(taken), counts.take(taken)
        if pa.types.is_floating(column.type):
            column = canonical_floats(column)
        return self._pack_kept(
            states.num_rows, self._unpacked_rows(states), (groups, [column, counts])
        )

    def _pack_kept(self, count: int, *parts: tuple[IntArray, list[pa.Array]]) -> pa.RecordBatch:
        """Pack each distinct value of a group with the sum of its counts."""
        groups = np.concatenate([part[0] for part in parts])
        values, counts = (
            pa.concat_arrays(pieces) for pieces in zip(*(part[1] for part in parts), strict=True)
        )
        codes = descending_ranks(values)
        order = order_by(groups, codes)
        begins = np.flatnonzero(starts_run(groups[order], codes[order]))
        sums = np.add.reduceat(values_of(counts)[order], begins) if len(begins) else begins
        first_of_run = order[begins]
        starts = starts_of(groups[first_of_run], count)
        return self.states(
            pack(starts, [values.take(pa.array(first_of_run)), pa.array(sums)], self.layout)
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the values of the largest counts; of equal counts the smaller value is first."""
        groups, (values, counts) = self._unpacked_rows(states)
        by_value = order_by(groups, self._value_ranks(values))
        negative_counts = -values_of(counts)[by_value]
        order = by_value[np.lexsort((negative_counts, groups[by_value]))]
        most_frequent, starts = first_of_each(order, starts_of(groups, states.num_rows), self.limit)
        indices = pa.array(most_frequent)
        rows = pa.StructArray.from_arrays(
            [values.take(indices), counts.take(indices)], fields=list(self.output.value_type)
        )
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), rows, type=self.output)

    def _value_ranks(self, values: pa.Array) -> IntArray:
        """Return the rank of each value; of equal counts, the lowest rank is first."""
        ranks = descending_ranks(values)
        ascending: IntArray = ranks.max(initial=0) - ranks
        return ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromCounts(_MostFrequent):
    """A result of all distinct values and their counts; see `bind_from_counts`."""

    name: str
    percentages: tuple[float, ...]
    listed: bool
    descending: bool

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the mode, or the percentiles, of each state; null without any value."""
        groups, (values, counts) = self._unpacked_rows(states)
        order = order_by(groups, self._value_ranks(values))
        groups = groups[order]
        starts = starts_of(groups, states.num_rows)
        if self.name == "mode":
            by_count = order[np.lexsort((-values_of(counts)[order], groups))]
            is_nonempty = np.diff(starts) > 0
            first = np.append(by_count, 0)[np.where(is_nonempty, starts[:-1], -1)]
            return values.take(pa.array(first, mask=~is_nonempty))
        ends = np.cumsum(values_of(counts)[order])  # of all groups, one after the other
        before = np.append(0, ends)[starts[:-1]]
        total = np.append(0, ends)[starts[1:]] - before
        results = [
            self._percentile_of_counts(values.take(pa.array(order)), ends, before, total, share)
            for share in self.percentages
        ]
        if not self.listed:
            return results[0]
        width = len(results)
        flat = pa.concat_arrays(results).take(
            pa.array(np.arange(width * len(total)).reshape(width, -1).T.ravel())
        )
        is_nonempty = total > 0
        offsets = pa.array(np.arange(len(total) + 1) * width, pa.int32())
        lists = pa.ListArray.from_arrays(offsets, flat, type=self.output)
        return lists.take(pa.array(np.arange(len(total)), mask=~is_nonempty))

    def _value_ranks(self, values: pa.Array) -> IntArray:
        """Return the rank of each value in the order that the percentile asks for."""
        ranks = descending_ranks(values)
        ascending: IntArray = ranks.max(initial=0) - ranks
        return ranks if self.descending else ascending

    def _percentile_of_counts(
        self,
        values: pa.Array,
        ends: IntArray,
        count_before: IntArray,
        total: IntArray,
        share: float,
    ) -> pa.Array:
        """Return one percentile of each state.

        `values`: distinct values, ascending in each state. `ends`: number of rows up to each of
        them, over all states. `count_before`, `total`: number of rows before a state, and in it.
        """
        is_nonempty = total > 0
        if self.name == "rank":
            rank = np.clip(np.ceil(share * total).astype(np.int64), 1, np.maximum(total, 1))
            entry = np.searchsorted(ends, count_before + rank)
            return values.take(pa.array(np.where(is_nonempty, entry, 0), mask=~is_nonempty))
        if pa.types.is_decimal128(values.type):
            values = as_doubles(values)
        numbers = values_of(values).astype(np.float64)
        position = (total - 1) * share
        if self.name == "percentile_disc":
            position = np.maximum(np.ceil(total * share) - 1, 0)
        lower, upper = np.floor(position), np.ceil(position)
        low, high = (
            np.append(numbers, np.nan)[
                np.where(
                    is_nonempty, np.searchsorted(ends, count_before + rank.astype(np.int64) + 1), -1
                )
            ]
            for rank in (lower, upper)
        )
        with np.errstate(invalid="ignore"):
            interpolated = low + (position - lower) * (high - low)
        is_exact = (lower == upper) | (low == high)
        return column_of(
            np.where(is_exact, low, interpolated),
            None if is_nonempty.all() else is_nonempty,
            pa.float64(),
        )


class _TopK(PackedRows):
    """The rows with the largest values of the last column; of equal ones the earlier stays."""

    __slots__ = ()

    def rows_to_keep(
        self, groups: IntArray, columns: list[pa.Array], count: int
    ) -> tuple[IntArray, IntArray]:
        """Keep the `limit` rows of each group with the largest values."""
        order = order_by(groups, descending_ranks(columns[-1]))
        return first_of_each(order, starts_of(groups, count), self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(PackedRows):
    """All rows of a key with all their columns, in order of arrival."""

    columns: tuple[pa.Field, ...]

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        """Return a converter of rows that were stored with fewer columns; new columns are null.

        ``None`` if a stored column is gone or has another type.
        """
        written = dict(stored.get("columns", ()))
        types = {field.name: type_text(field.type) for field in self.columns}
        if stored.get("aggregate") != "rows" or any(
            types.get(name) != dtype for name, dtype in written.items()
        ):
            return None
        layout = dict(zip(types, self.layout, strict=True))
        return partial(_upgrade_rows, tuple(written), layout)

    def rows_to_keep(
        self,
        groups: IntArray,
        columns: list[pa.Array],  # noqa: ARG002
        count: int,
    ) -> tuple[IntArray, IntArray]:
        return rows_by_group(groups, count)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the packed rows of each state, for `rows_of`."""
        return states.column(0)


def _upgrade_rows(
    written: tuple[str, ...],  # names of the columns that were written
    layout: Mapping[str, PackedColumn],  # today's columns, in another order, or more
    values: pa.RecordBatch,
) -> pa.RecordBatch:
    """Convert packed rows with the columns `written` to those in `layout`; new ones are null."""
    starts, arrays = unpack(values.column(0), tuple(layout[name] for name in written))
    columns = dict(zip(written, arrays, strict=True))
    count = int(starts[-1])
    rows = [
        columns[name] if name in columns else pa.nulls(count, column.dtype)
        for name, column in layout.items()
    ]
    packed = pack(starts, rows, tuple(layout.values()))
    return pa.RecordBatch.from_arrays([packed], schema=values.schema)


_VALUES: Final[dict[str, type[PackedRows]]] = {
    "collect_list": _CollectList,
    "collect_set": _CollectSet,
    "count_distinct": _CountDistinct,
}


def _nullable_layout(columns: pa.Schema | tuple[pa.Field, ...]) -> tuple[PackedColumn, ...]:
    """Return the packed layout of columns, all of which may hold nulls."""
    return tuple(PackedColumn(dtype=column.type, nullable=True) for column in columns)


def _check_times(counts: pa.Array) -> None:
    """Raise if a value is to be counted a negative number of times, as Spark does."""
    if len(counts) and pc.min(counts).as_py() < 0:
        raise EpochFailedError(
            "A percentile has a negative frequency in a row.",
            remedy="Correct the row, or exclude such rows with FILTER (WHERE ...).",
        )


def _first_per_code(groups: IntArray, codes: IntArray) -> IntArray:
    """Return the position of the first row of every pair of group and code, ordered by both."""
    order = order_by(groups, codes)
    return order[starts_run(groups[order], codes[order])]

"""Aggregates of changes that subtract: sums, means and variances of doubles, and their calls.

A sum of doubles from which a value is taken again has rounding errors of all values that it ever
had.  So sums of values and of squares are kept in two doubles each (106 bits; Dekker, "A
floating-point technique for extending the available precision", 1971), NaN and infinities are
counted beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.signed import CHANGE
from godwit.library.aggregates.conditions import Computed, Conditional
from godwit.operators.aggregate import BoundAggregate, BuiltIn
from godwit.operators.ordering import pairing, rows_by_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.operators.aggregate import Aggregate

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Pair: TypeAlias = tuple[FloatArray, FloatArray]
"""Numbers, each the sum of two doubles: the second is below the last bit of the first."""
_SPLIT = 134217729.0  # 2**27 + 1
_COUNTS = ("count", "nan", "inf", "negative_inf")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Signed:
    """An unbound aggregate over changes, with its counterpart over rows."""

    aggregate: Aggregate

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the aggregate reads, and the sign."""
        return (*self.aggregate.columns, CHANGE.name)

    def __repr__(self) -> str:
        return repr(self.aggregate)

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the columns of a stream of changes."""
        bound = self.aggregate.bind(inputs)
        signed = bound.signed if isinstance(bound, BuiltIn) else None
        assert signed is not None, "`subtracts` says whether it can"
        return signed


def signed_aggregate(aggregate: Aggregate) -> Aggregate:
    """Return an aggregate that can subtract, with any condition and expressions it has."""
    if isinstance(aggregate, Conditional | Computed):
        return replace(aggregate, aggregate=signed_aggregate(aggregate.aggregate))
    return Signed(aggregate=aggregate)


def subtracts(bound: BoundAggregate) -> bool:
    """Return whether a bound aggregate has a counterpart over changes that can subtract."""
    return isinstance(bound, BuiltIn) and bound.signed is not None


def signed_floats(
    kind: Literal["sum", "mean", "variance", "stddev"],
    identity: Mapping[str, object],
    *,
    population: bool = False,
) -> BoundAggregate:
    """Return the aggregate of changes of doubles.

    `identity`: description of the aggregate of rows. `population`: divide by the number of values
    n, not by n - 1.
    """
    sums = ["sum", "sum_low"]
    if kind in ("variance", "stddev"):
        sums += ["squares", "squares_low"]
    return _SignedFloats(
        kind=kind,
        population=population,
        state=pa.schema(
            [*((n, pa.int64()) for n in _COUNTS), *((name, pa.float64()) for name in sums)]
        ),
        output=pa.float64(),
        identity={**identity, "signed": True},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedFloats(BuiltIn):
    """``sum``, ``mean``, ``variance`` or ``stddev`` of changes of doubles."""

    commutative = True
    kind: Literal["sum", "mean", "variance", "stddev"]
    population: bool

    def create(self, count: int) -> pa.RecordBatch:
        zeros: dict[Any, Any] = {
            pa.int64(): np.zeros(count, np.int64),
            pa.float64(): np.zeros(count),
        }
        return self.states(*(column_of(zeros[f.type], None, f.type) for f in self.state))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add the values of rows with sign 1, and subtract those of rows with -1."""
        column, signs = columns[0], values_of(columns[1]).astype(np.int64)
        mask = mask_of(column)
        if pa.types.is_decimal128(column.type):
            column = pc.cast(column, pa.float64())
        values = values_of(column).astype(np.float64, copy=False)
        if mask is not None:
            groups, values, signs = groups[mask], values[mask], signs[mask]
        size = states.num_rows
        counts = [np.zeros(size, np.int64) for _ in _COUNTS]
        is_special = ~np.isfinite(values)
        np.add.at(counts[0], groups, signs)
        if is_special.any():
            for kind, matches in enumerate(
                (np.isnan(values), np.isposinf(values), np.isneginf(values)), 1
            ):
                np.add.at(counts[kind], groups[matches], signs[matches])
            values = np.where(is_special, 0.0, values)
        sums = [_sum_pairs((values * signs, np.zeros(len(values))), groups, size)]
        if self._has_squares:
            high, low = _square_pair((values, np.zeros(len(values))))
            sums.append(_sum_pairs((high * signs, low * signs), groups, size))
        return self._merge_states(states, self._to_states(counts, sums))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._merge_states(left, right)

    @property
    def _has_squares(self) -> bool:
        """True if states have the sum of squares too."""
        return self.kind in ("variance", "stddev")

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the result over the remaining values; null if there are too few."""
        counts, sums = self._from_states(states)
        count = counts[0]
        min_count = 2 if self._has_squares and not self.population else 1
        has_enough = count >= min_count
        divisor = np.where(has_enough, count, min_count).astype(np.float64)
        with np.errstate(all="ignore"):
            if self._has_squares:
                squares = _add_pairs(
                    sums[1], _negate_pair(_divide_pair(_square_pair(sums[0]), divisor))
                )
                result = np.maximum(squares[0] + squares[1], 0.0)
                result /= divisor if self.population else divisor - 1
                result = np.sqrt(result) if self.kind == "stddev" else result
            else:
                result = sums[0][0] + sums[0][1]
                result = result / divisor if self.kind == "mean" else result
        _, has_nan, has_infinity, has_negative_infinity = (
            kind_counts > 0 for kind_counts in counts
        )
        result = np.where(has_infinity, np.inf, np.where(has_negative_infinity, -np.inf, result))
        undefined = (
            has_nan
            | (has_infinity & has_negative_infinity)
            | ((has_infinity | has_negative_infinity) & self._has_squares)
        )
        result = np.where(undefined, np.nan, result)
        return column_of(result, None if has_enough.all() else has_enough, self.output)

    def _merge_states(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Merge two batches of states, row by row."""
        (counts, sums), (other_counts, other_sums) = map(self._from_states, (left, right))
        counts = [a + b for a, b in zip(counts, other_counts, strict=True)]
        return self._to_states(
            counts, [_add_pairs(a, b) for a, b in zip(sums, other_sums, strict=True)]
        )

    def _to_states(self, counts: list[IntArray], sums: list[Pair]) -> pa.RecordBatch:
        """Build states from counts, and pairs of the sums."""
        return self.states(
            *(column_of(numbers, None, pa.int64()) for numbers in counts),
            *(column_of(part, None, pa.float64()) for pair in sums for part in pair),
        )

    def _from_states(self, states: pa.RecordBatch) -> tuple[list[IntArray], list[Pair]]:
        """Return counts, and pairs of the sums, of states."""
        columns = [values_of(column) for column in states.columns]
        counts, halves = columns[: len(_COUNTS)], columns[len(_COUNTS) :]
        return counts, list(zip(halves[::2], halves[1::2], strict=True))


def _sum_pairs(values: Pair, groups: IntArray, size: int) -> Pair:
    """Return the sum of the pairs of each of `size` groups."""
    order, starts = rows_by_group(groups, size)
    high, low = values[0][order], values[1][order]
    for left, right, paired in pairing(starts):
        merged = _add_pairs((high[left[paired]], low[left[paired]]), (high[right], low[right]))
        high, low = high[left], low[left]
        high[paired], low[paired] = merged
    is_nonempty = np.diff(starts) > 0
    totals = np.zeros(size), np.zeros(size)
    totals[0][is_nonempty], totals[1][is_nonempty] = high, low
    return totals


def _two_sum(a: FloatArray, b: FloatArray) -> Pair:
    """Return the sum of doubles, and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _normalized_pair(high: FloatArray, low: FloatArray) -> Pair:
    """Return a pair whose second part is below the last bit of the first, and 0 of infinities."""
    total = high + low
    return total, np.where(np.isfinite(total), low - (total - high), 0.0)


def _add_pairs(left: Pair, right: Pair) -> Pair:
    """Return the sum of pairs."""
    with np.errstate(all="ignore"):
        high, error = _two_sum(left[0], right[0])
        low, low_error = _two_sum(left[1], right[1])
        high, error = _normalized_pair(high, error + low)
        return _normalized_pair(high, error + low_error)


def _negate_pair(pair: Pair) -> Pair:
    """Return the negative of pairs."""
    return -pair[0], -pair[1]


def _two_product(a: FloatArray, b: FloatArray) -> Pair:
    """Return the product of doubles, and its rounding error (Dekker)."""
    product = a * b
    parts = []
    for value in (a, b):
        scaled = _SPLIT * value
        upper = scaled - (scaled - value)
        parts += [upper, value - upper]
    a_high, a_low, b_high, b_low = parts
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, np.where(np.isfinite(error), error, 0.0)


def _square_pair(pair: Pair) -> Pair:
    """Return the squares of pairs."""
    with np.errstate(all="ignore"):
        high, error = _two_product(pair[0], pair[0])
        return _normalized_pair(high, error + 2 * pair[0] * pair[1])


def _divide_pair(pair: Pair, by: FloatArray) -> Pair:
    """Return pairs divided by doubles."""
    quotient = pair[0] / by
    rest = _add_pairs(pair, _negate_pair(_two_product(quotient, by)))
    return _normalized_pair(quotient, rest[0] / by)

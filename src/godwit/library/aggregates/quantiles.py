"""Percentiles within a relative error of the value: DDSketch, all keys at once.

A value x > 0 falls in bucket ``ceil(log(x) / log(g))`` with ``g = (1 + error) / (1 - error)``; the
middle of a bucket is within ``error`` of every value in it.  Negative values mirror positive ones;
zero, the infinities and NaN, which is larger than any number, have buckets of their own.

A key's state is its buckets in the order of their values, each with the number of values in it,
packed (`godwit.library.aggregates.packing`): 12 bytes a bucket.  Buckets never collapse, so the
error always holds; all doubles together have some 1,490 / log(g) buckets, of which values within a
factor of a million touch 14 / log(g).

Invariant: a sketch depends only on how often each value was seen, not on order or splitting.

Source: Masson, Rim and Lee, "DDSketch", PVLDB 12(12), 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.library.aggregates.packing import (
    PackedColumn,
    pack,
    pack_nothing,
    unpack,
    unpack_rows,
)
from godwit.operators.aggregate import BoundAggregate, BuiltIn
from godwit.operators.ordering import order_by, starts_of, starts_run

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_LAYOUT = (
    PackedColumn(dtype=pa.int32(), nullable=False),
    PackedColumn(dtype=pa.int64(), nullable=False),
)
_ONE = 1 << 21  # bucket of the value 1; those of all doubles lie around it, above 0
_INFINITE = 1 << 23
_NAN = _INFINITE + 1


def bind_percentile(column: pa.Field, *, percentage: float, error: float) -> BoundAggregate | None:
    """Bind ``approx_percentile`` to a column; ``None`` unless the column is numeric."""
    dtype = column.type
    if not (
        pa.types.is_floating(dtype)
        or pa.types.is_decimal128(dtype)
        or (pa.types.is_integer(dtype) and dtype != pa.uint64())
    ):
        return None
    return _Percentile(
        percentage=percentage,
        error=error,
        state=pa.schema({"buckets": pa.large_binary()}),
        output=pa.float64(),
        identity={
            "aggregate": "approx_percentile",
            "column": column.name,
            "type": str(dtype),
            "error": error,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Percentile(BuiltIn):
    """``approx_percentile``; the state is a DDSketch: counts of values in buckets."""

    commutative = True
    percentage: float
    error: float

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(pack_nothing(count, _LAYOUT))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Count rows' values in the buckets of their groups' sketches."""
        column, mask = columns[0].cast(pa.float64(), safe=False), mask_of(columns[0])
        values = values_of(column)
        if mask is not None:
            groups, values = groups[mask], values[mask]
        rows = groups, self._buckets_of(values), np.ones(len(values), np.int64)
        return self._merge_sketches(states.num_rows, [self._unpack_sketches(states), rows])

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._merge_sketches(
            left.num_rows, [self._unpack_sketches(left), self._unpack_sketches(right)]
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the percentile of each sketch: the middle of the bucket that it falls into."""
        starts, (buckets, counts) = unpack(states.column(0), _LAYOUT)
        cumulative = np.concatenate(([0], np.cumsum(values_of(counts))))
        count_before, total = cumulative[starts[:-1]], np.diff(cumulative[starts])
        # As Spark's: the smallest value with at least this share at or below it. A product such as
        # 0.07 * 100 is a little more than the integer that is meant.
        position = np.ceil(self.percentage * total - 1e-9).astype(np.int64) - 1
        position = np.clip(position, 0, np.maximum(total - 1, 0))
        is_nonempty = total > 0
        entries = np.searchsorted(
            cumulative[1:], (count_before + position)[is_nonempty], side="right"
        )
        estimates = np.zeros(len(is_nonempty))
        estimates[is_nonempty] = self._bucket_middles(values_of(buckets)[entries].astype(np.int64))
        return column_of(estimates, None if is_nonempty.all() else is_nonempty, self.output)

    @property
    def _log_base(self) -> float:
        """Logarithm of the ratio of neighbouring buckets (DDSketch's gamma)."""
        return math.log1p(2 * self.error / (1 - self.error))

    def _buckets_of(self, values: FloatArray) -> IntArray:
        """Return the bucket of each value; buckets are ordered as values are."""
        size = np.abs(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.ceil(np.log(size) / self._log_base)
        finite = (size > 0) & (size < np.inf)
        bucket = np.where(finite, scaled, 0).astype(np.int64) + _ONE
        bucket[size == np.inf] = _INFINITE
        bucket = np.where(values < 0, -bucket, bucket)
        bucket[size == 0] = 0
        bucket[np.isnan(values)] = _NAN
        return bucket

    def _bucket_middles(self, buckets: IntArray) -> FloatArray:
        """Return the value in the middle of each bucket."""
        size = np.abs(buckets)
        exponent = (size - _ONE) * self._log_base + math.log1p(-self.error)
        with np.errstate(over="ignore"):
            middle = np.minimum(np.exp(exponent), np.finfo(np.float64).max)
        middle[size == _INFINITE] = np.inf
        middle[buckets == 0] = 0.0
        middle[buckets == _NAN] = np.nan
        return np.where(buckets < 0, -middle, middle)

    def _unpack_sketches(self, states: pa.RecordBatch) -> tuple[IntArray, IntArray, IntArray]:
        """Unpack sketches; return state number, bucket and count of each of their entries."""
        groups, (buckets, counts) = unpack_rows(states.column(0), _LAYOUT)
        return groups, values_of(buckets).astype(np.int64), values_of(counts)

    def _merge_sketches(
        self, count: int, parts: list[tuple[IntArray, IntArray, IntArray]]
    ) -> pa.RecordBatch:
        """Merge sketches, as of `_unpack_sketches`, into `count` states: counts are added."""
        groups, buckets, counts = (np.concatenate(c) for c in zip(*parts, strict=True))
        order = order_by(groups, buckets + _INFINITE)
        groups, buckets, counts = groups[order], buckets[order], counts[order]
        first = np.flatnonzero(starts_run(groups, buckets))
        added = np.add.reduceat(counts, first) if len(first) else counts
        columns = [column_of(buckets[first], None, pa.int32()), pa.array(added, pa.int64())]
        return self.states(pack(starts_of(groups[first], count), columns, _LAYOUT))

"""Variance and standard deviation, numerically stable.

A state is the number of values, their mean, and the sum of squared deviations from it (M2).  Two
states merge by the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm
for computing sample variances", 1979).  A batch becomes a state by two passes over it, of which the
second also corrects the mean that the first one found: the plain sum of many values that are far
from zero is rounded by more than they vary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.library.aggregates.arithmetic import as_doubles
from godwit.library.aggregates.signed import signed_floats
from godwit.operators.aggregate import BoundAggregate, BuiltIn

IntArray = npt.NDArray[np.int64]
Moments = tuple[IntArray, npt.NDArray[np.float64], npt.NDArray[np.float64]]


def bind_moments(column: pa.Field, *, population: bool, root: bool) -> BoundAggregate | None:
    """Bind ``variance``, or ``stddev`` if `root`; ``None`` unless the column is numeric.

    `population`: divide by the number of values n, not by n - 1.
    """
    dtype = column.type
    if not (
        pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal128(dtype)
    ):
        return None
    return _Moments(
        population=population,
        root=root,
        state=pa.schema({"count": pa.int64(), "mean": pa.float64(), "m2": pa.float64()}),
        output=pa.float64(),
        # Sample or population, variance or root: the state is the same.
        identity={"aggregate": "moments", "column": column.name},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments(BuiltIn):
    """``variance``, or ``stddev`` if `root`; of the `population`, else of a sample."""

    commutative = True
    population: bool
    root: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self._to_states((np.zeros(count, np.int64), np.zeros(count), np.zeros(count)))

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        """Add rows' values to the moments (count, mean, squared deviations) of their groups."""
        column = columns[0]
        mask = mask_of(column)
        if pa.types.is_decimal128(column.type):
            column = as_doubles(column)
        values = values_of(column).astype(np.float64, copy=False)
        if mask is not None:
            groups, values = groups[mask], values[mask]
        return self._to_states(
            _merge_moments(_from_states(states), _moments_of_groups(groups, values, len(states)))
        )

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self._to_states(_merge_moments(_from_states(left), _from_states(right)))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the variance or standard deviation of each state; null with too few values."""
        count, _, m2 = _from_states(states)
        enough = count >= (1 if self.population else 2)
        divisor = np.where(enough, count if self.population else count - 1, 1)
        result = m2 / divisor
        if self.root:
            result = np.sqrt(result)
        return column_of(result, None if enough.all() else enough, self.output)

    @property
    def signed(self) -> BoundAggregate:
        return signed_floats(
            "stddev" if self.root else "variance", self.identity, population=self.population
        )

    def _to_states(self, moments: Moments) -> pa.RecordBatch:
        """Build states from count, mean and sum of squared deviations."""
        count, mean, m2 = moments
        return self.states(
            column_of(count, None, pa.int64()),
            column_of(mean, None, pa.float64()),
            column_of(m2, None, pa.float64()),
        )


def _from_states(states: pa.RecordBatch) -> Moments:
    """Read count, mean and sum of squared deviations from states."""
    count, mean, m2 = (values_of(column) for column in states.columns)
    return count, mean, m2


def _moments_of_groups(groups: IntArray, values: npt.NDArray[np.float64], size: int) -> Moments:
    """Compute the moments of each of `size` groups from their values."""
    count = np.bincount(groups, minlength=size).astype(np.int64, copy=False)
    divisor = np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities have no deviation: NaN
        mean = np.bincount(groups, values, size) / divisor
        deviation = values - mean[groups]
        error = np.bincount(groups, deviation, size) / divisor
        error[~np.isfinite(error)] = 0
        mean += error
        deviation -= error[groups]
        m2 = np.bincount(groups, deviation * deviation, size).astype(np.float64, copy=False)
    return count, mean, m2


def _merge_moments(left: Moments, right: Moments) -> Moments:
    """Merge two moments of each group, by the formula of Chan et al."""
    count_l, mean_l, m2_l = left
    count_r, mean_r, m2_r = right
    count = count_l + count_r
    share = count_r / np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        delta = mean_r - mean_l
        mean = mean_l + delta * share
        m2 = m2_l + m2_r + delta * delta * count_l * share
    # Where one side is empty the other is the answer, bit by bit, infinities included.
    only_left, only_right = count_r == 0, count_l == 0
    mean = np.where(only_left, mean_l, np.where(only_right, mean_r, mean))
    m2 = np.where(only_left, m2_l, np.where(only_right, m2_r, m2))
    return count, mean, m2

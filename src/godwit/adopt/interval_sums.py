"""Sums and means of day-time intervals, computed on whole microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.library import aggregates as gw
from godwit.operators.aggregate import BoundAggregate, BuiltIn

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from godwit.library.aggregates.arithmetic import Overflow

_OUTPUT = pa.duration("us")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSum:
    """An unbound sum or mean of a column of intervals."""

    column: str
    overflow: Overflow  # of the sum; intervals do not wrap
    is_mean: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Name of the column."""
        return (self.column,)

    def bind(self, _inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to its column."""
        micros = pa.schema([(self.column, pa.int64())])
        total = gw.sum_as(self.column, self.overflow).bind(micros)
        count = gw.count(self.column).bind(micros)
        name = "mean of intervals" if self.is_mean else "sum of intervals"
        return _BoundIntervalSum(
            total=total,
            count=count if self.is_mean else None,
            state=pa.schema([*total.state, *(count.state if self.is_mean else ())]),
            output=_OUTPUT,
            identity={**total.describe(), "aggregate": name},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundIntervalSum(BuiltIn):
    """A sum of microseconds, and the number of values for a mean."""

    commutative = True
    total: BoundAggregate
    count: BoundAggregate | None

    def create(self, count: int) -> pa.RecordBatch:
        return self._states_as_one(*(part.create(count) for part in self._bound_parts))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        micros = columns[0].cast(pa.int64())
        own = zip(self._bound_parts, self._states_of_parts(states), strict=True)
        return self._states_as_one(*(part.update(state, groups, micros) for part, state in own))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        parts_of_sides = zip(
            self._bound_parts,
            self._states_of_parts(left),
            self._states_of_parts(right),
            strict=True,
        )
        return self._states_as_one(
            *(
                part.merge(left_state, right_state)
                for part, left_state, right_state in parts_of_sides
            )
        )

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        """Return the sums, or the means, rounded half away from zero as Spark does."""
        total, *counts = (
            part.finish(state).cast(pa.int64())
            for part, state in zip(self._bound_parts, self._states_of_parts(states), strict=True)
        )
        if not counts:
            return total.cast(_OUTPUT)
        pairs = zip(total.to_pylist(), counts[0].to_pylist(), strict=True)
        means = [
            None if micros is None else _rounded_quotient(micros, count) for micros, count in pairs
        ]
        return pa.array(means, pa.int64()).cast(_OUTPUT)

    @property
    def _bound_parts(self) -> list[BoundAggregate]:
        return [self.total] if self.count is None else [self.total, self.count]

    def _states_of_parts(self, states: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the states of each part."""
        parts, first = [], 0
        for part in self._bound_parts:
            columns = states.columns[first : first + len(part.state)]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=part.state))
            first += len(part.state)
        return parts

    def _states_as_one(self, *parts: pa.RecordBatch) -> pa.RecordBatch:
        """Merge the states of the parts."""
        return self.states(*(column for part in parts for column in part.columns))


def _rounded_quotient(micros: int, count: int) -> int:
    """Return a quotient, rounded half away from zero."""
    rounded = (2 * abs(micros) + count) // (2 * count)
    return rounded if micros >= 0 else -rounded

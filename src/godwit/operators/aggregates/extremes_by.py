"""The value of a column in the row where another column is smallest or largest.

A key's state is that row's two values; the deciding one is null as long as no row counted.  Of rows
that tie, the one that arrived first stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of
from godwit.operators.aggregates.aggregate import BoundAggregate, BuiltIn
from godwit.operators.aggregates.ordering import (
    can_be_held,
    descending_ranks,
    first_of_each,
    order_by,
    starts_of,
)

__all__ = ["bind_extreme_by"]

IntArray = npt.NDArray[np.int64]


def bind_extreme_by(
    column: pa.Field, by: pa.Field | None = None, *, largest: bool
) -> BoundAggregate | None:
    """Value of a column where `by`, or the column itself, is smallest or largest."""
    by = column if by is None else by
    if not (can_be_held(column.type) and can_be_held(by.type)):
        return None
    return _ExtremeBy(
        largest=largest,
        state=pa.schema({"value": column.type, "by": by.type}),
        output=column.type,
        identity={
            "aggregate": "max_by" if largest else "min_by",
            "columns": [column.name, by.name],
            "types": [str(column.type), str(by.type)],
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExtremeBy(BuiltIn):
    largest: bool

    def create(self, count: int) -> pa.RecordBatch:
        return self.states(*(pa.nulls(count, field.type) for field in self.state))

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        value, by = columns[0], columns[-1]
        mask = mask_of(by)
        rows = np.arange(len(by)) if mask is None else np.flatnonzero(mask)
        groups = groups[rows]
        order = order_by(groups, self._ranks(by.take(pa.array(rows))))
        best, _ = first_of_each(order, starts_of(groups, states.num_rows), 1)
        chosen = np.full(states.num_rows, -1)
        chosen[groups[best]] = rows[best]
        taken = pa.array(chosen, mask=chosen < 0)
        return self.merge(states, self.states(value.take(taken), by.take(taken)))

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        count = left.num_rows
        earlier, later = left.column(1), right.column(1)
        ranks = self._ranks(pa.concat_arrays([earlier, later]))
        wins = ranks[count:] < ranks[:count]
        for mask, otherwise in ((mask_of(earlier), True), (mask_of(later), False)):
            wins = wins if mask is None else np.where(mask, wins, otherwise)
        newer = column_of(wins, None, pa.bool_())
        pairs = zip(right.columns, left.columns, strict=True)
        return self.states(*(pc.if_else(newer, one, other) for one, other in pairs))

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states.column(0)

    def _ranks(self, by: pa.Array) -> IntArray:
        """Rank of every value, 0 for the best; anything for nulls."""
        ranks = descending_ranks(by)
        return ranks if self.largest else ranks.max(initial=0) - ranks

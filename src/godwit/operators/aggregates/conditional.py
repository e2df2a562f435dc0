"""Aggregates of the rows for which a condition holds: any aggregate, given fewer rows.

A state is that of the aggregate itself; rows for which the condition is false or null are left out
before it sees them, so it merges, moves and comes out as it would without a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.operators.aggregates.aggregate import Aggregate, BoundAggregate, BuiltIn
from godwit.operators.aggregates.conditions import (
    Condition,
    check_condition,
    columns_read,
    parse_condition,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateUpgrade

__all__ = ["Conditional", "counted_where"]


def counted_where(aggregate: Aggregate, where: object) -> Aggregate:
    """Give an aggregate of the rows for which a condition holds; of all without one.

    Raises
    ------
    InvalidFlowError
        If the condition is none.
    """
    if where is None:
        return aggregate
    condition = parse_condition(where, repr(aggregate))
    return Conditional(aggregate=aggregate, where=str(where), condition=condition)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Conditional:
    """An aggregate and its condition, which know names.

    Attributes
    ----------
    aggregate
        The aggregate.
    where, condition
        The condition, as it was written and parsed.
    """

    aggregate: Aggregate
    where: str
    condition: Condition

    @property
    def columns(self) -> tuple[str, ...]:
        """The aggregate's own first."""
        return tuple(dict.fromkeys([*self.aggregate.columns, *columns_read(self.condition)]))

    def __repr__(self) -> str:
        call = repr(self.aggregate)
        return f"{call[:-1]}{'' if call.endswith('()') else ', '}where={self.where!r})"

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind both to the columns of a stream."""
        bound = self.aggregate.bind(inputs)
        check_condition(self.condition, inputs, repr(self))
        kind = _Filtered
        if bound.commutative:
            kind = _FilteredInAnyOrder
        if bound.idempotent:
            kind = _FilteredHoweverOften
        return kind(
            aggregate=bound,
            own=len(self.aggregate.columns),
            columns=self.columns,
            condition=self.condition,
            state=bound.state,
            output=bound.output,
            identity={**bound.describe(), "where": str(self.condition)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filtered(BuiltIn):
    """The first ``own`` of ``columns`` are the aggregate's."""

    aggregate: BoundAggregate
    own: int
    columns: tuple[str, ...]
    condition: Condition

    def create(self, count: int) -> pa.RecordBatch:
        return self.aggregate.create(count)

    def update(
        self, states: pa.RecordBatch, groups: npt.NDArray[np.int64], *columns: pa.Array
    ) -> pa.RecordBatch:
        holds = self.condition.evaluate(dict(zip(self.columns, columns, strict=True)))
        rows = np.flatnonzero(values_of(holds.fill_null(False)))
        taken = columns[: self.own]
        if len(rows) < len(groups):
            at = pa.array(rows)
            groups, taken = groups[rows], tuple(column.take(at) for column in taken)
        return self.aggregate.update(states, groups, *taken)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.aggregate.merge(left, right)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return self.aggregate.finish(states)

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        """Bring forward what the aggregate can, under the same condition."""
        if stored.get("where") != self.identity["where"] or not isinstance(self.aggregate, BuiltIn):
            return None
        return self.aggregate.upgrade_from(
            {name: value for name, value in stored.items() if name != "where"}
        )


class _FilteredInAnyOrder(_Filtered):
    __slots__ = ()
    commutative: ClassVar[bool] = True


class _FilteredHoweverOften(_FilteredInAnyOrder):
    __slots__ = ()
    idempotent: ClassVar[bool] = True

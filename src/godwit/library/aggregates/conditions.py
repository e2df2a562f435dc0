"""Aggregates of expressions, and of the rows for which a condition holds.

Both are made around an aggregate: before it sees rows, some are left out, or columns that it reads
are computed (`godwit.library.aggregates.expressions`).  The state is the aggregate's own, so it
merges, moves and comes out as it would without either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.library.aggregates.expressions import (
    Column,
    Expression,
    Rows,
    check_types,
    columns_read,
    parse_condition,
    parse_expression,
)
from godwit.operators.aggregate import (
    Aggregate,
    BoundAggregate,
    BuiltIn,
    aggregate_text,
    column_type,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateUpgrade

IntArray = npt.NDArray[np.int64]


class RowError(ArithmeticError):
    """An expression has no value for a row of a group."""

    def __init__(self, group: int, text: str, reason: str) -> None:
        super().__init__(reason)
        self.group, self.text, self.reason = group, text, reason


def restricted(aggregate: Aggregate, where: object) -> Aggregate:
    """Return the aggregate, applied only to rows that meet `where`; to all if that is ``None``."""
    if where is None:
        return aggregate
    condition = parse_condition(where, repr(aggregate))
    return Conditional(aggregate=aggregate, where=str(where), condition=condition)


def computed(aggregate: Aggregate, inputs: pa.Schema) -> Aggregate:
    """Return the aggregate with texts that are not columns of `inputs` parsed as expressions.

    A column whose name is the text of an expression is meant by that text.
    """
    if isinstance(aggregate, Conditional):
        return replace(aggregate, aggregate=computed(aggregate.aggregate, inputs))
    texts = [text for text in dict.fromkeys(aggregate.columns) if text not in inputs.names]
    if not texts:
        return aggregate
    call = repr(aggregate)
    expressions = {text: parse_expression(text, call, inputs.names) for text in texts}
    # A single name is a missing column, which binding reports.
    expressions = {
        text: expression for text, expression in expressions.items() if expression != Column(text)
    }
    return Computed(aggregate=aggregate, expressions=expressions) if expressions else aggregate


def user_aggregate(bound: BoundAggregate) -> BoundAggregate:
    """Return the bound aggregate that the user named, without its wrappers."""
    while isinstance(bound, _Around):
        bound = bound.aggregate
    return bound


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Conditional:
    """An unbound aggregate restricted to the rows of a condition."""

    aggregate: Aggregate
    where: str  # the condition as it was written
    condition: Expression

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the aggregate reads, then those that the condition reads."""
        return tuple(dict.fromkeys([*self.aggregate.columns, *columns_read(self.condition)]))

    def __repr__(self) -> str:
        call = repr(self.aggregate)
        return f"{call[:-1]}{'' if call.endswith('()') else ', '}where={self.where!r})"

    @property
    def explained(self) -> str:
        """Call and condition as text, see `aggregate_text`."""
        return f"{aggregate_text(self.aggregate)} where {self.where}"

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate and its condition to the columns of a stream."""
        bound = self.aggregate.bind(inputs)
        check_types(self.condition, inputs, repr(self), "condition")
        return _Filtered(
            aggregate=bound,
            own=len(self.aggregate.columns),
            columns=self.columns,
            condition=self.condition,
            where=self.where,
            state=bound.state,
            output=bound.output,
            identity={**bound.describe(), "where": str(self.condition)},
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Computed:
    """An unbound aggregate of expressions."""

    aggregate: Aggregate
    expressions: Mapping[str, Expression]  # as it was written → the expression

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the aggregate and its expressions read."""
        return tuple(
            dict.fromkeys(
                name
                for text in self.aggregate.columns
                for name in (
                    columns_read(self.expressions[text]) if text in self.expressions else (text,)
                )
            )
        )

    def __repr__(self) -> str:
        return repr(self.aggregate)

    def bind(self, inputs: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the types of its expressions and other columns."""
        call = repr(self.aggregate)
        types = {
            text: check_types(self.expressions[text], inputs, call, "expression")
            if text in self.expressions
            else column_type(inputs, text, call)
            for text in self.aggregate.columns
        }
        bound = self.aggregate.bind(pa.schema(types))
        names = {
            text: expression.name if isinstance(expression, Column) else str(expression)
            for text, expression in self.expressions.items()
        }
        return _OfExpressions(
            aggregate=bound,
            columns=self.columns,
            arguments=tuple(self.aggregate.columns),
            expressions=self.expressions,
            names=names,
            state=bound.state,
            output=bound.output,
            identity=_with_columns_renamed(bound.describe(), names),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around(BuiltIn):
    """Base class of wrappers of a bound aggregate, which share its state."""

    aggregate: BoundAggregate
    columns: tuple[str, ...]

    @property
    def commutative(self) -> bool:
        return self.aggregate.commutative

    @property
    def idempotent(self) -> bool:
        return self.aggregate.idempotent

    def create(self, count: int) -> pa.RecordBatch:
        return self.aggregate.create(count)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        return self.aggregate.merge(left, right)

    @property
    def narrow(self) -> BoundAggregate:
        if not isinstance(self.aggregate, BuiltIn):
            return self
        inner = self.aggregate.narrow
        return replace(self, aggregate=inner, state=inner.state)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return self.aggregate.finish(states)

    def _evaluate(
        self, expression: Expression, text: str, groups: IntArray, columns: tuple[pa.Array, ...]
    ) -> pa.Array:
        """Evaluate an expression (`text`: as it was written); raise `RowError` where it fails."""
        rows = Rows(columns=dict(zip(self.columns, columns, strict=True)))
        try:
            return expression.evaluate(rows)
        except EvaluationError as error:
            raise RowError(int(groups[error.row]), text, error.reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filtered(_Around):
    """A bound aggregate restricted to the rows of a condition."""

    own: int  # number of columns that the aggregate itself reads
    condition: Expression
    where: str

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        holds = self._evaluate(self.condition, self.where, groups, columns)
        rows = np.flatnonzero(values_of(holds.fill_null(False)))
        taken = columns[: self.own]
        if len(rows) < len(groups):
            indices = pa.array(rows)
            groups, taken = groups[rows], tuple(column.take(indices) for column in taken)
        return self.aggregate.update(states, groups, *taken)

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        if stored.get("where") != self.identity["where"] or not isinstance(self.aggregate, BuiltIn):
            return None
        return self.aggregate.upgrade_from(
            {name: value for name, value in stored.items() if name != "where"}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfExpressions(_Around):
    """A bound aggregate of expressions."""

    arguments: tuple[str, ...]  # what the aggregate reads: columns, and texts of expressions
    expressions: Mapping[str, Expression]
    names: Mapping[str, str]  # text of an expression → its text in the checkpoint

    def update(
        self, states: pa.RecordBatch, groups: IntArray, *columns: pa.Array
    ) -> pa.RecordBatch:
        arguments = (
            self._evaluate(self.expressions[text], text, groups, columns)
            if text in self.expressions
            else columns[self.columns.index(text)]
            for text in self.arguments
        )
        return self.aggregate.update(states, groups, *arguments)

    def upgrade_from(self, stored: Mapping[str, Any]) -> StateUpgrade | None:
        if not isinstance(self.aggregate, BuiltIn):
            return None
        written = {name: text for text, name in self.names.items()}
        return self.aggregate.upgrade_from(_with_columns_renamed(stored, written))


def _with_columns_renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return plain values in which some names of columns are replaced by others."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, (list, tuple)):
        return [_with_columns_renamed(part, names) for part in value]
    if hasattr(value, "items"):
        return {name: _with_columns_renamed(part, names) for name, part in value.items()}
    return value

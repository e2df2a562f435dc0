"""Rows of a stateful node with the columns that the next one reads, computed in the lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from godwit.adopt.stateless import StatelessPart, read_stateless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType

    from godwit.adopt.plan import Catalyst
    from godwit.adopt.spark_states import OperatorState
    from godwit.api.streams import Stream
    from godwit.model.errors import UnsupportedQueryError
    from godwit.plan.nodes import CustomNode
    from godwit.spark.flow import Flow

TIME: Final = "event_time_ms"
"""Column of a timed stream: the event time for Spark's watermark, in whole milliseconds."""
ONLY_TIME: Final = "moves_watermark_only"
"""Column of a timed stream that is true in rows that only advance the watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A struct that is stored in a stream as one column per field."""

    fields: tuple[tuple[str, Place], ...]  # name of a field → place of its value
    is_null: str | None = None  # column that is true where the whole struct is null


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueAsText:
    """A value of a type that Arrow lacks, as text that Spark's cast converts back."""

    column: str
    dtype: Any  # one of the JVM's


Place: TypeAlias = "str | Packed | ValueAsText"
"""Column of a stream with a value, or the columns of a struct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedColumn:
    """A column of Spark's plan, and the place of its values in a stream."""

    attribute: Any
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """Rows of a plan as a stream of the flow, and the rest of the plan."""

    stream: Stream
    columns: tuple[PlacedColumn, ...]
    # Plan over the rows of the stream, in which one node stands for these, and the way to that
    # node: the number of a child of each node from the top. ``None``: the rows are the result.
    plan: Any = None
    path: tuple[int, ...] = ()


class Translator(Protocol):
    """Interface of the translator (`godwit.adopt.translate`) for the handlers of nodes."""

    catalyst: Catalyst
    plan: Any  # of the whole query
    flow: Flow
    mode: str  # Spark's output mode
    whole_windows: bool  # windows that come out as they grow have a state each, as in Spark
    states: list[OperatorState]  # of the operators translated so far

    @property
    def optimized_plan(self) -> Any:
        """The plan of the whole query after Spark's optimizer."""

    def unique(self, name: str) -> str:
        """Return a name that is unique among the columns and operators of the flow."""

    def refused(self, node: Any, why: str, remedy: str) -> UnsupportedQueryError:
        """Return the error that a node of the plan cannot be adopted."""

    def check_collation(self, node: Any, key: Any) -> None:
        """Raise if a key of a node is text with a collation other than binary."""

    def check_key(self, expression: Any, name: str, dtype: DataType) -> None:
        """Raise if rows cannot be grouped by values of a type."""

    def inputs(
        self, columns: Sequence[tuple[str, Any]], plan: Any, below: Adopted | None, *, timed: bool
    ) -> tuple[Stream, pa.Schema]:
        """Return the rows that a stateful node reads as a stream with these columns."""

    def rows_at(
        self, node: Any, operator: CustomNode, columns: Sequence[tuple[Any, Place]]
    ) -> Adopted:
        """Return the output rows of an operator that implements a node."""

    def rows_of_source(
        self, columns: Sequence[tuple[str, Any]], plan: Any
    ) -> tuple[Stream, str | None]:
        """Return the rows of a stateless plan, and the column that marks rows for watermarks."""

    def result_of(self, stream: Stream, attributes: Sequence[Any], names: Sequence[str]) -> Adopted:
        """Return the output rows of an operator with the columns of a node's output."""

    @staticmethod
    def conjuncts(condition: Any) -> list[Any]:
        """Return the parts of a condition that are joined by ``AND``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneProjection:
    """Map in the lanes that computes the columns which the next stateful node reads."""

    places: tuple[Place, ...]  # of the part's inputs
    part: StatelessPart

    @property
    def __name__(self) -> str:
        return self.part.__name__

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the computed rows."""
        columns = [value_of(place, rows) for place in self.places]
        names = [key for key, _ in self.part.inputs]
        if not columns:  # only the number of rows counts
            columns, names = [pa.nulls(rows.num_rows, pa.bool_())], ["#"]
        return self.part(pa.Table.from_arrays(columns, names=names))


def in_lanes(
    catalyst: Catalyst, rows: Adopted, columns: Sequence[tuple[str, Any]], below: Any
) -> tuple[Stream, pa.Schema]:
    """Return rows with columns that are expressions over a plan, computed in the lanes.

    `rows`: those of the plan. `columns`: name → expression of Spark's. `below`: node of the rows,
    if nothing is left to be done with them. Raises `UnsupportedQueryError` for expressions that are
    not computed as Spark computes them.
    """
    plan = catalyst.project(
        (catalyst.alias(value, name) for name, value in columns),
        below if rows.plan is None else rows.plan,
    )
    return whole_in_lanes(catalyst, replace(rows, plan=plan, path=(0, *rows.path)))


def whole_in_lanes(catalyst: Catalyst, rows: Adopted) -> tuple[Stream, pa.Schema]:
    """Return the result of a plan over rows, computed in the lanes; raises as `in_lanes` does."""
    attributes = [column.attribute for column in rows.columns]
    part = read_stateless(catalyst, rows.plan, rows.path, attributes)
    places = tuple(column.place for column in rows.columns)
    function = LaneProjection(places=places, part=part)
    return rows.stream.map(function, schema=part.schema), part.schema


def value_of(place: Place, rows: pa.Table) -> pa.Array:
    """Return the values at a place as one column."""
    if isinstance(place, str):
        return rows[place].combine_chunks()
    if isinstance(place, ValueAsText):
        return rows[place.column].combine_chunks()
    parts = [value_of(part, rows) for _, part in place.fields]
    mask = None if place.is_null is None else rows[place.is_null].combine_chunks().fill_null(True)
    return pa.StructArray.from_arrays(parts, names=[name for name, _ in place.fields], mask=mask)

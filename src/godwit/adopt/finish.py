"""The part of a query above its last operator, run by Spark SQL per batch, or by maps in lanes."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.adopt.lanes import Adopted, Packed, Place, PlacedColumn, ValueAsText, value_of
from godwit.adopt.plan import (
    Catalyst,
    analysed,
    children_of,
    id_of,
    is_narrow_interval,
    kind_of,
    output_of,
    to_list,
)
from godwit.adopt.stateless import read_stateless
from godwit.model.errors import UnsupportedQueryError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from godwit.api.streams import Stream


_logger = logging.getLogger("godwit")


class Finish:
    """The part of a query above its last operator, computed by Spark over the rows of a batch."""

    def __init__(self, catalyst: Catalyst, rows: Adopted) -> None:
        self._catalyst, self._rows = catalyst, rows
        plan = rows.plan
        for number in rows.path:
            if kind_of(plan) == "CollectMetrics":
                _logger.warning(
                    "The progress of the query has no metrics of observe(%r): it is above the "
                    "last stateful operator. Move it below the first one.",
                    str(plan.name()),
                )
            plan = children_of(plan)[number]

    def __call__(self, batch: DataFrame) -> DataFrame:
        """Return the query's result for the rows that the stream has in a batch."""
        catalyst, rows = self._catalyst, self._rows
        plan = analysed(batch)
        by_name = {attribute.name(): attribute for attribute in output_of(plan)}
        leaf = catalyst.project(
            (_with_column_id(catalyst, column, by_name) for column in rows.columns), plan
        )
        return catalyst.dataframe(with_leaf(catalyst, rows.plan, rows.path, leaf))

    def in_lanes(self, stream: Stream, needed_by: str) -> Stream:
        """Return the stream of the result, computed by maps in the lanes.

        `needed_by`: why it has to be, as text. Raises `UnsupportedQueryError` if a part of it is
        not computed there as Spark computes it.
        """
        rows = self._rows
        names = Counter(str(attribute.name()) for attribute in output_of(rows.plan))
        repeated = [name for name, count in names.items() if count > 1]
        if repeated:
            raise UnsupportedQueryError(
                f"{needed_by[0].upper()}{needed_by[1:]} has several columns named "
                f"{listing(repeated)}.",
                remedy="Rename them, as by alias(...).",
            )
        chosen_columns = self._chosen_columns()
        if chosen_columns is not None:
            return stream.map(_Choose(chosen_columns))
        try:
            attributes = [column.attribute for column in rows.columns]
            part = read_stateless(self._catalyst, rows.plan, rows.path, attributes)
        except UnsupportedQueryError as error:
            raise UnsupportedQueryError(
                f"{needed_by[0].upper()}{needed_by[1:]} needs its rows from the lanes: "
                f"{error.message}",
                remedy="Use foreachBatch(...), whose rows Spark computes, or move it before the "
                "stateful operator.",
                **error.context,
            ) from None
        inputs = tuple((f"c{number}", column.place) for number, column in enumerate(rows.columns))
        return stream.map(_Choose(inputs)).map(part, schema=part.schema)

    def _chosen_columns(self) -> tuple[tuple[str, Place], ...] | None:
        """Return name → place of the result's columns; ``None`` if they are not only selected."""
        rows = self._rows
        places = {id_of(column.attribute): column.place for column in rows.columns}
        plan, nodes = rows.plan, []
        for number in rows.path:
            nodes.append(plan)
            plan = children_of(plan)[number]
        chosen: dict[str, Place] = {}
        for node in reversed(nodes):
            if kind_of(node) in {"SubqueryAlias", "View"}:
                continue
            if kind_of(node) != "Project":
                return None
            results: dict[int, Place] = {}
            chosen = {}
            for result in to_list(node.projectList()):
                place = _place_of_chosen(result, places)
                if place is None:
                    return None
                results[id_of(result)] = place
                chosen[str(result.name())] = place
            places = results
        return tuple(chosen.items())


def _place_of_chosen(expression: Any, places: dict[int, Place]) -> Place | None:
    """Return the place of an expression that selects a column or a field of one.

    `places`: number of a column of Spark's → its place. ``None`` for other expressions.
    """
    kind = kind_of(expression)
    if kind == "Alias":
        return _place_of_chosen(expression.child(), places)
    if kind == "AttributeReference":
        place = places.get(id_of(expression))
        return None if isinstance(place, ValueAsText) else place
    if kind == "GetStructField":
        inner = _place_of_chosen(expression.child(), places)
        if isinstance(inner, Packed) and inner.is_null is None:
            return inner.fields[int(expression.ordinal())][1]
    return None


@dataclass(frozen=True, slots=True)
class _Choose:
    """Map in the lanes that selects and renames columns, and builds structs."""

    results: tuple[tuple[str, Place], ...]  # name of a result → its place

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the selected columns."""
        return pa.table({name: value_of(place, rows) for name, place in self.results})


def _spark_value(catalyst: Catalyst, place: Place, by_name: dict[str, Any]) -> Any:
    """Return the expression of Spark's for the values at a place; `by_name`: columns."""
    if isinstance(place, str):
        return by_name[place]
    if isinstance(place, ValueAsText):
        return catalyst.cast(by_name[place.column], place.dtype)
    struct = catalyst.struct(
        (name, _spark_value(catalyst, part, by_name)) for name, part in place.fields
    )
    if place.is_null is None:
        return struct
    return catalyst.when(catalyst.negation(by_name[place.is_null]), struct)


def _with_column_id(catalyst: Catalyst, column: PlacedColumn, by_name: dict[str, Any]) -> Any:
    """Return a named expression that has the values and the id of a column of Spark's plan."""
    attribute = column.attribute
    value = _spark_value(catalyst, column.place, by_name)
    if is_narrow_interval(attribute.dataType()):
        value = catalyst.cast(value, attribute.dataType())
    return catalyst.alias(value, attribute.name(), attribute.exprId())


def with_leaf(catalyst: Catalyst, plan: Any, path: Sequence[int], leaf: Any) -> Any:
    """Return a plan with the node at a path replaced."""
    if not path:
        return leaf
    children = children_of(plan)
    children[path[0]] = with_leaf(catalyst, children[path[0]], path[1:], leaf)
    return catalyst.with_children(plan, children)

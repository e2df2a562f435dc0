"""Projections and filters between two stateful nodes of Spark's plan, over Arrow tables.

Spark optimizes the part of the plan on an empty DataFrame instead of the stateful node, as it
would for its own run, and the steps of the result are computed by `godwit.adopt.functions`.  So a
`StatelessPart` is a picklable function from a table to a table, for a flow's ``map``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from godwit.adopt.array_functions import rows_and_elements
from godwit.adopt.expressions import ROWS, ExpressionReader, column_key
from godwit.adopt.functions import evaluated, truth_of
from godwit.adopt.plan import (
    analysed,
    children_of,
    conjuncts,
    id_of,
    kind_of,
    option,
    output_of,
    place_of,
    to_list,
    type_of,
    walk,
)
from godwit.adopt.python_functions import (
    EVALUATIONS,
    MAPS,
    PythonCalls,
    PythonMap,
    read_calls,
    read_map,
)
from godwit.adopt.static_joins import MAX_ROWS, StaticJoin, equal_parts, how_of
from godwit.library.aggregates.expressions import Expression, Rows
from godwit.model.errors import UnsupportedQueryError
from godwit.model.naming import error_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.adopt.plan import Catalyst


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedColumn:
    """A column that is computed."""

    key: str
    expression: Expression
    text: str  # as Spark writes the expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A step that computes the columns of every row."""

    columns: tuple[ComputedColumn, ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns after the step."""
        rows = Rows(columns=columns)
        computed = {
            column.key: evaluated(column.expression, column.text, rows) for column in self.columns
        }
        return {ROWS: columns[ROWS], **computed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A step that drops rows."""

    condition: Expression
    text: str

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns of the rows for which the condition is true."""
        mask = truth_of(self.condition, self.text, Rows(columns=columns)).fill_null(False)
        return {key: column.filter(mask) for key, column in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A step that expands one row to several, such as one for each of its windows."""

    projections: tuple[Projection, ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the rows of all projections, those of one row side by side."""
        parts = [projection.apply(columns) for projection in self.projections]
        count, length = len(parts), len(columns[ROWS])
        order = pa.array(np.arange(count * length).reshape(count, length).T.ravel())
        return {
            key: pa.concat_arrays([part[key] for part in parts]).take(order) for key in parts[0]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Explosion:
    """A step that emits a row for every element of an array, or every entry of a map."""

    lists: ComputedColumn
    outer: bool  # a row without elements stays, with null
    keeps: tuple[str, ...]  # columns of the rows that stay
    position: bool  # the first output is the number of the element
    outputs: tuple[tuple[str, pa.DataType], ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the rows of all elements, in order."""
        lists = evaluated(self.lists.expression, self.lists.text, Rows(columns=columns))
        rows, elements = rows_and_elements(lists)
        exploded_rows = np.arange(len(rows))
        if self.outer:
            empty = np.flatnonzero(np.bincount(rows, minlength=len(lists)) == 0)
            order = np.argsort(np.concatenate([rows, empty]), kind="stable")
            rows = np.concatenate([rows, empty])[order]
            exploded_rows = np.concatenate([exploded_rows, np.full(len(empty), -1)])[order]
        taken = pa.array(rows)
        results = {key: columns[key].take(taken) for key in (ROWS, *self.keeps)}
        chosen = pa.array(exploded_rows, mask=exploded_rows < 0)
        parts = elements.flatten() if pa.types.is_map(lists.type) else [elements]
        values = [part.take(chosen) for part in parts]
        if self.position:
            begins = np.flatnonzero(np.diff(rows, prepend=-1))
            sizes = np.diff(begins, append=len(rows))
            position_in_row = np.arange(len(rows)) - np.repeat(begins, sizes)
            values.insert(0, pa.array(position_in_row.astype(np.int32), mask=exploded_rows < 0))
        for (key, dtype), value in zip(self.outputs, values, strict=True):
            results[key] = value if value.type == dtype else value.cast(dtype)
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A step that drops all rows."""

    columns: tuple[tuple[str, pa.DataType], ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return columns without rows."""
        return {ROWS: columns[ROWS].slice(0, 0)} | {
            key: pa.array([], dtype) for key, dtype in self.columns
        }


Step: TypeAlias = (
    "Projection | Selection | Expansion | Explosion | Nothing | StaticJoin | PythonCalls"
    " | PythonMap"
)
"""A step of a stateless part: a function of columns by their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessPart:
    """Part of a plan without stateful nodes: a function of tables.

    A table has the columns of `inputs` by position, and the result those of `outputs`.
    """

    inputs: tuple[tuple[str, pa.DataType], ...]  # key of an attribute, and its type
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str, pa.DataType], ...]  # key, name and type

    @property
    def schema(self) -> pa.Schema:
        """Columns of the result."""
        return pa.schema([(name, dtype) for _, name, dtype in self.outputs])

    @property
    def __name__(self) -> str:
        return "of Spark's plan"

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the rows after all steps.

        Raises `EpochFailedError` where a row has no value in ANSI mode, with Spark's condition.
        """
        columns: dict[str, pa.Array] = {ROWS: pa.nulls(table.num_rows, pa.bool_())}
        for (key, dtype), column in zip(self.inputs, table.columns, strict=True):
            whole = column.combine_chunks()
            columns[key] = whole if whole.type == dtype else whole.cast(dtype)
        for step in self.steps:
            columns = step.apply(columns)
        arrays = [columns[key] for key, _, _ in self.outputs]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def read_stateless(
    catalyst: Catalyst, plan: Any, path: Sequence[int], attributes: Sequence[Any]
) -> StatelessPart:
    """Read the nodes of an analysed plan above a node, as a function of that node's rows.

    Parameters
    ----------
    plan
        Topmost node of the part.
    path
        Number of a child of each node, from the top to the node that gives the rows.
    attributes
        Columns of these rows, in their order.

    Raises
    ------
    UnsupportedQueryError
        If the part has a node or an expression that is not computed as Spark computes it.
    """
    reader = ExpressionReader(
        shortest=catalyst.writes_shortest_floats,
        conf=catalyst.spark.conf,
        bytes_of=catalyst.bytes_of,
    )
    names = [str(attribute.name()) for attribute in output_of(plan)]
    optimized, rows, tables = _optimize_part(catalyst, plan, path, attributes, reader)
    inputs, computed = _attributes_of_node(reader, rows), _attributes_of_node(reader, optimized)
    part = StatelessPart(
        inputs=tuple((key, dtype) for key, _, dtype in inputs),
        steps=tuple(reversed(_steps_of_plan(reader, optimized, tables))),
        outputs=tuple(
            (key, name, dtype) for (key, _, dtype), name in zip(computed, names, strict=True)
        ),
    )
    _check_on_no_rows(part, plan, reader)
    return part


def _steps_of_plan(
    reader: ExpressionReader, node: Any, tables: Mapping[str, pa.Table]
) -> list[Step]:
    """Return the steps of a plan, from the top; `tables`: first column of a table → its rows."""
    steps: list[Step] = []
    while True:
        kind = kind_of(node)
        if kind == "Project":
            steps.append(Projection(columns=_projected_columns(reader, node.projectList())))
        elif kind == "Filter":
            condition = node.condition()
            steps.append(Selection(condition=reader.read(condition), text=str(condition.sql())))
        elif kind == "Expand":
            steps.append(_expand_step(reader, node))
        elif kind == "Generate":
            steps.append(_generate_step(reader, node))
        elif kind in EVALUATIONS:
            steps.append(read_calls(reader, node))
        elif kind in MAPS:
            steps.append(read_map(reader, node))
        elif kind == "LocalRelation":
            steps.append(
                Nothing(columns=tuple((k, t) for k, _, t in _attributes_of_node(reader, node)))
            )
            break
        elif kind == "Join":
            step, node = _static_join(reader, node, tables)
            steps.append(step)
            continue
        elif not children_of(node):
            break
        else:
            raise _unknown_node(node)
        node = node.child()
    return steps


def _static_join(
    reader: ExpressionReader, node: Any, tables: Mapping[str, pa.Table]
) -> tuple[StaticJoin, Any]:
    """Return the step of a join with a table, and the node of the rows that are joined."""
    sides = children_of(node)
    of_tables = [
        all(_first_key(leaf) in tables for leaf in to_list(side.collectLeaves())) for side in sides
    ]
    stream = int(of_tables[0])
    how = how_of(node, stream)
    if sum(of_tables) != 1 or how is None:
        raise _unknown_node(node)
    table = _rows_of_table(reader, sides[1 - stream], tables)
    names = {id_of(attribute) for attribute in output_of(sides[1 - stream])}
    condition = option(node.condition())
    parts = [] if condition is None else conjuncts(condition)
    pairs = {number: equal_parts(part, names) for number, part in enumerate(parts)}
    others = [parts[number] for number, pair in pairs.items() if pair is None]
    return StaticJoin(
        how=how,
        table={key: table[key].combine_chunks() for key in table.column_names if key != ROWS},
        size=table.num_rows,
        equal=tuple(
            (reader.read(pair[0]), reader.read(pair[1]), pair[2], str(parts[number].sql()))
            for number, pair in pairs.items()
            if pair is not None
        ),
        conditions=tuple((reader.read(part), str(part.sql())) for part in others),
    ), sides[stream]


def _rows_of_table(reader: ExpressionReader, node: Any, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of the static side of a join, by the keys of its columns."""
    steps = _steps_of_plan(reader, node, tables)
    (leaf,) = to_list(node.collectLeaves())
    rows = tables[_first_key(leaf)]
    columns = {ROWS: pa.nulls(rows.num_rows, pa.bool_())}
    columns |= {key: rows[key].combine_chunks() for key in rows.column_names}
    for step in reversed(steps):
        columns = step.apply(columns)
    return pa.table(columns)


def _first_key(leaf: Any) -> str:
    """Return the key of the first column of a leaf of a plan; empty if it has none."""
    columns = output_of(leaf)
    return column_key(columns[0]) if columns else ""


def _unknown_node(node: Any) -> UnsupportedQueryError:
    """Return the error that a node cannot run in a lane."""
    place = place_of(node)
    return UnsupportedQueryError(
        f"{kind_of(node)}{f' ({place})' if place else ''} cannot run between two stateful "
        "operators.",
        remedy="Move it before the first stateful operator, or after the last one.",
        node=kind_of(node),
        place=place,
    )


def _check_on_no_rows(part: StatelessPart, plan: Any, reader: ExpressionReader) -> None:
    """Compute a part on no rows; refuse it if its types differ from Spark's."""
    empty = pa.Table.from_arrays(
        [pa.array([], dtype) for _, dtype in part.inputs], names=[key for key, _ in part.inputs]
    )
    try:
        part(empty)
    except (ValueError, TypeError, pa.ArrowException) as error:
        reader.refuse(plan.output().apply(0), f"an unsupported type ({error})")


def _attributes_of_node(
    reader: ExpressionReader, plan: Any
) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return key, name and type of the columns of a node."""
    columns = []
    for attribute in output_of(plan):
        try:
            dtype = reader.type_of(attribute.dataType())
        except ValueError as error:
            reader.refuse(attribute, str(error))
        columns.append((column_key(attribute), str(attribute.name()), dtype))
    return tuple(columns)


def _projected_columns(reader: ExpressionReader, expressions: Any) -> tuple[ComputedColumn, ...]:
    """Return the columns of a projection."""
    return tuple(
        ComputedColumn(key=column_key(named), expression=reader.read(named), text=str(named.sql()))
        for named in to_list(expressions)
    )


def _expand_step(reader: ExpressionReader, plan: Any) -> Expansion:
    """Return the step of an ``Expand``."""
    keys = [key for key, _, _ in _attributes_of_node(reader, plan)]
    projections = [
        Projection(
            columns=tuple(
                ComputedColumn(key=key, expression=reader.read(value), text=str(value.sql()))
                for key, value in zip(keys, to_list(values), strict=True)
            )
        )
        for values in to_list(plan.projections())
    ]
    return Expansion(projections=tuple(projections))


def _generate_step(reader: ExpressionReader, node: Any) -> Explosion:
    """Return the step of a ``Generate``, which calls ``explode`` or ``posexplode``."""
    generator = node.generator()
    if kind_of(generator) not in {"Explode", "PosExplode"}:
        raise _unknown_node(node)
    (lists,) = children_of(generator)
    outputs = [
        (column_key(attribute), reader.type_of(attribute.dataType()))
        for attribute in to_list(node.generatorOutput())
    ]
    new = {key for key, _ in outputs}
    keys = [key for key, _, _ in _attributes_of_node(reader, node)]
    return Explosion(
        lists=ComputedColumn(key="", expression=reader.read(lists), text=str(lists.sql())),
        outer=bool(node.outer()),
        keeps=tuple(key for key in keys if key not in new),
        position=kind_of(generator) == "PosExplode",
        outputs=tuple(outputs),
    )


def _optimize_part(
    catalyst: Catalyst,
    plan: Any,
    path: Sequence[int],
    attributes: Sequence[Any],
    reader: ExpressionReader,
) -> tuple[Any, Any, dict[str, pa.Table]]:
    """Return the part after Spark's optimizer, and the empty DataFrame below it.

    The third value has the rows of tables that the part joins, by the keys of their first columns.
    """
    empty, whole = _empty_leaf(catalyst, attributes)
    node = plan
    nodes = []
    for number in path:
        catalyst.check_repeatable(node, reader.refuse)
        nodes.append((node, number))
        node = children_of(node)[number]
    tables: dict[str, pa.Table] = {}
    for node, number in reversed(nodes):
        children = children_of(node)
        if len(children) > 1:
            table = children[1 - number]
            has_columns = bool(output_of(table))
            if kind_of(node) != "Join" or table.isStreaming() or not has_columns:
                raise _unknown_node(node)
            children[1 - number], rows = _static_rows(catalyst, reader, table)
            tables[rows.column_names[0]] = rows
        children[number] = whole
        whole = catalyst.with_children(node, children)
    try:
        return catalyst.optimized(whole), empty, tables
    except Exception as error:
        raise UnsupportedQueryError(
            f"Spark cannot plan {kind_of(plan)}: {error_line(error)}.",
            remedy="Correct it, since Spark would not start the query either.",
            node=kind_of(plan),
            place=place_of(plan),
        ) from error


def _empty_leaf(catalyst: Catalyst, attributes: Sequence[Any]) -> tuple[Any, Any]:
    """Return an empty DataFrame's plan, and a projection of it whose columns are attributes."""
    fields = [StructField(str(a.name()), type_of(a), bool(a.nullable())) for a in attributes]
    spark = catalyst.spark
    empty = analysed(spark.createDataFrame(spark.sparkContext.emptyRDD(), StructType(fields)))
    columns = (
        catalyst.alias(column, attribute.name(), attribute.exprId())
        for column, attribute in zip(output_of(empty), attributes, strict=True)
    )
    return empty, catalyst.project(columns, empty)


def _static_rows(catalyst: Catalyst, reader: ExpressionReader, plan: Any) -> tuple[Any, pa.Table]:
    """Replace a static plan by an empty one; return it and the rows by their columns' keys."""
    for node in walk(plan):
        catalyst.check_repeatable(node, reader.refuse)
    rows = catalyst.dataframe(plan).limit(MAX_ROWS + 1).toArrow()
    if rows.num_rows > MAX_ROWS:
        raise UnsupportedQueryError(
            f"A table that is joined between two stateful operators has more than {MAX_ROWS:,} "
            "rows, which every lane would hold.",
            remedy="Join it before the first stateful operator, or after the last one.",
            node=kind_of(plan),
            place=place_of(plan),
        )
    empty, leaf = _empty_leaf(catalyst, output_of(plan))
    columns = [
        column.combine_chunks().cast(dtype)
        for column, (_, _, dtype) in zip(
            rows.columns, _attributes_of_node(reader, empty), strict=True
        )
    ]
    return leaf, pa.table(columns, [key for key, _, _ in _attributes_of_node(reader, empty)])

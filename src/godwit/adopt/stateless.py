"""Projections and filters between two stateful nodes of Spark's plan, over Arrow tables.

Spark optimizes the part of the plan on an empty DataFrame in place of the stateful node, as it
would for its own run, and the steps of the result are computed by `godwit.adopt.functions`.  So a
`StatelessPart` is a picklable function from a table to a table, for a flow's ``map``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.adopt.expressions import ExpressionReader, column_key
from godwit.model.errors import EpochFailedError, InvalidFlowError
from godwit.model.naming import error_line
from godwit.operators.aggregates.arithmetic import EvaluationError
from godwit.operators.aggregates.expressions import Expression, Rows, truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_ROWS = "#rows"  # a column that is always there, so that the number of rows is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A column that is computed."""

    key: str
    expression: Expression
    text: str  # as Spark writes the expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A step that computes the columns of every row."""

    columns: tuple[Computed, ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns after the step."""
        rows = Rows(columns=columns)
        computed = {
            column.key: _value(column.expression, column.text, rows) for column in self.columns
        }
        return {_ROWS: columns[_ROWS], **computed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A step that drops rows."""

    condition: Expression
    text: str

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the columns of the rows for which the condition is true."""
        mask = _truth(self.condition, self.text, Rows(columns=columns)).fill_null(False)
        return {key: column.filter(mask) for key, column in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A step that makes several rows of one, such as a row of each window that it falls into."""

    projections: tuple[Projection, ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the rows of all projections, those of one row side by side."""
        parts = [projection.apply(columns) for projection in self.projections]
        count, length = len(parts), len(columns[_ROWS])
        order = pa.array(np.arange(count * length).reshape(count, length).T.ravel())
        return {
            key: pa.concat_arrays([part[key] for part in parts]).take(order) for key in parts[0]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A step that drops all rows."""

    columns: tuple[tuple[str, pa.DataType], ...]

    def apply(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return columns without rows."""
        return {_ROWS: columns[_ROWS].slice(0, 0)} | {
            key: pa.array([], dtype) for key, dtype in self.columns
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessPart:
    """Part of a plan without stateful nodes: a function of tables.

    A table has the columns of `inputs` by position, and the result those of `outputs`.
    """

    inputs: tuple[tuple[str, pa.DataType], ...]  # key of an attribute, and its type
    steps: tuple[Projection | Selection | Expansion | Nothing, ...]
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
        columns: dict[str, pa.Array] = {_ROWS: pa.nulls(table.num_rows, pa.bool_())}
        for (key, dtype), column in zip(self.inputs, table.columns, strict=True):
            whole = column.combine_chunks()
            columns[key] = whole if whole.type == dtype else whole.cast(dtype)
        for step in self.steps:
            columns = step.apply(columns)
        arrays = [columns[key] for key, _, _ in self.outputs]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _value(expression: Expression, text: str, rows: Rows) -> pa.Array:
    """Evaluate an expression; raise `EpochFailedError` where a row has no value."""
    try:
        return expression.evaluate(rows)
    except EvaluationError as error:
        raise EpochFailedError(
            f"[{error.condition}] {text} has no value for a row: {error.reason}.",
            remedy="Correct the row or the expression, as for Spark in ANSI mode: try_add, "
            "try_divide, try_cast and the like give null instead.",
            condition=error.condition,
            expression=text,
        ) from error


def _truth(condition: Expression, text: str, rows: Rows) -> pa.Array:
    """Evaluate a condition, as `_value` evaluates an expression."""
    _value(condition, text, rows)
    return truth(condition, rows)


def read_stateless(
    spark: SparkSession, top: Any, leaf: Any, reader: ExpressionReader | None = None
) -> StatelessPart:
    """Read the nodes of an analyzed plan above a node, as a function of that node's rows.

    Parameters
    ----------
    spark
        Session of the plan.
    top
        Topmost logical node of the part, of the JVM.
    leaf
        Node of the JVM below the part, which gives the rows.

    Raises
    ------
    InvalidFlowError
        If the part has a node or an expression that is not computed as Spark computes it.
    """
    reader = reader or ExpressionReader()
    plan, rows = _optimized(spark, top, leaf, reader)
    inputs, computed = _attributes(reader, rows), _attributes(reader, plan)
    steps: list[Projection | Selection | Expansion | Nothing] = []
    while True:
        name = str(plan.nodeName())
        if name == "Project":
            steps.append(Projection(columns=_columns(reader, plan.projectList())))
        elif name == "Filter":
            condition = plan.condition()
            steps.append(Selection(condition=reader.read(condition), text=str(condition.sql())))
        elif name == "Expand":
            steps.append(_expansion(reader, plan))
        elif name == "LocalRelation":
            steps.append(Nothing(columns=tuple((k, t) for k, _, t in _attributes(reader, plan))))
            break
        elif plan.children().size() == 0:
            break
        else:
            raise InvalidFlowError(
                f"Spark's node {name} cannot run between two stateful operators.",
                remedy="Put it before the first stateful operator, or after the last one.",
                node=name,
            )
        plan = plan.children().apply(0)
    part = StatelessPart(
        inputs=tuple((key, dtype) for key, _, dtype in inputs),
        steps=tuple(reversed(steps)),
        outputs=tuple(
            (key, name, dtype)
            for (key, _, dtype), (_, name, _) in zip(
                computed, _attributes(reader, top), strict=True
            )
        ),
    )
    _check(part, top, reader)
    return part


def _check(part: StatelessPart, top: Any, reader: ExpressionReader) -> None:
    """Compute a part on no rows; refuse it if the types are not those of Spark."""
    empty = pa.Table.from_arrays(
        [pa.array([], dtype) for _, dtype in part.inputs], names=[key for key, _ in part.inputs]
    )
    try:
        part(empty)
    except (ValueError, TypeError, pa.ArrowException) as error:
        expressions = top.expressions()
        reader.refuse(expressions.apply(0), f"what is not known ({error})")


def _attributes(reader: ExpressionReader, plan: Any) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return key, name and type of the columns of a node."""
    output = plan.output()
    found = []
    for number in range(output.size()):
        attribute = output.apply(number)
        try:
            dtype = reader.type_of(attribute.dataType())
        except ValueError as error:
            reader.refuse(attribute, str(error))
        found.append((column_key(attribute), str(attribute.name()), dtype))
    return tuple(found)


def _columns(reader: ExpressionReader, expressions: Any) -> tuple[Computed, ...]:
    """Return the columns of a projection."""
    columns = []
    for number in range(expressions.size()):
        named = expressions.apply(number)
        columns.append(
            Computed(key=column_key(named), expression=reader.read(named), text=str(named.sql()))
        )
    return tuple(columns)


def _expansion(reader: ExpressionReader, plan: Any) -> Expansion:
    """Return the step of an ``Expand``."""
    keys = [key for key, _, _ in _attributes(reader, plan)]
    projections = []
    for number in range(plan.projections().size()):
        values = plan.projections().apply(number)
        columns = [
            Computed(
                key=key,
                expression=reader.read(values.apply(place)),
                text=str(values.apply(place).sql()),
            )
            for place, key in enumerate(keys)
        ]
        projections.append(Projection(columns=tuple(columns)))
    return Expansion(projections=tuple(projections))


def _optimized(
    spark: SparkSession, top: Any, leaf: Any, reader: ExpressionReader
) -> tuple[Any, Any]:
    """Return the part as Spark's optimizer leaves it, and the empty DataFrame below it."""
    jvm, session = spark._jvm, spark._jsparkSession
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    rdd = spark.sparkContext._jsc.emptyRDD()
    empty = session.createDataFrame(rdd, leaf.schema()).queryExecution().analyzed()
    nothing = jvm.scala.Option.empty()
    none = jvm.scala.jdk.CollectionConverters.ListHasAsScala([]).asScala().toSeq()
    aliases = []
    for number in range(leaf.output().size()):
        attribute = leaf.output().apply(number)
        column = empty.output().apply(number)
        aliases.append(
            expressions.Alias(column, attribute.name(), attribute.exprId(), none, nothing, none)
        )
    plan = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_scala(jvm, aliases), empty)
    for node in reversed(_nodes(top, leaf)):
        _check_repeatable(jvm, node, reader)
        plan = node.withNewChildren(_scala(jvm, [plan]))
    try:
        return session.sessionState().optimizer().execute(plan), empty
    except Exception as error:
        raise InvalidFlowError(
            f"Spark cannot plan a projection or filter: {error_line(error)}.",
            remedy="Correct it, as for Spark, which would not start the query.",
        ) from error


def _nodes(top: Any, leaf: Any) -> list[Any]:
    """Return the nodes from the top of a part down to its leaf, which is left out."""
    nodes = []
    while not top.fastEquals(leaf):
        if top.children().size() != 1:
            name = str(top.nodeName())
            raise InvalidFlowError(
                f"Spark's node {name} is no projection or filter.",
                remedy="Put it before the first stateful operator, or after the last one.",
                node=name,
            )
        nodes.append(top)
        top = top.children().apply(0)
    return nodes


def _check_repeatable(jvm: Any, node: Any, reader: ExpressionReader) -> None:
    """Refuse expressions whose value depends on more than the row, such as the current time."""
    current = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    for number in range(node.expressions().size()):
        expression = node.expressions().apply(number)
        if not expression.deterministic():
            reader.refuse(expression, "a value that is another one at each call")
        if expression.containsPattern(current):
            reader.refuse(expression, "the current time")


def _scala(jvm: Any, values: list[Any]) -> Any:
    """Return a sequence of Scala's."""
    return jvm.scala.jdk.CollectionConverters.ListHasAsScala(values).asScala().toSeq()

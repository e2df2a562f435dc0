"""Spark's analyzed logical plan: reading its nodes, and building new ones.

A query is its analysed plan, written in DataFrames or in SQL.  Nodes and expressions stay objects
of Spark's JVM, of which little is read; plans that Spark runs are put together from them again
(`Catalyst`).  Columns are told apart by Spark's ids of expressions, not by name.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from functools import cache, cached_property, reduce, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    _parse_datatype_json_string,
)

from godwit.adopt.java_numbers import SINCE_SHORTEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

_T = TypeVar("_T")

WATERMARK_DELAY: Final = "spark.watermarkDelayMs"
"""Key of a column's metadata: event times, or windows of them, with a watermark."""
TIME_WINDOW: Final = "spark.timeWindow"
"""Key of a column's metadata: windows of one length."""
SESSION_WINDOW: Final = "spark.sessionWindow"
"""Key of a column's metadata: session windows."""
_WINDOWS: Final = frozenset({TIME_WINDOW, SESSION_WINDOW})
_THROUGH: Final = frozenset({"Filter", "Project", "SubqueryAlias", "View"})
_EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
}
KEY_TEXT: Final = "godwitKey"
"""Option that marks the text of a key; Spark ignores it."""
_LEAVES: Final = frozenset({"AttributeReference", "Literal"})
_NUMBERED: Final = re.compile(r"#(\d+)L?(?:-T\d+ms)?\Z")
_INLINE_CTE: Final = "org.apache.spark.sql.catalyst.optimizer.InlineCTE"


def _ask_jvm_once(read: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Cache the results of a function of a JVM object, which never change.

    Most calls of the JVM were for the kinds and children of nodes that were read before.
    """
    name = f"_godwit_{read.__name__}"

    @wraps(read)
    def read_once(node: Any) -> _T:
        answers = vars(node)
        if name not in answers:
            answers[name] = read(node)
        result: _T = answers[name]
        return result

    return read_once


@_ask_jvm_once
def kind_of(node: Any) -> str:
    """Return the name of the class of a node or an expression, such as ``Aggregate``."""
    try:
        return str(node.productPrefix())  # of a case class, as nearly all are: one call, not two
    except Py4JError:
        return str(node.getClass().getSimpleName()).removesuffix("$")


def to_list(sequence: Any) -> list[Any]:
    """Return a Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def children_of(node: Any) -> list[Any]:
    """Return the children of a node or an expression."""
    return list(_children(node))


@_ask_jvm_once
def _children(node: Any) -> list[Any]:
    return [] if kind_of(node) in _LEAVES else to_list(node.children())


def output_of(node: Any) -> list[Any]:
    """Return the columns of a node's rows."""
    return list(_output(node))


@_ask_jvm_once
def _output(node: Any) -> list[Any]:
    return to_list(node.output())


def option(value: Any) -> Any:
    """Return the value of a Scala option; ``None`` if it is empty."""
    return value.get() if value.isDefined() else None


def has_method(node: Any, name: str) -> bool:
    """Return whether an object of the JVM has a method in this version of Spark."""
    return name in dir(node)


def in_output(plan: Any, attribute: Any) -> Any:
    """Return the column of a plan's output that has the values of an attribute, if any.

    Spark's optimizer leaves out aliases that change no name, so its plans may have the column below
    an alias instead of the alias.
    """
    output = output_of(plan)
    if any(id_of(column) == id_of(attribute) for column in output):
        return attribute
    alias_sources: dict[int, int] = {}  # alias of a column → that column
    for node in walk(plan):
        if kind_of(node) in {"Aggregate", "Project"}:
            is_project = kind_of(node) == "Project"
            listed = node.projectList() if is_project else node.aggregateExpressions()
            alias_sources |= {
                id_of(named): id_of(named.child())
                for named in to_list(listed)
                if kind_of(named) == "Alias" and kind_of(named.child()) == "AttributeReference"
            }
    for column in output:
        column_id, unvisited = id_of(column), dict(alias_sources)
        while column_id != id_of(attribute) and column_id in unvisited:
            column_id = unvisited.pop(column_id)
        if column_id == id_of(attribute):
            return column
    return None


def conjuncts(condition: Any) -> list[Any]:
    """Return the parts of a condition that are joined by ``AND``."""
    if kind_of(condition) != "And":
        return [condition]
    return [part for side in children_of(condition) for part in conjuncts(side)]


def walk(node: Any) -> Iterator[Any]:
    """Yield a node or an expression, and all below it, from the top."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(children_of(node)))


def expressions_of(node: Any) -> list[Any]:
    """Return the expressions of a node, without those of the nodes below it."""
    return list(_expressions(node))


@_ask_jvm_once
def _expressions(node: Any) -> list[Any]:
    return to_list(node.expressions())


@_ask_jvm_once
def id_of(attribute: Any) -> int:
    """Return Spark's id of a column from the end of its text, by one call instead of two."""
    match = _NUMBERED.search(attribute.toString())
    return int(attribute.exprId().id() if match is None else match[1])


@_ask_jvm_once
def type_of(expression: Any) -> DataType:
    """Return the type of an expression."""
    return _parse_datatype_json_string(expression.dataType().json())


def is_narrow_interval(dtype: Any) -> bool:
    """Return whether a JVM type has intervals other than DAY TO SECOND.

    Arrow has one type for all of them.
    """
    name = kind_of(dtype)
    return name == "DayTimeIntervalType" and str(dtype.simpleString()) != "interval day to second"


def is_keyed_by_text(dtype: DataType) -> bool:
    """Return whether keys of a type are converted to text (`Catalyst.key_text`)."""
    return isinstance(dtype, ArrayType | MapType | DayTimeIntervalType)


@_ask_jvm_once
def metadata_of(attribute: Any) -> dict[str, Any]:
    """Return the metadata of a named expression."""
    metadata: dict[str, Any] = json.loads(attribute.metadata().json())
    return metadata


def references(expression: Any) -> set[int]:
    """Return the numbers of the columns that an expression reads."""
    return {id_of(e) for e in walk(expression) if kind_of(e) == "AttributeReference"}


def watermarks_of(plan: Any) -> list[Any]:
    """Return the watermark nodes of a plan."""
    return [node for node in walk(plan) if kind_of(node) == "EventTimeWatermark"]


def _is_repeatable(expression: Any) -> bool:
    """Return whether an expression, without its children, is deterministic.

    A Python function that is not deterministic is called once for a row, as in Spark.
    """
    return (
        kind_of(expression) == "PythonUDF"
        or bool(expression.deterministic())
        or not all(child.deterministic() for child in children_of(expression))
    )


def place_of(node: Any) -> str:
    """Return the place of a node in the user's code, such as ``line 2: count(*)``, or empty.

    Of a DataFrame's node it is the call of the first expression that has one.
    """
    for part in (node, *(e for top in expressions_of_any(node) for e in walk(top))):
        origin = part.origin()
        context = option(origin.pysparkErrorContext())
        if context is not None:
            return f"{context._2()}, {context._1()}(...)"  # noqa: SLF001  Scala's name
        text, line = option(origin.sqlText()), option(origin.line())
        if text is not None and line is not None:
            start, stop = option(origin.startIndex()), option(origin.stopIndex())
            fragment = "" if start is None or stop is None else str(text)[start : stop + 1]
            return f"line {line} of the SQL text: {' '.join(fragment.split())[:80]}"
    return ""


def expressions_of_any(node: Any) -> list[Any]:
    """Return the expressions of a node; none of an expression."""
    is_expression = ".catalyst.expressions." in str(node.getClass().getName())
    return [] if is_expression else expressions_of(node)


class Package:
    """A JVM package whose classes are looked up once, by their full names.

    Py4J asks for every name on the way to a class, and the JVM looks through all of Spark's jars
    before it takes one for a package: a third of the time of the JVM in a small query.
    """

    def __init__(self, jvm: Any, name: str) -> None:
        self._jvm, self._name = jvm, name

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._jvm, f"{self._name}.{name}")
        setattr(self, name, value)
        return value

    def companion(self, name: str) -> Any:
        """Return the companion object of a class."""
        value = self.__dict__.get(f"{name}$.MODULE$")
        if value is None:
            value = getattr(getattr(self, f"{name}$"), "MODULE$")
            setattr(self, f"{name}$.MODULE$", value)
        return value


@cache
def _cached_package(jvm: Any, name: str) -> Package:
    """Return a package of a JVM; the same one for each query, with the classes it has looked up."""
    return Package(jvm, name)


class Catalyst:
    """Builder of Spark's plans and expressions in one session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._session: Any = spark._jsparkSession  # noqa: SLF001  not in PySpark's API
        jvm: Any = spark._jvm  # noqa: SLF001
        self._java = _cached_package(jvm, "java")
        self._scala = _cached_package(jvm, "scala")
        self._sql = _cached_package(jvm, "org.apache.spark.sql")
        self._catalyst = _cached_package(jvm, "org.apache.spark.sql.catalyst")
        self.expressions = _cached_package(jvm, "org.apache.spark.sql.catalyst.expressions")
        self.logical = _cached_package(jvm, "org.apache.spark.sql.catalyst.plans.logical")
        self.file_systems = _cached_package(jvm, "org.apache.hadoop.fs")
        self._python = _cached_package(jvm, "org.apache.spark.api.python").PythonUtils

    @cached_property
    def _ids(self) -> Any:
        return self.expressions.companion("NamedExpression")

    @cached_property
    def _to_seq(self) -> Any:
        return self._python.toSeq

    @cached_property
    def _empty(self) -> Any:
        return self._to_seq([])

    @cached_property
    def _option(self) -> Any:
        return self._scala.Option.apply

    @cached_property
    def _none(self) -> Any:
        return self._option(None)

    def sequence(self, items: Iterable[Any]) -> Any:
        """Return a Scala sequence."""
        listed = list(items)
        return self._to_seq(listed) if listed else self._empty

    def bytes_of(self, sequence: Any) -> bytes:
        """Return a Scala sequence of bytes."""
        return bytes(sequence.toArray(getattr(self._scala, "reflect.ClassTag").Byte()))

    def alias(self, expression: Any, name: str, expr_id: Any = None) -> Any:
        """Return a named expression; `expr_id`: Spark's id of it, by default a new one."""
        return self.expressions.Alias(
            expression,
            name,
            self._ids.newExprId() if expr_id is None else expr_id,
            self._empty,
            self._none,
            self._empty,
        )

    def project(self, expressions: Iterable[Any], child: Any) -> Any:
        """Return a projection of a plan."""
        return self.logical.Project(self.sequence(expressions), child)

    def with_column(self, expand: Any, attribute: Any) -> Any:
        """Return an ``Expand`` that also passes a column of the node below it."""
        rows = [self.sequence([*to_list(p), attribute]) for p in to_list(expand.projections())]
        output = self.sequence([*output_of(expand), attribute])
        return self.logical.Expand(self.sequence(rows), output, expand.child())

    def when(self, condition: Any, value: Any) -> Any:
        """Return an expression that has a value where a condition is true, else null."""
        null = self.expressions.Literal(None, value.dataType())
        return self.expressions.If(condition, value, null)

    def choice(self, condition: Any, value: Any, other: Any) -> Any:
        """Return an expression that has a value where a condition is true, else another one."""
        return self.expressions.If(condition, value, other)

    def negation(self, condition: Any) -> Any:
        """Return the negation of a condition."""
        return self.expressions.Not(condition)

    def is_not_null(self, expression: Any) -> Any:
        """Return the test that an expression is not null."""
        return self.expressions.IsNotNull(expression)

    def all_of(self, conditions: Sequence[Any]) -> Any:
        """Return the conjunction of conditions, at least one."""
        return reduce(self.expressions.And, conditions)

    def literal(self, value: Any) -> Any:
        """Return a constant."""
        return self.expressions.companion("Literal").apply(value)

    def cast(self, value: Any, dtype: Any) -> Any:
        """Return a value as one of the JVM's types."""
        return self.expressions.companion("Cast").apply(value, dtype, True)

    def text(self, value: Any) -> Any:
        """Return a value as text."""
        return self.cast(value, getattr(self._sql, "types.DataTypes").StringType)

    def null(self, dtype: Any) -> Any:
        """Return a null of one of the JVM's types."""
        return self.expressions.Literal(None, dtype)

    def no_time(self) -> Any:
        """Return a timestamp that is null."""
        return self.null(getattr(self._sql, "types.DataTypes").TimestampType)

    def is_null(self, value: Any) -> Any:
        """Return the test that a value is null."""
        return self.expressions.IsNull(value)

    def null_where_any_is_null(self, tested: Sequence[Any], value: Any) -> Any:
        """Return a value where no other given value is null, else null."""
        is_missing = reduce(self.expressions.Or, map(self.is_null, tested))
        return self.expressions.If(is_missing, self.null(value.dataType()), value)

    def state_watermark(
        self,
        own_attributes: Sequence[Any],
        other_attributes: Sequence[Any],
        condition: Any,
        watermark_ms: int,
    ) -> int | None:
        """Return the time up to which a join drops rows of a side; ``None``: it drops none.

        `own_attributes`, `other_attributes`: columns of that side, and of the other. `condition`:
        an option.
        """
        helper = getattr(self._catalyst, "analysis.StreamingJoinHelper")
        sets = self.expressions.companion("AttributeSet")
        columns = (
            sets.apply(self.sequence(attributes))
            for attributes in (own_attributes, other_attributes)
        )
        watermark = self._option(watermark_ms)
        until = option(helper.getStateValueWatermark(*columns, condition, watermark))
        return None if until is None else int(until)

    @property
    def writes_shortest_floats(self) -> bool:
        """True if Java writes floats with as few digits as possible; see `java_numbers`."""
        version = getattr(self._java, "lang.Runtime").version().feature()
        return int(version) >= SINCE_SHORTEST

    def one_row(self) -> Any:
        """Return the plan of one row without columns."""
        return self.logical.OneRowRelation()

    def normalized(self, value: Any) -> Any:
        """Return a value with NaN and zero normalized in floating-point numbers."""
        rule = self._catalyst.companion("optimizer.NormalizeFloatingNumbers")
        return rule.normalize(value)

    def key_text(self, value: Any) -> Any:
        """Return a value of a nested type as text: equal values have equal texts, null is null."""
        value = self.normalized(value)
        if kind_of(value.dataType()) == "MapType":
            value = self.expressions.MapSort(value)
        options = self._python.toScalaMap({**_EXACT_TIMES, KEY_TEXT: "true"})
        zone = self._option("UTC")
        text = self.expressions.StructsToJson(options, self.struct([("key", value)]), zone)
        return self.when(self.is_not_null(value), text)

    def default_of(self, value: Any) -> Any:
        """Return the default constant of an expression's type, by which Spark joins nulls."""
        return self.expressions.companion("Literal").default(value.dataType())

    def coalesced(self, *values: Any) -> Any:
        """Return the first value that is not null."""
        return self.expressions.Coalesce(self.sequence(values))

    def is_collated(self, value: Any) -> bool:
        """Return whether an expression has text with a collation other than binary."""
        utilities = getattr(self._sql, "util.SchemaUtils")
        return bool(utilities.hasNonUTF8BinaryCollation(value.dataType()))

    def named(self, expression: Any) -> Any:
        """Return a named expression for a projection."""
        is_named = kind_of(expression) in {"Alias", "AttributeReference"}
        return expression if is_named else self.alias(expression, "value")

    def watermark(self, node: Any, child: Any) -> Any:
        """Return a node's watermark over another child, with a new id."""
        number = getattr(self._java, "util.UUID").randomUUID()
        return self.logical.EventTimeWatermark(number, node.eventTime(), node.delay(), child)

    def delay_of(self, watermark: Any) -> timedelta:
        """Return the delay of a watermark's node behind the largest event time."""
        node = self.logical.companion("EventTimeWatermark")
        return timedelta(milliseconds=int(node.getDelayMs(watermark.delay())))

    def field(self, struct: Any, ordinal: int) -> Any:
        """Return a field of a struct."""
        name = struct.dataType().fields()[ordinal].name()
        return self.expressions.GetStructField(struct, ordinal, self._option(name))

    def struct(self, fields: Iterable[tuple[str, Any]]) -> Any:
        """Return a struct of named expressions."""
        parts = [part for name, value in fields for part in (self.literal(name), value)]
        return self.expressions.CreateNamedStruct(self.sequence(parts))

    def floor_to_millis(self, time: Any) -> Any:
        """Return an event time without its microseconds, as Spark's watermark counts."""
        return self.expressions.MillisToTimestamp(self.expressions.UnixMillis(time))

    def micros(self, time: Any) -> Any:
        """Return an event time as a number of microseconds since 1970."""
        return self.expressions.UnixMicros(time)

    def dataframe(self, plan: Any) -> DataFrame:
        """Return the DataFrame of an analysed plan."""
        rows = getattr(self._sql, "classic.Dataset").ofRows(self._session, plan)
        return DataFrame(rows, self.spark)

    def without_ctes(self, plan: Any) -> Any:
        """Return a plan in which ``WITH`` clauses are inlined."""
        if not any(kind_of(node) == "WithCTE" for node in walk(plan)):
            return plan
        # Versions of Spark differ in the number of flags; the first asks to inline all.
        rule = getattr(self._java, "lang.Class").forName(_INLINE_CTE)
        flags = len(rule.getConstructors()[0].getParameterTypes())
        inline = getattr(self._catalyst, "optimizer.InlineCTE")(True, *([False] * (flags - 1)))
        return inline.apply(plan)

    def optimized(self, plan: Any) -> Any:
        """Return a plan, which may be streaming, after Spark's optimizer."""
        return self._session.sessionState().optimizer().execute(plan)

    def without_unread_columns(self, plan: Any) -> Any:
        """Return a plan without the columns that nothing above them reads."""
        return self._catalyst.companion("optimizer.ColumnPruning").apply(plan)

    def with_filters_below_aggregates(self, plan: Any) -> Any:
        """Return a plan with filters on group keys pushed below the aggregate, as by Spark.

        Those on windows stay: sessions are of all their rows, and panes are found below them.
        """
        rule = self._catalyst.companion("optimizer.PushDownPredicates")

        def change(node: Any) -> Any:
            """Move the parts of a filter, through projections, below an aggregate."""
            if kind_of(node) != "Filter":
                return None
            above = []
            while kind_of(node) in _THROUGH:
                above.append(node)
                node = node.child()
            if kind_of(node) != "Aggregate":
                return None
            columns = [a for a in output_of(node.child()) if not _WINDOWS & {*metadata_of(a)}]
            part = self.with_children(node, [self.project(columns, self.one_row())])
            for upper_node in reversed(above):
                if kind_of(upper_node) in {"Filter", "Project"}:
                    part = self.with_children(upper_node, [part])
            for _ in above:  # each time, filters become one, or pass a node
                part = rule.apply(part)
            return put_back(part, self.rewrite(node.child(), change))

        def put_back(part: Any, child: Any) -> Any:
            """Return a part over the child of its aggregate, with the filter that has moved."""
            if kind_of(part) != "Aggregate":
                return self.with_children(part, [put_back(part.child(), child)])
            moved = part.child().child()
            if kind_of(moved) == "Filter":
                child = self.logical.Filter(moved.condition(), child)
            return self.with_children(part, [child])

        return self.rewrite(plan, change)

    def with_joined_conditions(self, plan: Any) -> Any:
        """Return a plan in which conditions above inner joins of streams are part of the joins.

        So Spark's optimizer has them, as in ``FROM a, b WHERE a.k = b.k``.
        """
        rule = self._catalyst.companion("optimizer.PushPredicateThroughJoin")
        narrow = self._catalyst.companion("optimizer.EliminateOuterJoin")

        def change(node: Any) -> Any:
            """Move the condition of a filter right above a join."""
            if kind_of(node) != "Filter" or kind_of(node.child()) != "Join":
                return None
            # Spark's full join of streams joins nulls, and those that it becomes here do not.
            node = narrow.apply(node)
            join = node.child()
            is_inner = str(join.joinType().sql()) == "INNER"  # Spark does not run CROSS
            streams = all(child.isStreaming() for child in children_of(join))
            return None if not streams else rule.apply(node) if is_inner else node

        return self.rewrite(plan, change)

    def check_repeatable(self, node: Any, refuse: Callable[[Any, str], object]) -> None:
        """Refuse nondeterministic expressions of a node.

        `refuse`: called with an expression, and the reason as text.
        """
        for expression in expressions_of(node):
            if not (expression.deterministic() or all(map(_is_repeatable, walk(expression)))):
                refuse(expression, "a nondeterministic value")
            if self.reads_clock(expression):
                refuse(expression, "the current time")

    @cached_property
    def _clock(self) -> Any:
        return getattr(self._catalyst, "trees.TreePattern").CURRENT_LIKE()

    @cached_property
    def _choices(self) -> Any:
        patterns = getattr(self._catalyst, "trees.TreePattern")
        return self.sequence([patterns.CASE_WHEN(), patterns.IF(), patterns.NULL_CHECK()])

    def reads_clock(self, expression: Any) -> bool:
        """Return whether an expression's value differs in each batch."""
        return bool(expression.containsPattern(self._clock))

    def has_choices(self, node: Any) -> bool:
        """Return whether ``CASE``, ``if`` or a null test is in a node or expression, or below."""
        return bool(node.containsAnyPattern(self._choices))

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        """Return a node or an expression with other children."""
        return node.withNewChildren(self.sequence(children))

    def rewrite(self, node: Any, change: Callable[[Any], Any]) -> Any:
        """Return a plan or an expression in which parts are replaced.

        `change`: called with every node from the top; returns the node in its place, or ``None`` to
        leave it and look below.
        """
        changed = change(node)
        if changed is not None:
            return changed
        children = children_of(node)
        rewritten = [self.rewrite(child, change) for child in children]
        if all(new is old for new, old in zip(rewritten, children, strict=True)):
            return node
        return self.with_children(node, rewritten)

    def check_for_streaming(self, plan: Any, mode: str) -> None:
        """Raise Spark's `AnalysisException` if Spark itself would refuse a query.

        `mode`: its output mode.
        """
        modes = getattr(self._sql, "streaming.OutputMode")
        modes_by_name = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}
        checker = getattr(self._catalyst, "analysis.UnsupportedOperationChecker")
        checker.checkForStreaming(plan, modes_by_name[mode]())


def analysed(dataframe: DataFrame) -> Any:
    """Return the analysed logical plan of a DataFrame."""
    return dataframe._jdf.queryExecution().analyzed()  # noqa: SLF001  not in PySpark's API

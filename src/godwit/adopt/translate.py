"""From Spark's plan of a query to a flow: every stateful node becomes an operator.

The part below the first stateful node stays Spark SQL: a streaming DataFrame, with the operator's
keys and arguments as its columns.  The part above the last one is put together again over the rows
of every batch (`godwit.adopt.finish`), or becomes a map in the lanes (`godwit.adopt.lanes`).

Event times follow Spark's plan, too: a watermark sees the rows that reach its node after Spark's
optimizer has moved filters below it.  Where the operator does not get exactly these rows, rows with
nothing but an event time are sent along for the watermark (`godwit.adopt.lanes.ONLY_TIME`).
"""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from godwit.adopt.aggregates import aggregate
from godwit.adopt.duplicates import deduplicate
from godwit.adopt.finish import Finish, with_leaf
from godwit.adopt.joined_rows import EXPIRES, IS_LEFT, LATE_BY, PASSES_OWN_CONDITION
from godwit.adopt.joins import join
from godwit.adopt.lanes import (
    ONLY_TIME,
    TIME,
    Adopted,
    Place,
    PlacedColumn,
    in_lanes,
)
from godwit.adopt.limits import limit
from godwit.adopt.own_sources import check_scans, computed_source
from godwit.adopt.plan import (
    Catalyst,
    analysed,
    children_of,
    conjuncts,
    id_of,
    is_narrow_interval,
    kind_of,
    output_of,
    place_of,
    to_list,
    walk,
    watermarks_of,
)
from godwit.adopt.spark_errors import as_spark_error
from godwit.adopt.translate_functions import apply_in_pandas_with_state, transform_with_state
from godwit.adopt.unions import unite
from godwit.adopt.unread import without_unread
from godwit.api.streams import Stream
from godwit.columns.types import KEY_OF_ALL, is_key_type
from godwit.model.errors import InvalidFlowError, UnsupportedQueryError
from godwit.operators.window_specs import WINDOW_END, WINDOW_START
from godwit.spark.flow import Flow
from godwit.spark.platform.pyspark_versions import arrow_schema_of
from godwit.spark.stages.source_rows import arrow_schema
from godwit.time.event_time import QueryWatermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from godwit.adopt.spark_states import OperatorState
    from godwit.plan.nodes import CustomNode
    from godwit.sources.source import Source


_OWN_NAMES: Final = (
    *(TIME, ONLY_TIME, EXPIRES, IS_LEFT, LATE_BY, PASSES_OWN_CONDITION, WINDOW_START, WINDOW_END),
    *KEY_OF_ALL.names,
)
"""Columns that operators add to those of the plan."""
POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
_NO_DATA: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_MULTIPLE: Final = "spark.sql.streaming.statefulOperator.allowMultiple"
_NO_LIMIT: Final = timedelta(days=200 * 365)
_MAX_NAME: Final = 40  # characters of a name that is made of an expression
_NAMED_IN_FULL: Final = re.compile(r"[\w (),.*]*")
"""Texts that differ only in brackets and spaces if their names are the same."""

_STATEFUL: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
_CAUSES_DROPS: Final = frozenset({"Generate", "GlobalLimit", "Join", "LocalLimit", "Sample"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedQuery:
    """A Spark query as a flow without its sink."""

    flow: Flow
    stream: Stream
    finish: Finish | None  # ``None``: the rows of the stream are the result
    # in the order in which Spark numbers operators: each before those below it, from the left
    states: tuple[OperatorState, ...] = ()
    result_columns: tuple[str, ...]  # names of the columns of the result

    def result_stream(self, needed_by: str) -> Stream:
        """Return the stream of the result, for sinks that the lanes write to.

        `needed_by`: why it is to be a stream, as text. Raises `UnsupportedQueryError` if Spark has
        to compute a part of it over the rows of a batch.
        """
        return self.stream if self.finish is None else self.finish.in_lanes(self.stream, needed_by)


def translate(
    dataframe: DataFrame,
    *,
    mode: str,
    name: str,
    whole_windows: bool = False,
    own_sources: bool = False,
) -> AdoptedQuery:
    """Return the flow of a streaming DataFrame.

    `mode`: Spark's output mode. `name`: of the flow. `whole_windows`: windows that come out as they
    grow have a state each, as in Spark, so that they can begin with Spark's. `own_sources`: scans
    become sources of Godwit's own. Raises `UnsupportedQueryError` if a part of it cannot be
    adopted.
    """
    return Translation(
        dataframe, mode=mode, name=name, whole_windows=whole_windows, own_sources=own_sources
    ).run()


def is_stateful(node: Any, mode: str) -> bool:
    """Return whether a node of a plan has state in a streaming query of an output mode."""
    if kind_of(node) == "GlobalLimit" and mode != "complete":  # of the rows of all batches together
        return bool(node.isStreaming())
    if kind_of(node) == "Join":
        return all(child.isStreaming() for child in children_of(node))
    return kind_of(node) in _STATEFUL and bool(node.isStreaming())


class Translation:
    """One run of the translator, from the sources up."""

    def __init__(
        self,
        dataframe: DataFrame,
        *,
        mode: str,
        name: str,
        whole_windows: bool = False,
        own_sources: bool = False,
    ) -> None:
        self.catalyst = Catalyst(dataframe.sparkSession)
        self.mode, self.whole_windows = mode, whole_windows
        self.own_sources = own_sources
        self._call_of: dict[str, str] = {}  # own id of a watermark's node → Spark's
        self._calls: dict[str, str] = {}  # source → Spark's id of its watermark
        plan = self.catalyst.without_ctes(analysed(dataframe))
        self._before_rules = self._with_own_marks(plan)  # as Spark checks it
        self.plan = self.catalyst.with_joined_conditions(self._before_rules)
        self.flow = Flow(name)
        self.flow._query_watermark = QueryWatermark(  # noqa: SLF001  users do not choose it
            policy=self._watermark_policy(), calls=self._calls
        )
        no_data = str(self.catalyst.spark.conf.get(_NO_DATA, "true")).lower()
        self.flow._waits_for_input = no_data != "true"  # noqa: SLF001
        self._used_names = dict.fromkeys(_OWN_NAMES, 1)  # the user's columns get other names
        self.states: list[OperatorState] = []
        self._order: dict[str, int] = {}  # operator → Spark's number of it
        self._name_numbers = itertools.count()

    def run(self) -> AdoptedQuery:
        """Translate the plan."""
        self._check_for_streaming()
        if self.catalyst.spark.conf.get(_MULTIPLE, "true") != "true" and watermarks_of(self.plan):
            raise self.refused(
                self.plan,
                f"{_MULTIPLE} is off, so that rows are late by the watermark of their own batch",
                f"spark.conf.unset({_MULTIPLE!r}).",
            )
        self.plan = without_unread(self.catalyst, self.plan, lambda n: is_stateful(n, self.mode))
        if self.own_sources:
            check_scans(self.plan)
        rows = self.rows_of(self.plan)
        output = output_of(self.plan)
        names = tuple(str(attribute.name()) for attribute in output)
        if rows is None and len({*names}) < len(names):  # which streams have not
            own = [self.unique(name) for name in names]
            stream = self.sources(list(zip(own, output, strict=True)), self.plan, timed=False)
            rows = self.result_of(stream, output, own)
        if rows is None:
            plan, name = self.without_watermarks(self.plan), self.unique("input")
            stream, finish = self._add_source(self.plan, name, self._rows_of_plans([plan])), None
        else:
            stream = rows.stream
            finish = None if rows.plan is None else Finish(self.catalyst, rows)
        return AdoptedQuery(
            flow=self.flow,
            stream=stream,
            finish=finish,
            result_columns=names,
            states=tuple(sorted(self.states, key=lambda state: self._order[state.operator])),
        )

    @cached_property
    def optimized_plan(self) -> Any:
        """The plan of the whole query after Spark's optimizer."""
        return self.catalyst.optimized(self.plan)

    def _watermark_policy(self) -> Literal["min", "max"]:
        """Return the policy that selects the query's watermark among those of its streams."""
        policy = str(self.catalyst.spark.conf.get(POLICY, "min")).lower()
        return "max" if policy == "max" else "min"

    def _with_own_marks(self, plan: Any) -> Any:
        """Return a plan with unique watermark ids, which the sides of a self-join share.

        Spark has one watermark for all nodes of one id, which `QueryWatermark.calls` says.
        """

        def change(node: Any) -> Any:
            """Give a watermark another id."""
            if kind_of(node) != "EventTimeWatermark":
                return None
            own = self.catalyst.watermark(node, self.catalyst.rewrite(node.child(), change))
            self._call_of[str(own.nodeId())] = str(node.nodeId())
            return own

        return self.catalyst.rewrite(plan, change)

    def _check_for_streaming(self) -> None:
        """Raise for queries that Spark itself refuses, with Spark's message."""
        try:
            self.catalyst.check_for_streaming(self._before_rules, self.mode)
        except AnalysisException as error:
            text = str(error).splitlines()[0]
            if "istinct aggregations are not supported" in text:
                return  # here they are
            reason = re.sub(r"^\[[^]]*\] | SQLSTATE: \w+$|[.;]+$", "", text)
            refusal = UnsupportedQueryError(
                f"Spark refuses the query in output mode {self.mode!r}: {reason}.",
                remedy="Change the query or outputMode(...) as for Spark's own writeStream.",
                node=kind_of(self.plan),
                place=place_of(self.plan),
            )
            condition, state = error.getCondition(), error.getSqlState()
            raise as_spark_error(refusal, AnalysisException, condition, state) from None

    def refused(self, node: Any, why: str, remedy: str) -> UnsupportedQueryError:
        """Return the error that a node of the plan cannot be adopted."""
        place = place_of(node)
        return UnsupportedQueryError(
            f"{kind_of(node)}{f' ({place})' if place else ''} cannot be adopted: {why}.",
            remedy=remedy,
            node=kind_of(node),
            place=place,
        )

    def check_collation(self, node: Any, key: Any) -> None:
        """Raise if a key of a node is text with a collation other than binary."""
        if self.catalyst.is_collated(key):
            raise self.refused(
                node,
                f"its key {key.sql()} has a collation",
                "Use lower(...) of it, or another text with binary equality.",
            )

    def check_key(self, expression: Any, name: str, dtype: DataType) -> None:
        """Raise if rows cannot be grouped by values of a type."""
        try:
            column = arrow_schema_of(StructType([StructField("key", dtype)]), zone="UTC").field(0)
            fits = is_key_type(column.type)
        except PySparkTypeError:  # of types that Arrow does not have
            fits = False
        if not fits:
            raise self.refused(
                expression,
                f"rows are not grouped by {name!r}, whose type is {dtype.simpleString()}",
                "Convert it to a single value first: a field, an element, or text such as "
                "to_json(...).",
            )

    def unique(self, name: str) -> str:
        """Return a unique name among the flow's columns and operators, numbered if needed."""
        plain = re.sub(r"\W+", "_", name).strip("_").lower() or "column"
        if len(plain) > _MAX_NAME or not _NAMED_IN_FULL.fullmatch(name):
            # Texts that differ in signs, quoted capitals or later on have names that differ too.
            plain = f"{plain[: _MAX_NAME - 9].strip('_')}_{zlib.crc32(name.encode()):08x}"
        plain = plain if plain[0].isalpha() else f"c_{plain}"
        result = plain
        while result in self._used_names:
            self._used_names[plain] = self._used_names.get(plain, 1) + 1
            result = f"{plain}_{self._used_names[plain]}"
        self._used_names[result] = 1
        return result

    # -- nodes ---------------------------------------------------------------------------------

    def rows_of(self, node: Any) -> Adopted | None:
        """Return the rows of a node as a stream; ``None`` if nothing below it is stateful."""
        kind = kind_of(node)
        timed_by = None
        if kind == "UpdateEventTimeWatermarkColumn":  # of the output of transformWithState
            timed_by, node = node, node.child()
            kind = kind_of(node)
        number = next(self._name_numbers)
        below = [(self.rows_of(child), child) for child in children_of(node)]
        changed = [number for number, (rows, _) in enumerate(below) if rows is not None]
        if is_stateful(node, self.mode):
            handler = _HANDLERS.get(kind)
            if handler is None:
                raise self.refused(node, "it is not supported yet", "Remove it from this query.")
            rows_below = [rows for rows, _ in below]
            if timed_by is not None:
                adopted = transform_with_state(self, node, rows_below, timed_by)
            else:
                adopted = handler(self, node, rows_below)
            self._order[self.states[-1].operator] = number
            return adopted
        if not changed:
            return None
        if kind == "Union":
            return unite(self, node, [rows for rows, _ in below])
        if len(changed) > 1:
            raise self.refused(
                node,
                "it combines the rows of several stateful operators",
                "Write each of them in a separate query.",
            )
        if kind == "LocalLimit" and self.mode != "complete":
            return below[0][0]  # its rows are counted above it
        (number,) = changed
        rows = below[number][0]
        assert rows is not None
        children = [child for _, child in below]
        if rows.plan is None:
            return replace(rows, plan=node, path=(number,))
        children[number] = rows.plan
        plan = self.catalyst.with_children(node, children)
        return replace(rows, plan=plan, path=(number, *rows.path))

    def without_watermarks(self, plan: Any) -> Any:
        """Return a plan without its watermark nodes, which do not change rows."""

        def change(node: Any) -> Any:
            """Replace a watermark by its child."""
            if kind_of(node) != "EventTimeWatermark":
                return None
            return self.catalyst.rewrite(node.child(), change)

        return self.catalyst.rewrite(plan, change)

    # -- sources -------------------------------------------------------------------------------

    def sources(self, columns: Sequence[tuple[str, Any]], plan: Any, *, timed: bool) -> Stream:
        """Return the rows of a stateless plan as a stream with these columns.

        `timed`: with the event time of the plan's watermark, in `TIME`.
        """
        parts = [
            self._source_stream(columns, part, timed=timed)
            for part in self._branches_by_watermark(plan, timed)
        ]
        first, *others = parts
        return first.union(*others) if others else first

    def inputs(
        self,
        columns: Sequence[tuple[str, Any]],
        plan: Any,
        below: Adopted | None,
        *,
        timed: bool,
    ) -> tuple[Stream, pa.Schema]:
        """Return the rows that a stateful node reads as a stream with these columns.

        `plan`: the node below it. `below`: the rows of that, if they come from another stateful
        node. `timed`: with the columns of `sources`, whose event times move no watermark here.
        """
        if below is None:
            stream = self.sources(columns, plan, timed=timed)
            own = list(self.flow.own_sources.values())
            frames = list(self.flow.sources.values())
            return stream, own[-1].schema if own else arrow_schema(frames[-1])
        every = list(columns)
        if timed:
            every += self._null_time_columns
        if not every:
            every = [("row", self.catalyst.literal(True))]
        return in_lanes(self.catalyst, below, every, plan)

    @property
    def _null_time_columns(self) -> list[tuple[str, Any]]:
        """Columns of a timed stream, for rows that do not advance the watermark."""
        return [(TIME, self.catalyst.no_time()), (ONLY_TIME, self.catalyst.literal(False))]

    def rows_of_source(
        self, columns: Sequence[tuple[str, Any]], plan: Any
    ) -> tuple[Stream, str | None]:
        """Return the rows of a stateless plan as a stream, with the watermark that it has.

        The second value is the column that is true in rows that move the watermark and do no more;
        ``None`` without a watermark.
        """
        timed = bool(watermarks_of(plan))
        return self.sources(columns, plan, timed=timed), ONLY_TIME if timed else None

    @staticmethod
    def conjuncts(condition: Any) -> list[Any]:
        """Return the parts of a condition that are joined by ``AND``."""
        return conjuncts(condition)

    def rows_at(
        self, node: Any, operator: CustomNode, columns: Sequence[tuple[Any, Place]]
    ) -> Adopted:
        """Return the output rows of an operator that implements a node.

        `columns`: those of the node's output, and their places in the operator's.
        """
        return Adopted(
            stream=Stream(self.flow, operator),
            columns=tuple(PlacedColumn(attribute=a, place=place) for a, place in columns),
            plan=self.catalyst.project([attribute for attribute, _ in columns], node),
            path=(0,),
        )

    def result_of(self, stream: Stream, attributes: Sequence[Any], names: Sequence[str]) -> Adopted:
        """Return the output rows of an operator with the columns of a node's output.

        `names`: of the columns of the stream. Where they are not Spark's, Spark renames them.
        """
        columns = tuple(
            PlacedColumn(attribute=attribute, place=name)
            for attribute, name in zip(attributes, names, strict=True)
        )
        if all(
            str(attribute.name()) == name and not is_narrow_interval(attribute.dataType())
            for attribute, name in zip(attributes, names, strict=True)
        ):
            return Adopted(stream=stream, columns=columns)
        plan = self.catalyst.project(attributes, self.catalyst.one_row())
        return Adopted(stream=stream, columns=columns, plan=plan, path=(0,))

    def _branches_by_watermark(self, plan: Any, timed: bool) -> Iterator[Any]:
        """Yield the branches of a union with one watermark each.

        If scans become own sources, they are parts with one scan each.
        """
        place = next(self._unions_to_divide(plan, ()), None) if timed or self.own_sources else None
        if place is None:
            yield plan
            return
        path, union = place
        output = output_of(union)
        for child in children_of(union):
            aliases = [
                self.catalyst.alias(own, attribute.name(), attribute.exprId())
                for own, attribute in zip(output_of(child), output, strict=True)
            ]
            part = self.catalyst.project(aliases, child)
            yield from self._branches_by_watermark(
                with_leaf(self.catalyst, plan, path, part), timed
            )

    def _unions_to_divide(
        self, plan: Any, path: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the unions that are divided into branches, from the top, with their paths."""
        if kind_of(plan) == "Union" and (self.own_sources or watermarks_of(plan)):
            yield path, plan
        for number, child in enumerate(children_of(plan)):
            yield from self._unions_to_divide(child, (*path, number))

    def _source_stream(
        self, columns: Sequence[tuple[str, Any]], plan: Any, *, timed: bool
    ) -> Stream:
        """Return the rows of a plan with at most one watermark as a source's stream."""
        catalyst = self.catalyst
        named = [catalyst.alias(value, name) for name, value in columns]
        name = self.unique("input")
        marks = watermarks_of(plan)
        if not timed or not marks:
            if timed:
                named += [catalyst.alias(value, name) for name, value in self._null_time_columns]
            constant = [catalyst.alias(catalyst.literal(True), "row")] if not named else []
            rows = catalyst.project([*named, *constant], self.without_watermarks(plan))
            return self._add_source(plan, name, self._rows_of_plans([rows]))
        if len(marks) > 1:
            raise self.refused(
                marks[0],
                "there are several watermarks before one operator, which Spark also refuses",
                "Keep only one of them.",
            )
        (mark,) = marks
        event_time = mark.eventTime()
        carried = self._carry_column(plan, event_time)
        whole = catalyst.project([*named, catalyst.alias(event_time, TIME)], carried)
        seen = self._seen_apart(whole, mark)
        millis = catalyst.floor_to_millis(event_time)
        own_time = millis if seen is None else catalyst.no_time()
        marked = [(TIME, own_time), (ONLY_TIME, catalyst.literal(False))]
        plans = [_with_columns(catalyst, self.without_watermarks(carried), [*columns, *marked])]
        if seen is not None:
            nothing = [(name, catalyst.null(value.dataType())) for name, value in columns]
            marked = [(TIME, millis), (ONLY_TIME, catalyst.literal(True))]
            plans.append(
                _with_columns(catalyst, self.without_watermarks(seen), [*nothing, *marked])
            )
        frame = self._rows_of_plans(plans)
        time = {"event_time": TIME, "slack": catalyst.delay_of(mark), "max_ahead": _NO_LIMIT}
        self._calls[name] = self._call_of[str(mark.nodeId())]
        return self._add_source(plan, name, frame, **time)

    def _rows_of_plans(self, plans: Sequence[Any]) -> DataFrame | Source:
        """Return the concatenated rows of plans with the same columns as a source."""
        if self.own_sources:
            return computed_source(self.catalyst, plans)
        frames = [self.catalyst.dataframe(plan) for plan in plans]
        return reduce(DataFrame.unionAll, frames)

    def _add_source(self, plan: Any, name: str, frame: DataFrame | Source, **time: Any) -> Stream:
        """Return the stream of a source; errors name a node of its plan."""
        for field in frame.schema if isinstance(frame, DataFrame) else ():
            if "variant" in field.dataType.simpleString():
                raise self.refused(
                    plan,
                    f"it has {field.name!r}, whose type is variant, for which PySpark has no "
                    "null in local rows",
                    "Convert it first, as by variant_get(...) or to_json(...).",
                )
            try:
                arrow_schema_of(StructType([field]), zone="UTC")
            except PySparkTypeError:
                raise self.refused(
                    plan,
                    f"it reads {field.name!r}, whose type is {field.dataType.simpleString()}, "
                    "which Arrow does not have",
                    "Convert it first, such as an interval of months to a number.",
                ) from None
        try:
            return self.flow.source(name, frame, **time)
        except InvalidFlowError as error:
            raise UnsupportedQueryError(
                error.message, remedy=error.remedy, node=kind_of(plan), place=place_of(plan)
            ) from None

    def _carry_column(self, plan: Any, attribute: Any) -> Any:
        """Return a plan whose projections keep a column, so that its output has it."""
        carried = plan
        for _ in range(64):  # as many projections as may lie over one another
            if carried.outputSet().contains(attribute):
                return carried
            carried = self._carry_once(carried, attribute)
        raise self.refused(
            plan, "the event time of its watermark is dropped before it", "Keep the column."
        )

    def _carry_once(self, plan: Any, attribute: Any) -> Any:
        """Add a column to the lowest projections that drop it."""

        def carry(node: Any) -> Any:
            """Add the column to a projection, or projections, right above it."""
            if kind_of(node) not in {"Expand", "Project"}:
                return None
            if node.outputSet().contains(attribute):
                return None
            if not node.child().outputSet().contains(attribute):
                return None
            if kind_of(node) == "Expand":
                return self.catalyst.with_column(node, attribute)
            return self.catalyst.project([*to_list(node.projectList()), attribute], node.child())

        return self.catalyst.rewrite(plan, carry)

    def _seen_apart(self, whole: Any, mark: Any) -> Any:
        """Return the plan of the rows for Spark's watermark; ``None`` if they are the same rows.

        `whole`: the plan of the rows, with the watermark's node, `mark`.
        """
        own = _path_to(self.catalyst.optimized(whole), mark)
        native = _path_to(self.optimized_plan, mark)
        if own is None or native is None:
            return None
        time = id_of(mark.eventTime())
        drops = any(_drops_rows(node, below, time) for node, below in own[:-1])
        same = _filter_conditions(own[-1][0]) == _filter_conditions(native[-1][0])
        return None if same and not drops else native[-1][0].child()


def _with_columns(catalyst: Catalyst, plan: Any, columns: Sequence[tuple[str, Any]]) -> Any:
    """Return a projection of a plan; `columns`: name → expression."""
    return catalyst.project((catalyst.alias(value, name) for name, value in columns), plan)


def _path_to(plan: Any, mark: Any) -> list[tuple[Any, Any]] | None:
    """Return the nodes from the top of a plan to a watermark, each with the one below it."""
    if kind_of(plan) == "EventTimeWatermark" and plan.nodeId().equals(mark.nodeId()):
        return [(plan, None)]
    for child in children_of(plan):
        path = _path_to(child, mark)
        if path is not None:
            return [(plan, child), *path]
    return None


def _drops_rows(node: Any, below: Any, time: int) -> bool:
    """Return whether a node above a watermark may drop rows with an event time.

    `below`: the node below it. `time`: number of the column of event time.
    """
    if kind_of(node) != "Filter":
        return kind_of(node) in _CAUSES_DROPS
    if kind_of(below) == "Expand":
        return False  # every row is in one window at least
    return any(
        kind_of(part) != "IsNotNull"
        or kind_of(part.child()) != "AttributeReference"
        or id_of(part.child()) != time
        for part in conjuncts(node.condition())
    )


def _filter_conditions(plan: Any) -> set[str]:
    """Return the conditions of the filters of a plan, as text."""
    return {
        str(part.sql())
        for node in walk(plan)
        if kind_of(node) == "Filter"
        for part in conjuncts(node.condition())
    }


_HANDLERS: Final[dict[str, Callable[[Translation, Any, list[Adopted | None]], Adopted]]] = {
    "Aggregate": aggregate,
    "Deduplicate": deduplicate,
    "DeduplicateWithinWatermark": deduplicate,
    "Distinct": aggregate,
    "GlobalLimit": limit,
    "Join": join,
    "FlatMapGroupsInPandasWithState": apply_in_pandas_with_state,
    "TransformWithStateInPySpark": transform_with_state,
}

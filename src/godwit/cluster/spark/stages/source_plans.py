"""What a source, and the maps on it, may ask of Spark: the rows of one epoch, and no state.

A flow's sources run as one streaming query whose epochs Godwit commits.  An operation that Spark
would give state of its own (or would refuse at the start, long after the line that wrote it) is
found in the analysed logical plan, where Spark says of every node whether its rows stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

__all__ = ["check_plan", "leaves_column", "streams_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Operations that a flow does not take, and what to do instead.

    Attributes
    ----------
    nodes
        Classes of Spark's logical plan.
    does
        What the DataFrame does that it should not.
    but
        Why not.
    remedy
        What to do.
    """

    nodes: frozenset[str]
    does: str
    but: str
    remedy: str


_OWN_STATE = "Spark would keep that state by itself, over all epochs, where it cannot move"
_ONE_EPOCH = "it would see the rows of one epoch only"
_PROCESS = "Use key_by(...).process(...), whose function gets the rows of a key and its state."

_REFUSALS = (
    _Refusal(
        nodes=frozenset({"Aggregate", "AggregateInPandas"}),
        does="aggregates (groupBy, agg, cube, pivot)",
        but=_OWN_STATE,
        remedy="Use key_by(...).compute(...), which aggregates all rows of a key so far.",
    ),
    _Refusal(
        nodes=frozenset({"Deduplicate", "DeduplicateWithinWatermark", "Distinct"}),
        does="removes duplicates (distinct, dropDuplicates, SELECT DISTINCT)",
        but=_OWN_STATE,
        remedy='Use stream.drop_duplicates("id", within="1 hour"), with the columns that tell '
        "rows apart.",
    ),
    _Refusal(
        nodes=frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"}),
        does="counts rows (limit, offset)",
        but="Spark would count them over all epochs: later rows would be left out for ever",
        remedy="Take it out; what an epoch reads is bounded by options of the source, such as "
        "maxFilesPerTrigger or maxOffsetsPerTrigger.",
    ),
    _Refusal(
        nodes=frozenset({"Sort"}),
        does="sorts (orderBy, sortWithinPartitions)",
        but="a stream has no end to sort up to",
        remedy="Take it out; where order matters within a key, sort its rows in process(...).",
    ),
    _Refusal(
        nodes=frozenset({"Window"}),
        does="uses window functions (over(...))",
        but=_ONE_EPOCH,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset(
            {
                "FlatMapGroupsWithState",
                "FlatMapGroupsInPandasWithState",
                "TransformWithState",
                "TransformWithStateInPySpark",
            }
        ),
        does="keeps state per group (applyInPandasWithState, transformWithState)",
        but=_OWN_STATE,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset(
            {
                "CoGroup",
                "FlatMapCoGroupsInArrow",
                "FlatMapCoGroupsInPandas",
                "FlatMapGroupsInArrow",
                "FlatMapGroupsInPandas",
                "MapGroups",
            }
        ),
        does="works on groups of rows (applyInPandas, applyInArrow)",
        but=_ONE_EPOCH,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset({"Except", "Intersect"}),
        does="compares its rows with others (intersect, exceptAll, subtract)",
        but="Spark does that to tables only",
        remedy='Join with the table: how="left_semi" keeps the rows that it has, how="left_anti" '
        "the others.",
    ),
    _Refusal(
        nodes=frozenset({"EventTimeWatermark"}),
        does="sets a watermark (withWatermark)",
        but="nothing in a flow would follow it, so no row would ever be late",
        remedy="Take withWatermark out.",
    ),
)

_JOINS = frozenset({"AsOfJoin", "Join"})
_TWO_STREAMS = _Refusal(
    nodes=_JOINS,
    does="joins two streams",
    but=_OWN_STATE,
    remedy="Make each a source of its own, and join the streams: "
    "left.key_by(...).join(right.key_by(...), between=...) by event time, or join_newest(...). "
    "Joins with tables that do not stream are fine.",
)


def check_plan(dataframe: DataFrame, where: str, **context: str) -> None:
    """Refuse a streaming DataFrame that needs more than the rows of one epoch.

    Parameters
    ----------
    dataframe
        The DataFrame of a source, or what a map made of it.
    where
        Whose DataFrame it is, such as ``"Source 'flights'"``.
    **context
        Facts for the error.

    Raises
    ------
    InvalidFlowError
        Says what it does that a flow cannot take, why, and what to do instead.
    """
    plan = _analysed(dataframe)
    for node in _nodes(plan):
        if not node.isStreaming():
            continue
        kind = node.getClass().getSimpleName()
        if kind in _JOINS:
            refusal = _TWO_STREAMS if all(c.isStreaming() for c in _children(node)) else None
        else:
            refusal = next((refusal for refusal in _REFUSALS if kind in refusal.nodes), None)
        if refusal is not None:
            raise InvalidFlowError(
                f"{where} {refusal.does}, but {refusal.but}.", remedy=refusal.remedy, **context
            )
    try:
        _check_for_streaming(dataframe, plan)
    except AnalysisException as error:
        told = re.sub(r"^\[[^]]*\] | SQLSTATE: \w+$|[.;]+$", "", str(error).splitlines()[0])
        raise InvalidFlowError(
            f"{where} does what Spark cannot do with a stream: {told}.",
            remedy="Take it out, or do it to a table before it is joined.",
            **context,
        ) from None


def leaves_column(before: DataFrame, after: DataFrame, column: str) -> bool:
    """Return whether a map hands a column on as it got it, in all rows.

    Spark gives every column that an expression makes an identity of its own, and keeps that of a
    column that is only filtered, selected or joined to others. A union has the identities of its
    first part whatever the others hold, so rows that a map unites with others do not count as left.

    Parameters
    ----------
    before, after
        What the map got, and what it returned.
    column
        The column; of two that differ in case only, the one of exactly that name.
    """
    plans = [_analysed(frame) for frame in (before, after)]
    old, new = ([a.exprId() for a in _items(plan.output()) if a.name() == column] for plan in plans)
    unions = [
        sum(node.getClass().getSimpleName() == "Union" for node in _nodes(plan)) for plan in plans
    ]
    return len(old) == len(new) == 1 and old[0].equals(new[0]) and unions[0] == unions[1]


def streams_in(dataframe: DataFrame) -> list[Any]:
    """Give the nodes of a plan that read streams, in the order in which Spark comes upon them."""
    found = []
    pending = [_analysed(dataframe)]
    while pending:
        node = pending.pop()
        children = _children(node)
        if not children and node.isStreaming():
            found.append(node)
        pending.extend(reversed(children))
    return found


def _analysed(dataframe: Any) -> Any:
    return dataframe._jdf.queryExecution().analyzed()  # noqa: SLF001  what is not in PySpark


def _check_for_streaming(dataframe: Any, plan: Any) -> None:
    """Let Spark check what it would check at the start of the query."""
    jvm = dataframe.sparkSession._jvm  # noqa: SLF001  what is not in PySpark
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(plan, append)


def _nodes(plan: Any) -> Iterator[Any]:
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_children(node))


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]

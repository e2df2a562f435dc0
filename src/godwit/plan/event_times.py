"""Event time: of sources, of the rows that operators read, and of what operators emit.

The problem: an operator emits when the watermark has passed, so what it emits has event times that
lie before.  Read by another operator over event time, such rows are late unless that one waits for
them.  By how much is known of ``window_end`` (not at all), of columns of windows (their length) and
of what passes a join or ``drop_duplicates``; of what a function emits, its user says it.

Source: the time attribute of windows in Flink SQL (`window_time`) and Spark (`window_time`); the
`eventTimeColumnName` of Spark's `transformWithState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.operators.window_specs import WINDOW_END, Hopping
from godwit.plan.feedback import FeedbackSource
from godwit.plan.nodes import (
    ComputeNode,
    CustomNode,
    DropDuplicatesNode,
    JoinNode,
    LatestNode,
    PassNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    sources_of,
    streams_read_by,
)
from godwit.time.durations import microseconds
from godwit.time.event_time import RowTime, SourceTime

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from godwit.plan.nodes import Branch, OperatorNode, StreamNode
    from godwit.time.durations import Duration


def source_time(
    source: str,
    *,
    event_time: str | None,
    slack: Duration,
    max_ahead: Duration,
    idle: Duration | None,
) -> SourceTime | None:
    """Return the event-time options of a source, checked; ``None`` if it has no event time."""
    if event_time is None:
        for option, value in (("slack", slack), ("idle", idle)):
            if value not in (None, "0 seconds"):
                raise InvalidFlowError(
                    f"Source {source!r} has {option}={value!r} and no event time.",
                    remedy=f'Name its column, as in event_time="ts", or leave {option}= out.',
                    source=source,
                )
        return None
    if not isinstance(event_time, str):
        raise InvalidFlowError(
            f"Source {source!r} was given a value of type {type_name(event_time)} as event time.",
            remedy='Name a column by text, as in event_time="dep_ts".',
            source=source,
        )
    where = f"of source {source!r}"
    return SourceTime(
        column=event_time,
        slack_us=microseconds(slack, f"The slack {where}", least=0),
        max_ahead_us=microseconds(max_ahead, f"The bound max_ahead {where}", least=0),
        idle_us=None if idle is None else microseconds(idle, f"The time-out {where}", least=1),
    )


def check_event_time(stream: StreamNode, operator: str, does: str) -> None:
    """Raise if a source of a stream has no event time.

    `does`: why the operator needs it, as text.
    """
    for source in sources_of(stream):
        if source.time is None:
            remedy = f'flow.source({source.name!r}, df, event_time="ts", slack="10 minutes")'
            if isinstance(source.own, FeedbackSource):
                remedy = f'flow.feedback({source.name!r}, schema, event_time="ts")'
            raise InvalidFlowError(
                f"Operator {operator!r} {does}, but source {source.name!r} has no event time.",
                remedy=f"Say which column holds it, as in {remedy}.",
                operator=operator,
                source=source.name,
            )


def event_time_of(
    stream: StreamNode,
    schema: pa.Schema,
    origin: str,
    *,
    operator: str,
    does: str,
    time: str | None = None,
) -> RowTime:
    """Return the event-time column of a stream, for an operator that reads the stream.

    `schema`, `origin`: the stream's columns, and its description for messages. `does`: why the
    operator needs event time, in words. `time`: column that the user named. Raises
    `InvalidFlowError` if a source has no event time, streams that meet have it in different
    columns, or the column is missing or no timestamp.
    """
    where = f"Operator {operator!r}"
    check_event_time(stream, operator, does)
    feeds = [branch.feed for branch in branches_of(stream)]
    after_windows = _has_only_windows(stream)
    column = time
    if column is None:
        candidates = time_columns(stream)
        if len(candidates) > 1:
            raise InvalidFlowError(
                f"{where} {does}, but the event time of {origin} may be in several columns: "
                f"{listing(candidates)}.",
                remedy="Name the column, as in window(..., time=...), or give all of them one "
                "name.",
                operator=operator,
            )
        column = candidates[0]
    if column not in schema.names:
        sources = listing([source.name for source in sources_of(stream)])
        declared = f"It is the event_time= of {sources}. "
        raise InvalidFlowError(
            f"{where} {does} of column {column!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(column, schema.names)}{declared if time is None else ''}"
            + (
                "Correct the name, or leave the column in the maps"
                if any(isinstance(feed, SourceNode) for feed in feeds)
                else "Name a column, as in window(..., time=...)"
            )
            + f"; its columns are {listing(schema.names)}.",
            operator=operator,
            column=column,
        )
    check_timestamp(schema.field(column), f"{where} {does} of column", origin, operator)
    return RowTime(
        column=column,
        is_end=after_windows and column == WINDOW_END,
        is_reported=not _follows_watermark(stream, column),
    )


def _has_only_windows(stream: StreamNode) -> bool:
    """Return whether all rows of a stream come from windows, perhaps through joins."""
    feeds = [branch.feed for branch in branches_of(stream)]
    return all(
        (isinstance(feed, WindowedNode) and feed.function is None)
        or (isinstance(feed, DropDuplicatesNode | JoinNode) and _has_only_windows(feed.upstream))
        for feed in feeds
    )


def check_timestamp(field: pa.Field, subject: str, origin: str, operator: str) -> None:
    """Raise unless an event-time column is a timestamp in microseconds; the rest is for errors."""
    if not (pa.types.is_timestamp(field.type) and field.type.unit == "us"):
        raise InvalidFlowError(
            f"{subject} {field.name!r} of {origin}, whose type is {field.type}.",
            remedy=f"Cast {field.name!r} to a timestamp (of microseconds, as in Spark) in a map.",
            operator=operator,
            column=field.name,
        )


def check_output_time(
    operator: str, output: pa.Schema, event_time: object, slack: Duration | None
) -> tuple[str | None, int | None]:
    """Check the event-time column that a function emits, and its slack.

    Returns the column's name, and the slack in microseconds.
    """
    if event_time is None:
        if slack is not None:
            raise InvalidFlowError(
                f"Operator {operator!r} has slack=, but no event_time=.",
                remedy="Name the event-time column too, as in "
                f'output=gw.types.Output(..., event_time="ts", slack={slack!r}).',
                operator=operator,
            )
        return None, None
    if not isinstance(event_time, str) or event_time not in output.names:
        given_text = repr(event_time) if isinstance(event_time, str) else type_name(event_time)
        hint = did_you_mean(event_time, output.names) if isinstance(event_time, str) else ""
        raise InvalidFlowError(
            f"Operator {operator!r} has the event time {given_text}, but its output lacks it.",
            remedy=f"{hint}Its output columns are {listing(output.names)}.",
            operator=operator,
        )
    field = output.field(event_time)
    if not pa.types.is_timestamp(field.type):
        raise InvalidFlowError(
            f"Operator {operator!r} has the event time {event_time!r}, whose type is {field.type}.",
            remedy="Let the function emit a timestamp there.",
            operator=operator,
            column=event_time,
        )
    lasts = f"The slack of operator {operator!r}"
    return event_time, None if slack is None else microseconds(slack, lasts, least=0)


def time_columns(stream: StreamNode) -> list[str]:
    """Return the columns that may be a stream's event time by default."""
    columns: dict[str, None] = {}
    for branch in branches_of(stream):
        feed = branch.feed
        if isinstance(feed, WindowedNode | ProcessNode) and feed.event_time is not None:
            columns[feed.event_time] = None
        elif isinstance(feed, WindowedNode) and feed.function is None:
            columns[WINDOW_END] = None
        elif isinstance(feed, DropDuplicatesNode | JoinNode):
            columns.update(dict.fromkeys(time_columns(feed.upstream)))
        else:
            times = [source.time for source in sources_of(feed)]
            columns.update(dict.fromkeys(time.column for time in times if time is not None))
    return list(columns)


def _follows_watermark(stream: StreamNode, column: str) -> bool:
    """Return whether the watermark of a stream bounds the event times in `column`."""
    return all(_branch_follows_watermark(branch, column) for branch in branches_of(stream))


def _branch_follows_watermark(branch: Branch, column: str) -> bool:
    """Return whether the watermark of a branch bounds the event times in `column`."""
    feed = branch.feed
    if isinstance(feed, SourceNode):
        return feed.time is not None and column == feed.time.column
    if branch.maps:
        return False
    if isinstance(feed, WindowedNode):
        return feed.function is None and column == WINDOW_END
    if isinstance(feed, DropDuplicatesNode | JoinNode):
        return column in time_columns(feed.upstream) and _follows_watermark(feed.upstream, column)
    return False


def delay_us(
    feed: SourceNode | OperatorNode,
    column: str,
    operator: str,
    columns_of: Callable[[StreamNode], Container[str]],
) -> int:
    """Return the maximum lag of a column's event times behind the watermark, in microseconds.

    `feed`: emits the rows, and has the watermark. `operator`: reads `column` as event time.
    `columns_of`: returns the columns of a stream. Raises `InvalidFlowError` if the lag has no
    bound.
    """

    def of(stream: StreamNode, column: str) -> int:
        """Return the maximum lag of a column of a stream, in microseconds."""
        return max(
            delay_us(branch.feed, column, operator, columns_of) for branch in branches_of(stream)
        )

    if isinstance(feed, SourceNode | CustomNode):
        return 0
    if isinstance(feed, WindowedNode | ProcessNode) and feed.event_time == column:
        if feed.slack_us is not None:
            return feed.slack_us
        if isinstance(feed, ProcessNode):
            return 0
    if isinstance(feed, WindowedNode):
        if feed.function is None and column == WINDOW_END:
            return 0
        lengths = [spec.longest_us for spec in feed.windows if isinstance(spec, Hopping)]
        if not lengths:
            raise _unbounded_delay(operator, column, feed, "sessions are as long as rows make them")
        return max(lengths)
    if isinstance(feed, ComputeNode | LatestNode | ProcessNode | PassNode):
        return of(feed.upstream, column)
    if isinstance(feed, DropDuplicatesNode):
        judged = feed.within_us is not None and column in time_columns(feed.upstream)
        return 0 if judged else of(feed.upstream, column)
    if column in time_columns(feed.upstream):
        return 0
    suffix = feed.suffix or ""
    of_right = column.removesuffix(suffix)
    if of_right in time_columns(feed.right):
        if feed.between_us is not None:
            return 0
        if feed.within_us is None:
            raise _unbounded_delay(operator, column, feed, "the newest row may be however old")
        return feed.within_us
    sides = [
        of(stream, name)
        for stream, name in zip(streams_read_by(feed), (column, of_right), strict=True)
        if name in columns_of(stream)
    ]
    return max(sides, default=max(map(of, streams_read_by(feed), (column, of_right))))


def _unbounded_delay(operator: str, column: str, feed: OperatorNode, why: str) -> InvalidFlowError:
    """Return the error that event times may lag the watermark without bound; `why`: as text."""
    return InvalidFlowError(
        f"Operator {operator!r} reads {column!r} of {feed.name!r} as event time, but its "
        f"delay behind the watermark is unknown: {why}.",
        remedy="Say it of a function that emits the column, as in "
        f'output=gw.types.Output(..., event_time={column!r}, slack="1 hour")'
        + (", or take window_end." if isinstance(feed, WindowedNode) else ", or set within=."),
        operator=operator,
        column=column,
    )

"""Event time of what operators emit: in which column, and how far behind their watermark at most.

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
from godwit.model.time_lengths import microseconds
from godwit.operators.windows.operator import WINDOW_END
from godwit.operators.windows.spec import Hopping
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    JoinNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    read_by,
    sources_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from godwit.model.time_lengths import Duration
    from godwit.plan.nodes import Branch, OperatorNode, StreamNode

__all__ = ["check_output_time", "delay_us", "follows_watermark", "time_columns"]


def check_output_time(
    operator: str, output: pa.Schema, event_time: object, slack: Duration | None
) -> tuple[str | None, int | None]:
    """Read what was said of the event time of what a function emits.

    Returns
    -------
    column, slack_us
        ``None`` where nothing was said.

    Raises
    ------
    InvalidFlowError
        If there is no such column, it is no timestamp, or the length of time will not do.
    """
    if event_time is None:
        if slack is not None:
            raise InvalidFlowError(
                f"Operator {operator!r} has a slack, and no event time that it is of.",
                remedy=f'Name the column, as in process(..., event_time="ts", slack={slack!r}).',
                operator=operator,
            )
        return None, None
    if not isinstance(event_time, str) or event_time not in output.names:
        told = repr(event_time) if isinstance(event_time, str) else type_name(event_time)
        hint = did_you_mean(event_time, output.names) if isinstance(event_time, str) else ""
        raise InvalidFlowError(
            f"Operator {operator!r} has the event time {told}, which is no column of its output.",
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
    """Columns that may hold the event time of a stream's rows, unless the user names another."""
    found: dict[str, None] = {}
    for branch in branches_of(stream):
        feed = branch.feed
        if isinstance(feed, WindowedNode | ProcessNode) and feed.event_time is not None:
            found[feed.event_time] = None
        elif isinstance(feed, WindowedNode) and feed.function is None:
            found[WINDOW_END] = None
        elif isinstance(feed, DropDuplicatesNode | JoinNode):
            found.update(dict.fromkeys(time_columns(feed.upstream)))
        else:
            times = [source.time for source in sources_of(feed)]
            found.update(dict.fromkeys(time.column for time in times if time is not None))
    return list(found)


def follows_watermark(stream: StreamNode, column: str) -> bool:
    """Whether watermarks tell how far a column has come; else lanes have to tell."""
    return all(_follows(branch, column) for branch in branches_of(stream))


def _follows(branch: Branch, column: str) -> bool:
    feed = branch.feed
    if isinstance(feed, SourceNode):
        return feed.time is not None and column == feed.time.column
    if branch.maps:
        return False
    if isinstance(feed, WindowedNode):
        return feed.function is None and column == WINDOW_END
    if isinstance(feed, DropDuplicatesNode | JoinNode):
        return column in time_columns(feed.upstream) and follows_watermark(feed.upstream, column)
    return False


def delay_us(
    feed: SourceNode | OperatorNode,
    column: str,
    operator: str,
    columns_of: Callable[[StreamNode], Container[str]],
) -> int:
    """How far behind the watermark of what feeds an operator a column may be, in microseconds.

    Parameters
    ----------
    feed
        What feeds it.
    column
        The column that the operator reads as event time.
    operator
        Its name, for the message.
    columns_of
        Names of the columns of a stream.

    Raises
    ------
    InvalidFlowError
        If there is no bound.
    """

    def of(stream: StreamNode, column: str) -> int:
        return max(
            delay_us(branch.feed, column, operator, columns_of) for branch in branches_of(stream)
        )

    if isinstance(feed, SourceNode):
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
            raise _no_bound(operator, column, feed, "sessions are as long as rows make them")
        return max(lengths)
    if isinstance(feed, ComputeNode | ProcessNode):
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
            raise _no_bound(operator, column, feed, "the newest row may be however old")
        return feed.within_us
    sides = [
        of(stream, name)
        for stream, name in zip(read_by(feed), (column, of_right), strict=True)
        if name in columns_of(stream)
    ]
    return max(sides, default=max(map(of, read_by(feed), (column, of_right))))


def _no_bound(operator: str, column: str, feed: OperatorNode, why: str) -> InvalidFlowError:
    return InvalidFlowError(
        f"Operator {operator!r} reads {column!r} of {feed.name!r} as event time, and nothing says "
        f"how far behind the watermark it may be: {why}.",
        remedy="Say it of a function that emits the column, as in "
        f'process(..., event_time={column!r}, slack="1 hour")'
        + (", or take window_end." if isinstance(feed, WindowedNode) else ", or set within=."),
        operator=operator,
        column=column,
    )

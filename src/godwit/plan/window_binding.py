"""From what the user said of event time to operators that know their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.model.time_lengths import microseconds
from godwit.operators.windows.compute import WindowedCompute
from godwit.operators.windows.event_time import RowTime, SourceTime
from godwit.operators.windows.operator import WINDOW_END, EventTimeOperator
from godwit.operators.windows.process import WindowedProcess
from godwit.operators.windows.session_process import SessionProcess
from godwit.operators.windows.sessions import SessionCompute
from godwit.operators.windows.spec import Hopping, Session, grid_of
from godwit.plan.nodes import (
    DropDuplicatesNode,
    JoinNode,
    SourceNode,
    WindowedNode,
    branches_of,
    sources_of,
)
from godwit.plan.output_time import follows_watermark, time_columns
from godwit.store.columns import is_fixed_width, is_variable_width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.model.time_lengths import Duration
    from godwit.plan.nodes import StreamNode

__all__ = [
    "event_time_of",
    "insist_on_event_time",
    "insist_on_kept",
    "insist_on_moments",
    "source_time",
    "windowed_operator",
]


def source_time(
    source: str,
    *,
    event_time: str | None,
    slack: Duration,
    max_ahead: Duration,
    idle: Duration | None,
) -> SourceTime | None:
    """Read what was said of a source's event time.

    Raises
    ------
    InvalidFlowError
        If the column is no text, or a length of time will not do.
    """
    if event_time is None:
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


def insist_on_event_time(stream: StreamNode, operator: str, does: str) -> None:
    """Insist that all sources that the rows of a stream descend from have an event time.

    Parameters
    ----------
    does
        What the operator of that name needs it for, for the message.

    Raises
    ------
    InvalidFlowError
        If one has none.
    """
    for source in sources_of(stream):
        if source.time is None:
            raise InvalidFlowError(
                f"Operator {operator!r} {does}, but source {source.name!r} has no event time.",
                remedy=f"Say which column holds it, as in flow.source({source.name!r}, df, "
                'event_time="ts", slack="10 minutes").',
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
    """Find the column that holds the event time of a stream's rows.

    Parameters
    ----------
    stream, schema, origin
        The stream, its columns, and what to call it.
    operator, does
        Name of the operator on it, and what that needs event time for.
    time
        Column that the user named, if any.

    Raises
    ------
    InvalidFlowError
        If a source has no event time, streams that meet have it in different columns, or the column
        is not there or is no timestamp.
    """
    where = f"Operator {operator!r}"
    insist_on_event_time(stream, operator, does)
    feeds = [branch.feed for branch in branches_of(stream)]
    after_windows = _has_ends(stream)
    column = time
    if column is None:
        follow = time_columns(stream)
        if len(follow) > 1:
            raise InvalidFlowError(
                f"{where} {does}, but the event time of {origin} may be in several columns: "
                f"{listing(follow)}.",
                remedy="Name the column, as in window(..., time=...), or give all of them one "
                "name.",
                operator=operator,
            )
        column = follow[0]
    if column not in schema.names:
        sources = listing([source.name for source in sources_of(stream)])
        told = f"It follows from what was said of the event time of {sources}. "
        raise InvalidFlowError(
            f"{where} {does} of column {column!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(column, schema.names)}{told if time is None else ''}"
            + (
                "Leave the column in the maps"
                if any(isinstance(feed, SourceNode) for feed in feeds)
                else "Name a column, as in window(..., time=...)"
            )
            + f"; its columns are {listing(schema.names)}.",
            operator=operator,
            column=column,
        )
    insist_on_moments(schema.field(column), f"{where} {does} of column", origin, operator)
    return RowTime(
        column=column,
        is_end=after_windows and column == WINDOW_END,
        is_told=not follows_watermark(stream, column),
    )


def _has_ends(stream: StreamNode) -> bool:
    """Whether all rows of a stream are of windows, or were before they met others."""
    feeds = [branch.feed for branch in branches_of(stream)]
    return all(
        (isinstance(feed, WindowedNode) and feed.function is None)
        or (isinstance(feed, DropDuplicatesNode | JoinNode) and _has_ends(feed.upstream))
        for feed in feeds
    )


def insist_on_moments(field: pa.Field, subject: str, origin: str, operator: str) -> None:
    """Refuse a column of event time that holds something else.

    Raises
    ------
    InvalidFlowError
        If it is no timestamp of microseconds.
    """
    if not (pa.types.is_timestamp(field.type) and field.type.unit == "us"):
        raise InvalidFlowError(
            f"{subject} {field.name!r} of {origin}, whose type is {field.type}.",
            remedy=f"Cast {field.name!r} to a timestamp (of microseconds, as in Spark) in a map.",
            operator=operator,
            column=field.name,
        )


def insist_on_kept(operator: str, columns: Iterable[pa.Field]) -> None:
    """Refuse columns of rows that wait in state, which state cannot hold.

    Raises
    ------
    InvalidFlowError
        If there is one.
    """
    for field in columns:
        if not (is_fixed_width(field.type) or is_variable_width(field.type)):
            raise InvalidFlowError(
                f"Operator {operator!r} keeps rows until they are due, and column {field.name!r} "
                f"has type {field.type}, which state cannot hold.",
                remedy=f"Drop {field.name!r} in a map before, or make numbers or text of it.",
                operator=operator,
                column=field.name,
            )


def windowed_operator(
    node: WindowedNode, arriving: pa.Schema, inputs: pa.Schema, time: RowTime, zone: str
) -> EventTimeOperator:
    """Make the operator of a node.

    Parameters
    ----------
    arriving
        Columns of its rows as they come.
    inputs
        Those that the aggregates or the function read.
    time
        Where the event time is.
    zone
        The session's.
    """
    if node.function is not None:
        insist_on_kept(node.name, arriving)
    if isinstance(node.windows[0], Session) and node.function is not None:
        return SessionProcess(
            name=node.name,
            keys=node.keys,
            arriving=arriving,
            time=time,
            function=node.function,
            output=node.output,
            gap_us=node.windows[0].gap_us,
            zone=zone,
        )
    if isinstance(node.windows[0], Session):
        return SessionCompute(
            name=node.name,
            keys=node.keys,
            arriving=arriving,
            time=time,
            inputs=inputs,
            aggregates=node.aggregates,
            gap_us=node.windows[0].gap_us,
        )
    hopping = [spec for spec in node.windows if isinstance(spec, Hopping)]
    grid = grid_of(hopping, f"Operator {node.name!r}")
    if node.function is None:
        compute = WindowedCompute(
            name=node.name,
            keys=node.keys,
            arriving=arriving,
            time=time,
            inputs=inputs,
            aggregates=node.aggregates,
            grid=grid,
            update=node.update,
            share=node.share,
            lateness_us=node.lateness_us,
            lengths=None
            if node.length_as is None
            else (node.length_as, {spec.window.length_us: spec.length for spec in hopping}),
        )
        if node.share is False and not compute.commutative:
            raise InvalidFlowError(
                f"Operator {node.name!r} has share='never', but an aggregate that depends on the "
                "order of rows.",
                remedy="A window's own state sees rows in order of arrival, and panes in order of "
                "time: leave share= out.",
                operator=node.name,
            )
        return compute
    return WindowedProcess(
        name=node.name,
        keys=node.keys,
        arriving=arriving,
        time=time,
        function=node.function,
        output=node.output,
        grid=grid,
        zone=zone,
    )

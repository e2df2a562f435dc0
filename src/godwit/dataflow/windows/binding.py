"""From what the user said of event time to operators that know their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.dataflow.naming import did_you_mean, listing, type_name
from godwit.dataflow.nodes import ProcessNode, SourceNode, WindowedNode, feed_of, source_of
from godwit.dataflow.windows.compute import WindowedCompute
from godwit.dataflow.windows.durations import microseconds
from godwit.dataflow.windows.moments import RowTime, SourceTime
from godwit.dataflow.windows.operator import WINDOW_END, WindowedOperator
from godwit.dataflow.windows.process import WindowedProcess
from godwit.dataflow.windows.session_process import SessionProcess
from godwit.dataflow.windows.sessions import SessionCompute
from godwit.dataflow.windows.spec import Hopping, Session, grid_of
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from godwit.dataflow.windows.durations import Duration

__all__ = ["event_time_of", "insist_on_event_time", "source_time", "windowed_operator"]


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


def insist_on_event_time(node: WindowedNode | ProcessNode) -> SourceTime:
    """Give the event time of the source that an operator's rows descend from.

    Raises
    ------
    InvalidFlowError
        If it has none.
    """
    source = source_of(node)
    if source.time is None:
        what = "windows" if isinstance(node, WindowedNode) else "timers of event time"
        raise InvalidFlowError(
            f"Operator {node.name!r} has {what}, but source {source.name!r} has no event time.",
            remedy=f"Say which column holds it, as in flow.source({source.name!r}, df, "
            'event_time="ts", slack="10 minutes").',
            operator=node.name,
            source=source.name,
        )
    return source.time


def event_time_of(node: WindowedNode, schema: pa.Schema, origin: str) -> RowTime:
    """Find the column that holds the event time of an operator's rows.

    Raises
    ------
    InvalidFlowError
        If the source has no event time, or the column is not there or is no timestamp.
    """
    where = f"Operator {node.name!r}"
    source, of_source = source_of(node), insist_on_event_time(node)
    feed, _ = feed_of(node.upstream)
    after_windows = isinstance(feed, WindowedNode) and feed.function is None
    column = node.time
    if column is None:
        column = WINDOW_END if after_windows else of_source.column
    if column not in schema.names:
        told = f'It follows from event_time="{of_source.column}" of source {source.name!r}. '
        raise InvalidFlowError(
            f"{where} has windows of column {column!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(column, schema.names)}{told if node.time is None else ''}"
            + (
                "Leave the column in the maps"
                if isinstance(feed, SourceNode)
                else "Name a column, as in window(..., time=...)"
            )
            + f"; its columns are {listing(schema.names)}.",
            operator=node.name,
            column=column,
        )
    dtype = schema.field(column).type
    if not (pa.types.is_timestamp(dtype) and dtype.unit == "us"):
        raise InvalidFlowError(
            f"{where} has windows of column {column!r} of {origin}, whose type is {dtype}.",
            remedy=f"Cast {column!r} to a timestamp (of microseconds, as in Spark) in a map.",
            operator=node.name,
            column=column,
        )
    return RowTime(column=column, is_end=after_windows and column == WINDOW_END)


def windowed_operator(
    node: WindowedNode, arriving: pa.Schema, inputs: pa.Schema, time: RowTime
) -> WindowedOperator:
    """Make the operator of a node.

    Parameters
    ----------
    arriving
        Columns of its rows as they come.
    inputs
        Those that the aggregates or the function read.
    time
        Where the event time is.
    """
    if isinstance(node.windows[0], Session) and node.function is not None:
        return SessionProcess(
            name=node.name,
            keys=node.keys,
            arriving=arriving,
            time=time,
            function=node.function,
            output=node.output,
            gap_us=node.windows[0].gap_us,
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
        return WindowedCompute(
            name=node.name,
            keys=node.keys,
            arriving=arriving,
            time=time,
            inputs=inputs,
            aggregates=node.aggregates,
            grid=grid,
            update=node.update,
        )
    return WindowedProcess(
        name=node.name,
        keys=node.keys,
        arriving=arriving,
        time=time,
        function=node.function,
        output=node.output,
        grid=grid,
    )

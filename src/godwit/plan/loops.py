"""Compilation of loops: edges of feedback, each with a beginning, an end and the same columns.

What cannot be a loop is refused here: a loop that nothing is fed back to, rows that do not descend
from it, other columns than it has, and event times that its windows would meet too late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing
from godwit.plan.event_times import delay_us
from godwit.plan.feedback import Feedback, FeedbackSource
from godwit.plan.nodes import (
    DropDuplicatesNode,
    JoinNode,
    ProcessNode,
    SourceNode,
    WindowedNode,
    branches_of,
    streams_read_by,
    tables_of,
)
from godwit.plan.stream_columns import differences

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from godwit.plan.nodes import FeedbackNode, FlowGraph, OperatorNode, StreamNode
    from godwit.plan.stream_columns import StreamColumns


def feedbacks_of(
    flow: FlowGraph,
    columns: StreamColumns,
    timed: Collection[str],  # sources whose event time some operator uses
) -> Iterator[Feedback]:
    """Yield the feedback edges of a flow; raise if a loop is not closed or not valid."""
    ends = {edge.loop.name for edge in flow.feedbacks}
    for source in flow.sources:
        if isinstance(source.own, FeedbackSource) and source.name not in ends:
            raise InvalidFlowError(
                f"Nothing is fed back to the loop {source.name!r} of flow {flow.name!r}.",
                remedy="Say which stream is, as in stream.feed_back_to(loop), or leave out "
                f"flow.feedback({source.name!r}, ...).",
                source=source.name,
            )
    for edge in flow.feedbacks:
        body = _body_of(edge, flow.name)
        _check_loop_columns(edge, columns)
        time = _time_of(edge, body, timed)
        yield from _feedback_edges(edge, columns, time)


def _feedback_edges(
    edge: FeedbackNode, columns: StreamColumns, time: str | None
) -> Iterator[Feedback]:
    """Yield the feedback edges of one loop.

    `time`: its event-time column, if it holds watermarks.
    """
    assert isinstance(edge.loop.own, FeedbackSource), "Flow.feedback makes no other"
    for branch in branches_of(edge.upstream):
        feed = branch.feed
        assert not isinstance(feed, SourceNode), "Stream.feed_back_to refuses such a stream"
        held_by = time if edge.loop.own.holds_watermark else None
        yield Feedback(
            loop=edge.loop.name,
            operator=feed.name,
            maps=columns.arrow_maps(branch),
            schema=edge.loop.own.schema,
            time=held_by,
            delay_us=0
            if held_by is None
            else delay_us(feed, held_by, edge.loop.name, columns.names_of),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """A loop without its edge of feedback."""

    operators: tuple[OperatorNode, ...]  # on the way from the loop's source to its end
    sources: tuple[SourceNode, ...]  # whose rows come to its end, without the loop itself


def _body_of(edge: FeedbackNode, flow: str) -> _Body:
    """Return the operators and sources of a loop; raise if the edge does not lead upstream."""
    operators: dict[int, OperatorNode] = {}
    sources: dict[int, SourceNode] = {}
    _collect_upstream(edge.upstream, operators, sources)
    if id(edge.loop) not in sources:
        raise InvalidFlowError(
            f"The stream that is fed back to the loop {edge.loop.name!r} of flow {flow!r} is not "
            "computed from the loop's rows.",
            remedy="Feed back the output of an operator that reads the loop; without a loop, unite "
            "the streams, as in stream.union(...).",
            source=edge.loop.name,
        )
    del sources[id(edge.loop)]
    on_the_way = []
    for node in operators.values():
        above: dict[int, SourceNode] = {}
        _collect_upstream(node, {}, above)
        if id(edge.loop) in above:
            on_the_way.append(node)
    return _Body(operators=tuple(on_the_way), sources=tuple(sources.values()))


def _collect_upstream(
    stream: StreamNode, operators: dict[int, OperatorNode], sources: dict[int, SourceNode]
) -> None:
    """Add all operators and sources upstream of a stream, tables included, to the dicts."""
    for branch in branches_of(stream):
        if isinstance(branch.feed, SourceNode):
            sources[id(branch.feed)] = branch.feed
        elif id(branch.feed) not in operators:
            operators[id(branch.feed)] = branch.feed
            for above in (
                *streams_read_by(branch.feed),
                *(t.stream for t in tables_of(branch.feed)),
            ):
                _collect_upstream(above, operators, sources)


def _check_loop_columns(edge: FeedbackNode, columns: StreamColumns) -> None:
    """Raise if the rows fed back have other columns than the loop."""
    fed, origin = columns.of(edge.upstream)
    loop, name = columns.of(edge.loop)
    different = list(differences(loop, name, fed, origin))
    if different:
        raise InvalidFlowError(
            f"The stream that is fed back to the loop {edge.loop.name!r} has other columns than "
            f"the loop: {'; '.join(different)}.",
            remedy="Give both the same columns, of the same types: in a map before "
            "feed_back_to(...), or in flow.feedback(name, schema).",
            source=edge.loop.name,
            differences=different,
        )


def _time_of(edge: FeedbackNode, body: _Body, timed: Collection[str]) -> str | None:
    """Return a loop's event-time column; ``None`` if no source in the loop is among `timed`.

    Refuses a column with which the watermark would never advance, or rows would come too late.
    """
    loop = edge.loop
    if loop.time is None or loop.name not in timed:
        return None
    untimed = [source.name for source in body.sources if source.time is None]
    if untimed or not body.sources:
        raise InvalidFlowError(
            f"The loop {loop.name!r} has the event time {loop.time.column!r}, but "
            + (
                f"{listing(untimed)}, whose rows go round in it, {'have' if untimed[1:] else 'has'}"
                " none"
                if untimed
                else "no source's rows go round in it"
            )
            + ", so its watermark would never advance.",
            remedy="Give every source its event time, as in "
            'flow.source(name, rows, event_time="ts").',
            source=loop.name,
        )
    judges = any(
        isinstance(n, WindowedNode | JoinNode)
        or (isinstance(n, DropDuplicatesNode) and bool(n.within_us))
        for n in body.operators
    )
    emitting = [n.name for n in body.operators if _emits_by_watermark(n)]
    if emitting and judges:
        raise InvalidFlowError(
            f"Operator {emitting[0]!r} emits once the watermark has passed, and its rows would be "
            f"fed back to the loop {loop.name!r} when the windows that they belong to are closed.",
            remedy="Feed back rows from before that operator; or declare the loop without "
            "event_time=, and count rounds or rows in it instead of windows.",
            source=loop.name,
            operator=emitting[0],
        )
    return loop.time.column


def _emits_by_watermark(node: OperatorNode) -> bool:
    """Return whether an operator emits rows only after the watermark has passed them."""
    return (
        isinstance(node, WindowedNode)
        or (isinstance(node, JoinNode) and node.how != "inner")
        or (isinstance(node, ProcessNode) and (node.timing.clock == "event" or node.in_order))
    )

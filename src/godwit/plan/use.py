"""Everything that a flow declares must come to a sink, or nobody would see what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing
from godwit.plan.nodes import SourceNode, branches_of, read_by, sources_of

if TYPE_CHECKING:
    from godwit.plan.nodes import FlowGraph

__all__ = ["insist_on_use"]


def insist_on_use(flow: FlowGraph) -> None:
    """Refuse a flow without a sink, and operators and sources without a path to one."""
    if not flow.sinks:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has no sink, so nobody would see its results.",
            remedy='Add one, as in flow.sink("totals", stream, gw.sinks.parquet("out/")).',
            flow=flow.name,
        )
    used: set[str] = set()
    pending = [sink.upstream for sink in flow.sinks]
    while pending:
        for branch in branches_of(pending.pop()):
            if not isinstance(branch.feed, SourceNode) and branch.feed.name not in used:
                used.add(branch.feed.name)
                pending += read_by(branch.feed)
    idle = [node.name for node in flow.operators if node.name not in used]
    if idle:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has operators without a path to a sink: {listing(idle)}.",
            remedy="Give each of their streams to a sink or to an operator that has one, or do "
            "not build them.",
            flow=flow.name,
            operators=idle,
        )
    read = {source.name for sink in flow.sinks for source in sources_of(sink.upstream)}
    if unread := [name for name in flow.sources if name not in read]:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has sources that feed no sink: {listing(unread)}.",
            remedy="Build a stream from each of them up to a sink, or leave them out.",
            flow=flow.name,
            sources=unread,
        )

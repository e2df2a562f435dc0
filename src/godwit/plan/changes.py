"""Streams of changes in a plan: which operators take them, and which columns they need.

Operators say in their nodes what they take and emit (`takes`, `emits`); here that is compared, so
that changes never reach an operator that would process a deleted row as if it were inserted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.columns.signed import CHANGE
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    JoinNode,
    KindNode,
    LatestNode,
    MapNode,
    SourceNode,
    UnionNode,
    branches_of,
    kind_of,
    streams_read_by,
    tables_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.plan.nodes import FlowGraph, OperatorNode, StreamNode

_WAYS_OUT = {
    "changes": "Aggregate them by key_by(...).compute(...), or call as_rows() on the stream before "
    "it: its column 'change' is then a column like any other, and rows with -1 are processed, too.",
    "upserts": "Call key_by(...).latest() on the stream before it, by the key of the table, which "
    "makes changes of it; or as_rows(): its column 'change' is then a column like any other, and "
    "rows with -1 are processed, too.",
    "rows": "Call as_changes() on a stream whose column 'change' is 1 for an inserted row and -1 "
    "for a deleted one.",
}
_NAMES = {"rows": "rows", "changes": "changes of a table", "upserts": "upserts and deletes by key"}


def check_kinds(flow: FlowGraph) -> None:
    """Refuse a flow in which an operator reads a stream of a kind that it does not take."""
    for node in flow.operators:
        where = f"Operator {node.name!r}"
        for stream in streams_read_by(node):
            _check_unions(stream, where)
            kind = kind_of(stream)
            if kind not in node.takes:
                raise InvalidFlowError(
                    f"{where} would read {_NAMES[kind]} of {_feeds_text(stream)}, and takes "
                    f"{' and '.join(_NAMES[taken] for taken in node.takes)} only.",
                    remedy=_WAYS_OUT[kind],
                    operator=node.name,
                )
        for table in tables_of(node):
            _refuse_changes(table.stream, f"A table of operator {node.name!r}")
    for edge in flow.feedbacks:
        _refuse_changes(edge.upstream, f"Loop {edge.loop.name!r}")
    for sink in flow.sinks:
        _check_unions(sink.upstream, f"Sink {sink.name!r}")


def _refuse_changes(stream: StreamNode, where: str) -> None:
    """Raise for a stream of changes; `where`: its reader."""
    _check_unions(stream, where)
    if (kind := kind_of(stream)) != "rows":
        raise InvalidFlowError(
            f"{where} would read {_NAMES[kind]} of {_feeds_text(stream)}, and takes rows only.",
            remedy=_WAYS_OUT[kind],
        )


def _check_unions(node: StreamNode, where: str) -> None:
    """Refuse a union of streams of several kinds, upstream of a reader up to its operators."""
    while isinstance(node, MapNode | KindNode):
        node = node.upstream
    if not isinstance(node, UnionNode):
        return
    kinds = {kind_of(upstream) for upstream in node.upstreams}
    if len(kinds) > 1:
        raise InvalidFlowError(
            f"{where} reads a union of {' and '.join(_NAMES[kind] for kind in sorted(kinds))}.",
            remedy="Unite streams of one kind: as_rows() and as_changes() on a stream say for what "
            "it is to be taken.",
        )
    for upstream in node.upstreams:
        _check_unions(upstream, where)


def check_sign(stream: StreamNode, schema: pa.Schema, origin: str, where: str) -> None:
    """Raise if a stream of changes has lost the column of signs, or given it another type.

    `schema`, `origin`: columns of the stream, and its description. `where`: its reader.
    """
    kind = kind_of(stream)
    if kind == "rows" or (CHANGE.name in schema.names and schema.field(CHANGE.name) == CHANGE):
        return
    found_text = (
        f"its type is {schema.field(CHANGE.name).type}, not {CHANGE.type}"
        if CHANGE.name in schema.names
        else f"its columns are {listing(schema.names)}"
    )
    raise InvalidFlowError(
        f"{where} reads {_NAMES[kind]} of {origin}, which need a column {CHANGE.name!r}: "
        f"{found_text}.",
        remedy=f"Leave the column in the maps as it is; in your own changes, {CHANGE.name!r} is a "
        "tinyint (int8), 1 for an inserted row and -1 for a deleted one.",
        column=CHANGE.name,
    )


def table_keys(node: StreamNode) -> tuple[str, ...]:
    """Return the columns that identify a row of the table whose changes a stream has.

    Empty for rows, and where they are not known.
    """
    if kind_of(node) == "rows":
        return ()
    keys = {_keys_of_feed(branch.feed) for branch in branches_of(node)}
    return keys.pop() if len(keys) == 1 else ()


def _keys_of_feed(feed: SourceNode | OperatorNode) -> tuple[str, ...]:
    """Return the columns that identify a row of the table that a source or an operator changes."""
    if isinstance(feed, SourceNode):
        return () if feed.own is None else feed.own.table_keys
    if isinstance(feed, ComputeNode | LatestNode | DropDuplicatesNode):
        return feed.keys
    if isinstance(feed, JoinNode):  # several rows of a table may match one of the other
        return ()
    return table_keys(feed.upstream)


def _feeds_text(stream: StreamNode) -> str:
    """Return the sources and operators that feed a stream, as text for errors."""
    feeds = [branch.feed for branch in branches_of(stream)]
    kinds = ("source" if isinstance(feed, SourceNode) else "operator" for feed in feeds)
    return " and ".join(f"{k} {f.name!r}" for k, f in zip(kinds, feeds, strict=True))

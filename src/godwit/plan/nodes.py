"""Nodes of the graph that a user's calls build, before columns are known.

Every node knows what it reads and nothing knows its readers, so a stream can be used any number
of times.  Streams meet in a union: the ways from a node back to what makes its rows are its
*branches*, each a chain of maps.  Nodes are compared by identity: two calls make two nodes, however
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from godwit.columns.signed import CHANGE
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import listing
from godwit.operators.timers import NO_TIMERS, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.columns.signed import Kind
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.asynchronous import Async
    from godwit.operators.declared import Declared, Frames, StateColumns, ValueState
    from godwit.operators.operator import KeyedOperator
    from godwit.operators.window_specs import RowWindows, WindowSpec
    from godwit.sources.source import Source
    from godwit.time.event_time import QueryWatermark, SourceTime
    from godwit.values.records import RowClass


OutputMode: TypeAlias = Literal["update", "complete", "changes"]
How: TypeAlias = Literal["inner", "left", "right", "full"]
OnMissing: TypeAlias = Literal["refuse", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceNode:
    """Source of rows under a name: a streaming DataFrame, or a source of Godwit's own."""

    name: str
    dataframe: DataFrame | None = None  # or a stand-in for one; ``None``: it is `own`
    own: Source | None = None
    time: SourceTime | None = None  # its event time, if it has one

    @property
    def has_arrow_maps(self) -> bool:
        """True if maps after the source take Arrow tables, and not DataFrames."""
        return self.own is not None

    @property
    def emits(self) -> Kind:
        """Kind of the source's rows."""
        return "rows" if self.own is None else self.own.kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode:
    """A map over the rows of `upstream`."""

    upstream: StreamNode
    # DataFrame to DataFrame on the rows of a DataFrame, else Arrow table to table
    function: Callable[[Any], Any]
    schema: pa.Schema | None  # columns of the result, as far as the user gave them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnionNode:
    """A union of several streams with the same columns."""

    upstreams: tuple[StreamNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindNode:
    """The rows of `upstream`, taken for rows or changes as the user says."""

    upstream: StreamNode
    emits: Kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _KeyedNode:
    """Fields of every keyed operator."""

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]  # empty: all rows are together, or are apart
    # key columns that place rows; empty: all of them do, ``None``: not stated
    partition_by: tuple[str, ...] | None = None
    formerly: str = ""  # name that it had before; empty if that is not said
    starts_empty: bool = False  # whatever state others leave behind
    named: bool = True  # the user chose its name

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Kinds of streams that the operator reads; see `godwit.columns.signed`."""
        return ("rows",)

    @property
    def emits(self) -> Kind:
        """Kind of the stream that the operator emits."""
        return "rows"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComputeNode(_KeyedNode):
    """Aggregates per key."""

    aggregates: Mapping[str, Aggregate]  # name of the result → aggregate
    mode: OutputMode = "update"
    windows: RowWindows | None = None  # windows of rows that are aggregated; ``None``: all rows
    on_missing: OnMissing = "refuse"  # if a delete of changes has no row

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Rows; without windows, changes too."""
        return ("rows", "changes") if self.windows is None else ("rows",)

    @property
    def emits(self) -> Kind:
        """Changes, or upserts of keys whose rows may all be deleted; else rows."""
        if self.mode == "changes":
            return "changes"
        has_deletes = self.mode == "update" and kind_of(self.upstream) == "changes"
        return "upserts" if has_deletes else "rows"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatestNode(_KeyedNode):
    """The newest row of each key, as changes."""

    order_by: str | None = None  # column that says which row is newer; ``None``: the later one
    on_missing: OnMissing = "refuse"  # if a delete of changes has no row

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Rows, each of which replaces the one before it, upserts with deletes, and changes."""
        return ("rows", "upserts", "changes")

    @property
    def emits(self) -> Kind:
        """Changes of the table of the newest rows."""
        return "changes"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableNode:
    """A table that every lane of an operator has whole: the newest row of each key of a stream."""

    stream: StreamNode
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessNode(_KeyedNode):
    """A function of the user over the rows of one key and that key's state."""

    function: Callable[..., Any]
    output: pa.Schema
    # exactly one of these: the single state, the named states, or state of a function over tables
    state: ValueState[Any] | None = None
    states: Mapping[str, Declared] = field(default_factory=dict)
    columns: StateColumns | None = None
    timing: Timing = NO_TIMERS  # options of timers
    in_order: bool = False  # rows are processed in order of event time, once they are not late
    late: Any = None  # as in `WindowedNode`, of rows in order
    # column of the output that is its event time, and how far behind the watermark it may be, as
    # far as the user says
    event_time: str | None = None
    slack_us: int | None = None
    asynchronous: Async | None = None  # settings of functions that are awaited
    tables: Mapping[str, TableNode] = field(default_factory=dict)  # name → table
    # classes of the rows that the function gets, and of those that it emits, if they have one
    row_class: RowClass | None = None
    output_class: RowClass | None = None
    frames: Frames | None = None  # called with tables of this kind; ``None``: once for each key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowedNode(_KeyedNode):
    """Aggregates, or a function of the user, per key and window of event time."""

    windows: tuple[WindowSpec, ...]  # of one length each, or one session
    time: str | None  # column of the event time; ``None`` for the one that follows from the stream
    update: bool  # windows are emitted as they grow, and not when they are over
    late: Any  # sink of the rows that are left out, if any
    aggregates: Mapping[str, Aggregate]  # empty where there is a function
    function: Callable[..., Any] | None = None
    output: pa.Schema | None = None  # columns of the rows that the function returns
    output_class: RowClass | None = None  # as in `ProcessNode`
    event_time: str | None = None  # as in `ProcessNode`
    slack_us: int | None = None
    share: bool | None = None  # overlapping windows share panes; ``None``: as measured costs say
    # an operator of its own consolidates partials: in a component of its own (``"apart"``), or in
    # whichever costs less (``"measured"``)
    consolidate: Literal["together", "apart", "measured"] = "together"
    lateness_us: int = 0  # how long windows that have come out take rows, and come out again
    length_as: str | None = None  # column that says how long a row's window is


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DropDuplicatesNode(_KeyedNode):
    """An operator that passes the first row of each key."""

    within_us: int | None  # duplicates happen at most this long before or after it
    late: Any = None  # as in `WindowedNode`
    on_missing: OnMissing = "refuse"  # if a delete of changes has no row

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Rows; if duplicates happen at any time, changes too."""
        return ("rows", "changes") if self.within_us is None else ("rows",)

    @property
    def emits(self) -> Kind:
        """The kind of the rows that it reads."""
        return kind_of(self.upstream)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassNode(_KeyedNode):
    """An operator that passes the rows of a stream on to a sink, in lanes that write for it."""

    row_keys: tuple[str, ...] = ()  # columns by which the sink's target tells rows apart

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Rows of any kind."""
        return ("rows", "changes", "upserts")

    @property
    def emits(self) -> Kind:
        """The kind of the rows that it passes on."""
        return kind_of(self.upstream)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinNode(_KeyedNode):
    """A join of two keyed streams, `upstream` and `right`, by event time."""

    right: StreamNode
    right_keys: tuple[str, ...]
    how: How  # whose rows come out that met none
    # how long after a row of the left one of the right happens, at least and at most; ``None`` for
    # the newest row of the right
    between_us: tuple[int, int] | None = None
    within_us: int | None = None  # how old the newest row may be at most, if there is a bound
    suffix: str | None = None  # behind names of the right that the left has too
    late: Any = None  # as in `WindowedNode`
    spread: int = 0  # parts that rows of a key may be spread over; 0: none are
    of_tables: bool = False  # joins tables that change, without event time
    on_missing: OnMissing = "refuse"  # if a delete of changes has no row

    @property
    def takes(self) -> tuple[Kind, ...]:
        """Rows; of tables also changes, beside rows that are only added."""
        return ("rows", "changes") if self.of_tables else ("rows",)

    @property
    def emits(self) -> Kind:
        """Changes of the joined rows, of tables; else rows."""
        return "changes" if self.of_tables else "rows"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CustomNode(_KeyedNode):
    """An operator of a district, which makes it of the columns of the streams that it reads.

    Rows that it emits have event times that the watermark of its input bounds.
    """

    # called with the columns of every stream, key columns first unless they are to be `in_order`
    make: Callable[[Sequence[pa.Schema]], KeyedOperator]
    in_order: bool = False
    action: str  # what it does, as text
    calls_function: bool = False  # it calls one of the user's, whose failed calls can be diverted
    # further streams that it reads, and the key columns of each; rows of stream n are of the inputs
    # after those of the streams before
    others: tuple[tuple[StreamNode, tuple[str, ...]], ...] = ()

    @property
    def streams(self) -> tuple[tuple[StreamNode, tuple[str, ...]], ...]:
        """All streams that it reads, and the key columns of each."""
        return ((self.upstream, self.keys), *self.others)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinkNode:
    """A sink and the stream it gets."""

    name: str
    upstream: StreamNode
    sink: Any
    formerly: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorsNode:
    """A sink of the rows for which a user's function fails."""

    name: str
    function_of: MapNode | ProcessNode | WindowedNode | CustomNode
    sink: Any
    max_error_share: float  # of the rows; above it the query stops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeedbackNode:
    """A stream whose rows a loop's source has in the next epoch."""

    loop: SourceNode
    upstream: StreamNode


OperatorNode: TypeAlias = (
    ComputeNode
    | LatestNode
    | ProcessNode
    | WindowedNode
    | DropDuplicatesNode
    | JoinNode
    | PassNode
    | CustomNode
)
StreamNode: TypeAlias = SourceNode | MapNode | UnionNode | KindNode | OperatorNode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowGraph:
    """All declarations of a flow, in order."""

    name: str
    num_key_groups: int  # of every operator
    sources: tuple[SourceNode, ...]
    operators: tuple[OperatorNode, ...]  # upstream before downstream
    sinks: tuple[SinkNode, ...]
    feedbacks: tuple[FeedbackNode, ...] = ()
    errors: tuple[ErrorsNode, ...] = ()
    query_watermark: QueryWatermark | None = None  # see `CompiledFlow`, as the next
    waits_for_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """One path of rows to a stream: a source or operator, and the maps after it."""

    feed: SourceNode | OperatorNode  # makes the rows
    maps: tuple[MapNode, ...]  # from there to the stream

    @property
    def has_arrow_maps(self) -> bool:
        """True if the maps of the branch take Arrow tables, and not DataFrames."""
        return not isinstance(self.feed, SourceNode) or self.feed.has_arrow_maps


def branches_of(node: StreamNode) -> tuple[Branch, ...]:
    """Return the branches of a stream: several only after a union.

    The branch of an operator's own stream is that operator, without maps.
    """
    maps: list[MapNode] = []
    while isinstance(node, MapNode | KindNode):
        if isinstance(node, MapNode):
            maps.append(node)
        node = node.upstream
    after = tuple(reversed(maps))
    if isinstance(node, UnionNode):
        return tuple(
            Branch(feed=branch.feed, maps=(*branch.maps, *after))
            for upstream in node.upstreams
            for branch in branches_of(upstream)
        )
    return (Branch(feed=node, maps=after),)


def kind_of(node: StreamNode) -> Kind:
    """Return the kind of a stream's rows; that of a union is its first stream's."""
    while isinstance(node, MapNode | UnionNode):
        node = node.upstream if isinstance(node, MapNode) else node.upstreams[0]
    return node.emits


def sources_of(node: StreamNode) -> tuple[SourceNode, ...]:
    """Return the distinct sources that the rows of `node` descend from."""
    sources: list[SourceNode] = []
    seen: set[int] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, SourceNode):
            sources.append(node)
        elif isinstance(node, UnionNode):
            pending += reversed(node.upstreams)
        elif isinstance(node, MapNode | KindNode):
            pending.append(node.upstream)
        else:
            pending += reversed(streams_read_by(node))
    return tuple(sources)


def streams_read_by(node: OperatorNode) -> tuple[StreamNode, ...]:
    """Return the streams that an operator reads: one, or the left and right of a join."""
    if isinstance(node, CustomNode):
        return tuple(stream for stream, _ in node.streams)
    return (node.upstream, node.right) if isinstance(node, JoinNode) else (node.upstream,)


def tables_of(node: OperatorNode) -> tuple[TableNode, ...]:
    """Return the broadcast tables that an operator's functions read."""
    return tuple(node.tables.values()) if isinstance(node, ProcessNode) else ()


def levels_of(operators: Iterable[OperatorNode]) -> dict[str, int]:
    """Return operator → number of exchanges between the sources and the operator.

    `operators`: upstream before downstream.
    """
    levels: dict[str, int] = {}
    for node in operators:
        feeds = [branch.feed for stream in streams_read_by(node) for branch in branches_of(stream)]
        above = (0 if isinstance(feed, SourceNode) else levels[feed.name] for feed in feeds)
        levels[node.name] = 1 + max(above)
    return levels


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
    """Refuse a flow in which an operator reads a stream of a kind that it does not take.

    Nodes say what they take and emit (`takes`, `emits`); here that is compared, so that changes
    never reach an operator that would process a deleted row as if it were inserted.
    """
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

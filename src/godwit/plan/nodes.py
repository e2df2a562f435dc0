"""The graph that a user's calls draw, before anything is known about columns.

Every node knows what it reads and nothing knows its readers, so a stream can be used any number
of times.  Streams meet in a union: the ways from a node back to what makes its rows are its
*branches*, each a chain of maps.  Nodes are compared by identity: two calls make two nodes, however
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.operators.aggregates import Aggregate
    from godwit.operators.firing import TimerClock
    from godwit.operators.joins.sides import How
    from godwit.operators.states.declared import Declared
    from godwit.operators.windows.event_time import SourceTime
    from godwit.operators.windows.rows import RowWindows
    from godwit.operators.windows.spec import WindowSpec

__all__ = [
    "Branch",
    "Codec",
    "ComputeNode",
    "DropDuplicatesNode",
    "FlowGraph",
    "JoinNode",
    "MapNode",
    "OperatorNode",
    "ProcessNode",
    "SinkNode",
    "SourceNode",
    "StreamNode",
    "UnionNode",
    "WindowedNode",
    "branches_of",
    "levels_of",
    "read_by",
    "sources_of",
]

Codec: TypeAlias = Literal["msgpack", "pickle"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceNode:
    """A streaming DataFrame under a name.

    Attributes
    ----------
    time
        Its event time, if it has one.
    """

    name: str
    dataframe: DataFrame
    time: SourceTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapNode:
    """A function over the rows of `upstream`.

    Attributes
    ----------
    function
        DataFrame to DataFrame where no keyed operator comes before it, else Arrow table to Arrow
        table.
    schema
        Columns of the result, as far as the user gave them.
    """

    upstream: StreamNode
    function: Callable[[Any], Any]
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnionNode:
    """The rows of several streams with the same columns."""

    upstreams: tuple[StreamNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComputeNode:
    """Aggregates per key.

    Attributes
    ----------
    aggregates
        Name of the result → aggregate.
    complete
        Whether every epoch emits all keys, or those that changed.
    windows
        Windows of rows that are aggregated; ``None``: all rows of a key.
    formerly
        Name that it had before; empty if that is not said.
    named
        Whether the user chose its name.
    """

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]
    complete: bool
    windows: RowWindows | None = None
    formerly: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessNode:
    """A function of the user over the rows of one key and that key's state.

    Attributes
    ----------
    timers, on_timer
        Clock that timers go by, and the function that they call; ``None``: there are none.
    ttl_us
        State is forgotten once its key was not touched for this long; ``None``: never.
    event_time, slack_us
        Column of the output that is its event time, and how far behind the watermark it may be, as
        far as the user says.
    states
        Name → declaration, where there are several; `state_type` says nothing then.
    formerly, named
        As in `ComputeNode`.
    """

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]
    function: Callable[..., Any]
    state_type: Any
    output: pa.Schema
    codec: Codec
    state_classes: Mapping[str, type] | Sequence[type] = ()
    state_upgrade: Callable[[Any], Any] | None = None
    timers: TimerClock | None = None
    on_timer: Callable[..., Any] | None = None
    ttl_us: int | None = None
    event_time: str | None = None
    slack_us: int | None = None
    states: Mapping[str, Declared] = field(default_factory=dict)
    formerly: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowedNode:
    """Aggregates, or a function of the user, per key and window of event time.

    Attributes
    ----------
    windows
        Windows of one length each, or one session.
    time
        Column that holds the event time; ``None`` for the one that follows from the stream.
    update
        Whether windows are emitted as they grow, and not when they are over.
    late
        Sink of the rows that are left out, if any.
    share
        Whether windows that overlap share panes; ``None``: as measured costs say.
    consolidate
        Whether partials are consolidated by an operator of its own: in a component of its own
        (``"apart"``), or in whichever costs less (``"measured"``).
    lateness_us
        How long windows that have come out take rows, and come out again.
    length_as
        Column that says how long a row's window is, if one is wanted.
    aggregates
        Name of the result → aggregate; empty where there is a function.
    function, output
        Function of the user, and columns of the rows that it returns.
    event_time, slack_us
        As in `ProcessNode`.
    formerly, named
        As in `ComputeNode`.
    """

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]
    windows: tuple[WindowSpec, ...]
    time: str | None
    update: bool
    late: Any
    aggregates: Mapping[str, Aggregate]
    function: Callable[..., Any] | None = None
    output: pa.Schema | None = None
    event_time: str | None = None
    slack_us: int | None = None
    share: bool | None = None
    consolidate: Literal["together", "apart", "measured"] = "together"
    lateness_us: int = 0
    length_as: str | None = None
    formerly: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DropDuplicatesNode:
    """The first row of each key.

    Attributes
    ----------
    within_us
        Duplicates happen at most this long before or after it; ``None``: whenever.
    late
        Sink of the rows that are left out, if any.
    formerly, named
        As in `ComputeNode`.
    """

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]
    within_us: int | None
    late: Any = None
    formerly: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinNode:
    """Rows of two keyed streams that meet by event time.

    Attributes
    ----------
    upstream, keys
        The left stream.
    right, right_keys
        The other one.
    how
        Whose rows come out that met none.
    between_us
        How long after a row of the left one of the right happens, at least and at most; ``None``
        for the newest row of the right.
    within_us
        How old the newest row may be at most, if there is a bound.
    suffix
        What is put behind names of the right that the left has too; ``None``: there are none.
    late
        Sink of the rows that are left out, if any.
    formerly, named
        As in `ComputeNode`.
    """

    name: str
    upstream: StreamNode
    keys: tuple[str, ...]
    right: StreamNode
    right_keys: tuple[str, ...]
    how: How
    between_us: tuple[int, int] | None = None
    within_us: int | None = None
    suffix: str | None = None
    late: Any = None
    formerly: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinkNode:
    """A place for results."""

    name: str
    upstream: StreamNode
    sink: Any
    formerly: str = ""


OperatorNode: TypeAlias = ComputeNode | ProcessNode | WindowedNode | DropDuplicatesNode | JoinNode
StreamNode: TypeAlias = SourceNode | MapNode | UnionNode | OperatorNode


class FlowGraph(Protocol):
    """Everything that a flow declares, in the order in which it was declared."""

    @property
    def name(self) -> str:
        """Name of the flow."""

    @property
    def num_key_groups(self) -> int:
        """Key groups of every operator."""

    @property
    def sources(self) -> Mapping[str, DataFrame]:
        """Name of a source → its DataFrame."""

    @property
    def event_times(self) -> Mapping[str, SourceTime]:
        """Name of a source → its event time, of those that have one."""

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """Keyed operators, upstream before downstream."""

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components, upstream before downstream."""

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """Sinks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """One way that rows take to a stream.

    Attributes
    ----------
    feed
        Source or operator that makes them.
    maps
        Maps from there to the stream.
    """

    feed: SourceNode | OperatorNode
    maps: tuple[MapNode, ...]


def branches_of(node: StreamNode) -> tuple[Branch, ...]:
    """Find the ways that rows take to `node`: one, unless streams have met on the way.

    `node` itself counts: the branch of an operator's stream is that operator, without maps.
    """
    maps: list[MapNode] = []
    while isinstance(node, MapNode):
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


def sources_of(node: StreamNode) -> tuple[SourceNode, ...]:
    """Find the sources that the rows of `node` descend from, each once."""
    found: list[SourceNode] = []
    seen: set[int] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, SourceNode):
            found.append(node)
        elif isinstance(node, UnionNode):
            pending += reversed(node.upstreams)
        elif isinstance(node, MapNode):
            pending.append(node.upstream)
        else:
            pending += reversed(read_by(node))
    return tuple(found)


def read_by(node: OperatorNode) -> tuple[StreamNode, ...]:
    """Find the streams that an operator reads: one, or the left and the right of a join."""
    return (node.upstream, node.right) if isinstance(node, JoinNode) else (node.upstream,)


def levels_of(operators: Iterable[OperatorNode]) -> dict[str, int]:
    """Operator → exchanges that lie between the sources and it: 1 if only sources feed it.

    Parameters
    ----------
    operators
        Upstream before downstream.
    """
    levels: dict[str, int] = {}
    for node in operators:
        feeds = [branch.feed for stream in read_by(node) for branch in branches_of(stream)]
        above = (0 if isinstance(feed, SourceNode) else levels[feed.name] for feed in feeds)
        levels[node.name] = 1 + max(above)
    return levels

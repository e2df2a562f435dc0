"""The logical flow: sources, the streams that come from them, and the sinks they end in.

Building a flow runs nothing; a Spark session it needs only for DataFrames that it is given.
`LogicalFlow.compile` turns it into values that can run; `godwit.cluster.spark.query.flow.Flow`,
which users build, adds what starts it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from godwit.api.checks import check_formerly, describe, is_sink
from godwit.api.stand_in import map_rows
from godwit.api.streams import Stream
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.key_groups import DEFAULT_NUM_KEY_GROUPS, MAX_NUM_KEY_GROUPS
from godwit.model.naming import check_name, check_unique, type_name
from godwit.plan.compilation import Resolver, compile_flow
from godwit.plan.event_times import source_time
from godwit.plan.nodes import FlowGraph, OperatorNode, SinkNode, SourceNode, branches_of, levels_of
from godwit.plan.stream_columns import Retimed, never_retimed
from godwit.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.model.durations import Duration
    from godwit.plan.compiled import CompiledFlow


class LogicalFlow:
    """Sources, keyed operators and sinks, as declared; users call `Flow`, which adds `start`."""

    __slots__ = ("_operators", "_sinks", "_sources", "name", "num_key_groups")

    @user_call
    def __init__(self, name: str, num_key_groups: int = DEFAULT_NUM_KEY_GROUPS) -> None:
        self.name = check_name("flow", name)
        if (
            not isinstance(num_key_groups, int)
            or isinstance(num_key_groups, bool)
            or not 1 <= num_key_groups <= MAX_NUM_KEY_GROUPS
        ):
            raise InvalidFlowError(
                f"Flow {name!r} has num_key_groups={num_key_groups!r}.",
                remedy=f"Give a whole number from 1 to {MAX_NUM_KEY_GROUPS}; a few times the "
                f"cores that will ever run it is enough ({DEFAULT_NUM_KEY_GROUPS} by default).",
                flow=name,
            )
        self.num_key_groups = num_key_groups
        self._sources: dict[str, SourceNode] = {}
        self._operators: dict[str, OperatorNode] = {}
        self._sinks: dict[str, SinkNode] = {}

    def __repr__(self) -> str:
        return (
            f"<Flow {self.name!r}: sources {list(self._sources)}, operators "
            f"{list(self._operators)}, sinks {list(self._sinks)}>"
        )

    @property
    def sources(self) -> Mapping[str, DataFrame]:
        """Name of a source that is a DataFrame → that, in the order they were declared."""
        return MappingProxyType(
            {
                name: node.dataframe
                for name, node in self._sources.items()
                if node.dataframe is not None
            }
        )

    @property
    def own_sources(self) -> Mapping[str, Source]:
        """Name of a source of Godwit's own → that, in the order they were declared."""
        return MappingProxyType(
            {name: node.own for name, node in self._sources.items() if node.own is not None}
        )

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """Keyed operators, in the order they were declared: upstream before downstream."""
        return tuple(self._operators.values())

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components: what assignments and migrations are about.

        A component is one operator, and has its name. Upstream before downstream.
        """
        levels = levels_of(self._operators.values())
        return tuple(sorted(levels, key=levels.__getitem__))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """Sinks, in the order they were declared."""
        return tuple(self._sinks.values())

    @user_call
    def source(
        self,
        name: str,
        rows: DataFrame | Source,
        *,
        event_time: str | None = None,
        slack: Duration = "0 seconds",
        max_ahead: Duration = "1 day",
        idle: Duration | None = None,
    ) -> Stream:
        """Take rows from a source of Godwit's own, or from a streaming DataFrame.

        Parameters
        ----------
        name
            Unique among the flow's sources.
        rows
            A source of ``gw.sources``, or one's own (`godwit.sources.Source`): maps on its rows
            take and give Arrow tables. Or what ``spark.readStream...load()`` returns, transformed
            or not; what it was transformed by must need no state: no aggregation, no duplicates
            removed, no watermark.
        event_time
            Timestamp column that says when a row happened, for windows. Maps must leave it.
        slack
            How far the watermark stays behind the greatest event time seen: rows may be this late.
            By default there is none: a row that comes out of order may be late.
        max_ahead
            Rows that are further ahead of the driver's clock than this do not move the watermark,
            and windows leave them out and count them.
        idle
            Once no rows have come for this long, their windows are over; by default they wait for
            the next rows.

        Raises
        ------
        InvalidFlowError
            If the name is taken, this is neither a source nor a streaming DataFrame of a classic
            session, the same as that of the other sources, Spark would keep state for it, or it is
            a source already; or if a length of time will not do.
        """
        check_unique("source", check_name("source", name), self._sources, self.name)
        time = source_time(name, event_time=event_time, slack=slack, max_ahead=max_ahead, idle=idle)
        if isinstance(rows, Source):
            self._check_own(name, rows)
            node = SourceNode(name=name, own=rows, time=time)
        else:
            self._check_dataframe(name, rows)
            node = SourceNode(name=name, dataframe=rows, time=time)
        self._sources[name] = node
        return Stream(self, node)

    def _check_own(self, name: str, source: Source) -> None:
        """Refuse a source whose identity will not do, or that is another source already."""
        for other, known in self.own_sources.items():
            if known is source:
                raise InvalidFlowError(
                    f"Source {name!r} of flow {self.name!r} was given the same object as source "
                    f"{other!r}.",
                    remedy="Use the stream of that one twice, or make a source for each.",
                    source=name,
                )
        identity: object = source.identity
        if not isinstance(identity, str) or not identity:
            raise InvalidFlowError(
                f"Source {name!r} ({type_name(source)}) has the identity {identity!r}.",
                remedy="Let its property identity return text that says what it reads, the same "
                "over restarts.",
                source=name,
            )

    def _check_dataframe(self, name: str, dataframe: DataFrame) -> None:
        """Refuse what is no streaming DataFrame, or cannot be run."""
        streaming = getattr(dataframe, "isStreaming", None)
        if not isinstance(streaming, bool):
            raise InvalidFlowError(
                f"Source {name!r} was given a value of type {type_name(dataframe)}, neither a "
                f"DataFrame nor a source of Godwit's own.",
                remedy="Give it a source, from gw.sources, or a streaming DataFrame, from "
                "spark.readStream.",
                source=name,
            )
        if not streaming:
            raise InvalidFlowError(
                f"Source {name!r} was given a DataFrame that is not streaming.",
                remedy="Read it with spark.readStream in place of spark.read.",
                source=name,
            )
        self._check_source(name, dataframe)

    @user_call
    def sink(self, name: str, stream: Stream, sink: Any, *, formerly: str | None = None) -> None:
        """Send a stream to a sink.

        Parameters
        ----------
        name
            Unique among the flow's sinks.
        stream
            Output of a keyed operator, mapped or not.
        sink
            What gets every committed epoch, such as ``gw.sinks.parquet("out/")``.
        formerly
            Name that the sink had in earlier runs. Not needed while it writes to the same target,
            by which it is known again.

        Raises
        ------
        InvalidFlowError
            If the name is taken, the stream belongs to another flow or has no keyed operator, or
            this is not a sink.
        """
        check_unique("sink", check_name("sink", name), self._sinks, self.name)
        if not isinstance(stream, Stream):
            raise InvalidFlowError(
                f"Sink {name!r} was given a value of type {type_name(stream)}, not a stream.",
                remedy="Give it a stream from compute or process, as in "
                f"flow.sink({name!r}, stream, sink).",
                sink=name,
            )
        if stream.flow is not self:
            raise InvalidFlowError(
                f"Sink {name!r} of flow {self.name!r} was given a stream of another flow, "
                f"{stream.flow.name!r}.",
                remedy=f"Build the stream from a source of flow {self.name!r}; a stream cannot "
                "leave the flow that made it.",
                sink=name,
            )
        feeds = [branch.feed for branch in branches_of(stream.node)]
        unworked = [feed for feed in feeds if isinstance(feed, SourceNode)]
        if unworked:
            raise InvalidFlowError(
                f"Sink {name!r} was given a stream of source {unworked[0].name!r} that no keyed "
                "operator has worked on.",
                remedy="Put key_by(...).compute(...) or key_by(...).process(...) before it, or "
                "write stateless streams with Spark's own writeStream.",
                sink=name,
            )
        if len(feeds) > 1:
            raise InvalidFlowError(
                f"Sink {name!r} was given {describe(stream.node)}.",
                remedy="Give each of the streams to a sink of its own, or let a keyed operator "
                "work on the union before the sink.",
                sink=name,
            )
        if not is_sink(sink):
            raise InvalidFlowError(
                f"Sink {name!r} was given {type_name(sink)}, which is not a sink.",
                remedy='Give an instance of a sink, such as gw.sinks.parquet("out/").',
                sink=name,
            )
        check_formerly(name, formerly, "Sink")
        others = [other.name for other in self._sinks.values() if other.formerly == formerly]
        if formerly and others:
            raise InvalidFlowError(
                f"Sinks {others[0]!r} and {name!r} of flow {self.name!r} both say that they were "
                f"formerly {formerly!r}.",
                remedy="What was not delivered goes to one of them; leave formerly= out at the "
                "other.",
                sink=name,
            )
        self._sinks[name] = SinkNode(
            name=name, upstream=stream.node, sink=sink, formerly=formerly or ""
        )

    def compile(
        self, resolve: Resolver, retimed: Retimed = never_retimed, *, zone: str = "UTC"
    ) -> CompiledFlow:
        """Give every column a type and bind every operator, or say what is wrong with the flow.

        ``resolve(source name, maps)`` returns the Arrow schema of a DataFrame after its maps.
        ``retimed(source name, maps, column)`` counts those up to the last one that computed the
        column anew; by default none does. Godwit's own sources need neither. `zone` is the
        session's: of datetimes without one that functions return.
        """
        graph = FlowGraph(
            name=self.name,
            num_key_groups=self.num_key_groups,
            sources=tuple(self._sources.values()),
            operators=self.operators,
            sinks=self.sinks,
        )
        return compile_flow(graph, resolve, retimed, zone)

    def compiled(self) -> CompiledFlow:
        """Compile with the columns of the sources, of which none is Spark's; see `compile`.

        Maps on stand-ins are taken to leave the event time as it is.
        """

        def resolve(source: str, maps: tuple[Callable[[Any], Any], ...]) -> pa.Schema:
            frame: Any = self.sources[source]
            return map_rows(source, maps, frame, frame.table).schema

        return self.compile(resolve)

    def _check_source(self, name: str, dataframe: DataFrame) -> None:
        """Refuse a DataFrame that cannot be run; a logical flow takes whatever streams."""

    def _add_operator(self, node: OperatorNode) -> None:
        """Add a keyed operator; streams call this."""
        check_unique("operator", check_name("operator", node.name), self._operators, self.name)
        self._operators[node.name] = node

"""The logical flow: sources, the streams that come from them, and the sinks that they end in.

Building a flow runs nothing, and needs a Spark session only if its sources are DataFrames.
`LogicalFlow.compiled` turns it into a plan that can run; `godwit.spark.flow.Flow`,
which users build, adds `start`.
"""

from __future__ import annotations

import html
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from godwit.api.checks import check_formerly, describe, is_sink, node_that_may_divert
from godwit.api.names import no_such_flow_name
from godwit.api.stand_in import map_rows
from godwit.api.streams import Stream
from godwit.columns.types import SchemaLike, to_schema
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.key_groups import DEFAULT_NUM_KEY_GROUPS, MAX_NUM_KEY_GROUPS
from godwit.model.naming import check_name, check_number, check_unique, type_name
from godwit.plan.compilation import compile_flow
from godwit.plan.event_times import source_time
from godwit.plan.feedback import DEFAULT_MAX_ROUNDS, FeedbackSource
from godwit.plan.nodes import (
    ErrorsNode,
    FeedbackNode,
    FlowGraph,
    OperatorNode,
    PassNode,
    SinkNode,
    SourceNode,
    StreamNode,
    branches_of,
    levels_of,
)
from godwit.plan.stream_columns import Resolver, Retimed, no_retimed_map
from godwit.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.plan.compiled import CompiledFlow
    from godwit.time.durations import Duration
    from godwit.time.event_time import QueryWatermark


class LogicalFlow:
    """Sources, keyed operators and sinks, as declared; users build `Flow`, which adds `start`."""

    __slots__ = (
        "_errors",
        "_feedbacks",
        "_operators",
        "_query_type",
        "_query_watermark",
        "_sinks",
        "_sources",
        "_waits_for_input",
        "name",
        "num_key_groups",
    )

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            if name in LogicalFlow.__slots__:  # while it is made, or copied
                raise AttributeError(name)
            known = [known for known in dir(type(self)) if not known.startswith("_")]
            raise no_such_flow_name(name, self.name, known)

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
        self._feedbacks: dict[str, FeedbackNode] = {}
        self._errors: dict[str, ErrorsNode] = {}
        # Spark's rules for adopted queries; see `CompiledFlow`
        self._query_watermark: QueryWatermark | None = None
        self._waits_for_input = False
        # creates the running query; ``None``: `godwit.runtime.query.Query`
        self._query_type: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return (
            f"<Flow {self.name!r}: sources {list(self._sources)}, operators "
            f"{list(self._operators)}, sinks {list(self._sinks)}>"
        )

    def _repr_html_(self) -> str:
        """Return the flow's picture as HTML, for notebooks."""
        return f"<div><b>{html.escape(f'Flow {self.name!r}')}</b><br>{self._as_svg()}</div>"

    def _as_svg(self) -> str:
        """Return the flow's graph as SVG."""
        return str(import_module("godwit.ops.drawing").flow_svg(self._as_graph()))

    @property
    def sources(self) -> Mapping[str, DataFrame]:
        """Sources that are DataFrames, by name, in the order of declaration.

        Examples
        --------
        >>> list(flow.sources)
        ['flights']
        """
        return MappingProxyType(
            {
                name: node.dataframe
                for name, node in self._sources.items()
                if node.dataframe is not None
            }
        )

    @property
    def own_sources(self) -> Mapping[str, Source]:
        """Godwit's own sources (`gw.sources`), by name, in the order of declaration.

        Examples
        --------
        >>> clock = flow.source("clock", gw.sources.rate(10.0))
        >>> list(flow.own_sources)
        ['clock']
        """
        return MappingProxyType(
            {name: node.own for name, node in self._sources.items() if node.own is not None}
        )

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """Keyed operators of the flow, with their names and options, upstream before downstream.

        Examples
        --------
        >>> [operator.name for operator in flow.operators]
        ['by_plane']
        """
        return tuple(self._operators.values())

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components, the units of assignments and migrations.

        Before the start every operator is a component of its own, of the same name. Upstream
        components come first.

        Examples
        --------
        >>> flow.components
        ('by_plane',)
        """
        levels = levels_of(self._operators.values())
        return tuple(sorted(levels, key=levels.__getitem__))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """Sinks of the flow, with their names and streams, in the order of declaration.

        Examples
        --------
        >>> [sink.name for sink in delays.sinks]
        ['by_plane']
        """
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
        """Add a source of Godwit's own, or a streaming DataFrame, and return its rows as a stream.

        Parameters
        ----------
        name
            Name of the source, unique in the flow.
        rows
            A source of ``gw.sources``, or an instance of your own subclass of
            `godwit.sources.Source`; maps on its rows take and return Arrow tables. Or the streaming
            DataFrame that ``spark.readStream...load()`` returns, with or without transformations;
            these must be stateless: no aggregation, no removal of duplicates, no watermark.
        event_time
            Timestamp column with the event time, for windows, joins and timers. Maps must keep the
            column.
        slack
            Delay of the watermark behind the greatest event time seen, as in Spark's
            ``withWatermark``: rows that are out of order by at most this are not late. 0 by
            default.
        max_ahead
            Rows whose event time is further ahead of the driver's clock than this do not advance
            the watermark; operators over event time leave them out and count them.
        idle
            After this time without rows, by the driver's clock, the source is idle: its open
            windows are emitted, and it no longer holds back the watermark of a union or join. By
            default a source is never idle.

        Raises
        ------
        InvalidFlowError
            If the name is taken; `rows` is neither a source nor a streaming DataFrame of a classic
            Spark session (not Spark Connect), or of a different session than the other sources; the
            DataFrame needs state in Spark; the same source object was added before; or a length of
            time is not valid.

        Examples
        --------
        >>> clock = gw.sources.rate(10.0, num_keys=4)
        >>> flow.source("clock", clock, event_time="timestamp", slack="5 seconds")
        <Stream of flow 'delays': source 'clock'>
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

    @user_call
    def feedback(
        self,
        name: str,
        schema: SchemaLike,
        *,
        event_time: str | None = None,
        holds_watermark: bool = True,
        max_rounds: int = DEFAULT_MAX_ROUNDS,
    ) -> Stream:
        """Begin a feedback loop: return the stream of the rows that are fed back to it.

        Rows that ``stream.feed_back_to(loop)`` gets in epoch *e* are rows of this stream in epoch
        *e + 1*. While rows wait in the loop, epochs run even if no source has rows.

        Parameters
        ----------
        name
            Name of the source, unique in the flow. It must not change while rows wait in the loop.
        schema
            Columns of the rows: an Arrow schema, a dict of column name → type, text such as
            ``"person long, by long"``, or a PySpark ``StructType``.
        event_time
            Timestamp column with the event time, for windows in the loop.
        holds_watermark
            ``True``: while a row waits in the loop, operators in the loop close no window that ends
            after the row's event time. ``False``: such windows close as the watermark advances, and
            rows that wait may be late.
        max_rounds
            Maximum number of consecutive epochs that run for rows of the loop alone. Then the loop
            pauses, with an event `FeedbackPaused`: its rows stay, and continue in the next epoch
            that has other rows, or after a restart.

        Returns
        -------
        Stream
            The rows of the loop; none in the first epoch. Use it in ``union``, ``join`` or
            ``key_by``.

        Raises
        ------
        InvalidFlowError
            If the name is taken, or the schema or an option is not valid.

        Examples
        --------
        >>> loop = flow.feedback("reached", "person long, by long")
        >>> asked = flow.source("asked", gw.testing.stream("person long, by long"))
        >>> asked.union(loop).key_by("person")
        <KeyedStream of flow 'delays': the union of source 'asked' and source 'reached' by person>
        """
        check_unique("source", check_name("source", name), self._sources, self.name)
        check_number("max_rounds", max_rounds, least=1, error=InvalidFlowError)
        columns = to_schema(schema, where=f"The schema of the loop {name!r}")
        time = source_time(
            name, event_time=event_time, slack="0 seconds", max_ahead="1 day", idle=None
        )
        own = FeedbackSource(
            name, columns, max_rounds=max_rounds, holds_watermark=bool(holds_watermark)
        )
        node = self._sources[name] = SourceNode(name=name, own=own, time=time)
        return Stream(self, node)

    def _feed_back(self, stream: StreamNode, loop: SourceNode) -> None:
        """Record that a stream is fed back to a loop; raise if another one is already."""
        if loop.name in self._feedbacks:
            raise InvalidFlowError(
                f"Two streams are fed back to the loop {loop.name!r} of flow {self.name!r}.",
                remedy="Unite them first, as in one.union(other).feed_back_to(loop).",
                source=loop.name,
            )
        self._feedbacks[loop.name] = FeedbackNode(loop=loop, upstream=stream)

    def _check_own(self, name: str, source: Source) -> None:
        """Raise if a source object was added before, or its identity is not text."""
        for other, known in self.own_sources.items():
            if known is source:
                raise InvalidFlowError(
                    f"Source {name!r} of flow {self.name!r} was given the same object as source "
                    f"{other!r}.",
                    remedy="Use the stream of that one twice, or create a source for each.",
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
        """Raise if a value is not a streaming DataFrame, or cannot be run."""
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
                remedy="Read it with spark.readStream instead of spark.read.",
                source=name,
            )
        self._check_source(name, dataframe)

    @user_call
    def sink(self, name: str, stream: Stream, sink: Any, *, formerly: str | None = None) -> None:
        """Write the rows of a stream to a sink.

        Parameters
        ----------
        name
            Name of the sink, unique in the flow.
        stream
            Any stream: the output of an operator, the rows of a source, or a union, each with or
            without maps. Rows that no operator has worked on go to the lanes (parallel tasks) that
            write for the sink by an operator without state, which has the name of the sink and
            ``_rows``.
        sink
            The sink that gets the rows of every committed epoch, such as
            ``gw.sinks.parquet("out/")``.
        formerly
            Name of the sink in earlier runs, for renaming it. Not needed if it writes to the same
            target, by which it is recognised.

        Raises
        ------
        InvalidFlowError
            If the name is taken, the stream belongs to another flow, or `sink` is not a sink.

        Examples
        --------
        >>> results = gw.sinks.memory()
        >>> flow.sink("by_plane", by_plane, results)
        >>> [sink.sink is results for sink in flow.sinks]
        [True]
        """
        self._check_sink(name, stream, sink)
        feeds = [branch.feed for branch in branches_of(stream.node)]
        check_formerly(name, formerly, "Sink")
        others = [other.name for other in self._sinks.values() if other.formerly == formerly]
        if formerly and others:
            raise InvalidFlowError(
                f"Sinks {others[0]!r} and {name!r} of flow {self.name!r} both say that they were "
                f"formerly {formerly!r}.",
                remedy="Undelivered epochs go to one of them; leave formerly= out at the other.",
                sink=name,
            )
        node = stream.node
        if len(feeds) > 1 or isinstance(feeds[0], SourceNode):
            # No lanes have the rows of the stream; an operator without state brings them there.
            node = PassNode(
                name=f"{name}_rows",
                upstream=node,
                keys=(),
                formerly=f"{formerly}_rows" if formerly else "",
                row_keys=tuple(getattr(sink, "row_keys", ())),
            )
            self._add_operator(node)
        self._sinks[name] = SinkNode(name=name, upstream=node, sink=sink, formerly=formerly or "")

    @user_call
    def divert_errors(
        self, name: str, stream: Stream, sink: Any, *, max_error_share: float = 0.1
    ) -> None:
        """Write the rows for which a function of yours fails to a sink, instead of stopping.

        A call that raises, or emits rows that do not fit, is undone: state, timers and emitted rows
        are as before it. Its rows go to the sink, exactly once, and the other calls go on.

        Parameters
        ----------
        name
            Name of the sink, unique in the flow.
        stream
            What ``map``, ``process``, ``process_batch``, ``transform_with_state`` or
            ``apply_in_pandas_with_state`` returned: the stream of the function. Not of a map over
            DataFrames, which Spark runs.
        sink
            The sink that gets the rows. Its columns are texts: ``operator``, ``function``, ``key``
            and ``row`` (JSON), ``error``, ``message``, and ``traceback`` in the first row of a
            call. A call of a timer has one row, whose ``row`` is empty.
        max_error_share
            The query stops anyway, before the commit, if more than this share of the recent
            rows (of 1,000 at least) would be diverted.

        Raises
        ------
        InvalidFlowError
            If the name is taken, `sink` is not a sink, or the stream has no such function, or one
            whose errors are diverted already.

        Notes
        -----
        A failure undoes, by the kind of the function:

        - ``process``: the call for one key: its state, timers and emitted rows are as before it.
          With ``order="event_time"`` only the call of that event time. A row that does not fit
          ``row=`` is diverted alone. If an emitted row does not fit ``output=``, all calls for the
          key in the epoch are undone
        - ``timers=``: the call of one timer; the timer is gone. The sink gets a row whose ``row``
          is empty
        - an ``async def``: the same, after the retries
        - ``transform_with_state``: the call of ``handleInputRows`` for one key, or of
          ``handleExpiredTimer`` for one timer. Attributes of the processor stay as the call left
          them
        - ``apply_in_pandas_with_state``: the call for one key; if it has timed out, its time-out is
          gone
        - ``window(...).process``: the call for one window; the rows of the window are diverted
        - ``process_batch``, ``map`` over Arrow tables: the function is called again for half of the
          keys or rows, and so on, until single ones fail; after 1,000 calls per table the rest is
          diverted together

        Examples
        --------
        >>> def count(key, rows, seen: gw.types.State[int]):
        ...     seen.value += sum(row.delay for row in rows)
        ...     return [(*key, 100 // seen.value)]
        >>> flow = gw.Flow("shares")
        >>> flights = flow.source("flights", gw.sources.memory("plane string, delay long"))
        >>> keyed = flights.key_by("plane")
        >>> shares = keyed.process(count, state=int, output="plane string, s long")
        >>> flow.sink("shares", shares, gw.sinks.noop())
        >>> flow.divert_errors("failed", shares, gw.sinks.memory())
        >>> rows = [{"plane": "N1", "delay": 0}, {"plane": "N2", "delay": 50}]
        >>> played = gw.testing.run(flow, {"flights": rows})
        >>> played.rows("shares").to_pylist(), played.rows("failed")["error"].to_pylist()
        ([{'plane': 'N2', 's': 2}], ['ZeroDivisionError'])
        """
        self._check_sink(name, stream, sink)
        node = node_that_may_divert(name, stream.node)
        if any(other.function_of is node for other in self._errors.values()):
            raise InvalidFlowError(
                f"Sink {name!r} was given {describe(node)}, whose errors have a sink already.",
                remedy="Leave one of the two out.",
                sink=name,
            )
        share: object = max_error_share
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidFlowError(
                f"Sink {name!r} was given max_error_share={share!r}.",
                remedy="Give a share of the rows above 0 and up to 1, such as 0.01.",
                sink=name,
            )
        self._errors[name] = ErrorsNode(
            name=name, function_of=node, sink=sink, max_error_share=float(share)
        )

    def _check_sink(self, name: str, stream: object, sink: object) -> None:
        """Raise unless a sink may have this name, stream and object."""
        taken = {**self._sinks, **self._errors}
        check_unique("sink", check_name("sink", name), taken, self.name)
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
        if not is_sink(sink):
            raise InvalidFlowError(
                f"Sink {name!r} was given {type_name(sink)}, which is not a sink.",
                remedy='Give an instance of a sink, such as gw.sinks.parquet("out/").',
                sink=name,
            )

    def compile(
        self, resolve: Resolver, retimed: Retimed = no_retimed_map, *, zone: str = "UTC"
    ) -> CompiledFlow:
        """Return the plan of the flow, with the types of all columns.

        `compiled` does the same without arguments, and is enough for users.

        Parameters
        ----------
        resolve
            Called as ``resolve(source, maps)`` for sources that are DataFrames; returns the Arrow
            schema of the source's rows after these maps.
        retimed
            Called as ``retimed(source, maps, column)`` for them; returns the number of the last map
            (from 1) that changes the event-time column, and 0 if none does. By default none does.
        zone
            Time zone of datetimes without a zone that functions return.

        Raises
        ------
        InvalidFlowError
            If the flow cannot run; the message names the place and a remedy.

        Examples
        --------
        >>> columns = pa.schema({"plane": pa.string(), "delay": pa.int64()})
        >>> [operator.name for operator in delays.compile(lambda source, maps: columns).operators]
        ['by_plane']
        """
        return compile_flow(self._as_graph(), resolve, retimed, zone)

    def _as_graph(self) -> FlowGraph:
        """Return the flow's declarations as a graph, for the compiler."""
        return FlowGraph(
            name=self.name,
            num_key_groups=self.num_key_groups,
            sources=tuple(self._sources.values()),
            operators=self.operators,
            sinks=self.sinks,
            feedbacks=tuple(self._feedbacks.values()),
            errors=tuple(self._errors.values()),
            query_watermark=self._query_watermark,
            waits_for_input=self._waits_for_input,
        )

    def compiled(self) -> CompiledFlow:
        """Compile a flow without DataFrames of Spark; see `compile`.

        Maps on stand-ins are taken to leave the event time as it is.

        Examples
        --------
        >>> delays.compiled().num_key_groups
        256
        """

        def resolve(source: str, maps: tuple[Callable[[Any], Any], ...]) -> pa.Schema:
            frame: Any = self.sources[source]
            return map_rows(source, maps, frame, frame.table).schema

        return self.compile(resolve)

    def _check_source(self, name: str, dataframe: DataFrame) -> None:
        """Raise if a DataFrame cannot be run, in subclasses that run flows; no-op here."""

    def _add_operator(self, node: OperatorNode) -> None:
        """Add a keyed operator to the flow; raise if its name is taken."""
        check_unique("operator", check_name("operator", node.name), self._operators, self.name)
        self._operators[node.name] = node

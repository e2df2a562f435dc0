"""Compilation: from the user's graph to operators bound to the types of their columns.

One pass over the operators in the order they were declared, which is upstream before downstream.
Everything that can be wrong with columns is found here, before anything runs.  Nodes are bound by
the library of operators, which is found by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.columns.types import is_key_type, key_type_remedy, visible_names, visible_schema
from godwit.model import plugins
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    check_unique,
    did_you_mean,
    listing,
)
from godwit.operators.failed_calls import FAILED
from godwit.operators.hot_keys import PART
from godwit.plan.compiled import (
    CompiledFlow,
    Component,
    Input,
    SinkOutput,
    SourceInput,
    UpstreamInput,
)
from godwit.plan.event_times import (
    check_timestamp,
    delay_us,
)
from godwit.plan.explain import action_of
from godwit.plan.feedback import Feedback, FeedbackSource
from godwit.plan.nodes import (
    CustomNode,
    DropDuplicatesNode,
    JoinNode,
    MapNode,
    OperatorNode,
    PassNode,
    ProcessNode,
    SourceNode,
    StreamNode,
    WindowedNode,
    branches_of,
    check_kinds,
    check_sign,
    kind_of,
    levels_of,
    sources_of,
    streams_read_by,
    table_keys,
    tables_of,
)
from godwit.plan.staging import REJECTED
from godwit.plan.stream_columns import Resolver, Retimed, StreamColumns, differences

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from godwit.operators.operator import KeyedOperator
    from godwit.plan.nodes import FeedbackNode, FlowGraph, TableNode
    from godwit.sources.source import Source


_LIBRARY: Final = "godwit.library.binding"  # makes operators of all nodes but custom ones
_PHASES: Final = "godwit.library.windows.phases"


def compile_flow(flow: FlowGraph, resolve: Resolver, retimed: Retimed, zone: str) -> CompiledFlow:
    """Validate a flow and bind its operators; see `godwit.api.flow.LogicalFlow.compile`.

    `resolve`: returns the columns of DataFrame maps. `retimed`: counts the maps that recompute
    event time. `zone`: the session's time zone.
    """
    _check_all_used(flow)
    check_kinds(flow)
    return Compilation(flow, resolve, retimed, zone).run()


def _check_all_used(flow: FlowGraph) -> None:
    """Refuse a flow without a sink, and operators or sources without a path to one."""
    if not flow.sinks:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has no sink, so its results would be lost.",
            remedy='Add one, as in flow.sink("totals", stream, gw.sinks.parquet("out/")).',
            flow=flow.name,
        )
    used: set[str] = set()
    tables: list[TableNode] = []
    pending = [sink.upstream for sink in flow.sinks]
    pending += [edge.upstream for edge in flow.feedbacks]
    while pending:
        for branch in branches_of(pending.pop()):
            if not isinstance(branch.feed, SourceNode) and branch.feed.name not in used:
                used.add(branch.feed.name)
                pending += streams_read_by(branch.feed)
                tables += tables_of(branch.feed)
    idle = [node.name for node in flow.operators if node.name not in used]
    if idle:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has operators without a path to a sink: {listing(idle)}.",
            remedy="Give each of their streams to a sink or to an operator that has one, or do "
            "not build them.",
            flow=flow.name,
            operators=idle,
        )
    streams = [*(sink.upstream for sink in flow.sinks), *(table.stream for table in tables)]
    streams += [edge.upstream for edge in flow.feedbacks]
    read = {source.name for stream in streams for source in sources_of(stream)}
    if unread := [source.name for source in flow.sources if source.name not in read]:
        raise InvalidFlowError(
            f"Flow {flow.name!r} has sources that feed no sink: {listing(unread)}.",
            remedy="Build a stream from each of them up to a sink, or leave them out.",
            flow=flow.name,
            sources=unread,
        )


class Compilation:
    """One run of the compiler, which binds operators upstream first."""

    def __init__(self, flow: FlowGraph, resolve: Resolver, retimed: Retimed, zone: str) -> None:
        self.flow, self.retimed, self.zone = flow, retimed, zone
        self.operators: dict[str, KeyedOperator] = {}
        self.errors = {id(errors.function_of): errors.name for errors in flow.errors}
        self.columns = StreamColumns(self.operators, resolve, self.errors)
        self.times = {source.name: source.time for source in flow.sources if source.time}
        self.timed: set[str] = set()  # sources whose event time some operator uses
        self.own = {source.name: source.own for source in flow.sources if source.own is not None}

    def run(self) -> CompiledFlow:
        """Bind every operator, and return the compiled flow."""
        inputs: dict[str, list[Input]] = {}
        for node in self.flow.operators:
            inputs[node.name] = self.bind(node)
            _partition(self.operators[node.name], node)
        if self.flow.query_watermark is not None:  # all sources move it
            self.timed.update(self.times)
        levels = levels_of(self.flow.operators)
        names = sorted(levels, key=levels.__getitem__)
        timed = tuple(self.timed_input(edge) for name in names for edge in inputs[name])
        self.check_watermarks(timed)
        whole = CompiledFlow(
            name=self.flow.name,
            num_key_groups=self.flow.num_key_groups,
            sources=tuple(source.name for source in self.flow.sources),
            own_sources=self.own,
            components=tuple(
                Component(name=name, operators=(self.operators[name],), level=levels[name])
                for name in names
            ),
            inputs=timed,
            feedbacks=tuple(feedbacks_of(self.flow, self.columns, self.timed)),
            outputs=self.check_one_output_per_sink(tuple(self.outputs())),
            actions={node.name: action_of(node) for node in self.flow.operators},
            formerly=self.former_names(),
            starts_empty=frozenset(node.name for node in self.flow.operators if node.starts_empty),
            unnamed=frozenset(node.name for node in self.flow.operators if not node.named),
            times={name: time for name, time in self.times.items() if name in self.timed},
            query_watermark=self.flow.query_watermark,
            waits_for_input=self.flow.waits_for_input,
        )
        windowed = [node for node in self.flow.operators if isinstance(node, WindowedNode)]
        if all(node.consolidate == "together" for node in windowed):
            return whole
        parted: CompiledFlow = plugins.in_district(_PHASES, "split_windows")(
            whole,
            apart=[node.name for node in windowed if node.consolidate == "apart"],
            measured=[node.name for node in windowed if node.consolidate == "measured"],
        )
        return parted

    def timed_input(self, edge: Input) -> Input:
        """Return an input with its source's event-time column set, if the flow needs event time."""
        if not isinstance(edge, SourceInput) or edge.source not in self.timed or edge.table:
            return edge
        time = self.times[edge.source]
        schema = self.columns.of_sources[edge.source, edge.maps]
        if time.column not in schema.names:
            return edge
        field = schema.field(time.column)
        check_timestamp(
            field,
            f"Source {edge.source!r} has the event time",
            f"source {edge.source!r}",
            edge.operator,
        )
        if isinstance(self.own.get(edge.source), FeedbackSource):
            return replace(edge, time=field)  # its watermark follows from those of the others
        if edge.source in self.own:
            # Nothing tells that a function over tables leaves a column as it was.
            return replace(edge, time=field, retimed=edge.maps)
        number = self.retimed(edge.source, edge.maps, time.column)
        return replace(edge, time=field, retimed=edge.maps[:number])

    def check_watermarks(self, inputs: Iterable[Input]) -> None:
        """Refuse maps that drop a source's event time: the source's watermark would not advance."""
        moving = {i.source for i in inputs if isinstance(i, SourceInput) and i.time is not None}
        for source in sorted(self.timed - moving):
            column = self.times[source].column
            raise InvalidFlowError(
                f"Source {source!r} has the event time {column!r}, but the maps after it leave no "
                "column of that name, so its watermark would never move.",
                remedy="Leave the column in the maps"
                + (
                    "."
                    if source in self.own
                    else "; to give it another name, rename it in the DataFrame that "
                    "flow.source(...) is given, and name it so in event_time=."
                ),
                source=source,
                column=column,
            )

    def former_names(self) -> dict[str, str]:
        """Return operator → former name; refuse two operators with one former name."""
        former: dict[str, str] = {}
        for node in self.flow.operators:
            if node.formerly and node.formerly in former.values():
                raise InvalidFlowError(
                    f"Two operators of flow {self.flow.name!r} say that they were formerly "
                    f"{node.formerly!r}.",
                    remedy="State goes to one of them; leave formerly= out at the other.",
                    flow=self.flow.name,
                    operator=node.name,
                )
            if node.formerly:
                former[node.name] = node.formerly
        return former

    def bind(self, node: OperatorNode) -> list[Input]:
        """Bind an operator to the types of its columns; return its inputs."""
        for stream in streams_read_by(node):
            check_sign(stream, *self.columns.of(stream), f"Operator {node.name!r}")
        if isinstance(node, CustomNode):
            return self.bind_custom(node)
        inputs: list[Input] = plugins.in_district(_LIBRARY, "bind")(self, node)
        return inputs

    def bind_custom(self, node: CustomNode) -> list[Input]:
        """Bind an operator that makes itself, and return the inputs of its streams."""
        inputs: list[Input] = []
        schemas = []
        for stream, keys in node.streams:
            schema, origin = self.columns.of(stream)
            keys_of(node.name, keys, schema, origin)
            columns = keys_first(schema, keys)
            schemas.append(schema if node.in_order else columns)
            inputs += self.inputs(node.name, stream, keys, columns, first=len(inputs))
        operator = self.operators[node.name] = node.make(schemas)
        operator.zone, operator.failures_to = self.zone, self.errors.get(id(node), "")
        if operator.over_event_time or operator.has_timers:
            self.timed.update(source.name for source in sources_of(node) if source.time is not None)
        return inputs

    def inputs(
        self,
        operator: str,
        stream: StreamNode,
        keys: tuple[str, ...],
        exchanged: pa.Schema,
        *,
        time: str | None = None,
        first: int = 0,
    ) -> list[Input]:
        """Return an operator's inputs, one for each branch of the stream that it reads.

        `exchanged`: columns that are sent to the operator. `time`: its column of event time, if
        any. `first`: number of the first input.
        """
        columns_of = self.columns.names_of
        return [
            SourceInput(
                operator=operator,
                source=branch.feed.name,
                maps=self.columns.source_maps(branch),
                keys=keys,
                schema=exchanged,
                number=number,
            )
            if isinstance(branch.feed, SourceNode)
            else UpstreamInput(
                operator=operator,
                upstream=branch.feed.name,
                maps=self.columns.arrow_maps(branch),
                keys=keys,
                schema=exchanged,
                number=number,
                delay_us=0 if time is None else delay_us(branch.feed, time, operator, columns_of),
            )
            for number, branch in enumerate(branches_of(stream), first)
        ]

    def outputs(self) -> Iterable[SinkOutput]:
        """Yield the outputs: of sinks, and of late, rejected and unreadable rows."""
        for sink in self.flow.sinks:
            schema, origin = self.columns.of(sink.upstream)
            check_sign(sink.upstream, schema, origin, f"Sink {sink.name!r}")
            key_names = table_keys(sink.upstream)
            (branch,) = branches_of(sink.upstream)
            feed = branch.feed
            assert not isinstance(feed, SourceNode)  # Flow.sink refuses such a stream
            # What such operators emit are rows, which their keys do not tell apart.
            emits_rows = isinstance(feed, DropDuplicatesNode | JoinNode | PassNode)
            complete_key = not emits_rows and set(feed.keys) <= set(schema.names)
            yield SinkOutput(
                name=sink.name,
                operator=feed.name,
                maps=self.columns.arrow_maps(branch),
                schema=schema,
                keys=feed.keys if complete_key else (),
                unique_keys=tuple(
                    columns
                    for keys in self.operators[feed.name].unique_keys
                    if set(columns := tuple(visible_names(keys))) <= set(schema.names)
                ),
                sink=sink.sink,
                formerly=sink.formerly,
                kind=kind_of(sink.upstream),
                table_keys=key_names if set(key_names) <= set(schema.names) else (),
            )
            yield from self.rejects_of(sink.name, feed.name, sink.sink)
        for node in self.flow.operators:
            if (
                isinstance(node, WindowedNode | ProcessNode | DropDuplicatesNode | JoinNode)
                and node.late is not None
            ):
                name = f"{node.name}_late"
                self.check_sink_name(name)
                left_out = self.operators[node.name].left_out_schema
                assert left_out is not None, "operators over event time leave rows out"
                left_out = visible_schema(left_out)
                check_column_names(left_out.names, f"Late rows of {node.name!r}")
                yield SinkOutput(
                    name=name,
                    operator=node.name,
                    maps=(),
                    schema=left_out,
                    keys=(),
                    sink=node.late,
                    left_out=True,
                )
                yield from self.rejects_of(name, node.name, node.late)

        yield from self.error_outputs()
        for source, own_source in self.own.items():
            if own_source.rejects is not None:
                yield from self.unreadable_of(source, own_source)

    def error_outputs(self) -> Iterable[SinkOutput]:
        """Yield the outputs for rows of failed calls of operators and maps."""
        for errors in self.flow.errors:
            node = errors.function_of
            operator = node.upstream if isinstance(node, MapNode) else node
            (feed, *_) = (branch.feed for branch in branches_of(operator))
            if isinstance(feed, SourceNode):
                every = self.flow.operators  # of which one at least reads a source
                feed = next((o for o in every if feed.name in self.sources_read_by(o)), every[0])
            yield SinkOutput(
                name=errors.name,
                operator=feed.name,
                maps=(),
                schema=FAILED,
                keys=(),
                sink=errors.sink,
                max_error_share=errors.max_error_share,
            )
            yield from self.rejects_of(errors.name, feed.name, errors.sink)

    def unreadable_of(self, source: str, origin: Source) -> Iterable[SinkOutput]:
        """Yield the output for rows that a source cannot read, if the user gave a sink for them.

        Refuses such a sink if the source reads every row.
        """
        name = f"{source}_unreadable"
        self.check_sink_name(name)
        if origin.unreadable is None or getattr(origin.rejects, "deliver", None) is None:
            raise InvalidFlowError(
                f"Source {source!r} has rejects={origin.rejects!r}, "
                + ("and reads all rows." if origin.unreadable is None else "which is not a sink."),
                remedy='Give a sink, such as gw.sinks.parquet("out/unreadable"), to a source that '
                "may have rows it cannot read.",
                source=source,
            )
        reads = (o for o in self.flow.operators if source in self.sources_read_by(o))
        operator = next(reads).name
        yield SinkOutput(
            name=name,
            operator=operator,
            maps=(),
            schema=origin.unreadable,
            keys=(),
            sink=origin.rejects,
            unreadable_of=source,
        )
        yield from self.rejects_of(name, operator, origin.rejects)

    def sources_read_by(self, node: OperatorNode) -> set[str]:
        """Return the names of the sources whose rows reach an operator through maps alone."""
        branches = [branch for stream in streams_read_by(node) for branch in branches_of(stream)]
        return {b.feed.name for b in branches if isinstance(b.feed, SourceNode)}

    def check_one_output_per_sink(self, outputs: tuple[SinkOutput, ...]) -> tuple[SinkOutput, ...]:
        """Return the outputs; refuse one sink object under two names, which would mix up epochs.

        A sink that stores no rows is accepted.
        """
        taken: dict[int, str] = {}
        for output in outputs:
            if not getattr(output.sink, "wants_rows", True):
                continue
            other = taken.setdefault(id(output.sink), output.name)
            if other != output.name:
                raise InvalidFlowError(
                    f"Sinks {other!r} and {output.name!r} of flow {self.flow.name!r} are the "
                    "same object, which cannot keep the epochs of both apart.",
                    remedy="Create a sink for each; several sinks may append rows to one table of "
                    "a database or a lakehouse.",
                    flow=self.flow.name,
                    sink=output.name,
                )
        return outputs

    def rejects_of(self, sink: str, operator: str, value: Any) -> Iterable[SinkOutput]:
        """Yield the output for rows that a sink rejects, if the user gave a sink for them."""
        rejects = getattr(value, "rejects", None)
        if rejects is not None:
            self.check_sink_name(f"{sink}_rejects")
            yield SinkOutput(
                name=f"{sink}_rejects",
                operator=operator,
                maps=(),
                schema=REJECTED,
                keys=(),
                sink=rejects,
                rejects_of=sink,
            )

    def check_sink_name(self, sink: str) -> None:
        """Raise if the user has given the name of a derived sink to another sink."""
        taken = {other.name for other in self.flow.sinks}
        taken |= {other.name for other in self.flow.errors}
        check_unique("sink", sink, taken, self.flow.name)


def _partition(operator: KeyedOperator, node: OperatorNode) -> None:
    """Set the columns that decide an operator's key groups.

    Refuse hot keys with ``partition_by=``.
    """
    if node.partition_by and PART in operator.hash_columns.names:
        raise InvalidFlowError(
            f"Operator {node.name!r} has partition_by={listing(node.partition_by)}, and spread= or "
            "merge=, by which rows of one key go to several lanes.",
            remedy="Leave one of the two out.",
            operator=node.name,
        )
    operator.partition_by = node.partition_by or ()
    operator.partition_stated = node.partition_by is not None


def keys_of(operator: str, keys: tuple[str, ...], schema: pa.Schema, origin: str) -> list[pa.Field]:
    """Return an operator's key columns; refuse other types. `origin`: its input, for errors."""
    fields = [
        checked_column(schema, key, f"Operator {operator!r} is keyed by", origin) for key in keys
    ]
    for field in fields:
        if not is_key_type(field.type):
            raise InvalidFlowError(
                f"Operator {operator!r} is keyed by column {field.name!r} of {origin}, whose type "
                f"{field.type} cannot be a key.",
                remedy=key_type_remedy(field.name, field.type),
                operator=operator,
                column=field.name,
            )
    return fields


def keys_first(schema: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    """Return a schema with the key columns moved to the front."""
    others = [field for field in schema if field.name not in keys]
    return pa.schema([*(schema.field(key) for key in keys), *others])


def checked_column(schema: pa.Schema, name: str, subject: str, origin: str) -> pa.Field:
    """Return a column of a stream; refuse a name that the stream does not have.

    `subject`, `origin`: who reads the column, and the stream, for messages.
    """
    if name not in schema.names:
        raise InvalidFlowError(
            f"{subject} column {name!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(name, schema.names)}Its columns are {listing(schema.names)}.",
            column=name,
        )
    return schema.field(name)


def feedbacks_of(
    flow: FlowGraph,
    columns: StreamColumns,
    timed: Collection[str],  # sources whose event time some operator uses
) -> Iterator[Feedback]:
    """Yield the feedback edges of a flow, each with a beginning, an end and the same columns.

    Raises `InvalidFlowError` for a loop that nothing is fed back to, rows that do not descend from
    it, other columns than it has, and event times that its windows would meet too late.
    """
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

"""Compiling: from the graph that the user drew to operators bound to the types of their columns.

One pass over the operators in the order they were declared, which is upstream before downstream.
Everything that can be wrong with columns is found here, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.dataflow.compiled import (
    CompiledFlow,
    Component,
    Input,
    Output,
    SourceInput,
    UpstreamInput,
)
from godwit.dataflow.compute import ComputeOperator
from godwit.dataflow.maps import ArrowMap, bind_map
from godwit.dataflow.naming import (
    check_column_names,
    check_unique,
    did_you_mean,
    error_line,
    function_name,
    listing,
)
from godwit.dataflow.nodes import (
    Branch,
    ComputeNode,
    MapNode,
    OperatorNode,
    ProcessNode,
    SourceNode,
    StreamNode,
    UnionNode,
    WindowedNode,
    branches_of,
    levels_of,
    sources_of,
)
from godwit.dataflow.process import ProcessOperator
from godwit.dataflow.staging import REJECTED
from godwit.dataflow.timers import TimedProcess
from godwit.dataflow.types import is_key_type, key_type_remedy, plain_schema
from godwit.dataflow.unions import insist_on_same_columns
from godwit.dataflow.windows.binding import (
    event_time_of,
    insist_on_event_time,
    insist_on_moments,
    windowed_operator,
)
from godwit.dataflow.windows.operator import WindowedOperator
from godwit.model.errors import GodwitError, InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.dataflow.flow import LogicalFlow
    from godwit.dataflow.operator import KeyedOperator

__all__ = ["Resolver", "compile_flow"]

DataFrameMaps: TypeAlias = tuple[Callable[[Any], Any], ...]

Resolver: TypeAlias = Callable[[str, DataFrameMaps], pa.Schema]
"""``resolve(source name, maps)`` returns the Arrow schema of the source after its maps."""


def compile_flow(flow: LogicalFlow, resolve: Resolver) -> CompiledFlow:
    """Validate `flow` and bind its operators; see `LogicalFlow.compile`."""
    _check_all_used(flow)
    return _Compilation(flow, resolve).run()


def _check_all_used(flow: LogicalFlow) -> None:
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
                pending.append(branch.feed.upstream)
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


class _Compilation:
    """One run of the compiler, with what it has found so far."""

    def __init__(self, flow: LogicalFlow, resolve: Resolver) -> None:
        self.flow = flow
        self.resolve = resolve
        self.source_schemas: dict[tuple[str, DataFrameMaps], pa.Schema] = {}
        self.operators: dict[str, KeyedOperator] = {}
        self.maps: dict[tuple[str, tuple[MapNode, ...]], ArrowMap] = {}
        self.timed: set[str] = set()

    def run(self) -> CompiledFlow:
        inputs: dict[str, list[Input]] = {}
        for node in self.flow.operators:
            inputs[node.name] = self.bind(node)
        names = self.flow.components
        levels = levels_of(self.flow.operators)
        timed = tuple(self.timed_input(given) for name in names for given in inputs[name])
        self.insist_on_watermarks(timed)
        return CompiledFlow(
            name=self.flow.name,
            num_key_groups=self.flow.num_key_groups,
            sources=tuple(self.flow.sources),
            components=tuple(
                Component(name=name, operators=(self.operators[name],), level=levels[name])
                for name in names
            ),
            inputs=timed,
            outputs=tuple(self.outputs()),
            actions={node.name: _action(node) for node in self.flow.operators},
            formerly=self.formerly(),
            unnamed=frozenset(node.name for node in self.flow.operators if not node.named),
            times={
                name: time for name, time in self.flow.event_times.items() if name in self.timed
            },
        )

    def timed_input(self, given: Input) -> Input:
        """Add the column of event time, where an operator behind the source counts on it."""
        if not isinstance(given, SourceInput) or given.source not in self.timed:
            return given
        time = self.flow.event_times[given.source]
        schema = self.source_schemas[given.source, given.maps]
        if time.column not in schema.names:
            return given
        field = schema.field(time.column)
        insist_on_moments(
            field,
            f"Source {given.source!r} has the event time",
            f"source {given.source!r}",
            given.operator,
        )
        return replace(given, time=field)

    def insist_on_watermarks(self, inputs: Iterable[Input]) -> None:
        """Refuse maps that let go of a source's event time, by which its watermark moves."""
        moving = {i.source for i in inputs if isinstance(i, SourceInput) and i.time is not None}
        for source in sorted(self.timed - moving):
            column = self.flow.event_times[source].column
            raise InvalidFlowError(
                f"Source {source!r} has the event time {column!r}, but the maps after it leave no "
                "column of that name, so its watermark would never move.",
                remedy="Leave the column in the maps; to give it another name, rename it in the "
                "DataFrame that flow.source(...) is given, and name it so in event_time=.",
                source=source,
                column=column,
            )

    def formerly(self) -> dict[str, str]:
        """Names that operators had before."""
        found: dict[str, str] = {}
        for node in self.flow.operators:
            if node.formerly and node.formerly in found.values():
                raise InvalidFlowError(
                    f"Two operators of flow {self.flow.name!r} say that they were formerly "
                    f"{node.formerly!r}.",
                    remedy="State goes to one of them; leave formerly= out at the other.",
                    flow=self.flow.name,
                    operator=node.name,
                )
            if node.formerly:
                found[node.name] = node.formerly
        return found

    def bind(self, node: OperatorNode) -> list[Input]:
        """Bind one operator; every operator upstream is bound already."""
        schema, origin = self.columns(node.upstream)
        where = f"Operator {node.name!r}"
        keys = [_column(schema, key, f"{where} is keyed by", origin) for key in node.keys]
        for field in keys:
            if not is_key_type(field.type):
                raise InvalidFlowError(
                    f"{where} is keyed by column {field.name!r} of {origin}, whose type "
                    f"{field.type} cannot be a key.",
                    remedy=key_type_remedy(field.name, field.type),
                    operator=node.name,
                    column=field.name,
                )
        if isinstance(node, ComputeNode) or (isinstance(node, WindowedNode) and node.aggregates):
            inputs = pa.schema(
                {
                    column: _column(schema, column, f"{where}, result {result!r}, reads", origin)
                    for result, aggregate in node.aggregates.items()
                    for column in aggregate.columns
                }.values()
            )
        else:
            inputs = pa.schema([field for field in schema if field.name not in node.keys])
        exchanged = pa.schema([*keys, *(f for f in inputs if f.name not in node.keys)])
        if isinstance(node, WindowedNode):
            time = event_time_of(node, schema, origin)
            if time.column not in exchanged.names:
                exchanged = exchanged.append(schema.field(time.column))
            self.operators[node.name] = windowed_operator(node, exchanged, inputs, time)
            self.timed.update(source.name for source in sources_of(node))
        else:
            self.operators[node.name] = _operator(node, pa.schema(keys), inputs)
        if isinstance(node, ProcessNode) and node.timers == "event":
            insist_on_event_time(node)
            self.timed.update(source.name for source in sources_of(node))
        return self.inputs(node, exchanged)

    def inputs(self, node: OperatorNode, exchanged: pa.Schema) -> list[Input]:
        """Say what feeds an operator: one input for each way that rows take to it."""
        return [
            SourceInput(
                operator=node.name,
                source=branch.feed.name,
                maps=tuple(m.function for m in branch.maps),
                keys=node.keys,
                schema=exchanged,
                number=number,
            )
            if isinstance(branch.feed, SourceNode)
            else UpstreamInput(
                operator=node.name,
                upstream=branch.feed.name,
                maps=self.arrow_maps(branch),
                keys=node.keys,
                schema=exchanged,
                number=number,
            )
            for number, branch in enumerate(branches_of(node.upstream))
        ]

    def outputs(self) -> Iterable[Output]:
        for sink in self.flow.sinks:
            schema, _ = self.columns(sink.upstream)
            (branch,) = branches_of(sink.upstream)
            feed = branch.feed
            assert not isinstance(feed, SourceNode)  # Flow.sink refuses such a stream
            complete_key = set(feed.keys) <= set(schema.names)
            yield Output(
                name=sink.name,
                operator=feed.name,
                maps=self.arrow_maps(branch),
                schema=schema,
                keys=feed.keys if complete_key else (),
                sink=sink.sink,
            )
            yield from self.rejects_of(sink.name, feed.name, sink.sink)
        for node in self.flow.operators:
            if isinstance(node, WindowedNode) and node.late is not None:
                name = f"{node.name}_late"
                self.insist_on_new(name)
                operator = self.operators[node.name]
                assert isinstance(operator, WindowedOperator)
                check_column_names(operator.left_out.names, f"What is late for {node.name!r}")
                yield Output(
                    name=name,
                    operator=node.name,
                    maps=(),
                    schema=operator.left_out,
                    keys=(),
                    sink=node.late,
                    left_out=True,
                )
                yield from self.rejects_of(name, node.name, node.late)

    def rejects_of(self, sink: str, operator: str, value: Any) -> Iterable[Output]:
        """Give the sink that gets what another one cannot take, if there is one."""
        rejects = getattr(value, "rejects", None)
        if rejects is not None:
            self.insist_on_new(f"{sink}_rejects")
            yield Output(
                name=f"{sink}_rejects",
                operator=operator,
                maps=(),
                schema=REJECTED,
                keys=(),
                sink=rejects,
                rejects_of=sink,
            )

    def insist_on_new(self, sink: str) -> None:
        """Refuse the name of a sink that the user has given to another one."""
        check_unique("sink", sink, {other.name for other in self.flow.sinks}, self.flow.name)

    def columns(self, node: StreamNode) -> tuple[pa.Schema, str]:
        """Columns of a stream, and what to call the stream in a message."""
        self.insist_on_alike(node)
        found = [self.branch_columns(branch) for branch in branches_of(node)]
        schema, _ = found[0]
        return schema, " and ".join(dict.fromkeys(origin for _, origin in found))

    def insist_on_alike(self, node: StreamNode) -> None:
        """Refuse a union of streams whose columns differ, here or further up."""
        while isinstance(node, MapNode):
            node = node.upstream
        if isinstance(node, UnionNode):
            first, *others = (self.columns(upstream) for upstream in node.upstreams)
            for other in others:
                insist_on_same_columns(first, other)

    def branch_columns(self, branch: Branch) -> tuple[pa.Schema, str]:
        """Columns of the rows that come by one branch, and what to call them in a message."""
        feed = branch.feed
        if isinstance(feed, SourceNode):
            names = ", ".join(repr(function_name(m.function)) for m in branch.maps)
            origin = f"source {feed.name!r}" + (f" (after its maps {names})" if names else "")
            maps = tuple(m.function for m in branch.maps)
            return self.source_columns(feed, maps, origin), origin
        bound = self.arrow_maps(branch)
        if not bound:
            return plain_schema(self.operators[feed.name].output), f"operator {feed.name!r}"
        return bound[-1].schema, f"map {bound[-1].name!r} after operator {feed.name!r}"

    def arrow_maps(self, branch: Branch) -> tuple[ArrowMap, ...]:
        """Bind the maps from an operator to a stream; one on the way to several is one object."""
        bound: list[ArrowMap] = []
        schema = plain_schema(self.operators[branch.feed.name].output)
        for number, m in enumerate(branch.maps, 1):
            at = branch.feed.name, branch.maps[:number]
            if at not in self.maps:
                self.maps[at] = bind_map(
                    m.function, operator=branch.feed.name, inputs=schema, schema=m.schema
                )
            bound.append(self.maps[at])
            schema = bound[-1].schema
        return tuple(bound)

    def source_columns(self, feed: SourceNode, maps: DataFrameMaps, origin: str) -> pa.Schema:
        if (feed.name, maps) in self.source_schemas:
            return self.source_schemas[feed.name, maps]
        try:
            schema = self.resolve(feed.name, maps)
        except GodwitError:
            raise
        except Exception as error:
            raise InvalidFlowError(
                f"The columns of {origin} cannot be found: {error_line(error)}.",
                remedy="Correct the maps: each gets a DataFrame and returns one."
                if maps
                else "Check the DataFrame that the source was given.",
                source=feed.name,
            ) from error
        check_column_names(schema.names, origin[0].upper() + origin[1:])
        return self.source_schemas.setdefault((feed.name, maps), plain_schema(schema))


def _action(node: OperatorNode) -> str:
    if isinstance(node, ProcessNode):
        return (
            f"process with {function_name(node.function)}, state {function_name(node.state_type)}"
        )
    if isinstance(node, WindowedNode) and node.function is not None:
        return f"process with {function_name(node.function)}"
    results = (
        f"{result} = {getattr(aggregate, 'name', type(aggregate).__name__)}"
        f"({', '.join(aggregate.columns)})"
        for result, aggregate in node.aggregates.items()
    )
    return f"compute {', '.join(results)}"


def _operator(node: ComputeNode | ProcessNode, keys: pa.Schema, inputs: pa.Schema) -> KeyedOperator:
    if isinstance(node, ComputeNode):
        return ComputeOperator(
            name=node.name,
            keys=keys,
            inputs=inputs,
            aggregates=dict(node.aggregates),
            complete=node.complete,
        )
    options: dict[str, Any] = {
        "name": node.name,
        "keys": keys,
        "inputs": inputs,
        "function": node.function,
        "state_type": node.state_type,
        "output": node.output,
        "codec": node.codec,
        "state_classes": node.state_classes,
        "state_upgrade": node.state_upgrade,
    }
    if node.timers is None and node.ttl_us is None:
        return ProcessOperator(**options)
    return TimedProcess(clock=node.timers, on_timer=node.on_timer, ttl_us=node.ttl_us, **options)


def _column(schema: pa.Schema, name: str, subject: str, origin: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidFlowError(
            f"{subject} column {name!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(name, schema.names)}Its columns are {listing(schema.names)}.",
            column=name,
        )
    return schema.field(name)

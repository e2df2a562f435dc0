"""Compiling: from the graph that the user drew to operators bound to the types of their columns.

One pass over the operators in the order they were declared, which is upstream before downstream.
Everything that can be wrong with columns is found here, before anything runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.columns.types import is_key_type, key_type_remedy
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    check_unique,
    did_you_mean,
    listing,
)
from godwit.operators.compute import ComputeOperator
from godwit.operators.duplicates import DropDuplicates, DropDuplicatesWithin
from godwit.operators.process import ProcessOperator
from godwit.operators.states.operator import ProcessOfStates
from godwit.operators.timers import TimedProcess
from godwit.plan.actions import action_of
from godwit.plan.compiled import (
    CompiledFlow,
    Component,
    Input,
    Output,
    SourceInput,
    UpstreamInput,
)
from godwit.plan.join_binding import join_operator
from godwit.plan.nodes import (
    ComputeNode,
    DropDuplicatesNode,
    JoinNode,
    OperatorNode,
    ProcessNode,
    SourceNode,
    StreamNode,
    WindowedNode,
    branches_of,
    levels_of,
    sources_of,
)
from godwit.plan.output_time import delay_us, time_columns
from godwit.plan.staging import REJECTED
from godwit.plan.stream_columns import Resolver, Retimed, StreamColumns
from godwit.plan.two_phase import split_windows
from godwit.plan.use import insist_on_use
from godwit.plan.window_binding import (
    event_time_of,
    insist_on_event_time,
    insist_on_moments,
    windowed_operator,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.operators.operator import KeyedOperator
    from godwit.plan.nodes import FlowGraph

__all__ = ["Resolver", "compile_flow"]


def compile_flow(flow: FlowGraph, resolve: Resolver, retimed: Retimed, zone: str) -> CompiledFlow:
    """Validate `flow` and bind its operators; see `godwit.api.flow.LogicalFlow.compile`."""
    insist_on_use(flow)
    return _Compilation(flow, resolve, retimed, zone).run()


class _Compilation:
    """One run of the compiler, with what it has found so far."""

    def __init__(self, flow: FlowGraph, resolve: Resolver, retimed: Retimed, zone: str) -> None:
        self.flow, self.retimed, self.zone = flow, retimed, zone
        self.operators: dict[str, KeyedOperator] = {}
        self.columns = StreamColumns(self.operators, resolve)
        self.timed: set[str] = set()

    def run(self) -> CompiledFlow:
        inputs: dict[str, list[Input]] = {}
        for node in self.flow.operators:
            inputs[node.name] = self.bind(node)
        names = self.flow.components
        levels = levels_of(self.flow.operators)
        timed = tuple(self.timed_input(given) for name in names for given in inputs[name])
        self.insist_on_watermarks(timed)
        whole = CompiledFlow(
            name=self.flow.name,
            num_key_groups=self.flow.num_key_groups,
            sources=tuple(self.flow.sources),
            components=tuple(
                Component(name=name, operators=(self.operators[name],), level=levels[name])
                for name in names
            ),
            inputs=timed,
            outputs=self.own_sinks(tuple(self.outputs())),
            actions={node.name: action_of(node) for node in self.flow.operators},
            formerly=self.formerly(),
            unnamed=frozenset(node.name for node in self.flow.operators if not node.named),
            times={
                name: time for name, time in self.flow.event_times.items() if name in self.timed
            },
        )
        windowed = [node for node in self.flow.operators if isinstance(node, WindowedNode)]
        return split_windows(
            whole,
            apart=[node.name for node in windowed if node.consolidate == "apart"],
            measured=[node.name for node in windowed if node.consolidate == "measured"],
        )

    def timed_input(self, given: Input) -> Input:
        """Add the column of event time, where an operator behind the source counts on it."""
        if not isinstance(given, SourceInput) or given.source not in self.timed:
            return given
        time = self.flow.event_times[given.source]
        schema = self.columns.of_sources[given.source, given.maps]
        if time.column not in schema.names:
            return given
        field = schema.field(time.column)
        insist_on_moments(
            field,
            f"Source {given.source!r} has the event time",
            f"source {given.source!r}",
            given.operator,
        )
        number = self.retimed(given.source, given.maps, time.column)
        return replace(given, time=field, retimed=given.maps[:number])

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
        schema, origin = self.columns.of(node.upstream)
        where = f"Operator {node.name!r}"
        keys = _keys_of(node.name, node.keys, schema, origin)
        if isinstance(node, JoinNode):
            return self.bind_join(node, (schema, origin))
        if isinstance(node, DropDuplicatesNode):
            return self.bind_duplicates(node, schema, origin)
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
            time = event_time_of(
                node.upstream,
                schema,
                origin,
                operator=node.name,
                does="has windows",
                time=node.time,
            )
            if node.late is not None:
                exchanged = _keys_first(schema, node.keys)  # late rows come out as they came
            elif time.column not in exchanged.names:
                exchanged = exchanged.append(schema.field(time.column))
            self.operators[node.name] = windowed_operator(node, exchanged, inputs, time, self.zone)
            self.timed.update(source.name for source in sources_of(node))
        else:
            self.operators[node.name] = _operator(node, pa.schema(keys), inputs, self.zone)
        if isinstance(node, ProcessNode) and node.timers == "event":
            insist_on_event_time(node.upstream, node.name, "has timers of event time")
            self.timed.update(source.name for source in sources_of(node))
        column = time.column if isinstance(node, WindowedNode) else None
        return self.inputs(node.name, node.upstream, node.keys, exchanged, time=column)

    def bind_duplicates(
        self, node: DropDuplicatesNode, schema: pa.Schema, origin: str
    ) -> list[Input]:
        """Bind an operator that drops duplicates."""
        options: dict[str, Any] = {"name": node.name, "keys": node.keys, "columns": schema}
        column = None
        if node.within_us is None:
            self.operators[node.name] = DropDuplicates(**options)
        else:
            does = "drops duplicates by event time"
            time = event_time_of(node.upstream, schema, origin, operator=node.name, does=does)
            self.operators[node.name] = DropDuplicatesWithin(
                time=time, within_us=node.within_us, **options
            )
            self.timed.update(source.name for source in sources_of(node))
            column = time.column
        columns = _keys_first(schema, node.keys)
        return self.inputs(node.name, node.upstream, node.keys, columns, time=column)

    def bind_join(self, node: JoinNode, left: tuple[pa.Schema, str]) -> list[Input]:
        """Bind a join."""
        right = self.columns.of(node.right)
        _keys_of(node.name, node.right_keys, *right)
        inputs: list[Input] = []
        numbers = []
        for stream, keys, (schema, _) in (
            (node.upstream, node.keys, left),
            (node.right, node.right_keys, right),
        ):
            columns = _keys_first(schema, keys)
            times = time_columns(stream)  # of several, `join_operator` tells
            found = self.inputs(
                node.name, stream, keys, columns, time=next(iter(times), None), first=len(inputs)
            )
            numbers.append(len(found))
            inputs += found
        operator = join_operator(node, left, right, (numbers[0], numbers[1]))
        self.operators[node.name] = operator
        self.timed.update(source.name for source in sources_of(node))
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
        """Say what feeds an operator: one input for each way that rows of a stream take to it.

        `time` is the column that it reads as event time, if any.
        """

        def columns_of(stream: StreamNode) -> list[str]:
            names: list[str] = self.columns.of(stream)[0].names
            return names

        return [
            SourceInput(
                operator=operator,
                source=branch.feed.name,
                maps=tuple(m.function for m in branch.maps),
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

    def outputs(self) -> Iterable[Output]:
        for sink in self.flow.sinks:
            schema, _ = self.columns.of(sink.upstream)
            (branch,) = branches_of(sink.upstream)
            feed = branch.feed
            assert not isinstance(feed, SourceNode)  # Flow.sink refuses such a stream
            # What such operators emit are rows, which their keys do not tell apart.
            rows = isinstance(feed, DropDuplicatesNode | JoinNode)
            complete_key = not rows and set(feed.keys) <= set(schema.names)
            yield Output(
                name=sink.name,
                operator=feed.name,
                maps=self.columns.arrow_maps(branch),
                schema=schema,
                keys=feed.keys if complete_key else (),
                unique_keys=tuple(
                    columns
                    for columns in self.operators[feed.name].unique_keys
                    if set(columns) <= set(schema.names)
                ),
                sink=sink.sink,
                formerly=sink.formerly,
            )
            yield from self.rejects_of(sink.name, feed.name, sink.sink)
        for node in self.flow.operators:
            if (
                isinstance(node, WindowedNode | DropDuplicatesNode | JoinNode)
                and node.late is not None
            ):
                name = f"{node.name}_late"
                self.insist_on_new(name)
                left_out = self.operators[node.name].left_out
                assert left_out is not None, "operators over event time leave rows out"
                check_column_names(left_out.names, f"What is late for {node.name!r}")
                yield Output(
                    name=name,
                    operator=node.name,
                    maps=(),
                    schema=left_out,
                    keys=(),
                    sink=node.late,
                    left_out=True,
                )
                yield from self.rejects_of(name, node.name, node.late)

    def own_sinks(self, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """Refuse one sink object under two names: it would take epochs of one for the other's.

        A sink that keeps no rows cannot mistake them.
        """
        taken: dict[int, str] = {}
        for output in outputs:
            if not getattr(output.sink, "wants_rows", True):
                continue
            other = taken.setdefault(id(output.sink), output.name)
            if other != output.name:
                raise InvalidFlowError(
                    f"Sinks {other!r} and {output.name!r} of flow {self.flow.name!r} are one "
                    "object, which would take the epochs of one for those of the other.",
                    remedy="Make a sink for each, as in two calls of gw.sinks.postgres(...); they "
                    "may write to one table where rows are appended.",
                    flow=self.flow.name,
                    sink=output.name,
                )
        return outputs

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


def _operator(
    node: ComputeNode | ProcessNode, keys: pa.Schema, inputs: pa.Schema, zone: str
) -> KeyedOperator:
    if isinstance(node, ComputeNode) and node.windows is not None:
        return node.windows.operator(
            name=node.name, keys=keys, inputs=inputs, aggregates=dict(node.aggregates)
        )
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
        "output": node.output,
        "codec": node.codec,
        "state_classes": node.state_classes,
        "zone": zone,
    }
    if node.states:
        return ProcessOfStates(
            states=node.states, clock=node.timers, on_timer=node.on_timer, **options
        )
    options |= {"state_type": node.state_type, "state_upgrade": node.state_upgrade}
    if node.timers is None and node.ttl_us is None:
        return ProcessOperator(**options)
    return TimedProcess(clock=node.timers, on_timer=node.on_timer, ttl_us=node.ttl_us, **options)


def _keys_of(
    operator: str, keys: tuple[str, ...], schema: pa.Schema, origin: str
) -> list[pa.Field]:
    """Find the key columns of an operator."""
    found = [_column(schema, key, f"Operator {operator!r} is keyed by", origin) for key in keys]
    for field in found:
        if not is_key_type(field.type):
            raise InvalidFlowError(
                f"Operator {operator!r} is keyed by column {field.name!r} of {origin}, whose type "
                f"{field.type} cannot be a key.",
                remedy=key_type_remedy(field.name, field.type),
                operator=operator,
                column=field.name,
            )
    return found


def _keys_first(schema: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    others = [field for field in schema if field.name not in keys]
    return pa.schema([*(schema.field(key) for key in keys), *others])


def _column(schema: pa.Schema, name: str, subject: str, origin: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidFlowError(
            f"{subject} column {name!r}, which {origin} does not have.",
            remedy=f"{did_you_mean(name, schema.names)}Its columns are {listing(schema.names)}.",
            column=name,
        )
    return schema.field(name)

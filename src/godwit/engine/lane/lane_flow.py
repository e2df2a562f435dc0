"""The part of a compiled flow that lanes and the source side need, and the routes of its rows.

It is the same for every epoch and physical plan, so executors get it once; routes of rows are part
of an epoch's instruction.  A *feed* is a source after its maps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.engine.lane.wire import Shipment
from godwit.plan.compiled import SourceInput
from godwit.plan.staging import loop_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.entries import EntryLayout, WaitingLayout
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow, UpstreamInput
    from godwit.plan.lineage import Layouts
    from godwit.plan.staging import StagedSink
    from godwit.sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInput:
    """One input of an operator that a source feeds."""

    index: int  # of the operator in the flow
    number: int = 0  # of the operator's input
    watermark: int = 0  # number of the watermark of its event times
    columns: tuple[str, ...] | None = None  # read by the operator; None: all
    time: str | None = None  # column of the event time; None if another input reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A source after its maps, and the inputs of the operators that read it."""

    source: str
    maps: tuple[Any, ...]  # in order; `ArrowMap`s on a source of Godwit's own
    schema: pa.Schema  # columns of all inputs together, after the maps
    inputs: tuple[LaneInput, ...]  # of operators in the order of their declaration

    def inputs_from(self, rows: pa.RecordBatch) -> Iterator[tuple[LaneInput, pa.RecordBatch]]:
        """Yield each operator input's columns of source rows, and event times if it has them."""
        for lane_input in self.inputs:
            names = list(lane_input.columns or ())
            if lane_input.time is not None and lane_input.time not in names:
                names.append(lane_input.time)
            yield lane_input, rows.select(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOperator:
    """An operator with its layouts and sinks, for a lane."""

    index: int  # of the operator in the flow
    operator: KeyedOperator
    # readers of its output: (index of an operator downstream, its input with the maps before it)
    feeds: tuple[tuple[int, UpstreamInput], ...]
    outputs: tuple[StagedSink, ...]  # sinks that take its output and want rows
    left_out: StagedSink | None = None  # sink of the rows that it leaves out
    states: Mapping[str, EntryLayout]  # name of a state → its layout in the checkpoint
    waiting: WaitingLayout  # layout of its waiting rows in the checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFlow:
    """The part of a compiled flow that executors get; picklable, the same for every epoch.

    Components are not part of it: each epoch's instruction has the levels of operators.
    """

    num_key_groups: int
    operators: tuple[LaneOperator, ...]
    # of sources of Godwit's own: maps over DataFrames may not be picklable, and run elsewhere
    feeds: tuple[Feed, ...] = ()
    # source of Godwit's own → columns to read, with their types, in its order
    columns: Mapping[str, pa.Schema] = field(default_factory=dict)
    # source of Godwit's own → its arrival-time column, if any
    arrival: Mapping[str, str] = field(default_factory=dict)
    # likewise, its column with headers that may have trace contexts
    traced: Mapping[str, str] = field(default_factory=dict)
    # source → sink of its unreadable rows
    unreadable: Mapping[str, StagedSink] = field(default_factory=dict)
    # name → sink of rows of failed calls, of an operator or a map
    errors: Mapping[str, StagedSink] = field(default_factory=dict)
    query: str = ""  # name of the query, for the log
    log: str | None = None  # format of the log


def lane_flow(flow: CompiledFlow, layouts: Layouts, sinks: Iterable[StagedSink]) -> LaneFlow:
    """Return the part of a compiled flow that executors need.

    `layouts`: of states and waiting rows of each operator. `sinks`: the open sinks for which lanes
    stage rows (the sinks themselves stay on the driver).
    """
    staged = {sink.name: sink for sink in sinks}
    looped = [(edge.operator, loop_sink(edge)) for edge in flow.feedbacks]
    names = [operator.name for operator in flow.operators]
    operators = []
    for index, operator in enumerate(flow.operators):
        outputs = flow.outputs_of(operator.name)
        states, waiting = layouts[operator.name]
        operators.append(
            LaneOperator(
                index=index,
                operator=operator,
                feeds=tuple(
                    (names.index(i.operator), i) for i in flow.inputs_fed_by(operator.name)
                ),
                outputs=(
                    *(staged[o.name] for o in outputs if o.name in staged and o.is_result),
                    *(sink for name, sink in looped if name == operator.name),
                ),
                left_out=next((staged.get(o.name) for o in outputs if o.left_out), None),
                states=states,
                waiting=waiting,
            )
        )
    feeds = source_feeds(flow)
    return LaneFlow(
        num_key_groups=flow.num_key_groups,
        operators=tuple(operators),
        feeds=tuple(feed for feed in feeds if feed.source in flow.own_sources),
        columns={
            name: columns_read(source, [feed for feed in feeds if feed.source == name])
            for name, source in flow.own_sources.items()
        },
        arrival={
            name: column
            for name, source in flow.own_sources.items()
            if (column := _arrival_column(source)) is not None
        },
        traced={
            name: column
            for name, source in flow.own_sources.items()
            if (column := _trace_column(source)) is not None
        },
        unreadable={
            o.unreadable_of: staged[o.name]
            for o in flow.outputs
            if o.unreadable_of and o.name in staged
        },
        errors={
            o.name: staged[o.name]
            for o in flow.outputs
            if o.max_error_share is not None and o.name in staged
        },
    )


def source_feeds(flow: CompiledFlow) -> tuple[Feed, ...]:
    """Return the feeds of a flow, in the order in which the operators that read them are declared.

    Operators that read the same source after the same maps share a feed, so its rows are read and
    mapped once.
    """
    index = {operator.name: number for number, operator in enumerate(flow.operators)}
    declared = {operator: number for number, operator in enumerate(flow.actions)}
    watermarks = flow.watermarks
    feeds: dict[tuple[str, tuple[Any, ...]], Feed] = {}
    inputs = [flow_input for flow_input in flow.inputs if isinstance(flow_input, SourceInput)]
    for flow_input in sorted(inputs, key=lambda flow_input: declared[flow_input.operator]):
        source_and_maps = (flow_input.source, flow_input.maps)
        feed = feeds.get(source_and_maps)
        lane_input = LaneInput(
            index=index[flow_input.operator],
            number=flow_input.number,
            watermark=next(
                number_
                for number_, names in enumerate(watermarks)
                if flow.watermark_of(flow_input) in names
            ),
            columns=flow_input.columns,
            # the first input that reads a feed reports its event times
            time=flow_input.time.name if feed is None and flow_input.time is not None else None,
        )
        if feed is None:
            feed = Feed(
                source=flow_input.source, maps=flow_input.maps, schema=pa.schema([]), inputs=()
            )
        fields = {field.name: field.type for field in feed.schema}
        fields |= {field.name: field.type for field in flow_input.schema}
        if flow_input.time is not None:
            fields[flow_input.time.name] = flow_input.time.type
        feeds[source_and_maps] = replace(
            feed, schema=pa.schema(fields), inputs=(*feed.inputs, lane_input)
        )
    return tuple(feeds.values())


def columns_read(source: Source, feeds: Sequence[Feed]) -> pa.Schema:
    """Return the columns of a source to read: all if it has maps, which may use any."""
    used = {name for feed in feeds for name in feed.schema.names} | {
        _arrival_column(source),
        _trace_column(source),
    }
    whole = any(feed.maps for feed in feeds)
    return pa.schema(
        [(field.name, field.type) for field in source.schema if whole or field.name in used]
    )


def _arrival_column(source: Source) -> str | None:
    """Return the name of a source's arrival-time column; ``None`` if it has none."""
    column = source.arrival_time
    if column not in source.schema.names:
        return None
    return column if pa.types.is_timestamp(source.schema.field(column).type) else None


def _trace_column(source: Source) -> str | None:
    """Return the name of the column with headers that may have trace contexts of rows.

    ``None`` without arrival times, with whose histogram they are sent.
    """
    column = source.trace_headers
    known = column in source.schema.names and _arrival_column(source) is not None
    return column if known else None


def shipments(flow: LaneFlow, instruction: EpochInstruction) -> tuple[Shipment, ...]:
    """Return the route of rows to each operator in this epoch, in the flow's order."""
    one_phase = [
        Shipment(
            index=operator.index,
            level=instruction_.level,
            operator=operator.operator,
            places=instruction_.places,
            time=instruction_.time,
            keeps_left_out=operator.left_out is not None,
            hot_share=instruction.hot_keys / len(instruction.places),
        )
        for operator, instruction_ in zip(flow.operators, instruction.operators, strict=True)
    ]
    second_phase = {
        role.first: one_phase[operator.index]
        for operator in flow.operators
        if (role := operator.operator.two_phase) is not None and role.slot == 1
    }
    return tuple(
        replace(shipment, second=second_phase.get(shipment.operator.name)) for shipment in one_phase
    )

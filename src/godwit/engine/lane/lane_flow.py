"""The part of a compiled flow that lanes and the source side need, and the routes of its rows.

It is the same for every epoch and under every physical plan, so executors get it once; where rows
go, an epoch's instruction says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from godwit.engine.lane.wire import Shipment
from godwit.plan.staging import loop_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.checkpoint.entries import EntryLayout, WaitingLayout
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow, UpstreamInput
    from godwit.plan.lineage import Layouts
    from godwit.plan.staging import StagedSink


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOperator:
    """An operator with what a lane needs for it: layouts and sinks."""

    index: int  # of the operator in the flow
    operator: KeyedOperator
    # what takes its output: (index of the operator fed, maps on the way and input of that operator)
    feeds: tuple[tuple[int, UpstreamInput], ...]
    outputs: tuple[StagedSink, ...]  # sinks that take its output and want rows
    left_out: StagedSink | None = None  # the sink of the rows that it leaves out
    states: Mapping[str, EntryLayout]  # name of a state → how it is read from the checkpoint
    waiting: WaitingLayout  # how rows that wait for it are read from the checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFlow:
    """The part of a compiled flow that executors get; picklable, the same for every epoch.

    Which operators share a component is not part of it: each epoch says on which level they run.
    """

    num_key_groups: int
    operators: tuple[LaneOperator, ...]
    # source → the sink of its rows that cannot be read
    unreadable: Mapping[str, StagedSink] = field(default_factory=dict)


def lane_flow(flow: CompiledFlow, layouts: Layouts, sinks: Iterable[StagedSink]) -> LaneFlow:
    """Return the part of a compiled flow that executors need.

    `layouts`: how states and waiting rows of each operator are read. `sinks`: the open sinks for
    which lanes stage rows (the sinks themselves stay on the driver).
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
    return LaneFlow(
        num_key_groups=flow.num_key_groups,
        operators=tuple(operators),
        unreadable={
            o.unreadable_of: staged[o.name]
            for o in flow.outputs
            if o.unreadable_of and o.name in staged
        },
    )


def shipments(flow: LaneFlow, instruction: EpochInstruction) -> tuple[Shipment, ...]:
    """Return the route of rows to each operator in this epoch, in the flow's order."""
    by_itself = [
        Shipment(
            index=o.index,
            level=own.level,
            operator=o.operator,
            places=own.places,
            time=own.time,
            keeps_left_out=o.left_out is not None,
            hot_share=instruction.hot_keys / len(instruction.places),
        )
        for o, own in zip(flow.operators, instruction.operators, strict=True)
    ]
    second = {
        role.first: by_itself[o.index]
        for o in flow.operators
        if (role := o.operator.two_phase) is not None and role.slot == 1
    }
    return tuple(replace(s, second=second.get(s.operator.name)) for s in by_itself)

"""Lanes of a whole flow over event time, in one process: what tests of such flows share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.oracles.one_process import OneProcess, lane_operator
from tests.support.fake_flow import FakeSink, resolver

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.engine.event_time import EventTimes, Times
from godwit.engine.lane.lane_flow import LaneFlow
from godwit.migration import ComponentView
from godwit.operators.spreading import Spreads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.api.flow import LogicalFlow
    from godwit.api.streams import Stream
    from godwit.checkpoint.records import CommitRecord
    from godwit.engine.lane.messages import LaneReport

__all__ = ["TIME", "TimedRun", "times_of"]

TIME = pa.timestamp("us", tz="UTC")


class TimedRun:
    """Lanes of one flow, in one process; whoever derives from it feeds them.

    Parameters
    ----------
    flow, stream
        The flow, and the stream of it whose output is wanted, which goes to the sink "out".
    root
        Where checkpoint and local stores lie.
    executors
        Name → lanes.
    together
        Whether all operators share a component.

    Attributes
    ----------
    record, reports
        Of the last epoch.
    """

    record: CommitRecord
    reports: list[LaneReport]

    def __init__(
        self,
        flow: LogicalFlow,
        stream: Stream,
        root: Path,
        *,
        executors: Mapping[str, int] | None = None,
        together: bool = False,
    ) -> None:
        flow.sink("out", stream, FakeSink())
        self.compiled = flow.compile(resolver(flow))
        names = [operator.name for operator in self.compiled.operators]
        self.lanes = LaneFlow(
            num_key_groups=self.compiled.num_key_groups,
            operators=tuple(
                lane_operator(
                    operator,
                    index,
                    tuple(
                        (names.index(given.operator), given)
                        for given in self.compiled.inputs_fed_by(operator.name)
                    ),
                    outputs=("out",) if operator.name == self.compiled.outputs[0].operator else (),
                    left_out="late" if operator.over_event_time else "",
                )
                for index, operator in enumerate(self.compiled.operators)
            ),
        )
        if together:
            self.compiled = self.compiled.with_plan(
                PhysicalPlan(components=(ComponentPlan(name="one", operators=tuple(names)),))
            )
        self.run = OneProcess(
            self.lanes,
            root,
            executors or {"a": 2},
            levels=[self.compiled.component_of(name).level for name in names],
        )
        self.times = self.run.event_times = EventTimes(self.compiled, None)

    @property
    def components(self) -> dict[str, ComponentView]:
        """Component → how it would run now."""
        plan = ComponentView(assignment=self.run.assignment, suspended=self.run.suspended)
        return dict.fromkeys(self.times.components, plan)

    def output(self, sink: str, *, ordered: bool = True) -> list[tuple[Any, ...]]:
        """Rows of the last epoch for a sink, moments as microseconds; sorted, or as they came."""
        found: list[tuple[Any, ...]] = []
        for ref in self.record.outputs:
            if ref.sink == sink:
                batch = decode_batch(read_block(self.run.log.storage, ref.block))
                columns = [
                    (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                    for c in batch.columns
                ]
                found += zip(*columns, strict=True)
        return sorted(found, key=repr) if ordered else found

    def restart(self, *, knows_kept: bool = True) -> None:
        """Go on as a new run does: from the record alone, which may not say which windows stay."""
        times = replace(times_of(self.record), **({} if knows_kept else {"kept": {}}))
        self.times = self.run.event_times = EventTimes(self.compiled, times)


def times_of(record: CommitRecord) -> Times:
    """Event time as a record says it."""
    return Times(
        kept=record.kept,
        watermarks=record.watermarks,
        newest=record.newest,
        closed=record.expired,
        reached=record.reached,
        spreads={name: Spreads.of(keys) for name, keys in record.spreads.items()},
    )

"""Flows over event time for tests of lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.oracles.one_process import OneProcess, lane_operator
from tests.unit.dataflow.conftest import FakeDataFrame, FakeSink, resolver

from godwit.dataflow.flow import LogicalFlow
from godwit.dataflow.windows.operator import WindowedOperator
from godwit.epoch.event_time import EventTimes, Times
from godwit.lane.lane import LaneFlow
from godwit.migration import EpochPlan
from godwit.state.blocks import decode_batch, read_block
from godwit.state.physical_plan import ComponentPlan, PhysicalPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from godwit.dataflow.keyed_stream import KeyedStream
    from godwit.dataflow.stream import Stream
    from godwit.state.records import CommitRecord

TIME = pa.timestamp("us", tz="UTC")
ROWS = pa.schema([("k", pa.string()), ("ts", TIME), ("v", pa.int64())])

Row = tuple[str, "int | None", int]


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Rows of (key, microseconds, value)."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)],
        schema=ROWS,
    )


class WindowedRun:
    """Lanes of one flow over one source with event time, in one process.

    Parameters
    ----------
    build
        Makes of the keyed stream the streams whose output is wanted.
    together
        Whether all operators share a component.
    columns, key
        Columns of the source, and the one that is its key.
    source
        Options of the source.
    """

    def __init__(
        self,
        build: Callable[[KeyedStream], Stream],
        root: Path,
        *,
        executors: Mapping[str, int] | None = None,
        num_key_groups: int = 16,
        together: bool = False,
        columns: pa.Schema = ROWS,
        key: str = "k",
        **source: Any,
    ) -> None:
        flow = LogicalFlow("flow", num_key_groups)
        frame: Any = FakeDataFrame(columns)
        source = {"event_time": "ts", **source}
        stream = build(flow.source("rows", frame, **source).key_by(key))
        flow.sink("out", stream, FakeSink())
        self.compiled = flow.compile(resolver(flow))
        names = [operator.name for operator in self.compiled.operators]
        self.lanes = LaneFlow(
            num_key_groups=num_key_groups,
            operators=tuple(
                lane_operator(
                    operator,
                    index,
                    tuple(
                        (names.index(given.operator), given)
                        for given in self.compiled.fed_by(operator.name)
                    ),
                    outputs=("out",) if operator.name == self.compiled.outputs[0].operator else (),
                    left_out="late" if isinstance(operator, WindowedOperator) else "",
                )
                for index, operator in enumerate(self.compiled.operators)
            ),
        )
        if together:
            self.compiled = self.compiled.under(
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
    def components(self) -> dict[str, Any]:
        """Component → how it would run now."""
        plan = EpochPlan(
            assignment=self.run.assignment,
            suspended=self.run.suspended,
            load=frozenset(),
            consume=frozenset(),
        )
        return dict.fromkeys(self.times.components, plan)

    def epoch(self, *parts: Iterable[Row]) -> list[tuple[Any, ...]]:
        """Run an epoch, a source partition each; return the rows that came out, sorted."""
        wanted = list(self.compiled.inputs[0].columns)
        rows = {0: [batch_of(part).select(wanted) for part in parts]} if parts else {}
        self.record, self.reports = self.run.epoch(rows)
        return self.output("out")

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

    def restart(self) -> None:
        """Go on as a new run does: from the record alone."""
        self.times = self.run.event_times = EventTimes(self.compiled, times_of(self.record))


def times_of(record: CommitRecord) -> Times:
    """Event time as a record says it."""
    return Times(watermarks=record.watermarks, newest=record.newest, closed=record.expired)

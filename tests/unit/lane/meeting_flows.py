"""Flows in which streams meet, for tests of lanes: several sources with event time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tests.oracles.one_process import Fed, OneProcess, lane_operator
from tests.unit.dataflow.conftest import FakeDataFrame, FakeSink, resolver

from godwit.dataflow.compiled import SourceInput
from godwit.dataflow.flow import LogicalFlow
from godwit.dataflow.windows.operator import WindowedOperator
from godwit.epoch.event_time import EventTimes, Times
from godwit.lane.lane import LaneFlow
from godwit.migration import EpochPlan
from godwit.state.blocks import decode_batch, read_block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from godwit.dataflow.stream import Stream

__all__ = ["TIME", "Feed", "MeetingRun", "S"]

S = 1_000_000
TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Feed:
    """A source: its columns, and what is said of its event time."""

    columns: Mapping[str, pa.DataType]
    options: Mapping[str, Any] = field(default_factory=lambda: {"event_time": "ts"})

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(dict(self.columns))

    def batch(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Rows of the columns, moments as microseconds."""
        columns = list(zip(*rows, strict=True)) or [() for _ in self.columns]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class MeetingRun:
    """Lanes of one flow over several sources, in one process.

    Parameters
    ----------
    build
        Makes of the sources' streams the stream whose output is wanted.
    feeds
        Name of a source → what it is.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, Stream]], Stream],
        root: Path,
        feeds: Mapping[str, Feed],
        *,
        executors: Mapping[str, int] | None = None,
        num_key_groups: int = 8,
    ) -> None:
        flow = LogicalFlow("flow", num_key_groups)
        frames: dict[str, Any] = {name: FakeDataFrame(feed.schema) for name, feed in feeds.items()}
        streams = {n: flow.source(n, frames[n], **feed.options) for n, feed in feeds.items()}
        flow.sink("out", build(streams), FakeSink())
        self.feeds = feeds
        self.compiled = flow.compile(resolver(flow))
        names = [operator.name for operator in self.compiled.operators]
        self.lanes = LaneFlow(
            num_key_groups=num_key_groups,
            operators=tuple(
                lane_operator(
                    operator,
                    index,
                    tuple(
                        (names.index(i.operator), i) for i in self.compiled.fed_by(operator.name)
                    ),
                    outputs=("out",) if operator.name == self.compiled.outputs[0].operator else (),
                    left_out="late" if isinstance(operator, WindowedOperator) else "",
                )
                for index, operator in enumerate(self.compiled.operators)
            ),
        )
        self._index = {name: index for index, name in enumerate(names)}
        self.run = OneProcess(self.lanes, root, executors or {"a": 2})
        self.times = self.run.event_times = EventTimes(self.compiled, None)

    def epoch(self, **rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run an epoch on rows of sources, two source partitions each; return what came out."""
        fed: dict[Fed, list[pa.RecordBatch]] = {}
        told: set[str] = set()
        for given in self.compiled.inputs:
            if not isinstance(given, SourceInput) or not rows.get(given.source):
                continue
            batches = [self.feeds[given.source].batch(rows[given.source][i::2]) for i in (0, 1)]
            timed = given.time is not None and given.source not in told
            told |= {given.source} if timed else set()
            key = Fed(
                index=self._index[given.operator],
                number=given.number,
                source=self.compiled.sources.index(given.source),
                columns=given.columns,
                time=given.time.name if timed and given.time is not None else None,
            )
            fed[key] = [batch for batch in batches if batch.num_rows]
        self.record, self.reports = self.run.epoch(fed)
        return self.output("out")

    def output(self, sink: str) -> list[tuple[Any, ...]]:
        """Rows of the last epoch for a sink, moments as microseconds, sorted."""
        found: list[tuple[Any, ...]] = []
        for ref in self.record.outputs:
            if ref.sink == sink:
                batch = decode_batch(read_block(self.run.log.storage, ref.block))
                columns = [
                    (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                    for c in batch.columns
                ]
                found += zip(*columns, strict=True)
        return sorted(found, key=repr)

    @property
    def late(self) -> int:
        """Rows that were late in the last epoch."""
        return sum(o.arrivals.late for r in self.reports for o in r.operators)

    def restart(self) -> None:
        """Go on as a new run does: from the record alone."""
        record = self.record
        times = Times(watermarks=record.watermarks, newest=record.newest, closed=record.expired)
        self.times = self.run.event_times = EventTimes(self.compiled, times)

    def held(self) -> int:
        """Entries of the last operator's state, gone ones too."""
        return len(self.run.held(len(self.lanes.operators) - 1))

    def plan(self) -> dict[str, EpochPlan]:
        """Component → how it would run now."""
        plan = EpochPlan(
            assignment=self.run.assignment,
            suspended=self.run.suspended,
            load=frozenset(),
            consume=frozenset(),
        )
        return dict.fromkeys(self.times.components, plan)

    def suffer(self, rng: np.random.Generator) -> bool:
        """Let something happen between two epochs; return whether key groups are suspended."""
        lanes, groups = self.run, self.lanes.num_key_groups
        waiting = {g for index in range(len(self.lanes.operators)) for g in lanes.waiting(index)}
        lanes.consume = frozenset(waiting) if lanes.suspended else frozenset()
        lanes.suspended = frozenset()
        number = len(lanes.assignment.executors)
        if rng.random() < 0.3 and number > 1:
            executor_of = rng.integers(0, number, groups).astype(np.int32)
            lane_of = (
                rng.integers(0, 6, groups) % np.array(lanes.assignment.lanes)[executor_of]
            ).astype(np.int32)
            lanes.assignment = replace(lanes.assignment, executor_of=executor_of, lane_of=lane_of)
        if rng.random() < 0.2:
            lanes.vanish("a")
            lanes.lose("a")
        if rng.random() < 0.2:
            lanes.suspended = frozenset(rng.integers(0, groups, 3).tolist())
            lanes.consume -= lanes.suspended
        return bool(lanes.suspended)

    def recover(self) -> None:
        """Let all key groups go on."""
        waiting = {g for i in range(len(self.lanes.operators)) for g in self.run.waiting(i)}
        self.run.suspended, self.run.consume = frozenset(), frozenset(waiting)

"""Flows in which streams meet, for tests of lanes: several sources with event time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame
from tests.support.timed_run import TIME, TimedRun

from godwit.api.flow import LogicalFlow
from godwit.local import lane_inputs
from godwit.model.key_groups import key_groups_of
from godwit.operators.hot_keys import hash_undivided, key_group_of_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from godwit.api.streams import Stream

__all__ = ["TIME", "Feed", "MeetingRun", "S"]

S = 1_000_000


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


class MeetingRun(TimedRun):
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
        super().__init__(flow, build(streams), root, executors=executors)
        self.feeds = feeds
        self._unknown = False

    def epoch(self, **rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run an epoch on rows of sources, two source partitions each; return what came out."""
        tables = {
            name: pa.Table.from_batches([self.feeds[name].batch([*of[::2], *of[1::2]])])
            for name, of in rows.items()
            if of
        }
        fed: Any = lane_inputs(self.compiled, tables, partitions=2)
        self.play(fed)
        return self.output("out")

    @property
    def late(self) -> int:
        """Rows that were late in the last epoch."""
        return sum(o.arrivals.late for r in self.reports for o in r.operators)

    def held(self) -> int:
        """Entries of the last operator's state, gone ones too."""
        return len(self.run.held(len(self.compiled.operators) - 1))

    def suffer(self, rng: np.random.Generator) -> bool:
        """Let something happen between two epochs; return whether key groups are suspended."""
        lanes, groups = self.run, self.compiled.num_key_groups
        self.recover()
        number = len(lanes.assignment.executors)
        if rng.random() < 0.3 and number > 1:
            executor_of = rng.integers(0, number, groups).astype(np.int32)
            lane_of = (
                rng.integers(0, 6, groups) % np.array(lanes.assignment.lanes)[executor_of]
            ).astype(np.int32)
            lanes.assignment = replace(lanes.assignment, executor_of=executor_of, lane_of=lane_of)
        if rng.random() < 0.3:
            lanes.forget_store("a")
            self._unknown = bool(rng.random() < 0.7)  # as where a lane runs elsewhere once
            if not self._unknown:
                lanes.copies.forget_executor("a")
        if rng.random() < 0.2:
            lanes.suspended = frozenset(rng.integers(0, groups, 3).tolist())
        return bool(lanes.suspended)

    def recover(self) -> None:
        """Let all key groups continue."""
        if self._unknown:
            self.run.copies.forget_executor("a")
        self._unknown = False
        self.run.suspended = frozenset()

    def insist_only_behind(
        self, rows: Sequence[tuple[Any, ...]], *, spread: str | None = None
    ) -> None:
        """Insist that rows that did not come out are of key groups that are suspended or wait.

        The key is their first value.  `spread`: a key that may have parts in any key group; the
        other keys of its operator have one part each.
        """
        behind = self.waiting | self.run.suspended
        keys = pa.record_batch({"k": pa.array([row[0] for row in rows], pa.string())})
        num_key_groups = self.compiled.num_key_groups
        for row, key_hash in zip(rows, hash_undivided(keys).tolist(), strict=True):
            if spread is None:
                [group] = key_groups_of(np.array([key_hash]), num_key_groups)
            else:
                [group] = key_group_of_part(key_hash, np.array([0]), num_key_groups)
            assert behind if row[0] == spread else group in behind, (row, group, behind)

    @property
    def waiting(self) -> frozenset[int]:
        """Key groups whose rows wait."""
        return frozenset(
            g for i in range(len(self.compiled.operators)) for g in self.run.waiting(i)
        )

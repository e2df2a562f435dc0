"""Rows of Godwit's own sources: splits, which tasks read; few rows are read on the driver.

Splits travel with the orders of an epoch, so no RDD holds them and the JVM is told nothing new.  A
task is made for each; where there are many more than cores, tasks read several, of like size
together.  Splits are numbered through the epoch, so the order of rows is the same whoever reads
them.

A small epoch has no source stage: the driver reads it and does what that stage does (decision
0020).  Here it is known how many rows there are, so nothing is expected and nothing read in vain.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from godwit.cluster.spark.stages import pickling
from godwit.cluster.spark.stages.stages import EpochRows
from godwit.engine.lane.lane import shipments
from godwit.engine.lane.source_side import ship_splits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.source_side import NumberedSplit, SourceSide
    from godwit.engine.lane.wire import Blob
    from godwit.sources.source import Source, Split

ROWS_HERE: Final = 10_000
BYTES_HERE: Final = 2**20
"""Rows and bytes that the driver reads itself, at most."""
_TASKS_A_CORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStage:
    """The source stage of Godwit's own sources (`SourceStage`); items are numbered splits."""

    side: SourceSide
    sources: Mapping[str, Source]  # by name; never opened where tasks run

    def ship(
        self, lanes: LaneFlow, instruction: EpochInstruction, items: Iterable[Any], partition: int
    ) -> Iterator[Blob]:
        """Yield payloads of the rows of a task's splits, combined per key and split by lane."""
        del partition  # splits have numbers of their own
        # A task may run again, while lanes have its first rows; the driver reads for all of them.
        places = 0 if TaskContext.get() is None else len(instruction.places)
        routes = shipments(lanes, instruction)
        yield from ship_splits(self.side, routes, self.sources, items, places=places)


def has_few_rows(batch: SourceBatch[Any]) -> bool:
    """Return whether the splits of a batch are so small that the driver reads them itself."""
    rows, size_bytes = batch.split_rows, batch.split_bytes
    if rows is None or size_bytes is None:
        return False
    return rows <= ROWS_HERE and size_bytes <= BYTES_HERE


def assign_splits(batch: SourceBatch[Any], cores: int) -> EpochRows:
    """Return an epoch's splits assigned to the driver if rows are few, else to tasks."""
    if has_few_rows(batch):
        return EpochRows(here=batch.splits)
    # What a source puts into its splits may be of the main script.
    return EpochRows(
        tasks=tuple(pickling.dumps(task) for task in distribute_splits(batch.splits, cores))
    )


def distribute_splits(
    splits: Sequence[NumberedSplit], cores: int
) -> list[tuple[NumberedSplit, ...]]:
    """Return the splits of each task: one each, unless there are many more than cores."""
    if len(splits) <= _TASKS_A_CORE * cores:
        return [(split,) for split in splits]
    # The longest first, each to the task that has least.
    tasks: list[list[NumberedSplit]] = [[] for _ in range(cores)]
    loads = [(0, at) for at in range(cores)]
    for split in sorted(splits, key=lambda numbered: -_estimate_bytes(numbered.split)):
        load, at = heapq.heappop(loads)
        tasks[at].append(split)
        heapq.heappush(loads, (load + max(_estimate_bytes(split.split), 1), at))
    return [tuple(sorted(task, key=lambda numbered: numbered.number)) for task in tasks]


def _estimate_bytes(split: Split) -> int:
    """Return the approximate bytes of a split, for comparing splits."""
    if split.size_bytes is not None:
        return split.size_bytes
    return 64 * (split.rows or 0)

"""Source rows of a run's batches: those of Godwit's own sources, by their positions.

Splits travel with the orders of an epoch, so no RDD holds them and the JVM knows nothing new.  A
task is made for each; where there are many more than cores, tasks read several, of like size
together.  Splits are numbered through the epoch, so the order of rows does not depend on which task
reads them.

A small epoch has no source stage: the driver reads its splits and does what that stage does.  The
number of rows is known here, so nothing is expected and nothing read in vain.

Rows of DataFrames come beside them (`godwit.spark.micro_batch_epochs`).
"""

from __future__ import annotations

import heapq
import pickle
from typing import TYPE_CHECKING, Any, Final

from godwit.engine.source_positions import SourcePositions
from godwit.spark.stages import pickling
from godwit.spark.stages.source_plans import Program
from godwit.spark.stages.stages import EpochRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.engine.recovery import Recovery
    from godwit.sources.source import Split

_TASKS_A_CORE: Final = 4


class BatchRows:
    """Rows of Godwit's own sources, and their positions; the commit record is the only log."""

    def __init__(self, recovery: Recovery, log: CommitLog) -> None:
        sources = recovery.flow.own_sources
        self.positions = SourcePositions(sources, recovery.sources, log=log)
        # Reading is done by copies that were never opened, here as on executors.
        self._copies = pickle.loads(pickling.dumps(dict(sources)))  # noqa: S301  our own

    def program(self, lanes: LaneFlow) -> Program:
        """Return the program that executors get: the lanes, and the source side of these rows."""
        return Program(lanes=lanes, sources=self._copies)

    def open(self) -> None:
        """Open the sources at the positions of the last commit record."""
        self.positions.open()

    def read(self, batch: SourceBatch[DataFrame], instruction: EpochInstruction) -> EpochRows:
        """Return a batch's rows, for the epoch's source stage."""
        return assign_splits(batch, len(instruction.places))


def assign_splits(batch: SourceBatch[Any], cores: int) -> EpochRows:
    """Return an epoch's splits assigned to the driver if rows are few, else to tasks."""
    if batch.has_few_rows:
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
    loads = [(0, core) for core in range(cores)]
    for split in sorted(splits, key=lambda numbered: -_estimate_bytes(numbered.split)):
        load, core = heapq.heappop(loads)
        tasks[core].append(split)
        heapq.heappush(loads, (load + max(_estimate_bytes(split.split), 1), core))
    return [tuple(sorted(task, key=lambda numbered: numbered.number)) for task in tasks]


def _estimate_bytes(split: Split) -> int:
    """Return the approximate bytes of a split, for comparing splits."""
    if split.size_bytes is not None:
        return split.size_bytes
    return 64 * (split.rows or 0)

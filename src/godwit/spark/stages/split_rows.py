"""Rows of Godwit's own sources: splits, which tasks read; few rows are read on the driver.

Splits travel with the orders of an epoch, so no RDD holds them and the JVM is told nothing new.  A
task is made for each; where there are many more than cores, tasks read several, of like size
together.  Splits are numbered through the epoch, so the order of rows does not depend on which task
reads them.

A small epoch has no source stage: the driver reads it and does what that stage does (decision
0020).  Here it is known how many rows there are, so nothing is expected and nothing read in vain.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from godwit.spark.stages import pickling
from godwit.spark.stages.stages import EpochRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.sources.source import Split

_TASKS_A_CORE: Final = 4


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

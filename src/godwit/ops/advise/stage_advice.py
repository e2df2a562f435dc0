"""Advice on one stateful stage: its time as run, with moved partitions, and with split ones.

A stateful stage of Spark runs one task per state partition on ``s`` slots; the micro-batch waits
for the last of them.  With task times p₁ … pₙ of one micro-batch:

- *as it ran*: from the first launch to the last finish;
- *moved*: the same tasks, freely placed on the slots by the rule "longest processing time first"
  (Graham 1969: within 4/3 - 1/(3s) of the best possible);
- *bound*: max(mean, max pᵢ), below which no placement of whole partitions can be;
- *mean*: Σ pᵢ / s, what work takes that can be divided at will (key groups finer than partitions).

Moving partitions saves the time as it ran less the time moved; splitting them saves
at most the time as it ran less the mean.  Nothing is ever saved by less than nothing: as it ran
includes what the scheduler took, and the rule is not the best possible.

Everything is summed up stage by stage as it is read; of a long run, the micro-batches that are
drawn are merged in pairs, so memory depends on partitions and not on the run's length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.metrics import busiest_lane

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from godwit.ops.advise.event_log import StageRun


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Times of one stage of one micro-batch: as run, and as it could be."""

    # see the module
    as_run_s: float
    moved_s: float
    bound_s: float
    mean_s: float
    longest_s: float  # the longest task
    work_s: float  # all tasks together

    @property
    def saved_by_moving_s(self) -> float:
        """Seconds saved if whole partitions could be placed freely."""
        return max(0.0, self.as_run_s - self.moved_s)

    @property
    def saved_by_splitting_s(self) -> float:
        """Seconds saved, at most, if partitions could be split at will."""
        return max(0.0, self.as_run_s - self.mean_s)


def what_if(as_run_s: float, tasks_s: Sequence[float], slots: int) -> WhatIf:
    """Return the times that a stage would take with better placement.

    `as_run_s`: from the first launch to the last finish, in seconds. `tasks_s`: time of each task,
    in seconds; at least one. `slots`: number of tasks that can run at once; at least one.

    Examples
    --------
    >>> comparison = what_if(8.0, [4.0, 4.0, 1.0, 1.0], slots=2)
    >>> comparison.moved_s, comparison.bound_s, comparison.mean_s
    (5.0, 5.0, 5.0)
    """
    work_s, longest_s = sum(tasks_s), max(tasks_s)
    mean_s = work_s / slots
    return WhatIf(
        as_run_s=as_run_s,
        moved_s=min(as_run_s, busiest_lane(np.asarray(tasks_s), slots)),
        bound_s=max(mean_s, longest_s),
        mean_s=mean_s,
        longest_s=longest_s,
        work_s=work_s,
    )


_DRAWN = 1024
_WORST = 5
_WORTH = 0.05


@dataclass(slots=True, kw_only=True)
class PartitionWork:
    """Work of one state partition over all micro-batches."""

    # time and CPU time of its tasks, in seconds
    work_s: float = 0.0
    cpu_s: float = 0.0
    # what they read from the exchange
    shuffle_rows: int = 0
    shuffle_bytes: int = 0
    # what its state stores held at last
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Batches:
    """Times of consecutive micro-batches."""

    first: int
    last: int
    count: int
    as_run_s: float
    moved_s: float
    mean_s: float

    def merged(self, other: Batches) -> Batches:
        """Return these micro-batches merged with later ones."""
        return Batches(
            first=self.first,
            last=other.last,
            count=self.count + other.count,
            as_run_s=self.as_run_s + other.as_run_s,
            moved_s=self.moved_s + other.moved_s,
            mean_s=self.mean_s + other.mean_s,
        )


@dataclass(slots=True, kw_only=True)
class StageAdvice:
    """Sum of one stateful stage of one query over its micro-batches; times in seconds."""

    # which (see `StageRun`)
    query: str
    operators: tuple[str, ...]
    place: int
    batches: int = 0  # micro-batches
    slots: tuple[int, int] = (0, 0)  # least and most tasks that could run at once
    as_run_s: float = 0.0
    moved_s: float = 0.0
    bound_s: float = 0.0
    mean_s: float = 0.0
    longest_s: float = 0.0
    work_s: float = 0.0
    # likewise; the sum over micro-batches of what each would have saved
    saved_by_moving_s: float = 0.0
    saved_by_splitting_s: float = 0.0
    partitions: dict[int, PartitionWork] = field(default_factory=dict)  # number → what it did
    executors: dict[str, float] = field(default_factory=dict)  # name → time of tasks there
    # micro-batches in order; those that would have saved most, worst first
    drawn: list[Batches] = field(default_factory=list)
    worst: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, run: StageRun) -> None:
        """Add the run of the stage in one micro-batch."""
        tasks = run.tasks.values()
        as_run_s = (
            max(task_.finish_ms for task_ in tasks) - min(task_.launch_ms for task_ in tasks)
        ) / 1e3
        slots = run.slots or _most_at_once(run)
        comparison = what_if(as_run_s, [task_.took_s for task_ in tasks], slots)
        self.slots = (min(self.slots[0] or slots, slots), max(self.slots[1], slots))
        self.batches += 1
        self.as_run_s += comparison.as_run_s
        self.moved_s += comparison.moved_s
        self.bound_s += comparison.bound_s
        self.mean_s += comparison.mean_s
        self.longest_s += comparison.longest_s
        self.work_s += comparison.work_s
        self.saved_by_moving_s += comparison.saved_by_moving_s
        self.saved_by_splitting_s += comparison.saved_by_splitting_s
        for number, task in run.tasks.items():
            partition = self.partitions.setdefault(number, PartitionWork())
            partition.work_s += task.took_s
            partition.cpu_s += task.cpu_s
            partition.shuffle_rows += task.shuffle_rows
            partition.shuffle_bytes += task.shuffle_bytes
            partition.state_rows, partition.state_bytes = task.state_rows, task.state_bytes
            spent = self.executors.get(task.executor, 0.0)
            self.executors[task.executor] = spent + task.took_s
        self._note_batch(run.batch, comparison)

    def _note_batch(self, batch: int, comparison: WhatIf) -> None:
        """Add a micro-batch to those to draw, and to the worst ones if it is among them."""
        self.drawn.append(
            Batches(
                first=batch,
                last=batch,
                count=1,
                as_run_s=comparison.as_run_s,
                moved_s=comparison.moved_s,
                mean_s=comparison.mean_s,
            )
        )
        if len(self.drawn) > _DRAWN:
            pairs = zip(self.drawn[::2], self.drawn[1::2], strict=False)
            last = self.drawn[-1:] if len(self.drawn) % 2 else []
            self.drawn = [batch.merged(other) for batch, other in pairs] + last
        self.worst.append((batch, comparison.as_run_s, comparison.saved_by_splitting_s))
        self.worst = sorted(self.worst, key=lambda worst: -worst[2])[:_WORST]

    @property
    def label(self) -> str:
        """Names of the stage's operators; with a number if the query has several such stages."""
        return " + ".join(self.operators) + (f" ({self.place + 1})" if self.place else "")

    @property
    def imbalance(self) -> float:
        """Longest task over the mean of all partitions, averaged over micro-batches."""
        mean_s = self.work_s / len(self.partitions) if self.partitions else 0.0
        return self.longest_s / mean_s if mean_s > 0 else 1.0

    @property
    def hottest(self) -> tuple[int, float]:
        """Partition with most work, and its share of all work."""
        number = max(self.partitions, key=lambda n: (self.partitions[n].work_s, -n))
        return number, self.partitions[number].work_s / self.work_s if self.work_s else 0.0

    @property
    def executor_distance(self) -> float:
        """Largest distance of an executor's work from their mean, as a share of the mean."""
        spent = list(self.executors.values())
        mean = sum(spent) / len(spent)
        return max(abs(seconds - mean) for seconds in spent) / mean if mean > 0 else 0.0

    def verdict(self) -> str:
        """Return the advice in one or two sentences."""
        if self.as_run_s <= 0:
            return "Its time is below the resolution of Spark's clock."
        moving = self.saved_by_moving_s / self.as_run_s
        splitting = self.saved_by_splitting_s / self.as_run_s
        number, share = self.hottest
        if splitting < _WORTH:
            return "Well balanced: moving state would gain nothing."
        if moving >= max(_WORTH, splitting / 2):
            return (
                f"Placing the same partitions better would have saved {moving:.0%} of its time; "
                f"splitting them, at most {splitting:.0%}."
            )
        if self.longest_s > 0.9 * self.bound_s and self.longest_s > 1.2 * self.mean_s:
            return (
                "The longest task determines the time, so moving whole partitions saves "
                f"{moving:.0%}. Partition {number} does {share:.0%} of the work: finer key "
                f"groups would save {splitting:.0%} at most, and less if one key makes it so "
                "large."
            )
        return (
            f"Moving whole partitions would have saved {moving:.0%} of its time, finer key "
            f"groups {splitting:.0%} at most; the rest is the time to start tasks."
        )


def advise(runs: Iterable[StageRun]) -> list[StageAdvice]:
    """Return the advice on the stateful stages of all micro-batches, largest savings first."""
    stages: dict[tuple[str, tuple[str, ...], int], StageAdvice] = {}
    for run in runs:
        key = (run.query, run.operators, run.place)
        if key not in stages:
            stages[key] = StageAdvice(query=run.query, operators=run.operators, place=run.place)
        stages[key].add(run)
    return sorted(stages.values(), key=lambda stage: -stage.saved_by_splitting_s)


def _most_at_once(run: StageRun) -> int:
    """Return the largest number of a stage's tasks that ran at once; at least 1."""
    changes = [(t.launch_ms, 1) for t in run.tasks.values()]
    changes += [(t.finish_ms, -1) for t in run.tasks.values()]
    running = greatest = 0
    for _, change in sorted(changes):
        running += change
        greatest = max(greatest, running)
    return max(greatest, 1)

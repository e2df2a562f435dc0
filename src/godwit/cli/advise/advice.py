"""What the stateful stages of a run have in common: sums over micro-batches, and a verdict.

Everything is summed up stage by stage as it is read; of a long run, the micro-batches that are
drawn are merged in pairs, so memory depends on partitions and not on the run's length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.cli.advise.what_if import what_if
from godwit.model.wording import counted

if TYPE_CHECKING:
    from godwit.cli.advise.stages import StageRun
    from godwit.cli.advise.what_if import WhatIf

__all__ = ["Advice", "Batches", "Partition", "StageAdvice"]

_DRAWN = 1024
_WORST = 5
_WORTH = 0.05


@dataclass(slots=True, kw_only=True)
class Partition:
    """One state partition, summed over micro-batches.

    Attributes
    ----------
    work_s, cpu_s
        Time and CPU time of its tasks, in seconds.
    shuffle_rows, shuffle_bytes
        What they read from the exchange.
    state_rows, state_bytes
        What its state stores held at last.
    """

    work_s: float = 0.0
    cpu_s: float = 0.0
    shuffle_rows: int = 0
    shuffle_bytes: int = 0
    state_rows: int = 0
    state_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Batches:
    """Some micro-batches that follow each other, in seconds: one of them, or more of a long run."""

    first: int
    last: int
    count: int
    as_run_s: float
    moved_s: float
    mean_s: float

    def merged(self, other: Batches) -> Batches:
        """Give both as one."""
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
    """One stateful stage of one query, summed over its micro-batches; times in seconds.

    Attributes
    ----------
    query, operators, place
        Which (see `StageRun`).
    batches
        Micro-batches.
    slots
        Least and most tasks that could run at once.
    as_run_s, moved_s, bound_s, mean_s, longest_s, work_s
        See `godwit.cli.advise.what_if`.
    saved_by_moving_s, saved_by_splitting_s
        Likewise; the sum over micro-batches of what each would have saved.
    partitions
        Number → what it did.
    executors
        Name → time of tasks there.
    drawn, worst
        Micro-batches in order; those that would have saved most, worst first.
    """

    query: str
    operators: tuple[str, ...]
    place: int
    batches: int = 0
    slots: tuple[int, int] = (0, 0)
    as_run_s: float = 0.0
    moved_s: float = 0.0
    bound_s: float = 0.0
    mean_s: float = 0.0
    longest_s: float = 0.0
    work_s: float = 0.0
    saved_by_moving_s: float = 0.0
    saved_by_splitting_s: float = 0.0
    partitions: dict[int, Partition] = field(default_factory=dict)
    executors: dict[str, float] = field(default_factory=dict)
    drawn: list[Batches] = field(default_factory=list)
    worst: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, run: StageRun) -> None:
        """Take one micro-batch's stage."""
        tasks = run.tasks.values()
        as_run_s = (max(t.finish_ms for t in tasks) - min(t.launch_ms for t in tasks)) / 1e3
        slots = run.slots or _most_at_once(run)
        made = what_if(as_run_s, [t.took_s for t in tasks], slots)
        self.slots = (min(self.slots[0] or slots, slots), max(self.slots[1], slots))
        self.batches += 1
        self.as_run_s += made.as_run_s
        self.moved_s += made.moved_s
        self.bound_s += made.bound_s
        self.mean_s += made.mean_s
        self.longest_s += made.longest_s
        self.work_s += made.work_s
        self.saved_by_moving_s += made.saved_by_moving_s
        self.saved_by_splitting_s += made.saved_by_splitting_s
        for number, task in run.tasks.items():
            partition = self.partitions.setdefault(number, Partition())
            partition.work_s += task.took_s
            partition.cpu_s += task.cpu_s
            partition.shuffle_rows += task.shuffle_rows
            partition.shuffle_bytes += task.shuffle_bytes
            partition.state_rows, partition.state_bytes = task.state_rows, task.state_bytes
            spent = self.executors.get(task.executor, 0.0)
            self.executors[task.executor] = spent + task.took_s
        self._keep(run.batch, made)

    def _keep(self, batch: int, made: WhatIf) -> None:
        self.drawn.append(
            Batches(
                first=batch,
                last=batch,
                count=1,
                as_run_s=made.as_run_s,
                moved_s=made.moved_s,
                mean_s=made.mean_s,
            )
        )
        if len(self.drawn) > _DRAWN:
            pairs = zip(self.drawn[::2], self.drawn[1::2], strict=False)
            last = self.drawn[-1:] if len(self.drawn) % 2 else []
            self.drawn = [one.merged(other) for one, other in pairs] + last
        self.worst.append((batch, made.as_run_s, made.saved_by_splitting_s))
        self.worst = sorted(self.worst, key=lambda one: -one[2])[:_WORST]

    @property
    def label(self) -> str:
        """Name of the stage among those of its query."""
        return " + ".join(self.operators) + (f" ({self.place + 1})" if self.place else "")

    @property
    def imbalance(self) -> float:
        """The longest task against the mean of all partitions, over micro-batches."""
        mean_s = self.work_s / len(self.partitions) if self.partitions else 0.0
        return self.longest_s / mean_s if mean_s > 0 else 1.0

    @property
    def hottest(self) -> tuple[int, float]:
        """The partition with most work, and its share of all."""
        number = max(self.partitions, key=lambda n: (self.partitions[n].work_s, -n))
        return number, self.partitions[number].work_s / self.work_s if self.work_s else 0.0

    @property
    def executor_distance(self) -> float:
        """Largest distance of an executor's work from their mean, as a share of the mean."""
        spent = list(self.executors.values())
        mean = sum(spent) / len(spent)
        return max(abs(one - mean) for one in spent) / mean if mean > 0 else 0.0

    def verdict(self) -> str:
        """Say in a sentence or two what it comes to."""
        if self.as_run_s <= 0:
            return "It took no time that Spark's clock can show."
        moving = self.saved_by_moving_s / self.as_run_s
        splitting = self.saved_by_splitting_s / self.as_run_s
        number, share = self.hottest
        if splitting < _WORTH:
            return "Well balanced: there is nothing worth moving state for."
        if moving >= max(_WORTH, splitting / 2):
            return (
                f"Placing the same partitions better would have saved {moving:.0%} of its time; "
                f"splitting them, {splitting:.0%} at most."
            )
        if self.longest_s > 0.9 * self.bound_s and self.longest_s > 1.2 * self.mean_s:
            return (
                f"The longest task sets the pace, so moving whole partitions saves {moving:.0%}. "
                f"Partition {number} does {share:.0%} of the work: finer key groups would save "
                f"{splitting:.0%} at most, and less if one key makes it so large."
            )
        return (
            f"Moving whole partitions would have saved {moving:.0%} of its time, finer key groups "
            f"{splitting:.0%} at most; the rest is what it takes to start tasks."
        )


@dataclass(slots=True, kw_only=True)
class Advice:
    """All stateful stages of a run."""

    stages: dict[tuple[str, tuple[str, ...], int], StageAdvice] = field(default_factory=dict)

    def add(self, run: StageRun) -> None:
        """Take one stage of one micro-batch."""
        key = (run.query, run.operators, run.place)
        if key not in self.stages:
            self.stages[key] = StageAdvice(
                query=run.query, operators=run.operators, place=run.place
            )
        self.stages[key].add(run)

    def ordered(self) -> list[StageAdvice]:
        """Give the stages, those first that would have saved most."""
        return sorted(self.stages.values(), key=lambda s: -s.saved_by_splitting_s)

    def told(self) -> str:
        """Say how many there are."""
        return counted(len(self.stages), "stateful stage")


def _most_at_once(run: StageRun) -> int:
    """Count how many tasks ran at once, where Spark does not say how many could."""
    moments = [(t.launch_ms, 1) for t in run.tasks.values()]
    moments += [(t.finish_ms, -1) for t in run.tasks.values()]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return max(most, 1)

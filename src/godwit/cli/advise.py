"""`godwit advise`: what an ordinary Spark streaming run lost to partitions that do not move.

A stateful stage of Spark runs one task per state partition on ``s`` slots; the micro-batch waits
for the last of them.  With task times p₁ … pₙ of one micro-batch:

- *as it ran*: from the first launch to the last finish;
- *moved*: the same tasks, freely placed on the slots by the rule "longest processing time first"
  (Graham 1969: within 4/3 - 1/(3s) of the best possible);
- *bound*: max(mean, max pᵢ), below which no placement of whole partitions can be;
- *mean*: Σ pᵢ / s, what work takes that can be divided at will (key groups finer than partitions).

What is saved by moving partitions is the time as it ran less the time moved; splitting them saves
at most the time as it ran less the mean.  Nothing is ever saved by less than nothing: as it ran
includes what the scheduler took, and the rule is not the best possible.

Everything is summed up stage by stage as it is read; of a long run, the micro-batches that are
drawn are merged in pairs, so memory depends on partitions and not on the run's length.
"""

from __future__ import annotations

import heapq
import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from godwit.cli.console import figures_table, tell, wide_console
from godwit.cli.event_log import EventLogError, StageReader, open_event_log
from godwit.model.errors import GodwitError
from godwit.model.wording import counted, human_bytes, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from godwit.cli.event_log import EventLog, StageRun

__all__ = [
    "Batches",
    "PartitionWork",
    "StageAdvice",
    "WhatIf",
    "add_advise_command",
    "advise",
    "longest_first_s",
    "what_if",
]


def add_advise_command(subparsers: Any) -> None:
    """Add ``advise`` to the command line; the function to run is left in ``args.run``."""
    parser = subparsers.add_parser(
        "advise",
        help="what an ordinary Spark streaming run lost to unbalanced state, from its event log",
        description="Read the event log of a Spark Structured Streaming application (not of "
        "Godwit) and say how unbalanced its stateful stages were: per micro-batch, what the stage "
        "took, what the same partitions would have taken on the same slots had they been placed "
        "freely (longest first), and the mean, which key groups finer than partitions come close "
        "to. The log may be compressed, rolled, cut short or still being written. Exit status 0; "
        "2 if there is nothing to advise on.",
    )
    parser.add_argument(
        "path",
        metavar="EVENTLOG",
        help="a file, or a directory eventlog_v2_*, that Spark wrote under spark.eventLog.dir",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the stages (.png, .svg, .pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=_advise)


def _advise(args: argparse.Namespace) -> int:
    log, reader = open_event_log(args.path), StageReader()
    stages = advise(reader.read(log.lines()))
    if not stages:
        raise _nothing_to_advise(args.path, reader, log.notes)
    notes = _notes(log, reader)
    if args.plot is not None:
        _draw(reader, stages, args.plot)
    if args.json:
        print(json.dumps(_plain(reader, stages, notes), indent=2))
    else:
        _tell(reader, stages, notes)
    return 0


def _nothing_to_advise(path: str, reader: StageReader, notes: list[str]) -> EventLogError:
    """Error of a log in which there is nothing to advise on."""
    if reader.events == 0:
        why, remedy = "holds no event that can be read", "Give a log that is whole."
    elif not reader.queries:
        why, remedy = (
            "is of an application without streaming queries",
            "Give the log of one that runs a stateful streaming query.",
        )
    elif any(figures.operators for figures in reader.queries.values()):
        why, remedy = (
            "has a stateful query, but no stateful stage that is complete",
            "Look again when a micro-batch has ended; rolled files that were deleted are missed.",
        )
    else:
        why, remedy = (
            "has streaming queries, but none of them has run a stateful stage",
            "There is no state to balance. Of a query by Godwit, `godwit top` shows the balance.",
        )
    said = " ".join([f"The event log {path!r} {why}.", *notes])
    return EventLogError(said, remedy=remedy, path=path)


def _notes(log: EventLog, reader: StageReader) -> list[str]:
    """Say what is missing in the log, in sentences."""
    notes = list(log.notes)
    if log.unfinished:
        notes.append("The application was still running: these are its figures until then.")
    if reader.bad_lines:
        notes.append(f"{counted(reader.bad_lines, 'line')} could not be read, and is left out.")
    return notes


def _plain(reader: StageReader, stages: Sequence[StageAdvice], notes: list[str]) -> dict[str, Any]:
    """Return everything as plain values for JSON."""
    return {
        "application": reader.application,
        "spark_version": reader.spark_version,
        "queries": {key: asdict(figures) for key, figures in reader.queries.items()},
        "stages": [
            {
                **asdict(stage),
                "name": stage.label,
                "imbalance": stage.imbalance,
                "hottest_partition": stage.hottest[0],
                "hottest_share": stage.hottest[1],
                "executor_distance": stage.executor_distance,
                "verdict": stage.verdict(),
            }
            for stage in stages
        ],
        "notes": notes,
    }


def _tell(reader: StageReader, stages: Sequence[StageAdvice], notes: list[str]) -> None:
    console = wide_console()
    whose = reader.application or "an application"
    version = f", Spark {reader.spark_version}" if reader.spark_version else ""
    tell(console, f"{whose}{version}: {counted(len(stages), 'stateful stage')}")
    head = (
        *("stage", "batches", "slots", "partitions", "as it ran", "partitions moved", "mean"),
        *("longest / mean", "executors ±"),
    )
    rows = [
        (
            _title(reader, stage),
            str(stage.batches),
            _range(*stage.slots),
            str(len(stage.partitions)),
            f"{stage.as_run_s:.1f} s",
            f"{stage.moved_s:.1f} s",
            f"{stage.mean_s:.1f} s",
            f"{stage.imbalance:.1f}",
            f"{stage.executor_distance:.0%}",
        )
        for stage in stages
    ]
    console.print(figures_table(head, rows))
    for stage in stages:
        _tell_stage(console, reader, stage)
    for note in notes:
        tell(console, f"note: {note}", "yellow")


def _tell_stage(console: Console, reader: StageReader, stage: StageAdvice) -> None:
    tell(console, _title(reader, stage), "bold")
    tell(console, f"  {stage.verdict()}")
    trigger_s = reader.queries[stage.query].trigger_s if stage.query in reader.queries else 0.0
    if trigger_s > 0:
        share = stage.as_run_s / trigger_s
        tell(console, f"  It was {share:.0%} of the query's {trigger_s:.1f} s.")
    number, work = stage.hottest
    hot = stage.partitions[number]
    rows = sum(p.shuffle_rows for p in stage.partitions.values()) or 1
    size_bytes = sum(p.shuffle_bytes for p in stage.partitions.values()) or 1
    states = sum(p.state_rows for p in stage.partitions.values()) or 1
    tell(
        console,
        f"  Partition {number}: {work:.0%} of the work, {hot.shuffle_rows / rows:.0%} of the "
        f"rows and {hot.shuffle_bytes / size_bytes:.0%} of the bytes "
        f"({human_bytes(hot.shuffle_bytes)}) from the exchange, "
        f"{hot.state_rows / states:.0%} of the rows of state.",
    )
    figures = ", ".join(
        f"{batch} ({saved_s:.1f} of {as_run_s:.1f} s)"
        for batch, as_run_s, saved_s in stage.worst
        if saved_s > 0
    )
    if figures:
        tell(console, f"  Micro-batches that would have saved most: {figures}.")


def _title(reader: StageReader, stage: StageAdvice) -> str:
    """Name a stage with its query's name."""
    figures = reader.queries.get(stage.query)
    return f"{(figures and figures.name) or stage.query[:8]}: {stage.label}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _draw(reader: StageReader, stages: Sequence[StageAdvice], path: Path) -> None:
    try:
        from godwit.cli import plots  # noqa: PLC0415  matplotlib is slow to import
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise GodwitError(
            "--plot needs the package matplotlib, which is not installed.",
            remedy="pip install 'godwit-streams[planning]'",
        ) from None
    titled = [(printable(_title(reader, stage)), stage) for stage in stages]
    try:
        with warnings.catch_warnings(action="ignore"):  # of characters that the font lacks
            plots.save(plots.advice_figure(titled), path)
    except (ValueError, OSError) as error:
        raise GodwitError(
            f"--plot {path} cannot be written: {error}.",
            remedy="Give a file ending in .png, .svg or .pdf in a directory that exists.",
            path=str(path),
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One stage of one micro-batch, in seconds."""

    # see the module
    as_run_s: float
    moved_s: float
    bound_s: float
    mean_s: float
    longest_s: float  # the longest task
    work_s: float  # all tasks together

    @property
    def saved_by_moving_s(self) -> float:
        """Seconds that placing whole partitions freely would have saved."""
        return max(0.0, self.as_run_s - self.moved_s)

    @property
    def saved_by_splitting_s(self) -> float:
        """Seconds that dividing the work at will would have saved, at most."""
        return max(0.0, self.as_run_s - self.mean_s)


def what_if(as_run_s: float, tasks_s: Sequence[float], slots: int) -> WhatIf:
    """Compare a stage with what it could have been.

    `as_run_s`: from the first launch to the last finish, in seconds. `tasks_s`: what each task
    took, in seconds; at least one. `slots`: how many tasks can run at once; at least one.

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
        moved_s=min(as_run_s, longest_first_s(tasks_s, slots)),
        bound_s=max(mean_s, longest_s),
        mean_s=mean_s,
        longest_s=longest_s,
        work_s=work_s,
    )


def longest_first_s(tasks_s: Sequence[float], slots: int) -> float:
    """Give the length of the schedule that gives the longest task left to the slot that is free."""
    free_s = [0.0] * min(slots, len(tasks_s))
    for task_s in sorted(tasks_s, reverse=True):
        heapq.heapreplace(free_s, free_s[0] + task_s)
    return max(free_s)


_DRAWN = 1024
_WORST = 5
_WORTH = 0.05


@dataclass(slots=True, kw_only=True)
class PartitionWork:
    """One state partition, summed over micro-batches."""

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
    """One stateful stage of one query, summed over its micro-batches; times in seconds."""

    # which (see `StageRun`)
    query: str
    operators: tuple[str, ...]
    place: int
    batches: int = 0  # micro-batches
    slots: tuple[int, int] = (0, 0)  # least and most tasks that could run at once
    # see `godwit.cli.advise.advice`
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
        """Take one micro-batch's stage."""
        tasks = run.tasks.values()
        as_run_s = (max(t.finish_ms for t in tasks) - min(t.launch_ms for t in tasks)) / 1e3
        slots = run.slots or _most_at_once(run)
        comparison = what_if(as_run_s, [t.took_s for t in tasks], slots)
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
        """Note a micro-batch for the picture, and among the worst if it is one of them."""
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
            self.drawn = [one.merged(other) for one, other in pairs] + last
        self.worst.append((batch, comparison.as_run_s, comparison.saved_by_splitting_s))
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


def advise(runs: Iterable[StageRun]) -> list[StageAdvice]:
    """Sum up the stateful stages of all micro-batches, those first that would have saved most."""
    stages: dict[tuple[str, tuple[str, ...], int], StageAdvice] = {}
    for run in runs:
        key = (run.query, run.operators, run.place)
        if key not in stages:
            stages[key] = StageAdvice(query=run.query, operators=run.operators, place=run.place)
        stages[key].add(run)
    return sorted(stages.values(), key=lambda stage: -stage.saved_by_splitting_s)


def _most_at_once(run: StageRun) -> int:
    """Count how many tasks ran at once, where Spark does not say how many could."""
    changes = [(t.launch_ms, 1) for t in run.tasks.values()]
    changes += [(t.finish_ms, -1) for t in run.tasks.values()]
    running = greatest = 0
    for _, change in sorted(changes):
        running += change
        greatest = max(greatest, running)
    return max(greatest, 1)

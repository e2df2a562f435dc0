"""A third of the keys moves to another executor, by each strategy, or its executor is lost.

A checkpoint gets millions of keys of an aggregate, on three executors with a lane each. Then, in a
new process for each row, epochs touch some keys each; once their times are steady, all key groups
of one executor move to the others by a strategy, or the executor is lost. Everything runs one after
the other in one process, so the CPU seconds that an epoch takes more than before are those of the
lanes that got the key groups, and copies in the background cost what they take between the epochs.

    python -m benchmarks.moved_state [--keys 5] [--touched 100000] [--epochs 24] [--rounds 1]
        [--only live on_demand ...] [--directory DIRECTORY]

Printed for each: `slowest`, the CPU seconds of the slowest epoch, and its ratio to the median
epoch before; `first`, those of the first epoch at the new owner, and CPU seconds from the decision
to its end; `waited`, the rows that waited for state; `all`, CPU seconds of all epochs and copies
beside as many epochs before. `--keys` is in millions. A checkpoint in DIRECTORY is used again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.restart import MILLION, child, flow, rows_of

from godwit.checkpoint import partial_copies
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.migration import LossPolicy, Policy, Strategy
from godwit.migration.messages import MigrationRequested

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.migration.outcome import EpochOutcome
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

EXECUTORS = {"a": 1, "b": 1, "c": 1}
MOVED = ("live", "on_demand", "disruptive", "stop_the_world")
LOST = ("lost, suspend", "lost, load", "lost, on_demand")


class Run(LocalRun):
    """A run without sinks, which says what copies in the background took."""

    between_s = 0.0

    def open_sinks(self, flow: CompiledFlow) -> Iterable[StagedSink]:  # noqa: ARG002
        """Return no sinks."""
        return []

    def run_background_copies(self) -> None:
        """Carry out queued orders, and add the CPU time that they take."""
        at_s = time.process_time()
        super().run_background_copies()
        self.between_s += time.process_time() - at_s

    def play(self, keys: np.ndarray[Any, Any]) -> tuple[float, EpochOutcome]:
        """Run an epoch with a row for each key; return the CPU seconds of it alone."""
        between_s, at_s = self.between_s, time.process_time()
        outcome = self.epoch({LaneInput(index=0): rows_of(keys)[0]})
        return time.process_time() - at_s - (self.between_s - between_s), outcome


def start(directory: Path, *, whole: bool = False, on_loss: str = "suspend") -> Run:
    """Start a run from the checkpoint."""
    return Run(
        flow(),
        CheckpointStorage.open(str(directory / "checkpoint")),
        executors=EXECUTORS,
        settings=Lanes(local_dir=str(directory / "local"), restore="whole" if whole else "touched"),
        policy=Policy(on_loss=LossPolicy(on_loss)),
    )


def fill(directory: Path, millions: int) -> None:
    """Write a checkpoint with some million keys."""
    run = start(directory)
    for number in range(millions):
        run.play(np.arange(number * MILLION, (number + 1) * MILLION))


def measure(row: str, filled: Path, from_kib: int, *numbers: int) -> dict[str, Any]:
    """Start again, let key groups move or be lost, and return what it took."""
    with temporary_directory() as directory:
        shutil.copytree(filled, directory / "checkpoint", copy_function=os.link)
        partial_copies.FROM_BYTES = from_kib << 10  # before the run starts
        return played(row, directory, *numbers)


def played(row: str, directory: Path, millions: int, touched: int, epochs: int) -> dict[str, Any]:
    """Play a row on a checkpoint of its own."""
    rng = np.random.default_rng(1)
    policy = row.removeprefix("lost, ")
    run = start(directory, whole=policy == "load", on_loss=policy if row in LOST else "suspend")

    def epoch() -> tuple[float, EpochOutcome]:
        return run.play(rng.integers(0, millions * MILLION, touched))

    for _ in range(100):
        _, outcome = epoch()
        if not outcome.unread_bytes:
            break
    before = [epoch()[0] for _ in range(12)]
    (name,) = run.view.components
    assignment = run.view.components[name].assignment
    moving = assignment.key_groups("a").tolist()
    run.between_s = 0.0
    at_s = time.process_time()
    if row in LOST:
        run.set_executors({"b": 1, "c": 1})
    else:
        target = assignment.moved({g: "bc"[i % 2] for i, g in enumerate(moving)})
        run.coordinator.migrate(
            MigrationRequested(
                id="m", component=name, target=target, strategy=Strategy(row), by_hand=True
            )
        )
    took: list[float] = []
    first: tuple[int, float, float] | None = None
    waited, unread = 0, 0
    for number in range(epochs):
        view = run.view.components[name]
        runs = not view.suspended & set(moving) and all(
            view.assignment.executor(g) != "a" for g in moving
        )
        seconds, outcome = epoch()
        took.append(seconds)
        waited += any(outcome.waited.values())
        unread += bool(outcome.unread_bytes)
        if first is None and runs:
            first = number, seconds, time.process_time() - at_s
    median = float(np.median(before))
    return {
        "median_before": round(median, 3),
        "slowest": round(max(took), 3),
        "slowest_ratio": round(max(took) / median, 2),
        "first_epoch": None if first is None else first[0],
        "first_took": None if first is None else round(first[1], 3),
        "first_ended_after": None if first is None else round(first[2], 3),
        "background": round(run.between_s, 3),
        "epochs_with_waiting_rows": waited,
        "epochs_with_unread_state": unread,
        "all_ratio": round((sum(took) + run.between_s) / (median * epochs), 2),
        "all_extra": round(sum(took) + run.between_s - median * epochs, 2),
        "epochs": [round(t, 2) for t in took],
    }


def main() -> None:
    arguments = read_options(
        __doc__,
        keys=[5],
        touched=100_000,
        epochs=24,
        rounds=1,
        only=[*MOVED, *LOST],
        from_kib=partial_copies.FROM_BYTES >> 10,
        directory=str,
    )
    with temporary_directory() as temporary:
        for millions in arguments.keys:
            directory = Path(arguments.directory or temporary) / f"moved-{millions}"
            if not directory.exists():
                child(fill, directory, millions)
            for _ in range(arguments.rounds):
                for row in arguments.only:
                    numbers = millions, arguments.touched, arguments.epochs
                    filled = directory / "checkpoint"
                    took = child(measure, row, filled, arguments.from_kib, *numbers)
                    print(f"{millions:>4} M keys, {row:>16}: {json.dumps(took)}", flush=True)


if __name__ == "__main__":
    main()

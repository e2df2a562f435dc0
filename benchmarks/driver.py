"""Cost of an epoch on the driver, without Spark: all but planning rows and running tasks.

The real coordinator, instructor, commit log and journal, and reports that real lanes made.  Figures
are CPU milliseconds of steady epochs (medians), so other programs on the machine disturb them
little; those of the smallest setting are taken in the same run, and ratios are against it.

    python -m benchmarks.driver [--settings 256x1x2 256x1x256 8192x10x2 32768x1x2] [--epochs 9]

A setting is key groups x operators x executors, of one lane each.  What an executor is sent, and
what it takes to unpack, is that of the one with most.
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import EntryLayout, WaitingLayout
from godwit.checkpoint.journal import JournalWriter
from godwit.checkpoint.records import FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.cluster import Executor
from godwit.engine.event_time import EventTimes
from godwit.engine.instructions import Instructor
from godwit.engine.lane.lane_flow import LaneInput, lane_flow
from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.loop import Stopwatch
from godwit.engine.outcomes import build_commit_record, build_outcome, progress_of
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw
from godwit.library.compute import ComputeOperator
from godwit.local import run_lanes, ship_rows
from godwit.migration import messages
from godwit.migration.coordinator import Coordinator
from godwit.migration.strategy import Policy
from godwit.model.assignment import even_assignment
from godwit.plan.compiled import CompiledFlow, Component, SourceInput

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from godwit.migration.messages import DropCopies, StartWarming
    from godwit.model.events import Event

RUN_ID = "abcdef012345-0123456789ab"
OF_OTHERS = ("KiB", "KiB an executor", "one task decodes")
"""Figures that are no time of the driver's."""


class NoWorld:
    """Ports of a world in which nothing is asked for."""

    def warm(self, order: StartWarming) -> None:
        """Nothing moves here."""
        raise AssertionError(order)

    def drop(self, order: DropCopies) -> None:
        """Nothing moves here."""
        raise AssertionError(order)

    def announce(self, event: Event) -> None:
        """Nobody listens."""

    def now_s(self) -> float:
        """Time stands still."""
        return 0.0


def flow_of(num_key_groups: int, operators: int) -> CompiledFlow:
    """Make a flow of operators side by side, each a component of its own."""
    side_by_side = [
        ComputeOperator(
            name=f"operator {index}",
            keys=pa.schema({"k": pa.string()}),
            inputs=pa.schema({"v": pa.float64()}),
            aggregates={"n": gw.count(), "total": gw.sum("v")},
        )
        for index in range(operators)
    ]
    return CompiledFlow(
        name="driver",
        num_key_groups=num_key_groups,
        sources=("rows",),
        components=tuple(Component(name=o.name, operators=(o,), level=1) for o in side_by_side),
        inputs=tuple(
            SourceInput(
                operator=o.name,
                source="rows",
                maps=(),
                keys=("k",),
                schema=pa.schema({"k": pa.string(), "v": pa.float64()}),
            )
            for o in side_by_side
        ),
        outputs=(),
        actions={o.name: "aggregate" for o in side_by_side},
    )


class Driver:
    """The driver of one run, as `open_run` makes it, around lanes in this process."""

    def __init__(self, flow: CompiledFlow, root: Path, executors: int) -> None:
        self.flow, self.root, self.took_ms = flow, root, dict[str, float]()
        layouts = {
            o.name: (
                {s.state: EntryLayout(name=str(s), schema=o.schema) for s in o.states},
                WaitingLayout(operator=o.name, schema=o.waiting_schema),
            )
            for o in flow.operators
        }
        self.lanes = lane_flow(flow, layouts, ())
        storage = CheckpointStorage.open(str(root / "checkpoint"))
        self.log = CommitLog.create_or_open(
            storage, FlowIdentity(name=flow.name, num_key_groups=flow.num_key_groups), "run"
        )
        self.instructor = Instructor(
            flow,
            self.log,
            layouts,
            Lanes(local_dir=str(root / "local")),
            on_loss=Policy().on_loss,
            run_id=RUN_ID,
        )
        names = [str(e) for e in range(executors)]
        self.executors = {
            name: Executor(name=name, location=f"executor_127.0.0.1_{name}", lanes=1)
            for name in names
        }
        assignment = even_assignment(flow.num_key_groups, names, [1] * executors)
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id=RUN_ID,
                executors=dict.fromkeys(names, 1),
                assignments={c.name: assignment for c in flow.components},
            ),
            states={c.name: c.states for c in flow.components},
            policy=Policy(),
            ports=NoWorld(),
        )
        self.journal = JournalWriter(storage, RUN_ID)
        self.times = EventTimes(flow, None)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the CPU time of a part of the driver's work."""
        before = time.process_time()
        try:
            yield
        finally:
            self.took_ms[name] = self.took_ms.get(name, 0.0) + (time.process_time() - before) * 1e3

    def epoch(self, batch: pa.RecordBatch) -> dict[str, float]:
        """Run one epoch and return what it took the driver, part by part."""
        self.took_ms = {}
        watch, epoch = Stopwatch(), self.log.latest_epoch + 1
        with self.part("begin"):
            component_views = self.coordinator.begin(epoch)
        assert component_views is not None
        with self.part("instruct"):
            told = self.times.epoch_times(clock_us=0, silence_us=0, components=component_views)
            instruction = self.instructor.epoch(
                epoch,
                component_views,
                view=self.coordinator.view,
                copies=self.coordinator.copies,
                times=told,
            )
        with self.part("encode"):
            parts = InstructionParts.of(instruction)
            sent = pickle.dumps(parts)
        self.all_bytes = len(sent)
        of_one = [len(pickle.dumps(parts.for_executor(name))) for name in self.executors]
        self.size_bytes = max(of_one)
        with self.part("one task decodes"):
            received = pickle.loads(sent)
            received.for_place(0)
        inputs = (LaneInput(index=index) for index in range(len(self.flow.operators)))
        boxes = ship_rows(self.lanes, instruction, {given: [batch] for given in inputs})
        reports = run_lanes(self.lanes, instruction, boxes)
        answers = [report.dumps() for report in reports]
        with self.part("decode"):
            reports = [LaneReport.loads(answer) for answer in answers]
        with self.part("record"):
            times = self.times.after(told, reports)
            record = build_commit_record(
                epoch, reports, component_views, run_id=RUN_ID, batch=None, before=None, times=times
            )
        with self.part("commit"):
            record = self.log.commit(record)
            self.times.after_commit(times, told, reports, 0)
        with self.part("outcome"):
            outcome = build_outcome(
                record,
                reports,
                flow=self.flow,
                chains=self.log.chains,
                copies=self.coordinator.copies,
                counting={(self.flow.operators[0].name, 0): self.flow.sources[0]},
            )
        with self.part("conduct"):
            self.coordinator.commit(outcome)
        with self.part("note"):
            self.journal.add("progress", progress_of(outcome, self.coordinator.view, watch, {}))
        return self.took_ms


def measure(setting: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run epochs under one setting and return the median of each part over the steady ones."""
    num_key_groups, operators, executors = map(int, setting.split("x"))
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        driver = Driver(flow_of(num_key_groups, operators), Path(directory), executors)
        took = []
        for _ in range(arguments.epochs):
            drawn = rng.integers(0, arguments.keys, arguments.rows)
            names = pa.array([f"customer-{key:08d}" for key in drawn.tolist()])
            batch = pa.record_batch({"k": names, "v": pa.array(rng.random(arguments.rows))})
            took.append(driver.epoch(batch))
            gc.collect()  # a search at a time of its own would count towards whatever runs then
        steady = took[len(took) // 2 :]
        medians = {name: float(np.median([one[name] for one in steady])) for name in steady[-1]}
        return {
            **medians,
            "KiB": driver.all_bytes / 1024,
            "KiB an executor": driver.size_bytes / 1024,
        }


def main() -> None:
    arguments = read_options(
        __doc__,
        settings=["256x1x2", "256x1x256", "8192x1x256", "8192x10x2", "32768x1x2", "8192x10x256"],
        rows=20_000,
        keys=100_000,
        epochs=9,
    )
    first = None
    for setting in arguments.settings:
        parts = measure(setting, arguments)
        driver = sum(ms for name, ms in parts.items() if name not in OF_OTHERS)
        first = driver if first is None else first
        print(f"{setting:>12}: driver {driver:7.1f} ms CPU ({driver / first:.1f}x) =", end="")
        print("".join(f"  {name} {value:.1f}" for name, value in parts.items()), flush=True)


if __name__ == "__main__":
    main()

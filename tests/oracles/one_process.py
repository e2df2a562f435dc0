"""The real lanes, store and checkpoint in one process: a list for the shuffle, and no Spark.

It drives what Spark drives on executors, epoch by epoch, from the same instructions; each executor
has a local store of its own, and may lose it.
"""

from __future__ import annotations

import pickle
import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.epoch.executor import Executor
from godwit.epoch.instructions import (
    mask_of,
    operator_instruction,
    places_of,
    state_instruction,
)
from godwit.lane.lane import LaneOperator, run_lane, shipments
from godwit.lane.messages import EpochInstruction, LaneReport
from godwit.lane.wire import due_at, ship
from godwit.migration import Copies, EpochPlan
from godwit.model.assignment import even_assignment
from godwit.state.commit_log import CommitLog
from godwit.state.entries import EntryLayout, WaitingLayout
from godwit.state.reading import BatchCache, read_chain
from godwit.state.records import CommitRecord, FlowIdentity
from godwit.state.snapshots import choose_snapshots
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from godwit.dataflow.compiled import UpstreamInput
    from godwit.dataflow.operator import KeyedOperator
    from godwit.lane.lane import LaneFlow
    from godwit.lane.messages import StateInstruction
    from godwit.lane.wire import Blob
    from godwit.state.records import StateId

__all__ = ["OneProcess", "Took", "lane_operator", "run_stages"]


def lane_operator(
    operator: KeyedOperator,
    index: int = 0,
    level: int = 1,
    feeds: tuple[tuple[int, UpstreamInput], ...] = (),
) -> LaneOperator:
    """Make an operator, whose output goes to no sink, what a lane wants it to be."""
    return LaneOperator(
        index=index,
        level=level,
        operator=operator,
        feeds=feeds,
        outputs=(),
        state=EntryLayout(name=operator.name, schema=operator.schema),
        waiting=WaitingLayout(operator=operator.name, schema=operator.waiting),
    )


@dataclass(slots=True)
class Took:
    """CPU milliseconds of an epoch, by who spent them."""

    plan: float = 0.0
    source: float = 0.0
    lanes: float = 0.0
    commit: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


def run_stages(
    flow: LaneFlow,
    instruction: EpochInstruction,
    rows: Mapping[int, Sequence[pa.RecordBatch]],
    took: Took | None = None,
) -> list[LaneReport]:
    """Run one epoch's stages.

    Parameters
    ----------
    flow, instruction
        The flow and the epoch.
    rows
        Index of an operator that sources feed → its rows, a batch per source partition.
    took
        Filled in, if given.
    """
    took = Took() if took is None else took
    cpu = time.process_time()
    boxes: list[list[bytes]] = [[] for _ in instruction.places]
    told = shipments(flow, instruction)
    for index, batches in rows.items():
        for partition, batch in enumerate(batches):
            for lane, payload in ship(told[index], batch, (0, partition, 0)):
                boxes[lane].append(payload)
    took.source += (time.process_time() - cpu) * 1e3
    cpu = time.process_time()
    reports: list[LaneReport] = []

    def reporting(lane: Generator[Blob, None, LaneReport]) -> Iterator[Blob]:
        report = yield from lane
        reports.append(pickle.loads(report.dumps()))

    for level in range(1, flow.levels + 1):
        next_boxes: list[list[bytes]] = [[] for _ in instruction.places]
        for place, box in enumerate(boxes):
            due, later = due_at(level, box)
            next_boxes[place].extend(later)
            for lane, payload in reporting(run_lane(flow, instruction, level, place, due)):
                next_boxes[lane].append(payload)
        boxes = next_boxes
    assert not any(boxes)
    took.lanes += (time.process_time() - cpu) * 1e3
    for report in reports:
        for phase, spent in report.took_ms.items():
            took.phases[phase] = took.phases.get(phase, 0.0) + spent
    return reports


class OneProcess:
    """Runs a flow's epochs, with key groups dealt out evenly and no migrations.

    Parameters
    ----------
    flow
        What lanes do.
    root
        Directory for the checkpoint and the local stores.
    executors
        Name → number of lanes.
    """

    def __init__(
        self,
        flow: LaneFlow,
        root: Path,
        executors: Mapping[str, int],
        *,
        snapshot_budget_bytes: int = 64 * 2**20,
    ) -> None:
        self.flow, self.root = flow, root
        self._budget = snapshot_budget_bytes
        self._executors = {
            name: Executor(name=name, location=None, lanes=lanes)
            for name, lanes in executors.items()
        }
        self.assignment = even_assignment(
            flow.num_key_groups, list(executors), list(executors.values())
        )
        self.suspended: frozenset[int] = frozenset()
        self.consume: frozenset[int] = frozenset()
        self.load: frozenset[int] = frozenset()
        self.snapshots: tuple[int, ...] | None = None
        self.copies = Copies()
        self.log = CommitLog.create_or_open(
            CheckpointStorage.open(str(root / "checkpoint")),
            FlowIdentity(name="flow", num_key_groups=flow.num_key_groups),
            "run",
        )

    def instruction(self) -> EpochInstruction:
        """What the lanes are told in the next epoch."""
        plan = EpochPlan(
            assignment=self.assignment,
            suspended=self.suspended,
            load=self.load,
            consume=self.consume,
        )
        places = places_of({"component": plan}, self._executors)
        settled = [g for g in range(self.flow.num_key_groups) if g not in self.suspended]
        return EpochInstruction(
            epoch=self.log.latest_epoch + 1,
            flow=self.log.flow,
            run_id="abcdef012345-0123456789ab",
            places=places,
            operators=tuple(
                operator_instruction(
                    operator=member.operator.name,
                    plan=plan,
                    places=places,
                    chains=self.log.chains,
                    states=[
                        self._state_instruction(state, settled) for state in member.operator.states
                    ],
                    always_load=False,
                )
                for member in self.flow.operators
            ),
            storage=self.log.storage,
            local_dir=str(self.root / "local"),
            inline_bytes=32 * 1024,
            compression=None,
        )

    def _state_instruction(self, state: StateId, settled: Sequence[int]) -> StateInstruction:
        held = np.stack(
            [
                self.copies.held(name, state, self.assignment.num_key_groups)
                for name in self.assignment.executors
            ]
        )
        return state_instruction(
            state=state,
            recorded_as=state,
            chains=self.log.chains,
            floor=held[self.assignment.executor_of, np.arange(self.flow.num_key_groups)],
            wanted=~mask_of(self.suspended, self.flow.num_key_groups),
            to_snapshot=self.snapshots
            if self.snapshots is not None
            else choose_snapshots(self.log.chains, state, settled, budget_bytes=self._budget),
        )

    def epoch(
        self, rows: Mapping[int, Sequence[pa.RecordBatch]], took: Took | None = None
    ) -> tuple[CommitRecord, list[LaneReport]]:
        """Run an epoch and commit it."""
        took = Took() if took is None else took
        cpu = time.process_time()
        instruction = pickle.loads(pickle.dumps(self.instruction()))
        took.plan += (time.process_time() - cpu) * 1e3
        reports = run_stages(self.flow, instruction, rows, took)
        cpu = time.process_time()
        record = self.commit(instruction.epoch, reports)
        took.commit += (time.process_time() - cpu) * 1e3
        return record, reports

    def commit(self, epoch: int, reports: Sequence[LaneReport]) -> CommitRecord:
        """Commit what lanes reported."""
        for report in reports:
            if report.error is not None:
                raise report.error
        consumed: dict[str, list[int]] = {}
        for report in reports:
            for done in report.operators:
                if done.consumed:
                    consumed.setdefault(done.operator, []).extend(done.consumed)
                for state, versions in done.versions.items():
                    self.copies.saw(report.executor, state, versions)
        return self.log.commit(
            CommitRecord(
                epoch=epoch,
                run_id="run",
                segments=tuple(s for r in reports for s in r.segments),
                snapshots=tuple(s for r in reports for s in r.snapshots),
                outputs=tuple(o for r in reports for o in r.outputs),
                consumed=consumed,
            )
        )

    def held(self, operator: int = 0) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Key → state of an operator as the checkpoint alone gives it."""
        member = self.flow.operators[operator]
        (state,) = member.operator.states
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        cache = BatchCache(self.log.storage)
        for key_group in range(self.flow.num_key_groups):
            rows = read_chain(
                self.log.storage,
                self.log.chains.chain(state, key_group),
                member.state,
                cache=cache,
            )
            keys = zip(*(column.to_pylist() for column in rows.keys.columns), strict=True)
            values = zip(*(column.to_pylist() for column in rows.values.columns), strict=True)
            found.update(zip(keys, values, strict=True))
        return found

    def waiting(self, operator: int = 0) -> list[int]:
        """Key groups of an operator whose rows wait."""
        return self.log.chains.waiting_key_groups(self.flow.operators[operator].operator.name)

    def vanish(self, executor: str) -> None:
        """Remove what an executor holds, without telling the driver."""
        for path in (self.root / "local").rglob(executor):
            shutil.rmtree(path)

    def lose(self, executor: str) -> None:
        """Forget what the driver knows of an executor's copies."""
        self.copies.lost(executor)

    def rename(self, **names: str) -> None:
        """Put executors under new names: they start with nothing."""
        self.assignment = replace(
            self.assignment,
            executors=tuple(names.get(name, name) for name in self.assignment.executors),
        )
        for old, new in names.items():
            self._executors[new] = replace(self._executors.pop(old), name=new)

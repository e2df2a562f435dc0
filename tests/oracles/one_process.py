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

from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import BatchCache, EntryLayout, WaitingLayout, read_chain
from godwit.checkpoint.records import CommitRecord, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cluster.local.stages import run_lanes, ship_rows
from godwit.engine.cluster import Executor
from godwit.engine.event_time import EventTimes, Times
from godwit.engine.instructions import (
    operator_instruction,
    places_of,
    state_instruction,
)
from godwit.engine.lane.lane_flow import LaneOperator
from godwit.engine.lane.messages import EpochInstruction, LaneReport
from godwit.engine.lane.source_side import LaneInput
from godwit.migration import ComponentView, Copies
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import key_group_mask
from godwit.operators.windows.event_time import NO_TIME, EpochTime
from godwit.plan.staging import StagedSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from godwit.checkpoint.records import StateId
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import StateInstruction
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import UpstreamInput

__all__ = ["OneProcess", "Took", "lane_operator", "run_stages"]


def lane_operator(
    operator: KeyedOperator,
    index: int = 0,
    feeds: tuple[tuple[int, UpstreamInput], ...] = (),
    *,
    outputs: Sequence[str] = (),
    left_out: str = "",
) -> LaneOperator:
    """Make an operator what a lane wants it to be; `outputs` are names of sinks."""
    return LaneOperator(
        index=index,
        operator=operator,
        feeds=feeds,
        outputs=tuple(_staged(name) for name in outputs),
        left_out=_staged(left_out) if left_out else None,
        states={
            state.state: EntryLayout(name=str(state), schema=operator.schema_of(state.state))
            for state in operator.states
        },
        waiting=WaitingLayout(operator=operator.name, schema=operator.waiting_schema),
    )


def _staged(name: str) -> StagedSink:
    return StagedSink(name=name, maps=(), keys=(), check=None, rejects=None, writer=None)


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
    rows: Mapping[int, Sequence[pa.RecordBatch]] | Mapping[LaneInput, Sequence[pa.RecordBatch]],
    took: Took | None = None,
) -> list[LaneReport]:
    """Run one epoch's stages; `rows` may be of operators that have one input, by their index."""
    took = Took() if took is None else took
    cpu = time.process_time()
    inputs = {
        at if isinstance(at, LaneInput) else _only_input(flow, at): batches
        for at, batches in rows.items()
    }
    boxes = ship_rows(flow, instruction, inputs)
    took.source += (time.process_time() - cpu) * 1e3
    cpu = time.process_time()
    reports = run_lanes(flow, instruction, boxes)
    took.lanes += (time.process_time() - cpu) * 1e3
    for report in reports:
        for phase, spent in report.took_ms.items():
            took.phases[phase] = took.phases.get(phase, 0.0) + spent
    return reports


def _only_input(flow: LaneFlow, index: int) -> LaneInput:
    operator = flow.operators[index].operator
    timed = operator.over_event_time or operator.has_timers
    return LaneInput(index=index, time="ts" if timed else None)


def _levels_of(flow: LaneFlow) -> list[int]:
    levels = [1] * len(flow.operators)
    for member in flow.operators:
        for index, _ in member.feeds:
            levels[index] = max(levels[index], levels[member.index] + 1)
    return levels


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
    levels
        Level of each operator in the flow's order; by default one more than what feeds it.
    log
        The checkpoint in that directory, where it is open already.
    hot_keys
        As of `godwit.engine.settings.Lanes`.
    """

    def __init__(
        self,
        flow: LaneFlow,
        root: Path,
        executors: Mapping[str, int],
        *,
        levels: Sequence[int] | None = None,
        snapshot_budget_bytes: int = 64 * 2**20,
        log: CommitLog | None = None,
        hot_keys: float = 0.1,
    ) -> None:
        self.flow, self.root, self._hot_keys = flow, root, hot_keys
        self.levels = _levels_of(flow) if levels is None else list(levels)
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
        self.event_times: EventTimes | None = None
        self.clock_us = 0
        self._told: dict[str, EpochTime] = {}
        self.log = log or CommitLog.create_or_open(
            CheckpointStorage.open(str(root / "checkpoint")),
            FlowIdentity(name="flow", num_key_groups=flow.num_key_groups),
            "run",
        )

    def instruction(self) -> EpochInstruction:
        """Instruction of the lanes for the next epoch."""
        plan = ComponentView(
            assignment=self.assignment,
            suspended=self.suspended,
            load=self.load,
            waiting=frozenset(self.consume),
        )
        places = places_of({"component": plan}, self._executors)
        if self.event_times is not None:
            self._told = self.event_times.epoch_times(
                clock_us=self.clock_us,
                silence_us=self.clock_us,
                components=dict.fromkeys(self.event_times.components, plan),
            )
        settled = [g for g in range(self.flow.num_key_groups) if g not in self.suspended]
        return EpochInstruction(
            epoch=self.log.latest_epoch + 1,
            flow=self.log.flow,
            run_id="abcdef012345-0123456789ab",
            places=places,
            operators=tuple(
                operator_instruction(
                    operator=member.operator.name,
                    level=self.levels[member.index],
                    plan=plan,
                    places=places,
                    chains=self.log.chains,
                    states=[
                        self._state_instruction(state, settled) for state in member.operator.states
                    ],
                    always_load=bool(member.feeds)
                    or member.operator.needs_state(self._told.get(member.operator.name, NO_TIME)),
                    time=self._told.get(member.operator.name, NO_TIME),
                )
                for member in self.flow.operators
            ),
            storage=self.log.storage,
            local_dir=str(self.root / "local"),
            inline_bytes=32 * 1024,
            compression=None,
            hot_keys=self._hot_keys,
        )

    def _state_instruction(self, state: StateId, settled: Sequence[int]) -> StateInstruction:
        held = np.stack(
            [
                self.copies.versions(name, state, self.assignment.num_key_groups)
                for name in self.assignment.executors
            ]
        )
        return state_instruction(
            state=state,
            recorded_as=state,
            chains=self.log.chains,
            floor=held[self.assignment.executor_of, np.arange(self.flow.num_key_groups)],
            needed=~key_group_mask(self.suspended, self.flow.num_key_groups),
            to_snapshot=self.snapshots
            if self.snapshots is not None
            else choose_snapshots(self.log.chains, state, settled, budget_bytes=self._budget),
        )

    def epoch(
        self,
        rows: Mapping[int, Sequence[pa.RecordBatch]] | Mapping[LaneInput, Sequence[pa.RecordBatch]],
        took: Took | None = None,
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
                    self.copies.record_versions(report.executor, state, versions)
        times = Times()
        if self.event_times is not None:
            times = self.event_times.after(self._told, reports)
            self.event_times.after_commit(times, self._told, reports, self.clock_us)
        return self.log.commit(
            CommitRecord(
                epoch=epoch,
                watermarks=dict(times.watermarks),
                newest=dict(times.newest),
                expired=dict(times.closed),
                reached=dict(times.reached),
                kept=dict(times.kept),
                spreads={name: of.recorded() for name, of in times.spreads.items()},
                run_id="run",
                segments=tuple(s for r in reports for s in r.segments),
                snapshots=tuple(s for r in reports for s in r.snapshots),
                outputs=tuple(o for r in reports for o in r.outputs),
                consumed=consumed,
            )
        )

    def held(
        self, operator: int = 0, state: str = "state"
    ) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Entries of an operator's state, as the checkpoint alone has them: identity → entry."""
        member = self.flow.operators[operator]
        (which,) = (s for s in member.operator.states if s.state == state)
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        cache = BatchCache(self.log.storage)
        for key_group in range(self.flow.num_key_groups):
            rows = read_chain(
                self.log.storage,
                self.log.chains.chain(which, key_group),
                member.states[state],
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
        self.copies.forget_executor(executor)

    def rename(self, **names: str) -> None:
        """Put executors under new names: they start with nothing."""
        self.assignment = replace(
            self.assignment,
            executors=tuple(names.get(name, name) for name in self.assignment.executors),
        )
        for old, new in names.items():
            self._executors[new] = replace(self._executors.pop(old), name=new)

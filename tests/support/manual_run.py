"""A run of the shipped engine in this process, whose key groups tests place and suspend themselves.

Recovery, instructions, lanes, stores and commit records are those of `godwit.cluster.local`; only
the conductor is not asked.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, read_block
from godwit.checkpoint.entries import BatchCache, read_chain
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cluster.local.run import LocalRun
from godwit.cluster.local.stages import run_lanes, ship_rows
from godwit.engine.lane.source_side import LaneInput
from godwit.engine.loop import EpochLoop
from godwit.engine.settings import Lanes
from godwit.engine.shared_conductor import SharedConductor
from godwit.migration import ComponentView, Copies
from godwit.model.assignment import even_assignment
from godwit.plan.staging import StagedSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.records import CommitRecord, PhysicalPlan
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.event_time import EventTimes
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.migration import Conductor, EpochOutcome
    from godwit.plan.compiled import CompiledFlow

    Rows = Mapping[int, Sequence[pa.RecordBatch]] | Mapping[LaneInput, Sequence[pa.RecordBatch]]
    """Rows by input, or by index of an operator that has one input."""

__all__ = ["ManualRun"]


class ManualRun(LocalRun):
    """A run whose components all have one assignment, which stays as the test sets it.

    Parameters
    ----------
    flow
        The flow.
    root
        Directory for the local stores, and for the checkpoint unless `storage` is given.
    executors
        Name → number of lanes.
    storage, settings, retain_epochs
        As of `LocalRun`.

    Attributes
    ----------
    assignment, suspended, consume, load
        Place of key groups, and which of them wait, process their waiting rows, and are loaded in
        the next epoch.
    snapshots
        Key groups of which every state gets a snapshot; ``None``: those that are due.
    physical_plan
        Plan of the next epoch, if it differs from the last one's.
    """

    reports: list[LaneReport]

    def __init__(
        self,
        flow: CompiledFlow,
        root: Path,
        executors: Mapping[str, int],
        *,
        storage: CheckpointStorage | None = None,
        settings: Lanes | None = None,
        retain_epochs: int = 10,
    ) -> None:
        settings = settings or Lanes(inline_bytes=32 * 1024, snapshot_growth=1.0)
        super().__init__(
            flow,
            storage or CheckpointStorage.open(str(root / "checkpoint")),
            executors=executors,
            settings=replace(settings, local_dir=str(root / "local")),
            retain_epochs=retain_epochs,
        )
        self.assignment = even_assignment(
            flow.num_key_groups, list(executors), list(executors.values())
        )
        self.suspended: frozenset[int] = frozenset()
        self.consume: frozenset[int] = frozenset()
        self.load: frozenset[int] = frozenset()
        self.snapshots: tuple[int, ...] | None = None
        self.physical_plan: PhysicalPlan = self.flow.physical_plan
        self.copies = Copies()
        self.copies_held = True  # the conductor's orders, which a test has not given
        self._by_hand = cast("Conductor", _ByHand(self))
        self.loop = EpochLoop(self.epochs, SharedConductor(self._by_hand), self)

    @property
    def times(self) -> EventTimes:
        """Event time of the run."""
        return self.epochs.times

    @property
    def lane_flow(self) -> LaneFlow:
        """The part of the flow that executors get."""
        return self._lanes

    def stage_left_out(self, sink: str) -> None:
        """Stage the rows that operators over event time leave out, for a sink that no flow has."""
        staged = StagedSink(name=sink, maps=(), keys=(), check=None, rejects=None, writer=None)
        self._lanes = replace(
            self._lanes,
            operators=tuple(
                replace(o, left_out=staged) if o.operator.over_event_time else o
                for o in self._lanes.operators
            ),
        )

    # -- epochs -----------------------------------------------------------------------------------

    def play(self, rows: Rows) -> tuple[CommitRecord, list[LaneReport]]:
        """Run an epoch on rows; return its record, and what lanes reported."""
        self.epoch({self._input(at): list(batches) for at, batches in rows.items()})
        assert self.log.latest is not None
        return self.log.latest, self.reports

    def _input(self, at: int | LaneInput) -> LaneInput:
        """Return the input of an operator, from its index if it has one alone."""
        if isinstance(at, LaneInput):
            return at
        operator = self._lanes.operators[at].operator
        timed = operator.over_event_time or operator.has_timers
        return LaneInput(index=at, time="ts" if timed else None)

    def plans(self) -> dict[str, ComponentView]:
        """Component → how it runs in the next epoch."""
        plan = ComponentView(
            assignment=self.assignment,
            suspended=self.suspended,
            load=self.load,
            waiting=self.consume,
        )
        return dict.fromkeys((c.name for c in self.physical_plan.components), plan)

    def instruction(self) -> EpochInstruction:
        """Return the instruction of the lanes for the next epoch."""
        plans = self.plans()
        return self.epochs.instructor.epoch(
            self.epochs.next_epoch,
            plans,
            view=self._by_hand.view,
            copies=self.copies,
            executors=self.executors,
            times=self.times.epoch_times(
                clock_us=self.clock_us, silence_us=self.clock_us, components=plans
            ),
        )

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[Any] | None
    ) -> list[LaneReport]:
        if self.snapshots is not None:
            operators = (
                replace(o, states=tuple(replace(s, to_snapshot=self.snapshots) for s in o.states))
                for o in instruction.operators
            )
            instruction = replace(instruction, operators=tuple(operators))
        boxes = ship_rows(self._lanes, instruction, batch.rows or {} if batch else {})
        self.loop.at_step("shipped", instruction.epoch)
        self.reports = run_lanes(self._lanes, instruction, boxes)
        return self.reports

    # -- state ------------------------------------------------------------------------------------

    def held(
        self, operator: int = 0, state: str = "state"
    ) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Entries of an operator's state, as the checkpoint alone has them: identity → entry."""
        member = self._lanes.operators[operator]
        (which,) = (s for s in member.operator.states if s.state == state)
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        cache = BatchCache(self.log.storage)
        for key_group in range(self.flow.num_key_groups):
            chain = self.log.chains.chain(which, key_group)
            rows = read_chain(self.log.storage, chain, member.states[state], cache=cache)
            keys = zip(*(column.to_pylist() for column in rows.keys.columns), strict=True)
            values = zip(*(column.to_pylist() for column in rows.values.columns), strict=True)
            found.update(zip(keys, values, strict=True))
        return found

    def output(self, sink: str = "out") -> list[tuple[Any, ...]]:
        """Rows of the last epoch for a sink, as they came; times as microseconds."""
        assert self.log.latest is not None
        found: list[tuple[Any, ...]] = []
        for ref in self.log.latest.outputs:
            if ref.sink == sink:
                batch = decode_batch(read_block(self.log.storage, ref.block))
                columns = [
                    (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                    for c in batch.columns
                ]
                found += zip(*columns, strict=True)
        return found

    def waiting(self, operator: int = 0) -> list[int]:
        """Key groups of an operator whose rows wait."""
        return self.log.chains.waiting_key_groups(self.flow.operators[operator].name)

    def lose(self, executor: str) -> None:
        """Delete what an executor holds, and forget that it did."""
        self.forget_store(executor)
        self.copies.forget_executor(executor)


class _ByHand:
    """Stands for the conductor of a `ManualRun`."""

    def __init__(self, run: ManualRun) -> None:
        self._run = run

    @property
    def copies(self) -> Copies:
        return self._run.copies

    @property
    def plan(self) -> PhysicalPlan:
        return self._run.physical_plan

    @property
    def view(self) -> Any:
        """As much of a `ProtocolView` as an epoch looks at."""
        return SimpleNamespace(components=self._run.plans())

    def begin(self, _epoch: int) -> Mapping[str, ComponentView]:
        return self._run.plans()

    def commit(self, outcome: EpochOutcome) -> None:
        for executor, states in outcome.tables.items():
            for state, versions in states.items():
                self.copies.record_versions(executor, state, versions)

    def abort(self, epoch: int, reason: str) -> None: ...

    def announce(self, kind: object, **values: object) -> None: ...

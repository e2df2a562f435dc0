"""A run of the shipped engine in this process, whose key groups tests place and suspend themselves.

Recovery, instructions, lanes, stores and commit records are those of `godwit.local`; only
the coordinator is not asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from godwit.checkpoint.entries import BatchCache, read_chain
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.loop import EpochLoop
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, staged_rows
from godwit.migration.coordinator import Coordinator
from godwit.migration.copies import Copies
from godwit.migration.state import ComponentView
from godwit.model.assignment import even_assignment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.records import CommitRecord, PhysicalPlan
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.outcome import EpochOutcome
    from godwit.plan.compiled import CompiledFlow

    Rows = Mapping[int, Sequence[pa.RecordBatch]] | Mapping[LaneInput, Sequence[pa.RecordBatch]]
    """Rows by input, or by index of an operator that has one input."""

__all__ = ["ManualRun"]


class ManualRun(LocalRun):
    """A run whose components all have one assignment, which stays as the test sets it.

    Local stores are under `root`, and so is the checkpoint unless `storage` is given; `options` are
    those of `LocalRun`.
    """

    reports: list[LaneReport]  # of the last epoch

    def __init__(
        self,
        flow: CompiledFlow,
        root: Path,
        executors: Mapping[str, int],
        *,
        storage: CheckpointStorage | None = None,
        settings: Lanes | None = None,
        **options: Any,
    ) -> None:
        settings = settings or Lanes(inline_bytes=32 * 1024, snapshot_growth=1.0)
        super().__init__(
            flow,
            storage or CheckpointStorage.open(str(root / "checkpoint")),
            executors=executors,
            settings=replace(settings, local_dir=str(root / "local")),
            **options,
        )
        self.assignment = even_assignment(
            flow.num_key_groups, list(executors), list(executors.values())
        )
        self.suspended = frozenset[int]()  # key groups whose rows wait in the next epoch
        # key groups of which every state gets a snapshot; ``None``: those that are due
        self.snapshots: tuple[int, ...] | None = None
        self.physical_plan: PhysicalPlan = self.flow.physical_plan  # of the next epoch
        self.copies, self.copies_held = Copies(), True
        self._manual = cast("Coordinator", _ManualCoordinator(self))
        self.loop = EpochLoop(self.epochs, self._manual, self)

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
        operator = self.lane_flow.operators[at].operator
        timed = operator.over_event_time or operator.has_timers
        return LaneInput(index=at, time="ts" if timed else None)

    def component_views(self) -> dict[str, ComponentView]:
        """Component → how it runs in the next epoch."""
        waiting = self.log.chains.waiting_key_groups
        return {
            component.name: ComponentView(
                assignment=self.assignment,
                suspended=self.suspended,
                waiting=frozenset(g for name in component.operators for g in waiting(name)),
            )
            for component in self.physical_plan.components
        }

    def instruction(self) -> EpochInstruction:
        """Return the instruction of the lanes for the next epoch."""
        self.epochs.plan(self.epochs.next_epoch, None, self.component_views(), self._manual)
        return self.epochs._instruction

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[Any] | None
    ) -> list[LaneReport]:
        if self.snapshots is not None:
            operators = (
                replace(o, states=tuple(replace(s, to_snapshot=self.snapshots) for s in o.states))
                for o in instruction.operators
            )
            instruction = replace(instruction, operators=tuple(operators))
        self.reports = super().run_stages(instruction, batch)
        return self.reports

    # -- state ------------------------------------------------------------------------------------

    def held(
        self, operator: int = 0, state: str = "state"
    ) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Entries of an operator's state, as the checkpoint alone has them: identity → entry."""
        member = self.lane_flow.operators[operator]
        (which,) = (s for s in member.operator.states if s.state == state)
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        cache = BatchCache(self.log.storage)
        for key_group in range(self.flow.num_key_groups):
            chain = self.log.chains.chain(which, key_group)
            rows = read_chain(self.log.storage, chain, member.states[state], cache=cache)
            found.update(zip(_tuples(rows.keys), _tuples(rows.values), strict=True))
        return found

    def output(self, sink: str = "out") -> list[tuple[Any, ...]]:
        """Rows of the last epoch for a sink, as they came; times as microseconds."""
        assert self.log.latest is not None
        batches = staged_rows(self.log.latest, self.log.storage).get(sink, ())
        return [row for batch in batches for row in _tuples(batch, times_us=True)]

    def waiting(self, operator: int = 0) -> list[int]:
        """Key groups of an operator whose rows wait."""
        return self.log.chains.waiting_key_groups(self.flow.operators[operator].name)

    def lose(self, executor: str) -> None:
        """Delete what an executor holds, and forget that it did."""
        self.forget_store(executor)
        self.copies.forget_executor(executor)


def _tuples(batch: pa.RecordBatch, *, times_us: bool = False) -> list[tuple[Any, ...]]:
    """Rows of a batch; its times as microseconds if asked for."""
    columns = [
        c.cast(pa.int64()) if times_us and pa.types.is_timestamp(c.type) else c
        for c in batch.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class _ManualCoordinator:
    """Stands for the coordinator of a `ManualRun`."""

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
        return SimpleNamespace(components=self._run.component_views())

    @contextmanager
    def locked(self) -> Iterator[_ManualCoordinator]:
        yield self

    def begin(self, _epoch: int) -> Mapping[str, ComponentView]:
        return self._run.component_views()

    def commit(self, outcome: EpochOutcome) -> None:
        for executor, states in outcome.tables.items():
            for state, versions in states.items():
                self.copies.record_versions(executor, state, versions)

    def abort(self, epoch: int, reason: str) -> None: ...

    def announce(self, kind: object, **values: object) -> None: ...

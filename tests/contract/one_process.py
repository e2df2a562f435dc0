"""A realization in one process: `godwit.local`, and what may go wrong with it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.contract.flow import NUM_KEY_GROUPS, add_operators

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import BatchRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.cluster import AttemptLostError
from godwit.engine.outcomes import state_bytes
from godwit.engine.regrouping import plan_regrouping
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, lane_inputs, staged_rows
from godwit.migration import Bounds, Strategy
from godwit.migration.messages import LanesRequested, MigrationRequested
from godwit.migration.regrouping import Regrouping
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.contract.scenario import Misfortune, Policy, Warming

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import CommitRecord, PhysicalPlan, StateId
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.event_time import EventTimes
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.local import LocalRows
    from godwit.migration.coordinator import Coordinator, Warmed
    from godwit.migration.messages import EndMigration, PeerCopies, StartWarming
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView, ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event
    from godwit.plan.compiled import CompiledFlow
    from godwit.time.event_time import EpochTime

__all__ = ["DiedError", "Late", "OneProcess"]

_ROWS = pa.schema({"k": pa.int32(), "number": pa.int64()})
_PATIENCE = 3_000


class _Rows:
    """As much of a streaming DataFrame as a flow looks at before it is resolved."""

    isStreaming = True  # noqa: N815 - PySpark's own spelling


class _Sink:
    def open(self, context: object) -> None: ...
    def deliver(self, output: object) -> None: ...


class DiedError(Exception):
    """The driver is dead."""


def compiled(*, deep: bool, again: bool = False) -> CompiledFlow:
    """Compile the flow without Spark."""
    flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
    add_operators(flow, _Rows(), deep=deep, again=again, sink=lambda _: _Sink())
    return flow.compile(lambda *_: _ROWS)


class _Run(LocalRun):
    """A run of a realization, which is told of everything."""

    waits = 0
    seconds = 0.0

    def __init__(self, owner: OneProcess, *given: Any, **settings: Any) -> None:
        self.owner = owner  # a run asks for the time from its beginning on
        super().__init__(*given, **settings)

    def now_s(self) -> float:
        """A second passes whenever the coordinator looks at the clock."""
        self.seconds += 1
        return self.seconds

    def now_us(self) -> int:
        return self.owner.clock_us

    monotonic_us = now_us

    def run_stages(
        self, instruction: EpochInstruction, batch: SourceBatch[LocalRows] | None
    ) -> list[LaneReport]:
        reports = super().run_stages(instruction, batch)
        number = None if batch is None else batch.ref.number
        operators = zip(self.flow.operators, instruction.operators, strict=True)
        self.reported = number, {o.name: told.time for o, told in operators}, reports
        return reports

    def wait_while_held(self) -> bool:
        """Wait on, as time passes: an order whose report is lost is given again."""
        super().wait_while_held()
        self.waits += 1
        assert self.waits < _PATIENCE, f"Epochs are held for ever: {self.view.holds}"
        return True

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        self.owner.deliver(record)

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView], *_: object
    ) -> None:
        self.owner.committed(outcome, component_views)

    def warmed(self, order: StartWarming, warmed: Warmed) -> None:
        if self.owner.copies != "lost":
            super().warmed(order, warmed)

    def fetch(self, order: StartWarming, copies: PeerCopies) -> dict[StateId, dict[int, int]]:
        return self.owner.fetch(order, copies)


class OneProcess:
    """See `tests.contract.realization.Realization`.

    Parameters
    ----------
    directory
        For the checkpoint and the local stores.
    deep, again, policy
        As in the scenario.
    plan
        Physical plan of starts until an epoch is committed; later ones find it in the checkpoint.
    settings
        How lanes write; small snapshots and files by default, so that there are some.
    """

    migrations_by_hand = True  # whether a user asks for the migrations of `migrate`

    columns = _ROWS
    """Of the source."""

    run: _Run
    run_type = _Run

    def __init__(
        self,
        directory: Path,
        *,
        deep: bool,
        policy: Policy,
        again: bool = False,
        plan: PhysicalPlan | None = None,
        settings: Lanes | None = None,
    ) -> None:
        self._deep, self._again, self._policy, self._plan = deep, again, policy, plan
        self._settings = replace(
            settings or Lanes(inline_bytes=512, snapshot_growth=0.01),
            local_dir=str(directory / "local"),
        )
        self.storage = CheckpointStorage.open(str(directory / "checkpoint"))
        self.batches: list[Any] = []  # that came in, committed or not
        self.events: list[Event] = []
        self.copies = "works"  # how background copies go
        self.rows_out: dict[str, dict[int, list[tuple[int, ...]]]] = {
            output.name: {} for output in self.compiled().outputs
        }
        self._migrations = 0
        self._misfortune: tuple[str | None, str | None] = (None, None)
        self._dead = False
        self.clock_us = 0

    def compiled(self) -> CompiledFlow:
        """Compile the flow."""
        return compiled(deep=self._deep, again=self._again)

    # -- a run ------------------------------------------------------------------------------------

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        self._dead = False
        self.run = self.run_type(
            self,
            self.compiled(),
            self.storage,
            executors=executors,
            settings=self._settings,
            policy=self._policy,
            plan=self._plan,
            retain_epochs=4,
            emit=self._emit,
        )
        self.run.loop.at_step = self._at_step
        self.warming_goes(self.copies)

    def _emit(self, event: Event) -> None:
        if not self._dead:
            self.events.append(event)

    def executor(self, name: str) -> str:
        """See `Realization.executor`."""
        return name

    def stop(self) -> None:
        """See `Realization.stop`."""

    @property
    def flow(self) -> CompiledFlow:
        """The flow, under the physical plan of now."""
        return self.run.flow

    @property
    def log(self) -> CommitLog:
        """The checkpoint's log."""
        return self.run.log

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the run."""
        return self.run.coordinator

    @property
    def event_times(self) -> EventTimes:
        """Event time of the run."""
        return self.run.epochs.times

    # -- epochs -----------------------------------------------------------------------------------

    def epoch(
        self,
        rows: Sequence[tuple[Any, ...]],
        misfortune: Misfortune | None = None,
        loses: str | None = None,
    ) -> None:
        """See `Realization.epoch`."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.columns, strict=True)]
        self.offer(pa.Table.from_arrays(arrays, schema=self.columns), misfortune, loses)

    def offer(self, batch: Any, misfortune: str | None = None, loses: str | None = None) -> None:
        """Take a batch in, and carry out its epoch."""
        self._catch_up()
        self.batches.append(batch)
        self._misfortune = misfortune, loses
        with suppress(DiedError):
            self.run_epoch(len(self.batches) - 1)
        self._misfortune = None, None

    def _catch_up(self) -> None:
        """Carry out what was taken in and not committed."""
        last = self.run.epochs.last_batch
        for number in range(0 if last is None else last.number + 1, len(self.batches)):
            self.run_epoch(number)

    def quiet(self) -> None:
        """See `Realization.quiet`."""
        self._catch_up()
        self.run.run_background_copies()
        if self.view.due:
            self.run_epoch(None)
        elif self.view.awaits:
            self.coordinator.advance_clock()

    def settle(self) -> None:
        """See `Realization.settle`."""
        for _ in range(_PATIENCE):
            self.quiet()
            going = any(c.migration or c.transfers for c in self.view.components.values())
            if not (self.view.due or self.view.awaits or self.view.waiting or going):
                self.run.loop.finish_delivery()
                return
        raise AssertionError(f"It does not settle: {self.view}")

    def run_epoch(self, number: int | None) -> None:
        """Run the epoch of a batch, or one without input."""
        if number is None:
            self.run.epoch(None)
            return
        self.run.epoch(
            self.rows_of_batch(number), batch=BatchRef(number=number, digest=str(number))
        )

    def rows_of_batch(self, number: int) -> Mapping[Any, list[pa.RecordBatch]]:
        """Rows of a batch, as operators read them."""
        tables = dict.fromkeys(self.flow.sources, self.batches[number])
        return lane_inputs(self.flow, tables, partitions=2)

    def _at_step(self, step: str, _epoch: int) -> None:
        """Let something go wrong in an epoch, once."""
        if step == "committed":
            self.noted(*self.run.reported)
        misfortune, loses = self._misfortune
        if step == misfortune:
            self._dead = True
            raise DiedError
        if step == "staged" and (misfortune == "aborted" or loses is not None):
            self._misfortune = None, None
            if loses is not None:
                left = {n: e.lanes for n, e in self.run.executors.items() if n != loses}
                self.see(left)
            reason = "it was to come to nothing"
            raise AttemptLostError(reason)

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView]
    ) -> None:
        """Do what is to be done after an epoch; nothing here."""

    def noted(
        self, number: int | None, times: Mapping[str, EpochTime], reports: Sequence[LaneReport]
    ) -> None:
        """Take note of what operators were told, and said, in an epoch; nothing here."""

    def row_of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row that is given out, of its values by column."""
        return tuple(values.values())

    def deliver(self, record: CommitRecord) -> None:
        """Give out what the record names; again, it must be the same."""
        batches = staged_rows(record, self.storage)
        for name, epochs in self.rows_out.items():
            found = [row for batch in batches.get(name, ()) for row in batch.to_pylist()]
            rows = [self.row_of(row) for row in found]
            assert repr(epochs.setdefault(record.epoch, rows)) == repr(rows)  # NaN is NaN

    # -- what happens -----------------------------------------------------------------------------

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`."""
        self.run.set_executors(executors)

    def forget_store(self, executor: str) -> None:
        """See `Realization.forget_store`."""
        self.run.forget_store(executor)

    def fetch(self, order: StartWarming, copies: PeerCopies) -> dict[StateId, dict[int, int]]:
        """Carry copies from one executor to another."""
        return LocalRun.fetch(self.run, order, copies)

    def warming(self, goes: Warming) -> None:
        """See `Realization.warming`."""
        self.warming_goes(goes.goes)

    def warming_goes(self, goes: str) -> None:
        """Let background copies go so from now on, in later runs too."""
        self.copies = goes
        self.run.copies_held = goes == "held"
        self.run.copies_fail = "no room" if goes == "fails" else None

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """See `Realization.migrate`."""
        self._migrations += 1
        name = f"m{self._migrations}"
        self.coordinator.migrate(
            MigrationRequested(
                id=name,
                component=component,
                target=target,
                strategy=strategy,
                bounds=bounds,
                by_hand=self.migrations_by_hand,
            )
        )
        return name

    def change_lanes(
        self, component: str, lanes: Mapping[str, int], lane_of: Mapping[int, int]
    ) -> None:
        """See `Realization.change_lanes`."""
        request = LanesRequested(component=component, lanes=lanes, lane_of=lane_of)
        self.coordinator.change_lanes(request)

    def component_of(self, operator: str) -> str:
        """See `Realization.component_of`."""
        plan: PhysicalPlan = self.coordinator.plan
        return next(c.name for c in plan.components if operator in c.operators)

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """See `Realization.regroup`."""
        plan = plan_regrouping(
            self.flow.with_plan(self.coordinator.plan),
            components,
            components=self.view.components,
            state_bytes=lambda states: dict(
                enumerate(state_bytes(states, self.log.chains).tolist())
            ),
        )
        self._migrations += 1
        asked = Regrouping(
            id=f"r{self._migrations}",
            stages=plan.stages,
            components=plan.components,
            bounds=Bounds(max_moves=3),
        )
        with suppress(MigrationError):  # one is under way
            self.coordinator.regroup(asked)

    def drain(self, executor: str) -> None:
        """See `Realization.drain`."""
        self.coordinator.drain(executor)

    def cancel(self, migration: str) -> None:
        """See `Realization.cancel`."""
        with suppress(MigrationError):  # it is not under way
            self.coordinator.cancel(migration, "second thoughts")

    def ended(self, migration: str) -> EndMigration | None:
        """See `Realization.ended`."""
        return self.coordinator.ended(migration)

    @property
    def view(self) -> ProtocolView:
        """See `Realization.view`."""
        return self.coordinator.view


class Late(OneProcess):
    """Delivers every epoch as late as its loop allows: just before the next one is committed."""

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        super().start(executors)
        self.run.loop._beside = lambda deliver: deliver

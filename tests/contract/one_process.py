"""A realization in one process: the real conductor, instructor, lanes, stores and checkpoint.

What is fake are the ports (orders wait in a list until somebody looks), the shuffle (a list), and
the executors (a directory each).
"""

from __future__ import annotations

import pickle
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from tests.contract.flow import NUM_KEY_GROUPS, build
from tests.oracles.one_process import Fed, run_stages

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.blocks import read_batch
from godwit.checkpoint.records import BatchRef
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.cluster import Executor
from godwit.engine.event_time import EventTimes
from godwit.engine.instructions import Instructor
from godwit.engine.lane.copies import drop_copies, receive_copies, send_copies, warm_copies
from godwit.engine.lane.executor import local_store_root
from godwit.engine.lane.lane import lane_flow, local_store
from godwit.engine.outcomes import outcome_of, record_of, state_bytes
from godwit.engine.recovery import recover_flow, run_started
from godwit.engine.regrouping import plan_regrouping
from godwit.engine.settings import Lanes
from godwit.engine.warming import warm_states
from godwit.migration import (
    Bounds,
    Conductor,
    DropCopies,
    LanesRequested,
    MigrationRequested,
    Regrouping,
    StartWarming,
    Strategy,
)
from godwit.model import events
from godwit.model.errors import MigrationError
from godwit.plan.compiled import SourceInput
from godwit.plan.staging import StagedSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.contract.scenario import Misfortune, Policy, Warming

    from godwit.checkpoint.records import CommitRecord, PhysicalPlan, StateId
    from godwit.engine.lane.messages import LaneReport, StateInstruction
    from godwit.migration import (
        EndMigration,
        EpochOutcome,
        EpochPlan,
        PeerCopies,
        ProtocolView,
    )
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event
    from godwit.operators.windows.event_time import EpochTime
    from godwit.plan.compiled import CompiledFlow

__all__ = ["OneProcess"]

_ROWS = pa.schema({"k": pa.int32(), "number": pa.int64()})
_PATIENCE = 3_000


class _Rows:
    """As much of a streaming DataFrame as a flow looks at before it is resolved."""

    isStreaming = True  # noqa: N815 - PySpark's own spelling


class _Sink:
    def open(self, context: object) -> None: ...
    def deliver(self, output: object) -> None: ...


class _DiedError(Exception):
    """The driver is dead."""


def compiled(*, deep: bool, again: bool = False) -> CompiledFlow:
    """Compile the flow without Spark."""
    flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
    build(flow, _Rows(), deep=deep, again=again, sink=lambda _: _Sink())
    return flow.compile(lambda *_: _ROWS)


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

    columns = _ROWS
    """Of the source."""

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
        self._source: list[Any] = []
        self._orders: list[StartWarming | DropCopies] = []
        self._told: list[Event] = []
        self._goes = "works"
        self._rows: dict[str, dict[int, list[tuple[int, ...]]]] = {
            output.name: {} for output in self.compiled().outputs
        }
        self._migrations = 0
        self.clock_us = 0

    def compiled(self) -> CompiledFlow:
        """Compile the flow."""
        return compiled(deep=self._deep, again=self._again)

    # -- a run ------------------------------------------------------------------------------------

    def start(self, executors: Mapping[str, int]) -> None:
        """See `Realization.start`."""
        run = uuid4().hex[:12]
        flow = self.compiled()
        if self._plan is not None:
            flow = flow.under(self._plan)
        self.log, recovery = recover_flow(flow, self.storage, run, retain_epochs=4)
        self.flow = recovery.flow
        self.run_id = f"{self.log.identity.query_id[:12]}-{run}"
        self._there = _executors(executors)
        self._orders.clear()
        self._seconds = 0.0
        self.conductor = Conductor(
            run_started(
                self.flow, self.log, recovery, {}, [*self._there.values()], run_id=self.run_id
            ),
            states={c.name: c.states for c in self.flow.components},
            policy=self._policy,
            ports=self,
            plan=self.flow.physical_plan,
        )
        self._instructor = Instructor(
            self.flow,
            self.log,
            recovery.layouts,
            self._settings,
            on_loss=self._policy.on_loss,
            run_id=self.run_id,
        )
        self._lanes = lane_flow(self.flow, recovery.layouts, self._staged_sinks())
        self._times = EventTimes(self.flow, recovery.times(self.log.latest))
        self._counting = frozenset({(self.flow.operators[0].name, 0)})
        if self.log.latest is not None:
            self._deliver(self.log.latest)

    def executor(self, name: str) -> str:
        """See `Realization.executor`."""
        return name

    def stop(self) -> None:
        """See `Realization.stop`."""

    def _staged_sinks(self) -> list[StagedSink]:
        return [
            StagedSink(
                name=output.name,
                maps=output.maps,
                keys=output.keys,
                check=None,
                rejects=None,
                writer=None,
            )
            for output in self.flow.outputs
        ]

    # -- ports ------------------------------------------------------------------------------------

    def warm(self, order: StartWarming) -> None:
        """See `Ports.warm`."""
        self._orders.append(order)

    def drop(self, order: DropCopies) -> None:
        """See `Ports.drop`."""
        self._orders.append(order)

    def announce(self, event: Event) -> None:
        """See `Ports.announce`."""
        self._told.append(event)

    def now_s(self) -> float:
        """See `Ports.now_s`."""
        self._seconds += 1
        return self._seconds

    def _run_errands(self) -> None:
        if self._goes == "held":
            return
        orders, self._orders = self._orders, []
        for order in orders:
            if order.executor not in self._there:
                continue
            if isinstance(order, DropCopies):
                self._drop(order)
            elif self._goes == "fails":
                self.conductor.warming_failed(order, "no room")
            else:
                try:
                    self._warm(order)
                except MigrationError as error:
                    self.conductor.warming_failed(order, str(error))

    def _warm(self, order: StartWarming) -> None:
        def bring(told: StateInstruction, committed: int) -> dict[int, int]:
            return warm_copies(
                self._store(order.executor),
                order.key_groups,
                pickle.loads(pickle.dumps(told)),
                layout=self._instructor.layout_of(told.state),
                storage=self.storage,
                committed=committed,
                lanes=self._there[order.executor].lanes,
            )

        made = warm_states(
            order,
            self._instructor,
            held_versions=lambda state: self.conductor.copies.held(
                order.executor, state, NUM_KEY_GROUPS
            ),
            transfers=order.peers,
            fetch=lambda asked: self._fetch(order, asked),
            bring=bring,
            now_s=self.now_s,
        )
        if self._goes != "lost":
            self.conductor.warmed(order, made)

    def _fetch(self, order: StartWarming, asked: PeerCopies) -> dict[StateId, dict[int, int]]:
        """Carry copies from one executor's directory to another's."""
        came = {}
        for state in order.states:
            whose: dict[str, Any] = {
                "state": state,
                "schema": self._instructor.layout_of(state).schema,
                "num_key_groups": NUM_KEY_GROUPS,
                "run_id": self.run_id,
            }
            sent = send_copies(self._store(asked.executor), asked.key_groups, **whose)
            came[state] = receive_copies(
                self._store(order.executor), asked.key_groups, sent, lanes=2, **whose
            )
        return came

    def _drop(self, order: DropCopies) -> None:
        for state in order.states:
            drop_copies(
                self._store(order.executor),
                order.key_groups,
                state=state,
                schema=self._instructor.layout_of(state).schema,
                num_key_groups=NUM_KEY_GROUPS,
            )

    def _store(self, executor: str) -> Any:
        return local_store(local_store_root(self._settings.local_path, self.run_id, executor))

    # -- epochs -----------------------------------------------------------------------------------

    def epoch(
        self,
        rows: Sequence[tuple[Any, ...]],
        misfortune: Misfortune | None = None,
        loses: str | None = None,
    ) -> None:
        """See `Realization.epoch`."""
        self._catch_up()
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.columns, strict=True)]
        self._source.append(pa.RecordBatch.from_arrays(arrays, schema=self.columns))
        try:
            self._epoch(len(self._source) - 1, misfortune, loses)
        except _DiedError:
            self._orders.clear()

    def _catch_up(self) -> None:
        """Carry out what was taken in and not committed."""
        for number in range(self._covered(), len(self._source)):
            self._epoch(number)

    def _covered(self) -> int:
        latest = self.log.latest
        last = None if latest is None else latest.last_batch
        return 0 if last is None else last.number + 1

    def quiet(self) -> None:
        """See `Realization.quiet`."""
        self._catch_up()
        self._run_errands()
        if self.view.due:
            self._epoch(None)
        elif self.view.awaits:
            self.conductor.let_time_pass()

    def settle(self) -> None:
        """See `Realization.settle`."""
        for _ in range(_PATIENCE):
            self.quiet()
            going = any(c.migration or c.transfers for c in self.view.components.values())
            if not (self.view.due or self.view.awaits or self.view.waiting or going):
                return
        raise AssertionError(f"It does not settle: {self.view}")

    def _epoch(
        self, number: int | None, misfortune: str | None = None, loses: str | None = None
    ) -> None:
        epoch, batch = self.log.latest_epoch + 1, None
        before = None if self.log.latest is None else self.log.latest.last_batch
        if number is not None:
            batch = BatchRef(number=number, digest=str(number))
        while (done := self._attempt(epoch, batch, before, misfortune, loses)) is None:
            misfortune = loses = None
        record, reports = done
        if misfortune == "committed":
            raise _DiedError
        outcome = outcome_of(
            record,
            reports,
            flow=self.flow,
            chains=self.log.chains,
            copies=self.conductor.copies,
            counting=self._counting,
        )
        self.conductor.commit(outcome)
        self._deliver(record)
        self.conductor.announce(
            events.EpochCommitted,
            epoch=epoch,
            rows_in=outcome.rows_in,
            rows_out=outcome.rows_out,
            duration_ms=0.0,
            waiting_key_groups=0,
        )
        self.committed(outcome)
        self._run_errands()

    def committed(self, outcome: EpochOutcome) -> None:
        """Do what is to be done after an epoch; nothing here."""

    def _attempt(
        self,
        epoch: int,
        batch: BatchRef | None,
        before: BatchRef | None,
        misfortune: str | None,
        loses: str | None,
    ) -> tuple[CommitRecord, list[LaneReport]] | None:
        plans = self._plans = self._begin(epoch)
        self._go_under(self.conductor.plan)
        instruction = self._instructor.epoch(
            epoch,
            plans,
            view=self.view,
            copies=self.conductor.copies,
            executors=self._there,
            times=(
                told := self._times.epoch_times(
                    clock_us=self.clock_us, silence_us=self.clock_us, components=plans
                )
            ),
        )
        if misfortune == "planned":
            raise _DiedError
        rows: Mapping[Any, list[pa.RecordBatch]]
        rows = {} if batch is None else self._arrived(batch.number)
        reports = run_stages(self._lanes, pickle.loads(pickle.dumps(instruction)), rows)
        for report in reports:
            if report.error is not None:
                raise report.error
        if misfortune == "staged":
            raise _DiedError
        if misfortune == "aborted" or loses is not None:
            if loses is not None:
                self.see({n: e.lanes for n, e in self._there.items() if n != loses})
            self.conductor.abort(epoch, "it was to come to nothing")
            return None
        record = record_of(
            epoch,
            reports,
            plans,
            run_id=self.run_id,
            batch=batch,
            before=before,
            times=(times := self._times.after(told, reports)),
        )
        record = self.log.commit(record)
        self._plan = None
        self._times.take(times, told, reports, self.clock_us)
        self.noted(None if batch is None else batch.number, told, reports)
        return record, reports

    def _arrived(self, number: int) -> Mapping[Any, list[pa.RecordBatch]]:
        """Rows of an epoch, as `run_stages` takes them."""
        half = self._source[number].num_rows // 2
        parts = [self._source[number].slice(0, half), self._source[number].slice(half)]
        index = {operator.name: index for index, operator in enumerate(self.flow.operators)}
        fed: dict[Fed, list[pa.RecordBatch]] = {}
        for given in self.flow.inputs:
            if isinstance(given, SourceInput):
                timed = given.time is not None and not any(f.time for f in fed)
                key = Fed(
                    index=index[given.operator],
                    number=given.number,
                    columns=given.columns,
                    time=given.time.name if timed and given.time is not None else None,
                )
                fed[key] = parts
        return fed

    def noted(
        self, number: int | None, told: Mapping[str, EpochTime], reports: Sequence[LaneReport]
    ) -> None:
        """Take note of what operators were told, and said, in an epoch; nothing here."""

    def _go_under(self, plan: PhysicalPlan) -> None:
        if plan != self.flow.physical_plan:
            self.log.use_plan(plan)
            self.flow = self.flow.under(plan)
            self._instructor.regrouped(self.flow)
            self._times.regrouped(self.flow)

    def _begin(self, epoch: int) -> Mapping[str, EpochPlan]:
        for _ in range(_PATIENCE):
            plans = self.conductor.begin(epoch)
            if plans is not None:
                return plans
            self._run_errands()
        raise AssertionError(f"Epochs are held for ever: {self.view.holds}")

    def row_of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row that is given out, of its values by column."""
        return tuple(values.values())

    def _deliver(self, record: CommitRecord) -> None:
        """Give out what the record names; again, it must be the same."""
        for name, epochs in self._rows.items():
            rows = [
                self.row_of(row)
                for ref in record.outputs
                if ref.sink == name
                for row in read_batch(self.storage, ref.block).to_pylist()
            ]
            assert repr(epochs.setdefault(record.epoch, rows)) == repr(rows)  # NaN is NaN

    # -- what happens -----------------------------------------------------------------------------

    def see(self, executors: Mapping[str, int]) -> None:
        """See `Realization.see`."""
        for name in self._there.keys() - executors.keys():
            self.forget_store(name)
        self._there = _executors(executors)
        self.conductor.see(executors)

    def forget_store(self, executor: str) -> None:
        """See `Realization.forget_store`."""
        root = local_store_root(self._settings.local_path, self.run_id, executor)
        shutil.rmtree(root, ignore_errors=True)

    def warming(self, goes: Warming) -> None:
        """See `Realization.warming`."""
        self._goes = goes.goes

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """See `Realization.migrate`."""
        self._migrations += 1
        name = f"m{self._migrations}"
        self.conductor.migrate(
            MigrationRequested(
                id=name, component=component, target=target, strategy=strategy, bounds=bounds
            )
        )
        return name

    def change_lanes(
        self, component: str, lanes: Mapping[str, int], lane_of: Mapping[int, int]
    ) -> None:
        """See `Realization.change_lanes`."""
        request = LanesRequested(component=component, lanes=lanes, lane_of=lane_of)
        self.conductor.change_lanes(request)

    def component_of(self, operator: str) -> str:
        """See `Realization.component_of`."""
        plan: PhysicalPlan = self.conductor.plan
        return next(c.name for c in plan.components if operator in c.operators)

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """See `Realization.regroup`."""
        plan = plan_regrouping(
            self.flow.under(self.conductor.plan),
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
            self.conductor.regroup(asked)

    def drain(self, executor: str) -> None:
        """See `Realization.drain`."""
        self.conductor.drain(executor)

    def cancel(self, migration: str) -> None:
        """See `Realization.cancel`."""
        with suppress(MigrationError):  # it is not under way
            self.conductor.cancel(migration, "second thoughts")

    def ended(self, migration: str) -> EndMigration | None:
        """See `Realization.ended`."""
        return self.conductor.ended(migration)

    @property
    def view(self) -> ProtocolView:
        """See `Realization.view`."""
        return self.conductor.view

    @property
    def events(self) -> Sequence[Event]:
        """See `Realization.events`."""
        return self._told

    @property
    def rows_out(self) -> Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]:
        """See `Realization.rows_out`."""
        return self._rows


def _executors(there: Mapping[str, int]) -> dict[str, Executor]:
    return {name: Executor(name=name, location=None, lanes=n) for name, n in there.items()}

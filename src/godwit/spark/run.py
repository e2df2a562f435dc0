"""One run of a flow on the driver: what happens in an epoch, and between epochs.

The epoch protocol, step by step (``Run.epoch``); a crash between any two steps loses nothing:

1. ask the migration protocol how every component runs; tell the lanes what they need;
2. run the chain of stages: lanes write files that nobody names yet, and report them;
3. commit: one record names the files that count. *This is the moment.*
4. deliver the staged output to the sinks (again after a crash: sinks are idempotent by epoch);
5. return, and Spark commits its offsets. An epoch that Spark replays but that has its record is
   only delivered again.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.lane.lane import lane_flow
from godwit.lane.messages import EpochInstruction, LaneReport
from godwit.migration import EpochPlan, LossPolicy, MigrationProtocol, inputs
from godwit.model import events
from godwit.model.errors import CheckpointMismatchError
from godwit.spark.background import Background
from godwit.spark.executors import Executor, insist_on_placement, live_executors, wait_for
from godwit.spark.feeds import arrow_schema, feeds_of
from godwit.spark.instructions import (
    Copies,
    mask_of,
    operator_instruction,
    places_of,
    state_instruction,
)
from godwit.spark.outputs import (
    close_sinks,
    deliver,
    deliver_as_staged,
    open_sinks,
    staged_sinks,
)
from godwit.spark.progress import Progress
from godwit.spark.stages import Program, ShippedProgram, run_stages
from godwit.spark.takeover import first_assignments, take_up
from godwit.spark.warming import Errand
from godwit.state.lease import acquire_lease
from godwit.state.records import CommitRecord
from godwit.state.snapshots import choose_snapshots
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from godwit.dataflow.compiled import CompiledFlow, Component
    from godwit.lane.messages import StateInstruction
    from godwit.migration import EndMigration
    from godwit.spark.gate import EpochGate
    from godwit.spark.options import Options
    from godwit.state.entries import EntryLayout
    from godwit.state.records import StateId

__all__ = ["Run"]

_COLLECT_EVERY = 20
_HELD_PAUSE_S = 0.2


class Run:
    """One run of a flow, from start to stop.

    Parameters
    ----------
    flow
        The compiled flow.
    rows
        The one streaming DataFrame (see `godwit.spark.feeds`).
    options
        As the user gave them.
    spark
        The session.
    emit
        Called with every event.
    gate
        Says when the query is to stop.

    Attributes
    ----------
    at_step
        Called with the name of each step of an epoch as it is done, and the epoch: ``"planned"``,
        ``"staged"`` (the lanes have written and reported), ``"committed"``, ``"delivered"``. Does
        nothing; whoever studies crashes puts something else in its place.
    """

    at_step: Callable[[str, int], None] = staticmethod(lambda _step, _epoch: None)

    def __init__(
        self,
        flow: CompiledFlow,
        rows: DataFrame,
        options: Options,
        spark: SparkSession,
        *,
        emit: Callable[[events.Event], None],
        gate: EpochGate,
    ) -> None:
        self.flow, self.options, self.spark = flow, options, spark
        self.progress: list[dict[str, Any]] = []
        self.emit = emit
        self._lock = threading.RLock()  # guards the protocol, the chains, and what executors hold
        self._gate = gate
        self.storage = CheckpointStorage.open(
            options.checkpoint,
            access=options.access,
            single_driver=options.single_driver,
        )
        run = uuid.uuid4().hex[:12]
        self._lease = acquire_lease(self.storage, run)
        try:
            self.log, self._taken_up = take_up(
                flow, self.storage, run, retain_epochs=options.retain_epochs
            )
        except BaseException:
            self._lease.release()
            raise
        self.run_id = f"{self.log.identity.query_id[:12]}-{run}"
        self.copies = Copies(flow.num_key_groups)
        self.loads: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._executors: dict[str, Executor] = {}
        self.protocol: MigrationProtocol  # since `open`, which knows the executors
        self._background = Background(self)
        self._feeds, self._schema = feeds_of(flow), arrow_schema(rows)
        self._counting = frozenset(flow.operators[f.inputs[0].operator].name for f in self._feeds)
        self._program: ShippedProgram | None = None  # until the sinks are open

    # -- start and stop -----------------------------------------------------------------------

    def open(self) -> None:
        """Open the sinks, wait for executors, take up where the checkpoint left off."""
        query_id = self.log.identity.query_id
        have_it = deliver_as_staged(self.flow, query_id, self.log, self.spark)
        open_sinks(self.flow, query_id, self.spark)
        lanes = lane_flow(self.flow, self._taken_up.layouts, staged_sinks(self.flow))
        feeds = tuple(tuple(feed.inputs) for feed in self._feeds)
        program = Program(feeds=feeds, lanes=lanes, schema=self._schema)
        self._program = ShippedProgram(program, self.run_id, self.spark.sparkContext)
        context = self.spark.sparkContext
        insist_on_placement(context)
        found = wait_for(context, self.options.executors, self.options.executors_timeout_s)
        self._executors = {e.name: e for e in found}
        committed = self.log.latest_epoch
        recorded = self.log.record(committed).assignments if committed >= 0 else {}
        started = inputs.RunStarted(
            run_id=self.run_id,
            executors={e.name: e.lanes for e in found},
            assignments=first_assignments(
                self.flow, self._taken_up.renamed(recorded), self.options.assignments, found
            ),
            committed=committed,
            waiting={
                c.name: sorted(
                    {g for o in c.operators for g in self.log.chains.waiting_key_groups(o.name)}
                )
                for c in self.flow.components
            },
            state_bytes={c.name: self._state_bytes(c.states) for c in self.flow.components},
        )
        with self._lock:
            self.protocol = MigrationProtocol(started, self.options.loss_policy)
            for command in self.protocol.opening:
                self._background.carry_out(command, {})
        self.emit(self.event(events.QueryStarted, name=self.flow.name, resumed=committed >= 0))
        if committed >= 0 and (told := self._taken_up.told()) is not None:
            self.emit(self.event(events.FlowChanged, **told))
        if committed >= 0:
            self._deliver(self.log.record(committed), but=have_it, again=True)
        self._background.watch_executors()

    def close(self) -> None:
        """Stop background work and close the sinks."""
        try:
            self._background.close()
            close_sinks(self.flow)
            if self._program is not None:
                self._program.destroy()
        finally:
            self._lease.release()

    # -- an epoch -----------------------------------------------------------------------------

    def epoch(self, rows: DataFrame, epoch: int) -> None:
        """Carry out one epoch (Spark calls this once per micro-batch, again after a crash)."""
        latest = self.log.latest_epoch
        if epoch <= latest:
            self._replayed(epoch, latest)
            return
        if epoch > latest + 1:
            raise CheckpointMismatchError(
                f"Spark's progress is at epoch {epoch}, but the last epoch in the checkpoint "
                f"{self.options.checkpoint!r} is {latest}.",
                remedy="The directories 'spark' and the rest of the checkpoint belong together; "
                "restore both from the same moment.",
            )
        took = Progress(epoch)
        plans = self._begin(epoch)
        try:
            with took.phase("plan"):
                instruction = self._instruction(epoch, plans)
            self.at_step("planned", epoch)
            with took.phase("stages"):
                assert self._program is not None
                reports = run_stages(rows, self._program, self.flow.levels, instruction)
            _raise_first_error(reports)
            self.at_step("staged", epoch)
            record = self._record(epoch, plans, reports)
            with took.phase("commit"), self._lock:
                record = self.log.commit(record)
        except BaseException as error:
            with self._lock:
                self.handle(inputs.EpochAborted(epoch=epoch))
            self.emit(
                events.EpochAborted(epoch=epoch, at_s=time.time(), reason=str(error) or repr(error))
            )
            raise
        self.at_step("committed", epoch)
        self._committed(epoch, reports)
        with took.phase("deliver"):
            self._deliver(record)
        self.at_step("delivered", epoch)
        if epoch % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            self._background.collect(self.log)
        self._note_progress(took, reports, record)

    def _replayed(self, epoch: int, latest: int) -> None:
        """Deliver an epoch again that is committed: Spark did not note its end."""
        if epoch < latest:  # Spark notes the end of an epoch before it begins the next
            raise CheckpointMismatchError(
                f"Spark's progress is at epoch {epoch}, but the checkpoint "
                f"{self.options.checkpoint!r} has epochs up to {latest}: their rows would be left "
                "out.",
                remedy="The directories 'spark' and the rest of the checkpoint belong together; "
                "restore both from the same moment, or start with a new checkpoint.",
            )
        self._deliver(self.log.record(epoch), again=True)

    def _begin(self, epoch: int) -> Mapping[str, EpochPlan]:
        """Ask how the epoch runs, waiting for as long as epochs are held."""
        while True:
            with self._lock:
                if not self.protocol.view().holds:
                    plans = self.protocol.next_epoch()
                    self.handle(inputs.EpochStarted(epoch=epoch))
                    return plans
                self.handle(inputs.EpochHeld())
            self._gate.pause(_HELD_PAUSE_S)

    def _instruction(self, epoch: int, plans: Mapping[str, EpochPlan]) -> EpochInstruction:
        with self._lock:
            places = places_of(plans, self._executors)
            loads = self.options.loss_policy.on_loss is LossPolicy.LOAD
            told = []
            for component in self.flow.components:
                plan = plans[component.name]
                settled = self._settled(component.name, plan)
                wanted = ~mask_of(plan.suspended, self.flow.num_key_groups)
                for operator in component.operators:
                    states = [
                        self._state_instruction(
                            state,
                            self.copies.held_by(plan.assignment, state),
                            wanted,
                            settled,
                        )
                        for state in operator.states
                    ]
                    told.append(
                        operator_instruction(
                            operator=operator.name,
                            plan=plan,
                            places=places,
                            chains=self.log.chains,
                            states=states,
                            always_load=component.level < self.flow.levels or loads,
                        )
                    )
        return EpochInstruction(
            epoch=epoch,
            flow=self.log.flow,
            run_id=self.run_id,
            places=places,
            operators=tuple(told),
            storage=self.storage,
            local_dir=self.options.local_dir,
            inline_bytes=self.options.inline_bytes,
            compression=self.options.compression,
        )

    def _state_instruction(
        self,
        state: StateId,
        floor: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.bool_],
        settled: Sequence[int] = (),
    ) -> StateInstruction:
        return state_instruction(
            state=state,
            recorded_as=self.log.recorded_as(state),
            chains=self.log.chains,
            floor=floor,
            wanted=wanted,
            to_snapshot=choose_snapshots(
                self.log.chains,
                state,
                settled,
                budget_bytes=self.options.snapshot_budget_bytes,
                growth=self.options.snapshot_growth,
            ),
        )

    def _settled(self, component: str, plan: EpochPlan) -> list[int]:
        """Key groups to take snapshots of: those that run here and are not on their way.

        A copy that is being warmed would have to start again from a newer snapshot.
        """
        view = self.protocol.view().components[component]
        moving = {transfer.key_group for transfer in view.transfers} | plan.suspended
        return [g for g in range(self.flow.num_key_groups) if g not in moving]

    def _record(
        self, epoch: int, plans: Mapping[str, EpochPlan], reports: Sequence[LaneReport]
    ) -> CommitRecord:
        ordered = sorted(reports, key=lambda r: (r.level, r.place))
        consumed: dict[str, list[int]] = {}
        for report in ordered:
            for done in report.operators:
                if done.consumed:
                    consumed.setdefault(done.operator, []).extend(done.consumed)
        return CommitRecord(
            epoch=epoch,
            run_id=self.run_id,
            plan=self.flow.plan,
            segments=tuple(s for r in ordered for s in r.segments),
            snapshots=tuple(s for r in ordered for s in r.snapshots),
            outputs=tuple(o for r in ordered for o in r.outputs),
            consumed=consumed,
            assignments={name: plan.assignment.to_dict() for name, plan in plans.items()},
        )

    def _committed(self, epoch: int, reports: Sequence[LaneReport]) -> None:
        component = {o.name: c for c in self.flow.components for o in c.operators}
        waited: dict[str, list[int]] = {}
        held: dict[str, dict[str, dict[int, int]]] = {}
        state_bytes: dict[str, dict[int, int]] = {}
        seen: dict[tuple[Component, str], set[int]] = {}
        cpu_ms: dict[str, npt.NDArray[np.float64]] = {}
        touched_of: dict[str, npt.NDArray[np.bool_]] = {}
        with self._lock:
            for report in reports:
                for done in report.operators:
                    of = component[done.operator]
                    name = of.name
                    waited.setdefault(name, []).extend(done.waited)
                    for state, versions in done.versions.items():
                        self.copies.saw(report.executor, state, versions)
                        seen.setdefault((of, report.executor), set()).update(versions)
                    load = done.load
                    sizes = state_bytes.setdefault(name, {})
                    for g, size in zip(load.key_groups, load.state_bytes, strict=True):
                        sizes[g] = sizes.get(g, 0) + size
                    spent = cpu_ms.setdefault(name, np.zeros(self.flow.num_key_groups))
                    touched = touched_of.setdefault(name, np.zeros(len(spent), np.bool_))
                    spent[load.key_groups] += load.cpu_ms
                    touched[load.key_groups] = True
            for (of, executor), key_groups in seen.items():
                held.setdefault(of.name, {})[executor] = self.copies.least(
                    executor, of.states, key_groups, self.log.chains
                )
            for name, spent in cpu_ms.items():
                loads = self.loads.setdefault(name, np.zeros(len(spent)))
                loads[touched_of[name]] = spent[touched_of[name]]
            self.handle(
                inputs.EpochCommitted(
                    epoch=epoch, waited=waited, held=held, state_bytes=state_bytes
                )
            )

    def _deliver(
        self,
        record: CommitRecord,
        *,
        but: frozenset[str] = frozenset(),
        again: bool = False,
    ) -> None:
        """Give the sinks what the record names, but for those that have it."""
        deliver(self.flow, record, self.storage, self.spark, but=but, again=again)

    def _note_progress(
        self, took: Progress, reports: Sequence[LaneReport], record: CommitRecord
    ) -> None:
        made = took.finish(reports, record, self.protocol.view(), self._counting)
        self.progress.append(made)
        del self.progress[:-1000]
        self.emit(
            self.event(
                events.EpochCommitted,
                rows_in=made["numInputRows"],
                rows_out=made["numOutputRows"],
                duration_ms=made["durationMs"]["epoch"],
                waiting_key_groups=made["waitingKeyGroups"],
            )
        )

    # -- between epochs -----------------------------------------------------------------------

    def executors_now(self) -> None:
        """Look which executors there are, and tell the protocol of those that came or went."""
        found = {e.name: e for e in live_executors(self.spark.sparkContext)}
        with self._lock:
            for name in sorted(self._executors.keys() - found.keys()):
                del self._executors[name]
                self.copies.lost(name)
                self.emit(self.event(events.ExecutorLost, executor=name))
                self.handle(inputs.ExecutorLost(executor=name))
            for name in sorted(found.keys() - self._executors.keys()):
                self._executors[name] = found[name]
                self.emit(self.event(events.ExecutorAdded, executor=name, lanes=found[name].lanes))
                self.handle(inputs.ExecutorAdded(executor=name, lanes=found[name].lanes))

    def executor(self, name: str) -> Executor | None:
        """Executor of that name, if it is there."""
        return self._executors.get(name)

    def states_of(self, component: str) -> tuple[StateId, ...]:
        """States of a component's operators."""
        return next(c.states for c in self.flow.components if c.name == component)

    def layout_of(self, state: StateId) -> EntryLayout:
        """How a state is read from the checkpoint."""
        return self._taken_up.layouts[state.operator][0]

    def errand(self, state: StateId, executor: Executor) -> Errand:
        """Where a state's copies on an executor are."""
        return Errand(
            state=state,
            schema=self.layout_of(state).schema,
            num_key_groups=self.flow.num_key_groups,
            executor=executor.name,
            location=executor.location,
            lanes=executor.lanes,
            run_id=self.run_id,
            local_dir=self.options.local_dir,
        )

    def saw(self, executor: str, state: StateId, versions: Mapping[int, int]) -> None:
        """Note which versions an executor holds."""
        with self._lock:
            self.copies.saw(executor, state, versions)

    def forget(self, executor: str, state: StateId, key_groups: Sequence[int]) -> None:
        """Note that an executor's copies are about to be dropped."""
        with self._lock:
            self.copies.dropped(executor, state, key_groups)

    def outcome(self, migration: str, timeout_s: float | None) -> EndMigration | None:
        """How a migration ended, once it has."""
        return self._background.outcome(migration, timeout_s)

    def handle(self, fact: inputs.Fact, announced: events.Event | None = None) -> None:
        """Tell the protocol a fact and carry out what it orders.

        `announced` is emitted once the protocol has accepted the fact, before what follows from it.
        """
        with self._lock:
            view = self.protocol.view()
            before = {name: component.assignment for name, component in view.components.items()}
            orders = self.protocol.handle(fact)
            if announced is not None:
                self.emit(announced)
            for command in orders:
                self._background.carry_out(command, before)

    def warming_instruction(
        self, state: StateId, executor: str, key_groups: Sequence[int]
    ) -> tuple[StateInstruction, int]:
        """Find what brings an executor's copies to the committed version, and which that is."""
        with self._lock:
            told = self._state_instruction(
                state,
                self.copies.held(executor, state),
                mask_of(key_groups, self.flow.num_key_groups),
            )
            return told, self.log.latest_epoch

    def size_bytes(self, component: str, key_groups: Iterable[int]) -> int:
        """Bytes that some key groups of a component take in the checkpoint."""
        with self._lock:
            sizes = self._state_bytes(self.states_of(component))
        return sum(sizes.get(g, 0) for g in key_groups)

    def _state_bytes(self, states: Sequence[StateId]) -> dict[int, int]:
        chains = self.log.chains
        sizes = np.sum(
            [chains.snapshot_bytes(s) + chains.changelog_bytes(s) for s in states], axis=0
        )
        return {g: int(sizes[g]) for g in np.flatnonzero(sizes).tolist()}

    def event(self, kind: Any, **values: Any) -> events.Event:
        """Make an event of this moment."""
        made: events.Event = kind(epoch=self.log.latest_epoch, at_s=time.time(), **values)
        return made


def _raise_first_error(reports: Sequence[LaneReport]) -> None:
    errors = [report.error for report in reports if report.error is not None]
    if errors:
        raise errors[0]

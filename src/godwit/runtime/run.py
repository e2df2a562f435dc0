"""One run of a flow: its epoch loop, and what continues beside it.

What happens in an epoch is in `godwit.engine.loop`; how Spark runs it, in
`godwit.spark.cluster`. Here a batch of source rows becomes an epoch, and a committed
epoch is shown to the controller, the policies and the journal.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from concurrent.futures import CancelledError, Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.collection import collect_garbage
from godwit.engine.flow_epochs import FlowRun
from godwit.engine.latency import latency_entry, merged_latency
from godwit.engine.loop import EpochLoop
from godwit.engine.outcomes import progress_of
from godwit.engine.policies import FlowEpoch, PlacementChange, placement_change, topology_of
from godwit.engine.repartition import check_can_repartition, checked_columns
from godwit.engine.run_record import RunRecorder
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import MigrationError
from godwit.model.log_lines import log_context
from godwit.operators.hot_key_orders import divide_key
from godwit.runtime.placement import cancel_own
from godwit.runtime.threads import DaemonPool, GateClosedError, Guard, close_all, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.ownership import CheckpointLease
    from godwit.checkpoint.records import BatchRef
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.flow_epochs import FlowEpochs
    from godwit.engine.latency import SourceLatency
    from godwit.engine.loop import Stopwatch
    from godwit.engine.policies import Proposal
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.operators.hot_key_orders import SpreadKeyOver
    from godwit.runtime.ports import (
        JobSession,
        RunCluster,
        RunController,
        RunPolicies,
        ScalablePool,
    )
    from godwit.runtime.threads import EpochGate
    from godwit.sinks.sink import Sink


_COLLECT_EVERY, _COLLECT_EVERY_S = 20, 10.0
"""Epochs and seconds between collections, at least: one replays some epochs of the log, which small
epochs in a row would wait for."""
NUM_RECENT: Final = 1000
"""Epochs whose progress is kept by default."""
_LEASE_S, _TICK_S = 0.5, 1.0
SOURCES: Final = "source rows"
"""Name of the part of a run that stays open when the others are opened again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Parts of a run that are opened over one recovery of its checkpoint, and closed together."""

    epochs: FlowEpochs[Any]
    cluster: RunCluster
    coordinator: Coordinator
    pool: ScalablePool
    controller: RunController | None
    policies: RunPolicies | None
    # see `EpochLoop`
    delivering: Callable[[Callable[[], None]], Callable[[], object]] | None
    closing: list[tuple[str, Callable[[], object]]]  # in the order in which they are closed


class QueryRun(FlowRun):
    """One run of a flow, from its start to its end.

    Its parts are opened when it starts, and again, all but the sources, when other columns are to
    place its state (`Repartitioning`).
    """

    # whether the number of executors is being changed; replaced by the pool's own check
    is_scaling: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        parts: RunParts,
        *,
        # opens parts again whose predecessors are closed, by operators' columns
        reopen: Callable[[RunParts, Mapping[str, tuple[str, ...]]], RunParts],
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],  # adds to the journal
        gate: EpochGate,
        lease: CheckpointLease,
        session: JobSession,
        name: str,  # of the query
        trigger_s: float = 0.0,  # least time between the beginnings of epochs with input
        num_recent: int = NUM_RECENT,  # epochs whose progress is kept
    ) -> None:
        self.run_id = parts.epochs.run_id
        self.lease_run_id, self.name = lease.owner.run_id, name
        self.num_recent = num_recent
        self._reopen, self._note = reopen, note
        self._lease, self.session, self.gate = lease, session, gate
        self.batches = 0  # carried out in this run
        now_s = time.monotonic()
        self._lease_s, self._tick_s = now_s + _LEASE_S, now_s + _TICK_S  # when each is due again
        self._collecting = Guard("collecting files", self.background_failed)
        # epoch and time of the last collection
        self._collected = parts.epochs.log.latest_epoch, time.monotonic() - _COLLECT_EVERY_S
        self._progress: deque[dict[str, Any]] = deque(maxlen=num_recent)
        self._noting = threading.Lock()
        self._record = RunRecorder(note, trigger_s=trigger_s)
        self._input_ended = False
        self._backlog_rows: Callable[[], int | None] = lambda: None
        self._use(parts)
        self.repartitioning = Repartitioning(self)

    def _use(self, parts: RunParts) -> None:
        """Replace coordinator, cluster, controller and all other parts of the run by `parts`."""
        self.epochs, self.cluster, self.coordinator = parts.epochs, parts.cluster, parts.coordinator
        self.pool, self.controller, self.policies = parts.pool, parts.controller, parts.policies
        self.loop = EpochLoop(parts.epochs, parts.coordinator, self, beside=parts.delivering)
        self._parts, self._closing = parts, parts.closing
        self._last: FlowEpoch | None = None  # the last epoch with input, of these parts
        self._maintenance = TargetMaintenance(
            [(output.name, output.sink) for output in self.flow.outputs],
            announce=self.coordinator.announce,
            failed=self.background_failed,
        )
        self._closing.insert(0, ("the maintenance of targets", self._maintenance.close))
        self.ask_backlog(self._backlog_rows)
        if self._input_ended:
            self.epochs.end_input()

    def place_by(self, columns: Mapping[str, tuple[str, ...]]) -> None:
        """Close the run's parts but the sources, and open them with other partitioning columns.

        `columns`: operator → key columns that select its key groups. Called between two epochs,
        once the last one is delivered; what it raises fails the query, whose checkpoint has either
        the former columns or these.

        Raises `GateClosedError` if the query is to stop.
        """
        parts = self._parts
        self.cluster.end_resident("operators are repartitioned")
        self._closing = [part for part in parts.closing if part[0] == SOURCES]
        problems = close_all(part for part in parts.closing if part[0] != SOURCES)
        if self.gate.closed:
            raise GateClosedError
        self._use(self._reopen(parts, columns))
        for what, error in problems:
            self.background_failed(what, error)

    def ask_backlog(self, backlog_rows: Callable[[], int | None]) -> None:
        """Set the function that tells the controller the sources' backlog, in rows."""
        self._backlog_rows = backlog_rows
        if self.controller is not None:
            self.controller.backlog_rows = backlog_rows

    # -- changes on request (see `godwit.runtime.ports.ChangedRun`) -------------------------------

    def divide(self, change: SpreadKeyOver) -> bool:
        """Divide the rows of a hot key into other parts, as a user requested.

        ``False`` if that is impossible now.
        """
        with self.manual_change([ManualChange.HOT_KEYS.of(change.operator)]) as record:
            divided = divide_key(self.spreading, change, announce=self.coordinator.announce)
            if divided:
                record()
        return divided

    def manual_change(self, changes: Iterable[str]) -> AbstractContextManager[Callable[..., None]]:
        """Context in which a user makes changes; see `RunPolicies.manual_change`."""
        if self.policies is None:
            return nullcontext(lambda *_: None)
        return self.policies.manual_change(changes)

    def repartition(self, columns: Mapping[str, Any]) -> None:
        """Change the partitioning columns of operators; return once epochs run again."""
        self.repartitioning.carry_out(columns)

    def carry_on(self) -> None:
        """No-op: requested changes continue in the background."""

    # -- what it has ------------------------------------------------------------------------------

    @property
    def log(self) -> CommitLog:
        """Commit log of the checkpoint."""
        return self.epochs.log

    @property
    def progress(self) -> tuple[dict[str, Any], ...]:
        """Figures of the last epochs, oldest first."""
        with self._noting:
            return tuple(self._progress)

    def placement_change(self) -> PlacementChange:
        """Return what has changed in the places of key groups since the last epoch with input."""
        last = self._last
        if last is None:
            return PlacementChange()
        pending = 0 if self.pool is None else self.pool.view.pending
        return placement_change(topology_of(last.flow).stages, last, self.view, pending)

    def close(self) -> list[tuple[str, str]]:
        """Stop background work and close the sinks; the lease on the checkpoint is kept.

        Returns the parts that could not be closed, with their errors.
        """
        self.repartitioning.close()
        with suppress(Exception):  # the query has failed by it
            self.loop.finish_delivery()
        return close_all(self._closing)

    def release(self) -> None:
        """Release the checkpoint's lease for the next query."""
        self._lease.release()

    def check_lease(self) -> None:
        """Raise `CheckpointInUseError` if another query has taken the lease on the checkpoint.

        Also raises if the session was stopped. Called between epochs; looks twice a second.
        """
        if time.monotonic() >= self._lease_s:
            self._lease_s = time.monotonic() + _LEASE_S
            self._lease.check_held()
            self.session.check(self.flow.name)

    # -- epochs -----------------------------------------------------------------------------------

    def epoch_begun(self, rows: int, held_back: int) -> None:
        """Report an epoch's rows, and the sources' backlog (`held_back`), to the controller."""
        if self.controller is not None:
            self.controller.epoch_begun(rows, held_back)

    def with_input(
        self,
        # identifies a batch, from the last one that is committed; None if it is committed already
        offered: Callable[[BatchRef | None], SourceBatch[Any] | None],
        stopped: Callable[[], bool] = lambda: False,
        *,
        broken_off: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Run the epoch of a batch of source rows, which may be offered again after a crash.

        `offered`: returns the batch, given the last committed one; ``None`` if it is committed
        already. `stopped`, `broken_off`: see `EpochGate.epoch`. Raises if the epoch failed. Returns
        phase → milliseconds; empty if the batch was committed before.
        """
        with log_context(query=self.name), self.gate.epoch(stopped, broken_off=broken_off):
            batch = offered(self.epochs.last_batch)
            if batch is not None:  # else it was delivered when the run began
                self.loop.run(batch)
        self.batches += 1
        latest = self.progress[-1:]
        if batch is None or not latest:
            return {}
        return {phase: ms for phase, ms in latest[0]["durationMs"].items() if phase != "epoch"}

    def without_input(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Run an epoch without input, if one is still due.

        `stopped`: called while the epoch is held. Raises `GateClosedError` if the query stops.
        """
        # An error is one of the epoch: Spark's stop breaks off no job of this thread.
        with log_context(query=self.name), self.gate.epoch(stopped):
            if self.is_due:
                self.loop.run(None)

    @property
    def is_pending(self) -> bool:
        """True if epochs without input are due, or will be once they are not held."""
        return self.epochs.is_pending(self.view)

    def end_input(self) -> None:
        """Mark the input as ended, so that open windows close."""
        self._input_ended = True
        self.epochs.end_input()

    def advance_clock(self) -> None:
        """Let the coordinator retry lost orders for copies without an epoch, once a second."""
        if time.monotonic() >= self._tick_s:
            self._tick_s = time.monotonic() + _TICK_S
            self.coordinator.advance_clock()

    def use_this_thread(self) -> None:
        """Prepare the calling thread, which is not Spark's, to start jobs of this run."""
        self.session.use_this_thread(self.flow.name)

    # -- observer callbacks -----------------------------------------------------------------------

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView], took_s: float
    ) -> None:
        """Observe an epoch that is committed and not delivered yet."""
        batch = self.epochs.batch
        of_frames = None if batch is None else self.cluster.batch_committed(outcome.rows_in)
        epoch = FlowEpoch(
            outcome=outcome,
            component_views=component_views,
            took_s=took_s,
            committed_s=None if self.controller is None else self.controller.now_s(),
            at_s=time.time(),
            flow=self.flow,
        )
        if batch is not None:
            self._last = epoch
        if self.controller is not None:
            self.controller.epoch_committed(
                epoch, None if of_frames is None else batch, of_frames or 0
            )
        self._record.committed(epoch)
        if self.policies is not None:
            self.policies.observe(epoch)
            if (proposed := self.policies.take_repartitioning()) is not None:
                self.repartitioning.begin_proposed(proposed)
        with self.coordinator.locked() as coordinator:
            load = coordinator.recent_load.due_summary()
        if load is not None:
            self._record.loads(replace(load, num_key_groups=self.flow.num_key_groups))

    def delivered(
        self, outcome: EpochOutcome, stopwatch: Stopwatch, latencies: Mapping[str, SourceLatency]
    ) -> None:
        """Observe an epoch that is delivered, just before its event."""
        self._collect_if_due(outcome.epoch)
        self._maintenance.delivered()
        sink_s = self.cluster.delivery_s
        of_driver = stopwatch.requests.taken()
        requests = {
            "epoch": dict(Counter(of_driver) + Counter(outcome.lane_requests)),
            "beside": self.log.storage.requests_beside(),
        }
        progress = progress_of(
            outcome, self.view, stopwatch, latencies, sink_s=sink_s, requests=requests
        )
        with self._noting:
            self._progress.append(progress)
        self._note("progress", lambda: progress)
        if self.controller is not None:
            in_series = self._parts.delivering is None
            spent_s = stopwatch.spent_s(sink_s, in_series=in_series)
            self.controller.epoch_delivered(merged_latency(latencies), spent_s)
        if latencies:
            self._note("latency", lambda: latency_entry(outcome.epoch, latencies))

    def _collect_if_due(self, epoch: int) -> None:
        """Queue the deletion of unneeded files, every few epochs."""
        last, last_s = self._collected
        now_s = time.monotonic()
        if epoch - last >= _COLLECT_EVERY and now_s - last_s >= _COLLECT_EVERY_S:
            self._collected = epoch, now_s
            self.cluster.beside.submit(self._collecting, self._collect_garbage)

    def _collect_garbage(self) -> None:
        """Delete files of the checkpoint that nothing needs, and announce it."""
        collected = collect_garbage(self.log)
        for error in collected.errors:
            self._collecting.report(error)
        if collected.removed:
            self.coordinator.announce(
                events.FilesCollected,
                files=len(collected.removed),
                freed_bytes=collected.freed_bytes,
            )


_STOPPED = "Start the flow again from its checkpoint, and repartition that query."


class Repartitioning:
    """Changes the columns that place the state of a running query, on a thread of its own.

    Problem: the data of executors, assignments, instructions and statistics are all by key group,
    and other columns give every entry another key group. A table finds entries by their keys alone,
    so it cannot have some of them by the former columns and some by the new ones.

    So the running query does the same as a stop and a start. Between two epochs the parts of the
    run are closed, the checkpoint is recovered with its state repartitioned
    (`godwit.engine.repartition`), and the parts are opened over it by the code of every start.
    Sources, listeners, journal, ports and the driver of the epochs stay, and wait meanwhile.

    Invariants: it has the gate of epochs for itself, and the last epoch is delivered; all refusals
    come before anything is closed; an error afterwards fails the query, whose checkpoint has the
    former columns or the new ones.
    """

    def __init__(self, run: QueryRun) -> None:
        self._run = run
        self._thread = DaemonPool(1, "godwit-repartition")

    def close(self) -> None:
        """Begin no more changes."""
        self._thread.close()

    def carry_out(self, asked: Mapping[str, Any]) -> None:
        """Change the partitioning columns of operators for a user; return once epochs run again.

        `asked`: operator → columns. Raises `MigrationError` if that is not possible now, or the
        query stops first; what `checked_columns` and `check_can_repartition` raise; the query's
        error if it fails by it.
        """
        run = self._run
        if run.gate.is_own_thread:
            raise MigrationError(
                "State cannot be repartitioned from within an epoch, such as by a function of "
                "foreach: it would wait for the end of that epoch.",
                remedy="Call it from another thread.",
            )
        checked_columns(run.flow, asked)  # at once, however long the epoch takes
        try:
            self._thread.submit(self._change, asked, "asked for", by_hand=True).result()
        except (GateClosedError, CancelledError):
            raise MigrationError(
                "The query stopped before its state was repartitioned.", remedy=_STOPPED
            ) from None

    def begin_proposed(self, proposal: Proposal) -> None:
        """Begin a change that a policy has proposed; skip it if it is not possible now."""
        change = proposal.change

        def change_or_skip() -> None:
            """Make the change, or announce why it is not made."""
            try:
                self._change({change.operator: change.columns}, proposal.reason)
            except GateClosedError:
                pass
            except Exception as error:
                if self._run.gate.failure is not None:
                    raise  # the query has failed by it
                self._run.coordinator.announce(
                    events.DecisionSkipped,
                    what=proposal.subject,
                    reason=one_line(error),
                    numbers=dict(proposal.numbers),
                )

        self._thread.submit(change_or_skip)

    # -- on its own thread ------------------------------------------------------------------------

    def _change(self, requested: Mapping[str, Any], reason: str, *, by_hand: bool = False) -> None:
        """Close the run's parts between two epochs, and open them with other partitioning columns.

        `requested`: operator → columns; no-op if they are the present ones. `by_hand`: a user
        asked, so the controller's migrations are cancelled, and policies leave the operators alone.
        """
        run = self._run
        with run.gate.between_epochs():
            began_s = time.monotonic()
            columns = checked_columns(run.flow, requested)
            if not columns:
                return
            self._check_nothing_moves(by_hand=by_hand)
            for name in columns:
                check_can_repartition(run.flow.operator(name), run.log)
            user_operators = [name for name in columns if not run.flow.operator(name).part_of]
            before = {name: self._columns_text(name) for name in user_operators}
            if by_hand:
                with run.manual_change(map(ManualChange.COMPONENTS.of, columns)) as record:
                    record()
            try:
                run.loop.finish_delivery()
                run.use_this_thread()
                run.place_by(columns)
            except GateClosedError:
                run.gate.cut_short = True
                raise
            except BaseException as error:
                run.gate.fail(error)
                raise
            run.coordinator.announce(
                events.OperatorsRepartitioned,
                before=before,
                after={name: self._columns_text(name) for name in user_operators},
                reason=reason,
                paused_ms=round((time.monotonic() - began_s) * 1e3, 1),
            )

    def _columns_text(self, operator: str) -> str:
        """Return the columns that select an operator's key groups, separated by commas."""
        return ", ".join(self._run.flow.operator(operator).placed_by.names)

    def _check_nothing_moves(self, *, by_hand: bool) -> None:
        """Raise `MigrationError` if key groups or executors are being moved, added or removed.

        `by_hand`: cancel migrations by the controller first.
        """
        run = self._run
        if run.coordinator.closed:
            raise MigrationError("The query has stopped.", remedy=_STOPPED)
        with run.coordinator.locked() as coordinator:
            for name in coordinator.view.components if by_hand else ():
                cancel_own(coordinator, name)
            view, regrouping = coordinator.view, coordinator.regrouping
        moving = [
            run.names[name]
            for name, component in view.components.items()
            # Key groups whose state is being loaded are loaded again afterwards, together with the
            # rows that wait for them.
            if component.migration is not None
            or any(transfer.planned for transfer in component.transfers)
        ]
        problem = ""
        if regrouping is not None:
            problem = f"regrouping {regrouping} is under way"
        elif moving:
            problem = f"key groups of {moving[0]} are on the move"
        elif view.draining:
            problem = f"executor {min(view.draining)} is draining"
        elif run.is_scaling() or run.pool.is_changing:
            problem = "executors are being added or given back"
        if problem:
            raise MigrationError(
                f"State cannot be repartitioned now: {problem}.",
                remedy="Wait for its end, or cancel it, and ask again.",
            )


_CLOSING_S: Final = 10.0


class TargetMaintenance:
    """Maintains targets; `sinks`: name → sink, `announce`: takes the kind and values of an event.

    After a delivery, a sink whose policy is due is asked to maintain its target, on a thread that
    is the same for all sinks: there is one step at a time, and no epoch waits for it. What it did
    is an event, and so is what failed (`failed` takes the name of the step, and the error);
    neither ends the query.
    """

    def __init__(
        self,
        sinks: Iterable[tuple[str, Sink]],
        *,
        announce: Callable[..., Any],
        failed: Callable[[str, str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce, self._now_s = announce, now_s
        self._sinks = {name: sink for name, sink in sinks if sink.maintenance is not None}
        self._guards = {
            name: Guard(f"maintaining the target of sink {name!r}", failed) for name in self._sinks
        }
        self._due_s = {name: now_s() + _every_s(sink) for name, sink in self._sinks.items()}
        self._running: dict[str, Future[Any]] = {}
        self._pool = DaemonPool(1, "godwit-maintenance")

    def delivered(self) -> None:
        """Begin the steps that are due, after the delivery of an epoch."""
        for name, sink in self._sinks.items():
            running = self._running.get(name)
            if self._now_s() < self._due_s[name] or (running is not None and not running.done()):
                continue
            self._due_s[name] = self._now_s() + _every_s(sink)
            self._running[name] = self._pool.submit(self._guards[name], self._maintain, name, sink)

    def close(self) -> None:
        """Begin nothing more, and give what runs a few seconds; it may end anywhere."""
        self._pool.close()
        wait(self._running.values(), _CLOSING_S)

    def _maintain(self, name: str, sink: Sink) -> None:
        """Maintain a target, and announce the result."""
        done = sink.maintain()
        if done:
            self._announce(
                events.TargetMaintained,
                sink=name,
                compacted=done.compacted,
                written=done.written,
                expired=done.expired,
                removed=done.removed,
            )


def _every_s(sink: Sink) -> float:
    """Return the seconds from one look at a target to the next."""
    return 0.0 if sink.maintenance is None else sink.maintenance.every_s

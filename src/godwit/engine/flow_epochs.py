"""Epochs of a compiled flow: instructions, lanes' reports and commit records.

This is the work that `godwit.engine.loop` sequences on every cluster that runs real lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from godwit.engine.cluster import AttemptLostError, SourceLook
from godwit.engine.event_time import EventTimes
from godwit.engine.instructions import Instructor
from godwit.engine.lane.messages import FailedRows, senders_that_differ
from godwit.engine.latency import LatencyMeter
from godwit.engine.outcomes import (
    build_commit_record,
    build_outcome,
    counted_inputs,
    deletes_waited,
    rows_by_source,
    rows_left_out,
    rows_unreadable,
    state_bytes,
)
from godwit.model import events
from godwit.model.errors import EpochFailedError, UserFunctionError
from godwit.model.latency import LatencyHistogram
from godwit.plan.explain import UserNames
from godwit.plan.feedback import waiting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef, CommitRecord, PhysicalPlan
    from godwit.engine.cluster import Cluster, SourceBatch
    from godwit.engine.lane.messages import LaneReport
    from godwit.engine.latency import SourceLatency
    from godwit.engine.recovery import Recovery
    from godwit.engine.settings import Lanes
    from godwit.engine.source_positions import SourcePositions
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.copies import Copies
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView, ProtocolView
    from godwit.migration.strategy import Policy
    from godwit.operators.hot_key_orders import SpreadOrders
    from godwit.plan.compiled import CompiledFlow


RowsT = TypeVar("RowsT")


def _held_watermarks(flow: CompiledFlow, record: CommitRecord | None) -> dict[str, int]:
    """Return loop → minimum event time of its waiting rows, which its watermark may not pass."""
    minimum_us: dict[str, int] = {}
    if record is None:
        return minimum_us
    for loop in flow.loops:
        times = [ref.oldest_us for ref in waiting_in(record, loop) if ref.oldest_us is not None]
        if times:
            minimum_us[loop] = min(times)
    return minimum_us


def _check_loop_rows_are_read(
    flow: CompiledFlow, record: CommitRecord | None, batch: BatchRef | None
) -> None:
    """Raise if an epoch does not read the rows waiting in loops: they would be lost."""
    if record is None:
        return
    for loop in flow.loops:
        read = None if batch is None else batch.positions.get(loop)
        if waiting_in(record, loop) and read != record.epoch:
            raise EpochFailedError(
                f"Epoch {record.epoch + 1} does not read the rows that epoch {record.epoch} fed "
                f"back to the loop {loop!r}; nothing of it is committed.",
                remedy="This is a bug in Godwit: report it. The rows are in the checkpoint, and a "
                "restarted query reads them.",
            )


class FlowEpochs(Generic[RowsT]):
    """Epochs of a flow on a cluster (see `godwit.engine.loop.Epochs`)."""

    def __init__(
        self,
        recovery: Recovery,
        log: CommitLog,
        cluster: Cluster[RowsT],
        *,
        settings: Lanes,
        policy: Policy,
        run_id: str,
        close_at_end: bool = False,
        # called before the first epoch under another physical plan
        on_regroup: Callable[[CompiledFlow], None] = lambda _flow: None,
        # latency meter of the run before a repartition
        meter: LatencyMeter | None = None,
    ) -> None:
        self.flow, self.log, self.run_id = recovery.flow, log, run_id
        self._physical_plan = self.flow.physical_plan
        self.cluster, self._on_regroup = cluster, on_regroup
        self.instructor = Instructor(
            self.flow, log, recovery.layouts, settings, on_loss=policy.on_loss, run_id=run_id
        )
        self.times = EventTimes(self.flow, recovery.times(log.latest), close_at_end=close_at_end)
        self.times.hold_back(_held_watermarks(self.flow, log.latest))
        self._counting = counted_inputs(self.flow)
        self._error_shares = ErrorShares(self.flow)
        self._evicted: set[str] = set()  # operators whose state has left the local store
        self.meter = meter or LatencyMeter(cluster.now_us())

    # -- between epochs ---------------------------------------------------------------------------

    @property
    def last_batch(self) -> BatchRef | None:
        """Last committed batch of source rows; ``None`` before the first."""
        latest = self.log.latest
        return None if latest is None else latest.last_batch

    def is_due(self, view: ProtocolView) -> bool:
        """Return true if an epoch without input has work now, such as windows to close."""
        return view.due or (
            not view.holds and self.times.is_due(**self._clocks_us(), components=view.components)
        )

    def is_pending(self, view: ProtocolView) -> bool:
        """Return true if an epoch without input has work, now or once key groups are resumed.

        It differs from `is_due` while a migration stops the world, there is no executor, or key
        groups are suspended: no epoch can run then, but a query whose input has ended must not end.
        """
        return view.waiting or view.due or self.times.is_due(**self._clocks_us(), components={})

    def end_input(self) -> None:
        """Mark the input as ended, so that open windows close."""
        self.times.end_input()

    def _clocks_us(self) -> dict[str, int]:
        """Return wall clock and monotonic clock, in microseconds, as keyword arguments."""
        return {"clock_us": self.cluster.now_us(), "silence_us": self.cluster.monotonic_us()}

    # -- for the loop -----------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        """Number of the epoch after the last committed one."""
        return self.log.latest_epoch + 1

    def now_s(self) -> float:
        """Return a monotonic time in seconds."""
        return self.cluster.monotonic_us() / 1e6

    def wait_while_held(self) -> bool:
        """Wait briefly while epochs are held.

        Return ``False`` to abort the epoch and retry later.
        """
        return self.cluster.wait_while_held()

    def regroup(self, physical_plan: PhysicalPlan) -> None:
        """Continue under a physical plan, if it differs from the present one."""
        if physical_plan == self._physical_plan:
            return
        self._physical_plan = physical_plan
        self.log.use_plan(physical_plan)
        self.flow = self.flow.with_plan(physical_plan)
        self.instructor.regrouped(self.flow)
        self.times.regrouped(self.flow)
        self._on_regroup(self.flow)

    def plan(
        self,
        epoch: int,
        batch: SourceBatch[RowsT] | None,
        component_views: Mapping[str, ComponentView],
        coordinator: Coordinator,
    ) -> None:
        """Prepare an attempt at an epoch: build the lanes' instruction."""
        self._batch, self._component_views, self._planned_us = (
            batch,
            component_views,
            self._clocks_us(),
        )
        _check_loop_rows_are_read(self.flow, self.log.latest, self.batch)
        self._epoch_times = self.times.epoch_times(**self._planned_us, components=component_views)
        self._instruction = self.instructor.epoch(
            epoch,
            component_views,
            view=coordinator.view,
            copies=coordinator.copies,
            times=self._epoch_times,
        )

    def run_stages(self) -> None:
        """Run the stages of the prepared attempt, without a commit; raise a lane's error."""
        self._reports = self.cluster.run_stages(self._instruction, self._batch)
        for report in self._reports:
            if report.error is not None:
                raise report.error
        if senders_that_differ(self._reports):
            raise AttemptLostError(
                "After the loss of an executor, an operator that is not repeatable ran again, and "
                "emitted other rows than some lanes have"
            )
        self._error_shares.check(self._reports)

    def commit(self) -> None:
        """Write the commit record, which commits the epoch."""
        times = self.times.after(self._epoch_times, self._reports)
        self._record = self.log.commit(
            build_commit_record(
                self._instruction.epoch,
                self._reports,
                self._component_views,
                run_id=self.run_id,
                batch=self.batch,
                before=self.last_batch,
                times=times,
                sinks=self.cluster.sink_records(),
            )
        )
        self._committed = self._batch, self._reports, self._planned_us
        self._error_shares.committed()
        self._query_watermark = self.times.times.query  # before the epoch
        self.times.after_commit(
            times, self._epoch_times, self._reports, self.cluster.monotonic_us()
        )
        self.times.hold_back(_held_watermarks(self.flow, self._record))

    @property
    def batch(self) -> BatchRef | None:
        """Batch of source rows of the current epoch; ``None`` if it has none."""
        return None if self._batch is None else self._batch.ref

    def outcome(self, copies: Copies) -> EpochOutcome:
        """Return the outcome of the committed epoch; `copies`: copies on executors before it."""
        return build_outcome(
            self._record,
            self._reports,
            flow=self.flow,
            chains=self.log.chains,
            copies=copies,
            counting=self._counting,
            query_watermark=self._query_watermark,
        )

    def deliver(self) -> None:
        """Deliver the committed epoch to the sinks."""
        self.cluster.deliver(self._record)

    def latencies(self) -> dict[str, SourceLatency]:
        """Return source → latencies of its rows in the epoch; called after the delivery."""
        batch, reports, planned_us = self._committed
        if batch is None:
            return {}
        clock_us = planned_us["clock_us"]
        ago_us = self.cluster.monotonic_us() - planned_us["silence_us"]
        ages: dict[str, list[LatencyHistogram]] = {}
        for report in reports:
            for source, of_lane in report.ages.items():
                ages.setdefault(source, []).append(of_lane)
        nothing_us = dict.fromkeys(self.flow.sources, clock_us)
        return self.meter.measure(
            batch.look or SourceLook(at_us=clock_us, nothing_us=nothing_us),
            rows_by_source(reports, self._counting),
            clock_us + ago_us,
            ages={source: LatencyHistogram.merged(parts) for source, parts in ages.items()},
            ago_s=ago_us / 1e6,
        )

    def remarks(self, outcome: EpochOutcome) -> list[tuple[type[events.Event], Mapping[str, Any]]]:
        """Return events about rows left out or unreadable, deletes that wait, and evictions."""
        batch, reports, _ = self._committed
        unreadable = rows_unreadable(reports, {} if batch is None else batch.missing, self.flow)
        return [
            (kind, {"epoch": outcome.epoch, **values})
            for kind, every in (
                (events.RowsLeftOut, rows_left_out(outcome.left_out, self.flow)),
                (events.RowsUnreadable, unreadable),
                (events.CallsFailed, calls_failed(reports)),
                (events.DeletesWaited, deletes_waited(reports)),
                (events.StateEvicted, self._evicted_first(outcome)),
            )
            for values in every
        ]

    def _evicted_first(self, outcome: EpochOutcome) -> list[dict[str, Any]]:
        """Return the fields of `events.StateEvicted` for operators without an earlier eviction."""
        first = outcome.evicted.keys() - self._evicted
        self._evicted |= first
        return [
            {
                "operator": operator,
                "key_groups": outcome.evicted[operator],
                "table_bytes": outcome.table_bytes,
            }
            for operator in sorted(first)
        ]


class FlowRun:
    """Plan, protocol and state of a run; both may be replaced while it runs."""

    epochs: FlowEpochs[Any]
    coordinator: Coordinator

    @property
    def flow(self) -> CompiledFlow:
        """The flow, under its present physical plan."""
        return self.epochs.flow

    @property
    def names(self) -> UserNames:
        """Names of operators and components as users know them."""
        return UserNames(self.flow.operators)

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol: assignments, moves and waiting key groups."""
        return self.coordinator.view

    @property
    def spreading(self) -> Mapping[str, SpreadOrders]:
        """Operator → requests to divide its hot keys, for operators that allow it."""
        return self.epochs.times.spreading

    @property
    def is_due(self) -> bool:
        """True if windows, timers or loops have work now, for an epoch without input."""
        return self.epochs.is_due(self.view)

    def background_failed(self, what: str, error: str) -> None:
        """Announce, as an event, that background work `what` has failed with `error`."""
        self.coordinator.background_failed(what, error)

    def state_bytes(self, component: str) -> npt.NDArray[np.int64]:
        """Return the bytes of state of each key group of a component, by its number."""
        with self.coordinator.locked() as coordinator:
            states = coordinator.copies.states(component)
        with self.epochs.log.lock:
            return state_bytes(states, self.epochs.log.chains)


def announce_problems(positions: SourcePositions, run: FlowRun) -> None:
    """Let problems of a run's sources become events: failed calls, reports, loops that pause."""
    positions.on_failure = run.background_failed
    positions.on_pause = lambda loop, rounds, rows: run.coordinator.announce(
        events.FeedbackPaused, loop=loop, rounds=rounds, rows=rows
    )
    positions.on_report = lambda source, message: run.coordinator.announce(
        events.SourceReported, source=source, message=message
    )


_MIN_ROWS: Final = 1000
"""Rows of which the share is taken at least, so that the first bad row does not stop a query."""
_RECENT_ROWS: Final = 1_000_000
"""Rows after which both counts are halved, so that the share is one of recent rows."""


class ErrorShares:
    """Counts, for each sink of failed calls, rows and diverted rows since the start of a run.

    Invariant: an epoch with which the share of a function's recent rows that were diverted would
    exceed its `SinkOutput.max_error_share` is not committed.
    """

    def __init__(self, flow: CompiledFlow) -> None:
        self._outputs = {o.name: o for o in flow.outputs if o.max_error_share is not None}
        self._counts: dict[str, tuple[float, float]] = {}  # sink → rows, diverted rows
        self._attempt: dict[str, tuple[float, float]] = {}  # the same, with the present attempt

    def check(self, reports: Iterable[LaneReport]) -> None:
        """Raise `UserFunctionError` if too many rows would be diverted with an attempt."""
        if not self._outputs:
            return
        reports = list(reports)
        failed = failed_rows(reports)
        rows_in: dict[str, int] = {}
        for report in reports:
            for operator_report in report.operators:
                lane_rows = sum(operator_report.rows_in.values())
                rows_in[operator_report.operator] = (
                    rows_in.get(operator_report.operator, 0) + lane_rows
                )
        self._attempt = {}
        for name, output in self._outputs.items():
            failed_of_sink = failed.get(name, FailedRows())
            diverted = failed_of_sink.rows or failed_of_sink.calls  # of timers there are only calls
            # A map on a source tells its rows only with a failure.
            new_rows = max(failed_of_sink.rows_in, rows_in.get(output.operator, 0), diverted)
            rows_before, diverted_before = self._counts.get(name, (0.0, 0.0))
            rows, diverted_rows = rows_before + new_rows, diverted_before + diverted
            assert output.max_error_share is not None
            if diverted and diverted_rows > output.max_error_share * max(rows, _MIN_ROWS):
                raise _too_many_errors(failed_of_sink, rows, diverted_rows, output.max_error_share)
            scale = 0.5 if rows > _RECENT_ROWS else 1.0
            self._attempt[name] = rows * scale, diverted_rows * scale

    def committed(self) -> None:
        """Take the counts of the last checked attempt, which was committed."""
        self._counts, self._attempt = self._attempt or self._counts, {}


def failed_rows(reports: Iterable[LaneReport]) -> dict[str, FailedRows]:
    """Return sink of failed calls → the failed calls of all lanes."""
    failed: dict[str, FailedRows] = {}
    for report in reports:
        for sink, of_lane in report.failed.items():
            failed.setdefault(sink, FailedRows()).add(of_lane)
    return failed


def calls_failed(reports: Iterable[LaneReport]) -> list[dict[str, Any]]:
    """Return the fields of `events.CallsFailed` for each function that failed."""
    return [
        {
            "operator": of_sink.first["operator"],
            "function": of_sink.first["function"],
            "calls": of_sink.calls,
            "rows": of_sink.rows,
            "error": f"{of_sink.first['error']}: {of_sink.first['message']:.200}",
            "key": "" if of_sink.first["key"] == "{}" else of_sink.first["key"],
            "sink": sink,
        }
        for sink, of_sink in failed_rows(reports).items()
        if of_sink.calls
    ]


def _too_many_errors(
    failed: FailedRows, rows: float, diverted: float, share: float
) -> UserFunctionError:
    """Return the error that a function fails for too large a share of its rows."""
    first: Mapping[str, str] = failed.first
    return UserFunctionError(
        f"Function {first['function']!r} of operator {first['operator']!r} failed for "
        f"{diverted:,.0f} of the last {rows:,.0f} rows, which is more than "
        f"max_error_share={share:g}: for key {first['key']}, row {first['row'] or 'none'}, with "
        f"{first['error']}: {first['message']}",
        remedy="Correct the function, or what it depends on; or allow a larger share. Nothing of "
        f"this epoch is committed. The first traceback is:\n{first['traceback']}",
        operator=first["operator"],
        key=first["key"],
        row=first["row"],
        error=first["error"],
        traceback=first["traceback"],
    )

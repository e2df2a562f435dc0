"""Epochs of a compiled flow: instructions, lanes' reports and commit records.

This is the work that `godwit.engine.loop` sequences on every cluster that runs real lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from godwit.engine.cluster import AttemptLostError, SourceLook
from godwit.engine.event_time import EventTimes
from godwit.engine.instructions import Instructor
from godwit.engine.lane.messages import senders_that_differ
from godwit.engine.latency import LatencyMeter
from godwit.engine.outcomes import (
    counted_inputs,
    outcome_of,
    record_of,
    rows_by_source,
    rows_left_out,
    rows_unreadable,
)
from godwit.model import events
from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef, PhysicalPlan
    from godwit.engine.cluster import Cluster, SourceBatch
    from godwit.engine.latency import SourceLatency
    from godwit.engine.recovery import Recovery
    from godwit.engine.settings import Lanes
    from godwit.migration import Conductor, Copies, EpochOutcome, EpochPlan, Policy
    from godwit.migration.state import ProtocolView
    from godwit.plan.compiled import CompiledFlow

RowsT = TypeVar("RowsT")


def is_due(view: ProtocolView, times: EventTimes, *, clock_us: int, silence_us: int) -> bool:
    """Return whether an epoch without input has work now."""
    return view.due or (
        not view.holds
        and times.is_due(clock_us=clock_us, silence_us=silence_us, components=view.components)
    )


def is_pending(view: ProtocolView, times: EventTimes, *, clock_us: int, silence_us: int) -> bool:
    """Return whether an epoch without input has work, now or once key groups are resumed.

    While a migration stops the world, no executor is there, or key groups are suspended, nothing is
    due; and yet a query whose input has ended has not done its work.
    """
    return (
        view.waiting
        or view.due
        or times.is_due(clock_us=clock_us, silence_us=silence_us, components={})
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
    ) -> None:
        self.flow, self.log, self.run_id = recovery.flow, log, run_id
        self.cluster, self._on_regroup = cluster, on_regroup
        self.instructor = Instructor(
            self.flow, log, recovery.layouts, settings, on_loss=policy.on_loss, run_id=run_id
        )
        self.times = EventTimes(self.flow, recovery.times(log.latest), close_at_end=close_at_end)
        self._counting = counted_inputs(self.flow)
        self._latency = LatencyMeter(cluster.now_us())

    # -- between epochs ---------------------------------------------------------------------------

    @property
    def last_batch(self) -> BatchRef | None:
        """The last batch of source rows that is committed."""
        latest = self.log.latest
        return None if latest is None else latest.last_batch

    def is_due(self, view: ProtocolView) -> bool:
        """Return whether an epoch without input has work now."""
        return is_due(view, self.times, **self._clocks_us())

    def is_pending(self, view: ProtocolView) -> bool:
        """Return whether an epoch without input has work, now or once key groups are resumed."""
        return is_pending(view, self.times, **self._clocks_us())

    def end_input(self) -> None:
        """Mark the input as ended, so that open windows close."""
        self.times.end_input()

    def _clocks_us(self) -> dict[str, int]:
        """Return wall clock and monotonic clock, as keyword arguments."""
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
        """Wait a moment while epochs are held; ``False``: give the epoch up and try later."""
        return self.cluster.wait_while_held()

    def regroup(self, physical_plan: PhysicalPlan) -> None:
        """Continue under the conductor's physical plan, if it is another."""
        if physical_plan == self.flow.physical_plan:
            return
        self.log.use_plan(physical_plan)
        self.flow = self.flow.under(physical_plan)
        self.instructor.regrouped(self.flow)
        self.times.regrouped(self.flow)
        self._on_regroup(self.flow)

    def plan(
        self,
        epoch: int,
        batch: SourceBatch[RowsT] | None,
        plans: Mapping[str, EpochPlan],
        conductor: Conductor,
    ) -> None:
        """Plan an attempt: instruct the lanes by the components' plans."""
        self._batch, self._plans, self._planned_us = batch, plans, self._clocks_us()
        self._epoch_times = self.times.epoch_times(**self._planned_us, components=plans)
        self._instruction = self.instructor.epoch(
            epoch,
            plans,
            view=conductor.view,
            copies=conductor.copies,
            executors=self.cluster.executors,
            times=self._epoch_times,
        )

    def run_stages(self) -> None:
        """Run source side and lanes; nothing counts yet."""
        self._reports = self.cluster.run_stages(self._instruction, self._batch)
        for report in self._reports:
            if report.error is not None:
                raise report.error
        if senders_that_differ(self._reports):
            raise AttemptLostError(
                "After an executor was lost, an operator that asks others for what it emits ran "
                "again, and emitted other rows than some lanes have"
            )

    def commit(self) -> None:
        """Write the commit record."""
        times = self.times.after(self._epoch_times, self._reports)
        self._record = self.log.commit(
            record_of(
                self._instruction.epoch,
                self._reports,
                self._plans,
                run_id=self.run_id,
                batch=self.batch,
                before=self.last_batch,
                times=times,
                sinks=self.cluster.sink_records(),
            )
        )
        self.times.take(times, self._epoch_times, self._reports, self.cluster.monotonic_us())

    @property
    def batch(self) -> BatchRef | None:
        """The batch of source rows of the epoch at hand, if it has one."""
        return None if self._batch is None else self._batch.ref

    def outcome(self, copies: Copies) -> EpochOutcome:
        """Return the outcome of the committed epoch."""
        return outcome_of(
            self._record,
            self._reports,
            flow=self.flow,
            chains=self.log.chains,
            copies=copies,
            counting=self._counting,
        )

    def deliver(self) -> None:
        """Deliver the committed epoch to the sinks."""
        self.cluster.deliver(self._record)

    def latencies(self) -> dict[str, SourceLatency]:
        """Measure how long the rows of the delivered epoch took; source → latencies."""
        if self._batch is None:
            return {}
        planned_us = self._planned_us["clock_us"]
        ago_us = self.cluster.monotonic_us() - self._planned_us["silence_us"]
        given_us = dict.fromkeys(self.flow.sources, planned_us)
        ages: dict[str, list[LatencyHistogram]] = {}
        for report in self._reports:
            for source, of_lane in report.ages.items():
                ages.setdefault(source, []).append(of_lane)
        return self._latency.measure(
            self._batch.look or SourceLook(at_us=planned_us, nothing_us=given_us),
            rows_by_source(self._reports, self._counting),
            planned_us + ago_us,
            ages={source: LatencyHistogram.merged(parts) for source, parts in ages.items()},
            ago_s=ago_us / 1e6,
        )

    def remarks(self, outcome: EpochOutcome) -> list[tuple[type[events.Event], Mapping[str, Any]]]:
        """Return events on the rows that operators left out, and sources could not read."""
        left_out = rows_left_out(outcome.left_out, self.flow)
        unreadable = rows_unreadable(self._reports, self.flow)
        return [
            *((events.RowsLeftOut, {"epoch": outcome.epoch, **values}) for values in left_out),
            *((events.RowsUnreadable, {"epoch": outcome.epoch, **v}) for v in unreadable),
        ]

"""The epoch loop: the steps of an epoch, on every cluster and in the simulator.

The epoch protocol, step by step; a crash between any two steps loses nothing:

1. get the component views from the coordinator, waiting while epochs are held; instruct the lanes;
2. run the chain of stages: lanes write files that are not referenced yet, and report them;
3. commit: one record names the files that count. *This is the commit point.*
4. report the outcome to the coordinator and the observer (controller, policies, journal), and
   deliver the staged output to the sinks (again after a crash: sinks are idempotent by epoch);
5. return, and the source commits its own offsets. A batch that is offered again after its commit is
   skipped: its output was delivered when the run began.

With `beside`, step 4 delivers during steps 1 and 2 of the next epoch, on another thread. That epoch
commits only after the delivery has ended, and not at all if it failed: so deliveries come in the
order of epochs, and only the last committed epoch may be undelivered, as without `beside`
(`docs/design/engine-and-epochs.md`).

If an executor is lost before the commit, the loop reports it to the coordinator and retries the
attempt with the same batch; any other error is reported and raised. An epoch without input runs the
same steps without a source side: it processes waiting rows and lets migrations end
(`docs/design/engine-and-epochs.md`).

The loop is independent of the work of an epoch: instructions, lanes' reports and a commit record
for real rows (`godwit.engine.flow_epochs`), numbers in the simulator
(`docs/design/engine-and-epochs.md`).
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from godwit.checkpoint.object_store import RequestCounts, counting_requests
from godwit.engine.cluster import AttemptLostError
from godwit.engine.latency import merged_latency
from godwit.model import events
from godwit.model.log_lines import log_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from godwit.engine.latency import SourceLatency
    from godwit.migration.coordinator import Coordinator
    from godwit.migration.copies import Copies
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView

BatchT = TypeVar("BatchT")
_BatchT_contra = TypeVar("_BatchT_contra", contravariant=True)


class EpochLoop(Generic[BatchT]):
    """Runs the epochs of a run, one at a time."""

    at_step: Callable[[str, int], None] = staticmethod(lambda _step, _epoch: None)
    """Test hook; a no-op in production. Called with each step of an epoch that is done
    (``"planned"``, ``"staged"``: the lanes have written and reported, ``"committed"``,
    ``"delivered"``) and the epoch."""

    def __init__(
        self,
        epochs: Epochs[BatchT],
        coordinator: Coordinator,
        observer: EpochObserver,
        *,
        # begins a delivery during the next epoch's stages, and returns a function that waits for
        # its end and raises its error; ``None``: epochs end with their delivery
        beside: Callable[[Callable[[], None]], Callable[[], object]] | None = None,
    ) -> None:
        self._epochs, self._coordinator, self._observer = epochs, coordinator, observer
        self._beside = beside
        self._delivered: Callable[[], object] | None = None  # waits for the last delivery

    def run(self, batch: BatchT | None) -> EpochOutcome | None:
        """Run the next epoch with a batch (``None``: without input), and return its outcome.

        ``None`` if epochs are held and the cluster does not wait: then the same batch must be
        offered again.
        """
        with log_context(epoch=self._epochs.next_epoch), counting_requests() as requests:
            return self._run(batch, requests)

    def _run(self, batch: BatchT | None, requests: RequestCounts) -> EpochOutcome | None:
        """Run the next epoch; see `run`."""
        epochs, epoch = self._epochs, self._epochs.next_epoch
        stopwatch = Stopwatch(epochs.now_s, requests)
        while True:
            begun = self._begin(epoch)
            if begun is None:
                return None
            component_views, physical_plan = begun
            if self._attempt(epoch, batch, component_views, physical_plan, stopwatch):
                break
        took_s = stopwatch.took_ms()["epoch"] / 1e3
        self.at_step("committed", epoch)
        with self._coordinator.locked() as coordinator:
            outcome = epochs.outcome(coordinator.copies)
            coordinator.commit(outcome)
            waiting = sum(
                len(component.waiting) for component in coordinator.view.components.values()
            )
        self._observer.committed(outcome, component_views, took_s)
        deliver = partial(self._deliver, outcome, waiting, stopwatch)
        if self._beside is None:
            deliver()
        else:
            self._delivered = self._beside(partial(copy_context().run, deliver))
        return outcome

    def _begin(self, epoch: int) -> tuple[Mapping[str, ComponentView], Any] | None:
        """Begin an epoch once epochs may run; return component views and physical plan.

        ``None`` if the cluster does not wait for that.
        """
        while True:
            with self._coordinator.locked() as coordinator:
                component_views, physical_plan = coordinator.begin(epoch), coordinator.plan
            if component_views is not None:
                return component_views, physical_plan
            self.finish_delivery()
            if not self._epochs.wait_while_held():
                return None

    def _attempt(
        self,
        epoch: int,
        batch: BatchT | None,
        component_views: Mapping[str, ComponentView],
        physical_plan: Any,
        stopwatch: Stopwatch,
    ) -> bool:
        """Run an epoch up to its commit; return ``False`` if it must be retried."""
        epochs = self._epochs
        try:
            epochs.regroup(physical_plan)
            with stopwatch.phase("plan"), self._coordinator.locked() as coordinator:
                epochs.plan(epoch, batch, component_views, coordinator)
            self.at_step("planned", epoch)
            with stopwatch.phase("stages"):
                epochs.run_stages()
            self.at_step("staged", epoch)
            if self._delivered is not None:
                with stopwatch.phase("await_delivery"):
                    self.finish_delivery()
            with stopwatch.phase("commit"):
                epochs.commit()
        except BaseException as error:
            text = getattr(error, "message", str(error))
            reason, _, _java_stack = text.partition("\n\tat ")
            self._coordinator.abort(epoch, reason or repr(error))
            if isinstance(error, AttemptLostError):
                return False
            raise
        return True

    def _deliver(self, outcome: EpochOutcome, waiting: int, stopwatch: Stopwatch) -> None:
        """Deliver the committed epoch to the sinks, and report it; the next one may be running.

        `waiting`: number of key groups with waiting rows.
        """
        with stopwatch.phase("deliver"):
            self._epochs.deliver()
        self.at_step("delivered", outcome.epoch)
        stopwatch.stop()
        latencies = self._epochs.latencies()
        self._observer.delivered(outcome, stopwatch, latencies)
        with self._coordinator.locked() as coordinator:
            coordinator.announce(
                events.EpochCommitted,
                epoch=outcome.epoch,
                rows_in=outcome.rows_in,
                rows_out=outcome.rows_out,
                duration_ms=round(stopwatch.took_ms()["epoch"], 1),
                waiting_key_groups=waiting,
                latency_ms=merged_latency(latencies).figures_ms(),
                watermarks={name: us // 1000 for name, us in outcome.watermarks.items()},
            )
            for kind, values in self._epochs.remarks(outcome):
                coordinator.announce(kind, **values)

    def finish_delivery(self) -> None:
        """Wait until the last committed epoch is delivered; raise the delivery's error, if any."""
        delivered = self._delivered
        if delivered is not None:
            try:
                delivered()
            finally:
                self._delivered = None


class Epochs(Protocol[_BatchT_contra]):
    """Port of the loop to the epochs of a run: plan, run stages, commit, deliver.

    `plan` begins an attempt at an epoch; the methods up to `outcome` concern the last attempt, and
    are called once each, in this order. The methods after them are called once for every committed
    epoch, before the next commit; an attempt at the next epoch may be running meanwhile.
    """

    @property
    def next_epoch(self) -> int:
        """Number of the epoch after the last committed one."""

    def now_s(self) -> float:
        """Return a monotonic time in seconds."""

    def wait_while_held(self) -> bool:
        """Wait briefly while epochs are held.

        Return ``False`` to abort the epoch and retry later.
        """

    def regroup(self, physical_plan: Any) -> None:
        """Continue under a physical plan, if it differs from the present one."""

    def plan(
        self,
        epoch: int,
        batch: _BatchT_contra | None,
        component_views: Mapping[str, ComponentView],
        coordinator: Coordinator,
    ) -> None:
        """Prepare an attempt from the component views; the coordinator is locked."""

    def run_stages(self) -> None:
        """Run the source side and the lanes; nothing is committed.

        Raises `AttemptLostError` if the attempt must be retried.
        """

    def commit(self) -> None:
        """Commit the epoch's work, durably and atomically."""

    def outcome(self, copies: Copies) -> EpochOutcome:
        """Return the outcome of the committed epoch; `copies`: copies on executors before it."""

    def deliver(self) -> None:
        """Deliver the committed epoch to the sinks."""

    def latencies(self) -> Mapping[str, SourceLatency]:
        """Return source → latencies of its rows in the epoch; called after the delivery."""

    def remarks(
        self, outcome: EpochOutcome
    ) -> Iterable[tuple[type[events.Event], Mapping[str, Any]]]:
        """Return kinds and fields of further events to announce of the epoch."""


class EpochObserver(Protocol):
    """Port that observes the epochs of a run."""

    def committed(
        self,
        outcome: EpochOutcome,
        component_views: Mapping[str, ComponentView],
        took_s: float,
    ) -> None:
        """Observe an epoch that is committed and not delivered yet.

        `component_views`: component → how it ran. `took_s`: from the start of the first attempt to
        the commit.
        """

    def delivered(
        self, outcome: EpochOutcome, stopwatch: Stopwatch, latencies: Mapping[str, SourceLatency]
    ) -> None:
        """Observe an epoch that is delivered, just before its event; `latencies`: by source.

        Called on the delivering thread, perhaps during the next epoch.
        """


class Stopwatch:
    """Times the phases of one epoch by a monotonic clock.

    `requests`: counts the driver's requests to the checkpoint's object store.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.perf_counter,
        requests: RequestCounts | None = None,
    ) -> None:
        self.began = datetime.now(UTC)
        self.requests = RequestCounts() if requests is None else requests
        self._now_s, self._started_s = now_s, now_s()
        self._took_ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context that measures a phase; times of a repeated phase are added."""
        started_s = self._now_s()
        try:
            with log_context(phase=name):
                yield
        finally:
            spent = (self._now_s() - started_s) * 1e3
            self._took_ms[name] = self._took_ms.get(name, 0.0) + spent

    def took_ms(self) -> dict[str, float]:
        """Return phase → milliseconds; ``epoch``: from the start until now, or until `stop`."""
        return {"epoch": (self._now_s() - self._started_s) * 1e3, **self._took_ms}

    def spent_s(self, sink_s: Mapping[str, float], *, in_series: bool) -> dict[str, float]:
        """Return phase → seconds until the next epoch could begin, sinks as ``sink 'name'``.

        `sink_s`: sink → seconds of its delivery. `in_series`: whether the next epoch waits for
        that. If not, the wait for the delivery before counts, as time of the slowest sink.
        """
        spent_s = {phase: ms / 1e3 for phase, ms in self._took_ms.items() if phase != "epoch"}
        waited_s, _ = spent_s.pop("await_delivery", 0.0), spent_s.pop("deliver", 0.0)
        if in_series:
            return spent_s | {f"sink {name!r}": took_s for name, took_s in sink_s.items()}
        slowest = max(sink_s, key=lambda name: sink_s[name], default="")
        return spent_s | ({f"sink {slowest!r}": waited_s} if slowest else {})

    def stop(self) -> None:
        """Stop the clock."""
        self._took_ms = self.took_ms()

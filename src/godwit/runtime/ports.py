"""Ports of a run: its cluster beside the epochs, session, executors, controller and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from godwit.engine.cluster import Cluster, ExecutorPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef
    from godwit.engine.policies import FlowEpoch, Proposal
    from godwit.migration.coordinator import Coordinator
    from godwit.model.latency import LatencyHistogram
    from godwit.operators.hot_key_orders import SpreadKeyOver, SpreadOrders
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.explain import UserNames
    from godwit.runtime.threads import DaemonPool


class JobSession(Protocol):
    """The session in which threads of a run start jobs."""

    @property
    def is_stopped(self) -> bool:
        """True if the session was stopped, or its process has ended."""

    def check(self, flow: str) -> None:
        """Raise `EpochFailedError` if the session was stopped; quick, called between epochs."""

    def use_this_thread(self, flow: str) -> None:
        """Prepare the calling thread to start jobs of the run."""

    def cancel_jobs(self) -> None:
        """Cancel the jobs that such threads have started; no-op if the session was stopped."""


class RunCluster(Cluster[Any], Protocol):
    """A cluster as a run uses it."""

    @property
    def beside(self) -> DaemonPool:
        """Threads for work beside the epochs."""

    @property
    def delivery_s(self) -> Mapping[str, float]:
        """Sink → seconds that the last epoch's delivery to it took."""

    def resident_status(self) -> dict[str, Any]:
        """Return the fields of resident lanes in the status of a query."""

    def batch_committed(self, rows: int) -> int | None:
        """Record the commit of the last batch; return how many of its `rows` a micro-batch had.

        ``None`` if the batch has no micro-batch.
        """

    def end_resident(self, reason: str) -> None:
        """End the resident lanes, if there are any."""


class ScalablePool(ExecutorPool, Protocol):
    """Executors that users, too, add and remove."""

    @property
    def total(self) -> int | None:
        """Number of executors requested in all; ``None`` before the first request."""

    @property
    def is_changing(self) -> bool:
        """True while requested executors have not joined, or released ones have not ended."""

    @property
    def returned(self) -> frozenset[str]:
        """Names of executors that were released, whether or not they have ended."""

    @property
    def staying(self) -> tuple[str, ...]:
        """Names of executors that are neither draining nor being released."""

    def add(self, count: int, patience_s: float | None = None) -> None:
        """Request `count` more executors, and wait up to `patience_s` seconds in the background."""

    def keep(self, executor: str) -> None:
        """Cancel the release of an executor that has not been released yet."""

    def withdraw(self) -> None:
        """Cancel requests for executors that have not joined."""

    def check_can_scale(self) -> None:
        """Raise `ScalingError`, with a remedy, if executors cannot be added or removed here."""


class ChangedRun(Protocol):
    """A run whose key groups, components and hot keys users change on request.

    It is what `QueryPlacement`, `QueryComponents` and `QueryHotKeys` look at and change: the run of
    a query, or one in this process. A repartitioning may replace its coordinator.
    """

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of migrations and regroupings."""

    @property
    def flow(self) -> CompiledFlow:
        """The flow, under its present physical plan."""

    @property
    def log(self) -> CommitLog:
        """Commit log of the checkpoint."""

    @property
    def names(self) -> UserNames:
        """Names of operators and components as users know them."""

    @property
    def spreading(self) -> Mapping[str, SpreadOrders]:
        """Operator → requests to divide its hot keys, for operators that allow it."""

    def state_bytes(self, component: str) -> npt.NDArray[np.int64]:
        """Return the bytes of state of each key group of a component, by its number."""

    def divide(self, change: SpreadKeyOver) -> bool:
        """Request other numbers of parts for a key; ``False`` if that is impossible now."""

    def manual_change(self, changes: Iterable[str]) -> AbstractContextManager[Callable[..., None]]:
        """Context in which a user makes changes; see `RunPolicies.manual_change`."""

    def repartition(self, columns: Mapping[str, Any]) -> None:
        """Change the columns that place the rows of operators; return once epochs run again."""

    def carry_on(self) -> None:
        """Run epochs until requested changes have ended, where nothing else does."""


class ControlSettings:
    """Settings of a controller, as ``flow.start(control=...)`` takes them."""

    __slots__ = ()


class AdaptationSettings:
    """Settings of policies about operators, as ``flow.start(adaptation=...)`` takes them."""

    __slots__ = ()


class RunController(Protocol):
    """A controller that moves key groups and scales, on a thread of its own."""

    backlog_rows: Callable[[], int | None]
    """Returns the backlog of the sources in rows; ``None`` if they do not report it."""

    @property
    def memory(self) -> Any:
        """State from which the next controller of the run continues."""

    @property
    def status(self) -> Mapping[str, Any]:
        """State for ``query.status``."""

    def now_s(self) -> float:
        """Return the time by the controller's clock."""

    def epoch_begun(self, rows: int, backlog_rows: int | None) -> None:
        """Record that an epoch began with `rows` rows, and sources had `backlog_rows` besides."""

    def epoch_committed(self, epoch: FlowEpoch, batch: BatchRef | None, rows: int) -> None:
        """Record a committed epoch; `batch`: its micro-batch, which has `rows` rows."""

    def epoch_delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """Record the latency of a delivered epoch's rows, and its time by phase and sink."""

    def regrouped(self, flow: CompiledFlow) -> None:
        """Record that components have changed."""

    def close(self) -> None:
        """Stop the controller."""


class RunPolicies(Protocol):
    """Policies about a run's operators, called between its epochs."""

    def observe(self, epoch: FlowEpoch) -> None:
        """Pass a committed epoch to the policies, and carry out their proposals; never raises."""

    def take_repartitioning(self) -> Proposal | None:
        """Return the decided change of an operator's columns, and clear it; ``None`` if none is."""

    def manual_change(self, changes: Iterable[str]) -> AbstractContextManager[Callable[..., None]]:
        """Context in which a user makes changes, texts of `ManualChange`; no policy acts in it.

        Call the yielded function once the changes are made, or with the id of their regrouping
        once it is requested: then the controller and all policies leave them alone for a while.
        """

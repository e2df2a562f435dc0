"""A running flow: ``StreamingQuery``'s names, and what is Godwit's own by composition.

`Query.placement`, `Query.scaling` and `Query.components` do what concerns them; the verbs of every
day are on the query too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.query.failures import epoch_failed
from godwit.cluster.spark.query.hot_keys import QueryHotKeys
from godwit.cluster.spark.query.placement import Migration, QueryPlacement
from godwit.cluster.spark.query.regrouping import QueryComponents
from godwit.cluster.spark.query.scaling import QueryScaling
from godwit.cluster.spark.run.lifecycle import Ending
from godwit.cluster.spark.run.threads import close_all
from godwit.engine.outcomes import state_bytes
from godwit.migration import Strategy
from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.model.frames import user_call
from godwit.model.naming import NoSuchCallError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from godwit.cluster.spark.observe.dispatcher import EventDispatcher
    from godwit.cluster.spark.observe.metrics import MetricsServer
    from godwit.cluster.spark.query.placement import AnyPlan, AnyStrategy
    from godwit.cluster.spark.query.scaling import Scaling
    from godwit.cluster.spark.run.lifecycle import EpochDriver
    from godwit.cluster.spark.run.run import SparkRun
    from godwit.migration import Bounds
    from godwit.model.events import Event
    from godwit.planning import Limits

__all__ = ["Migration", "Query", "end_terminated", "is_running"]

_ENDING_S = 15.0
_open: set[Query] = set()
"""Queries of this process that hold the lease on a checkpoint."""


def end_terminated() -> None:
    """Wait for queries that are ending, perhaps because they have failed, to let go of all."""
    for query in list(_open):
        if query._gate.closed:  # noqa: SLF001  of the class below
            query._ending.finish(_ENDING_S)  # noqa: SLF001


def is_running(name: str) -> bool:
    """Return whether a query of this process has a name."""
    return any(query.name == name and query.isActive for query in _open)


_JOURNAL_S = 2.0


_MOVED = {
    "assignment": "placement.assignments",
    "problem": "placement.problem",
    "preview": "placement.preview",
    "carry_out": "placement.carry_out",
    "regroup": "components.regroup",
    "plan_regrouping": "components.plan_regrouping",
}
"""Former attributes of a query → where they are."""


class Query:
    """A running flow.

    The names and habits are those of ``pyspark.sql.streaming.StreamingQuery``.

    Attributes
    ----------
    placement
        Where key groups are, what a planner would do about it, and migrations.
    scaling
        The number of executors, changed by hand.
    components
        Which operators share a component, and regroupings.
    hot_keys
        Hot keys of joins with ``spread=``, divided among lanes by hand.
    """

    def __init__(
        self,
        flow_name: str,
        *,
        name: str,
        run: SparkRun,
        driver: EpochDriver,  # calls for the epochs
        dispatcher: EventDispatcher,
        metrics: MetricsServer | None = None,
    ) -> None:
        self._flow_name, self._name = flow_name, name
        self._run, self._gate, self._driver = run, run.gate, driver
        self._dispatcher, self._metrics = dispatcher, metrics
        self._ending = Ending(
            gate=run.gate,
            driver=driver,
            dispatcher=dispatcher,
            cancel=run.cancel_jobs,
            close=self._close_run,
        )
        dispatcher.sample("sources", driver.sources)
        if run.controller is not None:
            run.controller.backlog_rows = driver.rows_held_back
        self.placement = QueryPlacement(
            name,
            conducting=run.conducting,
            state_bytes=self._state_bytes,
            controller=run.controller,
            names=run.names,
        )
        self.scaling = QueryScaling(
            self.placement,
            pool=run.pool,
            conducting=run.conducting,
            controller=run.controller,
        )
        self.components = QueryComponents(run)
        self.hot_keys = QueryHotKeys(run)
        _open.add(self)
        driver.begin(self._ending)

    def __repr__(self) -> str:
        return f"<Query {self._flow_name!r}: {self.status['message']}>"

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                message = f"A query has no attribute {name!r}"
                raise AttributeError(message)
            if name in _MOVED:
                remedy = f"Use query.{_MOVED[name]}."
            else:
                known = [known for known in dir(type(self)) if not known.startswith("_")]
                parts = ("placement", "scaling", "components")
                remedy = f"{did_you_mean(name, [*known, *parts])}See dir(query)."
            raise NoSuchCallError(f"A query has no {name!r}.", remedy=remedy, call=name)

    # -- StreamingQuery -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the query."""
        return self._name

    @property
    def id(self) -> str:
        """Identifier of the query, the same over restarts from one checkpoint."""
        return self._driver.id

    @property
    def runId(self) -> str:  # noqa: N802  StreamingQuery's name
        """Identifier of this run."""
        return self._run.run_id

    @property
    def isActive(self) -> bool:  # noqa: N802  StreamingQuery's name
        """True while the query runs."""
        return not self._ending.finished

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query, with the last committed epoch and what is on the move."""
        status = self._driver.status()
        view = self._run.view
        status["committedEpoch"] = self._run.log.latest_epoch
        status["executors"] = sorted(view.executors)
        status["held"] = list(view.holds)
        status["components"] = {n: list(ops) for n, ops in self.components.operators.items()}
        status["keyGroupsInFlight"] = sum(len(c.transfers) for c in view.components.values())
        status["keyGroupsWaiting"] = sum(len(c.waiting) for c in view.components.values())
        if self._run.controller is not None:
            status["control"] = dict(self._run.controller.status)
        status["keyGroupsSuspended"] = sum(len(c.suspended) for c in view.components.values())
        resident = self._run.cluster.resident
        status["residentLanes"] = 0 if resident is None else resident.lanes
        status["residentEpochs"] = 0 if resident is None else resident.epochs
        with self._run.conducting.locked() as conductor:
            checkpoint, peers = conductor.copies_bytes_per_s
        status["copies"] = {"checkpointBytesPerS": checkpoint, "peersBytesPerS": peers}
        return status

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  StreamingQuery's name
        """Figures of the last epochs (see `godwit.engine.outcomes.progress_of`).

        Those of a micro-batch have ``sources`` too, once Spark has noted its end: offsets, and how
        far behind the source it was, as Spark knows them.
        """
        return self._driver.with_sources(self._run.progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  StreamingQuery's name
        """Figures of the last epoch."""
        latest = self._driver.with_sources(self._run.progress[-1:])
        return latest[0] if latest else None

    @user_call
    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query stops, by `stop` or by an error.

        Parameters
        ----------
        timeout
            Seconds; then the return value says whether it has stopped.

        Raises
        ------
        GodwitError
            If the query failed.
        """
        ended = self._driver.wait(timeout)
        failure = self.exception() if ended else None
        if failure is not None:
            raise failure
        return None if timeout is None else ended

    @user_call
    def processAllAvailable(self) -> None:  # noqa: N802  StreamingQuery's name
        """Wait until everything that is available now has been processed and delivered.

        No row waits for its key group either when this returns.

        Raises
        ------
        GodwitError
            If the query failed.
        """
        try:
            self._driver.process_all_available()
        except Exception as error:  # noqa: BLE001  it is raised again, explained
            self._ending.finish()
            raise self._explained(error) from None
        failure = self.exception()
        if failure is not None:
            self._ending.finish()
            raise failure

    @user_call
    def stop(self) -> None:
        """Stop after the epoch that runs now; the checkpoint is ready to be resumed.

        An epoch that goes on for more than some seconds is broken off: nothing of it was committed,
        and it is carried out again when the flow is started again. May be called from anywhere, and
        more than once; called within an epoch or by a listener it returns at once, and the query
        stops after it.

        Raises
        ------
        StopTimeoutError
            If the query has not stopped after some seconds, since what it waits for neither ends
            nor can be interrupted.
        EndingError
            If it has stopped, and a part of it could not be stopped or closed, such as a sink.
        """
        self._ending.stop()

    def exception(self) -> GodwitError | None:
        """Return why the query failed; ``None`` if it did not."""
        failure = self._gate.failure
        if failure is None and not self._gate.cut_short and not self._driver.is_active:
            failure = self._driver.failure()
        return None if failure is None else self._explained(failure)

    def _explained(self, error: BaseException) -> GodwitError:
        """Return Godwit's error behind one of Spark's."""
        cause = self._gate.failure or error
        if isinstance(cause, GodwitError):
            return cause
        return epoch_failed(self._flow_name, cause)

    def _close_run(self, problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Close everything and tell the end; returns the problems, with those of closing."""
        problems = [*problems, *self._run.close()]
        metrics = [] if self._metrics is None else [("the port of metrics", self._metrics.close)]
        late = close_all(
            [
                ("the story of the run", lambda: self._announce_end(problems)),
                # While the checkpoint is still ours.
                ("the journal", lambda: self._dispatcher.stop_recording(_JOURNAL_S)),
                *metrics,
                ("the claim on the checkpoint", self._run.release),
            ]
        )
        _open.discard(self)
        return problems + late

    def _announce_end(self, problems: list[tuple[str, str]]) -> None:
        """Announce how the query ended, and the problems in closing it."""
        failure = self.exception()
        with self._run.conducting.locked() as conductor:
            for what, error in problems:
                conductor.announce(events.BackgroundFailed, what=what, error=error)
            if failure is None:
                conductor.announce(events.QueryStopped, name=self._flow_name)
            else:
                conductor.announce(events.QueryFailed, name=self._flow_name, error=str(failure))

    def explain(self) -> None:
        """Print how the flow runs now: as `Flow.explain`, under today's components."""
        sys.stdout.write(self.components.explain() + "\n")

    # -- state and executors: the verbs of every day ------------------------------------------

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors that are alive."""
        return self.placement.executors

    @user_call
    def migrate(
        self,
        plan: AnyPlan,
        *,
        component: str | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Move key groups to other executors while the stream flows.

        See `QueryPlacement.migrate`, which takes the same.
        """
        return self.placement.migrate(plan, component=component, strategy=strategy, bounds=bounds)

    @user_call
    def balance(
        self,
        planner: str = "milp",
        *,
        component: str | None = None,
        limits: Limits | None = None,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
        **options: Any,
    ) -> Migration | None:
        """Plan once on the load there is now, and carry the plan out.

        See `QueryPlacement.balance`, which takes the same.
        """
        return self.placement.balance(
            planner, component=component, limits=limits, strategy=strategy, bounds=bounds, **options
        )

    @user_call
    def drain(
        self,
        executor: str,
        *,
        strategy: AnyStrategy | None = None,
        bounds: Bounds | None = None,
    ) -> tuple[Migration, ...]:
        """Empty an executor, and let nothing move onto it any more.

        See `QueryPlacement.drain`, which takes the same.
        """
        return self.placement.drain(executor, strategy=strategy, bounds=bounds)

    @user_call
    def scale(
        self,
        executors: int,
        *,
        planner: str = "milp",
        strategy: AnyStrategy = Strategy.LIVE,
        bounds: Bounds | None = None,
        timeout_s: float | None = None,
    ) -> Scaling:
        """Change the number of executors, while the stream runs.

        See `QueryScaling.scale`, which takes the same.
        """
        return self.scaling.scale(
            executors, planner=planner, strategy=strategy, bounds=bounds, timeout_s=timeout_s
        )

    # -- what happens -------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """The last 10,000 events, oldest first, as a value.

        May be asked for from any thread at any time, also once the query has ended.
        """
        return self._dispatcher.events

    @property
    def metrics_url(self) -> str | None:
        """Address of the metrics for Prometheus; ``None`` where they are not served."""
        return None if self._metrics is None else self._metrics.url

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event from now on, in order.

        Every listener has a thread of its own, so events arrive a little later than they happen,
        and one that waits holds up nobody else. A listener may do anything, `migrate` and `stop`
        included; if it raises, that is logged and told by `ListenerFailed`, once for each kind of
        error, and disturbs nobody. Of one that is 10,000 events behind, the oldest are dropped.
        """
        self._dispatcher.add_listener(listener)

    def _state_bytes(self, component: str) -> npt.NDArray[np.int64]:
        """Bytes of state of each key group of a component."""
        with self._run.conducting.locked() as conductor:
            states = conductor.copies.states(component)
        with self._run.log.lock:
            return state_bytes(states, self._run.log.chains)

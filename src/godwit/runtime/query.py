"""A running flow, with the methods of ``StreamingQuery`` and those for placement and scaling.

Verbs (`Query.migrate`, `Query.balance`, `Query.drain`, `Query.scale`) are methods of the query.
Plans, assignments, components and hot keys are in `Query.placement`, `Query.components` and
`Query.hot_keys`.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from godwit.migration.strategy import Strategy
from godwit.model import events, plugins
from godwit.model.errors import GodwitError, InvalidFlowError
from godwit.model.frames import user_call
from godwit.model.log_lines import name_queries
from godwit.model.naming import NoSuchCallError, check_number, did_you_mean
from godwit.model.text import Link, facts, show, text_block
from godwit.runtime.entry_points import AnswersStates
from godwit.runtime.failures import epoch_failed
from godwit.runtime.hot_keys import QueryHotKeys
from godwit.runtime.lifecycle import Ending, EndingSignals, RequestWatch
from godwit.runtime.placement import Migration, QueryPlacement
from godwit.runtime.regrouping import QueryComponents
from godwit.runtime.scaling import QueryScaling
from godwit.runtime.threads import close_all, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from godwit.migration.strategy import Bounds
    from godwit.model.events import Event
    from godwit.ops.query_state import QueryState, QueryStates
    from godwit.placement import Limits
    from godwit.runtime.dispatcher import EventDispatcher
    from godwit.runtime.entry_points import Observer
    from godwit.runtime.lifecycle import EpochDriver
    from godwit.runtime.placement import AnyPlan, AnyStrategy
    from godwit.runtime.run import QueryRun
    from godwit.runtime.scaling import Scaling

_ENDING_S = 15.0
_LOOK_UPS = "godwit.ops.query_state"
_open: set[Query] = set()
"""Queries of this process that hold the lease on a checkpoint."""


def end_terminated(name: str) -> None:
    """Wait until ended or failed queries of this process have closed everything.

    Spark's query of the name that is to start may have been stopped apart from ours.
    """
    for query in list(_open):
        if query._name == name and not query._driver.is_active:  # noqa: SLF001  of the class below
            query._driver.wait(_ENDING_S)  # noqa: SLF001
        if query._gate.closed:  # noqa: SLF001  of the class below
            query._ending.finish(_ENDING_S)  # noqa: SLF001


def _end_at_exit() -> None:
    """End the queries that still run when the program ends; each finishes its epoch."""
    for query in [] if _hurried else list(_open):
        with suppress(Exception):  # the query's own thread, of a process that was forked
            query._ending.finish_here()  # noqa: SLF001  of the class below


_hurried: list[int] = []
"""Signals that asked for the end of the process at once: nothing is waited for."""
atexit.register(_end_at_exit)


def is_running(name: str) -> bool:
    """Return whether a query of this name is active in this process."""
    return any(query._name == name and query.isActive for query in _open)  # noqa: SLF001  see above


def end_on_signals(queries: Iterable[Query], signals: EndingSignals) -> None:
    """End queries, since a signal has asked for it; a second signal does not wait."""
    queries = list(queries)
    for query in queries:
        query._ending.finish(0)  # noqa: SLF001  of the class below
    for query in queries:
        signals.wait(query._ending.finish, _ENDING_S)  # noqa: SLF001
    _hurried.extend(signals.asked[1:])


def open_queries() -> list[Query]:
    """Return the queries of this process that hold the lease on a checkpoint."""
    return sorted(_open, key=lambda query: query.name)


def _only_query() -> str | None:
    """Return the name of the query of this process, if it has exactly one."""
    names = [query.name for query in list(_open)]
    return names[0] if len(names) == 1 else None


name_queries(_only_query)

_JOURNAL_S = 2.0
_PARTS = {
    "placement": QueryPlacement,
    "scaling": QueryScaling,
    "components": QueryComponents,
    "hot_keys": QueryHotKeys,
}


class Query:
    """A running flow.

    Godwit makes it: `Flow.start` returns it. Properties and methods of
    ``pyspark.sql.streaming.StreamingQuery`` have the same names and meaning here. Use it in a
    ``with`` statement to stop it whatever happens: at the end of the block `stop` is called; if the
    query failed meanwhile and the block raised nothing, its error is raised. A query that still
    runs at the end of the program is stopped too.

    Attributes
    ----------
    placement
        Assignments of key groups, plans for them, and migrations.
    scaling
        The last change of the number of executors on request.
    components
        Operators of each component, and changes of them (regrouping).
    hot_keys
        Hot keys of joins with ``spread=`` and of ``process`` with ``merge=``: divides their rows
        among lanes on request.

    Examples
    --------
    >>> query = flow.start(checkpoint="ck/")  # doctest: +SKIP
    >>> query.awaitTermination(timeout=60)  # doctest: +SKIP
    >>> query.stop()  # doctest: +SKIP
    >>> hasattr(gw.types.Query, "recentProgress")  # as a StreamingQuery of Spark's has
    True
    """

    def __init__(
        self,
        flow_name: str,
        *,
        name: str,
        run: QueryRun,
        driver: EpochDriver,  # calls for the epochs
        dispatcher: EventDispatcher,
        observers: Mapping[str, Observer],
    ) -> None:
        self._flow_name, self._name = flow_name, name
        self._run, self._gate, self._driver = run, run.gate, driver
        self._dispatcher, self._observers = dispatcher, dict(observers)
        self._ending = Ending(
            gate=run.gate,
            driver=driver,
            dispatcher=dispatcher,
            cancel=run.session.cancel_jobs,
            close=self._close_run,
        )
        dispatcher.record_samples("sources", driver.sources)
        run.ask_backlog(driver.rows_held_back)
        self.placement = QueryPlacement(name, run)
        self.scaling = scaling = QueryScaling(self.placement, run)
        run.is_scaling = lambda: scaling.is_under_way
        self.components = QueryComponents(run)
        self.hot_keys = QueryHotKeys(run)
        for observer in self._observers.values():
            if isinstance(observer, AnswersStates):
                observer.answer_states(self.state)
        _open.add(self)
        self._requests = RequestWatch(run, driver, self._ending)
        driver.begin(self._ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the query; raise its failure, or what `stop` raises, unless the block raised."""
        with suppress(*([] if error is None else [GodwitError])):
            self.stop()
            failure = self.exception()
            if failure is not None:
                raise failure

    def __repr__(self) -> str:
        return f"<Query {self._flow_name!r}: {self.status['message']}>"

    def _repr_html_(self) -> str:
        """Return the query's present status as HTML, for notebooks."""
        status, failure = self.status, self.exception()
        latest = self._run.progress[-1] if self._run.progress else {}
        return facts(
            f"Query {self._name!r} of flow {self._flow_name!r}",
            [
                ("status", status["message"]),
                ("failed", "" if failure is None else failure),
                ("committed epoch", status["committedEpoch"]),
                ("rows in it", latest.get("numInputRows")),
                ("rows a second", f"{latest.get('processedRowsPerSecond', 0.0):,.0f}"),
                ("executors", ", ".join(status["executors"])),
                ("operators", ", ".join(self.components.operators)),
                *(
                    (f"key groups {what}", status[f"keyGroups{name}"] or "")
                    for what, name in (
                        ("on the move", "InFlight"),
                        ("waiting", "Waiting"),
                        ("suspended", "Suspended"),
                    )
                ),
                ("live page", Link(self.ui_url or "")),
                ("metrics", Link(self.metrics_url or "")),
            ],
        )

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                message = f"A query has no attribute {name!r}"
                raise AttributeError(message)
            owners = [part for part, owner_class in _PARTS.items() if hasattr(owner_class, name)]
            known = [*_PARTS, *(known for known in dir(self) if not known.startswith("_"))]
            remedy = f"{did_you_mean(name, known)}See dir(query)."
            if owners:
                remedy = f"Use query.{owners[0]}.{name}."
            raise NoSuchCallError(f"A query has no {name!r}.", remedy=remedy, call=name)

    # -- StreamingQuery -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the query.

        Examples
        --------
        >>> query.name
        'delays'
        """
        return self._name

    @property
    def id(self) -> str:
        """Identifier of the query, which stays the same over restarts from one checkpoint.

        Examples
        --------
        >>> len(query.id)
        36
        """
        return self._driver.id

    @property
    def runId(self) -> str:  # noqa: N802  StreamingQuery's name
        """Identifier of this run, new at every start.

        Examples
        --------
        >>> query.runId != query.id
        True
        """
        return self._run.run_id

    @property
    def isActive(self) -> bool:  # noqa: N802  StreamingQuery's name
        """True while the query runs; false once it has stopped or failed, and is closed.

        Examples
        --------
        >>> query.isActive
        True
        """
        return not self._ending.finished

    @property
    def status(self) -> dict[str, Any]:
        """Present status of the query, as a dict.

        It has Spark's fields (``message``, ``isDataAvailable``, ``isTriggerActive``), and among
        others ``committedEpoch`` (number of the last committed epoch), ``executors``,
        ``components``, ``keyGroupsInFlight`` (number of key groups that are being copied for a
        move), ``keyGroupsWaiting`` (with rows that wait) and, with a controller, ``control``.

        Examples
        --------
        >>> query.status["executors"], query.status["keyGroupsWaiting"]
        (['local-0', 'local-1'], 0)
        """
        status = self._driver.status()
        view = self._run.view
        status["committedEpoch"] = self._run.log.latest_epoch
        status["executors"] = sorted(view.executors)
        status["held"] = list(view.holds)
        status["components"] = {n: list(ops) for n, ops in self.components.operators.items()}
        status["keyGroupsInFlight"] = sum(
            len(component.transfers) for component in view.components.values()
        )
        status["keyGroupsWaiting"] = sum(
            len(component.waiting) for component in view.components.values()
        )
        if self._run.controller is not None:
            status["control"] = dict(self._run.controller.status)
        status["keyGroupsSuspended"] = sum(
            len(component.suspended) for component in view.components.values()
        )
        status.update(self._run.cluster.resident_status())
        with self._run.coordinator.locked() as coordinator:
            checkpoint, peers = coordinator.copies_bytes_per_s
        status["copies"] = {"checkpointBytesPerS": checkpoint, "peersBytesPerS": peers}
        return status

    def health(
        self, *, max_epoch_s: float = 600.0, max_rows_behind: int | None = None
    ) -> dict[str, Any]:
        """Return whether the query makes progress, and whether it is as far as it should be.

        The ports of metrics and of the live page answer the same as ``/livez`` and ``/readyz``.

        Parameters
        ----------
        max_epoch_s
            Longest time, in seconds, that an epoch may last, and that a source may not answer.
        max_rows_behind
            Largest backlog of the sources, in rows, with which the query is ready; ``None``: any.

        Returns
        -------
        dict
            ``alive``: it has not failed, and nothing lasts longer than `max_epoch_s`. ``ready``: it
            is alive, does not end, has recovered or committed an epoch, and is not too far behind.
            ``reasons``: sentences, why not. ``epoch``: the last committed one (-1: none).
            ``epochRunsS``: seconds that the present epoch has lasted. ``rowsBehind``: backlog in
            rows; ``None`` if unknown.

        Examples
        --------
        >>> query.health()["alive"]
        True
        """
        failure, epoch = self._gate.failure, self._run.log.latest_epoch
        runs_s, behind = self._gate.epoch_runs_s, self._driver.rows_held_back()
        stuck, late = [], []
        if failure is not None:
            stuck.append(f"the query has failed: {one_line(failure)}")
        if runs_s > max_epoch_s:
            stuck.append(f"an epoch has lasted for {runs_s:.0f} s")
        elif (silent_s := self._driver.silent_s) > max_epoch_s:
            stuck.append(f"the loop of epochs has not gone round for {silent_s:.0f} s")
        if self._gate.is_closing:
            late.append("the query ends")
        if epoch < 0:
            late.append("no epoch is committed yet")
        if max_rows_behind is not None and behind is None:
            late.append("the backlog of the sources is not known")
        elif max_rows_behind is not None and behind is not None and behind > max_rows_behind:
            late.append(f"the query is {behind:,} rows behind")
        return {
            "alive": not stuck,
            "ready": not (stuck or late),
            "reasons": [*stuck, *late],
            "epoch": epoch,
            "epochRunsS": round(runs_s, 1),
            "rowsBehind": behind,
        }

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  StreamingQuery's name
        """Progress of the last epochs, oldest first, as a dict of figures for each.

        It has the last 1,000 epochs, or as many as Spark's setting
        ``spark.sql.streaming.numRecentProgressUpdates`` says.

        Notes
        -----
        - the epoch: ``epoch``, ``batchId`` (Spark's micro-batch; ``None`` without input),
          ``timestamp`` (UTC), ``durationMs`` (per phase, and ``epoch``), ``laneMs`` (per phase of
          the lanes, summed over them), ``requests`` (to the checkpoint's object store)
        - ``sources``: positions and lag, of Spark's sources once Spark has recorded the end
        - rows: ``numInputRows`` (after the DataFrame maps), ``numOutputRows``,
          ``processedRowsPerSecond``, ``latencyMs`` (of all rows, and of each source), ``sinkRows``
          and ``sinkMs`` (sink → rows; time of its delivery), ``crossedBytes`` (sent between
          operators on different executors), ``streams`` (rows and bytes from operator to operator)
        - event time: ``watermarks`` (source, or ``<source>/<operator>`` where a map computes a new
          event time), ``queryWatermark`` (of an adopted query), ``leftOutRows`` (operator →
          ``late``, ``ahead``, ``untimed``)
        - keys: ``numKeys`` (with rows), ``loads`` (component → key groups, rows, keys, CPU time),
          ``hotKeys`` (operator → key → its share), ``heldTwice`` (operator → keys in two slots)
        - state: ``stateBytes`` (of key groups with rows), ``totalStateBytes`` (component → bytes),
          ``changelogBytes``, ``snapshotBytes``, ``unreadStateBytes`` (that lanes have still to
          read); with a bound on memory ``stateTableBytes``, ``evictedKeyGroups``, ``fetchedKeys``
        - key groups: ``waitingKeyGroups``, ``suspendedKeyGroups``, ``inFlightKeyGroups`` and
          ``plannedMoves`` (that move, or are to), ``keyGroups`` (component → executor → number)
        - ``executors``: executor → ``lanes``, ``draining``, ``cpuMs`` and ``busyMs`` (waiting
          included)

        Examples
        --------
        >>> query.recentProgress[0]["numInputRows"]
        4
        """
        return self._driver.add_source_figures(self._run.progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  StreamingQuery's name
        """Progress of the last epoch, as an item of `recentProgress`; ``None`` before the first.

        Examples
        --------
        >>> query.lastProgress["epoch"] <= query.status["committedEpoch"]
        True
        """
        latest = self._driver.add_source_figures(self._run.progress[-1:])
        return latest[0] if latest else None

    @user_call
    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query stops, by `stop` or by an error.

        Ctrl-C (SIGINT) and SIGTERM while the main thread waits here stop the query as `stop` does:
        the current epoch is finished or aborted, and the checkpoint released. Then Ctrl-C raises
        `KeyboardInterrupt`, and SIGTERM `SystemExit` with exit status 143. A second signal does not
        wait. A handler that the program has set for a signal is left alone.

        Parameters
        ----------
        timeout
            Maximum time to wait, in seconds; the query continues after it. ``None``: no limit.

        Returns
        -------
        bool or None
            With `timeout`: true if the query has stopped, false if it still runs. Without:
            ``None``.

        Raises
        ------
        InvalidFlowError
            If `timeout` is not a number of at least 0.
        GodwitError
            If the query failed.

        Examples
        --------
        >>> query.awaitTermination(timeout=0)
        False
        """
        if timeout is not None:
            check_number(
                "The timeout of awaitTermination",
                timeout,
                least=0,
                whole=False,
                error=InvalidFlowError,
            )
        with EndingSignals() as signals:
            ended = signals.wait(self._driver.wait, timeout)
            if signals.asked:
                end_on_signals([self], signals)
        if signals.asked:
            signals.raise_asked()
        failure = self.exception() if ended else None
        if failure is not None:
            raise failure
        return None if timeout is None else ended

    @user_call
    def processAllAvailable(self) -> None:  # noqa: N802  StreamingQuery's name
        """Wait until the input that is available now is processed and delivered; for tests.

        It also waits for rows whose key group is being recovered. There is no time-out.

        Raises
        ------
        GodwitError
            If the query failed.

        Examples
        --------
        >>> rows.add([{"plane": "N3", "origin": "JFK", "delay": 3}])
        >>> query.processAllAvailable()
        >>> results.table().filter(pa.compute.field("plane") == "N3").to_pylist()
        [{'plane': 'N3', 'total': 3}]
        """
        try:
            self._driver.process_all_available()
        except Exception as error:  # noqa: BLE001  it is raised again, explained
            self._ending.finish()
            raise self._as_godwit_error(error) from None
        failure = self.exception()
        if failure is not None:
            self._ending.finish()
            raise failure

    @user_call
    def stop(self) -> None:
        """Stop the query after the current epoch, and close it; the flow can then be started again.

        An epoch that takes more than 5 seconds more is aborted: nothing of it is committed, and it
        is run again after the next start. May be called from any thread, and repeatedly. Called
        from within an epoch (such as a `foreach` function) or by a listener, it returns at once,
        and the query stops afterwards.

        Raises
        ------
        StopTimeoutError
            If the query has not stopped after 15 seconds, since its epoch waits for something that
            cannot be interrupted. The query stops when that ends.
        EndingError
            If the query has stopped, but a part of it, such as a sink, could not be closed.

        Examples
        --------
        >>> query.stop()
        >>> query.isActive
        False
        """
        self._ending.stop()

    def exception(self) -> GodwitError | None:
        """Return the error that the query failed with; ``None`` if it runs or was stopped.

        Examples
        --------
        >>> query.exception() is None
        True
        """
        failure = self._gate.failure
        if failure is None and not self._gate.cut_short and not self._driver.is_active:
            failure = self._driver.failure()
        return None if failure is None else self._as_godwit_error(failure)

    def _as_godwit_error(self, error: BaseException) -> GodwitError:
        """Return the `GodwitError` that caused an error of Spark; else an `EpochFailedError`."""
        cause = self._gate.failure or error
        cause = self._gate.explain(cause)
        if isinstance(cause, GodwitError):
            return cause
        return epoch_failed(self._flow_name, cause)

    def _close_run(self, problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Close the run, and announce its end; return the parts that failed to close, with errors.

        `problems`: earlier failures of that kind.
        """
        problems = [*problems, *self._run.close()]
        late = close_all(
            [
                ("the story of the run", lambda: self._announce_end(problems)),
                # While the checkpoint is still ours.
                ("the journal", lambda: self._dispatcher.stop_recording(_JOURNAL_S)),
                *((f"the port of {name}", o.close) for name, o in self._observers.items()),
                ("requests to end", lambda: self._requests.close(self.exception())),
                ("the claim on the checkpoint", self._run.release),
            ]
        )
        _open.discard(self)
        return problems + late

    def _announce_end(self, problems: list[tuple[str, str]]) -> None:
        """Announce the end of the query, and the problems in closing it, as events."""
        failure = self.exception()
        with self._run.coordinator.locked() as coordinator:
            for what, error in problems:
                coordinator.announce(events.BackgroundFailed, what=what, error=error)
            if failure is None:
                coordinator.announce(events.QueryStopped, name=self._flow_name)
            else:
                coordinator.announce(events.QueryFailed, name=self._flow_name, error=str(failure))

    def state(self, operator: str, state: str | None = None) -> QueryState:
        """Return an operator's state, to look up keys in while the query runs.

        A look-up reads no lane and needs no Spark job: the driver copies the key groups that are
        asked for from the checkpoint, and brings them forward at each look. All answers are of the
        last committed epoch, also while key groups move.

        Parameters
        ----------
        operator
            Name of the operator.
        state
            Name of one of its named states; required if it has several.

        Returns
        -------
        QueryState
            With `get`, `get_many`, `scan` and `join`. Keep it for further look-ups.

        Raises
        ------
        InvalidFlowError
            If there is no such operator.

        Examples
        --------
        >>> query.state("by_plane").get("N1")["plane"]
        'N1'
        """
        look_up: type[QueryState] = plugins.in_district(_LOOK_UPS, "QueryState")
        return look_up(self._run, operator, state)

    def states(self, *operators: str) -> QueryStates:
        """Return the states of several operators, for look-ups of all of them at one epoch.

        Parameters
        ----------
        *operators
            Names of operators that have one state each.

        Raises
        ------
        InvalidFlowError
            If there is no such operator.

        Examples
        --------
        >>> query.states("by_plane").get({"by_plane": "N1"})["by_plane"]["plane"]
        'N1'
        """
        look_up: type[QueryStates] = plugins.in_district(_LOOK_UPS, "QueryStates")
        return look_up({name: self.state(name) for name in operators})

    def explain(self) -> None:
        """Print the plan, as `Flow.explain` does, with the components as they are now.

        Examples
        --------
        >>> query.explain()
        Flow 'delays': 1 source, 3 keyed operators on 2 levels, 3 sinks
        ...
        """
        text = self.components.explain()
        show(text, text_block(text))

    # -- state and executors: the verbs of every day ------------------------------------------

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors that are alive.

        Examples
        --------
        >>> query.executors
        ('local-0', 'local-1')
        """
        return tuple(sorted(self._run.view.executors))

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

        Parameters
        ----------
        plan
            Key group → name of its new executor; key groups that are not named stay. Or the name of
            one executor, for all key groups. Or the whole target, a `godwit.migration.Assignment`.
            Or a planner's solution (see `QueryPlacement.problem`), whose order of moves is kept.
        component
            Name of the component whose key groups move; may be left out if the flow has only one.
        strategy
            ``"live"``: state is copied in the background, and each key group switches between two
            epochs once its copy is nearly up to date. ``"disruptive"``: all switch now, and the
            next epoch loads their state first. ``"on_demand"``: all switch once their state is
            indexed, in two seconds at most; epochs then fetch the state of the keys of their rows
            from the checkpoint, and the rest behind their work. It is for state of some size that
            operators read by the keys of their rows, in a checkpoint on a local disk; smaller state
            moves ``"live"``. ``"stop_the_world"``: no epoch runs until all state is copied.
            ``"instant"``: no state moves; rows go to empty slots at the destination, and windows
            are merged from both slots. ``"smooth"``: the same, but rows of panes that have begun go
            to the old place. The last two are only for two-phase windows, for which ``"instant"``
            is the default; otherwise it is ``"live"``, or ``"on_demand"`` if epochs become faster
            by it, as measured.
        bounds
            Limits on the key groups and bytes that are in flight at once; see
            `godwit.migration.Bounds`, whose defaults apply without it. With it, the default of
            `strategy` is never ``"on_demand"``, by which all key groups switch at once.

        Returns
        -------
        Migration
            The change, which continues in the background; ``wait()`` waits for its end.

        Raises
        ------
        InvalidPlanError
            If `plan` is not a plan, leaves out key groups, or names one or an executor that
            does not exist.
        MigrationError
            If the component is being migrated already (a migration of the controller is cancelled
            instead), cannot be migrated by that strategy, or the query has stopped.

        Examples
        --------
        >>> query.migrate({0: "local-1"}, component="by_plane").wait(timeout=60).outcome
        <MigrationOutcome.FINISHED: 'finished'>
        """
        return self.placement._migrate(  # noqa: SLF001  one object in two parts
            plan, component=component, strategy=strategy, bounds=bounds
        )

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
        """Plan once for the current load, and carry out the plan.

        For balancing all the time, see `godwit.Control`.

        Parameters
        ----------
        planner
            Name of a planner; ``godwit plan --help`` lists them.
        component
            Name of the component; may be left out if the flow has only one.
        limits
            Limits on the cost and the balance of the plan, as in
            ``godwit.placement.Limits(max_moves=16)``; by default none.
        strategy, bounds
            How the key groups move, as for `migrate`.
        **options
            Options of the planner. For example, `milp` stops within 1 % of the mean load of the
            optimum; with ``gap=0`` it searches for the optimum, up to its time limit.

        Returns
        -------
        Migration or None
            The migration, which continues in the background; ``None`` if the plan has no moves.

        Raises
        ------
        InvalidProblemError
            If the planner does not exist, cannot solve the problem, or does not have an option.
        InvalidPlanError
            If the planner found no plan within the limits.
        MigrationError
            If the component is being migrated already, or the query has stopped.

        Examples
        --------
        >>> migration = query.balance(component="by_plane")
        >>> ended = None if migration is None else migration.wait(timeout=60)
        """
        return self.placement._balance(  # noqa: SLF001  one object in two parts
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
        """Move all key groups away from an executor, and let none move to it from now on.

        The executor itself is not removed; for that, see
        `scale`. If the moves cannot be planned or begun, it is not drained.

        Parameters
        ----------
        executor
            Name of the executor.
        strategy, bounds
            How the key groups move, as for `migrate`.

        Returns
        -------
        tuple of Migration
            One for each component with key groups there; the executor is empty when all have ended.

        Raises
        ------
        InvalidPlanError
            If there is no executor of that name, or it is the only one.

        Examples
        --------
        >>> ended = [migration.wait(timeout=60) for migration in query.drain("local-1")]
        >>> query.placement.draining
        frozenset({'local-1'})
        """
        return self.placement._drain(  # noqa: SLF001  one object in two parts
            executor, strategy=strategy, bounds=bounds
        )

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

        To add executors, Godwit requests them from the cluster
        manager; they get key groups once they run. To remove executors, Godwit empties those with
        the least state (draining ones first), and returns them to the cluster between two epochs.

        Parameters
        ----------
        executors
            Target number of executors.
        planner
            Name of the planner that chooses which key groups move; ``godwit plan --help`` lists
            them.
        strategy, bounds
            How the key groups move, as for `migrate`.
        timeout_s
            Maximum time to wait for executors that were requested, in seconds; by default
            ``executors_timeout_s`` of `godwit.Sizing`. After that the scaling ends with a
            `ScalingError`; executors that have joined stay in use.

        Returns
        -------
        Scaling
            The change, which continues in the background; ``wait()`` waits for its end.

        Raises
        ------
        ScalingError
            If the number is not valid, the cluster manager cannot add or remove executors, another
            scaling is in progress, or the query has stopped.
        InvalidProblemError
            If the planner does not exist.

        Examples
        --------
        >>> query.scale(4).wait(timeout=300)  # doctest: +SKIP
        ('1', '2', '3', '4')
        """
        return self.scaling._scale(  # noqa: SLF001  one object in two parts
            executors, planner=planner, strategy=strategy, bounds=bounds, timeout_s=timeout_s
        )

    # -- what happens -------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """The latest events (`godwit.events`), oldest first, as a tuple.

        At most 10,000, within 2 MiB of memory for `EpochCommitted` and 4 MiB for all others; see
        `events_dropped`. May be read from any thread, also after the query has ended.

        Examples
        --------
        >>> type(query.events[0]).__name__
        'QueryStarted'
        """
        return self._dispatcher.events

    @property
    def events_dropped(self) -> int:
        """Number of older events that `events` no longer has.

        Examples
        --------
        >>> query.events_dropped
        0
        """
        return self._dispatcher.events_dropped

    @property
    def metrics_url(self) -> str | None:
        """URL of the metrics for Prometheus; ``None`` if metrics are not served.

        Examples
        --------
        >>> query.metrics_url is None
        True
        """
        return self._observers["metrics"].url if "metrics" in self._observers else None

    @property
    def ui_url(self) -> str | None:
        """URL of the live page, with its token if it needs one; ``None`` if there is no page.

        Examples
        --------
        >>> query.ui_url is None
        True
        """
        return self._observers["page"].url if "page" in self._observers else None

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        """Call a function with every event from now on, in order.

        Every listener is called on a thread of its own, shortly after the event, so a slow one
        delays nothing else. An exception in it is logged, and reported by the event
        `godwit.events.ListenerFailed`, once for each kind of error; the query continues. If a
        listener is more than 10,000 events behind, the oldest of these are dropped.

        Parameters
        ----------
        listener
            Called with an event, a subclass of `godwit.events.Event`; its result is ignored. It may
            call any method of the query, also `migrate` and `stop`.

        Examples
        --------
        >>> seen = []
        >>> query.add_listener(seen.append)
        """
        self._dispatcher.add_listener(listener)

"""What the user holds of a running flow: StreamingQuery's names, and the state's whereabouts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from godwit.migration import Strategy, inputs
from godwit.model import events
from godwit.model.assignment import Assignment
from godwit.model.errors import EpochFailedError, GodwitError, InvalidPlanError, MigrationError
from godwit.spark.ending import Ending
from godwit.spark.plans import checked_bounds, checked_moves, checked_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.migration import Bounds, EndMigration
    from godwit.model.events import Event
    from godwit.spark.dispatcher import EventDispatcher
    from godwit.spark.epoch_driver import EpochDriver
    from godwit.spark.gate import EpochGate
    from godwit.spark.run import Run

__all__ = ["Migration", "Query", "end_terminated"]

_open: set[Query] = set()
"""Queries of this process that hold the lease on a checkpoint."""


def end_terminated() -> None:
    """Let go of what queries hold that have failed while nobody waited for them."""
    for query in list(_open):
        if not query.isActive:
            query._ending.finish()  # noqa: SLF001  of the class below


class Query:
    """A running flow.

    The names and habits are those of ``pyspark.sql.streaming.StreamingQuery``; beside them it
    says where the key groups are (`assignment`), moves them (`migrate`) and tells what happens
    (`events`).
    """

    def __init__(
        self,
        flow_name: str,
        *,
        run: Run,
        driver: EpochDriver,
        gate: EpochGate,
        spark: StreamingQuery,
        dispatcher: EventDispatcher,
    ) -> None:
        self._flow_name = flow_name
        self._run, self._driver, self._spark_query = run, driver, spark
        self._dispatcher = dispatcher
        self._ending = Ending(
            gate=gate, spark_query=spark, dispatcher=dispatcher, close=self._close_run
        )
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Query {self._flow_name!r}: {self.status['message']}>"

    # -- StreamingQuery -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the query."""
        return self._spark_query.name

    @property
    def id(self) -> str:
        """Identifier of the query, the same over restarts from one checkpoint."""
        return self._run.log.identity.query_id

    @property
    def runId(self) -> str:  # noqa: N802  StreamingQuery's name
        """Identifier of this run."""
        return self._run.run_id

    @property
    def isActive(self) -> bool:  # noqa: N802  StreamingQuery's name
        """Whether the query is running."""
        return bool(self._spark_query.isActive)

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing, with the last committed epoch and what is on the move."""
        status = dict(self._spark_query.status)
        view = self._run.protocol.view()
        status["committedEpoch"] = self._run.log.latest_epoch
        status["executors"] = sorted(view.executors)
        status["held"] = list(view.holds)
        status["keyGroupsInFlight"] = sum(len(c.transfers) for c in view.components.values())
        status["keyGroupsSuspended"] = sum(len(c.suspended) for c in view.components.values())
        return status

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  StreamingQuery's name
        """Figures of the last epochs (see `godwit.spark.progress.Progress.finish`)."""
        return list(self._run.progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  StreamingQuery's name
        """Figures of the last epoch."""
        return self._run.progress[-1] if self._run.progress else None

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
        try:
            if timeout is None:
                self._spark_query.awaitTermination()
                done: bool | None = None
            else:
                done = self._spark_query.awaitTermination(timeout)
        except Exception as error:
            if self.isActive:
                raise  # Spark did not take the argument
            self._ending.finish()
            if self.exception() is None:
                return None if timeout is None else True
            raise self._explained(error) from error
        if done is not False:
            self._ending.finish()
        return done

    def processAllAvailable(self) -> None:  # noqa: N802  StreamingQuery's name
        """Wait until everything that is available now has been processed and delivered.

        Raises
        ------
        GodwitError
            If the query failed.
        """
        try:
            self._spark_query.processAllAvailable()
        except Exception as error:
            self._ending.finish()
            raise self._explained(error) from error

    def stop(self) -> None:
        """Stop after the epoch that runs now; the checkpoint is ready to be resumed.

        An epoch that goes on for more than some seconds is broken off: nothing of it was committed,
        and it is carried out again when the flow is started again. May be called from anywhere, and
        more than once; called within an epoch it returns at once, and the query stops after it.

        Raises
        ------
        StopTimeoutError
            If the query has not stopped after some seconds, since what it waits for neither ends
            nor can be interrupted.
        """
        self._ending.stop()

    def exception(self) -> GodwitError | None:
        """Return why the query failed; ``None`` if it did not."""
        failure = self._driver.failure
        if failure is None and not self._spark_query.isActive and not self._driver.cut_short:
            failure = self._spark_query.exception()
        return None if failure is None else self._explained(failure)

    def _explained(self, error: BaseException) -> GodwitError:
        cause = self._driver.failure or error
        if isinstance(cause, GodwitError):
            return cause
        return EpochFailedError(
            f"Flow {self._flow_name!r} failed: {type(cause).__name__}: {cause}",
            remedy="Nothing of the unfinished epoch was committed; start the flow again from its "
            "checkpoint once the cause is gone.",
        )

    def _close_run(self) -> None:
        _open.discard(self)
        failure = self.exception()
        if failure is None:
            told = self._run.event(events.QueryStopped, name=self._flow_name)
        else:
            told = self._run.event(events.QueryFailed, name=self._flow_name, error=str(failure))
        self._dispatcher.emit(told)
        self._run.close()

    # -- the whereabouts of state -------------------------------------------------------------

    @property
    def assignment(self) -> Mapping[str, Assignment]:
        """Component → assignment of the next epoch."""
        view = self._run.protocol.view()
        return {name: component.assignment for name, component in view.components.items()}

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components, upstream before downstream: what `migrate` takes."""
        return tuple(self.assignment)

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors that are alive."""
        return tuple(sorted(self._run.protocol.view().executors))

    @property
    def events(self) -> tuple[Event, ...]:
        """What has happened so far, oldest first."""
        return self._dispatcher.events

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event from now on, in order.

        Listeners share a thread of their own, so events arrive a little later than they happen. A
        listener may do anything, `migrate` and `stop` included; if it raises, that is logged once
        and disturbs nobody.
        """
        self._dispatcher.add_listener(listener)

    def migrate(
        self,
        plan: Assignment | Mapping[int, str],
        *,
        component: str | None = None,
        strategy: Strategy | Literal["live", "disruptive", "stop_the_world"] = Strategy.LIVE,
        bounds: Bounds | None = None,
    ) -> Migration:
        """Move key groups to other executors while the stream flows.

        Parameters
        ----------
        plan
            The assignment to arrive at, or just the moves: key group → executor.
        component
            Whose key groups; may be left out if the flow has only one component.
        strategy
            ``"live"``: copies are warmed in the background, each key group switches at an epoch
            boundary once its copy is nearly fresh (paper 1 §3.2). ``"disruptive"``: all switch now
            and the next epoch waits for the load. ``"stop_the_world"``: no epoch runs until
            everything is in place.
        bounds
            Limits of a live migration: key groups and bytes in flight at once, and the epochs a
            copy may lag by when it takes over. Left out, the default ones.

        Returns
        -------
        Migration
            Returns at once; ``wait()`` on it if need be.

        Raises
        ------
        InvalidPlanError
            If the plan is no plan, is not total, or names something that does not exist.
        MigrationError
            If the component is being migrated already, or the query has stopped.
        """
        if not self.isActive:
            raise MigrationError(
                f"Query {self.name!r} has stopped, so none of its key groups can move.",
                remedy="Start the flow again from its checkpoint, and migrate that query.",
                query=self.name,
            )
        chosen, limits = checked_strategy(strategy), checked_bounds(bounds)
        name = self._component(component)
        current = self.assignment[name]
        if isinstance(plan, Assignment):
            target = plan
        else:
            target = self._with_newcomers(current).moved(checked_moves(plan))
        loads = self._run.loads.get(name)
        migration = uuid.uuid4().hex[:8]
        wanted = inputs.MigrationRequested(
            id=migration,
            component=name,
            target=target,
            strategy=chosen,
            bounds=limits,
            loads={}
            if loads is None
            else {g: float(loads[g]) for g in np.flatnonzero(loads).tolist()},
        )
        fits = target.num_key_groups == current.num_key_groups  # else the protocol refuses it
        moving = [move.key_group for move in current.moves_to(target)] if fits else []
        self._run.handle(
            wanted,
            self._run.event(
                events.MigrationStarted,
                migration=migration,
                component=name,
                strategy=chosen.value,
                moves=len(moving),
                state_bytes=self._run.size_bytes(name, moving),
            ),
        )
        return Migration(migration, name, self._run)

    def _with_newcomers(self, assignment: Assignment) -> Assignment:
        """List executors too that own nothing because they joined later."""
        there = self._run.protocol.view().executors
        new = sorted(there.keys() - set(assignment.executors), key=lambda name: (len(name), name))
        if not new:
            return assignment
        return assignment.on(
            [*assignment.executors, *new], [*assignment.lanes, *(there[name] for name in new)]
        )

    def _component(self, component: str | None) -> str:
        names = list(self.assignment)
        if component is None and len(names) == 1:
            return names[0]
        if component not in names:
            raise InvalidPlanError(
                f"There is no component {component!r}."
                if component is not None
                else "The flow has several components.",
                remedy=f"Name one with component=: {', '.join(names)}.",
            )
        return component


class Migration:
    """A migration that was asked for."""

    def __init__(self, migration: str, component: str, run: Run) -> None:
        self.id, self.component, self._run = migration, component, run

    def __repr__(self) -> str:
        return (
            f"<Migration {self.id} of {self.component!r}: {'done' if self.done else 'under way'}>"
        )

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._run.outcome(self.id, 0) is not None

    def wait(self, timeout: float | None = None) -> EndMigration:
        """Wait for its end and return how it ended.

        Parameters
        ----------
        timeout
            Seconds.

        Raises
        ------
        MigrationError
            If it has not ended by then, or the query stopped first.
        """
        ended = self._run.outcome(self.id, timeout)
        if ended is None:
            raise MigrationError(
                f"Migration {self.id} of {self.component!r} has not ended"
                + ("." if timeout is None else f" after {timeout} s."),
                remedy="Look at query.status and query.events; a key group switches at an epoch "
                "boundary, so the stream has to have rows.",
            )
        return ended

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """End it: what has switched stays, the rest does not move."""
        self._run.handle(inputs.CancellationRequested(id=self.id, reason=reason))

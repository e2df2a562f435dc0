"""Another number of executors, by hand: ``query.scale(n)``.

Problem: executors come and go when the cluster likes, key groups move when copies are warm, and
either may fail in the middle, while the stream continues.

Invariant: a scaling looks at what there is and does the next thing, until nothing is left to do; so
whatever happens meanwhile (one that comes late, one that dies, a migration that is withdrawn) is
what it looks at next. However it ends, no executor drains because of it any more.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.migration.messages import MigrationOutcome, is_own
from godwit.migration.strategy import Strategy
from godwit.model import events
from godwit.model.decision_events import ManualChange
from godwit.model.errors import GodwitError, InvalidPlanError, ScalingError
from godwit.model.naming import check_number, error_line, type_name
from godwit.model.text import counted
from godwit.placement import Limits
from godwit.placement import planner as planner_named
from godwit.placement.solution import executable_plan
from godwit.runtime.placement import checked_bounds, moved_to_query

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.migration.coordinator import Coordinator
    from godwit.migration.strategy import Bounds
    from godwit.placement import Problem
    from godwit.runtime.placement import AnyStrategy, Migration, QueryPlacement
    from godwit.runtime.ports import ScalablePool
    from godwit.runtime.run import QueryRun

_LOOK_S = 0.1
_ROUNDS = 8
"""Plans for one component, each on what the one before left, before a scaling gives up."""


class Scaling:
    """A requested change of the number of executors, which is carried out in the background.

    Godwit makes it: ``query.scale`` returns it.

    Attributes
    ----------
    target
        Number of executors that was asked for.

    Examples
    --------
    >>> query.scale(4)  # doctest: +SKIP
    <Scaling to 4 executors: waiting for 2 executors>
    """

    def __init__(
        self,
        target: int,
        *,
        placement: QueryPlacement,
        pool: ScalablePool,
        coordinator: Coordinator,
        planner: str,
        strategy: AnyStrategy,
        bounds: Bounds | None,
        patience_s: float | None = None,  # to wait for new executors; None: the pool's default
    ) -> None:
        self.target, self._patience_s = target, patience_s
        self._placement, self._pool, self._coordinator = placement, pool, coordinator
        self._planner, self._strategy, self._bounds = planner, strategy, bounds
        self._stage = "beginning"
        self._drained: set[str] = set()
        self._migrations: dict[str, Migration] = {}
        self._moved = 0
        self._asked = False
        self._cancelled = ""
        self._failure: GodwitError | None = None
        self._executors: tuple[str, ...] = ()
        self._ended = threading.Event()
        self._coordinator.announce(events.ScalingStarted, before=len(pool.staying), wanted=target)
        self._thread = threading.Thread(target=self._run_thread, name="godwit-scaling", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Scaling to {counted(self.target, 'executor')}: {self._stage}>"

    @property
    def done(self) -> bool:
        """True once the scaling has ended, with or without success.

        Examples
        --------
        >>> query.scale(4).done  # doctest: +SKIP
        False
        """
        return self._ended.is_set()

    @property
    def stage(self) -> str:
        """Current step of the scaling, or its end, as text for people.

        Examples
        --------
        >>> query.scaling.latest.stage  # doctest: +SKIP
        'waiting for 2 executors'
        """
        return self._stage

    def wait(self, timeout: float | None = None) -> tuple[str, ...]:
        """Wait until the scaling has ended.

        Interrupting the wait (Ctrl-C) does not cancel the scaling.

        Parameters
        ----------
        timeout
            Maximum time to wait, in seconds; ``None``: no limit. The scaling continues after it.

        Returns
        -------
        tuple of str
            Names of the executors that are in use at the end.

        Raises
        ------
        ScalingError
            If it was cancelled, requested executors did not join in time, or it has not ended
            within `timeout`.
        GodwitError
            Any other error that ended it, such as one of the planner.

        Examples
        --------
        >>> query.scale(4).wait(timeout=300)  # doctest: +SKIP
        ('1', '2', '3', '4')
        """
        if not self._ended.wait(timeout):
            raise ScalingError(
                f"The scaling to {counted(self.target, 'executor')} has not ended after "
                f"{timeout} s; it is {self._stage}.",
                remedy="It continues; look at query.events, or cancel it.",
                wanted=self.target,
            )
        if self._failure is not None:
            raise self._failure
        return self._executors

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """Cancel the scaling: executors that were added and key groups that have moved stay.

        If it has ended already, nothing happens.

        Parameters
        ----------
        reason
            Text for the event `godwit.events.ScalingFailed`.

        Examples
        --------
        >>> query.scaling.latest.cancel("the load is gone")  # doctest: +SKIP
        """
        self._cancelled = reason

    # -- on its own thread --------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Carry out the scaling, and announce its end; the body of a thread."""
        try:
            self._carry_out()
        except Exception as error:  # noqa: BLE001  raised to callers that wait
            self._failure = self._as_godwit_error(error)
            self._withdraw()
            self._stage = f"failed: {self._failure.message}"
            self._coordinator.announce(
                events.ScalingFailed, wanted=self.target, reason=self._failure.message.rstrip(".")
            )
        else:
            self._executors = self._pool.staying
            self._stage = f"done: {', '.join(self._executors)}"
            self._coordinator.announce(
                events.ScalingFinished, executors=self._executors, moved=self._moved
            )
        finally:
            self._ended.set()

    def _carry_out(self) -> None:
        """Add executors, move key groups and remove executors to meet the target, or raise."""
        missing, rounds = "", 0
        grown = False
        while True:
            self._check_not_cancelled()
            staying, present = self._pool.staying, self._staying_executors()
            if len(staying) < self.target and not missing:
                missing = self._add_executors(self.target - len(staying))
                grown = True
            elif len(present) > self.target and len(staying) >= self.target:
                rounds += 1
                self._remove_executors(present, staying, rounds)
            else:
                break
        if grown and len(staying) > 1:
            self._balance_load()
        if missing:
            raise ScalingError(
                f"{self.target} executors were requested, and "
                f"{counted(len(self._pool.staying), 'executor')} run: {missing}.",
                remedy="The stream uses these. Free resources on the cluster and scale again.",
                wanted=self.target,
                executors=self._pool.staying,
            )

    def _staying_executors(self) -> tuple[str, ...]:
        """Return the names of live executors that have not been released."""
        return tuple(self._coordinator.view.executors.keys() - self._pool.returned)

    def _add_executors(self, num_missing: int) -> str:
        """Get `num_missing` executors, and wait for them; return the cluster manager's refusal.

        Empty if it did not refuse. Executors that this scaling drains stay instead, if any.
        """
        returned = sorted(self._drained & {*self._staying_executors()})[:num_missing]
        for name in returned:
            self._cancel_draining(name)
        num_to_add = num_missing - len(returned) - self._pool.view.pending
        if num_to_add > 0:
            self._asked = True
            self._pool.add(num_to_add, self._patience_s)
        while len(self._pool.staying) < self.target:
            self._stage = (
                f"waiting for {counted(self.target - len(self._pool.staying), 'executor')}"
            )
            view = self._pool.view
            if view.refused:
                return view.refused
            if not view.pending:
                break  # someone has drained one meanwhile
            self._pause()
        return ""

    def _remove_executors(
        self, executors: Collection[str], staying: Collection[str], rounds: int
    ) -> None:
        """Move key groups off executors to be removed, and release the empty ones, or raise.

        `there`, `staying`: live executors, and those of them not being released. `rounds`: number
        of rounds so far.
        """
        leaving = self._executors_with_least_state(list(staying), len(staying) - self.target)
        leaving |= {*executors} - {*staying}
        with self._coordinator.locked() as coordinator:
            for name in leaving - coordinator.view.draining:
                coordinator.drain(name)
                self._drained.add(name)
        view = self._coordinator.view
        not_empty = sorted(name for name in leaving if not view.owns_nothing(name))
        if not_empty and rounds > _ROUNDS:
            raise ScalingError(
                f"Executors {', '.join(not_empty)} are not empty after {_ROUNDS} plans.",
                remedy="query.events says why key groups did not move.",
                executors=not_empty,
            )
        if not_empty:
            self._stage = f"emptying {', '.join(not_empty)}"
            self._migrate_components(emptying=True)
            return
        names = sorted(leaving)
        self._stage = f"giving back {', '.join(names)}"
        try:
            self._pool.remove(names)
        except InvalidPlanError:
            return  # one has died, or has got key groups back, since we looked
        # If one of those that stay dies meanwhile, the next look keeps one that was to go.
        while {*names} & {*self._coordinator.view.executors} and (
            len(self._pool.staying) >= self.target
        ):
            if reason := self._pool.view.not_returned:
                raise ScalingError(
                    f"Executors {', '.join(names)} could not be given back: {reason}.",
                    remedy="They own nothing, and the stream continues; scale again later.",
                    executors=names,
                )
            self._pause()

    def _executors_with_least_state(self, names: list[str], count: int) -> set[str]:
        """Return the `count` executors with the least state; of equal ones the newest."""
        state_bytes = dict.fromkeys(names, 0)
        for component in self._placement.parts:
            problem = self._placement.problem(component)
            for name in names:
                if name in problem.executors:
                    owned = problem.current == problem.executors.index(name)
                    state_bytes[name] += int(problem.state_bytes[owned].sum())
        newest_first = sorted(names, key=lambda name: (len(name), name), reverse=True)
        return {*sorted(newest_first, key=state_bytes.__getitem__)[:count]}

    def _balance_load(self) -> None:
        """Move key groups to the new executors."""
        self._stage = "giving new executors their share"
        for _ in range(_ROUNDS):
            if self._migrate_components() == 0:
                return

    def _migrate_components(self, *, emptying: bool = False) -> int:
        """Plan every component, and run the migrations; return the number of unfinished components.

        `emptying`: nothing stays on draining executors, whatever that costs balance.
        """
        left = 0
        for component in self._placement.parts:
            self._wait_for_others(component)
            problem = self._placement.problem(component)
            limits = Limits(target_executors=len(problem.available)) if emptying else problem.limits
            problem = replace(problem, load=_load_to_balance(problem), limits=limits)
            plan = executable_plan(planner_named(self._planner)(problem))
            if not plan.moves:
                continue
            try:
                self._migrations[component] = self._placement.begin_plan(
                    component, plan, self._strategy, self._bounds
                )
            except GodwitError:
                left += 1  # the ground has shifted since it was planned
        for component, migration in list(self._migrations.items()):
            while not migration.done:
                self._pause()
            end = migration.wait(0)
            self._moved += end.moved
            left += end.withdrawn > 0 or end.outcome is not MigrationOutcome.FINISHED
            del self._migrations[component]
        return left

    def _wait_for_others(self, component: str) -> None:
        """Wait for the end of a component's migration by a user.

        One by the controller is cancelled.
        """
        while True:
            under_way = self._coordinator.view.components[component].migration
            if under_way is None or is_own(under_way):
                return
            self._pause()

    def _pause(self) -> None:
        """Wait before the next check; raise if the scaling was cancelled or the query stopped."""
        self._check_not_cancelled()
        self._ended.wait(_LOOK_S)

    def _check_not_cancelled(self) -> None:
        """Raise if the scaling was cancelled or the query has stopped."""
        if self._cancelled:
            raise ScalingError(
                f"The scaling to {counted(self.target, 'executor')} ended early: "
                f"{self._cancelled}.",
                remedy="What had been done stays.",
                wanted=self.target,
            )
        if self._coordinator.closed:
            raise ScalingError(
                f"The query ended before there were {counted(self.target, 'executor')}.",
                remedy="Start the flow again from its checkpoint, and scale that query.",
                wanted=self.target,
            )

    def _withdraw(self) -> None:
        """Withdraw requests for executors, cancel migrations, and end draining; all unfinished."""
        if self._asked:
            self._pool.withdraw()
        for migration in self._migrations.values():
            with suppress(GodwitError):  # it has ended by itself
                migration.cancel("the scaling that it belongs to has ended")
        for name in sorted(self._drained - self._pool.returned):
            self._cancel_draining(name)

    def _cancel_draining(self, name: str) -> None:
        """Cancel the draining of an executor that was to be removed."""
        self._drained.discard(name)
        self._pool.keep(name)
        self._coordinator.stay(name)

    def _as_godwit_error(self, error: Exception) -> GodwitError:
        """Return an error as a `GodwitError`; others become a `ScalingError`."""
        if isinstance(error, GodwitError):
            return error
        return ScalingError(
            f"The scaling to {counted(self.target, 'executor')} failed: {error_line(error)}.",
            remedy="The stream continues with the executors there are.",
            wanted=self.target,
        )


def _load_to_balance(problem: Problem) -> np.ndarray:
    """Return the load of each key group: busy time, else bytes of state, else equal loads."""
    for load in (problem.load, problem.state_bytes.reshape(-1, 1)):
        if load.sum() > 0:
            return np.broadcast_to(load, problem.load.shape)
    return np.ones_like(problem.load)


class QueryScaling:
    """The last change of the number of executors of a running query.

    It is the attribute ``query.scaling`` of a `Query`.

    Examples
    --------
    >>> query.scaling
    <QueryScaling: none was asked for>
    """

    def __init__(
        self,
        placement: QueryPlacement,  # plans and migrates
        run: QueryRun,  # whose controller leaves a number that was asked for here alone
    ) -> None:
        self._placement, self._run = placement, run
        self._latest: Scaling | None = None

    if not TYPE_CHECKING:  # a type checker would take every name for granted

        def __getattr__(self, name: str) -> Any:
            raise moved_to_query("scaling", name, type(self))

    def __repr__(self) -> str:
        return f"<QueryScaling: {self._latest or 'none was asked for'}>"

    @property
    def latest(self) -> Scaling | None:
        """The `Scaling` that the last call of `Query.scale` returned; ``None`` if there was none.

        Examples
        --------
        >>> query.scaling.latest is None
        True
        """
        return self._latest

    @property
    def is_under_way(self) -> bool:
        """True while a scaling that `Query.scale` began has not ended.

        Examples
        --------
        >>> query.scaling.is_under_way
        False
        """
        return self._latest is not None and not self._latest.done

    def _scale(
        self,
        executors: int,
        *,
        planner: str = "milp",
        strategy: AnyStrategy = Strategy.LIVE,
        bounds: Bounds | None = None,
        timeout_s: float | None = None,
    ) -> Scaling:
        """Change the number of executors; see `Query.scale`."""
        if isinstance(executors, bool) or not isinstance(executors, int) or executors < 1:
            requested = executors if isinstance(executors, int) else f"{executors!r}"
            raise ScalingError(
                f"scale was asked for {requested} executors"
                + ("." if isinstance(executors, int) else f", of type {type_name(executors)}."),
                remedy="Give a whole number that is at least 1; query.stop() ends the query.",
            )
        if timeout_s is not None:
            check_number(
                "The timeout_s of scale", timeout_s, least=0, whole=False, error=ScalingError
            )
        run = self._run
        if run.coordinator.closed:
            raise ScalingError(
                "The query has stopped, so it has no executors to be scaled.",
                remedy="Start the flow again from its checkpoint, and scale that query.",
            )
        if self._latest is not None and self.is_under_way:
            raise ScalingError(
                f"A scaling to {counted(self._latest.target, 'executor')} is under way: "
                f"{self._latest.stage}.",
                remedy="Wait for its end, or cancel it (query.scaling.latest.cancel()).",
            )
        chosen, limits = Strategy(strategy), checked_bounds(bounds)
        planner_named(planner).load()
        run.pool.check_can_scale()
        with run.manual_change([ManualChange.SCALING]) as record:
            record()
        self._latest = Scaling(
            executors,
            placement=self._placement,
            pool=run.pool,
            coordinator=run.coordinator,
            planner=planner,
            strategy=chosen,
            bounds=limits,
            patience_s=timeout_s,
        )
        return self._latest

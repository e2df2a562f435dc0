"""The coordinator: decisions between epochs on migrations, copies and recovery, through ports.

It owns the migration protocol and the single record of copies; gives each epoch its component views
and takes its outcome; orders copies to be warmed and dropped, and announces events.  It has no
threads, no clock and no I/O: the real runtime and the simulator drive the same object.  One lock
orders the calls of several threads; it is held during computation, never during I/O or waits.

Invariants: events are announced in the order of the decisions that they report; a refused fact
changes nothing and announces nothing; a view is an immutable value.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from godwit.migration.copies import Copies
from godwit.migration.messages import (
    Announce,
    Command,
    DropCopies,
    EndMigration,
    MigrationOutcome,
    StartWarming,
    SwitchAssignment,
)
from godwit.migration.on_demand import move_costs
from godwit.migration.outcome import RecentLoad
from godwit.migration.protocol import MigrationProtocol
from godwit.migration.regrouping import EndRegrouping, OngoingRegrouping, forget_oldest
from godwit.migration.sources import Delivery, Sources
from godwit.migration.strategy import Strategy
from godwit.model import events
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence

    from godwit.migration.messages import LanesRequested, MigrationRequested, RunStarted
    from godwit.migration.outcome import EpochOutcome, LoadSummary
    from godwit.migration.regrouping import Regrouping, RegroupingStage
    from godwit.migration.state import ComponentView, ProtocolView
    from godwit.migration.strategy import Policy
    from godwit.model.assignment import Assignment, Move
    from godwit.model.events import Event
    from godwit.placement.copy_routes import CopyRoute


_MIN_EPOCHS: Final = 4
"""Commits by which the time between two epochs is measured, at least."""
_MAX_EPOCHS: Final = 16

_T = TypeVar("_T")
_CallT = TypeVar("_CallT", bound="Callable[..., Any]")


def _locked(call: _CallT) -> _CallT:
    """Let a method of the coordinator run under its lock."""

    @wraps(call)
    def under_lock(coordinator: Coordinator, /, *args: Any, **kwargs: Any) -> Any:
        """Run the method under the lock."""
        with coordinator.locked():
            return call(coordinator, *args, **kwargs)

    return cast("_CallT", under_lock)


class Ports(Protocol):
    """The coordinator's ports to cluster, events and clock."""

    def warm(self, order: StartWarming) -> None:
        """Bring copies of key groups up to date in the background, by an order.

        Answered by `Coordinator.warmed` or `Coordinator.warming_failed`; no answer within a
        time-out counts as a failure.
        """

    def drop(self, order: DropCopies) -> None:
        """Delete copies in the background, after earlier orders to that executor."""

    def announce(self, event: Event) -> None:
        """Publish an event; events are in the order of the calls."""

    def now_s(self) -> float:
        """Return the present time in seconds, for events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Result of an order to warm copies."""

    # state → key group → version of the executor's table now
    tables: Mapping[Any, Mapping[int, int]]
    reach: Mapping[int, int]  # key group → epoch up to which the copy is complete
    duration_ms: float = 0.0  # of the order
    deliveries: tuple[Delivery, ...] = ()  # copies by source


class Coordinator:
    """Coordinates one run of a flow, for all threads of its driver.

    `ports`: they may be called during construction.
    `remembered`: loads of an earlier run, used until this run has processed rows.
    """

    def __init__(
        self,
        started: RunStarted,
        *,
        states: Mapping[str, Sequence[Hashable]],
        policy: Policy,
        ports: Ports,
        remembered: LoadSummary | None = None,
        plan: Any = None,
    ) -> None:
        self._ports, self._counted_until_s = ports, ports.now_s()
        self._changed, self._closed = threading.Condition(threading.RLock()), False
        self.plan = plan  # physical plan of the running or the next epoch
        self._regrouping: OngoingRegrouping | None = None
        # read under the lock; changed only by the coordinator
        self.copies = Copies(states)
        self._protocol = MigrationProtocol(started, policy, self.copies)
        self._sources = Sources(policy.copies_from)
        self._ended_migrations: dict[str, EndMigration] = {}
        self._ended_regroupings: dict[str, EndRegrouping] = {}
        self._committed_s: deque[float] = deque(maxlen=_MAX_EPOCHS)  # times of the last commits
        # recent cost of key groups; read under the lock
        self.recent_load = RecentLoad(remembered)
        self._view = self._protocol.view()
        for order in self._protocol.opening:
            self._carry_out_command(order, {})

    # -- threads -----------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[Coordinator]:
        """Context that makes several calls atomic towards other threads.

        Waiting threads check their conditions afterwards.
        """
        with self._changed:
            try:
                yield self
            finally:
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """True once the run is over."""
        return self._closed

    def close(self) -> None:
        """Wake all waiting threads; later waits return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for(self, ends: Mapping[str, _T], name: str, timeout_s: float | None) -> _T | None:
        """Wait for entry `name` of `ends`; return ``None`` after the time-out or the run's end."""
        with self._changed:
            self._changed.wait_for(lambda: name in ends or self._closed, timeout_s)
            return ends.get(name)

    # -- queries -----------------------------------------------------------------------------------

    @property
    def view(self) -> ProtocolView:
        """Current state of the protocol, as a value."""
        return self._view

    @property
    def regrouping(self) -> str | None:
        """Id of the regrouping in progress; ``None`` without one."""
        return None if self._regrouping is None else self._regrouping.request.id

    @property
    def copies_bytes_per_s(self) -> tuple[float | None, float | None]:
        """Recent throughput of copies from the checkpoint and from peers, where measured."""
        return self._sources.bytes_per_s

    @_locked
    def foresee(
        self, component: str, places: Mapping[int, str], state_bytes: Mapping[int, int]
    ) -> tuple[CopyRoute, ...]:
        """Return the routes of copies (from where to where) if key groups moved now.

        `places`: key group → executor. `state_bytes`: key group → bytes.
        """
        return self._sources.foresee(
            component,
            places,
            copies=self.copies,
            assignment=self._view.components[component].assignment,
            state_bytes=state_bytes,
        )

    def ended(self, migration: str, timeout_s: float | None = 0.0) -> EndMigration | None:
        """Wait for the end of a migration and return it; ``None`` if it has not ended by then.

        `timeout_s`: 0 does not wait; ``None`` waits without limit.
        """
        return self._wait_for(self._ended_migrations, migration, timeout_s)

    def ended_regrouping(
        self, regrouping: str, timeout_s: float | None = 0.0
    ) -> EndRegrouping | None:
        """Wait for the end of a regrouping and return it; ``None`` if it has not ended by then.

        `timeout_s`: see `ended`.
        """
        return self._wait_for(self._ended_regroupings, regrouping, timeout_s)

    # -- epochs -----------------------------------------------------------------------------------

    @_locked
    def begin(self, epoch: int) -> Mapping[str, ComponentView] | None:
        """Begin an epoch; return component → its state in it, or ``None`` while epochs are held."""
        if self._view.holds:
            self._announce_and_carry_out(self._protocol.hold_epoch(self._seconds_passed()))
            return None
        component_views = self._view.components
        self._announce_and_carry_out(self._protocol.begin_epoch(epoch))
        return component_views

    @_locked
    def commit(self, outcome: EpochOutcome) -> None:
        """Record the outcome of a committed epoch."""
        for executor, states in outcome.tables.items():
            if executor in self._view.executors:
                for state, versions in states.items():
                    self.copies.record_versions(executor, state, versions)
        self.recent_load.add_epoch(outcome)
        self._committed_s.append(self._ports.now_s())
        self._announce_and_carry_out(self._protocol.commit_epoch(outcome, self._seconds_passed()))

    @_locked
    def abort(self, epoch: int, reason: str) -> None:
        """Record that an attempt at an epoch has failed, and announce it."""
        self._announce_and_carry_out(self._protocol.abort_epoch(epoch, self._seconds_passed()))
        self.announce(events.EpochAborted, epoch=epoch, reason=reason)

    @_locked
    def advance_clock(self) -> None:
        """Advance the protocol's clock while no epoch runs, so that orders time out."""
        if self._view.running is None:
            self._announce_and_carry_out(self._protocol.hold_epoch(self._seconds_passed()))

    def _seconds_passed(self) -> int:
        """Return the whole seconds since the last call; 0 if the clock was set back."""
        now_s = self._ports.now_s()
        seconds = max(int(now_s - self._counted_until_s), 0)
        self._counted_until_s = min(self._counted_until_s + seconds, now_s)
        return seconds

    # -- executors --------------------------------------------------------------------------------

    @_locked
    def see(self, executors: Mapping[str, int], returned: Container[str] = ()) -> tuple[str, ...]:
        """Record the live executors (name → lanes); return the names of those that are lost.

        Executors that were released (`returned`) do not count as lost.
        """
        known_executors = self._view.executors
        lost = tuple(sorted(known_executors.keys() - executors.keys()))
        for name in lost:
            kind = events.ExecutorRemoved if name in returned else events.ExecutorLost
            self.announce(kind, executor=name)
            self._announce_and_carry_out(self._protocol.remove_executor(name))
        for name in sorted(executors.keys() - known_executors.keys()):
            self.announce(events.ExecutorAdded, executor=name, lanes=executors[name])
            self._announce_and_carry_out(self._protocol.add_executor(name, executors[name]))
        return lost

    # -- migrations -------------------------------------------------------------------------------

    @_locked
    def migrate(self, request: MigrationRequested) -> None:
        """Begin the requested migration, and announce it.

        Raises `InvalidPlanError` if the target cannot be reached; `MigrationError` if the component
        is already migrating, or is about to be replaced by a regrouping.
        """
        if self._regrouping is not None:
            self._regrouping.check_not_replaced(request)
        component = self._view.components.get(request.component)
        moving: tuple[Move, ...] = ()
        if component and component.assignment.num_key_groups == request.target.num_key_groups:
            moving = component.assignment.moves_to(request.target)
        request, chosen = self._choose_strategy(request)
        strategy, reason = self._protocol.suitable_strategy(request)
        if request.chooses:
            reason = chosen
        started = self._make_event(
            events.MigrationStarted,
            migration=request.id,
            component=request.component,
            strategy=strategy.value,
            reason=reason,
            moves=len(moving),
            state_bytes=sum(request.state_bytes.get(move.key_group, 0) for move in moving),
        )
        self._announce_and_carry_out(self._protocol.migrate(request), started)

    def _choose_strategy(self, request: MigrationRequested) -> tuple[MigrationRequested, str]:
        """Return a request with the strategy by which it costs least, and why that is not live.

        Unchanged if the request states its strategy. See `MoveCosts` and `why_load_first`.
        """
        component = self._view.components.get(request.component)
        if (
            not request.chooses
            or request.strategy is not Strategy.LIVE
            or component is None
            or component.assignment.num_key_groups != request.target.num_key_groups
            or len(self._committed_s) < _MIN_EPOCHS
        ):
            return request, ""
        period_s = (self._committed_s[-1] - self._committed_s[0]) / (len(self._committed_s) - 1)
        if period_s <= 0:
            return request, ""
        if why := self._why_on_demand(request, component.assignment, period_s):
            fetched = replace(request, strategy=Strategy.ON_DEMAND)
            if self._protocol.suitable_strategy(fetched)[0] is Strategy.ON_DEMAND:
                return fetched, why
        if why := self._protocol.why_load_first(request, period_s):
            return replace(request, strategy=Strategy.DISRUPTIVE), why
        return request, ""

    def _why_on_demand(
        self, request: MigrationRequested, assignment: Assignment, period_s: float
    ) -> str:
        """Return why a migration should be on demand and not live; else empty.

        `assignment`: of its component. `period_s`: between two epochs.
        """
        if not self._protocol.can_fetch(request.component):
            return ""
        return move_costs(
            assignment,
            request.target,
            lanes=self._view.executors,
            busy_ms=self.recent_load.mean_executor_busy_ms(),
            loads=self.recent_load.mean_busy_ms(request.component),
            keys=self.recent_load.mean_keys(request.component),
            state_bytes=request.state_bytes,
            bytes_per_s=max(filter(None, self.copies_bytes_per_s), default=None),
            period_s=period_s,
            bounds=request.bounds,
        ).why_on_demand()

    @_locked
    def change_lanes(self, request: LanesRequested) -> None:
        """Move key groups to other lanes of their executors; no state moves.

        Raises `InvalidPlanError` if a lane, key group or executor does not exist; `MigrationError`
        if the component is about to be replaced by a regrouping.
        """
        if self._regrouping is not None:
            self._regrouping.check_not_replaced(request)
        self._announce_and_carry_out(self._protocol.change_lanes(request))

    @_locked
    def drain(self, executor: str) -> None:
        """Mark an executor as draining: key groups no longer move to it."""
        new = executor in self._view.executors and executor not in self._view.draining
        event = self._make_event(events.ExecutorDraining, executor=executor) if new else None
        self._announce_and_carry_out(self._protocol.drain(executor), event)

    @_locked
    def stay(self, executor: str) -> None:
        """Cancel the draining of an executor."""
        new = executor in self._view.draining
        event = self._make_event(events.ExecutorKept, executor=executor) if new else None
        self._announce_and_carry_out(self._protocol.stay(executor), event)

    @_locked
    def cancel(self, migration: str, reason: str) -> None:
        """Cancel a migration or regrouping; key groups that have switched stay there."""
        if self._regrouping is not None and self._regrouping.request.id == migration:
            self._regrouping.cancel(reason)
        else:
            self._announce_and_carry_out(self._protocol.cancel(migration, reason))

    # -- components -------------------------------------------------------------------------------

    @_locked
    def regroup(self, request: Regrouping) -> None:
        """Begin to change to another physical plan.

        Raises `MigrationError` if such a change is in progress.
        """
        if self.regrouping is not None:
            raise MigrationError(
                f"Regrouping {request.id!r} is refused: regrouping {self.regrouping!r} is under "
                "way.",
                remedy="Wait for its end or cancel it, then plan again.",
                regrouping=self.regrouping,
            )
        if not request.stages:
            self.end_regrouping(request.id)
            return
        regrouping = OngoingRegrouping(self, request)
        regrouping.announce()
        self._regrouping = regrouping
        regrouping.advance()

    def regrouped(self, stage: RegroupingStage) -> None:
        """Continue with the components of another plan, whose loads are not known yet."""
        self.plan = stage.plan
        self._announce_and_carry_out(self._protocol.regroup(stage))
        self.recent_load = RecentLoad()

    def end_regrouping(self, regrouping: str, reason: str = "") -> None:
        """Record the end of a regrouping; with a reason, it was cancelled."""
        self._regrouping = None
        self._ended_regroupings[regrouping] = EndRegrouping(
            id=regrouping, done=not reason, reason=reason
        )
        forget_oldest(self._ended_regroupings)

    # -- copies -----------------------------------------------------------------------------------

    @_locked
    def warmed(self, order: StartWarming, warmed: Warmed) -> None:
        """Record the result of an order to warm copies, and announce it."""
        if order.executor not in self._view.executors:
            return
        if order.component not in self._view.components:
            return  # regrouped since: a later order has dropped these copies
        if order.index_only:
            self._announce_and_carry_out(self._protocol.warmed(order, {}))
            return
        for state, versions in warmed.tables.items():
            self.copies.record_versions(order.executor, state, versions)
        sizes = self._state_bytes_of(order)
        self._sources.record(warmed.deliveries, sizes)
        sent: list[int] = []
        for delivery in warmed.deliveries:
            if delivery.failure:
                self.announce(
                    events.PeerTransferFailed,
                    component=order.component,
                    executor=order.executor,
                    source=delivery.source,
                    key_groups=delivery.key_groups,
                    reason=delivery.failure,
                )
            elif delivery.source is not None:
                sent += delivery.key_groups
        self.announce(
            events.KeyGroupsWarmed,
            component=order.component,
            executor=order.executor,
            key_groups=order.key_groups,
            state_bytes=sum(sizes.get(key_group, 0) for key_group in order.key_groups),
            peer_bytes=sum(sizes.get(key_group, 0) for key_group in sent),
            duration_ms=warmed.duration_ms,
        )
        self._announce_and_carry_out(self._protocol.warmed(order, warmed.reach))

    @_locked
    def warming_failed(self, order: StartWarming, reason: str) -> None:
        """Record that an order to warm copies failed; it is repeated a few times."""
        if order.component in self._view.components:
            self._announce_and_carry_out(self._protocol.warming_failed(order, reason))

    # -- events ------------------------------------------------------------------------------------

    @_locked
    def announce(self, kind: type[events.Event], **values: Any) -> None:
        """Announce an event that happens now; `values`: its fields except time and epoch."""
        self._ports.announce(self._make_event(kind, **values))

    def background_failed(self, what: str, error: str) -> None:
        """Announce that the background work `what` has failed."""
        self.announce(events.BackgroundFailed, what=what, error=error)

    # -- internals ---------------------------------------------------------------------------------

    def _make_event(self, kind: type[events.Event], **values: Any) -> events.Event:
        """Return an event that happens now; `values`: its fields except time and epoch."""
        values.setdefault("epoch", self._view.committed)
        return kind(at_s=self._ports.now_s(), **values)

    def _announce_and_carry_out(
        self, orders: tuple[Command, ...], event: events.Event | None = None
    ) -> None:
        """Announce `event`, carry out the protocol's commands, and continue with a regrouping."""
        before, self._view = self._view, self._protocol.view()
        if event is not None:
            self._ports.announce(event)
        assignments = {name: component.assignment for name, component in before.components.items()}
        for order in orders:
            self._carry_out_command(order, assignments)
        if self._regrouping is not None:
            self._regrouping.advance()

    def _state_bytes_of(self, order: StartWarming) -> dict[int, int]:
        """Return key group → bytes of state for the copies that an order warms."""
        transfers = self._view.components[order.component].transfers
        return {transfer.key_group: transfer.state_bytes for transfer in transfers}

    def _carry_out_command(self, order: Command, before: Mapping[str, Any]) -> None:
        """Announce and carry out a command; `before`: component → its assignment before."""
        match order:
            case Announce(event, values):
                self.announce(event, **values)
            case SwitchAssignment(component=component, assignment=assignment):
                moves = before[component].moves_to(assignment) if component in before else ()
                self.announce(
                    events.AssignmentSwitched,
                    component=component,
                    version=assignment.version,
                    key_groups=tuple(move.key_group for move in moves),
                )
            case StartWarming(component=component, index_only=True):
                self._ports.warm(replace(order, states=self.copies.states(component)))
            case StartWarming(component=component):
                order = self._sources.choose(
                    order,
                    copies=self.copies,
                    assignment=self._view.components[component].assignment,
                    state_bytes=self._state_bytes_of(order),
                )
                self.announce(
                    events.WarmingStarted,
                    component=component,
                    executor=order.executor,
                    key_groups=order.key_groups,
                    peers=tuple(peer.executor for peer in order.peers),
                    why=order.why,
                )
                self._ports.warm(replace(order, states=self.copies.states(component)))
            case DropCopies(component=component):
                self._ports.drop(replace(order, states=self.copies.states(component)))
            case EndMigration():
                finished = order.outcome is MigrationOutcome.FINISHED
                self.announce(
                    events.MigrationFinished if finished else events.MigrationCancelled,
                    migration=order.id,
                    component=order.component,
                    moved=order.moved,
                    withdrawn=order.withdrawn,
                    **({} if finished else {"reason": order.reason}),
                )
                self._ended_migrations[order.id] = order
                forget_oldest(self._ended_migrations)

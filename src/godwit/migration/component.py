"""Transitions of one component: how its key groups change executor.

A key group is in one of these states::

    runs at A ──a plan──▶ queued ──room──▶ warming at B ──report──▶ warm ──boundary──▶ runs at B
        ▲                   └── withdrawn ◀──┘   ▲                   │ lags too far
        │                                        └─── next round ────┘
        │ A dies
        ▼
    suspended at C ──room──▶ warming at C ──report──▶ warm ──boundary──▶ runs at C

Invariants, after every fact:

- the next assignment is total and names only live executors, or epochs are held;
- a key group that is not suspended has a copy at its executor that lags by ``max_lag`` at most, or
  is in ``load``, or has run there since;
- planned moves switch only at a boundary, that is while no epoch runs; during an epoch only the
  loss of an executor moves key groups in the next assignment, and the running epoch keeps its own;
- transfers in flight respect the bounds.

The loss of an executor is an unplanned migration: its key groups get a new executor at once; those
without state there are suspended or loaded, and the other key groups continue.

Source: Ding et al. §3.2, rebuilt for epochs: the paper reroutes misrouted rows, but here an epoch
has one assignment; the paper's destination fetches state after the switch, but here the copy is
warmed before it, and wait buffers serve losses only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from godwit.migration.messages import (
    DropCopies,
    EndMigration,
    MigrationOutcome,
    StartWarming,
    SwitchAssignment,
)
from godwit.migration.placement import arrange, distribute_evenly
from godwit.migration.state import ComponentView, Transfer
from godwit.migration.strategy import UNBOUNDED, Bounds, LossPolicy, Strategy
from godwit.model import events
from godwit.model.assignment import Assignment, Move
from godwit.model.key_groups import PerKeyGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    import numpy.typing as npt

    from godwit.migration.messages import MigrationRequested
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ProtocolState

_INDEX_SECONDS: Final = 2
"""Seconds that a migration on demand waits at most until state is indexed; the first may be short.
"""


@dataclass(slots=True, kw_only=True)
class OngoingMigration:
    """A migration in progress."""

    request: MigrationRequested
    # key group → move not yet in flight, in order of execution
    moves: dict[int, Move]
    opened: bool = False  # the target's lanes and executors apply, since the first boundary
    activated: bool = False  # key groups have activated their standby slots where possible
    # attempt at indexing state → its executor, for those that have not ended; ``None``: not ordered
    indexing: dict[str, str] | None = None
    due: int = 0  # second from which on key groups switch, whether their state is indexed or not
    # the migration may end once a later epoch is committed, which started under the last
    # assignment
    ends_after: int = -2
    moved: int = 0
    withdrawn: int = 0
    reason: str = ""

    @property
    def strategy(self) -> Strategy:
        """Strategy of the requested migration."""
        return self.request.strategy

    def end(self, outcome: MigrationOutcome) -> EndMigration:
        """Return the command that ends this migration with an outcome."""
        return EndMigration(
            id=self.request.id,
            component=self.request.component,
            outcome=outcome,
            moved=self.moved,
            withdrawn=self.withdrawn,
            reason=self.reason,
        )

    def waits_for_indexes(self, seconds: int) -> bool:
        """Return true if key groups do not switch yet, since their state is being indexed."""
        return bool(self.indexing) and seconds < self.due

    @property
    def bounds(self) -> Bounds:
        """Limits of the migration; none while epochs are held for it."""
        return UNBOUNDED if self.strategy.holds_epochs else self.request.bounds


@dataclass(slots=True, kw_only=True)
class TrackedComponent:
    """The protocol's mutable record of one component, with its transitions."""

    name: str
    assignment: Assignment  # of the next epoch
    # executor → requested number of lanes of this component there
    lanes: dict[str, int]
    # shape ``(num_key_groups,)``: bytes of state, as last reported
    state_bytes: npt.NDArray[np.int64]
    waiting: set[int] = field(default_factory=set)  # key groups with rows in a wait buffer
    # key group that does not run → last epoch whose rows it has processed
    suspended: dict[int, int] = field(default_factory=dict)
    # key groups ordered to be loaded that have not run since
    load: set[int] = field(default_factory=set)
    # those of them, and others before, that are loaded whole
    whole: set[int] = field(default_factory=set)
    transfers: dict[int, Transfer] = field(default_factory=dict)  # key group → its transfer
    # executor → key groups that left it, whose copies are dropped at the next commit; until then
    # key groups can return to them if the new executor dies
    retired: dict[str, set[int]] = field(default_factory=dict)
    # all executors were lost: then every key group is lost, even if an executor returns under the
    # same name
    orphaned: bool = False
    migration: OngoingMigration | None = None

    # Queries.

    def lag(self, run: ProtocolState, key_group: int, executor: str) -> int:
        """Return the number of epochs that the copy at `executor` lacks at the next epoch."""
        version = self.suspended.get(key_group, run.horizon)
        return max(version - run.copies.reach(self.name, executor, key_group), 0)

    def view(self) -> ComponentView:
        """Return the component's state as a read-only value."""
        migration = self.migration
        return ComponentView(
            assignment=self.assignment,
            suspended=frozenset(self.suspended),
            waiting=frozenset(self.waiting),
            load=frozenset(self.load),
            whole=frozenset(self.load & self.whole),
            transfers=tuple(self.transfers[key_group] for key_group in sorted(self.transfers)),
            moves=tuple(migration.moves.values()) if migration else (),
            migration=migration.request.id if migration else None,
            strategy=migration.strategy if migration else None,
            by_hand=migration is not None and migration.request.by_hand,
            settling=migration is not None and not self._has_moves_left,
        )

    @property
    def _has_moves_left(self) -> bool:
        """True if planned moves are queued or in flight."""
        queued = self.migration is not None and bool(self.migration.moves)
        return queued or any(transfer.planned for transfer in self.transfers.values())

    def reason_to_hold(self) -> str | None:
        """Return the reason why epochs have to wait for this component; ``None`` if they do not."""
        migration = self.migration
        if migration is None or not migration.strategy.holds_epochs or not self._has_moves_left:
            return None
        return f"migration {migration.request.id} of {self.name} moves everything first"

    # At the end of an epoch.

    def committed(self, run: ProtocolState, outcome: EpochOutcome) -> None:
        """Update the component after a commit; `run` still has the commit before."""
        view = run.component_views[self.name]
        waited = set(outcome.waited.get(self.name, ()))
        for executor, versions in outcome.reach.get(self.name, {}).items():
            if executor in run.executors and executor not in run.lost:
                run.copies.record_reach(self.name, executor, versions)
        load = outcome.loads.get(self.name)
        if load is not None:
            self.state_bytes[load.key_groups] = load.state_bytes
        for key_group in self.suspended.keys() - view.suspended - waited:
            self.suspended[key_group] = (
                outcome.epoch
            )  # it ran, although its executor died during the epoch
        strays = waited - view.suspended - self.suspended.keys()
        for key_group in strays:  # its lane did not find the expected state
            run.copies.forget_copies(self.name, view.assignment.executor(key_group), [key_group])
            self.suspended[key_group] = run.committed
        run.announce(events.KeyGroupsSuspended, self.name, strays)
        self.waiting = (self.waiting - view.consume) | waited
        self.load -= strays | {
            key_group
            for key_group in view.load
            if view.assignment.executor(key_group) not in run.lost
        }
        for executor, key_groups in sorted(self.retired.items()):
            self.drop(run, executor, key_groups)
        self.retired.clear()

    def expire(self, run: ProtocolState) -> None:
        """Repeat orders for copies that failed or timed out; give up after too many attempts."""
        for key_group, transfer in sorted(self.transfers.items()):
            if transfer.warm or transfer.due > run.seconds:
                continue
            if transfer.tries + 1 < run.policy.max_attempts:
                former_attempts = (
                    *transfer.former,
                    *([transfer.attempt] if transfer.attempt else []),
                )
                self.transfers[key_group] = replace(
                    transfer, attempt=None, former=former_attempts, tries=transfer.tries + 1
                )
            elif transfer.planned:
                reason = f": {transfer.failure}" if transfer.failure else ""
                self.withdraw(
                    run, f"warming at {transfer.destination} failed{reason}", only=key_group
                )
            else:
                del self.transfers[key_group], self.suspended[key_group]
                self.load.add(key_group)
                run.announce(events.KeyGroupsResumed, self.name, [key_group])
                run.announce(events.KeyGroupsLoaded, self.name, [key_group])

    def record_state_bytes(self, state_bytes: Mapping[int, int]) -> None:
        """Record the state sizes of key groups: key group → bytes."""
        known = PerKeyGroup.of(state_bytes)
        self.state_bytes[known.key_groups] = known.numbers

    # Transfers and switches.

    def start_transfers(self, run: ProtocolState) -> bool:
        """Order copies to be warmed within the limits: suspended key groups, then planned moves.

        Planned moves wait while any key group is suspended, since its rows wait. Returns true if a
        copy is already warm, so that its key group can switch at once.
        """
        already_transferred = set(self.transfers)
        self._record_transfers(run, self._next_recoveries(), run.policy.recovery, planned=False)
        migration = self.migration
        if migration is not None and self._may_start_moves(migration):
            # Stopping the world means flushing first: the running epoch must end.
            may_move = run.running is None or not migration.strategy.holds_epochs
            moves = migration.moves.values() if may_move else ()
            self._record_transfers(run, moves, migration.bounds, planned=True)
        if migration is not None and migration.strategy is Strategy.ON_DEMAND:
            self._order_indexes(run, migration)
        self._order_copies(run)
        return any(
            transfer.warm
            for key_group, transfer in self.transfers.items()
            if key_group not in already_transferred
        )

    def _next_recoveries(self) -> list[Move]:
        """Return recoveries of suspended key groups without a transfer, those with rows first."""
        key_groups = [key_group for key_group in self.suspended if key_group not in self.transfers]
        key_groups.sort(key=lambda key_group: (key_group not in self.waiting, key_group))
        recoveries = []
        for key_group in key_groups:
            owner, size = self.assignment.executor(key_group), int(self.state_bytes[key_group])
            recoveries.append(
                Move(key_group=key_group, source=owner, destination=owner, state_bytes=size)
            )
        return recoveries

    def _may_start_moves(self, migration: OngoingMigration) -> bool:
        """Return whether copies for planned moves may be ordered now."""
        strategy = migration.strategy
        awaits_standby = strategy.activates_standby and not migration.activated
        return strategy.warms and not (self.suspended or awaits_standby)

    def _order_copies(self, run: ProtocolState) -> None:
        """Order the copies of transfers that have no attempt, one order per destination."""
        unordered: dict[str, list[int]] = {}
        for key_group, transfer in self.transfers.items():
            if transfer.attempt is None and not transfer.warm:
                unordered.setdefault(transfer.destination, []).append(key_group)
        for executor, key_groups in sorted(unordered.items()):
            attempt = run.next_attempt()
            for key_group in key_groups:
                transfer = self.transfers[key_group]
                due = run.seconds + (run.policy.patience << transfer.tries)
                self.transfers[key_group] = replace(transfer, attempt=attempt, due=due)
            run.orders.append(
                StartWarming(
                    component=self.name,
                    executor=executor,
                    key_groups=tuple(sorted(key_groups)),
                    attempt=attempt,
                )
            )

    def _order_indexes(self, run: ProtocolState, migration: OngoingMigration) -> None:
        """Order the state of all moves to be indexed at their destinations, once."""
        if migration.indexing is not None:
            return
        migration.indexing, migration.due = {}, run.seconds + _INDEX_SECONDS
        moving: dict[str, list[int]] = {}
        for key_group, move in migration.moves.items():
            if self.lag(run, key_group, move.destination) > migration.bounds.max_lag:
                moving.setdefault(move.destination, []).append(key_group)
        for executor, key_groups in sorted(moving.items()):
            attempt = run.next_attempt()
            migration.indexing[attempt] = executor
            run.orders.append(
                StartWarming(
                    component=self.name,
                    executor=executor,
                    key_groups=tuple(sorted(key_groups)),
                    attempt=attempt,
                    index_only=True,
                )
            )

    def end_indexing(self, *, attempt: str = "", executor: str = "") -> None:
        """Wait no longer for an attempt at indexing, or for those of an executor."""
        if self.migration is not None and self.migration.indexing:
            self.migration.indexing = {
                a: e for a, e in self.migration.indexing.items() if a != attempt and e != executor
            }

    def _record_transfers(
        self, run: ProtocolState, moves: Iterable[Move], bounds: Bounds, *, planned: bool
    ) -> None:
        """Record transfers for the next moves within the limits.

        `planned`: moves of the migration, which are removed from it; else recoveries.
        """
        flying = [t for t in self.transfers.values() if t.planned == planned]
        admitted = admit(
            moves,
            bounds,
            in_flight=len(flying),
            in_flight_bytes=sum(t.state_bytes for t in flying),
        )
        for move in admitted:
            if planned and self.migration is not None:
                del self.migration.moves[move.key_group]
            self.transfers[move.key_group] = Transfer(
                key_group=move.key_group,
                destination=move.destination,
                state_bytes=move.state_bytes,
                planned=planned,
                warm=self.lag(run, move.key_group, move.destination) <= bounds.max_lag,
            )

    def switch(self, run: ProtocolState) -> None:
        """Switch key groups with warm copies, and begin a queued migration, between epochs."""
        migration = self.migration
        ready, load = self._ready_transfers(run), set[int]()
        places = {key_group: self.transfers[key_group].destination for key_group in ready}
        limits = {
            key_group: self._transfer_bounds(run, self.transfers[key_group]).max_lag
            for key_group in ready
        }
        for key_group in ready:
            transfer = self.transfers.pop(key_group)
            if self.lag(run, key_group, transfer.destination) > limits[key_group]:
                load.add(key_group)
            if transfer.planned and migration is not None:
                migration.moved += 1
        indexing = migration is not None and migration.waits_for_indexes(run.seconds)
        if migration is not None and not (migration.strategy.warms or indexing):
            for key_group, move in migration.moves.items():
                self.transfers.pop(key_group, None)
                places[key_group] = move.destination
                if self.lag(run, key_group, move.destination) > migration.bounds.max_lag:
                    load.add(key_group)
            migration.moved += len(migration.moves)
            migration.moves.clear()
        opening = migration is not None and not (migration.opened or indexing)
        if not places and not opening:
            return
        if migration is not None and opening:
            migration.opened = True
            target = migration.request.target
            self.lanes.update(zip(target.executors, target.lanes, strict=True))
        for key_group, destination in places.items():
            source = self.assignment.executor(key_group)
            if source != destination:
                self.retired.setdefault(source, set()).add(key_group)
        self.switch_to(run, self.arranged(run, places, align=opening))
        resumed = places.keys() & self.suspended.keys()
        for key_group in resumed:
            del self.suspended[key_group]
        self.load = (self.load - places.keys()) | load
        strategy = None if migration is None else migration.strategy
        self.whole -= places.keys()
        if strategy is Strategy.DISRUPTIVE:
            self.whole |= load
        fetched = strategy is Strategy.ON_DEMAND
        run.announce(events.KeyGroupsLoaded, self.name, load, on_demand=fetched)
        run.announce(events.KeyGroupsResumed, self.name, resumed)

    def _ready_transfers(self, run: ProtocolState) -> list[int]:
        """Return the key groups whose copies are up to date; order copies that lag once more."""
        ready = []
        for key_group, transfer in sorted(self.transfers.items()):
            bounds = self._transfer_bounds(run, transfer)
            if not transfer.warm:
                continue
            is_fresh = self.lag(run, key_group, transfer.destination) <= bounds.max_lag
            if is_fresh or transfer.rounds >= bounds.max_rounds:
                ready.append(key_group)
            else:
                self.transfers[key_group] = replace(
                    transfer,
                    attempt=None,
                    former=(),
                    warm=False,
                    rounds=transfer.rounds + 1,
                    tries=0,
                )
        planned = {key_group for key_group, transfer in self.transfers.items() if transfer.planned}
        migration = self.migration
        if migration is None or not migration.strategy.holds_epochs:
            return ready
        is_complete = not migration.moves and planned <= set(ready)
        return (
            ready if is_complete else [key_group for key_group in ready if key_group not in planned]
        )

    def _transfer_bounds(self, run: ProtocolState, transfer: Transfer) -> Bounds:
        """Return the limits of a transfer: those of its migration, or those of recovery."""
        if transfer.planned and self.migration is not None:
            return self.migration.bounds
        return run.policy.recovery

    def finish(self, run: ProtocolState) -> None:
        """End the migration in progress if it has no moves left; called between epochs."""
        migration = self.migration
        if migration is None or self._has_moves_left or run.committed <= migration.ends_after:
            return
        nothing_left = migration.withdrawn and not migration.moved
        self.end_migration(
            run, MigrationOutcome.CANCELLED if nothing_left else MigrationOutcome.FINISHED
        )

    def end_migration(self, run: ProtocolState, outcome: MigrationOutcome) -> None:
        """End the migration in progress with an outcome."""
        migration, self.migration = self.migration, None
        if migration is not None:
            run.orders.append(migration.end(outcome))

    def withdraw(
        self, run: ProtocolState, reason: str, *, onto: str | None = None, only: int | None = None
    ) -> None:
        """Cancel moves that have not switched: all, those to executor `onto`, or that of `only`."""
        migration = self.migration
        if migration is None:
            return
        withdrawn_before = migration.withdrawn
        unused: dict[str, list[int]] = {}
        for key_group, move in list(migration.moves.items()):
            if onto in (None, move.destination) and only in (None, key_group):
                del migration.moves[key_group]
                migration.withdrawn += 1
                if migration.indexing is not None:  # the index goes with the copies
                    unused.setdefault(move.destination, []).append(key_group)
        for key_group, transfer in sorted(self.transfers.items()):
            is_concerned = onto in (None, transfer.destination) and only in (None, key_group)
            if transfer.planned and is_concerned:
                del self.transfers[key_group]
                unused.setdefault(transfer.destination, []).append(key_group)
                migration.withdrawn += 1
        if migration.withdrawn > withdrawn_before:
            migration.reason = reason
        for executor, key_groups in sorted(unused.items()):
            self.drop(run, executor, key_groups)

    # The assignment and the copies.

    def arranged(
        self, run: ProtocolState, places: Mapping[int, str], *, align: bool = False
    ) -> Assignment:
        """Return the next assignment, with key groups moved; see `arrange`.

        `places`: key group → executor.
        """
        migration = self.migration
        target = migration.request.target if migration and migration.opened else None
        listed = target.executors if target is not None else self.assignment.executors
        return arrange(
            self.assignment,
            places,
            roster=[name for name in listed if name in run.executors],
            lanes=run.executors | self.lanes,
            target=target,
            align=align,
        )

    def switch_to(self, run: ProtocolState, assignment: Assignment) -> None:
        """Use an assignment from the next epoch on, and order the switch."""
        if assignment == self.assignment:
            return
        self.assignment = assignment
        if self.migration is not None:
            self.migration.ends_after = run.horizon
        run.orders.append(SwitchAssignment(component=self.name, assignment=assignment))

    def drop(self, run: ProtocolState, executor: str, key_groups: Iterable[int]) -> None:
        """Order the deletion of an executor's copies, except those in use or being warmed."""
        if executor not in run.executors:
            return
        unused = []
        for key_group in sorted(key_groups):
            transfer = self.transfers.get(key_group)
            awaited = transfer is not None and transfer.destination == executor
            if not awaited and self.assignment.executor(key_group) != executor:
                unused.append(key_group)
                run.copies.forget_copies(self.name, executor, [key_group])
        if unused:
            run.orders.append(
                DropCopies(component=self.name, executor=executor, key_groups=tuple(unused))
            )


def relocate(component: TrackedComponent, run: ProtocolState) -> None:
    """Assign key groups of lost executors to other executors, from the next epoch on."""
    component.orphaned |= not run.executors
    gone = [
        name
        for name in component.assignment.executors
        if component.orphaned or name not in run.executors
    ]
    if not gone or not run.executors:
        return
    component.orphaned = False
    lost = [
        key_group for name in gone for key_group in component.assignment.key_groups(name).tolist()
    ]
    places = _new_places(component, run, lost)
    component.switch_to(run, component.arranged(run, places))
    suspend_or_load(component, run, lost)


def _new_places(
    component: TrackedComponent, run: ProtocolState, lost: Iterable[int]
) -> dict[int, str]:
    """Return new executors for lost key groups: as planned, else by freshest copy, else evenly."""
    places: dict[int, str] = {}
    without_copy: list[int] = []
    migration, max_lag = component.migration, run.policy.recovery.max_lag
    for key_group in lost:
        transfer = component.transfers.get(key_group)
        copies = [
            (component.lag(run, key_group, name), name)
            for name in run.copies.holders(component.name, key_group)
        ]
        if migration is not None and key_group in migration.moves:
            places[key_group] = migration.moves.pop(key_group).destination
            migration.moved += 1
        elif migration is not None and transfer is not None and transfer.planned:
            places[key_group] = transfer.destination
            component.transfers[key_group] = replace(transfer, planned=False)
            migration.moved += 1
        elif copies and min(copies)[0] <= max_lag:
            places[key_group] = min(copies)[1]
        else:
            without_copy.append(key_group)
    return places | distribute_evenly(
        without_copy,
        candidates=run.executors.keys() - run.draining or run.executors.keys(),
        assignment=component.assignment,
        state_bytes=dict(enumerate(component.state_bytes.tolist())),
    )


def suspend_or_load(
    component: TrackedComponent, run: ProtocolState, key_groups: Iterable[int]
) -> None:
    """Suspend key groups without an up-to-date copy at their executor, or order these loaded."""
    running = [key_group for key_group in key_groups if key_group not in component.suspended]
    cold = {
        key_group
        for key_group in running
        if component.lag(run, key_group, component.assignment.executor(key_group))
        > run.policy.recovery.max_lag
    }
    component.load.difference_update(running)
    component.whole.difference_update(running)
    fetches = run.on_cold is LossPolicy.ON_DEMAND and not (
        run.on_demand.obstacle(run.copies.states(component.name))
        or run.on_demand.too_little(cold, component.assignment, component.state_bytes)
    )
    if fetches or run.on_cold is LossPolicy.LOAD:
        component.load |= cold
        suspended = set[int]()
    else:
        component.suspended.update(dict.fromkeys(sorted(cold), run.committed))
        suspended = cold
    for key_group in running:
        transfer = component.transfers.get(key_group)
        if key_group not in suspended and transfer is not None and not transfer.planned:
            del component.transfers[key_group]
    run.announce(events.KeyGroupsSuspended, component.name, suspended)
    run.announce(events.KeyGroupsLoaded, component.name, cold - suspended, on_demand=fetches)


def admit(
    moves: Iterable[Move], bounds: Bounds, *, in_flight: int = 0, in_flight_bytes: int = 0
) -> list[Move]:
    """Return the longest prefix of `moves` that fits the limits, with those in flight.

    If none is in flight, the first move is always included; else a key group larger than the limit
    could never move.
    """
    admitted: list[Move] = []
    for move in islice(moves, max(bounds.max_moves - in_flight, 0)):
        if in_flight + len(admitted) and in_flight_bytes + move.state_bytes > bounds.max_bytes:
            break
        admitted.append(move)
        in_flight_bytes += move.state_bytes
    return admitted

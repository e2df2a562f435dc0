"""Migration protocol: a state machine that takes facts one by one and returns commands.

Each method records one fact; `component` has the transitions of one component, and
`_advance_components` advances every component in the same way after every fact, so that the result
does not depend on the order of facts.

A refused input raises and changes nothing.  The calls of the runtime (epochs, executors, requests)
come once and in order.  Reports of warming come from background jobs: they may be lost, late,
repeated, or belong to a replaced attempt.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration.component import OngoingMigration, TrackedComponent, relocate, suspend_or_load
from godwit.migration.copies import Copies
from godwit.migration.messages import Announce, Command, MigrationOutcome
from godwit.migration.on_demand import why_load_first
from godwit.migration.placement import change_lanes, check_target, order_moves
from godwit.migration.regrouping import merged
from godwit.migration.slots import activate_standby, active_key_groups, instant_key_groups, pair_of
from godwit.migration.state import ProtocolState, ProtocolView
from godwit.migration.strategy import Policy, Strategy
from godwit.model import events
from godwit.model.errors import MigrationError
from godwit.model.key_groups import PerKeyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from godwit.migration.messages import (
        LanesRequested,
        MigrationRequested,
        RunStarted,
        StartWarming,
    )
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.regrouping import RegroupingStage
    from godwit.migration.state import ComponentView


class MigrationProtocol:
    """State machine of migrations. Deterministic; no I/O, no clock, no threads.

    Between epochs call `next_epoch`. All other methods record a fact, and return the commands that
    follow from it: carry them out in order. If a fact is impossible, or a request comes at the
    wrong time, they raise `MigrationError` and change nothing.

    Examples
    --------
    >>> from godwit.migration.messages import RunStarted
    >>> from godwit.model.assignment import even_assignment
    >>> first = even_assignment(2, ["a"], [1])
    >>> protocol = MigrationProtocol(
    ...     RunStarted(run_id="r", executors={"a": 1}, assignments={"sum": first})
    ... )
    >>> protocol.opening
    ()
    >>> protocol.next_epoch()["sum"].assignment.key_groups("a").tolist()
    [0, 1]
    """

    def __init__(
        self,
        started: RunStarted,
        policy: Policy | None = None,
        copies: Copies | None = None,
    ) -> None:
        policy = policy or Policy()
        self._holds: tuple[str, ...] = ()
        self._run = ProtocolState(
            run_id=started.run_id,
            policy=policy,
            on_cold=policy.on_start,
            executors=dict(started.executors),
            copies=Copies() if copies is None else copies,
            committed=started.committed,
            slots=started.slots,
            on_demand=started.on_demand,
        )
        self._components = {
            name: TrackedComponent(
                name=name,
                assignment=assignment,
                lanes=dict(zip(assignment.executors, assignment.lanes, strict=True)),
                waiting=set(started.waiting.get(name, ())),
                state_bytes=np.zeros(assignment.num_key_groups, np.int64),
            )
            for name, assignment in sorted(started.assignments.items())
        }
        for component in self._components.values():
            component.record_state_bytes(started.state_bytes.get(component.name, {}))
            relocate(component, self._run)
            if self._run.executors:
                everything = set(range(component.assignment.num_key_groups))
                suspend_or_load(component, self._run, sorted(everything - component.load))
        # first commands of the run, in order (executors of the durable assignments may be gone, and
        # every local store is empty)
        self.opening = self._advance_components()

    def next_epoch(self) -> Mapping[str, ComponentView]:
        """Return component → how it runs in the next epoch.

        Raises `MigrationError` if an epoch runs, or epochs are held.
        """
        running = self._run.running
        if running is not None or self._holds:
            why = "; ".join(self._holds) if running is None else f"epoch {running} runs"
            raise MigrationError(
                f"No epoch may start now: {why}.",
                remedy="Wait for the commit or the abort, or for the release of epochs.",
            )
        return self.view().components

    def view(self) -> ProtocolView:
        """Return the whole state of the protocol as a read-only value."""
        run = self._run
        return ProtocolView(
            executors=MappingProxyType(dict(run.executors)),
            draining=frozenset(run.draining),
            committed=run.committed,
            running=run.running,
            holds=self._holds,
            begun_by_hand=MappingProxyType(dict(run.begun_by_hand)),
            components=MappingProxyType(
                {
                    name: replace(
                        component.view(),
                        takes=takes,
                        smooth=smooth,
                        instant=instant_key_groups(component, self._components, run),
                    )
                    for name, component in self._components.items()
                    for takes, smooth in [active_key_groups(component, run)]
                }
            ),
        )

    def _advance_components(self) -> tuple[Command, ...]:
        """Advance every component after a fact, and return the commands that follow."""
        run, before = self._run, self._holds
        holds = self._reasons_to_hold()
        # Epochs are held before all other orders, and released after them.
        run.orders[:0] = [
            Announce(events.EpochsHeld, {"reason": reason})
            for reason in holds
            if reason not in before
        ]
        if run.executors:
            for component in self._components.values():
                component.start_transfers(run)
                while run.running is None:
                    activate_standby(component, self._components, run)
                    component.switch(run)
                    if not component.start_transfers(run):
                        component.finish(run)
                        break
        self._holds = self._reasons_to_hold()
        if (before or holds) and not self._holds:
            run.orders.append(Announce(events.EpochsReleased))
        orders, run.orders = tuple(run.orders), []
        return orders

    def _reasons_to_hold(self) -> tuple[str, ...]:
        """Return the reasons why no epoch may start now; empty if one may."""
        if not self._run.executors:
            return ("no executor is left",)
        reasons = (component.reason_to_hold() for component in self._components.values())
        return tuple(reason for reason in reasons if reason is not None)

    def _advance_time(self, seconds: int) -> None:
        """Advance the clock by seconds; orders for copies that time out are repeated."""
        self._run.seconds += seconds
        for component in self._components.values():
            component.expire(self._run)

    # Epochs. `seconds`: whole seconds since the last call with this argument.

    def begin_epoch(self, epoch: int) -> tuple[Command, ...]:
        """Record that an epoch begins, as `next_epoch` planned it.

        Raises `MigrationError` if another epoch runs, or this one is already committed.
        """
        component_views = self.next_epoch()
        if epoch <= self._run.committed:
            raise MigrationError(
                f"Epoch {epoch} is already committed (the last one is {self._run.committed}).",
                remedy="Skip an epoch that has its record.",
                epoch=epoch,
            )
        self._run.running, self._run.component_views, self._run.lost = epoch, component_views, set()
        return self._advance_components()

    def abort_epoch(self, epoch: int, seconds: int = 1) -> tuple[Command, ...]:
        """Record that an attempt at an epoch failed, and that `seconds` have passed."""
        self._end_epoch(epoch, "aborted")
        self._advance_time(seconds)
        return self._advance_components()

    def hold_epoch(self, seconds: int = 1) -> tuple[Command, ...]:
        """Let `seconds` pass without an epoch: epochs are held, or only copies are awaited."""
        self._advance_time(seconds)
        return self._advance_components()

    def _end_epoch(self, epoch: int, how: str) -> None:
        """End the running epoch; raise if another one runs. `how`: end of this one, as text."""
        running = self._run.running
        if running != epoch:
            raise MigrationError(
                f"Epoch {epoch} was {how}, but it is not the one that runs "
                f"({'none' if running is None else running}).",
                remedy="Report every epoch's start and end once, in order.",
                epoch=epoch,
            )
        self._run.running = None

    def commit_epoch(self, outcome: EpochOutcome, seconds: int = 1) -> tuple[Command, ...]:
        """Record the outcome of the running epoch, now durable, and that `seconds` have passed."""
        self._end_epoch(outcome.epoch, "committed")
        for component in self._components.values():
            component.committed(self._run, outcome)
        for pair in self._run.slots:
            pair.record_empty(outcome.empty)
        self._run.committed = outcome.epoch
        self._run.on_cold = self._run.policy.on_loss
        self._advance_time(seconds)
        return self._advance_components()

    # Requests.

    def _existing_component(self, name: str) -> TrackedComponent:
        """Return the component of this name; raise `MigrationError` if it does not exist."""
        if name not in self._components:
            raise MigrationError(
                f"There is no component {name!r}.",
                remedy=f"Components are {', '.join(self._components)}.",
                component=name,
            )
        return self._components[name]

    def migrate(self, request: MigrationRequested) -> tuple[Command, ...]:
        """Begin a migration.

        Raises `InvalidPlanError` if the target cannot be reached, and `MigrationError` if the
        component has a migration already, or cannot migrate by this strategy.
        """
        component = self._existing_component(request.component)
        if component.migration is not None:
            raise MigrationError(
                f"Migration {request.id!r} of component {component.name!r} is refused: migration "
                f"{component.migration.request.id!r} is under way.",
                remedy="Wait for its end or cancel it, then plan again on its result.",
                component=component.name,
                migration=component.migration.request.id,
            )
        if request.strategy.activates_standby and pair_of(self._run, component.name) is None:
            raise MigrationError(
                f"Component {component.name!r} cannot migrate by strategy "
                f"{request.strategy.value!r}: its "
                "state cannot be split over two executors, or its parts could not be merged.",
                remedy="Migrate it by 'live'. Aggregates of windows of fixed lengths can be "
                "migrated so with window(..., consolidate='apart'), without other operators in "
                "their component.",
                component=component.name,
                strategy=request.strategy.value,
            )
        if request.strategy is Strategy.ON_DEMAND and (
            why := self._run.on_demand.obstacle(self._run.copies.states(component.name))
        ):
            raise MigrationError(
                f"Component {component.name!r} cannot migrate by strategy "
                f"{request.strategy.value!r}: "
                f"{why}.",
                remedy="Migrate it by 'live', or by 'disruptive' if it has to leave at once.",
                component=component.name,
                strategy=request.strategy.value,
            )
        executors, draining = self._run.executors, self._run.draining
        check_target(
            component.name,
            component.assignment,
            request.target,
            executors=executors,
            draining=draining,
        )
        component.record_state_bytes(request.state_bytes)
        request = replace(request, strategy=self.suitable_strategy(request)[0])
        moves = order_moves(
            (
                replace(move, state_bytes=int(component.state_bytes[move.key_group]))
                for move in component.assignment.moves_to(request.target)
            ),
            component.assignment,
            request.loads,
        )
        rank = {key_group: number for number, key_group in enumerate(request.order)}
        moves = tuple(sorted(moves, key=lambda move: rank.get(move.key_group, len(rank))))
        component.migration = OngoingMigration(
            request=request, moves={move.key_group: move for move in moves}
        )
        if request.by_hand:
            begun = self._run.begun_by_hand
            begun[component.name] = begun.get(component.name, 0) + 1
        return self._advance_components()

    def can_fetch(self, component: str) -> bool:
        """Return whether a component's state can be fetched on demand in all epochs."""
        states, on_demand = self._run.copies.states(component), self._run.on_demand
        return not on_demand.obstacle(states) and not {*states} & {*on_demand.timed}

    def suitable_strategy(self, request: MigrationRequested) -> tuple[Strategy, str]:
        """Return the strategy by which a request is carried out, and the reason if it differs.

        State that is too small to be fetched on demand migrates live.
        """
        component, strategy = self._components.get(request.component), request.strategy
        if (
            component is None
            or strategy is not Strategy.ON_DEMAND
            or request.target.num_key_groups != component.assignment.num_key_groups
        ):
            return strategy, ""
        moving, sizes = _moving_sizes(component, request)
        reason = self._run.on_demand.too_little(moving, request.target, sizes)
        return (Strategy.LIVE, reason) if reason else (strategy, "")

    def why_load_first(self, request: MigrationRequested, period_s: float) -> str:
        """Return why the next epoch should load the state of moved key groups; else empty.

        Never where an epoch runs, in which copies may be made, or the checkpoint is not on a local
        disk. `period_s`: between two epochs.
        """
        component = self._components.get(request.component)
        if (
            component is None
            or self._run.running is not None
            or not self._run.on_demand.local
            or request.target.num_key_groups != component.assignment.num_key_groups
        ):
            return ""
        moving, sizes = _moving_sizes(component, request)
        return why_load_first(
            moving, request.target, sizes, relief=request.relief, period_s=period_s
        )

    def cancel(self, migration: str, reason: str) -> tuple[Command, ...]:
        """End a migration, and cancel its remaining moves; raise if the id is unknown."""
        for component in self._components.values():
            if component.migration is not None and component.migration.request.id == migration:
                component.withdraw(self._run, reason)
                component.end_migration(self._run, MigrationOutcome.CANCELLED)
                return self._advance_components()
        raise MigrationError(
            f"There is no migration {migration!r} under way.",
            remedy="It may have ended; look at the events of the run.",
            migration=migration,
        )

    def change_lanes(self, request: LanesRequested) -> tuple[Command, ...]:
        """Move key groups to other lanes of their executors.

        Raises `InvalidPlanError` if a lane, key group or executor does not exist.
        """
        component = self._existing_component(request.component)
        changed = change_lanes(
            component.name, component.assignment, lanes=request.lanes, lane_of=request.lane_of
        )
        component.lanes.update(request.lanes)
        component.switch_to(self._run, changed)
        return self._advance_components()

    def regroup(self, stage: RegroupingStage) -> tuple[Command, ...]:
        """Replace components by those of another physical plan; raise while an epoch runs."""
        if self._run.running is not None:
            raise MigrationError(
                f"Components cannot change while epoch {self._run.running} runs.",
                remedy="Report its end first.",
                epoch=self._run.running,
            )
        merged_components = merged(stage, self._components)
        replaced = {name for parts in stage.parts.values() for name in parts}
        unchanged = {
            name: component for name, component in self._components.items() if name not in replaced
        }
        self._components = dict(sorted((unchanged | merged_components).items()))
        self._run.copies.regroup(stage.parts, stage.states)
        return self._advance_components()

    def drain(self, executor: str) -> tuple[Command, ...]:
        """Mark an executor as draining: key groups no longer move to it."""
        if executor in self._run.executors:
            self._run.draining.add(executor)
            for component in self._components.values():
                component.withdraw(self._run, f"executor {executor} is draining", onto=executor)
        return self._advance_components()

    def stay(self, executor: str) -> tuple[Command, ...]:
        """Cancel the draining of an executor: key groups may move onto it again."""
        self._run.draining.discard(executor)
        return self._advance_components()

    # Reports of warming: they may be lost, late, repeated, or answer a replaced attempt.

    def warmed(self, order: StartWarming, reach: Mapping[int, int]) -> tuple[Command, ...]:
        """Record the warm copies of an order, and order unneeded copies to be deleted.

        `reach`: key group → epoch; all changes of committed epochs up to it are in the copy. Key
        groups of the order without an entry are still in progress.
        """
        component = self._existing_component(order.component)
        if order.index_only:
            component.end_indexing(attempt=order.attempt)
            return self._advance_components()
        unwanted, copies = [], self._run.copies
        for key_group, version in reach.items():
            transfer = component.transfers.get(key_group)
            if transfer is not None and order.attempt in (transfer.attempt, *transfer.former):
                known_version = copies.reach(component.name, order.executor, key_group)
                copies.record_reach(
                    component.name, order.executor, {key_group: max(version, known_version)}
                )
                component.transfers[key_group] = replace(transfer, warm=True)
            else:
                unwanted.append(key_group)
        component.drop(self._run, order.executor, unwanted)
        return self._advance_components()

    def warming_failed(self, order: StartWarming, reason: str) -> tuple[Command, ...]:
        """Schedule the copies of a failed order for another order, a second later."""
        component = self._existing_component(order.component)
        if order.index_only:
            component.end_indexing(attempt=order.attempt)
            return self._advance_components()
        for key_group in order.key_groups:
            transfer = component.transfers.get(key_group)
            if transfer is not None and transfer.attempt == order.attempt and not transfer.warm:
                # Not at once: an immediate retry is likely to fail again.
                due = self._run.seconds + 1
                component.transfers[key_group] = replace(transfer, due=due, failure=reason)
        return self._advance_components()

    # Executors.

    def add_executor(self, executor: str, lanes: int) -> tuple[Command, ...]:
        """Record that an executor with an empty local store joined."""
        self._run.executors[executor] = lanes
        for component in self._components.values():
            relocate(component, self._run)  # all executors may have been lost
        return self._advance_components()

    def remove_executor(self, executor: str) -> tuple[Command, ...]:
        """Assign the key groups of a lost executor to others, which suspend or load them."""
        run = self._run
        if executor not in run.executors:
            return self._advance_components()
        del run.executors[executor]
        run.draining.discard(executor)
        run.copies.forget_executor(executor)
        run.lost.add(executor)
        for component in self._components.values():
            component.retired.pop(executor, None)
            component.lanes.pop(executor, None)
            component.withdraw(run, f"executor {executor} was lost", onto=executor)
            component.end_indexing(executor=executor)
            for key_group, transfer in list(component.transfers.items()):
                if transfer.destination == executor:
                    del component.transfers[key_group]
            relocate(component, run)
        return self._advance_components()


def _moving_sizes(
    component: TrackedComponent, request: MigrationRequested
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the key groups that a request moves, and the bytes of state of all, as known best."""
    sizes, known = component.state_bytes.copy(), PerKeyGroup.of(request.state_bytes)
    sizes[known.key_groups] = known.numbers
    return [move.key_group for move in component.assignment.moves_to(request.target)], sizes

"""The migration protocol: one fact in, orders out.

This file says what each fact means; `component` holds the transitions of one component, and
`_react` asks every component the same questions after every fact, so that nothing depends on
which fact happened to come first.

An input that is refused raises and changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import inputs
from godwit.migration.commands import Command, HoldEpochs, MigrationOutcome, ReleaseEpochs
from godwit.migration.component import OngoingMigration, TrackedComponent, relocate, suspend_or_load
from godwit.migration.copies import Copies
from godwit.migration.placement import change_lanes, check_target, order_moves
from godwit.migration.regrouping import merged
from godwit.migration.slots import activate_standby, instant_key_groups, pair_of, taken_by
from godwit.migration.state import EpochPlan, ProtocolView, RunningEpoch, RunState
from godwit.migration.strategy import Policy
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping


class MigrationProtocol:
    """The state machine. Deterministic; no I/O, no clock, no threads.

    Between epochs ask `next_epoch`; tell every fact to `handle` and carry out what it returns.

    Examples
    --------
    >>> from godwit.model.assignment import even_assignment
    >>> first = even_assignment(2, ["a"], [1])
    >>> protocol = MigrationProtocol(
    ...     inputs.RunStarted(run_id="r", executors={"a": 1}, assignments={"sum": first})
    ... )
    >>> protocol.opening
    ()
    >>> protocol.next_epoch()["sum"].assignment.key_groups("a").tolist()
    [0, 1]
    """

    def __init__(
        self,
        started: inputs.RunStarted,
        policy: Policy | None = None,
        copies: Copies | None = None,
    ) -> None:
        policy = policy or Policy()
        self._holds: tuple[str, ...] = ()
        self._run = RunState(
            run_id=started.run_id,
            policy=policy,
            on_cold=policy.on_start,
            executors=dict(started.executors),
            copies=Copies() if copies is None else copies,
            committed=started.committed,
            slots=started.slots,
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
        # what is to be done before anything else, in order (executors that the durable assignments
        # name may be gone, and every local store is empty)
        self.opening = self._react()

    def next_epoch(self) -> Mapping[str, EpochPlan]:
        """Return component → its plan for the next epoch.

        Raises `MigrationError` if an epoch runs, or epochs are held.
        """
        running = self._run.running
        if running is not None or self._holds:
            why = f"epoch {running.epoch} runs" if running else "; ".join(self._holds)
            raise MigrationError(
                f"No epoch may start now: {why}.",
                remedy="Wait for the commit, the abort or ReleaseEpochs.",
            )
        return MappingProxyType(
            {
                name: replace(c.plan(), takes=takes, smooth=smooth)
                for name, c in self._components.items()
                for takes, smooth in [taken_by(c, self._run)]
            }
        )

    def view(self) -> ProtocolView:
        """Return the whole state of the protocol as a read-only value."""
        run = self._run
        return ProtocolView(
            executors=MappingProxyType(dict(run.executors)),
            draining=frozenset(run.draining),
            committed=run.committed,
            running=run.running.epoch if run.running else None,
            holds=self._holds,
            begun_by_hand=MappingProxyType(dict(run.begun_by_hand)),
            components=MappingProxyType(
                {
                    n: replace(
                        c.view(),
                        takes=taken_by(c, run)[0],
                        instant=instant_key_groups(c, self._components, run),
                    )
                    for n, c in self._components.items()
                }
            ),
        )

    def handle(self, fact: inputs.Fact) -> tuple[Command, ...]:
        """Record a fact, and return the commands that follow, in order.

        Raises `InvalidPlanError` if a requested target or lane does not exist (`check_target`,
        `change_lanes`); `MigrationError` if the fact contradicts the state (such as the commit of
        an epoch that does not run), or a request comes at the wrong time. Nothing has changed then.
        """
        match fact:
            case inputs.EpochStarted(epoch=epoch):
                self._epoch_started(epoch)
            case inputs.EpochSucceeded():
                self._epoch_committed(fact)
            case inputs.EpochFailed(epoch=epoch):
                self._end_epoch(epoch, "aborted")
                self._advance_time(fact.seconds)
            case inputs.EpochHeld():
                self._advance_time(fact.seconds)
            case inputs.MigrationRequested():
                self._migration_requested(fact)
            case inputs.CancellationRequested():
                self._cancellation_requested(fact)
            case inputs.LanesRequested():
                self._lanes_requested(fact)
            case inputs.PhysicalPlanChanged():
                self._regrouped(fact)
            case inputs.WarmingFinished():
                self._warming_finished(fact)
            case inputs.WarmingFailed():
                self._warming_failed(fact)
            case inputs.ExecutorJoined(executor=executor, lanes=lanes):
                self._run.executors[executor] = lanes
                for component in self._components.values():
                    relocate(component, self._run)  # there may have been none until now
            case inputs.ExecutorLeft(executor=executor):
                self._executor_lost(executor)
            case inputs.DrainRequested(executor=executor):
                self._drain_requested(executor)
            case inputs.StayRequested(executor=executor):
                self._run.draining.discard(executor)
        return self._react()

    def _react(self) -> tuple[Command, ...]:
        """Advance every component after a fact, and return the commands that follow."""
        run, before = self._run, self._holds
        holds = self._reasons_to_hold()
        # Epochs are held before anything else is ordered, and released after everything is.
        run.orders[:0] = [HoldEpochs(reason=reason) for reason in holds if reason not in before]
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
            run.orders.append(ReleaseEpochs())
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

    # Epochs.

    def _epoch_started(self, epoch: int) -> None:
        """Record the begin of an epoch; raise if one is running or it is already committed."""
        plans = self.next_epoch()
        if epoch <= self._run.committed:
            raise MigrationError(
                f"Epoch {epoch} is committed already (the last one is {self._run.committed}).",
                remedy="Skip an epoch that has its record.",
                epoch=epoch,
            )
        self._run.running = RunningEpoch(epoch=epoch, plans=plans)

    def _end_epoch(self, epoch: int, how: str) -> RunningEpoch:
        """End the running epoch and return it; raise if another one runs. `how`: for the error."""
        running = self._run.running
        if running is None or running.epoch != epoch:
            raise MigrationError(
                f"Epoch {epoch} was {how}, but it is not the one that runs "
                f"({running.epoch if running else 'none'}).",
                remedy="Report every epoch's start and end once, in order.",
                epoch=epoch,
            )
        self._run.running = None
        return running

    def _epoch_committed(self, fact: inputs.EpochSucceeded) -> None:
        """End the running epoch as committed, and update every component."""
        running = self._end_epoch(fact.epoch, "committed")
        for component in self._components.values():
            component.committed(self._run, running, fact)
        for pair in self._run.slots:
            pair.record_empty(fact.empty)
        self._run.committed = fact.epoch
        self._run.on_cold = self._run.policy.on_loss
        self._advance_time(fact.seconds)

    # Requests.

    def _component(self, name: str) -> TrackedComponent:
        """Return the component of this name; raise `MigrationError` if there is none."""
        if name not in self._components:
            raise MigrationError(
                f"There is no component {name!r}.",
                remedy=f"Components are {', '.join(self._components)}.",
                component=name,
            )
        return self._components[name]

    def _migration_requested(self, fact: inputs.MigrationRequested) -> None:
        """Begin a migration; raise if the component has one, or the plan does not fit."""
        c = self._component(fact.component)
        if c.migration is not None:
            raise MigrationError(
                f"Migration {fact.id!r} of component {c.name!r} is refused: migration "
                f"{c.migration.request.id!r} is under way.",
                remedy="Wait for its end or cancel it, then plan again on what it left.",
                component=c.name,
                migration=c.migration.request.id,
            )
        if fact.strategy.activates_standby and pair_of(self._run, c.name) is None:
            raise MigrationError(
                f"Component {c.name!r} cannot migrate by strategy {fact.strategy.value!r}: its "
                "state cannot be made of parts in two places, or nothing would merge them.",
                remedy="Migrate it by 'live'. Aggregates of windows of fixed lengths can be "
                "migrated so with window(..., consolidate='apart'), without other operators in "
                "their component.",
                component=c.name,
                strategy=fact.strategy.value,
            )
        executors, draining = self._run.executors, self._run.draining
        check_target(c.name, c.assignment, fact.target, executors=executors, draining=draining)
        c.record_state_bytes(fact.state_bytes)
        moves = order_moves(
            (
                replace(move, state_bytes=int(c.state_bytes[move.key_group]))
                for move in c.assignment.moves_to(fact.target)
            ),
            c.assignment,
            fact.loads,
        )
        rank = {key_group: at for at, key_group in enumerate(fact.order)}
        moves = tuple(sorted(moves, key=lambda move: rank.get(move.key_group, len(rank))))
        c.migration = OngoingMigration(request=fact, moves={move.key_group: move for move in moves})
        if fact.by_hand:
            begun = self._run.begun_by_hand
            begun[c.name] = begun.get(c.name, 0) + 1

    def _cancellation_requested(self, fact: inputs.CancellationRequested) -> None:
        """End a migration, and cancel its moves that have not switched."""
        for c in self._components.values():
            if c.migration is not None and c.migration.request.id == fact.id:
                c.withdraw(self._run, fact.reason)
                c.end_migration(self._run, MigrationOutcome.CANCELLED)
                return
        raise MigrationError(
            f"There is no migration {fact.id!r} under way.",
            remedy="It may have ended; look at the events of the run.",
            migration=fact.id,
        )

    def _lanes_requested(self, fact: inputs.LanesRequested) -> None:
        """Move key groups to other lanes of their executors."""
        c = self._component(fact.component)
        changed = change_lanes(c.name, c.assignment, lanes=fact.lanes, lane_of=fact.lane_of)
        c.lanes.update(fact.lanes)
        c.switch_to(self._run, changed)

    def _regrouped(self, fact: inputs.PhysicalPlanChanged) -> None:
        """Replace components by those of another physical plan."""
        if self._run.running is not None:
            raise MigrationError(
                f"Components cannot change while epoch {self._run.running.epoch} runs.",
                remedy="Report its end first.",
                epoch=self._run.running.epoch,
            )
        joined = merged(fact, self._components)
        gone = {name for parts in fact.parts.values() for name in parts}
        stay = {name: c for name, c in self._components.items() if name not in gone}
        self._components = dict(sorted((stay | joined).items()))
        self._run.copies.regroup(fact.parts, fact.states)

    def _drain_requested(self, executor: str) -> None:
        """Mark an executor as draining: key groups no longer move to it."""
        if executor in self._run.executors:
            self._run.draining.add(executor)
            for c in self._components.values():
                c.withdraw(self._run, f"executor {executor} is draining", onto=executor)

    # Reports of warming: they may be lost, late, repeated, or answer an attempt long replaced.

    def _warming_finished(self, fact: inputs.WarmingFinished) -> None:
        """Record copies that are warm, and order unneeded copies to be deleted."""
        c = self._component(fact.component)
        unwanted, copies = [], self._run.copies
        for g, version in fact.versions.items():
            transfer = c.transfers.get(g)
            if transfer is not None and fact.attempt in (transfer.attempt, *transfer.former):
                known = copies.reach(c.name, fact.executor, g)
                copies.record_reach(c.name, fact.executor, {g: max(version, known)})
                c.transfers[g] = replace(transfer, warm=True)
            else:
                unwanted.append(g)
        c.drop(self._run, fact.executor, unwanted)

    def _warming_failed(self, fact: inputs.WarmingFailed) -> None:
        """Schedule the failed copies for another order, a second later."""
        c = self._component(fact.component)
        for g in fact.key_groups:
            transfer = c.transfers.get(g)
            if transfer is not None and transfer.attempt == fact.attempt and not transfer.warm:
                # Not at once: what failed just now is likely to fail again just now.
                due = self._run.seconds + 1
                c.transfers[g] = replace(transfer, due=due, failure=fact.reason)

    # Losses.

    def _executor_lost(self, executor: str) -> None:
        """Assign the key groups of a lost executor to others, which suspend or load them."""
        run = self._run
        if executor not in run.executors:
            return
        del run.executors[executor]
        run.draining.discard(executor)
        run.copies.forget_executor(executor)
        if run.running is not None:
            run.running.lost.add(executor)
        for c in self._components.values():
            c.retired.pop(executor, None)
            c.lanes.pop(executor, None)
            c.withdraw(run, f"executor {executor} was lost", onto=executor)
            for g, transfer in list(c.transfers.items()):
                if transfer.destination == executor:
                    del c.transfers[g]
            relocate(c, run)

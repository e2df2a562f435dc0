"""A runtime to drive the migration protocol with: everything real but Spark, and unreliable.

Local stores really hold versions, rows really arrive and wait, background jobs report late or
never, executors and the driver die.  Every action checks what must hold; whoever drives it (a
Hypothesis machine, a seeded walk) only chooses what happens next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import pytest

from godwit.migration import Bounds, LossPolicy, Policy, Strategy
from godwit.migration.copies import Copies
from godwit.migration.messages import (
    Announce,
    Command,
    DropCopies,
    EndMigration,
    LanesRequested,
    MigrationOutcome,
    MigrationRequested,
    RunStarted,
    StartWarming,
    SwitchAssignment,
)
from godwit.migration.on_demand import OnDemand
from godwit.migration.outcome import EpochOutcome
from godwit.migration.protocol import MigrationProtocol
from godwit.model import events
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import InvalidPlanError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from godwit.migration.state import ComponentView

T = TypeVar("T")

NUM_KEY_GROUPS = 6
COMPONENTS = ("count", "join")
NAMES = ("a", "b", "c", "d")
PLACES = [(c, g) for c in COMPONENTS for g in range(NUM_KEY_GROUPS)]
SIZES = {g: 5 * g for g in range(NUM_KEY_GROUPS)}


class Choices(Protocol):
    """Source of the adversary's decisions."""

    def among(self, options: Sequence[T]) -> T:
        """Pick one."""
        ...

    def up_to(self, most: int) -> int:
        """Pick a number from 0 to `most`."""
        ...


def rarely(choices: Choices) -> bool:
    return choices.up_to(5) == 5


@dataclass
class RunningEpoch:
    epoch: int
    component_views: dict[str, ComponentView]
    rows: dict[tuple[str, int], list[int]]


class UnreliableRuntime:
    """The simulated runtime; `protocol` is what is tested.

    Attributes
    ----------
    seen
        How often each kind of thing has happened, so that a test can tell that its adversary did
        reach the interesting places.
    """

    def __init__(self, choices: Choices) -> None:
        self.policy = Policy(
            on_loss=choices.among(list(LossPolicy)),
            on_start=choices.among(list(LossPolicy)),
            recovery=Bounds(
                max_lag=choices.up_to(2), max_moves=1 + choices.up_to(2), max_bytes=30, max_rounds=2
            ),
            patience=1 + choices.up_to(2),
            max_attempts=3,
        )
        self.seen: Counter[str] = Counter()
        self.arrived: dict[tuple[str, int], list[int]] = {place: [] for place in PLACES}
        self.processed: dict[tuple[str, int], list[int]] = {place: [] for place in PLACES}
        self.waiting: dict[tuple[str, int], list[int]] = {place: [] for place in PLACES}
        # The last epoch whose rows a key group has processed: what a copy must reach.
        self.reached = dict.fromkeys(PLACES, -1)
        self.committed = -1
        self.runs = 0
        self.requests = 0
        # order, and key group → version of the copies that it brought forward; ``None``: it failed
        self.reports: list[tuple[StartWarming, dict[int, int] | None]] = []
        names = NAMES[: 1 + choices.up_to(2)]
        first = even_assignment(NUM_KEY_GROUPS, names, [2] * len(names))
        self.durable = dict.fromkeys(COMPONENTS, first)
        self.start_run(dict.fromkeys(names, 2))

    def start_run(self, executors: dict[str, int]) -> None:
        """Start the driver on what is durable; local stores are empty."""
        self.runs += 1
        self.executors = executors
        self.draining: set[str] = set()
        self.stores: dict[str, dict[tuple[str, int], int]] = {name: {} for name in executors}
        self.ran_at: dict[tuple[str, int], str] = {}
        self.allowed_lag = dict.fromkeys(PLACES, self.policy.recovery.max_lag)
        self.jobs: list[StartWarming] = []
        self.running: RunningEpoch | None = None
        self.lost_now: set[str] = set()
        self.held = False
        self.requested: dict[str, MigrationRequested] = {}
        self.planned_moves: dict[str, int] = {}
        self.disturbed: set[str] = set()
        self.assignments = dict(self.durable)
        self.suspended: dict[str, set[int]] = {c: set() for c in COMPONENTS}
        self.load: dict[str, set[int]] = {c: set() for c in COMPONENTS}
        self.protocol = MigrationProtocol(
            RunStarted(
                run_id=f"run-{self.runs}",
                executors=executors,
                assignments=self.durable,
                committed=self.committed,
                waiting={
                    c: [g for g in range(NUM_KEY_GROUPS) if self.waiting[c, g]] for c in COMPONENTS
                },
                state_bytes=dict.fromkeys(COMPONENTS, SIZES),
                on_demand=OnDemand(obstacles=dict.fromkeys(COMPONENTS, ""), min_bytes=12),
            ),
            self.policy,
            Copies({c: [c] for c in COMPONENTS}),
        )
        self.obey(self.protocol.opening)

    # Carrying out orders.

    def follow(self, commands: Iterable[Command]) -> None:
        self.obey(commands)
        self.check()

    def obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            kind = command.event if isinstance(command, Announce) else type(command)
            self.seen[kind.__name__] += 1
            match command:
                case StartWarming():
                    assert command.executor in self.executors
                    assert list(command.key_groups) == sorted(set(command.key_groups))
                    self.jobs.append(command)
                case SwitchAssignment(component=c, assignment=assignment):
                    self.switched(c, assignment)
                case Announce(event, {"component": c, "key_groups": key_groups}):
                    if "on_demand" in command.values:
                        self.seen["fetched on demand"] += 1
                    self.changed(event, c, set(key_groups))
                case DropCopies(component=c, executor=executor, key_groups=key_groups):
                    for g in key_groups:
                        assert self.assignments[c].executor(g) != executor
                        self.stores[executor].pop((c, g), None)
                case Announce(event):
                    assert event is events.EpochsHeld or self.held
                    self.held = event is events.EpochsHeld
                case EndMigration():
                    self.ended(command)

    def changed(self, event: type[events.Event], c: str, key_groups: set[int]) -> None:
        if event is events.KeyGroupsSuspended:
            assert not self.suspended[c] & key_groups
            self.suspended[c] |= key_groups
            self.load[c] -= key_groups
        elif event is events.KeyGroupsResumed:
            assert self.suspended[c] >= key_groups
            self.suspended[c] -= key_groups
        else:
            assert event is events.KeyGroupsLoaded
            self.load[c] |= key_groups

    def switched(self, c: str, assignment: Assignment) -> None:
        before = self.assignments[c]
        assert assignment.version > before.version
        alive = [name for name in before.executors if name in self.executors]
        for move in before.moves_to(assignment):
            lag = self.policy.recovery.max_lag
            if c in self.requested and alive:
                lag = max(lag, self.requested[c].bounds.max_lag)
            self.allowed_lag[c, move.key_group] = lag
            if move.source in self.executors:
                assert self.running is None, "a planned move switched while an epoch ran"
        self.assignments[c] = assignment

    def ended(self, command: EndMigration) -> None:
        c = command.component
        fact = self.requested.pop(c)
        self.seen[f"{fact.strategy} {command.outcome}"] += 1
        self.seen["withdrawn"] += command.withdrawn
        assert fact.id == command.id
        assert command.moved + command.withdrawn == self.planned_moves.pop(c)
        if command.outcome is MigrationOutcome.FINISHED and c not in self.disturbed:
            if command.withdrawn:
                assert "warming at" in command.reason
            else:
                assert self.assignments[c] == fact.target
                # A plan that asks for nothing need not wait for an epoch under its target.
                assert command.moved == 0 or self.durable[c] == fact.target
        self.disturbed.discard(c)

    # Epochs.

    def start_epoch(self, choices: Choices) -> None:
        if self.running is not None or self.held:
            with pytest.raises(MigrationError, match="No epoch may start now"):
                self.protocol.begin_epoch(self.committed + 1)
            return
        component_views = dict(self.protocol.next_epoch())
        for c, plan in component_views.items():
            self.check_plan(c, plan)
        rows = {
            place: [len(self.arrived[place]) + i for i in range(choices.up_to(2))]
            for place in PLACES
        }
        self.durable = {c: plan.assignment for c, plan in component_views.items()}
        self.running = RunningEpoch(self.committed + 1, component_views, rows)
        self.lost_now = set()
        self.follow(self.protocol.begin_epoch(self.committed + 1))

    def check_plan(self, c: str, plan: ComponentView) -> None:
        owned = [g for name in plan.assignment.executors for g in plan.assignment.key_groups(name)]
        assert sorted(owned) == list(range(NUM_KEY_GROUPS)), "two executors would run a key group"
        assert set(plan.assignment.executors) <= self.executors.keys()
        for g in set(range(NUM_KEY_GROUPS)) - plan.suspended:
            executor = plan.assignment.executor(g)
            held = self.stores[executor].get((c, g), -1)
            assert (
                self.reached[c, g] - held <= self.allowed_lag[c, g]
                or g in plan.load
                or self.ran_at.get((c, g)) == executor
            ), f"{c}/{g} runs cold at {executor}: it holds {held} of {self.reached[c, g]}"

    def commit_epoch(self, choices: Choices) -> None:
        """End the epoch; now and then a lane finds a copy gone, or the lanes' reports are lost."""
        running = self.running
        if running is None:
            return
        waited: dict[str, set[int]] = {c: set() for c in COMPONENTS}
        held: dict[str, dict[str, dict[int, int]]] = {c: {} for c in COMPONENTS}
        stray = choices.among(PLACES) if rarely(choices) else None
        for c, g in PLACES:
            place, plan, new = (c, g), running.component_views[c], running.rows[c, g]
            executor = plan.assignment.executor(g)
            # Where an executor died during the epoch, its lanes ran again elsewhere.
            stayed = executor in self.executors and executor not in self.lost_now
            self.arrived[place] += new
            if g in plan.suspended:
                self.waiting[place] += new
                if new:
                    waited[c].add(g)
            elif place == stray and stayed and g not in plan.load:
                self.seen["stray"] += 1
                self.stores[executor].pop(place, None)
                self.ran_at.pop(place, None)
                self.allowed_lag[place] = self.policy.recovery.max_lag
                self.waiting[place] += new
                waited[c].add(g)
            else:
                self.process(place, new, running)
                # Apply on next: the epoch's own changes are not in the store yet.
                version = running.epoch - 1
                held[c].setdefault(executor, {})[g] = version
                if stayed:
                    self.stores[executor][place] = version
                    self.ran_at[place] = executor
                    self.load[c].discard(g)
                elif self.assignments[c].executor(g) != executor:
                    self.seen["lost in an epoch that committed"] += 1
        for c in COMPONENTS:
            self.load[c] -= waited[c]
        self.committed, self.running = running.epoch, None
        silent = rarely(choices)
        self.follow(
            self.protocol.commit_epoch(
                EpochOutcome(
                    epoch=running.epoch,
                    waited={c: tuple(sorted(key_groups)) for c, key_groups in waited.items()},
                    reach={} if silent else held,
                )
            )
        )

    def process(self, place: tuple[str, int], new: list[int], running: RunningEpoch) -> None:
        c, g = place
        if self.waiting[place]:
            assert g in running.component_views[c].consume, "rows that wait would be overtaken"
            self.seen["consumed"] += 1
        self.processed[place] += self.waiting[place] + new
        self.waiting[place] = []
        self.reached[place] = running.epoch

    def abort_epoch(self, _: Choices) -> None:
        if self.running is not None:
            epoch, self.running = self.running.epoch, None
            self.follow(self.protocol.abort_epoch(epoch))

    def epoch_due(self, _: Choices) -> None:
        if self.held and self.running is None:
            self.follow(self.protocol.hold_epoch())

    # Requests.

    def request_migration(self, choices: Choices) -> None:
        component = choices.among(COMPONENTS)
        current = self.assignments[component]
        names = sorted(self.executors) or ["a"]
        allowed = sorted(self.executors.keys() - self.draining)
        wanted = [current.executor(g) for g in range(NUM_KEY_GROUPS)]
        for g in range(NUM_KEY_GROUPS):
            if allowed and (wanted[g] not in self.executors or choices.up_to(1)):
                wanted[g] = choices.among(allowed)
        if not set(wanted) <= set(names):
            names = sorted({*names, *wanted})
        self.requests += 1
        fact = MigrationRequested(
            id=f"m{self.requests}",
            component=component,
            target=Assignment(
                version=0,
                executors=tuple(names),
                lanes=(2,) * len(names),
                executor_of=np.array([names.index(name) for name in wanted], np.int32),
                lane_of=np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 2,
            ),
            strategy=choices.among(
                [strategy for strategy in Strategy if not strategy.activates_standby]
            ),
            bounds=Bounds(
                max_moves=1 + choices.up_to(2),
                max_bytes=choices.among([1, 30, 10_000]),
                max_lag=choices.up_to(2),
                max_rounds=2,
            ),
        )
        if component in self.requested:
            self.refused(fact, MigrationError, "is under way")
        elif not set(names) <= self.executors.keys():
            self.refused(fact, InvalidPlanError, "are not running")
        else:
            self.requested[component] = fact
            self.planned_moves[component] = len(current.moves_to(fact.target))
            self.follow(self.protocol.migrate(fact))

    def refused(self, fact: MigrationRequested, error: type[Exception], text: str) -> None:
        before = self.protocol.view()
        with pytest.raises(error, match=text):
            self.protocol.migrate(fact)
        assert self.protocol.view() == before

    def cancel_migration(self, choices: Choices) -> None:
        if self.requested:
            component = choices.among(sorted(self.requested))
            fact = self.requested[component]
            self.follow(self.protocol.cancel(fact.id, "changed its mind"))
            assert component not in self.requested

    def change_lanes(self, choices: Choices) -> None:
        component = choices.among(COMPONENTS)
        current = self.assignments[component]
        group = choices.up_to(NUM_KEY_GROUPS - 1)
        lane = choices.up_to(current.lanes[current.executor_of[group]] - 1)
        self.disturb([component])
        self.follow(
            self.protocol.change_lanes(LanesRequested(component=component, lane_of={group: lane}))
        )

    def disturb(self, components: Iterable[str]) -> None:
        self.disturbed |= set(components) & self.requested.keys()

    # Background jobs.

    def run_job(self, choices: Choices) -> None:
        """Carry out an order to warm: wholly, in part, in vain; once or, by mistake, again."""
        if self.jobs:
            job = choices.among(self.jobs)
            if not rarely(choices):
                self.jobs.remove(job)
            part = len(job.key_groups) // 2 if rarely(choices) else None
            self.warm(job, job.key_groups[:part], fails=rarely(choices))

    def warm(self, job: StartWarming, key_groups: tuple[int, ...], *, fails: bool) -> None:
        if fails:
            self.reports.append((replace(job, key_groups=key_groups), None))
            return
        if job.index_only:
            key_groups = ()
            self.seen["indexed"] += 1
        store = self.stores[job.executor]
        for g in key_groups:
            store[job.component, g] = max(store.get((job.component, g), -1), self.committed)
        self.reports.append((job, dict.fromkeys(key_groups, self.committed)))

    def lose_job(self, choices: Choices) -> None:
        if self.jobs:
            self.jobs.remove(choices.among(self.jobs))

    def deliver_report(self, choices: Choices) -> None:
        if self.reports:
            report = choices.among(self.reports)
            if rarely(choices):
                self.seen["report repeated"] += 1
            else:
                self.reports.remove(report)
            self.deliver(*report)

    def deliver(self, order: StartWarming, reach: dict[int, int] | None) -> None:
        if reach is None:
            self.follow(self.protocol.warming_failed(order, "no room"))
        else:
            self.follow(self.protocol.warmed(order, reach))

    def lose_report(self, choices: Choices) -> None:
        if self.reports:
            self.reports.remove(choices.among(self.reports))

    # Executors and the driver.

    def kill_executor(self, choices: Choices) -> None:
        if not self.executors:
            return
        name = choices.among(sorted(self.executors))
        del self.executors[name]
        del self.stores[name]
        self.draining.discard(name)
        self.lost_now.add(name)
        self.jobs = [job for job in self.jobs if job.executor != name]
        self.ran_at = {place: at for place, at in self.ran_at.items() if at != name}
        self.disturb(COMPONENTS)
        if not self.executors:
            self.seen["all executors lost"] += 1
        self.follow(self.protocol.remove_executor(name))
        assert self.protocol.remove_executor(name) == ()

    def add_executor(self, choices: Choices) -> None:
        absent = sorted(set(NAMES) - self.executors.keys())
        if absent:
            name = choices.among(absent)
            self.executors[name] = 2
            self.stores[name] = {}
            self.follow(self.protocol.add_executor(name, 2))

    def drain_executor(self, choices: Choices) -> None:
        if self.executors:
            name = choices.among(sorted(self.executors))
            self.draining.add(name)
            self.disturb(COMPONENTS)
            self.follow(self.protocol.drain(name))

    def keep_executor(self, choices: Choices) -> None:
        """Let an executor that was to be removed stay."""
        if self.draining:
            name = choices.among(sorted(self.draining))
            self.draining.discard(name)
            self.follow(self.protocol.stay(name))

    def restart_driver(self, choices: Choices) -> None:
        names = NAMES[choices.up_to(4) :]
        self.start_run(dict.fromkeys(names, 2))
        self.check()

    # What holds after every step.

    def check(self) -> None:
        view = self.protocol.view()
        assert self.held == bool(view.holds)
        assert self.held or self.executors
        for c, component in view.components.items():
            assert component.assignment == self.assignments[c]
            assert self.held or set(component.assignment.executors) <= self.executors.keys()
            assert component.suspended == self.suspended[c]
            # A key group that switches to a warm place needs no loading any more.
            assert component.whole <= component.load <= self.load[c]
            self.load[c] &= component.load
            assert {g for g in range(NUM_KEY_GROUPS) if self.waiting[c, g]} <= component.waiting
            assert (component.migration is not None) == (c in self.requested)
            assert {t.destination for t in component.transfers} <= self.executors.keys()
            planned = [t for t in component.transfers if t.planned]
            for transfer in planned:
                assert transfer.destination not in self.draining
            recovering = [t for t in component.transfers if not t.planned]
            assert {t.key_group for t in recovering} <= component.suspended
            if planned and component.strategy is Strategy.LIVE:
                bounds = self.requested[c].bounds
                size = sum(t.state_bytes for t in planned)
                assert len(planned) <= bounds.max_moves
                assert size <= bounds.max_bytes or len(planned) == 1
                self.seen["in flight"] = max(self.seen["in flight"], len(planned))
            self.seen["rounds"] += any(t.rounds > 1 for t in planned)
        for place in PLACES:
            done = self.processed[place] + self.waiting[place]
            assert done == self.arrived[place]

    # What holds in the end, if reports arrive and nobody dies any more.

    def calm_down(self, choices: Choices, *, most_epochs: int = 100) -> None:
        """Stop all trouble and check that everything comes to rest."""
        if not self.executors:
            self.add_executor(choices)
        for _ in range(most_epochs):
            self.quiet_epoch()
            if not self.requested and not any(self.suspended.values()):
                break
        else:
            pytest.fail(f"not at rest after {most_epochs} quiet epochs: {self.protocol.view()}")
        self.quiet_epoch()
        self.quiet_epoch()
        assert self.processed == self.arrived
        view = self.protocol.view()
        assert view.holds == ()
        for component in view.components.values():
            assert component.transfers == ()
            assert component.load == frozenset()
            assert component.waiting == frozenset()

    def quiet_epoch(self) -> None:
        if self.running is None and not self.held:
            self.start_epoch(_Quiet())
        if self.running is not None:
            self.commit_epoch(_Quiet())
        self.epoch_due(_Quiet())
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            self.warm(job, job.key_groups, fails=False)
        reports, self.reports = self.reports, []
        for report in reports:
            self.deliver(*report)


class _Quiet:
    """Choices under which nothing goes wrong and a row arrives everywhere."""

    def among(self, options: Sequence[T]) -> T:
        return options[0]

    def up_to(self, most: int) -> int:
        return min(most, 1)


ACTIONS: dict[str, int] = {
    "start_epoch": 24,
    "commit_epoch": 24,
    "abort_epoch": 3,
    "epoch_due": 6,
    "request_migration": 6,
    "cancel_migration": 1,
    "change_lanes": 1,
    "run_job": 24,
    "lose_job": 2,
    "deliver_report": 24,
    "lose_report": 2,
    "kill_executor": 3,
    "add_executor": 3,
    "drain_executor": 1,
    "keep_executor": 1,
    "restart_driver": 1,
}
"""Name of every action → how often a walk should take it, relative to the others."""

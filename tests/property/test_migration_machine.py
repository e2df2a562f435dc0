"""The migration protocol against an adversary.

A small runtime is simulated beside the protocol: local stores that really hold versions, rows that
really arrive, wait buffers, background jobs and their reports.  Hypothesis plays the adversary:
it loses, delays, repeats and reorders reports, kills and adds executors at any step, aborts
epochs, lets lanes find their copy gone, and restarts the driver.  What must hold after every step
is an invariant below; what must hold in the end, once the adversary stops, is in ``teardown``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from godwit.migration import (
    Bounds,
    CancellationRequested,
    Command,
    DrainRequested,
    DropCopies,
    EndMigration,
    EpochAborted,
    EpochCommitted,
    EpochHeld,
    EpochPlan,
    EpochStarted,
    ExecutorAdded,
    ExecutorLost,
    Fact,
    HoldEpochs,
    LanesRequested,
    LoadKeyGroups,
    LossPolicy,
    MigrationOutcome,
    MigrationProtocol,
    MigrationRequested,
    Policy,
    ReleaseEpochs,
    ResumeKeyGroups,
    RunStarted,
    StartWarming,
    Strategy,
    SuspendKeyGroups,
    SwitchAssignment,
    WarmingFailed,
    WarmingFinished,
)
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import MigrationError

NUM_KEY_GROUPS = 6
COMPONENTS = ("count", "join")
NAMES = tuple("abcd")
EVERYTHING = [(c, g) for c in COMPONENTS for g in range(NUM_KEY_GROUPS)]


@dataclass
class Requested:
    fact: MigrationRequested
    undisturbed: bool = True


@dataclass
class Lanes:
    """What is real: rows, wait buffers and local stores."""

    arrived: dict[tuple[str, int], list[int]] = field(
        default_factory=lambda: {place: [] for place in EVERYTHING}
    )
    processed: dict[tuple[str, int], list[int]] = field(
        default_factory=lambda: {place: [] for place in EVERYTHING}
    )
    waiting: dict[tuple[str, int], list[int]] = field(
        default_factory=lambda: {place: [] for place in EVERYTHING}
    )
    # Last epoch whose rows a key group has processed; what a copy has to hold.
    reached: dict[tuple[str, int], int] = field(
        default_factory=lambda: dict.fromkeys(EVERYTHING, -1)
    )
    stores: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    ran_at: dict[tuple[str, int], str] = field(default_factory=dict)


class MigrationMachine(RuleBasedStateMachine):
    @initialize(
        executors=st.integers(1, 3),
        on_loss=st.sampled_from(LossPolicy),
        on_start=st.sampled_from(LossPolicy),
        max_lag=st.integers(0, 2),
        max_moves=st.integers(1, 3),
        patience=st.integers(1, 3),
    )
    def begin(
        self,
        executors: int,
        on_loss: LossPolicy,
        on_start: LossPolicy,
        max_lag: int,
        max_moves: int,
        patience: int,
    ) -> None:
        self.policy = Policy(
            on_loss=on_loss,
            on_start=on_start,
            recovery=Bounds(max_lag=max_lag, max_moves=max_moves, max_bytes=30, max_rounds=2),
            patience=patience,
            max_attempts=3,
        )
        self.lanes = Lanes()
        self.committed = -1
        self.runs = 0
        self.requests = 0
        self.jobs: list[StartWarming] = []
        self.reports: list[WarmingFinished | WarmingFailed] = []
        self.sizes = {g: 5 * g for g in range(NUM_KEY_GROUPS)}
        first = even_assignment(NUM_KEY_GROUPS, NAMES[:executors], [2] * executors)
        self.durable = dict.fromkeys(COMPONENTS, first)
        self.start_run(dict.fromkeys(NAMES[:executors], 2))

    # The runtime.

    def start_run(self, executors: dict[str, int]) -> None:
        self.runs += 1
        self.executors = executors
        self.draining: set[str] = set()
        self.lanes.stores = {name: {} for name in executors}
        self.lanes.ran_at = {}
        self.jobs = []
        self.running: tuple[int, dict[str, EpochPlan], dict[tuple[str, int], list[int]]] | None
        self.running = None
        self.lost_now: set[str] = set()
        self.held = False
        self.requested: dict[str, Requested] = {}
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
                    c: [g for g in range(NUM_KEY_GROUPS) if self.lanes.waiting[c, g]]
                    for c in COMPONENTS
                },
                state_bytes=dict.fromkeys(COMPONENTS, self.sizes),
            ),
            self.policy,
        )
        self.obey(self.protocol.opening)

    def tell(self, fact: Fact) -> None:
        self.obey(self.protocol.handle(fact))

    def obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case StartWarming():
                    assert command.executor in self.executors
                    self.jobs.append(command)
                case SwitchAssignment(component=c, assignment=assignment):
                    assert assignment.version > self.assignments[c].version
                    self.assignments[c] = assignment
                case SuspendKeyGroups(component=c, key_groups=key_groups):
                    assert not self.suspended[c] & set(key_groups)
                    self.suspended[c] |= set(key_groups)
                    self.load[c] -= set(key_groups)
                case ResumeKeyGroups(component=c, key_groups=key_groups):
                    assert self.suspended[c] >= set(key_groups)
                    self.suspended[c] -= set(key_groups)
                case LoadKeyGroups(component=c, key_groups=key_groups):
                    self.load[c] |= set(key_groups)
                case DropCopies(component=c, executor=executor, key_groups=key_groups):
                    for g in key_groups:
                        assert self.assignments[c].executor(g) != executor
                        self.lanes.stores[executor].pop((c, g), None)
                case HoldEpochs():
                    self.held = True
                case ReleaseEpochs():
                    assert self.held
                    self.held = False
                case EndMigration():
                    self.ended(command)

    def ended(self, command: EndMigration) -> None:
        requested = self.requested.pop(command.component)
        assert requested.fact.id == command.id
        moves = command.moved + command.withdrawn
        assert moves == len(self.before[command.component].moves_to(requested.fact.target))
        if command.outcome is MigrationOutcome.FINISHED and requested.undisturbed:
            assert command.withdrawn == 0
            assert self.assignments[command.component] == requested.fact.target

    # The adversary's choices.

    @precondition(lambda self: self.running is None and not self.held)
    @rule(data=st.data())
    def start_epoch(self, data: st.DataObject) -> None:
        plans = dict(self.protocol.next_epoch())
        for c, plan in plans.items():
            self.check_plan(c, plan)
        busy = data.draw(st.sets(st.sampled_from(EVERYTHING)), label="busy")
        rows = {
            place: [len(self.lanes.arrived[place]) + i for i in range(2)] for place in sorted(busy)
        }
        self.durable = {c: plan.assignment for c, plan in plans.items()}
        self.running = (self.committed + 1, plans, rows)
        self.lost_now = set()
        self.tell(EpochStarted(epoch=self.committed + 1))

    def check_plan(self, c: str, plan: EpochPlan) -> None:
        owned = [g for name in plan.assignment.executors for g in plan.assignment.key_groups(name)]
        assert sorted(owned) == list(range(NUM_KEY_GROUPS))
        for g in range(NUM_KEY_GROUPS):
            executor = plan.assignment.executor(g)
            if g in plan.suspended:
                continue
            held = self.lanes.stores[executor].get((c, g), -1)
            lag = self.lanes.reached[c, g] - held
            assert (
                lag <= self.allowed_lag(c)
                or g in plan.load
                or self.lanes.ran_at.get((c, g)) == executor
            ), f"{c}/{g} runs cold at {executor}: it holds {held} of {self.lanes.reached[c, g]}"

    def allowed_lag(self, c: str) -> int:
        return max(self.policy.recovery.max_lag, self.lag_bounds.get(c, 0))

    @property
    def lag_bounds(self) -> dict[str, int]:
        return {c: requested.fact.bounds.max_lag for c, requested in self.last_requested.items()}

    last_requested: dict[str, Requested]
    before: dict[str, Assignment]

    def __init__(self) -> None:
        super().__init__()
        self.last_requested = {}
        self.before = {}

    @precondition(lambda self: self.running is not None)
    @rule(
        strays=st.sets(st.sampled_from(EVERYTHING), max_size=1),
        silent=st.booleans(),
    )
    def commit_epoch(self, strays: set[tuple[str, int]], silent: bool) -> None:
        assert self.running is not None
        epoch, plans, rows = self.running
        lanes = self.lanes
        waited: dict[str, set[int]] = {c: set() for c in COMPONENTS}
        held: dict[str, dict[str, dict[int, int]]] = {c: {} for c in COMPONENTS}
        for c, g in EVERYTHING:
            place, plan = (c, g), plans[c]
            executor = plan.assignment.executor(g)
            new = rows.get(place, [])
            lanes.arrived[place] += new
            alive = executor in self.executors and executor not in self.lost_now
            if g not in plan.suspended and place in strays and alive and g not in plan.load:
                lanes.stores[executor].pop(place, None)
                lanes.ran_at.pop(place, None)
                lanes.waiting[place] += new
                waited[c].add(g)
                continue
            if g in plan.suspended:
                lanes.waiting[place] += new
                if new:
                    waited[c].add(g)
                continue
            assert bool(lanes.waiting[place]) <= (g in plan.consume)
            lanes.processed[place] += lanes.waiting[place] + new
            lanes.waiting[place] = []
            lanes.reached[place] = epoch
            if alive:
                lanes.stores[executor][place] = epoch - 1
                lanes.ran_at[place] = executor
                held[c].setdefault(executor, {})[g] = epoch - 1
        for c in COMPONENTS:
            self.load[c] -= {
                g
                for g in plans[c].load
                if plans[c].assignment.executor(g) not in self.lost_now or g in waited[c]
            }
        self.committed = epoch
        self.running = None
        self.tell(EpochCommitted(epoch=epoch, waited=waited, held={} if silent else held))

    @precondition(lambda self: self.running is not None)
    @rule()
    def abort_epoch(self) -> None:
        assert self.running is not None
        epoch = self.running[0]
        self.running = None
        self.tell(EpochAborted(epoch=epoch))

    @precondition(lambda self: self.held and self.running is None)
    @rule()
    def epoch_is_due_while_held(self) -> None:
        self.tell(EpochHeld())

    @rule(
        component=st.sampled_from(COMPONENTS),
        strategy=st.sampled_from(Strategy),
        max_moves=st.integers(1, 3),
        max_bytes=st.sampled_from([1, 30, 10_000]),
        max_lag=st.integers(0, 2),
        data=st.data(),
    )
    def request_migration(
        self,
        component: str,
        strategy: Strategy,
        max_moves: int,
        max_bytes: int,
        max_lag: int,
        data: st.DataObject,
    ) -> None:
        allowed = sorted(self.executors.keys() - self.draining)
        if not allowed:
            return
        current = self.protocol.view().components[component].assignment
        names = sorted(self.executors)
        wanted = data.draw(
            st.lists(
                st.sampled_from(allowed), min_size=NUM_KEY_GROUPS, max_size=NUM_KEY_GROUPS
            ),
            label="target",
        )
        # Whoever sits on a draining executor may stay there.
        for g in range(NUM_KEY_GROUPS):
            if current.executor(g) in self.draining and current.executor(g) in self.executors:
                wanted[g] = current.executor(g) if g % 2 else wanted[g]
        target = Assignment(
            version=0,
            executors=tuple(names),
            lanes=(2,) * len(names),
            executor_of=np.array([names.index(name) for name in wanted], np.int32),
            lane_of=np.arange(NUM_KEY_GROUPS, dtype=np.int32) % 2,
        )
        self.requests += 1
        fact = MigrationRequested(
            id=f"m{self.requests}",
            component=component,
            target=target,
            strategy=strategy,
            bounds=Bounds(
                max_moves=max_moves, max_bytes=max_bytes, max_lag=max_lag, max_rounds=2
            ),
            state_bytes=self.sizes,
        )
        if component in self.requested:
            before = self.protocol.view()
            with pytest.raises(MigrationError, match="is under way"):
                self.protocol.handle(fact)
            assert self.protocol.view() == before
            return
        self.before[component] = current
        self.requested[component] = Requested(fact)
        self.last_requested[component] = self.requested[component]
        self.tell(fact)

    @precondition(lambda self: bool(self.requested))
    @rule(data=st.data())
    def cancel_migration(self, data: st.DataObject) -> None:
        c = data.draw(st.sampled_from(sorted(self.requested)), label="cancelled")
        self.tell(CancellationRequested(id=self.requested[c].fact.id, reason="changed its mind"))
        assert c not in self.requested

    @precondition(lambda self: bool(self.executors))
    @rule(component=st.sampled_from(COMPONENTS), data=st.data())
    def change_lanes(self, component: str, data: st.DataObject) -> None:
        current = self.protocol.view().components[component].assignment
        lane_of = {
            g: data.draw(st.integers(0, current.lanes[current.executor_of[g]] - 1))
            for g in data.draw(st.sets(st.integers(0, NUM_KEY_GROUPS - 1)), label="relaned")
        }
        if component in self.requested:
            self.requested[component].undisturbed = False
        self.tell(LanesRequested(component=component, lane_of=lane_of))

    @precondition(lambda self: bool(self.jobs))
    @rule(data=st.data(), fails=st.booleans(), partly=st.booleans(), again=st.booleans())
    def run_a_warming_job(
        self, data: st.DataObject, fails: bool, partly: bool, again: bool
    ) -> None:
        job = data.draw(st.sampled_from(self.jobs), label="job")
        if not again:
            self.jobs.remove(job)
        self.warm(job, fails=fails, partly=partly)

    def warm(self, job: StartWarming, *, fails: bool = False, partly: bool = False) -> None:
        done = job.key_groups[: len(job.key_groups) // 2] if partly else job.key_groups
        if fails:
            self.reports.append(
                WarmingFailed(
                    component=job.component,
                    executor=job.executor,
                    attempt=job.attempt,
                    key_groups=done,
                    reason="no room",
                )
            )
            return
        store = self.lanes.stores[job.executor]
        for g in done:
            store[job.component, g] = max(store.get((job.component, g), -1), self.committed)
        self.reports.append(
            WarmingFinished(
                component=job.component,
                executor=job.executor,
                attempt=job.attempt,
                versions=dict.fromkeys(done, self.committed),
            )
        )

    @precondition(lambda self: bool(self.jobs))
    @rule(data=st.data())
    def lose_a_warming_job(self, data: st.DataObject) -> None:
        self.jobs.remove(data.draw(st.sampled_from(self.jobs), label="job"))

    @precondition(lambda self: bool(self.reports))
    @rule(data=st.data(), again=st.booleans())
    def deliver_a_report(self, data: st.DataObject, again: bool) -> None:
        report = data.draw(st.sampled_from(self.reports), label="report")
        if not again:
            self.reports.remove(report)
        self.tell(report)

    @precondition(lambda self: bool(self.reports))
    @rule(data=st.data())
    def lose_a_report(self, data: st.DataObject) -> None:
        self.reports.remove(data.draw(st.sampled_from(self.reports), label="report"))

    @precondition(lambda self: bool(self.executors))
    @rule(data=st.data())
    def kill_an_executor(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.executors)), label="killed")
        del self.executors[name]
        del self.lanes.stores[name]
        self.draining.discard(name)
        self.lost_now.add(name)
        self.jobs = [job for job in self.jobs if job.executor != name]
        self.lanes.ran_at = {p: e for p, e in self.lanes.ran_at.items() if e != name}
        for requested in self.requested.values():
            requested.undisturbed = False
        self.tell(ExecutorLost(executor=name))
        assert self.protocol.handle(ExecutorLost(executor=name)) == ()

    @rule(data=st.data())
    def add_an_executor(self, data: st.DataObject) -> None:
        absent = sorted(set(NAMES) - self.executors.keys())
        if absent:
            name = data.draw(st.sampled_from(absent), label="added")
            self.executors[name] = 2
            self.lanes.stores[name] = {}
            self.tell(ExecutorAdded(executor=name, lanes=2))

    @precondition(lambda self: bool(self.executors))
    @rule(data=st.data())
    def drain_an_executor(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.executors)), label="drained")
        self.draining.add(name)
        for requested in self.requested.values():
            requested.undisturbed = False
        self.tell(DrainRequested(executor=name))

    @rule(executors=st.integers(0, 3))
    def restart_the_driver(self, executors: int) -> None:
        self.last_requested = {}
        self.start_run(dict.fromkeys(NAMES[4 - executors :] if executors else (), 2))

    # What holds after every step.

    @invariant()
    def every_key_group_has_a_living_executor_or_epochs_are_held(self) -> None:
        view = self.protocol.view()
        assert self.held == bool(view.holds)
        for c, component in view.components.items():
            assert component.assignment == self.assignments[c]
            assert component.assignment.num_key_groups == NUM_KEY_GROUPS
            assert self.held or set(component.assignment.executors) <= self.executors.keys()
            if not self.executors:
                assert self.held

    @invariant()
    def the_orders_say_what_the_plan_says(self) -> None:
        if self.running is None and not self.held:
            for c, plan in self.protocol.next_epoch().items():
                assert plan.suspended == self.suspended[c]
                assert plan.load <= self.load[c]

    @invariant()
    def waiting_rows_are_known(self) -> None:
        for c, component in self.protocol.view().components.items():
            real = {g for g in range(NUM_KEY_GROUPS) if self.lanes.waiting[c, g]}
            assert real <= component.waiting

    @invariant()
    def rows_are_processed_in_order_exactly_once(self) -> None:
        for place in EVERYTHING:
            done = self.lanes.processed[place] + self.lanes.waiting[place]
            assert done == self.lanes.arrived[place]

    @invariant()
    def what_is_in_flight_is_bounded(self) -> None:
        for c, component in self.protocol.view().components.items():
            planned = [t for t in component.transfers if t.planned]
            recovering = [t for t in component.transfers if not t.planned]
            assert {t.key_group for t in recovering} <= component.suspended
            checks = [(recovering, self.policy.recovery)]
            if planned and component.strategy is Strategy.LIVE:
                checks.append((planned, self.requested[c].fact.bounds))
            for transfers, bounds in checks:
                size = sum(t.state_bytes for t in transfers)
                # A key group promoted from planned to recovering was admitted under other bounds.
                assert len(transfers) <= bounds.max_moves or transfers is recovering
                assert size <= bounds.max_bytes or len(transfers) == 1 or transfers is recovering
            assert {t.destination for t in component.transfers} <= self.executors.keys()

    # What holds in the end, if reports arrive and nobody dies any more.

    def teardown(self) -> None:
        if not hasattr(self, "protocol"):
            return
        if self.running is not None:
            self.commit_epoch(strays=set(), silent=False)
        if not self.executors:
            self.executors["a"] = 2
            self.lanes.stores["a"] = {}
            self.tell(ExecutorAdded(executor="a", lanes=2))
        for _ in range(200):
            if not self.requested and not any(self.suspended.values()):
                break
            self.quiet_step()
        else:
            pytest.fail(f"not settled after 200 quiet steps: {self.protocol.view()}")
        for _ in range(2):
            self.quiet_step()
        assert self.lanes.processed == self.lanes.arrived
        assert not any(self.lanes.waiting.values())
        view = self.protocol.view()
        assert view.holds == ()
        for component in view.components.values():
            assert component.transfers == ()
            assert component.load == frozenset()
            assert component.waiting == frozenset()

    def quiet_step(self) -> None:
        for job in self.jobs:
            self.warm(job)
        self.jobs = []
        for report in self.reports:
            self.tell(report)
        self.reports = []
        if self.held:
            self.tell(EpochHeld())
            return
        plans = dict(self.protocol.next_epoch())
        for c, plan in plans.items():
            self.check_plan(c, plan)
        self.durable = {c: plan.assignment for c, plan in plans.items()}
        rows = {place: [len(self.lanes.arrived[place])] for place in EVERYTHING}
        self.running = (self.committed + 1, plans, rows)
        self.lost_now = set()
        self.tell(EpochStarted(epoch=self.committed + 1))
        self.commit_epoch(strays=set(), silent=False)


MigrationMachine.TestCase.settings = settings(
    derandomize=True, deadline=None, max_examples=60, stateful_step_count=40
)
test_the_protocol_withstands_an_adversary = MigrationMachine.TestCase

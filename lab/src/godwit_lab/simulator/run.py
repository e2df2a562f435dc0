"""A simulated run: virtual time, and the real epoch loop, coordinator and controller.

The loop is the one that Spark runs (`godwit.engine.loop`); the work of an epoch is numbers: work
out how long it takes, let the background continue meanwhile, and count what it did.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.control.loop import Controller
from godwit.engine.cluster import AttemptLostError
from godwit.engine.latency import SourceLatency, latency_entry, merged_latency
from godwit.engine.loop import EpochLoop
from godwit.engine.policies import CommittedEpoch, Topology, placement_change
from godwit.engine.row_limit import RowLimit
from godwit.engine.run_record import STREAM, StreamRecorder
from godwit.migration import messages
from godwit.migration.coordinator import Coordinator
from godwit.migration.on_demand import OnDemand
from godwit.model.assignment import even_assignment
from godwit.model.latency import LatencyHistogram
from godwit_lab.simulator.cluster import Executors
from godwit_lab.simulator.flow import SimulatedFlow
from godwit_lab.simulator.history import Delays, EpochRecord, History
from godwit_lab.simulator.transfers import Warming
from godwit_lab.simulator.workload import DrawnRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.control.interfaces import Driven, PlannerRunner
    from godwit.control.settings import Control
    from godwit.engine.loop import Stopwatch
    from godwit.migration.copies import Copies
    from godwit.migration.messages import DropCopies, StartWarming
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.model import events
    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import FloatArray
    from godwit_lab.simulator.flow import EpochWork
    from godwit_lab.simulator.scenario import Scenario
    from godwit_lab.simulator.workload import Batch, SimulatedSource

_PAUSE_S = 0.1  # while epochs are held, or nothing is due
# while an epoch runs, first and later: the controller's thread is told when it begins, and does not
# wait for its end
_FIRST_LOOK_S, _LOOK_S = 0.25, 1.0


class Simulation:
    """One run of a scenario: cluster, clock and ports of the real coordinator and controller."""

    def __init__(
        self,
        scenario: Scenario,  # what runs, where
        *,
        # of everything that is drawn: equal scenarios and seeds give equal histories
        seed: int = 0,
        # makes the controller, given this simulation: its `coordinator`, `executors` (the pool),
        # `topology` and clock (`now_s`). None: no controller
        control: Callable[[Simulation], Driven] | None = None,
        source: SimulatedSource | None = None,  # where rows come from, if not as the scenario says
        # takes kind and values of entries for a journal, as a real run writes them
        note: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        draws = [np.random.default_rng([seed, number]) for number in range(3)]
        self.scenario, self.history = scenario, History()
        self.executors = Executors(cluster=scenario.cluster, rng=draws[0])
        # the flow with its state
        self.flow = SimulatedFlow(
            scenario.components,
            scenario.keys,
            scenario.costs,
            seed=seed,
            rng=draws[1],
            on_loss=scenario.policy.on_loss,
            row_bytes=scenario.row_bytes,
        )
        longest_s = math.inf if scenario.longest_epoch_s is None else scenario.longest_epoch_s
        self.topology = Topology(
            stages=tuple(tuple(c.name for c in level) for level in self.flow.levels),
            downstream=tuple((f.upstream, c.name) for c in scenario.components for f in c.feeds),
            trigger_s=scenario.trigger_s,
            longest_epoch_s=longest_s,
        )
        fed = {c.name for c in scenario.components if not c.feeds}
        spreads = {name: self.flow.spreads[name] for name in sorted(fed)}
        self._source = source or DrawnRows(
            scenario.rate, scenario.keys, scenario.duration_s, spreads, draws[2]
        )
        self._durable = self._first_assignments()
        self._places = dict(self._durable)
        if scenario.held:
            self.flow.start_warm(self._durable)
        self._now_s, self._next_trigger_s = 0.0, 0.0
        self._taken, self._batches, self._committed, self._runs = 0, 0, -1, 0
        self._held_back = 0
        self._limit = RowLimit(longest_s)
        self._observed: CommittedEpoch | None = None  # the last one with input
        self._offered: Batch | None = None
        self._copied_bytes = 0.0
        # the last load distance, and what it is of
        self._distance: tuple[tuple[Any, ...], float] = (), 0.0
        self._make_controller = control
        self._note, self._recorder = note, StreamRecorder()
        self._start_run()

    def _start_run(self) -> None:
        """Create coordinator, controller and empty local stores over the durable state."""
        self._runs += 1
        self._warming = Warming(
            holdings=self.flow.holdings,
            fixed_s=self.scenario.costs.warm_fixed_ms / 1000,
            checkpoint_bytes_per_s=self.scenario.cluster.checkpoint_bytes_per_s,
            now_s=self._now_s,
        )
        for name, machine in self.executors.alive.items():
            self._warming.add_executor(name, machine)
        self.coordinator = Coordinator(
            messages.RunStarted(
                run_id=f"run-{self._runs}",
                executors=self._cores(),
                assignments=self._durable,
                committed=self._committed,
                waiting={
                    name: np.flatnonzero(buffer.waiting).tolist()
                    for name, buffer in self.flow.buffers.items()
                },
                state_bytes={
                    name: dict(enumerate(holdings.state_bytes.astype(np.int64).tolist()))
                    for name, holdings in self.flow.holdings.items()
                },
                on_demand=OnDemand(local=True),
            ),
            states={name: [(name, "state")] for name in self.flow.components},
            policy=self.scenario.policy,
            ports=self,
        )
        self.loop = EpochLoop(self, self.coordinator, self)
        self._controller = None if self._make_controller is None else self._make_controller(self)

    def restart(self) -> None:
        """Restart the driver from the durable state; all local stores are empty."""
        for holdings in self.flow.holdings.values():
            holdings.copies.clear()
        self._copied_bytes = 0.0
        self._start_run()

    # -- the coordinator's ports -------------------------------------------------------------------

    def warm(self, order: StartWarming) -> None:
        """Queue an order to copy state of key groups to an executor, or update its copies."""
        self._warming.queue_order(order)

    def drop(self, order: DropCopies) -> None:
        """Queue an order to delete an executor's copies of state."""
        self._warming.queue_order(order)

    def announce(self, event: events.Event) -> None:
        """Record an event in the history, and in the journal if there is one."""
        self.history.events.append(event)
        if self._note is not None:
            self._note("event", event.to_dict())

    def now_s(self) -> float:
        """Return the virtual time."""
        return self._now_s

    # -- running ----------------------------------------------------------------------------------

    def run(self, until_s: float | None = None, *, settle_s: float = 0.0) -> History:
        """Run until a time; by default until rows end, and `settle_s` longer.

        Return the history.
        """
        end_s = self.scenario.duration_s + settle_s if until_s is None else until_s
        while self._now_s < end_s:
            self.step()
        return self.history

    def step(self) -> None:
        """Run the next epoch if one is due and none is held; else advance simulated time a little.

        Then let the controller, if there is one, make a step.
        """
        self._advance_background_work(self._now_s)
        if self.coordinator.view.holds:
            self.coordinator.begin(self.next_epoch)
            self._advance_background_work(self._now_s + _PAUSE_S)
        elif (batch := self._next_batch()) is None:
            self._advance_a_little()
        else:
            self._began_s = self._now_s
            if self._controller is not None and batch.number is not None:
                self._controller.begun(batch.rows, self._held_back)
            self.loop.run(batch)
        if self._controller is not None:
            self._controller.step()

    def _next_batch(self) -> Batch | None:
        """Return the next epoch's batch; ``None`` if no epoch is due.

        The batch of an attempt that failed is returned again, unchanged.
        """
        if self._offered is None:
            arrived = self._source.arrived_by(self._now_s)
            if self._observed is not None:
                pending, view = self.executors.view.pending, self.coordinator.view
                self._limit.adapt(
                    placement_change(self.topology.stages, self._observed, view, pending)
                )
            limits = (self.scenario.max_rows, self._limit.rows)
            last = min([arrived, *(self._taken + most for most in limits if most is not None)])
            if last > self._taken and self._now_s >= self._next_trigger_s:
                self._offered = self._source.batch(self._batches, self._taken, last)
                self._held_back = arrived - last
                self._next_trigger_s = self._now_s + self.scenario.trigger_s
            elif self.coordinator.view.due:
                return self._source.empty_batch(self._now_s, self._taken)
        return self._offered

    def _advance_a_little(self) -> None:
        """Advance time by `_PAUSE_S`, or to the next trigger or change of executors if later."""
        until_s = self._now_s + _PAUSE_S
        if self.coordinator.view.awaits:
            self.coordinator.advance_clock()
        elif self._next_trigger_s > until_s:
            until_s = max(until_s, min(self._next_trigger_s, self.executors.next_s()))
        self._advance_background_work(until_s)

    # -- for the loop: `godwit.engine.loop.Epochs` and `EpochObserver` ----------------------------

    @property
    def next_epoch(self) -> int:
        """Number of the epoch after the last committed one."""
        return self._committed + 1

    def wait_while_held(self) -> bool:
        """Return ``False``: the controller steps before the epoch is tried again."""
        return False

    def regroup(self, physical_plan: Any) -> None:
        """No-op: simulated components are never regrouped."""

    def plan(
        self,
        epoch: int,
        batch: Batch | None,
        component_views: Mapping[str, ComponentView],
        coordinator: Coordinator,
    ) -> None:
        """Compute and store the epoch's work and duration, for `run_stages` and `commit`."""
        assert batch is not None, "one without input has a batch without rows"
        alive = self.executors.alive
        self._work = self.flow.work(
            epoch,
            batch,
            component_views,
            copies=coordinator.copies,
            speeds={name: self.executors.speed(name) for name in alive},
            cores=self._cores(),
            links={name: machine.bytes_per_s for name, machine in alive.items()},
        )

    def run_stages(self) -> None:
        """Advance time by the attempt's duration; raise if an executor that it uses dies."""
        work = self._work
        end_s, look_s = self._now_s + work.took_s, self._now_s + _FIRST_LOOK_S
        while self._now_s < end_s and work.used <= self.executors.alive.keys():
            self._advance_background_work(
                min(end_s, look_s, max(self.executors.next_s(), self._now_s))
            )
            if self._now_s >= look_s:
                look_s = self._now_s + _LOOK_S
            if self._controller is not None and self._now_s < end_s:
                self._controller.step()

    def commit(self) -> None:
        """Commit the epoch's work; raise `AttemptLostError` if an executor of it was lost."""
        work = self._work
        lost = work.used - self.executors.alive.keys()
        if lost:
            self.history.aborted += 1
            raise AttemptLostError(f"executor {min(lost)} was lost")
        self._committed, batch = work.epoch, work.batch
        if batch.number is not None:
            self._offered, self._taken, self._batches = None, batch.last, self._batches + 1
            self._limit.record_epoch({"rows": batch.rows}, work.took_s)
            if self._limit.cut:
                self._next_trigger_s = min(self._next_trigger_s, self._now_s)
        self._outcome, self._left = self.flow.commit(work)
        self._durable = {name: part.plan.assignment for name, part in work.components.items()}

    def outcome(self, _copies: Copies) -> EpochOutcome:
        """Return the outcome of the committed epoch."""
        return self._outcome

    def deliver(self) -> None:
        """No-op: there are no sinks."""

    def remarks(self, _outcome: EpochOutcome) -> tuple[()]:
        """Return no events about dropped rows: none are dropped."""
        return ()

    def latencies(self) -> dict[str, SourceLatency]:
        """Return source → exact latency of its rows: each row's arrival is known here."""
        histogram = LatencyHistogram.spread(Delays.of(self._left, self._now_s).pieces)
        if not histogram.rows:
            return {}
        return {"rows": SourceLatency(arrival="source", histogram=histogram)}

    def committed(
        self,
        outcome: EpochOutcome,
        component_views: Mapping[str, ComponentView],  # noqa: ARG002
        took_s: float,  # noqa: ARG002
    ) -> None:
        """Add the epoch to the history and the journal, and let the controller observe it."""
        work = self._work
        self.history.epochs.append(self._record_epoch(work, self._began_s, self._left))
        observed = CommittedEpoch(
            outcome=outcome,
            component_views={name: part.plan for name, part in work.components.items()},
            took_s=work.took_s,
            backlog_rows=self._held_back,
        )
        if work.batch.number is not None:
            self._observed = observed
        if self._controller is not None:
            self._controller.observe(observed)
        if self._note is not None:
            self._recorder.observe(observed, self.topology, self._now_s)
            load = self.coordinator.recent_load.due_summary()
            stream = None if load is None else self._recorder.summary(self.topology)
            if load is not None and stream is not None:
                self._note("load", load.to_dict())
                self._note(STREAM, stream.to_dict())

    def delivered(
        self,
        outcome: EpochOutcome,
        stopwatch: Stopwatch,
        latencies: Mapping[str, SourceLatency],
    ) -> None:
        """Report the rows' latency to the controller."""
        if self._controller is not None:
            spent_s = stopwatch.spent_s({}, in_series=True)
            self._controller.delivered(merged_latency(latencies), spent_s)
        if self._note is not None and latencies:
            self._note("latency", latency_entry(outcome.epoch, latencies))

    # -- time -------------------------------------------------------------------------------------

    def _advance_background_work(self, until_s: float) -> None:
        """Carry out background copies up to a time, then changes of executors up to it."""
        while True:
            at_s = min(until_s, self._warming.next_s())
            warmed = self._warming.advance(at_s, self._committed)
            self._now_s = max(self._now_s, at_s)
            for order, warmed_copies in warmed:
                self.coordinator.warmed(order, warmed_copies)
            if at_s >= until_s and not warmed:
                break
        if self.executors.advance(until_s):
            self._report_executors()

    def _report_executors(self) -> None:
        """Report executors that joined or died to the coordinator."""
        alive, known = self.executors.alive, self.coordinator.view.executors
        for name in known.keys() - alive.keys():
            self._warming.remove_executor(name)
        for name in alive.keys() - known.keys():
            self._warming.add_executor(name, alive[name])
        self.coordinator.see(self._cores())

    def _cores(self) -> dict[str, int]:
        """Return executor → number of cores."""
        return {name: machine.cores for name, machine in self.executors.alive.items()}

    def _first_assignments(self) -> dict[str, Assignment]:
        """Return component → initial assignment: the scenario's, or an even one."""
        cores = self._cores()
        assignments = self.scenario.assignments
        return {
            name: assignments[name]
            if name in assignments
            else even_assignment(c.key_groups, list(cores), list(cores.values()))
            for name, c in self.flow.components.items()
        }

    # -- figures of epochs ------------------------------------------------------------------------

    def _record_epoch(self, work: EpochWork, began_s: float, arrivals: FloatArray) -> EpochRecord:
        """Add a committed epoch to the history, and return its record.

        `arrivals`: arrivals of the processed rows, as `RowArrivals.pieces` returns them.
        """
        moves, loaded = 0, 0.0
        for name, part in work.components.items():
            now, before = part.plan.assignment, self._places[name]
            if now is not before:
                here = np.array(now.executors)[now.executor_of]
                moves += int((here != np.array(before.executors)[before.executor_of]).sum())
                self._places[name] = now
            loaded += float(part.moved_bytes[list(part.plan.load)].sum())
        copied = self._warming.moved_bytes - self._copied_bytes
        self._copied_bytes = self._warming.moved_bytes
        return EpochRecord(
            epoch=work.epoch,
            began_s=began_s,
            took_s=self._now_s - began_s,
            rows=work.batch.rows,
            lag_rows=self._source.arrived_by(self._now_s) - self._taken,
            waiting_rows=int(sum(b.waiting.sum() for b in self.flow.buffers.values())),
            executors=len(self.executors.alive),
            load_distance=self.load_distance(max(work.batch.rows, 1), work.batch.phase),
            moved_bytes=copied + loaded,
            moves=moves,
            delays=Delays.of(arrivals, self._now_s),
        )

    def load_distance(self, rows: int, phase: int) -> float:
        """Return the largest deviation of an executor's load from the mean, as a share of the mean.

        `rows`: source rows of the next epoch, rounded to one digit here: more would change little.
        `phase`: number of shifts of keys so far.
        """
        rows, view = int(float(f"{rows:.0e}")), self.coordinator.view
        speeds = tuple((name, self.executors.speed(name)) for name in self.executors.alive)
        places = tuple(component.assignment for component in view.components.values())
        state = rows, phase, speeds, frozenset(view.executors), view.draining
        *before, known = self._distance[0] or (None,) * 6
        if tuple(before) == state and all(map(operator.is_, known, places)):
            return self._distance[1]
        distance = max(
            _load_distance(*self.load_and_capacity(stage, rows, phase))
            for stage in self.topology.stages
        )
        self._distance = (*state, places), distance
        return distance

    def load_and_capacity(
        self, stage: tuple[str, ...], rows: int, phase: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return each executor's expected milliseconds of load, and the capacity of those to stay.

        Draining executors come last in the first array, and are not in the second. `stage`: names
        of components. `rows`: source rows of an epoch. `phase`: number of shifts of keys so far.
        Capacity: cores, times their speed.
        """
        view, expected = self.coordinator.view, self.flow.expected_ms(rows, phase)
        names = sorted(self.executors.alive.keys() & view.executors.keys())
        names.sort(key=lambda name: name in view.draining)
        number = {name: index for index, name in enumerate(names)}
        load = np.zeros(len(names))
        for component in stage:
            assignment = view.components[component].assignment
            index = np.array([number.get(name, -1) for name in assignment.executors])
            owner = index[assignment.executor_of]
            load += np.bincount(
                owner[owner >= 0], weights=expected[component][owner >= 0], minlength=len(names)
            )
        stay = [name for name in names if name not in view.draining]
        capacity = [self.executors.alive[e].cores * self.executors.speed(e) for e in stay]
        return load, np.array(capacity)


def _load_distance(load: FloatArray, capacity: FloatArray) -> float:
    """Return the largest deviation of load per capacity from the mean, as a share of it."""
    if not load.sum() or not len(capacity):
        return 0.0
    mean = load.sum() / capacity.sum()
    index = load[: len(capacity)] / capacity
    return float(np.abs(index - mean).max() / mean)


def controlled_by(
    settings: Control,  # what the controller is to do
    *,
    # runs planners within `Search.time_limit`, in real time. None: they take no time at all, and
    # there is no limit: the history is the same on a machine that has other things to do
    run_planner: PlannerRunner | None = None,
) -> Callable[[Simulation], Controller]:
    """Return a function that creates the controller of a `Simulation`, for its `control`.

    After a restart of the driver, a new controller continues from the events of the earlier runs.
    """
    if run_planner is None:
        settings = replace(settings, search=replace(settings.search, time_limit=None))

    def controller(simulation: Simulation) -> Controller:
        """Create the controller of a simulation."""
        return Controller(
            settings,
            topology=simulation.topology,
            migrations=simulation.coordinator,
            pool=simulation.executors,
            clock=simulation,
            run_planner=run_planner,
            state_bytes={
                name: dict(enumerate(holdings.state_bytes.astype(int).tolist()))
                for name, holdings in simulation.flow.holdings.items()
            },
            past=simulation.history.events,
        )

    return controller

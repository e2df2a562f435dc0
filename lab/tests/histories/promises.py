"""Promises of the loop, checked on a history."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from lab.tests.histories.drawing import PERIOD_S

from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.placement import Limits, Problem, Traffic, metrics
from godwit.placement.problem import NO_TRAFFIC
from godwit.placement.registry import a_load_range, equal_executors, some_tau
from godwit.placement.registry import planner as planner_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lab.tests.histories.drawing import Drawn

    from godwit.control.loop import Controller
    from godwit.engine.policies import CommittedEpoch
    from godwit.model.latency import LatencyHistogram
    from godwit_lab.simulator import History, Simulation

__all__ = ["Watched", "broken", "uneven"]

_SLACK = 0.03
"""What sampling noise of a period may add to a load distance, as a share of the mean."""
_LEAST_GAIN = 0.05
"""By how much of the mean a plan has to make the load more even to be carried out."""
_TO_BALANCE = 2
"""Periods within which the load is even again."""
_TO_RECOVER = 3
"""The same after a loss: one for the state to come back; and for a slow executor, likewise."""
_CHANGES = (
    events.ExecutorAdded,
    events.ExecutorDraining,
    events.ExecutorKept,
    events.ExecutorLost,
    events.ExecutorsReturned,
)


class Watched:
    """A controller whose every step is looked at.

    Attributes
    ----------
    faults
        What was wrong, in the order in which it was seen.
    """

    def __init__(self, drawn: Drawn, simulation: Simulation, controller: Controller) -> None:
        self._drawn, self._simulation, self._controller = drawn, simulation, controller
        self._drained = False
        self.faults: list[str] = []

    def begun(self, rows: int, backlog_rows: int | None) -> None:
        """See `godwit.control.interfaces.Driven`."""
        self._controller.begun(rows, backlog_rows)

    def observe(self, epoch: CommittedEpoch) -> None:
        """See `godwit.control.interfaces.Driven`."""
        alive = self._simulation.executors.alive
        for name, plan in epoch.component_views.items():
            places = plan.assignment
            owners = {places.executors[at] for at in set(places.executor_of.tolist())}
            # One that died after its lanes had done their work is noticed at the next epoch.
            if owners - alive.keys() and self._simulation.executors.now_s > self._drawn.at_s + 1:
                self.faults.append(f"{name} has key groups on {owners - alive.keys()}, gone")
        self._controller.observe(epoch)

    def delivered(self, latency: LatencyHistogram, spent_s: Mapping[str, float]) -> None:
        """See `godwit.control.interfaces.Driven`."""
        self._controller.delivered(latency, spent_s)

    def step(self) -> None:
        """See `godwit.control.interfaces.Driven`."""
        simulation, bounds = self._simulation, self._drawn.settings.bounds
        if self._drawn.drains and not self._drained and simulation.now_s() >= self._drawn.at_s:
            self._drained = True
            simulation.coordinator.drain(self._drawn.drains)
        self._controller.step()
        for name, component in simulation.coordinator.view.components.items():
            flying = [t.state_bytes for t in component.transfers if t.planned]
            if len(flying) > bounds.max_moves:
                self.faults.append(f"{len(flying)} key groups of {name} in flight")
            if len(flying) > 1 and sum(flying) > bounds.max_bytes:
                self.faults.append(f"{sum(flying)} bytes of {name} in flight")


def broken(drawn: Drawn, simulation: Simulation, watched: Watched) -> list[str]:
    """Say which promises a history broke; nothing if it kept them all."""
    history = simulation.history
    faults = [*watched.faults, *_rows(simulation), *_ends(drawn, simulation)]
    faults += _scaling(drawn, history)
    if drawn.trouble == "noise":
        faults += _rest(drawn, history)
    return list(dict.fromkeys(faults))


def _rows(simulation: Simulation) -> Iterator[str]:
    """Every row is processed once, in order (overtaking is refused where it happens)."""
    for name, buffer in simulation.flow.buffers.items():
        lost = int((buffer.arrived - buffer.processed).sum())
        if lost:
            yield f"{lost} rows of {name} still wait"


def _ends(drawn: Drawn, simulation: Simulation) -> Iterator[str]:
    """Migrations and draining end."""
    view, now_s = simulation.coordinator.view, simulation.now_s()
    started = {e.migration: e for e in simulation.history.of_kind(events.MigrationStarted)}
    for name, component in view.components.items():
        if component.migration:
            event = started[component.migration]
            # So many key groups switch between two epochs, and these may be long.
            epochs = 4 + event.moves / (drawn.settings.bounds.max_moves or 1)
            since = simulation.history.between(event.at_s, now_s)
            longest_s = since.column("took_s").max(initial=0.0)
            if now_s - event.at_s > max(6 * PERIOD_S, epochs * longest_s):
                yield f"the migration of {name} does not end"
        if component.suspended:
            yield f"{len(component.suspended)} key groups of {name} are suspended permanently"
        for executor in view.draining & set(component.assignment.executors):
            since_s = max(
                e.at_s
                for e in simulation.history.of_kind(events.ExecutorDraining)
                if e.executor == executor
            )
            if len(component.assignment.key_groups(executor)) and now_s - since_s > 6 * PERIOD_S:
                yield f"executor {executor} is still not empty of {name}"


def _scaling(drawn: Drawn, history: History) -> Iterator[str]:
    """Two decisions a step at most, and one for every executor that was asked for in vain."""
    # When no rows come any more another step has happened.
    flowing = history.between(0, drawn.scenario.duration_s)
    decided = flowing.of_kind(events.ScaledOut, events.ScaledIn)
    after = [e for e in decided if e.at_s >= drawn.at_s]
    before = [e for e in decided if e.at_s < drawn.at_s]
    refused = flowing.of_kind(events.ScalingRefused)
    if drawn.trouble == "noise" and decided:
        yield f"{len(decided)} scaling decisions on steady input"
    asked = sum(e.wanted - e.before - len(e.kept) for e in flowing.of_kind(events.ScaledOut))
    missing = max(0, asked - len(flowing.of_kind(events.ExecutorAdded)))
    if len(after) > 2 + missing:
        yield f"{len(after)} scaling decisions for one step, {missing} executors did not come"
    if drawn.trouble in ("step up", "late", "all at once") and not after and not refused:
        yield "no scaling decision for a step up"
    if len(before) > 2:
        yield f"{len(before)} scaling decisions before anything happened"
    cool_down_s = drawn.settings.cool_down_s
    for one, other in pairwise(decided):
        if other.before == 0:
            continue  # nobody was left: that takes nothing back
        seen_s = drawn.at_s + PERIOD_S  # by when a period has ended that saw the trouble
        if one.at_s < seen_s and drawn.at_s <= other.at_s and isinstance(other, events.ScaledOut):
            continue  # the rate has risen in between
        if type(one) is not type(other) and other.at_s - one.at_s < cool_down_s - 1e-6:
            yield f"a scaling decision is taken back after {other.at_s - one.at_s:.1f} s"


def _rest(drawn: Drawn, history: History) -> Iterator[str]:
    """Steady input comes to rest.

    A load that is nearly too uneven may be taken for too uneven by chance, once; then it is even.
    """
    started = history.between(drawn.at_s, float("inf")).of_kind(events.RebalancingStarted)
    components = [name for event in started for name in event.migrations]
    for name in sorted(set(components)):
        if components.count(name) > 1:
            yield f"{name} is rebalanced {components.count(name)} times on steady input"


def uneven(drawn: Drawn, simulation: Simulation) -> list[str] | None:
    """True if the load is less even than asked, and than possible, once it has to be even.

    ``None`` where too little time is left for that to be seen.
    """
    history, slow = simulation.history, drawn.scenario.cluster.slowdowns
    if slow and equal_executors in planner_named(drawn.planner).requires:
        return None  # it plans nothing then, and says so
    since_s = _settled_s(drawn, history)
    if since_s is None:
        steady = drawn.trouble in ("noise", "shift", "straggler", "death", "drain")
        missing = steady and not _moves_at_the_end(drawn, history)
        return ["too few periods ended after the trouble"] if missing else None
    later = history.between(since_s, float("inf"))
    found = later.column("load_distance")[later.column("rows") > 0]
    if not len(found):
        return None
    # One epoch in ten may be off: chance may unbalance a load, for as long as it takes to see it.
    distance = float(np.quantile(found, 0.9, method="lower"))
    asked = drawn.settings.worth.max_load_distance
    if distance <= asked + _SLACK or _within_tau(drawn, simulation):
        return []
    if _is_joint(drawn) and _joint_distance(simulation) <= asked + _SLACK:
        return []
    # What lies within a move's least gain of the best is not worth a move.
    best = _best(drawn, simulation)
    allowed = max(asked, 1.1 * best, best + _LEAST_GAIN)
    if distance > allowed + _SLACK:
        return [f"load distance {distance:.1%} where {allowed:.1%} is promised"]
    return []


def _settled_s(drawn: Drawn, history: History) -> float | None:
    """Time by which the load has to be even: some whole periods after the last disturbance.

    What happens is the trouble, and an executor that comes, goes, or is to go. A component that was
    on the move then is planned for anew only once it is not; and a migration may take longer than a
    period, since no more may be in flight than its bounds let, and epochs are long meanwhile.
    """
    changes = [e.at_s for e in history.of_kind(*_CHANGES)]
    balanced = drawn.trouble in ("noise", "shift")
    periods = _TO_BALANCE if balanced and not changes else _TO_RECOVER
    free_s = _moved_s(history, max([drawn.at_s, *changes]))
    # The first period to end after it has seen only a part of it.
    ends = [e.at_s for e in history.of_kind(events.LoadMeasured) if e.at_s > free_s]
    if len(ends) <= periods:
        return None
    under_way = [(b, e) for b, e in _migrations(history) if b <= ends[periods] < e]
    since_s = _moved_s(history, ends[periods])
    if any(ended_s - begun_s > PERIOD_S for begun_s, ended_s in under_way):
        # What is left to even out after so long a migration is planned for when it has ended.
        since_s = _moved_s(history, min((s for s in ends if s > since_s), default=float("inf")))
    return since_s if np.isfinite(since_s) else None


def _moves_at_the_end(drawn: Drawn, history: History) -> bool:
    """True if key groups moved until fewer periods were left than it takes to see what came."""
    end_s = drawn.scenario.duration_s
    late_s = end_s - _TO_RECOVER * PERIOD_S
    return any(begun_s <= end_s and late_s < ended_s for begun_s, ended_s in _migrations(history))


def _moved_s(history: History, at_s: float) -> float:
    """Time by which all migrations begun before some time had ended; infinite: never."""
    return max([at_s, *(ended_s for begun_s, ended_s in _migrations(history) if begun_s <= at_s)])


def _migrations(history: History) -> list[tuple[float, float]]:
    """Begin and end of each migration; infinite: it never ended."""
    ended = {
        e.migration: e.at_s
        for e in history.of_kind(events.MigrationFinished, events.MigrationCancelled)
    }
    started = history.of_kind(events.MigrationStarted)
    return [(e.at_s, ended.get(e.migration, float("inf"))) for e in started]


def _within_tau(drawn: Drawn, simulation: Simulation) -> bool:
    """True if no executor is above the bound of a planner by tau; there is none from below."""
    if some_tau not in planner_named(drawn.planner).requires:
        return False
    tau = drawn.settings.search.limits.tau or drawn.settings.worth.max_load_distance
    rows = int(np.median(simulation.history.column("rows")[-10:]))
    phase = simulation.scenario.keys.phase_at(simulation.now_s())
    over = 0.0
    for stage in simulation.topology.stages:
        load, capacity = simulation.load_and_capacity(stage, max(rows, 1), phase)
        index = load[: len(capacity)] / capacity
        over = max(over, float(index.max() * capacity.sum() / load.sum()) - 1)
    return over <= tau + _SLACK


def _is_joint(drawn: Drawn) -> bool:
    """True if a planner evens out what executors do for all components together, and no stage.

    So paper 2 §3 defines the load distance that ALBIC keeps: by the whole load of a node.
    """
    return planner_named(drawn.planner).collocates


def _joint_distance(simulation: Simulation) -> float:
    """Load distance of all components together, as a share of the mean."""
    rows = int(np.median(simulation.history.column("rows")[-10:]))
    phase = simulation.scenario.keys.phase_at(simulation.now_s())
    every = simulation.topology.components
    load, capacity = simulation.load_and_capacity(every, max(rows, 1), phase)
    mean = load.sum() / capacity.sum()
    return float(np.abs(load[: len(capacity)] / capacity - mean).max() / mean)


def _best(drawn: Drawn, simulation: Simulation) -> float:
    """Load distance that the planner itself would reach if it knew the true loads."""
    scenario, known = simulation.scenario, planner_named(drawn.planner)
    asked = drawn.settings.worth.max_load_distance
    phase = scenario.keys.phase_at(simulation.now_s())
    rows = int(np.median(simulation.history.column("rows")[-10:]))
    expected = simulation.flow.expected_ms(max(rows, 1), phase)
    worst = 0.0
    whole = _is_joint(drawn)
    stages = (simulation.topology.components,) if whole else simulation.topology.stages
    view = simulation.coordinator.view
    names = tuple(sorted(view.executors))
    for stage in stages:
        owner = np.concatenate(
            [
                np.array([names.index(e) if e in names else -1 for e in a.executors])[a.executor_of]
                for a in (view.components[name].assignment for name in stage)
            ]
        )
        load = np.concatenate([expected[name] for name in stage])
        speeds = [simulation.executors.speed(n) * view.executors[n] for n in names]
        draining = np.isin(names, list(view.draining))
        mean = load.sum() / np.array(speeds)[~draining].sum()
        limits = Limits(
            tau=(drawn.settings.search.limits.tau or asked) if some_tau in known.requires else None,
            load_low=(1 - asked) * mean if a_load_range in known.requires else None,
            load_high=(1 + asked) * mean if a_load_range in known.requires else None,
        )
        problem = Problem(
            executors=names,
            load=load,
            state_bytes=np.ones(len(load)),
            current=owner.astype(np.int32),
            capacity=np.array(speeds),
            draining=draining,
            limits=limits,
            history=np.stack([load, load]),
            traffic=_pairs(len(expected[stage[0]])) if whole else NO_TRAFFIC,
        )
        if known.refusal(problem):
            return float("inf")
        untimed = {"time_limit_s": np.inf} if "time_limit_s" in known.takes else {}
        try:
            solved = known(problem, **untimed, **drawn.settings.search.options)
        except GodwitError:
            return float("inf")
        worst = max(worst, metrics.load_distance(problem, solved.assignment) / mean)
    return worst


def _pairs(key_groups: int) -> Traffic:
    groups = np.arange(key_groups, dtype=np.int32)
    return Traffic(source=groups, target=groups + key_groups, rate=np.ones(key_groups))

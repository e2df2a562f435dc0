"""What the loop promises, checked on a history."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from tests.histories.drawing import PERIOD_S

from godwit.model import events
from godwit.planning import Limits, Problem, Traffic, metrics
from godwit.planning.planner import a_load_range, some_tau
from godwit.planning.problem import NO_TRAFFIC
from godwit.planning.registry import planner as planner_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.histories.drawing import Drawn

    from godwit.control import Controller, EpochObserved
    from godwit.sim import History, Simulation

__all__ = ["Watched", "broken"]

_SLACK = 0.03
"""What sampling noise of a period may add to a load distance, as a share of the mean."""
_TO_RECOVER = 3
"""Periods after a loss: one for the state to come back, two to balance."""


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

    def observe(self, epoch: EpochObserved) -> None:
        """See `godwit.control.Driven`."""
        alive = self._simulation.executors.alive
        for name, assignment in epoch.assignments.items():
            owners = {assignment.executors[at] for at in set(assignment.executor_of.tolist())}
            # One that died after its lanes had done their work is noticed at the next epoch.
            if owners - alive.keys() and self._simulation.executors.now_s > self._drawn.at_s + 1:
                self.faults.append(f"{name} has key groups on {owners - alive.keys()}, gone")
        self._controller.observe(epoch)

    def turn(self) -> None:
        """See `godwit.control.Driven`."""
        simulation, bounds = self._simulation, self._drawn.settings.bounds
        if self._drawn.drains and not self._drained and simulation.now_s() >= self._drawn.at_s:
            self._drained = True
            simulation.conductor.drain(self._drawn.drains)
        self._controller.turn()
        for name, component in simulation.conductor.view.components.items():
            flying = [t.state_bytes for t in component.transfers if t.planned]
            if len(flying) > bounds.max_moves:
                self.faults.append(f"{len(flying)} key groups of {name} in flight")
            if len(flying) > 1 and sum(flying) > bounds.max_bytes:
                self.faults.append(f"{sum(flying)} bytes of {name} in flight")


def broken(drawn: Drawn, simulation: Simulation, watched: Watched) -> list[str]:
    """Say which promises a history broke; nothing if it kept them all."""
    history = simulation.history
    faults = [*watched.faults, *_rows(simulation), *_ends(simulation)]
    faults += _scaling(drawn, history)
    if drawn.trouble in ("noise", "shift", "straggler", "death", "drain"):
        faults += _balance(drawn, simulation)
    if drawn.trouble == "noise":
        faults += _rest(drawn, history)
    return list(dict.fromkeys(faults))


def _rows(simulation: Simulation) -> Iterator[str]:
    """Every row is processed once, in order (overtaking is refused where it happens)."""
    for name, buffer in simulation.flow.buffers.items():
        lost = int((buffer.arrived - buffer.processed).sum())
        if lost:
            yield f"{lost} rows of {name} still wait"


def _ends(simulation: Simulation) -> Iterator[str]:
    """Migrations and draining end."""
    view, now_s = simulation.conductor.view, simulation.now_s()
    started = {e.migration: e.at_s for e in simulation.history.of_kind(events.MigrationStarted)}
    for name, component in view.components.items():
        if component.migration and now_s - started[component.migration] > 6 * PERIOD_S:
            yield f"the migration of {name} does not end"
        if component.suspended:
            yield f"{len(component.suspended)} key groups of {name} are suspended for good"
        for executor in view.draining & set(component.assignment.executors):
            since_s = max(
                e.at_s
                for e in simulation.history.of_kind(events.ExecutorDraining)
                if e.executor == executor
            )
            if len(component.assignment.key_groups(executor)) and now_s - since_s > 6 * PERIOD_S:
                yield f"executor {executor} is still not empty of {name}"


def _scaling(drawn: Drawn, history: History) -> Iterator[str]:
    # When no rows come any more another step has happened.
    flowing = history.between(0, drawn.scenario.duration_s)
    decided = flowing.of_kind(events.ScaledOut, events.ScaledIn)
    after = [e for e in decided if e.at_s >= drawn.at_s]
    before = [e for e in decided if e.at_s < drawn.at_s]
    if drawn.trouble in ("step up", "step down") and len(after) > 2:
        yield f"{len(after)} scaling decisions for one step"
    if drawn.trouble == "step up" and not after and not flowing.of_kind(events.ScalingRefused):
        yield "no scaling decision for a step up"
    if len(before) > 2:
        yield f"{len(before)} scaling decisions before anything happened"
    cool_down_s = drawn.settings.cool_down_s
    for one, other in pairwise(decided):
        if type(one) is not type(other) and other.at_s - one.at_s < cool_down_s - 1e-6:
            yield f"a scaling decision is taken back after {other.at_s - one.at_s:.1f} s"


def _rest(drawn: Drawn, history: History) -> Iterator[str]:
    """Steady input comes to rest.

    A load that is nearly too uneven may be taken for too uneven by chance, once: then it is even.
    """
    started = history.between(drawn.at_s, float("inf")).of_kind(events.RebalancingStarted)
    components = [name for event in started for name in event.migrations]
    for name in sorted(set(components)):
        if components.count(name) > 1:
            yield f"{name} is rebalanced {components.count(name)} times on steady input"


def _balance(drawn: Drawn, simulation: Simulation) -> Iterator[str]:
    """Two full periods after the trouble the load is as even as asked, or as can be."""
    history = simulation.history
    ends = [e.at_s for e in history.of_kind(events.LoadMeasured) if e.at_s > drawn.at_s]
    # The first period to end after the trouble has seen only a part of it.
    periods = _TO_RECOVER if drawn.trouble in ("death", "straggler") else 2
    if len(ends) <= periods:
        yield f"only {len(ends)} periods ended after the trouble"
        return
    later = history.between(ends[periods], float("inf"))
    if not later.column("rows").any():
        yield "no epoch ran after the trouble"
        return
    found = float(np.median(later.column("load_distance")[later.column("rows") > 0]))
    asked = drawn.settings.max_load_distance
    best = _best(drawn, simulation) if found > asked + _SLACK else 0.0
    if found > max(asked, 1.1 * best) + _SLACK:
        yield f"load distance {found:.1%} where {max(asked, best):.1%} can be had"


def _best(drawn: Drawn, simulation: Simulation) -> float:
    """Load distance that the planner itself would reach if it knew the true loads."""
    scenario, known = simulation.scenario, planner_named(drawn.planner)
    phase = scenario.keys.phase_at(simulation.now_s())
    rows = int(np.median(simulation.history.column("rows")[-10:]))
    expected = simulation.flow.expected_ms(max(rows, 1), phase)
    worst = 0.0
    whole = drawn.planner == "albic"
    stages = (simulation.topology.components,) if whole else simulation.topology.stages
    view = simulation.conductor.view
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
            tau=0.1 if some_tau in known.requires else None,
            load_low=0.95 * mean if a_load_range in known.requires else None,
            load_high=1.05 * mean if a_load_range in known.requires else None,
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
        solved = known(problem, **drawn.settings.options)
        worst = max(worst, metrics.load_distance(problem, solved.assignment) / mean)
    return worst


def _pairs(key_groups: int) -> Traffic:
    groups = np.arange(key_groups, dtype=np.int32)
    return Traffic(source=groups, target=groups + key_groups, rate=np.ones(key_groups))

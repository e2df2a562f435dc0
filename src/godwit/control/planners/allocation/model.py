"""Allocation model of paper 2 §4.3.1: units to place on executors, limits, and the objective.

A *unit* is a set of key groups that move together or not at all (§4.3.2, step 2): single key groups
for the MILP, sets of collocated ones for ALBIC.  Invariant: its key groups are on one executor
today; only a pinned unit may hold key groups of several, and it has no choice of place.

**Objective.**  For executors A that stay and B that drain, with load index L_i (load / capacity)
and fair index ``mean``: ``over = max_{A and B}(L_i - mean)``, ``under = max_A(mean - L_i)``, both
at least 0, and ``d = max(over, under)``.  The paper minimises ``w₁·d - w₂(d_u + d_l)`` with w₁ ≫
w₂, which is: first d, then ``over + under`` (d_u = d - over, d_l = d - under).  We order the two
exactly instead of weighing them, with the other goal of its objective, little load left on B,
between them.  Its constraint (5), ``d <= mean``, is left out: it only makes a problem with one very
heavy key group unsolvable.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement import metrics
from godwit.placement.arrays import wrong_value
from godwit.placement.metrics import mean_index
from godwit.placement.solution import Status, make_solution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.placement.arrays import BoolArray, Clock, FloatArray, IntArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

FREE = -1
"""In `Units.pinned`: the unit may go anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """U units made of m key groups."""

    unit_of: IntArray  # shape ``(m,)``: the unit of each key group
    weight: FloatArray  # shape ``(U,)``: load on the bottleneck resource
    usage: FloatArray  # shape ``(U, r)``: load on every resource
    home: IntArray  # shape ``(U,)``: executor that owns the unit today
    count: IntArray  # shape ``(U,)``: key groups that move if the unit leaves its home
    state_bytes: FloatArray  # shape ``(U,)``: bytes that move if the unit leaves its home
    pinned: IntArray  # shape ``(U,)``: the executor the unit must be on, or `FREE`
    # what the pins cost, whatever else is decided
    fixed_moves: int = 0
    fixed_bytes: float = 0.0

    def __len__(self) -> int:
        return len(self.weight)

    def expand(self, place: IntArray) -> IntArray:
        """Return the executor of each key group, for the executor of each unit (`place`)."""
        return place[self.unit_of].astype(np.int32)


def single_units(problem: Problem) -> Units:
    """Return units of one key group each, which may move to any executor."""
    m = problem.num_key_groups
    return merge_units(problem, np.arange(m, dtype=np.int32), np.full(m, FREE, np.int32))


def merge_units(problem: Problem, unit_of: IntArray, pinned: IntArray) -> Units:
    """Return units that are sets of key groups.

    `unit_of`: unit of each key group. `pinned`: executor that each unit must be on, or `FREE`.
    """
    size = len(pinned)
    home = np.zeros(size, np.int32)
    home[unit_of[::-1]] = problem.current[::-1]  # the home of a unit's lowest key group
    forced = pinned[unit_of]
    leaves = (forced != FREE) & (forced != problem.current)
    return Units(
        unit_of=unit_of,
        weight=_sum_by_unit(unit_of, problem.weight, size),
        usage=np.stack([_sum_by_unit(unit_of, use, size) for use in problem.load.T], axis=1),
        home=np.where(pinned == FREE, home, pinned).astype(np.int32),
        count=np.bincount(unit_of, minlength=size).astype(np.int32),
        state_bytes=_sum_by_unit(unit_of, problem.state_bytes, size),
        pinned=pinned,
        fixed_moves=int(leaves.sum()),
        fixed_bytes=float(problem.state_bytes[leaves].sum()),
    )


def _sum_by_unit(unit_of: IntArray, values: FloatArray, size: int) -> FloatArray:
    """Return the sums of the key groups' values per unit."""
    return np.bincount(unit_of, weights=values, minlength=size).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverLimits:
    """Limits on the search for a better plan."""

    # seconds for the whole plan, by `clock`; infinite: nothing in the plan depends on time
    time_limit_s: float = 5.0
    # branch-and-bound nodes of each program; gives the same plan on every machine when the time
    # limit is not reached
    node_limit: int | None = None
    rounds: int = 10_000  # searches after the first, at most
    patience: int = 400  # searches in a row that bring nothing before it stops
    clock: Clock = time.perf_counter  # where time is read
    # chooses the units that are taken back or re-planned
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        for name in ("time_limit_s", "node_limit", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise wrong_value(f"options.{name}", value, "give a number above 0")
        if not self.rounds >= 0:
            raise wrong_value("options.rounds", self.rounds, "give a number of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationModel:
    """Units to place on executors; loads are in units of the fair index (so ``mean`` is 1 or 0)."""

    units: Units  # to be placed
    weight: FloatArray  # shape ``(U,)``: load, scaled
    usage: FloatArray  # shape ``(U, r)``: use of each limited resource; r is 0 without limits
    speed: FloatArray  # shape ``(n,)``: capacity of each executor for the bottleneck
    stays: BoolArray  # shape ``(n,)``: whether the executor may receive units
    room: FloatArray  # shape ``(n, r)``: how much of each limited resource an executor may use
    mean: float  # fair load index, scaled: 1, or 0 where there is no load at all
    scale: float  # what one unit of scaled load is in the problem's unit
    # budget left for units that are not pinned; infinite where there is no limit
    max_moves: float
    max_bytes: float
    # max. number of key groups that stay on draining executors: 0 if the plan has a number of
    # executors as its target; infinite if draining is only preferred
    max_left: float

    def deviations(self, place: IntArray) -> FloatArray:
        """Return each executor's load index minus the mean, in fair shares; shape ``(n,)``."""
        load = np.bincount(place, weights=self.weight, minlength=len(self.speed))
        return load / self.speed - self.mean

    def over_under(self, place: IntArray) -> tuple[float, float]:
        """Return the largest overload and the largest underload, in fair shares.

        Draining executors have no underload.
        """
        deviation = self.deviations(place)
        return max(0.0, float(deviation.max())), max(0.0, float(-deviation[self.stays].min()))

    def objective(self, place: IntArray) -> float:
        """Return d, the largest over- or underload, in the problem's unit of load."""
        return max(self.over_under(place)) * self.scale

    def spent(self, place: IntArray) -> tuple[int, float]:
        """Return the numbers of key groups and bytes that `place` moves, without pinned units."""
        away = place != self.units.home
        return int(self.units.count[away].sum()), float(self.units.state_bytes[away].sum())

    def num_left(self, place: IntArray) -> int:
        """Return the number of key groups on executors that drain."""
        return int(self.units.count[~self.stays[place]].sum())

    def within_room(self, place: IntArray) -> bool:
        """Return whether no executor exceeds its room, and at most `max_left` key groups drain."""
        return self.excess(place) == 0

    def excess(self, place: IntArray) -> float:
        """Return the sum over executors of usage beyond room, relative to the room.

        Key groups on draining executors beyond `max_left` are added.
        """
        excess = max(0.0, self.num_left(place) - self.max_left)
        for resource in range(self.usage.shape[1]):
            used = np.bincount(place, weights=self.usage[:, resource], minlength=len(self.speed))
            room = self.room[:, resource]
            is_over = self.stays & (used > room * (1 + 1e-9))
            excess += float(((used - room) / np.maximum(room, 1e-300))[is_over].sum())
        return excess


def build_model(problem: Problem, units: Units) -> AllocationModel:
    """Return the model of a problem: scaled loads, and the limits on moves, bytes, usage and τ."""
    mean = mean_index(problem)
    scale = mean if mean > 0 else 1.0
    limits = problem.limits
    usage, room = np.empty((len(units), 0)), np.empty((problem.num_executors, 0))
    if limits.max_usage is not None:
        usage = units.usage
        room = problem.capacity * np.asarray(limits.max_usage)
    if limits.tau is not None:
        share = (1 + limits.tau) * mean * problem.speed
        usage = np.column_stack([usage, units.weight])
        room = np.column_stack([room, share])
    largest = usage.max(axis=0, initial=0.0)
    largest[largest == 0] = 1.0
    return AllocationModel(
        units=units,
        weight=units.weight / scale,
        usage=usage / largest,
        speed=problem.speed.astype(np.float64),
        stays=~problem.draining,
        room=room / largest,
        mean=1.0 if mean > 0 else 0.0,
        scale=scale,
        max_moves=np.inf if limits.max_moves is None else limits.max_moves - units.fixed_moves,
        max_bytes=np.inf if limits.max_bytes is None else limits.max_bytes - units.fixed_bytes,
        max_left=np.inf if limits.target_executors is None else 0,
    )


_CHOICES = 12
"""Number of choices to try before the plan counts as infeasible."""


def plan_within_target(problem: Problem, plan: Callable[[Problem], Solution]) -> Solution:
    """Plan for at most n' executors, by marking the others as draining.

    `plan` plans each choice. The first choice of n' executors is taken for which the plan empties
    all others; choices are tried in ascending order of the moves expected. If there was a choice,
    the plan is not proved optimal and has no bound.
    """
    first: Solution | None = None
    for narrowed in choose_executors(problem):
        solution = plan(narrowed)
        if narrowed is problem:
            return solution
        moved = make_solution(
            problem,
            solution.assignment,
            method=solution.method,
            objective=solution.objective,
            details=solution.details,
        )
        if moved.status is not Status.INFEASIBLE:
            return moved
        first = first or moved
    assert first is not None, "there is always at least one choice"
    return first


def choose_executors(problem: Problem) -> Iterator[Problem]:
    """Yield copies of the problem in which all but n' executors drain; itself if none must.

    Those with most load stay, then the fastest of the idle ones; ties: the lower index. Other
    choices follow, the latest of the order exchanged first.
    """
    available, target = problem.available, problem.target_executors
    if target == len(available):
        yield problem
        return
    load = metrics.loads(problem, problem.current)[available]
    order = available[np.lexsort((available, -problem.speed[available], -load))].tolist()
    for staying in itertools.islice(itertools.combinations(order, target), _CHOICES):
        draining = np.ones(problem.num_executors, np.bool_)
        draining[list(staying)] = False
        yield replace(problem, draining=draining)

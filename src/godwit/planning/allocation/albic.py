"""ALBIC: balance load while key groups that talk to each other come, and stay, together.

Problem: the load distance of the MILP, under constraints that keep pairs of key groups with much
traffic on one executor and bring a few more such pairs together with every plan.

Invariant: key groups that were collocated and belong to one partition are never separated by a
plan; partitions shrink, down to single key groups and so to the pure MILP, until the load distance
is at most the bound.

Source: paper 2 §4.3.2, Algorithm 2.  Loads there are percent of an executor; ours have any unit, so
maxLD, maxPL and stepPL are percent of the mean load index.  Our own is that balance stops at
``even_enough``, and that the moves it leaves go to traffic (see `collocation`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from godwit.planning import metrics
from godwit.planning.allocation.collocation import (
    Aims,
    ScoredPairs,
    collocate,
    pin_pairs,
    score_pairs,
)
from godwit.planning.allocation.graph_partition import KeyGroupGraph
from godwit.planning.allocation.milp import allocate_units, plan_milp
from godwit.planning.allocation.model import (
    FREE,
    SolverLimits,
    build_model,
    merge_units,
    plan_within_target,
    single_units,
    solver_limits,
)
from godwit.planning.allocation.search import Placement
from godwit.planning.arrays import IndexArray, IntArray, wrong_value
from godwit.planning.solution import make_solution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.planning.allocation.model import AllocationModel
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_albic"]

_DRAWS = 3
"""Times that as many pairs are drawn anew before fewer are tried."""


def plan_albic(
    problem: Problem,
    *,
    max_load_distance: float = 10.0,
    max_partition_load: float = 25.0,
    partition_step: float = 5.0,
    score_factor: float = 1.5,
    pairs: int = 3,
    even_enough: float = 1.0,
    time_limit_s: float = 5.0,
    node_limit: int | None = None,
    patience: int = 100,
    clock: Clock = time.perf_counter,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Least load distance while collocation is kept and improved (paper 2 §4.3.2, Algorithm 2).

    Constraints are those of `plan_milp`; besides, partitions of collocated key groups move as one,
    and `pairs` pairs are pinned to one executor.

    Parameters
    ----------
    problem
        Needs traffic; without any this is the MILP.
    max_load_distance
        maxLD, percent of the mean load index.
    max_partition_load
        maxPL to begin with, percent of the mean load index; 0 is the pure MILP.
    partition_step
        stepPL, by which maxPL falls while the load distance is above maxLD.
    score_factor
        sF: how far above average a pair's traffic must be.
    pairs
        Pairs brought together per plan, those with most traffic first and ties at random; the paper
        takes 1. A pair that does not fit the budget, or would part as much traffic as it brings
        together, is passed over; while the load distance is above maxLD half as many are tried,
        before maxPL falls.
    even_enough
        Percent of the mean load index. Where the load distance is below it, moves are kept for
        traffic that no pair stands for (see `collocation`); with 0 that gets only what balance has
        no use for.
    time_limit_s, node_limit, patience, clock, rng
        As for the MILP, for all attempts together.

    Returns
    -------
    Solution
        `objective` is the load distance d. ``details``: ``attempts``, ``max_partition_load`` of the
        attempt taken, ``units``, and ``pinned`` (the pairs).
    """
    for name, value in (
        ("max_load_distance", max_load_distance),
        ("max_partition_load", max_partition_load),
        ("score_factor", score_factor),
        ("pairs", pairs),
        ("even_enough", even_enough),
    ):
        if not 0 <= value < math.inf:
            raise wrong_value(f"options.{name}", value, "give a finite number that is at least 0")
    if not partition_step > 0:
        raise wrong_value("options.partition_step", partition_step, "give a number above 0")
    limits = solver_limits(
        time_limit_s=time_limit_s,
        node_limit=node_limit,
        rounds=10_000,
        patience=patience,
        clock=clock,
        rng=rng,
    )
    settings = _Settings(
        max_load_distance=max_load_distance,
        max_partition_load=max_partition_load,
        partition_step=partition_step,
        score_factor=score_factor,
        pairs=pairs,
        even_enough=even_enough,
        limits=limits,
    )
    if max_partition_load == 0 or not KeyGroupGraph(problem).talks:
        pure = plan_milp(
            problem,
            time_limit_s=time_limit_s,
            node_limit=node_limit,
            patience=patience,
            clock=clock,
            rng=rng,
        )
        details = {"attempts": 1, "max_partition_load": 0.0, "units": problem.num_key_groups}
        return replace(pure, method="albic", details=details | {"pinned": []})
    return plan_within_target(problem, lambda narrowed: _plan(narrowed, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The options of `plan_albic`, checked."""

    max_load_distance: float
    max_partition_load: float
    partition_step: float
    score_factor: float
    pairs: int
    even_enough: float
    limits: SolverLimits


def _plan(problem: Problem, settings: _Settings) -> Solution:
    clock = settings.limits.clock
    start = clock()
    search = _Search(
        problem=problem,
        graph=KeyGroupGraph(problem),
        scored=score_pairs(problem, settings.score_factor),
        limits=settings.limits,
        deadline=start + settings.limits.time_limit_s,
        enough=settings.even_enough / 100 * metrics.mean_index(problem),
    )
    aims = Aims(
        problem,
        search.scored,
        max_load_distance=settings.max_load_distance,
        even_enough=settings.even_enough,
    )
    today = aims.reached(problem.current)
    best, best_reached, attempts = _Attempt(assignment=problem.current), today, 0
    for attempt in search.attempts(
        settings.max_partition_load, settings.partition_step, settings.pairs
    ):
        attempts += 1
        reached = aims.reached(attempt.assignment)
        moves = int(np.count_nonzero(attempt.assignment != problem.current))
        if aims.worth_moving(reached, today, moves) and reached < best_reached:
            best, best_reached = attempt, reached
        if best_reached < today and aims.is_balanced(best_reached):
            break
    return make_solution(
        problem,
        best.assignment,
        method="albic",
        objective=metrics.load_distance(problem, best.assignment),
        elapsed_s=clock() - start,
        details={
            "attempts": attempts,
            "max_partition_load": best.share,
            "units": best.units,
            "pinned": list(best.pinned),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One assignment, and how it was found."""

    assignment: IntArray
    share: float = 0.0
    units: int = 0
    pinned: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class _Search:
    """Makes attempts, until it has none left."""

    problem: Problem
    graph: KeyGroupGraph
    scored: ScoredPairs
    limits: SolverLimits
    deadline: float
    enough: float
    _seen: set[bytes] = field(default_factory=set)

    def attempts(self, share: float, step: float, pairs: int) -> Iterator[_Attempt]:
        """Try ever less: other pairs, half as many, smaller parts, key groups alone, traffic only.

        Units and pins that were tried already are passed over.
        """
        while share > 0:
            unit_of = _partition_sets(self.problem, self.scored, self.graph, share)
            while pairs > 0:
                for _ in range(_DRAWS):
                    pinned, chosen = pin_pairs(
                        self.problem,
                        self.scored,
                        self.graph,
                        unit_of,
                        pairs=pairs,
                        rng=self.limits.rng,
                    )
                    if chosen:
                        yield from self._allocate(unit_of, pinned, share, chosen)
                pairs = min(pairs, len(chosen)) // 2  # pins may have taken what balance needs
            free = np.full(int(unit_of.max()) + 1, FREE, np.int32)
            yield from self._allocate(unit_of, free, share, [])
            share -= step
        alone = np.arange(self.problem.num_key_groups, dtype=np.int32)
        yield from self._allocate(alone, np.full(len(alone), FREE, np.int32), 0.0, [])
        yield self._collocate_only()

    def _allocate(
        self, unit_of: IntArray, pinned: IntArray, share: float, chosen: list[tuple[int, int]]
    ) -> Iterator[_Attempt]:
        key = unit_of.tobytes() + pinned.tobytes()
        if key in self._seen or self.limits.clock() >= self.deadline:
            return
        self._seen.add(key)
        units = merge_units(self.problem, unit_of, pinned)
        model = build_model(self.problem, units)
        left = max(0.05, (self.deadline - self.limits.clock()) * (0.5 if share > 0 else 1.0))
        result = allocate_units(
            model, limits=replace(self.limits, time_limit_s=left), enough=self.enough
        )
        yield _Attempt(
            assignment=units.expand(self._collocate(model, result.place)),
            share=share,
            units=len(units),
            pinned=tuple(chosen),
        )

    def _collocate_only(self) -> _Attempt:
        units = single_units(self.problem)
        place = self._collocate(build_model(self.problem, units), self.problem.current)
        return _Attempt(assignment=units.expand(place), units=len(units))

    def _collocate(self, model: AllocationModel, place: IntArray) -> IntArray:
        placement = Placement(model, place)
        collocate(
            placement,
            self.graph.between(model.units.unit_of, len(model.units)),
            limit=max(self.enough / model.scale, *model.over_under(place)) * (1 + 1e-9),
            go_on=lambda: self.limits.clock() < self.deadline,
        )
        return placement.place


def _partition_sets(
    problem: Problem, scored: ScoredPairs, graph: KeyGroupGraph, share: float
) -> IntArray:
    m = problem.num_key_groups
    source, target = scored.source[scored.together], scored.target[scored.together]
    links = sparse.coo_matrix((np.ones(len(source)), (source, target)), shape=(m, m))
    _, set_of = connected_components(links, directed=False)
    order = np.argsort(set_of, kind="stable")
    bounds = np.flatnonzero(np.diff(set_of[order], prepend=-1, append=-1))
    unit_of = np.empty(m, np.int32)
    units = 0
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for part in _split(problem, graph, order[first:last], share):
            unit_of[part] = units
            units += 1
    return unit_of


def _split(
    problem: Problem, graph: KeyGroupGraph, members: IndexArray, share: float
) -> list[IndexArray]:
    """Partitions of a set, each with little load and little to migrate where that can be."""
    if len(members) == 1:
        return [members]
    limits, weight = problem.limits, problem.weight
    most_load = share / 100 * metrics.mean_index(problem)
    by_load = float(weight[members].sum()) / most_load if most_load > 0 else 0.0
    by_bytes = _ratio(float(problem.state_bytes[members].sum()), limits.max_bytes)
    by_moves = _ratio(float(len(members)), limits.max_moves)
    parts = math.ceil(min(max(by_load, by_bytes, by_moves) * (1 - 1e-12), len(members)))
    if parts <= 1:
        return [members]
    costs = {"load": weight, "bytes": problem.state_bytes, "moves": np.ones(len(weight))}
    by = max((by_load, "load"), (by_bytes, "bytes"), (by_moves, "moves"))[1]
    part = graph.partition(members, costs[by], parts)
    return [
        smaller
        for p in range(parts)
        for smaller in _split(problem, graph, members[part == p], share)
    ]


def _ratio(amount: float, limit: float | None) -> float:
    if limit is None:
        return 0.0
    return amount / limit if limit > 0 else math.inf if amount > 0 else 0.0

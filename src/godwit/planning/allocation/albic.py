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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from godwit.planning import metrics
from godwit.planning.allocation.collocation import collocate
from godwit.planning.allocation.graph_partition import KeyGroupGraph, with_executors
from godwit.planning.allocation.milp import (
    AllocationResult,
    SolverLimits,
    allocate_units,
    solver_limits,
)
from godwit.planning.allocation.model import build_model
from godwit.planning.allocation.placement import Placement
from godwit.planning.allocation.units import FREE, Units, merge_units
from godwit.planning.arrays import FloatArray, IndexArray, IntArray, wrong_value
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.allocation.model import AllocationModel
    from godwit.planning.arrays import BoolArray, Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["ScoredPairs", "plan_albic", "score_pairs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredPairs:
    """Pairs of key groups whose traffic is well above the average of the sender.

    Attributes
    ----------
    source, target
        Shape ``(p,)``: the two key groups.
    rate
        Shape ``(p,)``: out(g_i, g_j).
    together
        Shape ``(p,)``: whether they are on one executor today (colGrps; the rest is toBeColGrps).
    """

    source: IntArray
    target: IntArray
    rate: FloatArray
    together: BoolArray


def score_pairs(problem: Problem, score_factor: float) -> ScoredPairs:
    """Find pairs worth collocating: ``out(g_i, g_j) > avg(g_i)·sF`` (paper 2, Algorithm 2, step 1).

    ``avg(g_i)`` is what g_i sends divided by the number of key groups of the operators downstream.
    """
    m, traffic = problem.num_key_groups, problem.traffic
    out = sparse.coo_matrix((traffic.rate, (traffic.source, traffic.target)), shape=(m, m)).tocsr()
    out.sum_duplicates()
    sent = np.asarray(out.sum(axis=1)).ravel()
    receivers = _downstream_key_groups(problem)[problem.operator_of]
    average = sent / np.maximum(receivers, 1)
    pairs = out.tocoo()
    high = (pairs.data > average[pairs.row] * score_factor) & (pairs.row != pairs.col)
    source, target = pairs.row[high].astype(np.int32), pairs.col[high].astype(np.int32)
    return ScoredPairs(
        source=source,
        target=target,
        rate=np.asarray(pairs.data[high], np.float64),
        together=problem.current[source] == problem.current[target],
    )


def _downstream_key_groups(problem: Problem) -> IntArray:
    """Shape ``(operators,)``: number of key groups of all operators downstream of each."""
    size = np.bincount(problem.operator_of, minlength=len(problem.operators))
    links = set(problem.downstream)
    if not links:
        traffic = problem.traffic
        links = set(
            zip(
                problem.operator_of[traffic.source].tolist(),
                problem.operator_of[traffic.target].tolist(),
                strict=True,
            )
        )
    total = np.zeros(len(size), np.int32)
    for up, down in sorted(links):
        total[up] += size[down]
    return total


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
    start = clock()
    scored = score_pairs(problem, score_factor)
    graph = KeyGroupGraph(problem)
    mean = metrics.mean_index(problem)
    share, attempts = max_partition_load, 0
    while True:
        attempts += 1
        left = max(0.05, (start + time_limit_s - clock()) * (0.5 if share > 0 else 1.0))
        units, pinned = _constrain(problem, scored, graph, share=share, pairs=pairs, rng=limits.rng)
        model = build_model(problem, units)
        enough = even_enough / 100 * mean if share > 0 and graph.talks else 0.0
        result = _solve(model, limits, left, enough)
        if result.objective <= max_load_distance / 100 * mean or share <= 0:
            break
        if len(pinned) > 1:  # pins may have taken the moves that balance needs
            pairs = len(pinned) // 2
        else:
            share = max(0.0, share - partition_step)
    place = result.place
    if share > 0:
        placement = Placement(model, place)
        collocate(
            placement,
            graph.between(units.unit_of, len(units)),
            limit=max(enough / model.scale, *model.over_under(place)) * (1 + 1e-9),
            go_on=lambda: clock() < start + time_limit_s,
        )
        place = placement.place
    return make_solution(
        problem,
        units.expand(place),
        method="albic",
        reason="the limits contradict each other" if result.infeasible else "",
        objective=model.objective(place),
        elapsed_s=clock() - start,
        details={
            "attempts": attempts,
            "max_partition_load": share,
            "units": len(units),
            "pinned": pinned,
        },
    )


def _solve(
    model: AllocationModel, limits: SolverLimits, time_limit_s: float, enough: float
) -> AllocationResult:
    return allocate_units(model, limits=replace(limits, time_limit_s=time_limit_s), enough=enough)


def _constrain(
    problem: Problem,
    scored: ScoredPairs,
    graph: KeyGroupGraph,
    *,
    share: float,
    pairs: int,
    rng: np.random.Generator,
) -> tuple[Units, list[tuple[int, int]]]:
    """Form units that stay together (step 2) and pin pairs to one executor (step 3)."""
    m = problem.num_key_groups
    if share <= 0:
        alone = np.arange(m, dtype=np.int32)
        return merge_units(problem, alone, np.full(m, FREE, np.int32)), []
    unit_of = _partition_sets(problem, scored, graph, share)
    pinned, chosen = _pin_pairs(problem, scored, graph, unit_of, pairs=pairs, rng=rng)
    return merge_units(problem, unit_of, pinned), chosen


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
    wanted = math.ceil(min(max(by_load, by_bytes, by_moves) * (1 - 1e-12), len(members)))
    if wanted <= 1:
        return [members]
    costs = {"load": weight, "bytes": problem.state_bytes, "moves": np.ones(len(weight))}
    by = max((by_load, "load"), (by_bytes, "bytes"), (by_moves, "moves"))[1]
    part = graph.partition(members, costs[by], wanted)
    return [
        smaller
        for p in range(wanted)
        for smaller in _split(problem, graph, members[part == p], share)
    ]


def _ratio(amount: float, limit: float | None) -> float:
    if limit is None:
        return 0.0
    return amount / limit if limit > 0 else math.inf if amount > 0 else 0.0


def _pin_pairs(
    problem: Problem,
    scored: ScoredPairs,
    graph: KeyGroupGraph,
    unit_of: IntArray,
    *,
    pairs: int,
    rng: np.random.Generator,
) -> tuple[IntArray, list[tuple[int, int]]]:
    """Step 3: pin the pairs with most traffic that are apart, as far as the budget goes.

    A pair that could only meet by parting as much traffic as it brings together is passed over:
    once most pairs are together, collocation would else go round in circles.
    """
    current, limits = problem.current, problem.limits
    count = np.bincount(unit_of)
    size = np.bincount(unit_of, weights=problem.state_bytes)
    load = np.bincount(unit_of, weights=problem.weight)
    home = np.empty(len(count), np.int32)
    home[unit_of] = current
    traffic = graph.between(unit_of, len(home))
    with_executor = with_executors(traffic, home, problem.num_executors)
    pinned = np.full(len(count), FREE, np.int32)
    index = metrics.load_index(problem, current)
    moves_left = math.inf if limits.max_moves is None else float(limits.max_moves)
    bytes_left = math.inf if limits.max_bytes is None else limits.max_bytes
    apart = np.flatnonzero(~scored.together)
    order = apart[np.lexsort((rng.random(len(apart)), -scored.rate[apart]))]
    chosen: list[tuple[int, int]] = []
    for at in order.tolist():
        if len(chosen) == pairs:
            break
        g, h = int(scored.source[at]), int(scored.target[at])
        a, b = int(unit_of[g]), int(unit_of[h])
        if pinned[a] != FREE or pinned[b] != FREE:
            continue
        mover, place = -1, -1
        for goes, stays in _ways_to_meet(index, (a, count[a] > 1), (b, count[b] > 1), home):
            gain = with_executor[goes, home[stays]] - with_executor[goes, home[goes]]
            if gain > 0 and not problem.draining[home[stays]]:
                mover, place = goes, int(home[stays])
                break
        if mover < 0 or count[mover] > moves_left or size[mover] > bytes_left:
            continue
        moves_left, bytes_left = moves_left - count[mover], bytes_left - size[mover]
        pinned[[a, b]] = place
        index[home[mover]] -= load[mover] / problem.speed[home[mover]]
        index[place] += load[mover] / problem.speed[place]
        chosen.append((g, h))
    return pinned, chosen


def _ways_to_meet(
    index: FloatArray, one: tuple[int, bool], other: tuple[int, bool], home: IntArray
) -> list[tuple[int, int]]:
    """Which of two units goes to the other's executor, the better way first.

    They meet at the partition's executor if one of them is a single key group, otherwise at the
    less loaded one.
    """
    (a, a_is_partition), (b, b_is_partition) = one, other
    b_goes, a_goes = (b, a), (a, b)
    if a_is_partition == b_is_partition:
        a_first = (index[home[b]], home[b]) < (index[home[a]], home[a])
    else:
        a_first = b_is_partition
    return [a_goes, b_goes] if a_first else [b_goes, a_goes]

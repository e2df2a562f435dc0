"""Pairs of key groups worth collocating: which they are, and which meet in this plan.

Problem: bring a few more pairs with much traffic together with every plan, within the budget.

Invariant: no pair meets on a draining executor, and none is brought together where that would part
as much traffic.

Source: paper 2 §4.3.2, Algorithm 2, steps 1 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from godwit.planning import metrics
from godwit.planning.allocation.graph_partition import with_executors
from godwit.planning.allocation.units import FREE

if TYPE_CHECKING:
    from godwit.planning.allocation.graph_partition import KeyGroupGraph
    from godwit.planning.arrays import BoolArray, FloatArray, IntArray
    from godwit.planning.problem import Problem

__all__ = ["ScoredPairs", "pin_pairs", "score_pairs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredPairs:
    """Pairs of key groups whose traffic is well above the average of the sender."""

    # shape ``(p,)``: the two key groups
    source: IntArray
    target: IntArray
    rate: FloatArray  # shape ``(p,)``: out(g_i, g_j)
    # shape ``(p,)``: whether they are on one executor today (colGrps; the rest is toBeColGrps)
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


def pin_pairs(
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

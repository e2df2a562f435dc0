"""Collocation of key groups that talk: pairs, the aims that plans are compared by, local search.

**Pairs** worth collocating: which they are, and which meet in this plan.  Problem: bring a few more
pairs with much traffic together with every plan, within the budget.

Invariant: no pair meets on a draining executor, and none is brought together where that would part
as much traffic.

Source: paper 2 §4.3.2, Algorithm 2, steps 1 and 3.

**Aims** of ALBIC, as one value that plans and today's assignment are compared by.  Problem: a
planner that weighs balance against collocation can go round in circles on constant input, each plan
undoing for the one what the last did for the other.

Invariant: a plan is worth its moves only if the first aim that differs gets better, by a margin.
Along a chain of plans the aims fall lexicographically, by a least amount each time; so the chain
ends, wherever it starts.

Source: paper 2 §4.3.2 gives the order: ``max_load_distance`` is a bound, and within it collocation
of pairs comes before balance.  The price between the two is our own, since without one a single
pair could cost all balance below the bound.

**Local search**: where load is even enough, moves go to traffic instead.

Problem: more traffic between units of one executor, without a deviation above a given one.

Invariant: every step raises the traffic that stays on one executor, keeps all deviations it touches
within the limit, and keeps budgets, room and pins as `Placement` does.

Source: our own.  ALBIC's pairs (paper 2 §4.3.2) see only traffic that is concentrated.  What is
spread evenly can be collocated as well, if only by a few per cent: a static partitioner does, and
the MILP, which does not know of traffic, takes it apart again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from godwit.planning import metrics
from godwit.planning.allocation.graph_partition import with_executors
from godwit.planning.allocation.model import FREE, build_model, single_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.planning.allocation.graph_partition import KeyGroupGraph
    from godwit.planning.allocation.search import Placement
    from godwit.planning.arrays import BoolArray, FloatArray, IntArray
    from godwit.planning.problem import Problem, Traffic

__all__ = ["PAIR_WORTH", "Aims", "Reached", "ScoredPairs", "collocate", "pin_pairs", "score_pairs"]


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
    """Order two units by which goes to the other's executor, the better way first.

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


PAIR_WORTH = 3.0
"""Percent of the mean load index that one more pair on one executor may cost."""
_NOISE = 1e-9
"""Differences below this are rounding."""
_LEAST_EXCESS, _LEAST_LEFT, _LEAST_DISTANCE, _LEAST_PAIRS = 1e-6, 1, 1e-3, 1e-1 / PAIR_WORTH
"""By how much an aim must get better; a tenth of a per cent of the mean for load distances."""
_LEAST_APART = 0.03
"""Least gain of a move in senders' traffic, where nothing else is gained."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Reached:
    """Distance of an assignment from each aim; less is better, the first that differs decides."""

    excess: float  # sum of what is above limits on use, in shares of the limit
    left: int  # key groups on draining executors
    distance: float  # load distance in fair shares, ``max_load_distance`` where it is below that
    # traffic of pairs that are apart, in mean pairs, and the load distance from ``even_enough`` to
    # ``max_load_distance``, `PAIR_WORTH` percent of the mean for a pair
    pairs: float
    apart: float  # all traffic between executors, in what one key group sends on average
    # the load distance in fair shares, ``even_enough`` where it is below that; it is in `distance`
    # and `pairs` already and decides nothing by itself
    uneven: float = field(compare=False)


class Aims:
    """Measures assignments of one problem.

    `problem`: loads, limits and some traffic. `scored`: the pairs worth collocating.
    `max_load_distance`, `even_enough`: as for ALBIC, percent of the mean load index.
    """

    def __init__(
        self,
        problem: Problem,
        scored: ScoredPairs,
        *,
        max_load_distance: float,
        even_enough: float,
    ) -> None:
        self._traffic, self._scored = problem.traffic, scored
        self._model = build_model(problem, single_units(problem))
        self._most, self._enough = max_load_distance / 100, even_enough / 100
        self._mean_pair = float(scored.rate.mean()) if len(scored.rate) else 1.0
        senders = len(np.unique(problem.traffic.source[problem.traffic.rate > 0]))
        self._mean_sender = float(problem.traffic.rate.sum()) / senders

    def reached(self, assignment: IntArray) -> Reached:
        """Measure one assignment of key groups."""
        distance = max(self._model.over_under(assignment))
        uneven = max(distance, self._enough)
        below_most = max(0.0, min(distance, self._most) - self._enough)
        return Reached(
            excess=self._model.excess(assignment),
            left=int((~self._model.stays[assignment]).sum()),
            distance=max(distance, self._most),
            pairs=_apart(assignment, self._scored) / self._mean_pair
            + 100 * below_most / PAIR_WORTH,
            apart=_apart(assignment, self._traffic) / self._mean_sender,
            uneven=uneven,
        )

    def is_balanced(self, reached: Reached) -> bool:
        """Return whether an assignment is within the limits and within ``max_load_distance``."""
        return reached.excess == 0 and reached.distance <= self._most

    def worth_moving(self, after_plan: Reached, today: Reached, moves: int) -> bool:
        """Return whether `after_plan` is better than `today` by enough to move so many key groups.

        Bringing pairs together is not worth it where the load gets no more even and as much other
        traffic is parted.
        """
        for after, before, least in (
            (after_plan.excess, today.excess, _LEAST_EXCESS),
            (after_plan.left, today.left, _LEAST_LEFT),
            (after_plan.distance, today.distance, _LEAST_DISTANCE),
        ):
            if after > before + _NOISE or after <= before - least:
                return after < before
        if after_plan.pairs > today.pairs + _NOISE:
            return False
        if after_plan.pairs <= today.pairs - _LEAST_PAIRS:
            return (
                after_plan.uneven < today.uneven - _NOISE or after_plan.apart < today.apart - _NOISE
            )
        return after_plan.apart <= today.apart - _LEAST_APART * max(moves, 3)


def _apart(assignment: IntArray, traffic: ScoredPairs | Traffic) -> float:
    away = assignment[traffic.source] != assignment[traffic.target]
    return float(traffic.rate[away].sum())


_PROGRESS = 1e-9
"""Smallest gain of a step, as a share of all traffic: above the noise of summing floats."""


def collocate(
    placement: Placement,
    traffic: sparse.csr_matrix,
    *,
    limit: float,
    go_on: Callable[[], bool] = lambda: True,
) -> float:
    """Move or exchange units, the greatest gain first, until none is left.

    `placement`: what is changed. `traffic`: symmetric, shape ``(U, U)``: traffic between units,
    both directions added up. `limit`: largest deviation, in fair shares, that a step may leave
    where it changes loads. `go_on`: asked before every step, and before every pair of executors is
    looked at. Returns traffic gained.
    """
    total = float(traffic.sum()) / 2
    gained = 0.0
    if total == 0:
        return gained
    with_executor = with_executors(traffic, placement.place, len(placement.model.speed))
    while go_on():
        step, gain = _best_step(placement, traffic, with_executor, limit=limit, go_on=go_on)
        if gain <= _PROGRESS * total:
            break
        for unit, executor in step:
            row = traffic.indptr[unit], traffic.indptr[unit + 1]
            peers, rates = traffic.indices[slice(*row)], traffic.data[slice(*row)]
            with_executor[peers, placement.place[unit]] -= rates
            with_executor[peers, executor] += rates
            placement.put(unit, executor)
        gained += gain
    return gained


def _best_step(
    placement: Placement,
    traffic: sparse.csr_matrix,
    with_executor: FloatArray,
    *,
    limit: float,
    go_on: Callable[[], bool],
) -> tuple[list[tuple[int, int]], float]:
    """Find the move or exchange that gains most, and its gain; 0 if there is none.

    Pairs of executors are looked at in descending order of what their units could gain at most.
    """
    place, stays = placement.place, placement.model.stays
    gain = with_executor - with_executor[np.arange(len(place)), place][:, None]
    members = [np.flatnonzero((place == e) & placement.movable) for e in range(len(stays))]
    most_of = np.array([gain[mine].max(axis=0, initial=0.0) for mine in members])
    most_of[:, ~stays] = 0.0  # nothing may go there
    bound = np.triu(most_of + most_of.T, 1)
    between = [np.empty((0, 0))] * len(stays)
    best: list[tuple[int, int]] = []
    greatest = 0.0
    for at in np.argsort(-bound, axis=None, kind="stable").tolist():
        a, b = divmod(at, len(stays))
        if bound[a, b] <= greatest or not go_on():
            break
        for own, other in ((a, b), (b, a)):
            alone = gain[members[own], other]
            if most_of[own, other] > greatest:
                alone = np.where(
                    placement.permits_moves(members[own], other, limit=limit), alone, -np.inf
                )
                if alone.max() > greatest:
                    best, greatest = (
                        [(int(members[own][alone.argmax()]), other)],
                        float(alone.max()),
                    )
        if not (stays[a] and stays[b] and len(members[a]) and len(members[b])):
            continue
        if not between[a].size:
            between[a] = traffic[members[a]].toarray()
        both = gain[members[a], b][:, None] + gain[members[b], a] - 2 * between[a][:, members[b]]
        if both.max() <= greatest:
            continue
        both[~placement.permits_exchanges(members[a], members[b], limit=limit)] = -np.inf
        if both.max() > greatest:
            u, v = divmod(int(both.argmax()), both.shape[1])
            best, greatest = [(int(members[a][u]), b), (int(members[b][v]), a)], float(both.max())
    return best, greatest

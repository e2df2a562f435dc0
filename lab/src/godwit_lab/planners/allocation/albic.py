"""ALBIC: balance load while key groups that talk to each other come, and stay, together.

The load distance of the MILP, under constraints that keep pairs of key groups with much traffic on
one executor and bring a few more such pairs together with every plan (paper 2 §4.3.2, Algorithm 2).
maxLD, maxPL and stepPL are percent of the mean load index, since our loads have any unit.  Our own
is that balance stops at ``even_enough``, and that the moves it leaves go to traffic (`collocate`).

Invariants: key groups that were collocated and belong to one partition are never separated by a
plan; partitions shrink, down to single key groups and so to the pure MILP, until the load distance
is at most the bound.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from godwit.control.planners.allocation.milp import allocate_units, least_left, plan_milp
from godwit.control.planners.allocation.model import (
    FREE,
    SolverLimits,
    build_model,
    merge_units,
    plan_within_target,
    single_units,
)
from godwit.control.planners.allocation.search import Placement
from godwit.placement import metrics
from godwit.placement.arrays import IndexArray, IntArray, wrong_value
from godwit.placement.solution import make_solution
from godwit_lab.planners.allocation.graph_partition import KeyGroupGraph, traffic_with_executors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.control.planners.allocation.model import AllocationModel, Units
    from godwit.placement.arrays import BoolArray, Clock, FloatArray
    from godwit.placement.problem import Problem, Traffic
    from godwit.placement.solution import Solution


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
    """Return the pairs of key groups worth collocating: ``out(g_i, g_j) > avg(g_i)·sF``.

    ``avg(g_i)``: traffic that g_i sends, divided by the number of key groups downstream of it.
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
    """Return for each operator the number of key groups of all operators downstream."""
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
    """Pin the pairs with most traffic between executors, within the budget (Algorithm 2, step 3).

    A pair that could only be collocated by separating as much other traffic is skipped: once most
    pairs are together, collocation would otherwise go round in circles. Returns the executor that
    each unit is pinned to, and the pairs.
    """
    current, limits = problem.current, problem.limits
    count = np.bincount(unit_of)
    size = np.bincount(unit_of, weights=problem.state_bytes)
    load = np.bincount(unit_of, weights=problem.weight)
    home = np.empty(len(count), np.int32)
    home[unit_of] = current
    traffic = graph.between_units(unit_of, len(home))
    with_executor = traffic_with_executors(traffic, home, problem.num_executors)
    pinned = np.full(len(count), FREE, np.int32)
    index = metrics.load_index(problem, current)
    moves_left = math.inf if limits.max_moves is None else float(limits.max_moves)
    bytes_left = math.inf if limits.max_bytes is None else limits.max_bytes
    apart = np.flatnonzero(~scored.together)
    order = apart[np.lexsort((rng.random(len(apart)), -scored.rate[apart]))]
    chosen: list[tuple[int, int]] = []
    for edge in order.tolist():
        if len(chosen) == pairs:
            break
        g, h = int(scored.source[edge]), int(scored.target[edge])
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
    index: FloatArray, first: tuple[int, bool], other: tuple[int, bool], home: IntArray
) -> list[tuple[int, int]]:
    """Return the two (unit, executor) moves that collocate two units, the better one first.

    `first`, `other`: unit, and whether it is a single key group. They are collocated on the
    partition's executor if one of them is a single key group, otherwise on the less loaded one.
    `index`: load index per executor. `home`: executor of each unit.
    """
    (a, a_is_partition), (b, b_is_partition) = first, other
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
    """Distances of an assignment from the aims, compared in order; less is better."""

    excess: float  # sum of use above limits, in shares of the limit
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
    """Evaluates assignments of one problem by all aims.

    A planner that weighs balance against collocation can go round in circles on constant input,
    each plan undoing for the one what the last did for the other. So a plan is worth its moves only
    if the first aim that differs gets better, by a margin: along a chain of plans the aims fall
    lexicographically, by a least amount each time, and the chain ends, wherever it starts.

    Paper 2 §4.3.2 gives the order: `max_load_distance` is a bound, and within it collocation of
    pairs comes before balance. The price between the two is our own. At it pairs may be given up
    for balance, but no balance beyond `even_enough` for pairs: a pair is a small part of a large
    stream's traffic. Both settings are percent of the mean load index.
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

    def measure(self, assignment: IntArray) -> Reached:
        """Return the distances of an assignment of key groups from each aim."""
        distance = max(self._model.over_under(assignment))
        uneven = max(distance, self._enough)
        below_most = max(0.0, min(distance, self._most) - self._enough)
        return Reached(
            excess=self._model.excess(assignment),
            left=self._model.num_left(assignment),
            distance=max(distance, self._most),
            pairs=_remote_traffic(assignment, self._scored) / self._mean_pair
            + 100 * below_most / PAIR_WORTH,
            apart=_remote_traffic(assignment, self._traffic) / self._mean_sender,
            uneven=uneven,
        )

    def is_balanced(self, reached: Reached) -> bool:
        """Return whether an assignment is within the limits and within ``max_load_distance``."""
        return reached.excess == 0 and reached.distance <= self._most

    def worth_moving(self, after_plan: Reached, today: Reached, moves: int) -> bool:
        """Return whether a plan is enough better than `today` to justify `moves` moves.

        Collocating pairs is not worth it if the load distance rises above ``even_enough``, or if it
        stays and as much other traffic is separated.
        """
        for after, before, least in (
            (after_plan.excess, today.excess, _LEAST_EXCESS),
            (after_plan.left, today.left, _LEAST_LEFT),
            (after_plan.distance, today.distance, _LEAST_DISTANCE),
        ):
            if after > before + _NOISE or after <= before - least:
                return after < before
        if after_plan.uneven > today.uneven + _NOISE or after_plan.pairs > today.pairs + _NOISE:
            return False
        if after_plan.pairs <= today.pairs - _LEAST_PAIRS:
            return (
                after_plan.uneven < today.uneven - _NOISE or after_plan.apart < today.apart - _NOISE
            )
        return after_plan.apart <= today.apart - _LEAST_APART * max(moves, 3)


def _remote_traffic(assignment: IntArray, traffic: ScoredPairs | Traffic) -> float:
    """Return the traffic between key groups on different executors."""
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
    """Move or exchange units to reduce traffic, the greatest gain first; return the traffic gained.

    For evenly spread traffic, which ALBIC's pairs miss and the MILP separates: a static partitioner
    collocates a few per cent of it. Our own. `traffic` is symmetric, both directions added up.
    Every step raises the traffic that stays on one executor, leaves no deviation that it touches
    above `limit` fair shares, and keeps budgets, room and pins. `go_on`: returns ``False`` to stop
    before the next step.
    """
    total = float(traffic.sum()) / 2
    gained = 0.0
    if total == 0:
        return gained
    with_executor = traffic_with_executors(traffic, placement.place, len(placement.model.speed))
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
    """Return the (unit, executor) moves that gain most traffic, and the gain; 0 if none do.

    Pairs of executors are searched in descending order of an upper bound of their gain.
    `with_executor`: traffic of each unit with each executor. `limit`: see
    `Placement.permits_moves`. `go_on`: returns whether there is time.
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
    for index in np.argsort(-bound, axis=None, kind="stable").tolist():
        a, b = divmod(index, len(stays))
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


_DRAWS = 3
"""Number of draws with the same number of pairs before fewer are tried."""


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
    """Plan the least load distance while collocation is kept and improved (paper 2 §4.3.2).

    Algorithm 2. Constraints are those of `plan_milp`; besides, partitions of collocated key groups
    move as one, and `pairs` pairs are pinned to one executor, those with most traffic first and
    ties at random (the paper takes 1): those whose traffic is `score_factor` (sF) times the
    average. A pair that does not fit the budget, or would separate as much traffic as it brings
    together, is skipped; while the load distance is above `max_load_distance` (maxLD, percent of
    the mean load index) half as many are tried, before `max_partition_load` (maxPL, likewise; 0 is
    the pure MILP) falls by `partition_step`.

    Where the load distance is below `even_enough` percent of the mean, moves are kept for traffic
    that no pair represents (see `collocate`); with 0 that gets only moves that balance does not
    need. The other options are those of the MILP, for all attempts together.
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
    limits = SolverLimits(
        time_limit_s=time_limit_s,
        node_limit=node_limit,
        patience=patience,
        clock=clock,
        rng=rng or np.random.default_rng(0),
    )
    if max_partition_load == 0 or not KeyGroupGraph(problem).has_traffic:
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

    def plan(narrowed: Problem) -> Solution:
        scored = score_pairs(narrowed, score_factor)
        drains = bool(narrowed.draining[narrowed.current].any())
        search = _Search(
            problem=narrowed,
            graph=KeyGroupGraph(narrowed),
            scored=scored,
            limits=limits,
            deadline=clock() + time_limit_s,
            enough=even_enough / 100 * metrics.mean_index(narrowed),
            max_left=least_left(build_model(narrowed, single_units(narrowed)), limits=limits)
            if drains
            else math.inf,
        )
        aims = Aims(narrowed, scored, max_load_distance=max_load_distance, even_enough=even_enough)
        best, attempts = search.best(aims, max_partition_load, partition_step, pairs)
        return make_solution(
            narrowed,
            best.assignment,
            method="albic",
            objective=metrics.load_distance(narrowed, best.assignment),
            details={
                "attempts": attempts,
                "max_partition_load": best.share,
                "units": best.units,
                "pinned": list(best.pinned),
            },
        )

    return plan_within_target(problem, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """An assignment, and the constraints that led to it."""

    assignment: IntArray
    share: float = 0.0
    units: int = 0
    pinned: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class _Search:
    """Search over constraints: attempts until time or ideas run out."""

    problem: Problem
    graph: KeyGroupGraph
    scored: ScoredPairs
    limits: SolverLimits
    deadline: float
    enough: float
    max_left: float = math.inf  # key groups that may stay on draining executors
    _seen: set[bytes] = field(default_factory=set)

    def best(self, aims: Aims, share: float, step: float, pairs: int) -> tuple[_Attempt, int]:
        """Return the best attempt that is worth its moves, and the number of attempts.

        The first attempt that is balanced and better than today ends the search. `share`: maximum
        load of a partition, in percent; `step`: its decrease from attempt to attempt.
        """
        current, tried = self.problem.current, 0
        today = aims.measure(current)
        best, best_reached = _Attempt(assignment=current), today
        for attempt in self.attempts(share, step, pairs):
            tried += 1
            reached = aims.measure(attempt.assignment)
            moves = int(np.count_nonzero(attempt.assignment != current))
            if aims.worth_moving(reached, today, moves) and reached < best_reached:
                best, best_reached = attempt, reached
            done = aims.is_balanced(best_reached) and best_reached.left <= self.max_left
            if best_reached < today and done:
                break
        return best, tried

    def attempts(self, share: float, step: float, pairs: int) -> Iterator[_Attempt]:
        """Yield attempts under weaker and weaker constraints.

        In turn: `pairs` pairs, half of them, smaller partitions, none. Combinations of units and
        pins that were tried already are skipped. `share`: load of a partition, in percent of the
        mean; `step` less each time.
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
        """Yield the attempt with these units and pins, unless it was tried or time is up.

        `chosen`: the pairs pinned.
        """
        key = unit_of.tobytes() + pinned.tobytes()
        if key in self._seen or self.limits.clock() >= self.deadline:
            return
        self._seen.add(key)
        units = merge_units(self.problem, unit_of, pinned)
        model = self._model(units)
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

    def _model(self, units: Units) -> AllocationModel:
        """Return the model for these units, which drains before it balances."""
        return replace(build_model(self.problem, units), max_left=self.max_left)

    def _collocate_only(self) -> _Attempt:
        """Return an attempt that moves key groups for traffic alone, from today's assignment."""
        units = single_units(self.problem)
        place = self._collocate(self._model(units), self.problem.current)
        return _Attempt(assignment=units.expand(place), units=len(units))

    def _collocate(self, model: AllocationModel, place: IntArray) -> IntArray:
        """Spend the moves that balancing did not use on traffic.

        Return the executor of each unit.
        """
        placement = Placement(model, place)
        collocate(
            placement,
            self.graph.between_units(model.units.unit_of, len(model.units)),
            limit=max(self.enough / model.scale, *model.over_under(place)) * (1 + 1e-9),
            go_on=lambda: self.limits.clock() < self.deadline,
        )
        return placement.place


def _partition_sets(
    problem: Problem, scored: ScoredPairs, graph: KeyGroupGraph, share: float
) -> IntArray:
    """Return each key group's unit: sets of collocated pairs, split to `share` percent load."""
    m = problem.num_key_groups
    source, target = scored.source[scored.together], scored.target[scored.together]
    links = sparse.coo_matrix((np.ones(len(source)), (source, target)), shape=(m, m))
    _, set_of = connected_components(links, directed=False)
    order = np.argsort(set_of, kind="stable")
    bounds = np.flatnonzero(np.diff(set_of[order], prepend=-1, append=-1))
    unit_of = np.empty(m, np.int32)
    units = 0
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for part in _split_set(problem, graph, order[first:last], share):
            unit_of[part] = units
            units += 1
    return unit_of


def _split_set(
    problem: Problem, graph: KeyGroupGraph, members: IndexArray, share: float
) -> list[IndexArray]:
    """Split key groups into parts of at most `share` percent of the mean load and little state."""
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
        for smaller in _split_set(problem, graph, members[part == p], share)
    ]


def _ratio(amount: float, limit: float | None) -> float:
    """Return ``amount / limit``: 0 without a limit, infinite for a limit of 0."""
    if limit is None:
        return 0.0
    return amount / limit if limit > 0 else math.inf if amount > 0 else 0.0

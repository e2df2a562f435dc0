"""Baselines: planners of the papers' comparisons, which ignore some limits.

Hash functions depend on the key group and a seed only, the same on every machine.  Source: the
splitmix64 finaliser (Steele, Lea and Flood, OOPSLA 2014) as mixing function; Carter and Wegman's
``((a·x + b) mod p) mod n`` as 2-universal family.

**Consistent hashing**: executors and key groups on a ring, each key group to the next point.

The baseline of paper 1 §6 and appendix A.  It balances the number of key groups, not their load,
and moves few of them when executors come and go: only those next to the points that changed.  It
does not look at load, state or the present assignment.

``equal_counts`` is the ideal that appendix A describes: exactly the same number of key groups (give
or take one) for everyone, and as few of them moved as that allows, chosen at random.

**Redistribution**: heavy key groups by an explicit map, all others by a consistent hash.

The baseline that paper 1 §6 calls Redist, after Gedik's partitioning functions for stateful data
parallelism (VLDB Journal 2014), in our own words: the partitioning function is a small table for
the heavy key groups beside a hash ring for the rest.  On a change all heavy key groups are taken
off and placed again one by one, heaviest first, each where imbalance and migration together are
least.

**Storm's default**: the same number of consecutive key groups for every executor.

The baseline of paper 1 §6: it looks at neither load nor the present assignment, so it is quick and
moves much.  Executors are taken in the order of the problem; the first of them get one key group
more where numbers do not divide.

**Flux**: pair the busiest executor with the idlest and move one key group.

Problem: lower the variance of load a few key groups at a time.

Invariant: every move lowers the variance of the load index over the executors that stay, and a key
group moves at most once per plan.

Source: paper 2 §2.2 and §5.1, paper 3 §3.2 (Shah et al., ICDE 2003).  The papers do not say when a
key group is "suitable"; we take every one whose move lowers the variance, and of these the
heaviest. A draining executor counts as busier than any other and receives nothing.

**The power of two choices**: every key group is processed on two executors, then merged (baseline).

Problem: balance load without ever moving state, by splitting each key group's rows over two places.

Invariant: the rows of a key group are processed on its two candidates only and add up to all of
them; its merge runs on one, and cannot be balanced.

Source: paper 2 §2.2 and §5.2 (PoTC, Nasir et al., ICDE 2015).

**Partial key grouping**: two candidate executors per key group, the idler one takes it (baseline).

Problem: balance load by choosing between two fixed places.

Invariant: every key group is on one of its two candidates, which depend on the seed and the
executors that stay only.

Source: paper 4 §5 (PKG, Nasir et al., ICDE 2015).  The original splits a key over both candidates
row by row, which stateful operators cannot do without merging; as in paper 4's comparison each
substream is sent whole to the less loaded of the two.  `plan_potc` keeps the splitting.

**Universal hashing**: a new random hash function whenever load is balanced anew (baseline).

Problem: spread key groups evenly without looking at load or state.

Invariant: the assignment depends only on the random generator, the number of key groups and the
executors that stay.

Source: paper 4 §5 (UHLB): h: [p] → [n] drawn from a 2-universal family.  The paper does not say how
often a function is drawn; ``choices`` > 1 draws several and keeps the one with the least variance.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidProblemError
from godwit.planning import metrics
from godwit.planning.metrics import SplitKeys
from godwit.planning.solution import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import BoolArray, Clock, FloatArray, IntArray
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = [
    "hash_choice",
    "plan_consistent_hashing",
    "plan_flux",
    "plan_pkg",
    "plan_potc",
    "plan_redistribution",
    "plan_storm_default",
    "plan_universal_hashing",
    "ring_owners",
    "two_candidates",
    "universal_hash",
]


_PRIME = (1 << 61) - 1


def hash_choice(num_key_groups: int, choices: int, seed: int) -> IntArray:
    """Shape ``(m,)``: a choice in ``[0, choices)`` for every key group, as if at random.

    Examples
    --------
    >>> np.array_equal(hash_choice(100, 7, 1), hash_choice(100, 7, 1))
    True
    """
    x: npt.NDArray[np.uint64] = np.arange(num_key_groups, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = x + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x % np.uint64(choices)).astype(np.int32)


def universal_hash(num_key_groups: int, choices: int, rng: np.random.Generator) -> IntArray:
    """Shape ``(m,)``: ``((a·k + b) mod p) mod choices`` with a ≥ 1 and b drawn from `rng`.

    For any two key groups the chance of the same choice is at most 1/choices.
    """
    a = int(rng.integers(1, _PRIME))
    b = int(rng.integers(0, _PRIME))
    return np.array([((a * k + b) % _PRIME) % choices for k in range(num_key_groups)], np.int32)


def plan_consistent_hashing(
    problem: Problem,
    *,
    points: int = 128,
    seed: int = 0,
    equal_counts: bool = False,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Place key groups by a hash ring over the first n' executors that stay.

    Parameters
    ----------
    points
        Points of each executor on the ring; more points, more even counts.
    seed
        Chooses the ring, or the key groups that move.
    equal_counts
        Whether to equalise counts exactly instead of using a ring.

    Raises
    ------
    InvalidProblemError
        If `points` is below 1.
    """
    began = clock()
    if points < 1:
        raise InvalidProblemError(
            f"points = {points} is wrong.", remedy="Give at least 1.", field="points", value=points
        )
    owners = problem.available[: problem.target_executors]
    if equal_counts:
        assignment = _equal_counts(problem, owners, np.random.default_rng(seed))
    else:
        names = [problem.executors[e] for e in owners.tolist()]
        chosen = ring_owners(problem.num_key_groups, names, points=points, seed=seed)
        assignment = owners[chosen]
    return make_solution(
        problem, assignment, method="consistent_hashing", elapsed_s=clock() - began
    )


def ring_owners(num_key_groups: int, names: list[str], *, points: int, seed: int) -> IntArray:
    """Index into `names` of the owner of each key group on the ring."""
    places = np.array([_place(f"{seed}/{name}/{i}") for name in names for i in range(points)])
    order = np.argsort(places, kind="stable")
    asked = np.array([_place(f"{seed}:{k}") for k in range(num_key_groups)])
    after = np.searchsorted(places[order], asked) % len(places)
    return (order[after] // points).astype(np.int32)


def _place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _equal_counts(problem: Problem, owners: IntArray, rng: np.random.Generator) -> IntArray:
    m, n = problem.num_key_groups, len(owners)
    counts = np.bincount(problem.current, minlength=problem.num_executors)[owners]
    quota = np.full(n, m // n)
    # The spare key groups stay with those that have most already: fewer moves.
    quota[np.argsort(-counts, kind="stable")[: m % n]] += 1
    assignment = problem.current.copy()
    homeless = np.flatnonzero(~np.isin(problem.current, owners))
    for i, e in enumerate(owners.tolist()):
        surplus = int(counts[i] - quota[i])
        if surplus > 0:
            leaving = rng.choice(np.flatnonzero(problem.current == e), surplus, replace=False)
            homeless = np.concatenate((homeless, leaving))
    receivers = np.repeat(owners, np.maximum(quota - counts, 0))
    assignment[rng.permutation(homeless)] = receivers
    return assignment


def plan_redistribution(
    problem: Problem,
    *,
    heavy_share: float = 0.1,
    migration_weight: float = 0.5,
    points: int = 128,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Place heavy key groups greedily over a hash ring for the rest.

    Parameters
    ----------
    heavy_share
        A key group is heavy if its load is at least this share of one executor's fair share.
    migration_weight
        Weight of the migration penalty (bytes moved over the mean state of an executor) against the
        imbalance penalty (load after placing over the fair share), at least 0.
    points, seed
        The ring; see `godwit.planning.baselines.plan_consistent_hashing`.

    Returns
    -------
    Solution
        Limits are ignored; a plan that breaks one has status infeasible and says which. Ties go to
        the executor that comes first.

    Raises
    ------
    InvalidProblemError
        If an option is negative.
    """
    began = clock()
    for name, value in (("heavy_share", heavy_share), ("migration_weight", migration_weight)):
        if not 0 <= value < np.inf:
            raise InvalidProblemError(
                f"{name} = {value!r} is wrong.",
                remedy="Give a finite number that is at least 0.",
                field=name,
                value=value,
            )
    owners = problem.available[: problem.target_executors]
    speed = problem.speed[owners]
    weight, state = problem.weight, problem.state_bytes
    share = max(float(weight.sum()) / float(speed.sum()), 1e-300)
    names = [problem.executors[e] for e in owners.tolist()]
    place = ring_owners(problem.num_key_groups, names, points=points, seed=seed)
    heavy = np.flatnonzero(weight >= heavy_share * share)
    light = np.setdiff1d(np.arange(problem.num_key_groups), heavy)
    load = np.zeros(len(owners))
    np.add.at(load, place[light], weight[light])
    mean_state = max(float(state.sum()) / len(owners), 1e-300)
    for k in heavy[np.argsort(-weight[heavy], kind="stable")].tolist():
        penalty = (load + weight[k]) / speed / share
        penalty = penalty + migration_weight * state[k] / mean_state * (
            owners != problem.current[k]
        )
        i = int(penalty.argmin())
        place[k] = i
        load[i] += weight[k]
    return make_solution(
        problem,
        owners[place],
        method="redistribution",
        elapsed_s=clock() - began,
        details={"heavy_key_groups": len(heavy)},
    )


def plan_storm_default(problem: Problem, *, clock: Clock = time.perf_counter) -> Solution:
    """Deal consecutive key groups out evenly to the first n' executors that stay.

    Limits are ignored; a plan that breaks one has status infeasible and says which.
    """
    began = clock()
    m, parts = problem.num_key_groups, problem.target_executors
    sizes = np.full(parts, m // parts)
    sizes[: m % parts] += 1
    assignment = np.repeat(problem.available[:parts], sizes)
    return make_solution(problem, assignment, method="storm_default", elapsed_s=clock() - began)


def plan_flux(problem: Problem, *, clock: Clock = time.perf_counter) -> Solution:
    """Move key groups in pairwise rounds until the budget is spent or no pair can improve.

    A round sorts the executors by load index, descending, and pairs the first with the last, the
    second with the last but one, and so on; each pair moves its heaviest suitable key group. Ties:
    the lower executor, the lower key group. Keeps to ``max_moves`` and ``max_bytes``; knows no
    other limit. O(moves · (m + n log n)) time.
    """
    start = clock()
    assignment = problem.current.copy()
    weight, speed = problem.weight, problem.speed
    load = metrics.loads(problem, assignment)
    budget = _Budget(problem)
    untouched = np.ones(problem.num_key_groups, np.bool_)
    moved = True
    while moved and budget.moves > 0:
        moved = False
        rank = np.lexsort((np.arange(len(load)), -load / speed, ~problem.draining))
        # One that is drained already would only take a partner from those that have load to give.
        rank = rank[~problem.draining[rank] | np.isin(rank, assignment)]
        for donor, receiver in zip(
            rank[: len(rank) // 2].tolist(), rank[::-1].tolist(), strict=False
        ):
            if problem.draining[receiver] or budget.moves <= 0:
                continue
            k = _suitable(
                problem,
                assignment,
                load,
                donor=donor,
                receiver=receiver,
                untouched=untouched,
                room=budget.size,
            )
            if k < 0:
                continue
            assignment[k] = receiver
            untouched[k] = False
            load[donor] -= weight[k]
            load[receiver] += weight[k]
            budget.spend(float(problem.state_bytes[k]))
            moved = True
    return make_solution(
        problem,
        assignment,
        method="flux",
        objective=metrics.load_variance(problem, assignment),
        elapsed_s=clock() - start,
    )


class _Budget:
    """Moves and bytes that are left."""

    def __init__(self, problem: Problem) -> None:
        limits = problem.limits
        self.moves = problem.num_key_groups if limits.max_moves is None else limits.max_moves
        self.size = np.inf if limits.max_bytes is None else limits.max_bytes

    def spend(self, size: float) -> None:
        self.moves -= 1
        self.size -= size


def _suitable(
    problem: Problem,
    assignment: IntArray,
    load: FloatArray,
    *,
    donor: int,
    receiver: int,
    untouched: BoolArray,
    room: float,
) -> int:
    mine = np.flatnonzero((assignment == donor) & untouched & (problem.state_bytes <= room))
    if not len(mine):
        return -1
    weight, speed = problem.weight[mine], problem.speed
    if not problem.draining[donor]:
        # Moving w changes Σ(L/c - mean)² by w²(1/c_d² + 1/c_r²) - 2w(x_d/c_d - x_r/c_r), with x the
        # deviations; it falls when w is below the value here.
        mean = metrics.mean_index(problem)
        x = load[[donor, receiver]] / speed[[donor, receiver]] - mean
        slope = x[0] / speed[donor] - x[1] / speed[receiver]
        limit = 2 * slope / (1 / speed[donor] ** 2 + 1 / speed[receiver] ** 2)
        good = (weight > 0) & (weight < limit * (1 - 1e-12))
        if not good.any():
            return -1
        weight = np.where(good, weight, -1.0)
    return int(mine[int(weight.argmax())])


def plan_potc(
    problem: Problem,
    *,
    seed: int = 0,
    merge_cost: float = 0.0,
    merge_load: float = 0.1,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Split every key group over two executors (paper 2 §5.2).

    Key groups are taken in order; each is split so that its candidates' load indices come as close
    as they can. The merge of a key group, ``merge_load · load + merge_cost · state_bytes``, is then
    added to its first candidate, where the merging operator of that key is.

    Parameters
    ----------
    seed
        Chooses the candidates.
    merge_cost
        Load that merging one byte of state makes.
    merge_load
        Load that merging makes as a share of the key group's load.

    Returns
    -------
    Solution
        ``split`` says where rows go; no state moves, so the assignment is today's. `objective` is
        the load distance of the split load with merges; ``details``: ``merge_load`` (what merging
        adds in total) and ``mean_without_merging``. O(m) time.
    """
    for name, value in (("merge_cost", merge_cost), ("merge_load", merge_load)):
        if not 0 <= value < np.inf:
            raise InvalidProblemError(
                f"{name} is {value}.",
                remedy="Give a finite number that is at least 0.",
                field=name,
                value=value,
            )
    start = clock()
    first, second = two_candidates(problem, seed)
    speed, weight = problem.speed, problem.weight
    load = np.zeros(problem.num_executors)
    share = np.ones(problem.num_key_groups)
    for k, (a, b, w) in enumerate(
        zip(first.tolist(), second.tolist(), weight.tolist(), strict=True)
    ):
        if a != b and w > 0:
            # (L_a + x)/c_a = (L_b + w - x)/c_b
            x = (speed[a] * (load[b] + w) - speed[b] * load[a]) / (speed[a] + speed[b])
            share[k] = min(max(float(x) / w, 0.0), 1.0)
        load[a] += share[k] * w
        load[b] += (1 - share[k]) * w
    is_split = share < 1
    merging = np.where(is_split, merge_load * weight + merge_cost * problem.state_bytes, 0.0)
    split = SplitKeys(first=first, second=second, share=share, merging=merging)
    return make_solution(
        problem,
        problem.current,
        method="potc",
        objective=split.load_distance(problem),
        elapsed_s=clock() - start,
        details={
            "merge_load": float(merging.sum()),
            "mean_without_merging": metrics.mean_index(problem),
        },
        split=split,
    )


def two_candidates(problem: Problem, seed: int) -> tuple[IntArray, IntArray]:
    """Two different executors (where there are two) for every key group, each shape ``(m,)``."""
    available, m = problem.available, problem.num_key_groups
    n = len(available)
    first = hash_choice(m, n, 2 * seed)
    if n == 1:
        return available[first], available[first]
    step = hash_choice(m, n - 1, 2 * seed + 1) + 1
    return available[first], available[(first + step) % n]


def plan_pkg(problem: Problem, *, seed: int = 0, clock: Clock = time.perf_counter) -> Solution:
    """Give each key group, in order, to the less loaded of its two candidates (paper 4 §5).

    Load is load per capacity, counted over the key groups placed so far; ties go to the first
    candidate. Knows no limit. O(m) time.
    """
    start = clock()
    first, second = (c.tolist() for c in two_candidates(problem, seed))
    speed = problem.speed.tolist()
    index = [0.0] * problem.num_executors
    placed = []
    for k, weight in enumerate(problem.weight.tolist()):
        executor = first[k] if index[first[k]] <= index[second[k]] else second[k]
        index[executor] += weight / speed[executor]
        placed.append(executor)
    assignment = np.array(placed, np.int32)
    return make_solution(
        problem,
        assignment,
        method="pkg",
        objective=metrics.load_variance(problem, assignment),
        elapsed_s=clock() - start,
    )


def plan_universal_hashing(
    problem: Problem,
    *,
    choices: int = 1,
    clock: Clock = time.perf_counter,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Place every key group by a hash function drawn at random (paper 4 §5).

    Minimises nothing and knows no limit. O(choices · m) time.

    Parameters
    ----------
    choices
        Functions drawn; the one with the least variance of load is kept, the first of equals.
    clock
        Where time is read.
    rng
        Draws the functions; by default one with seed 0.
    """
    if choices < 1:
        raise InvalidProblemError(
            f"choices is {choices}.", remedy="Give at least 1.", field="choices", value=choices
        )
    start = clock()
    rng = rng or np.random.default_rng(0)
    available = problem.available
    drawn = [
        available[universal_hash(problem.num_key_groups, len(available), rng)]
        for _ in range(choices)
    ]
    best = min(drawn, key=lambda assignment: metrics.load_variance(problem, assignment))
    return make_solution(
        problem,
        best,
        method="universal_hashing",
        objective=metrics.load_variance(problem, best),
        elapsed_s=clock() - start,
    )

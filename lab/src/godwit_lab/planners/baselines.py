"""Baselines: planners of the papers' comparisons, which ignore some limits.

A plan that breaks a limit has status infeasible and says which.  Hash functions depend on the key
group and a seed only, the same on every machine: the splitmix64 finaliser (Steele, Lea and Flood,
OOPSLA 2014) as mixing function, and Carter and Wegman's ``((a·x + b) mod p) mod n`` as 2-universal
family.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.placement import metrics
from godwit.placement.arrays import wrong_value
from godwit.placement.metrics import SplitKeys
from godwit.placement.solution import make_solution

if TYPE_CHECKING:
    from godwit.placement.arrays import BoolArray, FloatArray, IntArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

_PRIME = (1 << 61) - 1


def hash_choice(num_key_groups: int, choices: int, seed: int) -> IntArray:
    """Return a pseudo-random choice in ``[0, choices)`` for every key group, shape ``(m,)``.

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
    """Return ``((a·k + b) mod p) mod choices`` of every key group k, shape ``(m,)``.

    a ≥ 1 and b are drawn from `rng`. For any two key groups the chance of the same choice is at
    most 1/choices.
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
) -> Solution:
    """Place key groups by a hash ring over the first n' executors that stay (paper 1 §6).

    Balances the number of key groups, not their load, and moves few of them when executors come and
    go: only those next to the points of the ring that changed. With `equal_counts` it is the ideal
    of appendix A: exactly the same number (give or take one) for everyone, and as few moved as that
    allows, chosen at random by `seed`.
    """
    if points < 1:
        raise wrong_value("points", points, "give at least 1")
    owners = problem.available[: problem.target_executors]
    if equal_counts:
        assignment = _equal_counts(problem, owners, np.random.default_rng(seed))
    else:
        names = [problem.executors[e] for e in owners.tolist()]
        chosen = ring_owners(problem.num_key_groups, names, points=points, seed=seed)
        assignment = owners[chosen]
    return make_solution(problem, assignment, method="consistent_hashing")


def ring_owners(num_key_groups: int, names: list[str], *, points: int, seed: int) -> IntArray:
    """Return the owner of each key group on a hash ring, as an index into `names`."""
    places = np.array(
        [_ring_position(f"{seed}/{name}/{i}") for name in names for i in range(points)]
    )
    order = np.argsort(places, kind="stable")
    asked = np.array([_ring_position(f"{seed}:{k}") for k in range(num_key_groups)])
    after = np.searchsorted(places[order], asked) % len(places)
    return (order[after] // points).astype(np.int32)


def _ring_position(text: str) -> int:
    """Return the position of a text (an executor's or key group's name) on the hash ring."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _equal_counts(problem: Problem, owners: IntArray, rng: np.random.Generator) -> IntArray:
    """Return owners that have equal numbers of key groups, with the fewest key groups moved."""
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


def _require_finite(**options: float) -> None:
    """Raise `InvalidProblemError` if an option is negative or not finite."""
    for name, value in options.items():
        if not 0 <= value < np.inf:
            raise wrong_value(name, value, "give a finite number that is at least 0")


def plan_redistribution(
    problem: Problem,
    *,
    heavy_share: float = 0.1,
    migration_weight: float = 0.5,
    points: int = 128,
    seed: int = 0,
) -> Solution:
    """Place heavy key groups by an explicit map, all others by a hash ring (paper 1 §6, Redist).

    After Gedik's partitioning functions for stateful data parallelism (VLDB Journal 2014), in our
    own words. A key group is heavy if its load is at least `heavy_share` of one executor's fair
    share. All heavy ones are placed again one by one, heaviest first, each where the imbalance
    penalty (load after placing over the fair share) and `migration_weight` times the migration
    penalty (bytes moved over the mean state of an executor) are least. Ties go to the executor that
    comes first.
    """
    _require_finite(heavy_share=heavy_share, migration_weight=migration_weight)
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
        details={"heavy_key_groups": len(heavy)},
    )


def plan_storm_default(problem: Problem) -> Solution:
    """Assign consecutive key groups evenly to the first n' executors that stay (paper 1 §6).

    Ignores load and the present assignment, so it is quick and moves much. The first executors get
    one key group more where numbers do not divide.
    """
    m, parts = problem.num_key_groups, problem.target_executors
    sizes = np.full(parts, m // parts)
    sizes[: m % parts] += 1
    assignment = np.repeat(problem.available[:parts], sizes)
    return make_solution(problem, assignment, method="storm_default")


def plan_flux(problem: Problem) -> Solution:
    """Move key groups in pairwise rounds until the budget is spent or no pair can improve (Flux).

    Paper 2 §2.2 and §5.1, paper 3 §3.2 (Shah et al., ICDE 2003). A round sorts the executors by
    load index, descending, and pairs the first with the last, the second with the last but one, and
    so on; each pair moves its heaviest suitable key group. The papers do not say when one is
    "suitable"; we take every one whose move lowers the variance. A draining executor counts as
    busier than any other and receives nothing. Ties: the lower executor, the lower key group. Keeps
    to ``max_moves`` and ``max_bytes``; knows no other limit. O(moves · (m + n log n)) time.

    Invariant: every move lowers the variance of the load index over the executors that stay, and a
    key group moves at most once per plan.
    """
    assignment = problem.current.copy()
    weight, speed = problem.weight, problem.speed
    load = metrics.loads(problem, assignment)
    limits = problem.limits
    moves_left = problem.num_key_groups if limits.max_moves is None else limits.max_moves
    bytes_left = np.inf if limits.max_bytes is None else limits.max_bytes
    untouched = np.ones(problem.num_key_groups, np.bool_)
    moved = True
    while moved and moves_left > 0:
        moved = False
        rank = np.lexsort((np.arange(len(load)), -load / speed, ~problem.draining))
        # One that is drained already would only take a partner from those that have load to give.
        rank = rank[~problem.draining[rank] | np.isin(rank, assignment)]
        for donor, receiver in zip(
            rank[: len(rank) // 2].tolist(), rank[::-1].tolist(), strict=False
        ):
            if problem.draining[receiver] or moves_left <= 0:
                continue
            k = _suitable_key_group(
                problem,
                assignment,
                load,
                donor=donor,
                receiver=receiver,
                untouched=untouched,
                room=bytes_left,
            )
            if k < 0:
                continue
            assignment[k] = receiver
            untouched[k] = False
            load[donor] -= weight[k]
            load[receiver] += weight[k]
            moves_left -= 1
            bytes_left -= float(problem.state_bytes[k])
            moved = True
    return make_solution(
        problem,
        assignment,
        method="flux",
        objective=metrics.load_variance(problem, assignment),
    )


def _suitable_key_group(
    problem: Problem,
    assignment: IntArray,
    load: FloatArray,
    *,
    donor: int,
    receiver: int,
    untouched: BoolArray,
    room: float,
) -> int:
    """Return the heaviest key group of executor `donor` to move to `receiver`; -1 if there is none.

    The move lowers the variance of `load`. `untouched`: mask of key groups that the plan has not
    moved. `room`: bytes that may still move.
    """
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
) -> Solution:
    """Split every key group over two executors, and merge (PoTC: paper 2 §2.2, §5.2).

    Balances load without ever moving state (Nasir et al., ICDE 2015). Key groups are taken in
    order; each is split so that its candidates' load indices come as close as they can. The merge
    of a key group, ``merge_load · load + merge_cost · state_bytes``, is then added to its first
    candidate; it cannot be balanced. No state moves, so the assignment is today's; `objective` is
    the load distance of the split load with merges. O(m) time.
    """
    _require_finite(merge_cost=merge_cost, merge_load=merge_load)
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
        details={
            "merge_load": float(merging.sum()),
            "mean_without_merging": metrics.mean_index(problem),
        },
        split=split,
    )


def two_candidates(problem: Problem, seed: int) -> tuple[IntArray, IntArray]:
    """Return two executors for every key group, drawn by hashing; different if there are two."""
    available, m = problem.available, problem.num_key_groups
    n = len(available)
    first = hash_choice(m, n, 2 * seed)
    if n == 1:
        return available[first], available[first]
    step = hash_choice(m, n - 1, 2 * seed + 1) + 1
    return available[first], available[(first + step) % n]


def plan_pkg(problem: Problem, *, seed: int = 0) -> Solution:
    """Give each key group, in order, to the less loaded of its two candidates (PKG: paper 4 §5).

    The original (Nasir et al., ICDE 2015) splits a key over both candidates row by row, which
    stateful operators cannot do without merging (`plan_potc`); as in paper 4's comparison each key
    group is sent whole. Load is load per capacity, counted over the key groups placed so far; ties
    go to the first candidate. Candidates depend on the seed and the executors that stay only. Knows
    no limit. O(m).
    """
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
    )


def plan_universal_hashing(
    problem: Problem,
    *,
    choices: int = 1,
    rng: np.random.Generator | None = None,
) -> Solution:
    """Place every key group by a hash function drawn at random (UHLB: paper 4 §5), h: [p] → [n].

    Minimises nothing and knows no limit. The paper does not say how often a function is drawn; of
    `choices` the one with the least variance of load is taken, the first of equals. O(choices · m).
    """
    if choices < 1:
        raise wrong_value("choices", choices, "give at least 1")
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
    )

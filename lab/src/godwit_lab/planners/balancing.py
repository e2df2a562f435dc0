"""Load balancing by moving key groups between executors (paper 4): eager, and by correlation.

**Eager** (ELB, §3, Algorithm 1; its figure is lost, the phases follow the text): bring the loads of
one statistic window into a range, near its middle, with few state movements.

**By correlation** (CLB, §4, Algorithm 2): one plan for many windows, from how loads vary together,
made once every m windows so that its state movement is amortised.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from godwit.control.planners.allocation.model import choose_executors
from godwit.placement import metrics
from godwit.placement.arrays import FloatArray, IndexArray, IntArray, wrong_value
from godwit.placement.solution import Solution, Status, make_solution

if TYPE_CHECKING:
    from godwit.placement.problem import Problem


def plan_elb(
    problem: Problem,
    *,
    resize: bool = True,
    giving: Literal["range", "mean"] = "range",
) -> Solution:
    """Plan loads per capacity within [v, u] = [load_low, load_high] (ELB: paper 4, Algorithm 1).

    The number of executors that hold key groups becomes ``⌈2w/(u+v)⌉``, unless `resize` is off:
    those with least load are emptied (draining ones before all), idle ones of the problem are taken
    into use. Executors that give hand over their heaviest key groups that fit; each goes, heaviest
    first, to the executor that is least loaded with it. Ties: the lower index. O(m log m + moves·n)
    time.

    The paper lets every executor above the mean give (`giving` ``"mean"``). By default only those
    above u give, and the others above the mean only while one is below v: the range is the goal,
    and inside it state need not move.

    The paper also bounds the moved load by (u - v)/2, since it assumes that no key group is
    heavier. Then the bound says nothing; where one is, it would keep all of them where they are.
    And the rest above the mean, less than the lightest key group, may be out of range then, as
    on a slow executor of few key groups: that one goes, too, if it brings the executor nearer to
    the mean ("as close as possible to (u + v)/2").

    Invariant: key groups only leave executors that give and only arrive at executors that take, or
    whose last one brought them below the mean;
    when no executor has to be added or removed and all are in range, nothing moves. If loads are
    not in range, the reason says why: too few executors, or key groups heavier than (u - v)/2.
    """
    low, high = _load_range(problem)
    index = metrics.load_index(problem, problem.current)
    total = float(problem.weight.sum())
    available = problem.available
    in_use = available[np.bincount(problem.current, minlength=len(index))[available] > 0]
    goal = metrics.wanted_executors(total / float(problem.speed[available].mean()), low, high)
    most = problem.target_executors
    if not resize:
        goal = most
    used = _choose_executors(available, in_use, index, min(goal, most))
    assignment, moved = _choose_givers(problem, used, (low, high), giving)
    _assign_given(problem, assignment, moved, used)
    after = metrics.load_index(problem, assignment)[used]
    slack = 1e-9 * high
    in_range = bool(((after >= low - slack) & (after <= high + slack)).all())
    solution = make_solution(
        problem,
        assignment,
        method="elb",
        reason="" if in_range else _why_outside(problem, goal, most, (high - low) / 2),
        objective=metrics.load_variance(problem, assignment),
        details={
            "wanted_executors": goal,
            "used_executors": len(np.unique(assignment)),
            "in_range": in_range,
        },
    )
    return solution if in_range else replace(solution, status=Status.INFEASIBLE)


def _load_range(problem: Problem) -> tuple[float, float]:
    """Return the range (v, u) that every executor's load should be in; raise if it is missing."""
    low, high = problem.limits.load_low, problem.limits.load_high
    if low is None or high is None:
        name = "limits.load_low" if low is None else "limits.load_high"
        raise wrong_value(name, None, "give the range [v, u] of loads; elb needs both ends")
    if high <= 0:
        raise wrong_value("limits.load_high", high, "give a number above 0")
    return low, high


def _choose_executors(
    available: IntArray, in_use: IntArray, index: FloatArray, goal: int
) -> IntArray:
    """Return `goal` executors to use: those in use with most load, then idle ones."""
    if goal <= len(in_use):
        keep = np.lexsort((in_use, -index[in_use]))[:goal]
        return np.sort(in_use[keep])
    idle = np.setdiff1d(available, in_use)
    return np.sort(np.concatenate([in_use, idle[: goal - len(in_use)]])).astype(np.int32)


def _choose_givers(
    problem: Problem,
    used: IntArray,
    load_range: tuple[float, float],
    giving: Literal["range", "mean"],
) -> tuple[IntArray, IntArray]:
    """Return today's assignment, and the key groups that have to move (phases 1 and 2).

    These are all on executors outside of `used`, and what executors above the load range (or above
    the mean, see `plan_elb`) give away.
    """
    (low, high), weight, speed = load_range, problem.weight, problem.speed
    assignment = problem.current.copy()
    staying = np.zeros(problem.num_executors, np.bool_)
    staying[used] = True
    out = ~staying[assignment]
    load = metrics.loads(problem, assignment)
    index = load[used] / speed[used]
    mean = float(weight.sum() / speed[used].sum())
    giver = index > (high if giving == "range" else mean) * (1 + 1e-12)
    if giving == "range" and (index < low).any():
        giver |= index > mean * (1 + 1e-12)
    order = np.lexsort((np.arange(len(weight)), -weight, assignment))
    first = np.searchsorted(assignment[order], np.arange(problem.num_executors + 1))
    for e in used[giver].tolist():
        mine = order[first[e] : first[e + 1]]
        surplus = float(load[e]) - mean * float(speed[e])
        for k, w in zip(mine.tolist(), weight[mine].tolist(), strict=True):
            if 0 < w <= surplus:
                out[k] = True
                surplus -= w
        left = mine[~out[mine] & (weight[mine] > surplus)]
        if len(left):
            lightest = left[weight[left].argmin()]
            heavy = float(weight[mine[0]]) > (high - low) / 2 * float(speed[e])
            out[lightest] = heavy and float(weight[lightest]) < 2 * surplus
    return assignment, np.flatnonzero(out).astype(np.int32)


def _assign_given(problem: Problem, assignment: IntArray, moved: IntArray, used: IntArray) -> None:
    """Assign key groups that were given away, heaviest first, to the least loaded (phase 3).

    `used`: executors that may have key groups. Changes `assignment` in place.
    """
    speed, weight = problem.speed[used], problem.weight
    left = np.ones(len(assignment), np.bool_)
    left[moved] = False
    load = np.bincount(assignment[left], weights=weight[left], minlength=problem.num_executors)
    load = load[used]
    for k in moved[np.lexsort((moved, -weight[moved]))].tolist():
        target = int(((load + weight[k]) / speed).argmin())
        load[target] += weight[k]
        assignment[k] = used[target]


def _why_outside(problem: Problem, goal: int, available: int, width: float) -> str:
    """Return the reason, as text, why some loads are outside the range.

    `goal`, `available`: executors that the load needs, and that there are. `width`: half-width of
    the range.
    """
    if goal > available:
        return f"{goal} executors are wanted; {available} are available"
    heaviest = float(problem.weight.max() / problem.speed[problem.available].min())
    if heaviest > width:
        return (
            f"the heaviest key group makes a load of {heaviest:.6g}, above (u - v)/2 = {width:.6g}"
        )
    return "the range could not be met by the heuristic"


_TILE = 64
"""Most rows of a tile of the covariance matrix: tiles stay in the processor's cache."""
_STACK = 16
"""Tiles made by one call."""
_ONE_THREAD = 1 << 18
"""Multiplications up to which OpenBLAS does not share a product among threads."""


def plan_clb(
    problem: Problem,
    *,
    threshold: float = 0.0,
    refine: int = 2,
    least_gain: float = 5.0,
) -> Solution:
    """Plan a low imbalance ħ = Σ_t var(L_t) over the history's windows (CLB: paper 4, Algorithm 2).

    Starting from one set of all substreams (our key groups), each run splits the set of the
    substream that contributes most to the cross covariance: those that vary with it, by at least
    `threshold` times the mean variance, leave, so substreams whose loads rise together end up
    apart. Knows no limit on moves. O(p²·m) time and O(p·m) space for p key groups and m windows:
    the covariance matrix is made in blocks, each pair at most twice, and never stored.

    Two changes to the paper: Equations 4 and 5 make ħ equal to the variances of the executors'
    loads only if their mean loads are equal, which the algorithm does not ensure; so the sets are
    evened out by `refine` passes that move single substreams where ħ is least (0 gives the paper's
    sets). And sets are given to executors so that most state stays (a maximum-weight matching).
    Before any set is split, today's assignment is evened out in the same way; new sets are made
    only where they could gain as much again.

    A plan must lower today's ħ by `least_gain` percent to move anything, and so must new sets
    compared to today's evened out; each move by itself gains a fiftieth of that.
    """
    if len(problem.history) < 2:
        raise wrong_value("history", f"{len(problem.history)} windows", "clb needs at least 2")
    if not 0 <= threshold < 1:
        raise wrong_value("options.threshold", threshold, "give 0 ≤ θ < 1")
    if refine < 0:
        raise wrong_value("options.refine", refine, "give at least 0")
    if not 0 <= least_gain < math.inf:
        raise wrong_value("options.least_gain", least_gain, "give a finite number ≥ 0")
    asked, problem = problem, next(choose_executors(problem))
    series = np.ascontiguousarray(problem.history.T)
    if refine:
        assignment = _improve_today(problem, series, threshold, refine, least_gain / 100)
    else:
        group = split_by_covariance(series, len(problem.available), threshold=threshold)
        assignment = _match_sets(problem, group)[group]
    imbalance = metrics.history_imbalance(problem, assignment)
    return make_solution(
        asked,
        assignment,
        method="clb",
        objective=imbalance,
    )


def _improve_today(
    problem: Problem, series: FloatArray, threshold: float, refine: int, least_gain: float
) -> IntArray:
    """Return each key group's set: today's evened out, or new sets if they gain enough in ħ.

    `series`: see `split_by_covariance`. Other parameters: see `plan_clb`.
    """
    available, speed = problem.available, problem.speed[problem.available]
    today = metrics.history_imbalance(problem, problem.current)
    group = _places_today(problem, series)
    _even_out(series, group, speed, refine, least_gain / 50)
    evened = available[group]
    imbalance = metrics.history_imbalance(problem, evened)
    if imbalance > least_gain * today:
        group = split_by_covariance(series, len(available), threshold=threshold)
        _even_out(series, group, speed, refine)
        place = _match_sets(problem, group)
        if not problem.homogeneous:
            group = np.searchsorted(available, place[group]).astype(np.int32)
            place = available
            _even_out(series, group, speed, 1)
        split = metrics.history_imbalance(problem, place[group])
        if split < imbalance - least_gain * today:
            evened, imbalance = place[group], split
    drains = problem.draining[problem.current].any()
    worth = imbalance < today * (1 - least_gain) and imbalance < today
    return evened if drains or worth else problem.current


def _places_today(problem: Problem, series: FloatArray) -> IntArray:
    """Return the position of each key group's executor among the available executors.

    Key groups of draining executors are placed, heaviest first, where Σ_t Σ_i (L_it/c_i)² is least.
    `series`: see `split_by_covariance`.
    """
    available, speed = problem.available, problem.speed[problem.available]
    group = np.searchsorted(available, problem.current).astype(np.int32)
    leaves = problem.draining[problem.current]
    totals = np.zeros((len(available), series.shape[1]))
    np.add.at(totals, group[~leaves], series[~leaves])
    square = (series**2).sum(axis=1)
    waiting = np.flatnonzero(leaves)
    for k in waiting[np.argsort(-square[waiting], kind="stable")].tolist():
        rise = (2 * (totals @ series[k]) + square[k]) / speed**2
        group[k] = int(rise.argmin())
        totals[group[k]] += series[k]
    return group


def split_by_covariance(series: FloatArray, num_sets: int, *, threshold: float = 0.0) -> IntArray:
    """Return the set of each substream after ``num_sets - 1`` splits (paper 4, Algorithm 2).

    `series` has the load of each substream in each window, shape ``(p, m)``. Ties: the lowest
    substream. One whose set cannot be split any more (nothing varies with it) is skipped; if none
    can, the result has fewer sets.
    """
    centred = series - series.mean(axis=1, keepdims=True)
    windows = series.shape[1]
    centred /= np.sqrt(windows)
    bar = threshold * float((centred**2).sum(axis=1).mean())
    size = len(series)
    group = np.zeros(size, np.int32)
    contribution = _covariance_sums(centred, bar)
    for new in range(1, num_sets):
        k, leaving, staying = _next_split(centred, group, contribution, bar)
        if k < 0:
            break
        group[leaving] = new
        # Each pair that is parted no longer counts on either side.
        of_leaving, of_staying = _covariances_between(centred, leaving, staying, bar)
        contribution[leaving] -= of_leaving
        contribution[staying] -= of_staying
    return group


def _next_split(
    centred: FloatArray, group: IntArray, contribution: FloatArray, bar: float
) -> tuple[int, IndexArray, IndexArray]:
    """Return the substream to split by (-1: none), and which of its set leave, and which stay.

    `bar`: covariance that a substream must reach to leave. `centred`: loads minus their means. Sets
    to 0 the `contribution` of substreams that no other would leave with.
    """
    while True:
        k = int(contribution.argmax())
        if contribution[k] <= 0:
            nothing = np.empty(0, np.int64)
            return -1, nothing, nothing
        mine = np.flatnonzero(group == group[k])
        together = np.einsum("pm,m->p", centred[mine], centred[k]) >= bar
        together &= mine != k
        if together.any():
            return k, mine[together], mine[~together]
        contribution[k] = 0.0  # only rounding was left of it


def _covariance_sums(centred: FloatArray, bar: float) -> FloatArray:
    """Return the sum of each substream's covariances of at least `bar`, shape ``(p,)``.

    `centred`: loads minus their means, shape ``(p, m)``.
    """
    tiles = _tiles(centred)
    sums = np.zeros(tiles.shape[:2])
    for index, tile in enumerate(tiles):
        for first in range(index, len(tiles), _STACK):
            covariance = _zero_below(tiles[first : first + _STACK] @ tile.T, bar)
            if first == index:
                np.fill_diagonal(covariance[0], 0.0)
            sums[first : first + _STACK] += covariance.sum(axis=2)
            # Covariance is symmetric: tiles off the diagonal count twice.
            sums[index] += covariance[1 if first == index else 0 :].sum(axis=(0, 1))
    return sums.ravel()[: len(centred)]


def _covariances_between(
    centred: FloatArray, rows: IndexArray, columns: IndexArray, bar: float
) -> tuple[FloatArray, FloatArray]:
    """Return, for the members of two sets, the sums of their covariances with the other set.

    Only covariances of at least `bar` count. `rows`, `columns`: members of the one and of the
    other.
    """
    left, right = _tiles(centred[rows]), _tiles(centred[columns])
    of_rows, of_columns = np.zeros(left.shape[:2]), np.zeros(right.shape[:2])
    for index, tile in enumerate(right):
        for first in range(0, len(left), _STACK):
            covariance = _zero_below(left[first : first + _STACK] @ tile.T, bar)
            of_rows[first : first + _STACK] += covariance.sum(axis=2)
            of_columns[index] += covariance.sum(axis=(0, 1))
    return of_rows.ravel()[: len(rows)], of_columns.ravel()[: len(columns)]


def _tiles(centred: FloatArray) -> npt.NDArray[np.float32]:
    """Return rows cut into tiles, shape ``(tiles, rows of a tile, windows)``, padded with zeros.

    The product of two tiles is small enough for a BLAS to keep on the calling thread. Threads that
    are woken for thousands of short products spend more time waiting for each other than they save,
    many times more where the other cores are busy.
    """
    size, windows = centred.shape
    rows = min(_TILE, max(1, math.isqrt(_ONE_THREAD // windows)))
    tiles = np.zeros((-(-size // rows), rows, windows), np.float32)
    tiles.reshape(-1, windows)[:size] = centred
    return tiles


def _zero_below(covariance: npt.NDArray[np.float32], bar: float) -> npt.NDArray[np.float32]:
    """Set covariances below `bar` to zero, in place; return the array."""
    if bar == 0:
        return np.maximum(covariance, np.float32(0), out=covariance)
    covariance *= covariance >= bar
    return covariance


def _even_out(
    series: FloatArray, group: IntArray, speed: FloatArray, passes: int, least_gain: float = 0.0
) -> None:
    """Move substreams, heaviest first, to the set where Σ_t Σ_i (L_it/c_i)² is least, in place.

    `group`: set of each substream. ħ falls with that sum wherever the mean load index per window
    does not depend on the assignment, that is where executors are equal; otherwise the fair share
    is subtracted first. A move must gain the share `least_gain` of the initial sum.
    """
    totals = np.zeros((len(speed), series.shape[1]))
    np.add.at(totals, group, series)
    fair = series.sum(axis=0) / speed.sum()
    # Deviation of the index, D = L/c - fair; adding y to i changes ΣD² by (2·D_i·y + y²/c)/c.
    deviation = totals / speed[:, None] - fair
    square = (series**2).sum(axis=1)
    order = np.argsort(-square, kind="stable")
    inverse = 1.0 / speed
    rise = np.empty(len(speed))
    least = max(1e-12, least_gain * float((deviation**2).sum()))
    for _ in range(passes):
        changed = False
        for k in order.tolist():
            own = int(group[k])
            y = series[k]
            deviation[own] -= y * inverse[own]
            np.einsum("nm,m->n", deviation, y, out=rise)
            rise *= 2
            rise += square[k] * inverse
            rise *= inverse
            best = int(rise.argmin())
            if rise[best] >= rise[own] * (1 - 1e-12) - least:
                best = own
            deviation[best] += y * inverse[best]
            if best != own:
                group[k] = best
                changed = True
        if not changed:
            return


def _match_sets(problem: Problem, group: IntArray) -> IntArray:
    """Return the executor of each set of key groups, so that most bytes stay where they are."""
    n, available = problem.num_executors, problem.available
    overlap = np.zeros((len(available), n))
    np.add.at(overlap, (group, problem.current), problem.state_bytes + 1.0)
    rows, columns = linear_sum_assignment(overlap[:, available], maximize=True)
    place = np.empty(len(available), np.int32)
    place[rows] = available[columns]
    return place

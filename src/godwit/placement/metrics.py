"""Metrics that every plan is judged by, defined once.

For m key groups with bottleneck load w, n executors with capacity c, the set A of executors that
are not draining, and an assignment x: executor i has load Lᵢ = Σ w over its key groups, and load
index Lᵢ / cᵢ; the fair index is mean = Σ w / Σ_{A} c.  Paper 2 rounds its mean up; we do not, since
with small loads the rounding alone would be the load distance.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray, IntArray
    from godwit.placement.problem import Problem


def loads(problem: Problem, assignment: IntArray) -> FloatArray:
    """Return the load of each executor on the bottleneck resource, shape ``(n,)``."""
    load = np.bincount(assignment, weights=problem.weight, minlength=problem.num_executors)
    return load.astype(np.float64, copy=False)


def load_index(problem: Problem, assignment: IntArray) -> FloatArray:
    """Return the load of each executor divided by its capacity, shape ``(n,)`` (paper 2 §4.3.1)."""
    return loads(problem, assignment) / problem.speed


def mean_index(problem: Problem) -> float:
    """Return the load index that every executor would have if the load were spread perfectly."""
    return float(problem.weight.sum() / problem.speed[problem.available].sum())


def load_distance(problem: Problem, assignment: IntArray) -> float:
    """Return the largest |load index - mean| of executors that do not drain (paper 2 §4.3.1)."""
    index = load_index(problem, assignment)[problem.available]
    return float(np.abs(index - mean_index(problem)).max())


def overload(problem: Problem, assignment: IntArray) -> float:
    """Return the smallest τ that an assignment keeps: max load / fair share - 1 (paper 1 §4.1).

    The fair share of an executor is W·cᵢ/C', with C' the capacity of n' executors; where executors
    differ, of the executors that own key groups.
    """
    total = problem.weight.sum()
    if total == 0:
        return 0.0
    index = load_index(problem, assignment)
    return float(index.max() * _share_capacity(problem, assignment) / total - 1)


def _share_capacity(problem: Problem, assignment: IntArray) -> float:
    """Return the total capacity that shares the load: of n' executors, or of those in use."""
    target = problem.limits.target_executors
    speed = problem.speed
    if target is None:
        return float(speed[problem.available].sum())
    if problem.homogeneous:
        return float(target * speed[problem.available[0]])
    used = np.unique(assignment)
    return float(speed[used[~problem.draining[used]]].sum())


def load_variance(problem: Problem, assignment: IntArray) -> float:
    """Return the variance of the load index of executors that do not drain (paper 4, eq. 1)."""
    return float(load_index(problem, assignment)[problem.available].var())


def history_imbalance(problem: Problem, assignment: IntArray) -> float:
    """Return ħ, the variance of the load index summed over the history's windows (paper 4 §2.2)."""
    n = problem.num_executors
    total = 0.0
    for window in problem.history:
        index = np.bincount(assignment, weights=window, minlength=n) / problem.speed
        total += float(index[problem.available].var())
    return total


def moved_bytes(problem: Problem, assignment: IntArray) -> float:
    """Return ψ, the bytes of state whose executor changes (paper 4, equation 2; paper 1 §4.1)."""
    return float(problem.state_bytes[assignment != problem.current].sum())


def collocation_factor(problem: Problem, assignment: IntArray) -> float:
    """Return the share of the traffic that is between key groups on one executor.

    0 without traffic.
    """
    traffic = problem.traffic
    total = float(traffic.rate.sum())
    if total == 0:
        return 0.0
    together = assignment[traffic.source] == assignment[traffic.target]
    return float(traffic.rate[together].sum()) / total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitKeys:
    """Executors of split key groups: at most two each.

    A method that splits keys has no owner per key group; a made-up owner would show moves
    that do not happen and a load that does not exist. Partials are merged on the first executor.
    """

    # shape ``(m,)``: executors that get rows of each key group
    first: IntArray
    second: IntArray
    share: FloatArray  # shape ``(m,)``: part of the rows, in [0, 1], that the first gets
    merging: FloatArray  # shape ``(m,)``: load that merging the two partials adds on the first

    @property
    def num_split(self) -> int:
        """Number of key groups that have rows on two executors."""
        return int(((self.share > 0) & (self.share < 1) & (self.first != self.second)).sum())

    def holders(self, executors: int) -> IntArray:
        """Return the number of key groups that have rows on each executor, shape ``(n,)``."""
        by_first = np.bincount(self.first[self.share > 0], minlength=executors)
        apart = (self.share < 1) & ((self.first != self.second) | (self.share == 0))
        return (by_first + np.bincount(self.second[apart], minlength=executors)).astype(np.int32)

    def load_index(self, problem: Problem) -> FloatArray:
        """Return the load of each executor, merging included, divided by its capacity."""
        n, weight = problem.num_executors, problem.weight
        load = np.bincount(self.first, self.share * weight + self.merging, minlength=n)
        load += np.bincount(self.second, (1 - self.share) * weight, minlength=n)
        return np.asarray(load / problem.speed, np.float64)

    def mean_index(self, problem: Problem) -> float:
        """Return the load index that every executor would have if load were spread perfectly."""
        total = float(problem.weight.sum() + self.merging.sum())
        return total / float(problem.speed[problem.available].sum())

    def load_distance(self, problem: Problem) -> float:
        """Return the largest |load index - mean| of executors that are not draining."""
        index = self.load_index(problem)[problem.available]
        return float(np.abs(index - self.mean_index(problem)).max())

    def collocation_factor(self, problem: Problem) -> float:
        """Return the expected share of the traffic that stays on one executor.

        Rows are taken to be split independently at both ends.
        """
        source, target, rate = (
            problem.traffic.source,
            problem.traffic.target,
            problem.traffic.rate,
        )
        collocated_share = np.zeros(len(rate))
        for source_executor, source_share in (
            (self.first, self.share),
            (self.second, 1 - self.share),
        ):
            for target_executor, target_share in (
                (self.first, self.share),
                (self.second, 1 - self.share),
            ):
                is_same_executor = source_executor[source] == target_executor[target]
                collocated_share += np.where(
                    is_same_executor, source_share[source] * target_share[target], 0.0
                )
        total = float(rate.sum())
        return float((rate * collocated_share).sum()) / total if total else 0.0


def wanted_executors(total_load: float, low: float, high: float) -> int:
    """Return the number of executors for a mean load in the middle of a range: ``⌈2w/(u+v)⌉``.

    Examples
    --------
    >>> wanted_executors(100.0, 8.0, 12.0)
    10
    """
    return max(1, math.ceil(2 * total_load / (low + high) * (1 - 1e-12)))


def busiest_lane(load: FloatArray, num_lanes: int) -> float:
    """Return the busiest lane's load if key groups are assigned to lanes, heaviest first.

    Examples
    --------
    >>> busiest_lane(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), 2)
    7.0
    """
    lanes = [0.0] * num_lanes
    for heaviest in np.sort(load[load > 0])[::-1].tolist():
        heapq.heapreplace(lanes, lanes[0] + heaviest)
    return max(lanes)


MIN_PER_LANE: Final = 4
GOOD_PER_LANE: Final = 16
MAX_LOAD: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewKeyGroups:
    """Why a number of key groups is too small, and a better one.

    Key groups are the units of balancing. With ``k`` of equal load a lane the busiest lane has at
    most ``1 + 1/k`` times the mean, so fewer than four leave a quarter idle; and a key group is
    processed by one lane, so one that needs more than a lane's time delays every epoch, wherever
    it is.
    """

    reason: str
    suggested: int


def too_few_key_groups(
    num_key_groups: int, num_lanes: int, max_load: float = 0.0, *, limit: int = 32_768
) -> TooFewKeyGroups | None:
    """Return why a number of key groups is too small; ``None`` if it suffices.

    `max_load`: greatest load of a key group, as a share of a lane's time; of one that has several
    keys. `limit`: the greatest number possible.

    Examples
    --------
    >>> too_few_key_groups(16, 8).suggested
    128
    >>> too_few_key_groups(256, 8, 1.5).reason
    'one key group needs 1.5 times the time of a lane'
    >>> too_few_key_groups(256, 8) is None
    True
    """
    if num_key_groups >= limit:
        return None
    if num_key_groups < MIN_PER_LANE * num_lanes:
        needed, per_lane = GOOD_PER_LANE * num_lanes, num_key_groups / num_lanes
        reason = f"{num_lanes} lanes have {per_lane:.1f} key groups each, fewer than {MIN_PER_LANE}"
    elif max_load > MAX_LOAD:
        needed = int(num_key_groups * 4 * max_load)
        reason = f"one key group needs {max_load:.1f} times the time of a lane"
    else:
        return None
    suggested = 1 << max(needed - 1, 1).bit_length()
    return TooFewKeyGroups(reason=reason, suggested=min(suggested, limit))

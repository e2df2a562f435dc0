"""Balance inside an executor: the lane of each key group (paper 5 §3.1, θ = 1.2).

Nothing moves between executors, so a reassignment costs next to nothing.

Invariant: every reassignment goes from the busiest lane to the idlest and lowers the larger of the
two loads; a key group that would not, stays.  A round picks, of the key groups of the busiest lane,
the one nearest to half the difference of the two.  Lanes are kept in heaps and a lane's key groups
sorted, so a round costs O(log m) instead of O(m).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

from godwit.placement.arrays import IntArray, require_index, require_load, wrong_value
from godwit.placement.solution import make_solution

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray
    from godwit.placement.problem import Problem
    from godwit.placement.solution import Solution

DEFAULT_THETA = 1.2


def balance_lanes(
    load: FloatArray,
    lane_of: IntArray,
    num_lanes: int,
    *,
    theta: float = DEFAULT_THETA,
    max_moves: int | None = None,
) -> IntArray:
    """Return the lane of each key group of one executor, with as few changes as balance needs.

    Stops when ``max lane load <= theta * mean lane load``, when no reassignment helps, or after
    `max_moves`. Ties: the lower lane, the lower key group. O(m log m + rounds·log m) time. Raises
    `InvalidProblemError` if a load is negative or not finite, a lane does not exist, or θ is below
    1.

    Examples
    --------
    >>> balance_lanes(np.array([4.0, 3.0, 1.0]), np.array([0, 0, 0]), 2).tolist()
    [1, 0, 0]
    """
    load = np.asarray(load, np.float64)
    lane_of = np.array(lane_of, np.int32)
    require_load(load, "load")
    if load.shape != lane_of.shape or load.ndim != 1:
        raise wrong_value("lane_of", f"shape {lane_of.shape}", f"the shape must be {load.shape}")
    if num_lanes < 1:
        raise wrong_value("num_lanes", num_lanes, "give at least 1")
    require_index(lane_of, num_lanes, "lane_of", "lanes")
    if not theta >= 1:
        raise wrong_value("theta", theta, "give a number that is at least 1")
    lanes = _Lanes(load, lane_of, num_lanes)
    lanes.balance(theta * float(load.sum()) / num_lanes * (1 + 1e-12), max_moves)
    return lanes.lane_of


class _Lanes:
    """Lanes' loads in two lazy heaps, and the key groups of lanes that have been the busiest."""

    def __init__(self, load: FloatArray, lane_of: IntArray, num_lanes: int) -> None:
        self.lane_of = lane_of
        self._key_group_load = load
        self._load: list[float] = np.bincount(lane_of, weights=load, minlength=num_lanes).tolist()
        self._busiest_heap = [(-x, lane) for lane, x in enumerate(self._load)]
        self._idlest_heap = [(x, lane) for lane, x in enumerate(self._load)]
        heapq.heapify(self._busiest_heap)
        heapq.heapify(self._idlest_heap)
        self._sorted_key_groups: dict[int, list[tuple[float, int]]] = {}

    def balance(self, limit: float, max_moves: int | None) -> None:
        """Move key groups from the busiest lane to the idlest until its load is at most `limit`."""
        remaining_moves = len(self.lane_of) * len(self._load) if max_moves is None else max_moves
        while remaining_moves > 0:
            source, target = (
                self._top_lane(self._busiest_heap, -1),
                self._top_lane(self._idlest_heap, 1),
            )
            if self._load[source] <= limit:
                return
            position = self._best_position(source, self._load[source] - self._load[target])
            if position < 0:
                return
            self._move_key_group(source, position, target)
            remaining_moves -= 1

    def _top_lane(self, heap: list[tuple[float, int]], sign: int) -> int:
        """Return the lane at the top of a heap of (load·`sign`, lane).

        Outdated entries are removed.
        """
        while True:
            value, lane = heap[0]
            if sign * value == self._load[lane]:
                return lane
            heapq.heappop(heap)  # out of date: the current value was pushed when it changed

    def _key_groups(self, lane: int) -> list[tuple[float, int]]:
        """Return load and number of each key group of a lane, ascending."""
        if lane not in self._sorted_key_groups:
            key_groups = np.flatnonzero(self.lane_of == lane)
            self._sorted_key_groups[lane] = sorted(
                zip(self._key_group_load[key_groups].tolist(), key_groups.tolist(), strict=True)
            )
        return self._sorted_key_groups[lane]

    def _best_position(self, source: int, difference: float) -> int:
        """Return the position, in a lane's list, of the best key group to move; -1: none.

        `difference`: load of lane `source` minus that of the lane it goes to.
        """
        key_groups = self._key_groups(source)
        half = difference / 2
        position = bisect_left(key_groups, (half, -1))
        best, nearest = -1, half * (1 - 1e-12)
        for candidate in (position - 1, position):
            if 0 <= candidate < len(key_groups):
                away = abs(key_groups[candidate][0] - half)
                if away < nearest:
                    best, nearest = candidate, away
        if best >= 0:  # of equal loads the lowest key group
            best = bisect_left(key_groups, (key_groups[best][0], -1))
        return best

    def _move_key_group(self, source: int, position: int, target: int) -> None:
        """Move the key group at position `position` of lane `source`'s list to lane `target`."""
        weight, key_group = self._sorted_key_groups[source].pop(position)
        if target in self._sorted_key_groups:
            insort(self._sorted_key_groups[target], (weight, key_group))
        self.lane_of[key_group] = target
        for lane, change in ((source, -weight), (target, weight)):
            self._load[lane] += change
            heapq.heappush(self._busiest_heap, (-self._load[lane], lane))
            heapq.heappush(self._idlest_heap, (self._load[lane], lane))


def plan_intra_executor(problem: Problem) -> Solution:
    """Balance the lanes of one executor (paper 5 §3.1); the problem's executors are its lanes.

    Minimises reassignments, greedily, until the busiest lane has at most ``limits.theta`` (default
    1.2) times the mean; keeps to ``max_moves``. `objective` is the imbalance factor δ = busiest
    lane / mean, `bound` 1 or the heaviest key group over the mean. Where θ is not reached, the
    reason says why. Raises `InvalidProblemError` if lanes have different capacities or one drains.
    """
    if not problem.homogeneous:
        raise wrong_value("capacity", "different values", "lanes of one executor are equally fast")
    if problem.draining.any():
        lane = problem.executors[int(problem.draining.argmax())]
        raise wrong_value("draining", lane, "omit a lane instead of draining it")
    theta = DEFAULT_THETA if problem.limits.theta is None else problem.limits.theta
    load, lanes = problem.weight, problem.num_executors
    assignment = balance_lanes(
        load, problem.current, lanes, theta=theta, max_moves=problem.limits.max_moves
    )
    mean = float(load.sum()) / lanes
    busiest = float(np.bincount(assignment, weights=load, minlength=lanes).max())
    factor = busiest / mean if mean > 0 else 1.0
    heaviest = float(load.max()) / mean if mean > 0 else 1.0
    reason = ""
    if factor > theta * (1 + 1e-9):
        reason = f"the busiest lane has {factor:.4g} times the mean, more than theta = {theta:.4g}"
        if heaviest > theta:
            reason += f"; one key group alone has {heaviest:.4g} times the mean"
    return make_solution(
        problem,
        assignment,
        method="intra_executor",
        reason=reason,
        objective=factor,
        bound=max(1.0, heaviest),
    )

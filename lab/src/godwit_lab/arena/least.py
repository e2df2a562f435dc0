"""Fewest executors that suffice over time: the offline optimum that knows the load.

At every moment it is the smallest number with which rows, at the rate, key frequencies and
executor speeds of that moment, would meet the target at rest.  Lanes are filled greedily, heaviest
key group first, as evenly as a planner without limits could.  An epoch of length *I* takes
``T(I)``; at rest ``I = max(trigger, T(I))``, and rows wait ``I/2 + T`` in the mean.

Neither noise, nor migrations, nor the time that executors take to come count, so that no
controller can keep the target with fewer all of the time.  One that misses it may use fewer.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.simulator.flow import SimulatedFlow

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.arrays import FloatArray
    from godwit_lab.simulator.scenario import Scenario

GRID_S = 2.0
_ROUNDS = 40
_NEVER_S = 600.0
_KNEE = 1.1
"""Where no number meets the target: latency over the best that counts as nearly as good."""


class LeastExecutors:
    """Fewest executors for a scenario and a target, moment by moment."""

    def __init__(
        self,
        scenario: Scenario,
        target_s: float,
        *,
        seed: int = 0,
        most: int = 40,
        # share of the run → share of the rows that the first of two sources has; ``None``: one
        # source. Operators whose names end in ``_2`` read the second.
        first_share: Callable[[float], float] | None = None,
    ) -> None:
        self._scenario, self._target_s, self._most = scenario, target_s, most
        self._first_share = first_share
        self._flow = SimulatedFlow(
            scenario.components,
            scenario.keys,
            scenario.costs,
            seed=seed,
            rng=np.random.default_rng(seed),
        )
        self._known: dict[tuple[float, int, tuple[float, ...], float], int] = {}

    def times_s(self) -> FloatArray:
        """Return the moments that are looked at."""
        return np.arange(0.0, self._scenario.duration_s, GRID_S)

    def over_time(self, factor: float = 1.0) -> list[int]:
        """Return the fewest executors at each of the moments, at `factor` times the load."""
        times = self.times_s()
        rates = factor * self._scenario.rate.at_times(times)
        return [
            self.fewest(float(rate), self._scenario.keys.phase_at(float(t)), float(t))
            for t, rate in zip(times, rates, strict=True)
        ]

    def fewest(self, rows_per_s: float, phase: int, time_s: float) -> int:
        """Return the fewest executors that meet the target at a rate; the knee if none do."""
        slow = tuple(
            slowdown.factor
            for slowdown in self._scenario.cluster.slowdowns
            if slowdown.start_s <= time_s < slowdown.end_s
        )
        rate, first = float(f"{rows_per_s:.3g}"), 1.0
        if self._first_share is not None:
            first = round(self._first_share(time_s / self._scenario.duration_s), 1)
        known = self._known.get((rate, phase, slow, first))
        if known is not None:
            return known
        latencies: list[float] = []
        for count in range(1, self._most + 1):
            latencies.append(self.latency_s(rate, phase, count, slow, first))
            if latencies[-1] <= self._target_s:
                break
        else:
            best = min(latencies)
            count = 1 + next(i for i, s in enumerate(latencies) if s <= _KNEE * best)
        self._known[rate, phase, slow, first] = count
        return count

    def latency_s(
        self,
        rows_per_s: float,
        phase: int,
        executors: int,
        slow: tuple[float, ...] = (),
        first: float = 1.0,
    ) -> float:
        """Return the mean latency at rest; infinite if epochs would grow without end.

        `slow`: factors by which the first executors are slower. `first`: share of the rows that
        the first source has.
        """
        scenario = self._scenario
        cores = scenario.cluster.added.cores
        factors = [*slow, *(1.0 for _ in range(executors - len(slow)))][:executors]
        speeds = [scenario.cluster.added.speed / f for f in factors for _ in range(cores)]
        interval_s = max(scenario.trigger_s, scenario.costs.fixed_ms / 1000)
        for _ in range(_ROUNDS):
            epoch_s = self._epoch_s(rows_per_s * interval_s, phase, speeds, first)
            longer = max(scenario.trigger_s, epoch_s)
            if longer > _NEVER_S:
                return math.inf
            if abs(longer - interval_s) <= 1e-3 * interval_s:
                return longer / 2 + epoch_s
            interval_s = longer
        return math.inf

    def _epoch_s(self, rows: float, phase: int, speeds: list[float], first: float) -> float:
        """Return the seconds that an epoch of `rows` rows takes on lanes of these speeds."""
        costs = self._scenario.costs
        ms = costs.fixed_ms + (costs.source_row_ms / sum(speeds) + costs.serial_row_ms) * rows
        ours, theirs = (
            self._flow.expected_ms(float(f"{share * rows:.4g}"), phase)
            for share in (first, 1 - first)
        )
        for level in self._flow.levels:
            loads = [(theirs if c.name.endswith("_2") else ours)[c.name] for c in level]
            ms += _busiest_ms(np.concatenate(loads), speeds)
        return ms / 1000


def _busiest_ms(loads: FloatArray, speeds: list[float]) -> float:
    """Return when the last lane ends, if key groups are dealt out greedily, heaviest first."""
    lanes = [(0.0, -speed) for speed in speeds]
    heapq.heapify(lanes)
    ends = [0.0]
    for load in np.sort(loads)[::-1].tolist():
        end, speed = lanes[0]
        heapq.heapreplace(lanes, (end - load / speed, speed))
        ends.append(end - load / speed)
    return max(ends)

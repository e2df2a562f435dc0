"""ContTune: continuous tuning by conservative Bayesian optimisation (Lian et al., VLDB 2023).

Processing ability is what a parallelism can process in a second.  *Big*: a job under backpressure
gets so much parallelism at once that none is left, so that its true rates can be seen.  *Small*:
a Gaussian process over the abilities seen so far, by parallelism, gives the smallest parallelism
whose ability reaches the rate.  It is believed only within `alpha` of a parallelism that was
seen; elsewhere the conservative choice of DS2 is made, in proportion to the present true rate.

Deviations.  One tuner for all operators, whose demands are added up.  The Gaussian process has
DS2's line as its mean and fixed parameters instead of none and fitted ones, and its lower bound
at one standard deviation counts.  The paper's Big takes the largest parallelism there is; here
`big` times the present one, as a cluster of this arena has ten times as many executors as a
stream needs. `headroom`: share of the ability to use, 70 % as all rules here.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.arena.autoscalers.ds2 import true_demand

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation
    from godwit.placement.arrays import FloatArray

_LENGTH = 4.37
_SEEN = 5
_NOISE, _SIGNAL = 0.02, 0.1


class ContTune:
    """The phases big and small of one job."""

    def __init__(
        self, *, alpha: int = 3, big: float = 2.0, headroom: float = 0.7, wait: int = 2
    ) -> None:
        self._alpha, self._big, self._headroom, self._wait = alpha, big, headroom, wait
        self._abilities: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_SEEN))
        self._had, self._waiting = 0, 0

    def __call__(self, load: ScalingSituation) -> int:
        """Return the parallelism of the phase that the job is in."""
        demand, rate = true_demand(load), load.arrival_per_s
        if not demand or rate <= 0:
            return load.executors
        ability = rate * load.lanes * load.executors / demand
        self._abilities[load.executors].append(ability)
        if load.executors != self._had:
            self._had, self._waiting = load.executors, self._wait
        if self._waiting:
            self._waiting -= 1
            return load.executors
        backlog = float(load.backlog_rows or 0)
        if backlog > 2 * rate * load.epoch_s and rate >= self._headroom * ability:
            return min(math.ceil(load.executors * self._big), load.most)
        wanted = self._smallest(rate / self._headroom, ability / load.executors, load.most)
        # Where rows are still behind, fewer come later.
        return max(wanted, load.executors) if backlog > rate * load.epoch_s else wanted

    def _smallest(self, rate: float, per_executor: float, most: int) -> int:
        """Return the smallest parallelism that reaches a rate, as seen or by DS2's line."""
        conservative = min(max(math.ceil(rate / per_executor - 1e-9), 1), most)
        numbers = np.arange(1, most + 1)
        mean, deviation = self._posterior(numbers.astype(np.float64), per_executor)
        reached = np.flatnonzero(mean - deviation >= rate)
        if not len(reached):
            return conservative
        chosen = int(numbers[reached[0]])
        near = min(abs(chosen - seen) for seen in self._abilities)
        return chosen if near <= self._alpha else conservative

    def _posterior(self, numbers: FloatArray, per_executor: float) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of the ability with each number of executors."""
        seen = np.array(sorted(self._abilities), np.float64)
        scale = per_executor * max(seen.max(), 1.0)
        mean_seen = np.array([np.mean(self._abilities[int(n)]) for n in seen])
        off = (mean_seen - per_executor * seen) / scale

        def kernel(a: FloatArray, b: FloatArray) -> FloatArray:
            values: FloatArray = _SIGNAL**2 * np.exp(-0.5 * ((a[:, None] - b) / _LENGTH) ** 2)
            return values

        known = np.linalg.inv(kernel(seen, seen) + _NOISE**2 * np.eye(len(seen)))
        across = kernel(numbers, seen)
        mean = per_executor * numbers + scale * (across @ known @ off)
        variance = _SIGNAL**2 - np.einsum("ij,jk,ik->i", across, known, across)
        return mean, scale * np.sqrt(np.maximum(variance, 0.0))

"""Horizontal Pod Autoscaler of Kubernetes, with the two metrics of Varga, Balassi and Kiss (2021).

Kubernetes: ``desired = ceil(current · metric / target)``, nothing if the ratio is within
`tolerance` of 1; of several metrics the largest answer counts.  Up at once, but at most to twice
as many or four more; down to the largest answer of the *stabilisation window*.

Varga et al.: one metric is the change of the lag relative to the rate, ``1 + lag' / rate`` with a
target of 1, so that rows that stay behind ask for executors; the other is the utilisation, the
share of the time that tasks are busy, with a target of `utilisation`.  While the lag is above a
threshold (seconds of arrivals) utilisation may not remove executors; while it does not grow, only
utilisation counts.

Deviations.  A sync interval of 15 s is a statistics period here, so that the window of five
minutes is 20 periods.  Utilisation is that of lanes at the rate that is processed, at most 1.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation


class HPA:
    """The formula of the autoscaler, its tolerance, and its behaviour up and down."""

    def __init__(
        self,
        *,
        utilisation: float = 0.7,
        tolerance: float = 0.1,
        window: int = 20,
        max_lag_s: float = 2.0,
    ) -> None:
        self._utilisation, self._tolerance, self._max_lag_s = utilisation, tolerance, max_lag_s
        self._recent: deque[int] = deque(maxlen=window)
        self._lag: tuple[float, float] | None = None

    def __call__(self, load: ScalingSituation) -> int:
        """Return the desired number of executors after stabilisation and limits of pace."""
        growth, lag_s = self._lag_metric(load)
        busy = min(load.offered / max(load.lanes * load.executors, 1e-9), 1.0)
        by_use = self._desired(load.executors, busy / self._utilisation)
        if lag_s > self._max_lag_s:
            by_use = max(by_use, load.executors)
        desired = by_use
        if growth > 1 + self._tolerance:  # a lag that does not grow does not keep executors
            desired = max(by_use, self._desired(load.executors, growth))
        self._recent.append(desired)
        if desired > load.executors:
            return min(desired, max(2 * load.executors, load.executors + 4))
        return min(max(self._recent), load.executors)

    def _desired(self, executors: int, ratio: float) -> int:
        """Return the answer of one metric, given its ratio to the target."""
        if abs(ratio - 1) <= self._tolerance:
            return executors
        return max(math.ceil(executors * ratio - 1e-9), 1)

    def _lag_metric(self, load: ScalingSituation) -> tuple[float, float]:
        """Return the relative change of the lag with 1 for none, and the lag in seconds."""
        rows, before = float(load.backlog_rows or 0), self._lag
        self._lag = load.now_s, rows
        if load.arrival_per_s <= 0:
            return 1.0, 0.0
        lag_s = rows / load.arrival_per_s
        if before is None or load.now_s <= before[0]:
            return 1.0, lag_s
        change = (rows - before[1]) / (load.now_s - before[0])
        return 1 + change / load.arrival_per_s, lag_s

"""DS2: three steps is all you need (Kalavri et al., OSDI 2018).

The *true* rate of an operator is the rows that an instance processes in a second of useful time.
The source rate, propagated through the selectivities, over the true rate is the parallelism that
an operator needs; one evaluation gives that of the whole dataflow.  Besides (§4.2): intervals
after a change are ignored (warm-up), several evaluations may have to agree (activation), and
where the observed source rate still stays behind, rates are corrected once by that ratio (target
rate ratio).

Deviations.  As the paper does for Timely, parallelisms of operators are added up, since each
worker runs all of them.  Rates come from one process that knows them all, so that nothing is
missing.  By default its scaling factor provides for no more than the rate, which keeps lanes busy
all the time; `reserve` provides for 43 % more, so that lanes are busy for 70 %, as HPA and Flink
have it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation

_RATIO = 1.1
"""Target over observed source rate above which the estimate is corrected."""


def true_demand(load: ScalingSituation) -> float:
    """Return the lanes that all operators need together: rates over true rates, added up."""
    return sum(
        station.arrival_per_s / station.service_per_s
        for station in load.stations.values()
        if station.service_per_s > 0
    )


class DS2:
    """Scaling policy and manager of DS2."""

    def __init__(self, *, reserve: float = 0.43, warm_up: int = 2, activation: int = 1) -> None:
        self._reserve, self._warm_up, self._activation = reserve, warm_up, activation
        self._ignored, self._had = 0, 0
        self._estimates: deque[int] = deque(maxlen=activation)
        self._backlog: tuple[float, float] | None = None

    def __call__(self, load: ScalingSituation) -> int:
        """Return the number of executors whose lanes process the source rate."""
        behind = self._rate_ratio(load)
        if load.executors != self._had:
            self._had, self._ignored = load.executors, self._warm_up
            self._estimates.clear()
        if self._ignored:
            self._ignored -= 1
            return load.executors
        lanes = true_demand(load) * (1 + self._reserve)
        estimate = max(math.ceil(lanes / load.lanes - 1e-9), 1)
        if estimate <= load.executors and behind > _RATIO:
            estimate = max(math.ceil(lanes * behind / load.lanes - 1e-9), 1)
        self._estimates.append(estimate)
        if len(self._estimates) < self._activation:
            return load.executors
        return max(self._estimates)

    def _rate_ratio(self, load: ScalingSituation) -> float:
        """Return the source rate over the observed one: what the backlog took is not observed."""
        backlog, before = float(load.backlog_rows or 0), self._backlog
        self._backlog = load.now_s, backlog
        if before is None or load.now_s <= before[0] or load.arrival_per_s <= 0:
            return 1.0
        observed = load.arrival_per_s - (backlog - before[1]) / (load.now_s - before[0])
        return load.arrival_per_s / max(observed, 0.1 * load.arrival_per_s)

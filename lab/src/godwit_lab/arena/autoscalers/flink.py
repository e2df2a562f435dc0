"""Autoscaler of Flink's Kubernetes operator, after DS2, with its defaults.

With the input rate *λ* averaged over a window, true rate *τ*, lag *l*, catch-up time *c* and
restart time *r*, the capacity at a utilisation *u* is ``λ/u + l/c`` and, counting the rows that
arrive during a restart, ``λ/u · r/c`` more.  Nothing happens while *τ* is between the capacity at
``u + boundary`` and that at ``u - boundary``; else parallelism becomes ``current · capacity(u) /
τ``, within the maximum factors up and down.  After a change, nothing for the stabilisation
interval, and metrics begin again.  A vertex is scaled down only when fewer were recommended for
the whole scale-down interval, to the largest number recommended in it; up at once.

Deviations.  The operator's minute is a statistics period here: a window of 15 periods, and 5, 5
and 30 for stabilisation, restart and catch-up.  Scale-down waits for 15 instead of 60, which
would be longer than a match.  Vertices share slots, so that their demands are added up, and all
share one utilisation.  Not here: detection of ineffective scaling (off by default), memory
tuning, alignment with key groups, and observed true rates while catching up.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from godwit_lab.arena.autoscalers.ds2 import true_demand

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation

_MINUTE_S = 5.0


class Flink:
    """Evaluation of metrics, thresholds and limits of the operator's autoscaler."""

    def __init__(
        self,
        *,
        utilisation: float = 0.7,
        boundary: float = 0.3,
        window: int = 15,
        stabilisation: int = 5,
        restart: int = 5,
        catch_up: int = 30,
        scale_down: int = 15,
        max_down: float = 0.6,
        max_up: float = 100_000.0,
    ) -> None:
        self._utilisation, self._boundary = utilisation, boundary
        self._stabilisation_s, self._scale_down_s = (
            stabilisation * _MINUTE_S,
            scale_down * _MINUTE_S,
        )
        self._restart_s, self._catch_up_s = restart * _MINUTE_S, catch_up * _MINUTE_S
        self._max_down, self._max_up = max_down, max_up
        self._rates: deque[float] = deque(maxlen=window)
        self._had, self._changed_s = 0, -math.inf
        self._fewer: list[tuple[float, int]] = []  # when and how many, since fewer do

    def __call__(self, load: ScalingSituation) -> int:
        """Return the parallelism that is recommended now."""
        if load.executors != self._had:
            first = not self._had
            self._had, self._changed_s = load.executors, -math.inf if first else load.now_s
            self._rates.clear()
            self._fewer = []
        self._rates.append(load.arrival_per_s)
        if load.now_s - self._changed_s < self._stabilisation_s:
            return load.executors
        demand, rate = true_demand(load), max(load.arrival_per_s, 1e-9)
        per_executor = rate * load.lanes / demand if demand else math.inf
        true_rate = per_executor * load.executors
        low, high = self._utilisation - self._boundary, self._utilisation + self._boundary
        too_little = self._capacity(load, min(high, 1.0), restarts=False)
        too_much = self._capacity(load, max(low, 1e-9), restarts=True)
        if too_little <= true_rate <= too_much:
            self._fewer = []
            return load.executors
        needed = self._capacity(load, self._utilisation, restarts=True) / true_rate
        factor = min(max(needed, 1 - self._max_down), 1 + self._max_up)
        wanted = min(max(math.ceil(load.executors * factor - 1e-9), 1), load.most)
        if wanted >= load.executors:
            self._fewer = []
            return wanted
        self._fewer.append((load.now_s, wanted))
        if load.now_s - self._fewer[0][0] < self._scale_down_s:
            return load.executors
        return max(count for _, count in self._fewer)

    def _capacity(self, load: ScalingSituation, utilisation: float, *, restarts: bool) -> float:
        """Return the rows a second that must be possible at a utilisation, with the lag worked off.

        `restarts`: also the rows that arrive while the job starts again.
        """
        at_use = sum(self._rates) / len(self._rates) / utilisation
        lag = float(load.backlog_rows or 0) / self._catch_up_s
        return at_use + lag + (at_use * self._restart_s / self._catch_up_s if restarts else 0.0)

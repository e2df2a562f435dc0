"""Dhalion: self-regulating stream processing (Floratou et al., VLDB 2017).

Once a period *symptoms* are detected, one *diagnosis* is made of them, and a *resolver* acts (§4):

- Backpressure, and no executor apart from the others: too few instances.  The share *b* of the time
  that backpressure held rows back says by how much: the parallelism times ``1 + b / (1 - b)``.
- No backpressure and next to no queue: too many.  The parallelism is divided by `down`.
- An action whose diagnosis does not bring what it should is put on a blacklist for that diagnosis:
  removing an executor that led to backpressure is not tried again at that rate.

After an action Dhalion waits until metrics of the new configuration are there.

Deviations.  Backpressure is the share of the rows of a period that the sources held back, since
micro-batches hold rows back at the source.  Diagnoses of slow instances and skewed data, whose
resolvers restart or repartition, are those of the mechanism here, which balances by itself.
The blacklist is by the rate: the paper's is by the action and is emptied by hand.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.control.situation import ScalingSituation

_BACKPRESSURE = 0.02
"""Share of a period's rows that are held back, above which there is backpressure."""
_SAME_RATE = 1.1
"""Factor by which rates may differ that are one for the blacklist."""


class Dhalion:
    """Symptoms, diagnosis and resolution."""

    def __init__(self, *, down: float = 1.25, wait: int = 3, healthy: int = 6) -> None:
        self._down, self._wait, self._healthy = down, wait, healthy
        self._waiting, self._calm, self._had = 0, 0, 0
        self._last = 0.0, 0.0  # time and backlog of the period before
        self._removed: float | None = None  # rate at which executors were removed last
        self._blacklist: list[tuple[int, float]] = []  # executors, and a rate they are too few for

    def __call__(self, load: ScalingSituation) -> int:
        """Return the number of executors after the resolver of this period's diagnosis."""
        if load.executors != self._had:
            self._had, self._waiting, self._calm = load.executors, self._wait, 0
        pressure = self._backpressure(load)
        if self._waiting:
            self._waiting -= 1
            return load.executors
        if pressure > _BACKPRESSURE:
            self._calm = 0
            if self._removed is not None and self._is_near(self._removed, load.arrival_per_s):
                self._blacklist.append((load.executors, load.arrival_per_s))
            self._removed = None
            factor = 1 + pressure / (1 - pressure)
            return min(math.ceil(load.executors * factor - 1e-9), load.most)
        self._calm = self._calm + 1 if self._has_no_queue(load) else 0
        fewer = max(math.floor(load.executors / self._down), 1)
        if self._calm < self._healthy or fewer == load.executors or self._is_listed(fewer, load):
            return load.executors
        self._removed, self._calm = load.arrival_per_s, 0
        return fewer

    def _backpressure(self, load: ScalingSituation) -> float:
        """Return the share of this period's rows that were held back; at most 90 %."""
        backlog = float(load.backlog_rows or 0)
        since_s, before = self._last
        self._last = load.now_s, backlog
        grown, arrived = backlog - before, load.arrival_per_s * (load.now_s - since_s)
        share = max(grown, 0.0) / arrived if arrived > 0 else 0.0
        # A queue that does not become smaller is backpressure, too.
        if backlog > load.arrival_per_s and grown > -0.1 * backlog:
            share = max(share, 0.1)
        return min(share, 0.9)

    def _has_no_queue(self, load: ScalingSituation) -> bool:
        """Return whether sources held back next to nothing."""
        return float(load.backlog_rows or 0) <= 0.01 * load.arrival_per_s

    def _is_near(self, rate: float, other: float) -> bool:
        """Return whether two rates are one for the blacklist."""
        return max(rate, other) <= _SAME_RATE * min(rate, other)

    def _is_listed(self, executors: int, load: ScalingSituation) -> bool:
        """Return whether that few executors led to backpressure at such a rate, or at a lower."""
        return any(
            executors <= too_few and load.arrival_per_s * _SAME_RATE >= rate
            for too_few, rate in self._blacklist
        )

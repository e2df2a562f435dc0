"""Real runs for calibration: rows, keys, key groups, skew and lopsided places, each varied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from godwit.model.assignment import Assignment

__all__ = ["EXECUTORS", "RUNS", "RealRun"]

EXECUTORS = ("local-0", "local-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One stream: every epoch has `rows` rows of `keys` keys with Zipf exponent `zipf`."""

    rows: int
    keys: int
    key_groups: int
    zipf: float = 0.0
    lopsided: float = 0.5  # share of the key groups on the first of the two executors
    # whether parameters are fitted to it; if not, it is what they are held against
    fits: bool = True

    @property
    def name(self) -> str:
        """Parameters that vary, in a few characters."""
        return (
            f"{self.rows // 1000}k rows, {self.keys} keys, {self.key_groups} key groups, "
            f"Zipf {self.zipf:g}, {100 * self.lopsided:.0f} %"
        )

    def assignment(self, executors: tuple[str, ...] = EXECUTORS) -> Assignment:
        """Place the first key groups on the first executor, one lane each."""
        first = round(self.key_groups * self.lopsided)
        return Assignment(
            version=0,
            executors=executors,
            lanes=(1, 1),
            executor_of=(np.arange(self.key_groups) >= first).astype(np.int32),
            lane_of=np.zeros(self.key_groups, np.int32),
        )


RUNS = (
    RealRun(rows=1_000, keys=200, key_groups=16),
    RealRun(rows=1_000, keys=2_000, key_groups=512),
    RealRun(rows=20_000, keys=2_000, key_groups=128),
    RealRun(rows=20_000, keys=20_000, key_groups=1024),
    RealRun(rows=100_000, keys=1_000, key_groups=64),
    RealRun(rows=100_000, keys=50_000, key_groups=128),
    RealRun(rows=200_000, keys=2_000, key_groups=128, lopsided=0.9),
    RealRun(rows=200_000, keys=100_000, key_groups=64),
    RealRun(rows=100_000, keys=20_000, key_groups=256, zipf=1.0, lopsided=0.75),
    RealRun(rows=10_000, keys=10_000, key_groups=256, fits=False),
    RealRun(rows=50_000, keys=5_000, key_groups=128, zipf=1.0, fits=False),
    RealRun(rows=50_000, keys=20_000, key_groups=512, zipf=0.5, lopsided=0.8, fits=False),
    RealRun(rows=150_000, keys=10_000, key_groups=32, fits=False),
    RealRun(rows=150_000, keys=75_000, key_groups=256, lopsided=0.7, fits=False),
    RealRun(rows=2_000, keys=500, key_groups=256, fits=False),
)

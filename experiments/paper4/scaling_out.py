"""Paper 4 §5.2: word counts while the rate grows from 1000 to 16,000 rows a second.

One instance, capped at 1000 rows a second, is added each time.  Queues are played second by second:
an instance processes up to its cap, and what it does not wait for it.  A balancing pauses all
instances (pause, configure, resume), for a fixed time and for the state that it moves; what comes
meanwhile is replayed.  The paper gives neither time; here they are 50 ms and 20,000 rows of state a
second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper4.streams import RANGE, SUBSTREAMS, words_of_tweets
from godwit.planning.balancing import plan_clb, plan_elb
from godwit.planning.baselines import plan_pkg, plan_universal_hashing
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun
    from godwit.planning.arrays import FloatArray

CAP, MOST, USED = 1000.0, 15, 0.85
"""Rows a second of an instance, most instances, and the share of the caps that the rate uses."""
WORKLOAD = (
    "Words of tweets in 100 substreams; the rate is 85 % of what 1 to 15 instances of 1000 rows a "
    "second can process, four minutes with each number, as queues played second by second."
)
_WINDOWS, _SECONDS = 4, 60
_FIXED_S, _STATE_PER_S, _SERVICE_MS = 0.05, 20_000.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Figures of one system with one number of instances."""

    instances: int
    mean_ms: float
    p95_ms: float
    max_ms: float
    rows_per_s: float  # that left


def scale_out(system: str, run: FigureRun) -> list[Step]:
    """Add one instance after the other."""
    histograms = words_of_tweets(run).histograms
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    rng = run.rng(8)
    current = np.zeros(SUBSTREAMS, np.int32)
    steps, known = [], shares[:2]
    at = 0
    for instances in range(1, MOST + 1):
        queue = np.zeros(instances)
        rows, waits, left = [], [], 0.0
        for window in range(_WINDOWS):
            at = (at + 1) % len(shares)
            rate = USED * CAP * instances
            after = current
            if instances > 1:
                used = "UHLB" if run.off else system
                scaled_out = window == 0
                after = _assign(used, known * rate, current, instances, rng, due=scaled_out)
            state = known[-1] * rate * _SECONDS / 10
            moved = float(state[after != current].sum())
            pause = _FIXED_S + moved / _STATE_PER_S if (after != current).any() else 0.0
            current, known = after, np.vstack([known, shares[at]])[-12:]
            arriving = np.bincount(current, weights=shares[at] * rate, minlength=instances)
            for _ in range(_SECONDS):
                works = CAP * max(0.0, 1.0 - pause)
                paused = pause - 0.5 if pause >= 1 else pause**2 / 2
                waits.append(queue / CAP + paused)
                rows.append(arriving)
                gone = np.minimum(queue + arriving, works)
                left += float(gone.sum())
                queue = queue + arriving - gone
                pause = max(0.0, pause - 1.0)
        steps.append(_step(instances, np.concatenate(waits), np.concatenate(rows), left))
    return steps


def _step(instances: int, wait_s: FloatArray, rows: FloatArray, left: float) -> Step:
    latency = 1e3 * wait_s + _SERVICE_MS
    order = np.argsort(latency)
    below = np.cumsum(rows[order]) / rows.sum()
    return Step(
        instances=instances,
        mean_ms=float((latency * rows).sum() / rows.sum()),
        p95_ms=float(latency[order][int(np.searchsorted(below, 0.95))]),
        max_ms=float(latency.max()),
        rows_per_s=left / (_WINDOWS * _SECONDS),
    )


def _assign(
    system: str,
    known: FloatArray,
    current: np.ndarray,
    instances: int,
    rng: np.random.Generator,
    *,
    due: bool,
) -> np.ndarray:
    """Plan; ELB in every window, the others only when an instance was added.

    Baselines that balanced in every window, as in figures 3 and 4, would pause all the time.
    """
    mean = float(known[-1].sum()) / instances
    limits = Limits(load_low=(1 - RANGE) * mean, load_high=(1 + RANGE / 2) * mean)
    problem = Problem(
        executors=tuple(f"o{i}" for i in range(instances)),
        load=known[-1],
        state_bytes=known[-1],
        current=current,
        history=known,
        limits=limits if system == "ELB" else Limits(),
    )
    if system == "ELB":
        return plan_elb(problem, resize=False).assignment
    if not due:
        return current
    if system == "CLB":
        return plan_clb(problem).assignment
    if system == "PKG":
        return plan_pkg(problem).assignment
    return plan_universal_hashing(problem, rng=rng).assignment

"""Paper 4 §5.2: word counts while the rate grows and instances are added.

One instance, capped at 1000 rows a second, is added each time.  Rows arrive at random, and each
takes a millisecond of its instance, in order.  A balancing pauses all instances (pause, configure,
resume), for a fixed time and for the state that it moves; what comes meanwhile is replayed.

The paper lets 15 instances have 16,000 rows a second, more than they can process, yet 95 % of its
rows take less than 1.89 ms, for which instances must be idle most of the time.  So throughput is
played at its rates here, and latency at rates that give its percentile.  It does not give what a
pause takes; here that is 50 ms, and a second for 15,000 rows of state, which makes the longest
about as long as the paper's longest latency, 1.5 s.
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

CAP, MOST = 1000.0, 15
"""Rows a second of an instance, and the most instances."""
FOR_LATENCY, FOR_THROUGHPUT = 0.25, 16 / 15
"""Rate as a share of what the instances can process."""
WORKLOAD = (
    "Words of tweets in 100 substreams, on 1 to 15 instances of 1000 rows a second, four minutes "
    "with each number; queues are played row by row, at a rate of {} of what the instances can "
    "process."
)
_WINDOWS, _WINDOW_S = 4, 60.0
_FIXED_S, _STATE_PER_S, _SERVICE_S = 0.05, 15_000.0, 1 / CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Figures of one system with one number of instances."""

    instances: int
    mean_ms: float
    p95_ms: float
    max_ms: float
    rows_per_s: float  # that left


def scale_out(system: str, run: FigureRun, used: float) -> list[Step]:
    """Add one instance after the other, at a rate of the share `used` of their caps."""
    histograms = words_of_tweets(run).histograms
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    hashing, arrival = run.rng(8), run.rng(9)
    current = np.zeros(SUBSTREAMS, np.int32)
    steps, known, windows = [], shares[:2], iter(shares[1:])
    for instances in range(1, MOST + 1):
        rate = used * CAP * instances
        free_s = np.zeros(instances)
        latencies = []
        for window in range(_WINDOWS):
            after, share = current, next(windows)
            if instances > 1:
                method = "UHLB" if run.off else system
                after = _assign(method, known * rate, current, instances, hashing, due=not window)
            if (after != current).any():
                state = known[-1] * rate * _WINDOW_S / 10
                free_s += _FIXED_S + float(state[after != current].sum()) / _STATE_PER_S
            current, known = after, np.vstack([known, share])[-12:]
            loads = np.bincount(current, weights=share * rate, minlength=instances)
            for at, load in enumerate(loads):
                waits, free_s[at] = _serve(load, free_s[at], arrival)
                latencies.append(waits)
        latency_ms = 1e3 * np.concatenate(latencies)
        left = len(latency_ms) - free_s.sum() / _SERVICE_S
        steps.append(
            Step(
                instances=instances,
                mean_ms=float(latency_ms.mean()),
                p95_ms=float(np.percentile(latency_ms, 95)),
                max_ms=float(latency_ms.max()),
                rows_per_s=float(left) / (_WINDOWS * _WINDOW_S),
            )
        )
    return steps


def _serve(load: float, free_s: float, rng: np.random.Generator) -> tuple[FloatArray, float]:
    """Play an instance for one window.

    Returns the latencies of the rows that come in it, and for how long after it the instance will
    still be busy with them.
    """
    arrives = np.sort(rng.uniform(0, _WINDOW_S, rng.poisson(load * _WINDOW_S)))
    busy = _SERVICE_S * np.arange(len(arrives))
    # A row starts when the last gap before it has ended, and all rows since then are served.
    starts = busy + np.maximum(np.maximum.accumulate(arrives - busy), free_s)
    ends = starts + _SERVICE_S
    last = ends[-1] if len(ends) else free_s
    return ends - arrives, max(0.0, float(last) - _WINDOW_S)


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

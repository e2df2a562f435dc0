"""Paper 4 §5.2, figures 5 and 6, table 2: word counts while instances are added for a higher rate.

One instance, capped at 1000 rows a second, is added each time.  Rows arrive at random, and each
takes a millisecond of its instance, in order.  A balancing pauses all instances (pause, configure,
resume), for a fixed time and for the state that it moves; rows that arrive meanwhile are replayed.

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

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)
from godwit_lab.experiments.paper4.streams import (
    RANGE,
    SUBSTREAMS,
    SYSTEMS,
    assign,
    words_of_tweets,
)

if TYPE_CHECKING:
    from godwit.placement.arrays import FloatArray


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
    """Add one instance after the other, at a rate of the share `used` of their caps.

    ELB plans in every window, the others only when an instance was added: baselines that balanced
    in every window, as in figures 3 and 4, would pause all the time.
    """
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
                method, rows = "UHLB" if run.off else system, known * rate
                after = assign(
                    method, rows, rows[-1], current, hashing,
                    instances=instances, high=RANGE / 2, due=not window,
                )  # fmt: skip
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


@figure(
    title="Ratio of processing latency by the number of instances",
    claim="UHLB and PKG fluctuate more severely than CLB and ELB.",
    workload=WORKLOAD.format("a quarter"),
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="instances", y="ratio", by="system", x_label="instances",
              y_label="latency of one instance / latency", log_y=True),
    ),
    reason="Queues are a model; how long a pause lasts is chosen by the paper's longest latency.",
)  # fmt: skip
def figure5(run: FigureRun) -> FigureResult:
    steps = {system: scale_out(system, run, FOR_LATENCY) for system in SYSTEMS}
    one = steps["CLB"][0].mean_ms
    ratio = {name: [one / step.mean_ms for step in told] for name, told in steps.items()}
    rows: list[Row] = [
        {"system": name, "instances": step.instances, "ratio": one / step.mean_ms}
        for name, told in steps.items()
        for step in told
    ]
    spread = {name: float(np.std(np.diff(np.log(values)))) for name, values in ratio.items()}
    calm = max(spread["ELB"], spread["CLB"], 1e-9)
    return FigureResult(
        rows=rows,
        checks=(
            at_least("UHLB and PKG fluctuate more than CLB and ELB: ratio of the deviations",
                     min(spread["UHLB"], spread["PKG"]) / calm, 1.0, decisive=True),
        ),
    )  # fmt: skip


@figure(
    title="Speed-up of the throughput",
    claim="The speed-ups of ELB and CLB are nearly linear; those of PKG and UHLB are not, as "
    "balancing pauses the stream for the state that it moves.",
    workload=WORKLOAD.format("16/15"),
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="instances", y="speedup", by="system", x_label="instances", y_label="speed-up"),
    ),
    reason="Queues are a model; how long a pause lasts is chosen by the paper's longest latency.",
)
def figure6(run: FigureRun) -> FigureResult:
    rows: list[Row] = [
        {"system": "ideal", "instances": n, "speedup": float(n)} for n in range(1, MOST + 1)
    ]
    last: dict[str, float] = {}
    for system in SYSTEMS:
        run.progress(system)
        steps = scale_out(system, run, FOR_THROUGHPUT)
        speedups = [step.rows_per_s / CAP for step in steps]
        last[system] = speedups[-1] / MOST
        rows += [
            {"system": system, "instances": step.instances, "speedup": speedup}
            for step, speedup in zip(steps, speedups, strict=True)
        ]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("the speed-up of ELB is nearly linear: share of the ideal with 15 instances",
                     last["ELB"], 0.9, decisive=True),
            at_least("the speed-up of CLB is nearly linear: share of the ideal", last["CLB"], 0.9),
            at_most("that of UHLB is not: share of the ideal", last["UHLB"], 0.9),
            at_most("that of PKG is not: share of the ideal", last["PKG"], 0.9),
        ),
    )  # fmt: skip


@figure(
    title="Processing latencies while instances are added",
    claim="Most rows take less than 1.89 ms, a few up to 1.5 s, since balancing pauses; CLB "
    "reduces the mean by 17 % and ELB by up to 50 %.",
    workload=WORKLOAD.format("a quarter"),
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="figure", y="ms", by="system", kind="bars", x_label="latency",
              y_label="latency (ms)", log_y=True),
    ),
    mechanism="ELB and CLB (universal hashing in their place)",
    reason="Queues are a model here; CLB and the baselines balance once in a scale-out, ELB in "
    "every window.",
)  # fmt: skip
def table2(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    mean: dict[str, float] = {}
    for system in SYSTEMS:
        run.progress(system)
        steps = scale_out(system, run, FOR_LATENCY)
        mean[system] = float(np.mean([step.mean_ms for step in steps]))
        figures = {
            "mean": mean[system],
            "95 %": float(np.mean([step.p95_ms for step in steps])),
            "maximum": max(step.max_ms for step in steps),
        }
        rows += [{"system": system, "figure": name, "ms": ms} for name, ms in figures.items()]
    baseline = min(mean["UHLB"], mean["PKG"])
    return FigureResult(
        rows=rows,
        checks=(
            at_least("mean latency of ELB below the better baseline",
                     100 * (1 - mean["ELB"] / baseline), 50.0, unit="%", paper=50.0,
                     decisive=True, measure="mean latency, reduction by ELB"),
            at_least("mean latency of CLB below the better baseline",
                     100 * (1 - mean["CLB"] / baseline), 17.0, unit="%", paper=17.0,
                     measure="mean latency, reduction by CLB"),
        ),
    )  # fmt: skip

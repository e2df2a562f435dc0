"""Paper 4, table 2: processing latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper4.scaling_out import FOR_LATENCY, WORKLOAD, scale_out
from experiments.paper4.streams import SYSTEMS
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
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


FIGURE = Figure(
    title="Processing latencies while instances are added",
    claim="Most rows take less than 1.89 ms, a few up to 1.5 s, since balancing pauses; CLB "
    "reduces the mean by 17 % and ELB by up to 50 %.",
    workload=WORKLOAD.format("a quarter"),
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="figure", y="ms", by="system", kind="bars", x_label="latency",
              y_label="latency (ms)", log_y=True),
    ),
    mechanism="ELB and CLB (universal hashing in their place)",
    reason="Queues are a model here; CLB and the baselines balance once in a scale-out, ELB in "
    "every window.",
)  # fmt: skip

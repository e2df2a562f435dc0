"""Paper 4, figure 6: speed-up of the throughput by the number of instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper4.scaling_out import CAP, FOR_THROUGHPUT, MOST, WORKLOAD, scale_out
from experiments.paper4.streams import SYSTEMS
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
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


FIGURE = Figure(
    title="Speed-up of the throughput",
    claim="The speed-ups of ELB and CLB are nearly linear; those of PKG and UHLB are not, as "
    "balancing pauses the stream for the state that it moves.",
    workload=WORKLOAD.format("16/15"),
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="instances", y="speedup", by="system", x_label="instances", y_label="speed-up"),
    ),
    reason="Queues are a model; how long a pause lasts is chosen by the paper's longest latency.",
)

"""Paper 4, figure 5: mean latency by the number of instances, over that of one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper4.scaling_out import FOR_LATENCY, WORKLOAD, scale_out
from experiments.paper4.streams import SYSTEMS
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
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


FIGURE = Figure(
    title="Ratio of processing latency by the number of instances",
    claim="UHLB and PKG fluctuate more severely than CLB and ELB.",
    workload=WORKLOAD.format("a quarter"),
    place=RunsOn.PROCESS,
    run=run,
    charts=(
        Chart(x="instances", y="ratio", by="system", x_label="instances",
              y_label="latency of one instance / latency", log_y=True),
    ),
    reason="Queues are a model; how long a pause lasts is chosen by the paper's longest latency.",
)  # fmt: skip

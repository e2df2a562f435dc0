"""Paper 5, figure 7: throughput over time at ω = 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import SYSTEMS, WORKLOAD, Micro, simulate, throughput
from experiments.paper5.policies import REASON, SYNCHRONISED
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    mean: dict[str, float] = {}
    for policy in SYSTEMS:
        run.progress(policy)
        history = simulate(Micro(shuffles_per_min=2), policy, run)
        mean[policy] = throughput(history)
        rows += [
            {
                "policy": policy,
                "seconds": record.ended_s,
                "thousand_rows_per_s": record.rows / record.took_s / 1000,
            }
            for record in history.epochs
            if record.rows
        ]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric over static: ratio of the throughputs",
                     mean["executor-centric"] / mean["static"], 1.05, decisive=True),
            at_least("resource-centric over static: ratio",
                     mean[SYNCHRONISED] / mean["static"], 1.05),
            at_least("executor-centric over resource-centric: ratio",
                     mean["executor-centric"] / mean[SYNCHRONISED], 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Throughput over time at ω = 2",
    claim="Static is consistently much lower; the others dip after every shuffle, the "
    "resource-centric one for 10 to 20 s, the executor-centric one for 1 to 3 s.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    run=run,
    charts=(
        Chart(x="seconds", y="thousand_rows_per_s", by="policy", x_label="virtual time (s)",
              y_label="throughput (1000 rows/s)"),
    ),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)  # fmt: skip

"""Paper 5, figure 10: throughput and latency by the skew of the keys, α."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper5.micro import WORKLOAD, Micro
from experiments.paper5.policies import REASON, SYNCHRONISED
from experiments.paper5.sweeps import charts, ratios, sweep
from godwit.cli.reproduce.figure import Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def run(run: FigureRun) -> FigureResult:
    rows = sweep({alpha: Micro(zipf=alpha) for alpha in _ALPHAS}, "alpha", run)
    static = ratios(rows, "alpha", "executor-centric", "static")
    central = ratios(rows, "alpha", "executor-centric", SYNCHRONISED)
    alone = {
        float(row["alpha"]): float(row["thousand_rows_per_s"])
        for row in rows
        if row["policy"] == "static"
    }
    return FigureResult(
        rows=rows,
        checks=(
            at_most("static suffers from skew: throughput at α = 0.8 over that at 0",
                    alone[0.8] / alone[0.0], 0.8),
            at_least("executor-centric is better than static at α = 0.6: ratio", static[0.6], 1.1,
                     decisive=True),
            at_least("executor-centric outperforms resource-centric up to α = 0.6: smallest ratio",
                     min(central[alpha] for alpha in _ALPHAS[:4]), 1.0),
            at_most("resource-centric is better at α = 0.8: ratio", central[0.8], 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Policies by the skew of the keys, α",
    claim="Static suffers greatly from skew; executor-centric outperforms resource-centric up to "
    "α = 0.6 and falls behind it above 0.7.",
    workload=WORKLOAD + " ω = 2.",
    place=RunsOn.SIMULATED,
    run=run,
    charts=charts("alpha", "skew α"),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)

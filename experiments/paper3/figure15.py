"""Paper 3, figure 15: communication between the components that fusion forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper3.random_jobs import WORKLOAD, fuse, ratios
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = fuse(run)
    return FigureResult(
        rows=rows,
        checks=(
            at_most("COMM leaves less between components than PA: largest ratio",
                    max(ratios(rows, "between_percent", "score = COMM", "score = PA")), 0.999,
                    decisive=True),
            at_most("COMM leaves less than the baseline: largest ratio",
                    max(ratios(rows, "between_percent", "score = COMM", "baseline")), 0.999,
                    decisive=True),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Communication between components after fusion",
    claim="The score that minimises communication leaves the least of it between components.",
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="operators", y="between_percent", by="score", x_label="operators",
              y_label="rows between components (%)"),
    ),
    mechanism="the score by communication (the baseline in its place)",
)  # fmt: skip

"""Paper 3, figure 14: components that fusion forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper3.random_jobs import WORKLOAD, fuse, ratios
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = fuse(run)
    return FigureResult(
        rows=rows,
        checks=(
            at_least("COMM forms most components: smallest ratio to PA",
                     min(ratios(rows, "components", "score = COMM", "score = PA")), 1.0,
                     decisive=True),
            at_least("COMM forms more than the baseline: smallest ratio",
                     min(ratios(rows, "components", "score = COMM", "baseline")), 1.0),
            at_most("PA forms fewer than the baseline: largest ratio",
                    max(ratios(rows, "components", "score = PA", "baseline")), 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Number of components after fusion",
    claim="The score that minimises communication forms the most components, the score by "
    "attributes few.",
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="operators", y="components", by="score", x_label="operators",
              y_label="components, mean"),
    ),
    reason="COMM forms more components than PA, but the baseline leaves more than either: it grows "
    "one component after the other, and a large one soon shares no attribute with its neighbours.",
)  # fmt: skip

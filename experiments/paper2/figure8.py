"""Paper 2, figure 8: load distance with limited and with any number of migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.drifting import WORKLOAD, column
from experiments.paper2.unrestricted import LIMITS, play_limits
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = play_limits(run)
    ten, thirteen, free = (column(rows, name, "distance_percent") for name in LIMITS)
    return FigureResult(
        rows=rows,
        checks=(
            at_most("unrestricted is nearest to even: mean over that with 10 migrations",
                    float(free.mean() / ten.mean()), 1.0, decisive=True),
            at_most("13 migrations are nearer to even than 10: ratio of the means",
                    float(thirteen.mean() / ten.mean()), 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Load distance by the number of migrations allowed",
    claim="Without a limit the load distance is best; with 10 migrations a period it has spikes.",
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="period", y="distance_percent", by="system", x_label="period",
              y_label="load distance (% of the mean)"),
    ),
    reason="Limited plans here come so near to even that fewer migrations cost little.",
)  # fmt: skip

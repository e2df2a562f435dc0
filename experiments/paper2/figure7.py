"""Paper 2, figure 7: migrations of MILP and Flux over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.drifting import WORKLOAD, System, column, play
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun


def run(run: FigureRun) -> FigureResult:
    rows = play(
        {
            "MILP": System(planner="milp", max_moves=13),
            "Flux": System(planner="flux", max_moves=13),
            "PoTC": System(planner="potc", max_moves=None),
        },
        run,
    )
    moves = {name: column(rows, name, "moves") for name in ("MILP", "Flux", "PoTC")}
    return FigureResult(
        rows=rows,
        checks=(
            at_least("MILP needs nearly all of its 13 migrations a period: mean",
                     float(moves["MILP"].mean()), 10.0, unit="migrations", paper=13.0,
                     decisive=True),
            at_least("Flux needs them, too: mean", float(moves["Flux"].mean()), 10.0,
                     unit="migrations", paper=13.0),
        ),
        notes=("no planner can exceed its limit, and PoTC cannot migrate: neither is checked",),
    )  # fmt: skip


FIGURE = Figure(
    title="Migrations over time",
    claim="MILP and Flux need up to the 13 migrations a period that they are given; PoTC merges "
    "instead of migrating.",
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    run=run,
    charts=(Chart(x="period", y="moves", by="system", x_label="period", y_label="migrations"),),
)

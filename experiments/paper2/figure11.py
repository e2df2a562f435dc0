"""Paper 2, figure 11: ALBIC and COLA on three sizes of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.collocation import last, mean, play, synthetic_chain
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    ratios, distances = [], []
    for executors in (20, 40, 60):
        problem = synthetic_chain(executors, 0.5, run.rng(5))
        periods = run.pick(3, 4) * executors
        told = play(problem, run, periods=periods, cola_every=periods)
        collocated = [last(told, name, "collocation_percent") for name in ("ALBIC", "COLA")]
        distance = [mean(told, name, "distance_percent") for name in ("ALBIC", "COLA")]
        ratios.append(collocated[0] / max(collocated[1], 1e-9))
        distances.append(distance[0] / max(distance[1], 1e-9))
        rows += [
            {
                "cluster": f"{executors} nodes",
                "system": name,
                "collocation_percent": collocated[at],
                "distance_percent": distance[at],
            }
            for at, name in enumerate(("ALBIC", "COLA"))
        ]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("ALBIC collocates more than COLA on every cluster: smallest ratio",
                     min(ratios), 1.0, decisive=True),
            at_most("ALBIC has the smaller load distance on every cluster: largest ratio",
                    max(distances), 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Collocation by the size of the cluster",
    claim="ALBIC significantly and consistently outperforms COLA in load distance and collocation "
    "for three sizes of clusters.",
    workload="The paper's: 20, 40 and 60 executors, 20 key groups each, half of them talking one "
    "to one.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="cluster", y="collocation_percent", by="system", kind="bars", x_label="cluster",
              y_label="collocated traffic (%)"),
        Chart(x="cluster", y="distance_percent", by="system", kind="bars", x_label="cluster",
              y_label="load distance (% of the mean)"),
    ),
    reason="A quick run ends before ALBIC has moved everything that it would, 20 key groups a "
    "period.",
)  # fmt: skip

"""Paper 2, figure 10: collocation that can be had against collocation and load distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.paper2.collocation import last, mean, play, synthetic_chain
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    executors, periods = run.pick((20, 40), (40, 160))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    for share in shares:
        problem = synthetic_chain(executors, share, run.rng(5))
        told = play(problem, run, periods=periods, cola_every=periods)
        rows += [
            {
                "share_percent": 100 * share,
                "system": system,
                "collocation_percent": last(told, system, "collocation_percent"),
                "distance_percent": mean(told, system, "distance_percent"),
                "moves": last(told, system, "moves"),
            }
            for system in ("ALBIC", "COLA")
        ]
    albic, cola = ([row for row in rows if row["system"] == name] for name in ("ALBIC", "COLA"))
    differences = [
        float(a["collocation_percent"]) - float(c["collocation_percent"])
        for a, c in zip(albic, cola, strict=True)
    ]
    distances = [
        float(a["distance_percent"]) / max(float(c["distance_percent"]), 1e-9)
        for a, c in zip(albic, cola, strict=True)
    ]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("ALBIC collocates at least as much as COLA: least difference",
                     min(differences), 0.0, unit="percentage points"),
            at_least("most of what can be collocated is, where all talk one to one",
                     float(albic[-1]["collocation_percent"]), 50.0, unit="%", decisive=True),
            at_most("ALBIC has the smaller load distance: largest ratio", max(distances), 1.0),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Collocation of communicating key groups",
    claim="ALBIC has a smaller load distance than COLA, and up to ten percentage points more "
    "collocation, at every collocation that can be had.",
    workload="The paper's: 40 executors (20 if quick), 20 key groups each, a chain of operators; "
    "20 migrations a period for ALBIC from a random start, COLA plans the last from scratch.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="share_percent", y="collocation_percent", by="system",
              x_label="key groups that talk one to one (%)", y_label="collocated traffic (%)"),
        Chart(x="share_percent", y="distance_percent", by="system",
              x_label="key groups that talk one to one (%)",
              y_label="load distance (% of the mean)"),
    ),
    mechanism="the look at traffic (the MILP alone)",
    reason="A quick run ends before ALBIC has moved everything that it would, 20 key groups a "
    "period.",
)  # fmt: skip

"""Paper 1, figure 13: τ against the running time of SSM."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper1.migrations import APPLICATIONS, NOTE, TAUS, migrations
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most
from godwit.planning.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from experiments.paper1.migrations import Migrations
    from godwit.cli.reproduce.figure import FigureRun


def ssm_ms(of: Migrations, repeats: int) -> float:
    """Median CPU time of SSM over a sequence of migrations, in milliseconds."""
    times, problem = [], of.start
    for size in of.counts:
        problem = replace(problem, limits=replace(problem.limits, target_executors=size))
        for _ in range(repeats):
            began = process_time()
            plan = plan_ssm(problem)
            times.append(process_time() - began)
        problem = replace(problem, current=plan.assignment)
    return 1e3 * float(np.median(times))


def run(run: FigureRun) -> FigureResult:
    rows: list[dict[str, float | str]] = []
    for application in APPLICATIONS:
        for tau in TAUS:
            run.progress(f"{application}, τ = {tau}")
            of = migrations(run, application, count=run.pick(40, 100), tau=tau)
            rows.append({"application": application, "tau": tau, "ms": ssm_ms(of, run.pick(5, 20))})
    times = {(row["application"], row["tau"]): float(row["ms"]) for row in rows}
    growth = [times[name, TAUS[-1]] / times[name, TAUS[0]] for name in APPLICATIONS]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("SSM never takes more than 2 ms: largest median", max(times.values()), 2.0,
                    unit="ms", paper=2.0, decisive=True, measure="time of SSM, m = 64"),
            at_least("SSM takes longer as τ grows: smallest ratio of the last to the first",
                     min(growth), 1.0),
        ),
        notes=(NOTE, "times are medians of the CPU times of many calls on the machine at hand"),
    )  # fmt: skip


FIGURE = Figure(
    title="Load balancing threshold τ against the time of SSM",
    claim="The time of SSM grows with τ and never exceeds 2 ms.",
    workload="As figure 12: 64 key groups, 8 to 16 executors; medians over all migrations.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(
            x="tau",
            y="ms",
            by="application",
            x_label="load balancing threshold τ",
            y_label="time of SSM (ms)",
            paper=2.0,
        ),
    ),
    reason="SSM here looks at whole arrays at once, so that its time hardly depends on τ.",
)

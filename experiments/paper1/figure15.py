"""Paper 1, figure 15: number of tasks m against the time and the cost of single-step migration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper1.figure13 import ssm_ms
from experiments.paper1.migrations import NOTE, migrations, moved_share
from godwit.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    RunsOn,
    at_most,
    rank_correlation,
)
from godwit.planning.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row

_TASKS = (32, 64, 128, 256, 512)
_TAUS = (0.2, 1.2)


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for tau in _TAUS:
        for tasks in _TASKS:
            run.progress(f"τ = {tau}, m = {tasks}")
            sequences = [
                migrations(each, "word count", count=run.pick(40, 100), tau=tau, tasks=tasks)
                for each in (replace(run, seed=run.seed + at) for at in range(run.pick(8, 16)))
            ]
            moved = [moved_share(of, plan_ssm) for of in sequences]
            rows.append(
                {
                    "tau": f"τ = {tau}",
                    "tasks": tasks,
                    "ms": ssm_ms(sequences[0], run.pick(1, 10)),
                    "moved_percent": 100 * float(np.mean(moved)),
                }
            )
    tight, default = ([row for row in rows if row["tau"] == f"τ = {tau}"] for tau in _TAUS)
    times = [float(row["ms"]) for row in default]
    exponent = float(np.polyfit(np.log(_TASKS), np.log(times), 1)[0])
    return FigureResult(
        rows=rows,
        checks=(
            at_most("a migration moves less as m grows, τ = 1.2 (rank correlation)",
                    rank_correlation(_TASKS, [float(row["moved_percent"]) for row in default]),
                    -0.5, decisive=True),
            at_most("a migration moves less as m grows, τ = 0.2 (rank correlation)",
                    rank_correlation(_TASKS, [float(row["moved_percent"]) for row in tight]),
                    -0.5),
            at_most("the time of SSM grows with the square of m, or less: fitted exponent",
                    exponent, 2.2, paper=2.0),
        ),
        notes=(NOTE,),
    )  # fmt: skip


FIGURE = Figure(
    title="Number of tasks m against single-step migration",
    claim="The time of SSM grows with the square of m, and the migration cost falls, since finer "
    "tasks leave more to choose from.",
    workload="Word count of figure 12 with 32 to 512 key groups, at the default τ = 1.2 and at a "
    "tight one; means of several sequences.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="tasks", y="ms", by="tau", x_label="key groups m", y_label="time of SSM (ms)",
              log_x=True, log_y=True),
        Chart(x="tasks", y="moved_percent", by="tau", x_label="key groups m",
              y_label="state moved by a migration (%)", log_x=True),
    ),
    reason="What binds at the default τ are bursts of single words; without them the cost would "
    "hardly depend on m.",
)  # fmt: skip

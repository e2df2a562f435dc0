"""Paper 1, figure 17: discount factor γ against the cost of MTM-aware migration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper1.migrations import NOTE, migrations, moved_share, mtm, projected
from godwit.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    RunsOn,
    at_least,
    at_most,
    rank_correlation,
)
from godwit.planning.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_SEQUENCES = 3
_GAMMAS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


def run(run: FigureRun) -> FigureResult:
    sequences = [
        migrations(each, "word count", count=run.pick(60, 100), tau=1.2)
        for each in (replace(run, seed=run.seed + at) for at in range(_SEQUENCES))
    ]
    ssm = 100 * float(np.mean([moved_share(of, plan_ssm) for of in sequences]))
    rows: list[dict[str, float | str]] = []
    for gamma in _GAMMAS:
        run.progress(f"γ = {gamma}")
        tables = [projected(run, of, gamma=0.0 if run.off else gamma) for of in sequences]
        shares = [moved_share(of, mtm(at)) for of, at in zip(sequences, tables, strict=True)]
        rows.append(
            {
                "gamma": gamma,
                "moved_percent": 100 * float(np.mean(shares)),
                "seconds": sum(table.elapsed_s for table in tables),
            }
        )
    moved = [float(row["moved_percent"]) for row in rows]
    seconds = [float(row["seconds"]) for row in rows]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("the cost falls as γ grows (rank correlation)",
                    rank_correlation(_GAMMAS, moved), -0.5, decisive=True),
            at_most("at γ = 0.8 less is moved than at 0: ratio", moved[4] / moved[0], 0.999,
                    decisive=True),
            at_most("at γ = 0 it is single-step migration: distance from SSM",
                    abs(moved[0] / ssm - 1), 0.1),
            at_least("the pre-computation takes longer as γ grows (rank correlation)",
                     rank_correlation(_GAMMAS, seconds), 0.3),
        ),
        notes=(NOTE,),
    )  # fmt: skip


FIGURE = Figure(
    title="Discount factor γ against MTM-aware migration",
    claim="As γ grows the migration cost falls and the pre-computation takes longer; at 0 it is "
    "single-step migration.",
    workload="Word count of figure 12 with τ = 1.2; projected costs of a sample of partitionings.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(x="gamma", y="moved_percent", x_label="discount factor γ",
              y_label="state moved by a migration (%)"),
        Chart(x="gamma", y="seconds", x_label="discount factor γ",
              y_label="time of the pre-computation (s)"),
    ),
    mechanism="the look at later migrations (γ = 0 throughout)",
    reason="At γ = 0 each migration is as cheap as single-step, but of equally cheap ones another "
    "is taken, on which later ones depend. The pre-computation solves its equations by policy "
    "iteration, whose time hardly depends on γ; value iteration needs more sweeps as γ grows.",
)  # fmt: skip

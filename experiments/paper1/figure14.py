"""Paper 1, figure 14: τ against the time of the pre-computation, PMC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from experiments.paper1.figure13 import ssm_ms
from experiments.paper1.migrations import NOTE, migrations
from godwit.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    RunsOn,
    at_least,
    rank_correlation,
)
from godwit.planning.intervals.pmc import projected_cost
from godwit.planning.intervals.projected import Transitions
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

_TAUS = (0.4, 0.6, 0.8, 1.0, 1.2)
_SIZES = (2, 3, 4)


def run(run: FigureRun) -> FigureResult:
    rng, tasks = run.rng(1), run.pick(18, 24)
    load = rng.gamma(8.0, 1, tasks)
    distance = np.abs(np.subtract.outer(_SIZES, _SIZES))
    weight = np.exp(-distance / 2.0) * (distance > 0)
    chain = Transitions(sizes=_SIZES, probability=weight / weight.sum(axis=1, keepdims=True))
    rows: list[dict[str, float | str]] = []
    for tau in _TAUS:
        run.progress(f"τ = {tau}")
        problem = Problem(
            executors=tuple(f"e{i}" for i in range(_SIZES[-1])),
            load=load,
            state_bytes=1e6 * rng.random(tasks),
            current=(np.arange(tasks) * 2 // tasks).astype(np.int32),
            limits=Limits(tau=tau, target_executors=3),
        )
        tables = [projected_cost(problem, chain) for _ in range(run.pick(1, 3))]
        rows.append(
            {
                "tau": tau,
                "seconds": float(np.median([table.elapsed_s for table in tables])),
                "partitionings": tables[0].num_partitionings,
            }
        )
    online = ssm_ms(migrations(run, "word count", count=20, tau=1.2), 3)
    seconds = [float(row["seconds"]) for row in rows]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("the pre-computation takes longer as τ grows (rank correlation)",
                     rank_correlation(_TAUS, seconds), 0.8, decisive=True),
            at_least("it takes much longer than planning online: ratio to SSM at the largest τ",
                     seconds[-1] / (online / 1e3), 10.0),
        ),
        notes=(NOTE, "times are of the machine at hand, on one core"),
    )  # fmt: skip


FIGURE = Figure(
    title="Load balancing threshold τ against the time of PMC",
    claim="The pre-computation takes hundreds of minutes on 64 executors, and longer as τ grows.",
    workload="Exact projected costs of 18 key groups (24 in full) on 2 to 4 executors, on one "
    "core; the paper has 64 key groups on 8 to 16, which nobody can enumerate on two cores.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=(
        Chart(
            x="tau",
            y="seconds",
            x_label="load balancing threshold τ",
            y_label="time of the pre-computation (s)",
        ),
        Chart(
            x="tau",
            y="partitionings",
            x_label="load balancing threshold τ",
            y_label="partitionings within τ",
        ),
    ),
)

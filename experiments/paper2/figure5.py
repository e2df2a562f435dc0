"""Paper 2, figure 5: scaling in by one plan with balancing, and as a process of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper2.solver import distance_percent, synthetic_cluster
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most
from godwit.planning import metrics
from godwit.planning.allocation.milp import plan_milp

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row
    from godwit.planning.arrays import IntArray
    from godwit.planning.problem import Problem

_EXECUTORS, _KEY_GROUPS, _LEAVING, _MOVES = 60, 1200, 10, 20
_PERIODS = 14


def _overloaded(count: int, rng: np.random.Generator) -> Problem:
    """Mark ten executors for removal, while some of the others are overloaded."""
    problem = synthetic_cluster(_EXECUTORS, _KEY_GROUPS, max_moves=_MOVES, varies=0.0, rng=rng)
    load = problem.load[:, 0].copy()
    load[problem.current < count] *= 2
    return replace(problem, load=load, draining=np.arange(_EXECUTORS) >= _EXECUTORS - _LEAVING)


def _drain_first(problem: Problem) -> IntArray:
    """Move key groups off the leaving executors, each to the least loaded one, and nothing else."""
    after = problem.current.copy()
    index = metrics.load_index(problem, after)
    for k in np.flatnonzero(problem.draining[after])[:_MOVES].tolist():
        goal = int(problem.available[index[problem.available].argmin()])
        after[k] = goal
        index[goal] += problem.weight[k] / problem.speed[goal]
    return after


def _play(problem: Problem, run: FigureRun, *, integrated: bool) -> list[tuple[float, int]]:
    """Load distance in percent, and key groups left to drain, after every period."""
    told = []
    for period in range(_PERIODS):
        run.progress(f"period {period + 1} of {_PERIODS}")
        left = int(problem.draining[problem.current].sum())
        if integrated or not left:
            plan = plan_milp(problem, time_limit_s=run.pick(0.5, 2.0), patience=50)
            after, distance = plan.assignment, distance_percent(plan)
        else:
            after = _drain_first(problem)
            mean = metrics.mean_index(problem)
            distance = 100 * metrics.load_distance(problem, after) / mean
        problem = replace(problem, current=after)
        told.append((distance, int(problem.draining[after].sum())))
    return told


def run(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    mean: dict[tuple[int, str], float] = {}
    drained: dict[tuple[int, str], int] = {}
    for count in (1, 5):
        problem = _overloaded(count, run.rng(count))
        for name in ("integrated", "drain first"):
            told = _play(problem, run, integrated=name == "integrated" and not run.off)
            mean[count, name] = float(np.mean([distance for distance, _ in told]))
            drained[count, name] = sum(left > 0 for _, left in told) + 1
            rows += [
                {
                    "overloaded": f"{count} overloaded",
                    "plan": name,
                    "period": period,
                    "distance_percent": distance,
                    "left": left,
                }
                for period, (distance, left) in enumerate(told, 1)
            ]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("the integrated plan is nearer to even on the way: larger ratio of the means",
                    max(mean[c, "integrated"] / mean[c, "drain first"] for c in (1, 5)), 0.8,
                    decisive=True),
            at_most("it scales in within a similar time: larger ratio of the periods",
                    max(drained[c, "integrated"] / drained[c, "drain first"] for c in (1, 5)),
                    1.3),
        ),
    )  # fmt: skip


FIGURE = Figure(
    title="Scaling in and balancing in one plan",
    claim="The integrated plan reaches a good load distance much faster than one that first drains "
    "the nodes, and scales in within a similar time.",
    workload="The paper's: 60 executors, 1200 key groups, ten to be removed, 20 migrations a "
    "period, one and five executors overloaded.",
    place=RunsOn.PLANNERS,
    run=run,
    charts=tuple(
        Chart(
            x="period",
            y=y,
            by="plan",
            only=("overloaded", overloaded),
            title=overloaded,
            x_label="period",
            y_label=label,
        )
        for overloaded in ("1 overloaded", "5 overloaded")
        for y, label in (
            ("distance_percent", "load distance (% of the mean)"),
            ("left", "key groups left to drain"),
        )
    ),
    mechanism="the integration (both drain first)",
)

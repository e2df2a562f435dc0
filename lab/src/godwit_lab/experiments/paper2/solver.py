"""Paper 2 §5.1, figures 2 to 5: solver time against quality, and scaling in by the same plan.

Figures 2 to 4 differ in the size of the cluster only.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.allocation.milp import plan_milp
from godwit.placement import metrics
from godwit.placement.problem import Limits, Problem
from godwit.placement.solution import validate_solution
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_most,
    figure,
)
from godwit_lab.planners.baselines import plan_flux

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.placement.arrays import IntArray
    from godwit.placement.solution import Solution
    from godwit_lab.cli.reproduce.figure import Data


_MAX_MOVES = (10, 20, 30, 40)
_VARIES = 40.0


def synthetic_cluster(
    executors: int, key_groups: int, *, max_moves: int, varies: float, rng: np.random.Generator
) -> Problem:
    """Set up paper 2 §5.1: key groups within 5 % of each other, a fifth of the executors changed.

    Half of those lose, half gain ``varies / 2`` percent of an executor, spread over a random half
    of their key groups. An executor's load is 50 before.
    """
    per = key_groups // executors
    current = np.repeat(np.arange(executors, dtype=np.int32), per)
    load = 50.0 / per * (1 + rng.uniform(-0.05, 0.05, key_groups))
    for j, e in enumerate(rng.choice(executors, executors // 5, replace=False).tolist()):
        some = rng.choice(np.flatnonzero(current == e), per // 2, replace=False)
        change = 0.5 * varies / 100 * 50.0 / len(some)
        load[some] = np.maximum(load[some] + (change if j % 2 else -change), 0.01)
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=load,
        state_bytes=np.full(key_groups, 1e6),
        current=current,
        limits=Limits(max_moves=max_moves),
    )


def distance_percent(solution: Solution) -> float:
    """Load distance of a valid plan, in percent of the mean load."""
    validate_solution(solution)
    return 100 * solution.load_distance / metrics.mean_index(solution.problem)


def _plan(problem: Problem, limit_s: float, patience: int = 400) -> Solution:
    """Plan by the MILP within a time of the processor, whatever else the machine does."""
    return plan_milp(problem, time_limit_s=limit_s, clock=time.process_time, patience=patience)


def _reached(data: Data, planner: str) -> list[np.ndarray]:
    """Return load distances by the solver's time, for each number of moves."""
    return [
        data.column("distance_percent", moves=f"{moves} migrations", planner=planner)
        for moves in _MAX_MOVES
    ]


def _over_flux(data: Data, place: int) -> list[float]:
    """Return the MILP's load distance over that of Flux after a time, for each number of moves."""
    pairs = zip(_reached(data, "MILP"), _reached(data, "Flux"), strict=True)
    return [float(milp[place] / flux[place]) for milp, flux in pairs]


def solver_figure(executors: int, key_groups: int) -> Figure:
    """Make the figure of one size of cluster: time of the solver against the quality of plans."""

    def run(run: FigureRun) -> FigureResult:
        rows: list[Row] = []
        limits = run.pick((0.5, 2.0), (1.0, 3.0, 5.0, 20.0))
        for moves in _MAX_MOVES:
            problem = synthetic_cluster(
                executors, key_groups, max_moves=moves, varies=_VARIES, rng=run.rng(moves)
            )
            flux = distance_percent(plan_flux(problem))
            for limit_s in limits:
                run.progress(f"{moves} moves, {limit_s:g} s")
                plan = plan_flux(problem) if run.off else _plan(problem, limit_s)
                rows.append(_row(moves, "MILP", limit_s, distance_percent(plan)))
                rows.append(_row(moves, "Flux", limit_s, flux))
        return FigureResult(rows=rows)

    return Figure(
        title=f"Solver time against quality, {executors} nodes and {key_groups} key groups",
        clauses=(
            at_most("the MILP is consistently better than Flux after a few seconds",
                    "load distance over that of Flux after the longest time, largest of all "
                    "numbers of moves", lambda data: max(_over_flux(data, -1)), 0.999),
            at_most("it is much nearer on the whole", "mean of the ratios after the shortest time",
                    lambda data: float(np.mean(_over_flux(data, 0))), 0.75, decisive=True,
                    beyond=True),
            at_most("from which on it improves only slightly", "greatest difference of load "
                    "distances after the shortest and the longest time",
                    lambda data: max(float(milp[0] - milp[-1]) for milp in _reached(data, "MILP")),
                    1.0, unit="% of the mean"),
            at_most("more moves leave less distance", "last to first number of moves",
                    lambda data: float(_reached(data, "MILP")[-1][-1]
                                       / _reached(data, "MILP")[0][-1]), 1.0, beyond=True),
        ),
        workload=f"The paper's: {executors} executors, {key_groups} key groups, a fifth of the "
        "executors changed by 20 %, at most 10 to 40 migrations; with an open solver.",
        place=RunsOn.PLANNERS,
        run=run,
        charts=tuple(
            Chart(
                x="seconds",
                y="distance_percent",
                by="planner",
                only=("moves", f"{moves} migrations"),
                title=f"{moves} migrations",
                x_label="time of the solver (s of CPU)",
                y_label="load distance (% of the mean)",
            )
            for moves in _MAX_MOVES
        ),
        mechanism="the MILP (Flux plans in its place)",
        reason="Half a second, the shortest time of a quick run, may be too short on a large "
        "cluster with few migrations.",
    )  # fmt: skip


def _row(moves: int, planner: str, seconds: float, distance: float) -> Row:
    return {
        "moves": f"{moves} migrations",
        "planner": planner,
        "seconds": seconds,
        "distance_percent": distance,
    }


figure2 = solver_figure(20, 400)


figure3 = solver_figure(40, 800)


figure4 = solver_figure(60, 1200)


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
            plan = _plan(problem, run.pick(0.5, 2.0), patience=50)
            after, distance = plan.assignment, distance_percent(plan)
        else:
            after = _drain_first(problem)
            mean = metrics.mean_index(problem)
            distance = 100 * metrics.load_distance(problem, after) / mean
        problem = replace(problem, current=after)
        told.append((distance, int(problem.draining[after].sum())))
    return told


def _worst(number: Callable[[Data, str, str], float]) -> Callable[[Data], float]:
    """Return a getter of a number of the integrated plan over that of the other, the larger one."""
    return lambda data: max(
        number(data, overloaded, "integrated") / number(data, overloaded, "drain first")
        for overloaded in _OVERLOADED
    )


def _on_the_way(data: Data, overloaded: str, plan: str) -> float:
    return float(data.column("distance_percent", overloaded=overloaded, plan=plan).mean())


def _periods_to(least: float, column: str) -> Callable[[Data, str, str], float]:
    """Return a counter of the periods until a column is at most a number."""
    return lambda data, overloaded, plan: float(
        (data.column(column, overloaded=overloaded, plan=plan) > least).sum() + 1
    )


_OVERLOADED = {"1 overloaded": 1, "5 overloaded": 5}
_GOOD_PERCENT = 5.0


@figure(
    title="Scaling in and balancing in one plan",
    clauses=(
        at_most("the integrated plan reaches a good load distance much faster than one that first "
                "drains the nodes", "load distance on the way, larger ratio of the means",
                _worst(_on_the_way), 0.8, decisive=True),
        at_most("the integrated plan reaches a good load distance much faster than one that first "
                "drains the nodes", "periods to a distance of 5 %, larger ratio",
                _worst(_periods_to(_GOOD_PERCENT, "distance_percent")), 0.8),
        at_most("and scales in within a similar time", "larger ratio of the periods",
                _worst(_periods_to(0, "left")), 1.3),
    ),
    workload="The paper's: 60 executors, 1200 key groups, ten to be removed, 20 migrations a "
    "period, one and five executors overloaded.",
    place=RunsOn.PLANNERS,
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
        for overloaded in _OVERLOADED
        for y, label in (
            ("distance_percent", "load distance (% of the mean)"),
            ("left", "key groups left to drain"),
        )
    ),
    mechanism="the integration (both drain first)",
)  # fmt: skip
def figure5(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for overloaded, count in _OVERLOADED.items():
        problem = _overloaded(count, run.rng(count))
        for name in ("integrated", "drain first"):
            told = _play(problem, run, integrated=name == "integrated" and not run.off)
            rows += [
                {
                    "overloaded": overloaded,
                    "plan": name,
                    "period": period,
                    "distance_percent": distance,
                    "left": left,
                }
                for period, (distance, left) in enumerate(told, 1)
            ]
    return FigureResult(rows=rows)

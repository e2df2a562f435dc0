"""Workload of paper 2 §5.1, and figures 2 to 4, which differ in the size of the cluster only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_most
from godwit.planning import metrics
from godwit.planning.allocation.milp import plan_milp
from godwit.planning.baselines import plan_flux
from godwit.planning.problem import Limits, Problem
from godwit.planning.solution import validate_solution

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun, Row
    from godwit.planning.solution import Solution

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


def solver_figure(executors: int, key_groups: int) -> Figure:
    """Make the figure of one size of cluster: time of the solver against the quality of plans."""

    def run(run: FigureRun) -> FigureResult:
        rows: list[Row] = []
        found: dict[int, dict[str, float]] = {}
        limits = run.pick((0.5, 2.0), (1.0, 3.0, 5.0, 20.0))
        for moves in _MAX_MOVES:
            problem = synthetic_cluster(
                executors, key_groups, max_moves=moves, varies=_VARIES, rng=run.rng(moves)
            )
            flux = distance_percent(plan_flux(problem))
            reached = []
            for limit_s in limits:
                run.progress(f"{moves} moves, {limit_s:g} s")
                plan = plan_flux(problem) if run.off else plan_milp(problem, time_limit_s=limit_s)
                reached.append(distance_percent(plan))
                rows.append(_row(moves, "MILP", limit_s, reached[-1]))
                rows.append(_row(moves, "Flux", limit_s, flux))
            found[moves] = {"flux": flux, "first": reached[0], "last": reached[-1]}
        return FigureResult(
            rows=rows,
            checks=(
                at_most("MILP is no further from even than Flux for any number of moves, after "
                        "the shortest time: largest ratio",
                        max(f["first"] / f["flux"] for f in found.values()), 1.0),
                at_most("it is much nearer on the whole: mean ratio",
                        float(np.mean([f["first"] / f["flux"] for f in found.values()])), 0.75,
                        decisive=True),
                at_most("it is nearly as good after the shortest time as after the longest: "
                        "greatest difference of load distances",
                        max(f["first"] - f["last"] for f in found.values()), 1.0,
                        unit="% of the mean"),
                at_most("more moves leave less distance: last to first number of moves",
                        found[_MAX_MOVES[-1]]["last"] / found[_MAX_MOVES[0]]["last"], 1.0),
            ),
        )  # fmt: skip

    return Figure(
        title=f"Solver time against quality, {executors} nodes and {key_groups} key groups",
        claim="The MILP is consistently better than Flux after a few seconds, from which on it "
        "improves only slightly.",
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
                x_label="time limit of the solver (s)",
                y_label="load distance (% of the mean)",
            )
            for moves in _MAX_MOVES
        ),
        mechanism="the MILP (Flux plans in its place)",
        reason="Half a second, the shortest time of a quick run, may be too short on a large "
        "cluster with few migrations; then Flux's plan is as good or slightly better.",
    )


def _row(moves: int, planner: str, seconds: float, distance: float) -> Row:
    return {
        "moves": f"{moves} migrations",
        "planner": planner,
        "seconds": seconds,
        "distance_percent": distance,
    }

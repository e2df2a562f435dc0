"""Workload of paper 2 §5.2: 20 executors, 300 key groups whose loads drift from period to period.

The paper's Real Job 1 counts edits of Wikipedia by three operators of a hundred key groups each.
Here the loads of 300 key groups drift: every period each changes by about 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import metrics
from godwit.planning.allocation.milp import plan_milp
from godwit.planning.baselines import plan_flux, plan_potc
from godwit.planning.problem import Limits, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.cli.reproduce.figure import FigureRun, Row
    from godwit.planning.solution import Solution

EXECUTORS, KEY_GROUPS = 20, 300
SETTLED = 5
"""Periods that are left out of checks: all start from round-robin placement."""
WORKLOAD = (
    "20 executors and 300 key groups, as the paper's job on edits of Wikipedia; loads drift by 5 % "
    "a period, since the job itself is not written yet."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A planner and the number of key groups that it may move in a period."""

    planner: str
    max_moves: int | None


def play(systems: Mapping[str, System], run: FigureRun) -> list[Row]:
    """Let every system balance the same drifting loads; one row for a system and a period."""
    return [
        {"system": name, **row} for name, system in systems.items() for row in _follow(system, run)
    ]


@cache  # several figures show the same runs
def _follow(system: System, run: FigureRun) -> tuple[Row, ...]:
    """Let a system balance drifting loads; one row for a period."""
    rng = run.rng(7)
    load = rng.uniform(0.5, 1.5, KEY_GROUPS)
    current = np.arange(KEY_GROUPS, dtype=np.int32) % EXECUTORS
    rows: list[Row] = []
    for period in range(1, run.pick(30, 60) + 1):
        run.progress(f"{system.planner}, period {period}")
        load = load * np.exp(rng.normal(0, 0.05, KEY_GROUPS))
        problem = Problem(
            executors=tuple(f"e{i}" for i in range(EXECUTORS)),
            load=load,
            state_bytes=np.full(KEY_GROUPS, 1e6),
            current=current,
            limits=Limits(max_moves=system.max_moves),
        )
        solution = _plan(system.planner, problem)
        rows.append(
            {
                "period": period,
                "distance_percent": 100 * solution.load_distance / metrics.mean_index(problem),
                "moves": solution.num_moves,
            }
        )
        current = solution.assignment
    return tuple(rows)


def _plan(planner: str, problem: Problem) -> Solution:
    if planner == "flux":
        return plan_flux(problem)
    if planner == "potc":
        # Windows of a minute are merged in every period, more of them where more was counted.
        return plan_potc(problem, merge_load=0.3)
    return plan_milp(problem, time_limit_s=2.0)


def column(rows: list[Row], system: str, name: str) -> np.ndarray:
    """One column of a system's rows, without the periods until it has settled."""
    mine = [row for row in rows if row["system"] == system]
    return np.array([float(row[name]) for row in mine[SETTLED:]])

"""Workload of paper 2 §5.3: a chain of operators, some of whose key groups talk one to one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper2.solver import distance_percent
from godwit.planning.allocation.albic import plan_albic
from godwit.planning.allocation.cola import plan_cola
from godwit.planning.allocation.milp import plan_milp
from godwit.planning.problem import Limits, Problem, Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.cli.reproduce.figure import FigureRun, Row
    from godwit.planning.solution import Solution

PER_EXECUTOR = 20


def chain(operators: int, per_operator: int, share: float, rng: np.random.Generator) -> Traffic:
    """Build the traffic of a chain of operators in which `share` of the key groups talk 1-1."""
    source, target, rate = [], [], []
    for o in range(operators - 1):
        partner = (o + 1) * per_operator + rng.permutation(per_operator)
        for j, one_to_one in enumerate((rng.random(per_operator) < share).tolist()):
            receivers = (
                [int(partner[j])]
                if one_to_one
                else list(range((o + 1) * per_operator, (o + 2) * per_operator))
            )
            source += [o * per_operator + j] * len(receivers)
            target += receivers
            rate += [100.0 / len(receivers)] * len(receivers)
    return Traffic(
        source=np.array(source, np.int32), target=np.array(target, np.int32), rate=np.array(rate)
    )


def synthetic_chain(executors: int, share: float, rng: np.random.Generator) -> Problem:
    """Set up paper 2 §5.3: half as many operators as executors, 20 key groups each."""
    operators, key_groups = executors // 2, PER_EXECUTOR * executors
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=2.5 * (1 + rng.uniform(-0.05, 0.05, key_groups)),
        state_bytes=np.full(key_groups, 1e6),
        current=rng.permutation(np.repeat(np.arange(executors, dtype=np.int32), PER_EXECUTOR)),
        traffic=chain(operators, key_groups // operators, share, rng),
        operators=tuple(f"o{i}" for i in range(operators)),
        operator_of=np.repeat(np.arange(operators, dtype=np.int32), key_groups // operators),
        limits=Limits(max_moves=20),
    )


def play(problem: Problem, run: FigureRun, *, periods: int, cola_every: int = 1) -> list[Row]:
    """Let ALBIC and COLA plan while loads of a fifth of the executors change by up to 2 %.

    COLA plans from scratch in every `cola_every` periods and in the last. Switched off, ALBIC is
    the MILP that it narrows, which does not look at traffic.
    """
    rng = run.rng(11)
    load = problem.load[:, 0].copy()
    albic, cola = problem.current, problem.current
    rows: list[Row] = []
    limit_s = run.pick(0.3, 1.0)
    for period in range(1, periods + 1):
        run.progress(f"period {period} of {periods}")
        executors = problem.num_executors
        for e in rng.choice(executors, executors // 5, replace=False).tolist():
            load[problem.current == e] *= 1 + rng.uniform(-0.02, 0.02)
        asked = replace(problem, load=load, current=albic)
        adaptive = plan_milp if run.off else plan_albic
        plan = adaptive(asked, time_limit_s=limit_s)
        rows.append(_row("ALBIC", period, plan))
        albic = plan.assignment
        if period % cola_every == 0 or period == periods:
            plan = plan_cola(replace(asked, current=cola, limits=Limits()))
            rows.append(_row("COLA", period, plan))
            cola = plan.assignment
    return rows


def _row(system: str, period: int, plan: Solution) -> Row:
    return {
        "system": system,
        "period": period,
        "collocation_percent": 100 * plan.collocation_factor,
        "distance_percent": distance_percent(plan),
        "moves": plan.num_moves,
    }


def last(rows: Sequence[Row], system: str, column: str) -> float:
    """Figure of a system's last period."""
    return float([row for row in rows if row["system"] == system][-1][column])


def mean(rows: Sequence[Row], system: str, column: str) -> float:
    """Mean of a system's figure over its periods."""
    return float(np.mean([float(row[column]) for row in rows if row["system"] == system]))

"""Paper 2 §5.3, figures 10 and 11: ALBIC and COLA on a chain of operators that talk one to one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.allocation.milp import plan_milp
from godwit.placement.problem import Limits, Problem, Traffic
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)
from godwit_lab.experiments.paper2.solver import distance_percent
from godwit_lab.planners.allocation.albic import plan_albic
from godwit_lab.planners.allocation.cola import plan_cola

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.placement.solution import Solution
    from godwit_lab.cli.reproduce.figure import Data


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
        plan = adaptive(asked, time_limit_s=limit_s, clock=time.process_time)
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


def _last(rows: Sequence[Row], system: str) -> Row:
    """Return a system's last period, with its mean load distance."""
    own = [row for row in rows if row["system"] == system]
    distance = float(np.mean([float(row["distance_percent"]) for row in own]))
    return {**own[-1], "distance_percent": distance}


def _compared(column: str, by: str) -> Callable[[Data], np.ndarray]:
    """Return a getter of a column of ALBIC over that of COLA, by setting."""

    def number(data: Data) -> np.ndarray:
        cola = np.array([data.one(column, system="COLA", **{by: v}) for v in data.values(by)])
        albic = [data.one(column, system="ALBIC", **{by: v}) for v in data.values(by)]
        return np.asarray(np.array(albic) / np.maximum(cola, 1e-9))

    return number


def _lead(data: Data) -> np.ndarray:
    """Return the percentage points of collocation that ALBIC has more than COLA, by share."""
    albic, cola = (data.column("collocation_percent", system=n) for n in ("ALBIC", "COLA"))
    return np.asarray(albic - cola)


@figure(
    title="Collocation of communicating key groups",
    clauses=(
        at_most("ALBIC has a smaller load distance than COLA", "largest ratio",
                lambda data: _compared("distance_percent", "share_percent")(data).max(), 0.999),
        at_least("up to ten percentage points more collocation", "largest difference",
                 lambda data: _lead(data).max(), 5.0, unit="percentage points", paper=10.0),
        at_least("at every collocation that can be had", "smallest difference where there is some",
                 lambda data: _lead(data)[1:].min(), 0.0, unit="percentage points"),
        at_least("most of what can be collocated is", "where all talk one to one",
                 lambda data: data.column("collocation_percent", system="ALBIC")[-1], 50.0,
                 unit="%", decisive=True, beyond=True),
    ),
    workload="The paper's: 40 executors (20 if quick), 20 key groups each, a chain of operators; "
    "20 migrations a period for ALBIC from a random start, COLA plans the last from scratch.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="share_percent", y="collocation_percent", by="system",
              x_label="key groups that talk one to one (%)", y_label="collocated traffic (%)"),
        Chart(x="share_percent", y="distance_percent", by="system",
              x_label="key groups that talk one to one (%)",
              y_label="load distance (% of the mean)"),
    ),
    mechanism="the look at traffic (the MILP alone)",
    reason="A quick run ends before ALBIC has moved everything that it would.",
)  # fmt: skip
def figure10(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    executors, periods = run.pick((20, 40), (40, 160))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    for share in shares:
        problem = synthetic_chain(executors, share, run.rng(5))
        told = play(problem, run, periods=periods, cola_every=periods)
        rows += [{"share_percent": 100 * share, **_last(told, n)} for n in ("ALBIC", "COLA")]
    return FigureResult(rows=rows)


@figure(
    title="Collocation by the size of the cluster",
    clauses=(
        at_most("ALBIC significantly and consistently outperforms COLA in load distance for three "
                "sizes of clusters", "largest ratio",
                lambda data: _compared("distance_percent", "cluster")(data).max(), 0.9,
                decisive=True),
        at_least("and in collocation", "smallest ratio",
                 lambda data: _compared("collocation_percent", "cluster")(data).min(), 1.05),
    ),
    workload="The paper's: 20, 40 and 60 executors, 20 key groups each, half of them talking one "
    "to one.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="cluster", y="collocation_percent", by="system", kind="bars", x_label="cluster",
              y_label="collocated traffic (%)"),
        Chart(x="cluster", y="distance_percent", by="system", kind="bars", x_label="cluster",
              y_label="load distance (% of the mean)"),
    ),
    reason="A quick run ends before ALBIC has moved everything that it would.",
)  # fmt: skip
def figure11(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for executors in (20, 40, 60):
        problem = synthetic_chain(executors, 0.5, run.rng(5))
        periods = run.pick(3, 4) * executors
        told = play(problem, run, periods=periods, cola_every=periods)
        rows += [
            {"cluster": f"{executors} nodes", **_last(told, name)} for name in ("ALBIC", "COLA")
        ]
    return FigureResult(rows=rows)

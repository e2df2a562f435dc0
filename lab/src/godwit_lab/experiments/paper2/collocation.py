"""Paper 2 §5.3 and §5.4, figures 10 to 14: ALBIC and COLA on key groups that talk one to one.

Figures 10 and 11 are of a chain of operators.  The others are of Real Jobs 2 to 4 as planners see
them: key groups, traffic, loads.  Twenty workers have five key groups of every operator.  Rows keep
their key from one operator to the next where both are keyed alike (one key group talks to one), and
scatter otherwise.  The start is the worst: no two key groups that talk share an executor.  The
paper's collocation of Real Job 2 halves the load, so half of the load at the start is serialisation
here: a row that leaves its executor costs as much as its processing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.allocation.milp import plan_milp
from godwit.placement.problem import Limits, Problem, Traffic
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Figure,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    column_of,
    figure,
)
from godwit_lab.experiments.paper2.solver import distance_percent
from godwit_lab.planners.allocation.albic import plan_albic
from godwit_lab.planners.allocation.cola import plan_cola

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.placement.solution import Solution


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
    return float(column_of(rows, column, system=system)[-1])


def mean(rows: Sequence[Row], system: str, column: str) -> float:
    """Mean of a system's figure over its periods."""
    return float(column_of(rows, column, system=system).mean())


@figure(
    title="Collocation of communicating key groups",
    claim="ALBIC has a smaller load distance than COLA, and up to ten percentage points more "
    "collocation, at every collocation that can be had.",
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
    reason="A quick run ends before ALBIC has moved everything that it would, 20 key groups a "
    "period.",
)  # fmt: skip
def figure10(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    executors, periods = run.pick((20, 40), (40, 160))
    shares = run.pick((0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0))
    for share in shares:
        problem = synthetic_chain(executors, share, run.rng(5))
        told = play(problem, run, periods=periods, cola_every=periods)
        rows += [
            {
                "share_percent": 100 * share,
                "system": system,
                "collocation_percent": last(told, system, "collocation_percent"),
                "distance_percent": mean(told, system, "distance_percent"),
                "moves": last(told, system, "moves"),
            }
            for system in ("ALBIC", "COLA")
        ]
    albic, cola = (column_of(rows, "collocation_percent", system=n) for n in ("ALBIC", "COLA"))
    distances = column_of(rows, "distance_percent", system="ALBIC") / np.maximum(
        column_of(rows, "distance_percent", system="COLA"), 1e-9
    )
    return FigureResult(
        rows=rows,
        checks=(
            at_least("ALBIC collocates at least as much as COLA: least difference",
                     float((albic - cola).min()), 0.0, unit="percentage points"),
            at_least("most of what can be collocated is, where all talk one to one",
                     float(albic[-1]), 50.0, unit="%", decisive=True),
            at_most("ALBIC has the smaller load distance: largest ratio",
                    float(distances.max()), 1.0),
        ),
    )  # fmt: skip


@figure(
    title="Collocation by the size of the cluster",
    claim="ALBIC significantly and consistently outperforms COLA in load distance and collocation "
    "for three sizes of clusters.",
    workload="The paper's: 20, 40 and 60 executors, 20 key groups each, half of them talking one "
    "to one.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="cluster", y="collocation_percent", by="system", kind="bars", x_label="cluster",
              y_label="collocated traffic (%)"),
        Chart(x="cluster", y="distance_percent", by="system", kind="bars", x_label="cluster",
              y_label="load distance (% of the mean)"),
    ),
    reason="A quick run ends before ALBIC has moved everything that it would, 20 key groups a "
    "period.",
)  # fmt: skip
def figure11(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for executors in (20, 40, 60):
        problem = synthetic_chain(executors, 0.5, run.rng(5))
        periods = run.pick(3, 4) * executors
        told = play(problem, run, periods=periods, cola_every=periods)
        rows += [
            {
                "cluster": f"{executors} nodes",
                "system": name,
                "collocation_percent": last(told, name, "collocation_percent"),
                "distance_percent": mean(told, name, "distance_percent"),
            }
            for name in ("ALBIC", "COLA")
        ]
    ratios, distances = (
        column_of(rows, name, system="ALBIC")
        / np.maximum(column_of(rows, name, system="COLA"), 1e-9)
        for name in ("collocation_percent", "distance_percent")
    )
    return FigureResult(
        rows=rows,
        checks=(
            at_least("ALBIC collocates more than COLA on every cluster: smallest ratio",
                     float(ratios.min()), 1.0, decisive=True),
            at_most("ALBIC has the smaller load distance on every cluster: largest ratio",
                    float(distances.max()), 1.0),
        ),
    )  # fmt: skip


_WORKERS, _PER_WORKER = 20, 5
_PER_OPERATOR = _WORKERS * _PER_WORKER
_MOVES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Operators, and the streams between them."""

    operators: tuple[str, ...]
    streams: tuple[tuple[int, int, bool, float], ...]  # from, to, keyed alike, rows a second


def problem_of(job: Job, rng: np.random.Generator) -> Problem:
    """Lay a job out on twenty workers, so that nothing is collocated."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    group = np.arange(_PER_OPERATOR)
    for source, target, alike, rate in job.streams:
        first, second = source * _PER_OPERATOR, target * _PER_OPERATOR
        if alike:
            share = rng.uniform(0.8, 1.2, _PER_OPERATOR)
            parts.append((first + group, second + group, rate * share / share.sum()))
        else:
            pairs = np.full(_PER_OPERATOR**2, rate / _PER_OPERATOR**2)
            parts.append(
                (first + group.repeat(_PER_OPERATOR), second + np.tile(group, _PER_OPERATOR), pairs)
            )
    operators = len(job.operators)
    workers = np.concatenate([(group + at) % _WORKERS for at in range(operators)])
    total = operators * _PER_OPERATOR
    return Problem(
        executors=tuple(f"e{i}" for i in range(_WORKERS)),
        load=rng.uniform(0.8, 1.2, total),
        state_bytes=np.full(total, 1e6),
        current=workers.astype(np.int32),
        traffic=Traffic(
            source=np.concatenate([p[0] for p in parts]).astype(np.int32),
            target=np.concatenate([p[1] for p in parts]).astype(np.int32),
            rate=np.concatenate([p[2] for p in parts]),
        ),
        operators=job.operators,
        operator_of=np.arange(total, dtype=np.int32) // _PER_OPERATOR,
        limits=Limits(max_moves=_MOVES),
    )


def job_figure(job: Job, *, title: str, claim: str, workload: str, most_percent: float) -> Figure:
    """Make the figure of a job; `most_percent` of its traffic can be collocated in the paper."""

    def run(run: FigureRun) -> FigureResult:
        problem = problem_of(job, run.rng(2))
        periods = run.pick(70, 140)
        rows = [
            {**row, "load_index_percent": 100 - float(row["collocation_percent"]) / 2}
            for row in play(problem, run, periods=periods, cola_every=1)
        ]
        reached = last(rows, "ALBIC", "collocation_percent")
        best = last(rows, "COLA", "collocation_percent")
        return FigureResult(
            rows=rows,
            checks=(
                at_least("ALBIC gradually reaches what COLA reaches at once: ratio",
                         reached / max(best, 1e-9), 0.9, decisive=True),
                at_most("ALBIC has the smaller load distance: ratio of the means",
                        mean(rows, "ALBIC", "distance_percent")
                        / max(mean(rows, "COLA", "distance_percent"), 1e-9), 1.0),
                at_most("ALBIC moves 10 key groups a period: most",
                        float(column_of(rows, "moves", system="ALBIC").max()), 10.0,
                        unit="migrations", paper=10.0),
                at_least("COLA moves many times more: mean over that of ALBIC",
                         mean(rows, "COLA", "moves")
                         / max(mean(rows, "ALBIC", "moves"), 1e-9), 5.0),
                at_least("collocated traffic in the end", reached, 0.9 * most_percent, unit="%",
                         paper=most_percent, measure=f"{title}: collocated traffic"),
            ),
        )  # fmt: skip

    return Figure(
        title=title,
        claim=claim,
        workload=workload + " 20 workers, 100 key groups an operator, 10 migrations a period.",
        place=RunsOn.PLANNERS,
        run=run,
        charts=tuple(
            Chart(x="period", y=y, by="system", x_label="period", y_label=label)
            for y, label in (
                ("collocation_percent", "collocated traffic (%)"),
                ("distance_percent", "load distance (% of the mean)"),
                ("load_index_percent", "load index (%)"),
                ("moves", "migrations"),
            )
        ),
        mechanism="the look at traffic (the MILP alone)",
    )


figure12 = job_figure(
    Job(operators=("extract", "by airplane"), streams=((0, 1, True, 1000.0),)),
    title="Real Job 2",
    claim="ALBIC gradually reaches the full collocation that COLA has at once, halves the load, "
    "has the lower load distance, and migrates 10 key groups a period, COLA nearly 200.",
    workload="Traffic and loads of the paper's job (delays summed by airplane and year); the load "
    "index follows from the collocation.",
    most_percent=100.0,
)


figure13 = job_figure(
    Job(
        operators=("extract", "by airplane", "by route"),
        streams=((0, 1, True, 1000.0), (0, 2, False, 1000.0)),
    ),
    title="Real Job 3",
    claim="The trend is that of Real Job 2, with half of its collocation, since delays by route "
    "cannot be collocated with delays by airplane.",
    workload="Traffic and loads of the paper's job, with delays by route besides; the load index "
    "follows from the collocation.",
    most_percent=50.0,
)


figure14 = job_figure(
    Job(
        operators=(
            "extract", "by airplane", "by route", "weather", "rain score", "courier",
            "store airplanes", "store couriers",
        ),
        streams=(
            (0, 1, True, 1000.0),
            (0, 2, False, 1000.0),
            (1, 6, True, 250.0),
            (3, 4, True, 100.0),
            (4, 5, False, 100.0),
            (2, 5, True, 500.0),
            (5, 7, True, 100.0),
        ),
    ),
    title="Real Job 4",
    claim="COLA reaches a collocation of 61 %; ALBIC gradually reaches a similar one and keeps a "
    "low load distance, with 10 migrations a period.",
    workload="Operators of the paper's job (delays, routes joined with weather, couriers, stores); "
    "rates between them are chosen, as the paper does not give them.",
    most_percent=61.0,
)  # fmt: skip

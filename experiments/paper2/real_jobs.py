"""Real Jobs 2 to 4 of paper 2 §5.4 as planners see them: key groups, traffic, loads.

Twenty workers have five key groups of every operator.  Rows keep their key from one operator to the
next where both are keyed alike (one key group talks to one), and scatter otherwise.  The start is
the worst: no two key groups that talk share an executor.  The paper's collocation of Real Job 2
halves the load, so half of the load at the start is serialisation here: a row that leaves its
executor costs as much as its processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.paper2.collocation import last, mean, play
from godwit.cli.reproduce.figure import Chart, Figure, FigureResult, RunsOn, at_least, at_most
from godwit.planning.problem import Limits, Problem, Traffic

if TYPE_CHECKING:
    from godwit.cli.reproduce.figure import FigureRun

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
                        max(float(r["moves"]) for r in rows if r["system"] == "ALBIC"), 10.0,
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

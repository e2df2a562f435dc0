"""Paper 3, figures 14 and 15: random jobs (§7), and the three scores of fusion on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.control.planners.fusion import FusionProblem, plan_fusion
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.planners.fusion import Score
    from godwit_lab.cli.reproduce.figure import Data


OPERATORS = (50, 100, 150)
SCORES: dict[str, Score] = {
    "baseline": "baseline",
    "score = PA": "attributes",
    "score = COMM": "traffic",
}
WORKLOAD = (
    "The paper's: 500 random jobs (40 if quick) of 50, 100 and 150 operators with 30 partition "
    "attributes; components may form cycles, which the paper does not exclude."
)
_ATTRIBUTES = 30


def random_job(operators: int, rng: np.random.Generator) -> FusionProblem:
    """Draw a job: random attributes, levels, and rows sent to the next level only."""
    size, attributes = _ATTRIBUTES // 2, []
    for _ in range(operators):
        size = int(np.clip(size + rng.integers(-2, 3), 1, _ATTRIBUTES))
        chosen = rng.choice(_ATTRIBUTES, size, replace=False)
        attributes.append(frozenset(f"a{i}" for i in chosen))
    levels = int(rng.integers(3, int(0.75 * operators) + 1))
    level = np.arange(operators) * levels // operators
    source, target, rate = [], [], []
    for sender in range(operators):
        left = 1000.0
        for receiver in np.flatnonzero(level == level[sender] + 1).tolist():
            sent = left * rng.random() * rng.random()
            left -= sent
            source.append(sender)
            target.append(receiver)
            rate.append(sent)
    return FusionProblem(
        operators=tuple(f"o{i}" for i in range(operators)),
        attributes=tuple(attributes),
        source=np.array(source, np.int32),
        target=np.array(target, np.int32),
        rate=np.array(rate),
    )


def fuse(run: FigureRun) -> list[Row]:
    """Fuse random jobs by every score; means for every number of operators.

    Switched off, the score by communication is the baseline.
    """
    rows: list[Row] = []
    for operators in OPERATORS:
        jobs = [random_job(operators, run.rng(operators, at)) for at in range(run.pick(40, 500))]
        for name, score in SCORES.items():
            run.progress(f"{operators} operators, {name}")
            used: Score = "baseline" if run.off and score == "traffic" else score
            plans = [
                plan_fusion(job, score=used, acyclic=False, rng=run.rng(operators, at, 1))
                for at, job in enumerate(jobs)
            ]
            rows.append(
                {
                    "operators": operators,
                    "score": name,
                    "components": float(np.mean([p.num_components for p in plans])),
                    "between_percent": float(100 * np.mean([p.communication for p in plans])),
                }
            )
    return rows


def ratios(column: str, score: str, baseline: str) -> Callable[[Data], list[float]]:
    """Return a getter of the ratios of two scores' figures for every number of operators."""

    def number(data: Data) -> list[float]:
        measured = data.table("score", "operators", column=column)
        return [measured[score, n] / max(measured[baseline, n], 1e-9) for n in OPERATORS]

    return number


_BASELINE, _PA, _COMM = SCORES


@figure(
    title="Number of components after fusion",
    clauses=(
        at_least("the score that minimises communication forms the largest number of components",
                 "smallest ratio to PA", lambda data: min(ratios("components", _COMM, _PA)(data)),
                 1.0, decisive=True),
        at_least("the score that minimises communication forms the largest number of components",
                 "smallest ratio to the baseline",
                 lambda data: min(ratios("components", _COMM, _BASELINE)(data)), 1.0),
        at_most("the score by attributes minimises it", "largest ratio of PA to the baseline",
                lambda data: max(ratios("components", _PA, _BASELINE)(data)), 1.0),
    ),
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="operators", y="components", by="score", x_label="operators",
              y_label="components, mean"),
    ),
    reason="COMM forms more components than PA, but the baseline leaves more than either: its "
    "first large component soon shares no attribute with its neighbours.",
)  # fmt: skip
def figure14(run: FigureRun) -> FigureResult:
    return FigureResult(rows=fuse(run))


@figure(
    title="Communication between components after fusion",
    clauses=tuple(
        at_most("the score that minimises communication leaves the least of it between components",
                f"largest ratio to {name}",
                lambda data, other=other: max(ratios("between_percent", _COMM, other)(data)),
                0.999, decisive=True)
        for name, other in (("PA", _PA), ("the baseline", _BASELINE))
    ),
    workload=WORKLOAD,
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="operators", y="between_percent", by="score", x_label="operators",
              y_label="rows between components (%)"),
    ),
    mechanism="the score by communication (the baseline in its place)",
)  # fmt: skip
def figure15(run: FigureRun) -> FigureResult:
    return FigureResult(rows=fuse(run))

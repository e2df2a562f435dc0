"""A figure of a paper as a value: its claim, how it is run, and checks that can fail.

A script of ``experiments/paper1`` has the figures of one experiment: functions named as the figures
and decorated by `figure`.  Each returns rows (the data), and checks of the shape that the paper
shows.  Every check compares two numbers, so that it can fail and the page can show by how much;
*decisive* ones are what it is there for.

Invariant: a verdict follows from the checks alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

Row = Mapping[str, float | str]
"""One row of a figure's data, by column."""
Value = TypeVar("Value")


class RunsOn(StrEnum):
    """Engine that a figure runs on."""

    SPARK = "on Spark"
    PROCESS = "in one process"
    SIMULATED = "simulated"
    PLANNERS = "planners only"


class Verdict(StrEnum):
    """Agreement of a figure with its paper."""

    AGREES = "agrees"
    PARTLY = "agrees partly"
    DISAGREES = "does not agree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison of the paper's figure with the result here."""

    claim: str
    expected: str  # bound that it must keep, such as "≤ 2 ms"
    ours: float | None  # None: it could not be computed, and does not hold
    holds: bool
    paper: float | None = None  # number that the paper gives
    unit: str = ""
    decisive: bool = False  # without it the figure does not agree, whatever else holds
    measure: str = ""  # name in the table of numbers that the papers give; empty: not in it

    @property
    def ratio(self) -> float | None:
        """Our number over the paper's; ``None`` without both."""
        if self.paper is None or self.ours is None or self.paper == 0:
            return None
        return self.ours / self.paper


class _About(TypedDict, total=False):
    """Fields of a check that its numbers do not tell."""

    unit: str
    paper: float | None
    decisive: bool
    measure: str


def at_most(claim: str, ours: float, bound: float, **about: Unpack[_About]) -> Check:
    """Return the check that our number is at most a bound; `about`: further fields."""
    return _bounded("≤", claim, ours, bound, holds=ours <= bound, **about)


def at_least(claim: str, ours: float, bound: float, **about: Unpack[_About]) -> Check:
    """Return the check that our number is at least a bound; `about`: further fields."""
    return _bounded("≥", claim, ours, bound, holds=ours >= bound, **about)


def _bounded(
    sign: str, claim: str, ours: float, bound: float, *, holds: bool, **about: Unpack[_About]
) -> Check:
    """Return the check of our number against a bound; `sign`: "≤" or "≥"."""
    return Check(
        claim=claim,
        expected=f"{sign} {bound:.4g} {about.get('unit', '')}".rstrip(),
        ours=float(ours) if math.isfinite(ours) else None,
        holds=bool(holds),
        **about,
    )


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation: 1 if `y` rises with `x`, -1 if it falls.

    0 if one of them is constant.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [10.0, 30.0, 90.0])
    1.0
    """
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (x, y)]
    spread = float(ranks[0].std() * ranks[1].std())
    if not spread > 0:
        return 0.0
    product = (ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())
    return float(round(product.mean() / spread, 12))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel of a figure: a column against another, a line or bar for every series."""

    x: str  # columns of the data
    y: str
    x_label: str  # with its unit
    y_label: str
    by: str = ""  # column whose values are the series; empty: one series
    only: tuple[str, str] | None = None  # column and the value that rows of this panel have
    title: str = ""
    kind: Literal["lines", "steps", "bars"] = "lines"
    log_x: bool = False
    log_y: bool = False
    paper: float | None = None  # a number of the paper's, drawn as a level line


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureResult:
    """Data and checks of one run of a figure."""

    rows: Sequence[Row]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()  # what a reader must know of this run, such as generated data

    @property
    def verdict(self) -> Verdict:
        """Verdict of the checks: agrees with the paper, partly, or no."""
        return verdict_of(self.checks)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Return the verdict: agrees if all checks hold, no if a decisive one fails or none holds.

    Otherwise partly.
    """
    if checks and all(check.holds for check in checks):
        return Verdict.AGREES
    decisive = any(check.decisive and not check.holds for check in checks)
    if decisive or not any(check.holds for check in checks):
        return Verdict.DISAGREES
    return Verdict.PARTLY


def _show_no_progress(_text: str) -> None:
    """Ignore a text about progress; the default of `FigureRun`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRun:
    """Settings of one run of a figure."""

    quick: bool = False
    seed: int = 0
    off: bool = False  # whether the mechanism that the figure is about is switched off
    data: Path | None = None  # directory with data sets of the user's
    progress: Callable[[str], None] = field(default=_show_no_progress)

    def rng(self, *stream: int) -> np.random.Generator:
        """Return a random number generator, the same for equal seeds and streams."""
        return np.random.default_rng([self.seed, *stream])

    def pick(self, quick: Value, full: Value) -> Value:
        """Return `quick` in a quick run, else `full`."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure or table of a paper."""

    title: str
    claim: str  # of the paper, one sentence
    workload: str  # of the run here, and where it differs from the paper's
    place: RunsOn
    run: Callable[[FigureRun], FigureResult]
    charts: tuple[Chart, ...]  # panels, in rows of at most two
    mechanism: str = ""  # what ``--off`` switches off; empty: there is no such switch
    # where ours cannot be as the paper's, and why: shown beside the verdict
    reason: str = ""


def figure(**about: Any) -> Callable[[Callable[[FigureRun], FigureResult]], Figure]:
    """Return a decorator that makes a `Figure` of the function that runs it.

    `about`: its other fields.
    """
    return lambda run: Figure(run=run, **about)


def sweep(
    run: FigureRun, measure: Callable[..., Mapping[str, float | str]], **values: Iterable[Any]
) -> list[Row]:
    """Call `measure` with every combination of `values`, by keyword; return a row for each.

    A row has the combination, and what `measure` returned; the last of `values` changes fastest.
    """
    rows: list[Row] = []
    for combination in product(*values.values()):
        values_now = dict(zip(values, combination, strict=True))
        run.progress(", ".join(f"{name} {value}" for name, value in values_now.items()))
        rows.append({**values_now, **measure(**values_now)})
    return rows


def look_up(rows: Iterable[Row], *keys: str, column: str) -> dict[Any, float]:
    """Return value of the column `keys` (several: a tuple) → number in `column`."""
    key_of = itemgetter(*keys)
    return {key_of(row): float(row[column]) for row in rows}


def column_of(rows: Iterable[Row], name: str, **where: float | str) -> np.ndarray:
    """Return a column of numbers, of the rows that have the values `where` in other columns."""
    chosen = (row for row in rows if where.items() <= row.items())
    return np.array([float(row[name]) for row in chosen])

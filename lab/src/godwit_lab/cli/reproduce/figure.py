"""A figure of a paper as a value: the clauses of its claim, how it is run, and what decides each.

A script of ``experiments/paper1`` has the figures of one experiment: functions named as the figures
and decorated by `figure`.  Each returns data.  What the paper says is a list of clauses: each has a
number that decides it, computed from the figure's own data and compared with a bound, or stands as
not checked, with the reason.  *Decisive* ones are what the figure is there for.

Invariant: the claim that a reader sees is that of the clauses, and a verdict follows from them and
the data alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

Row = Mapping[str, float | str]
"""One row of a figure's data, by column."""
Value = TypeVar("Value")
EVERY_SYSTEM_ACTS = "every system acts"
"""Words of the condition of `acts`."""
_DIGITS = 6
"""Significant digits that data are kept with."""


class RunsOn(StrEnum):
    """What runs to make a figure."""

    SPARK = "on Spark"
    PROCESS = "in one process"
    SIMULATED = "simulator"
    PLANNERS = "planners on arrays"
    WORKLOAD = "a workload only"


class Verdict(StrEnum):
    """Agreement of a figure with its paper."""

    AGREES = "agrees"
    PARTLY = "agrees partly"
    DISAGREES = "does not agree"


class Data:
    """Rows of a figure, by column; every clause is decided by them alone.

    Numbers have six significant digits, so that data that were written are those that are read.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        listed = [dict(row) for row in rows]
        names = list(dict.fromkeys(name for row in listed for name in row))
        self._columns = {name: [_kept(row.get(name)) for row in listed] for name in names}
        self._length = len(listed)

    @property
    def columns(self) -> Mapping[str, Sequence[float | str | None]]:
        """Values by column; ``None`` where a row has none, or a number that is not finite."""
        return self._columns

    @property
    def rows(self) -> list[Row]:
        """The rows, without what they do not have."""
        return [
            {
                name: value
                for name, values in self._columns.items()
                if (value := values[place]) is not None
            }
            for place in range(self._length)
        ]

    def column(self, name: str, **where: float | str) -> np.ndarray:
        """Return the numbers of a column, of the rows that have the values `where` in others."""
        values = [self._columns[name][place] for place in self._where(where)]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def one(self, name: str, **where: float | str) -> float:
        """Return the number of the only row that has the values `where`; NaN if there is none."""
        chosen = self.column(name, **where)
        return float(chosen[0]) if len(chosen) == 1 else math.nan

    def values(self, name: str, **where: float | str) -> tuple[Any, ...]:
        """Return the different values of a column, in order, of the rows that have `where`."""
        chosen = (self._columns[name][place] for place in self._where(where))
        return tuple(dict.fromkeys(value for value in chosen if value is not None))

    def table(self, *keys: str, column: str, **where: float | str) -> dict[Any, float]:
        """Return value of the column `keys` (several: a tuple) → number in `column`."""
        chosen = {}
        for place in self._where(where):
            key = tuple(self._columns[name][place] for name in keys)
            value = self._columns[column][place]
            if value is not None:
                chosen[key if len(keys) > 1 else key[0]] = float(value)
        return chosen

    def _where(self, where: Mapping[str, float | str]) -> list[int]:
        """Return the positions of the rows that have some values."""
        columns = [(self._columns[name], value) for name, value in where.items()]
        return [
            place
            for place in range(self._length)
            if all(column[place] == value for column, value in columns)
        ]


def _kept(value: float | str | None) -> float | str | None:
    """Return a value as it is kept: a number with few digits, ``None`` if it is not finite."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{float(value):.{_DIGITS}g}") if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One clause of what the paper says about a figure, and what decides it."""

    says: str  # the paper's; several clauses of the same words are one sentence of the claim
    what: str = ""  # number that decides it
    number: Callable[..., Any] | None = None  # of `Data`; None: nothing decides it
    bound: float = 0.0
    sign: Literal["≤", "≥"] = "≤"
    unchecked: str = ""  # why nothing decides it
    unit: str = ""
    paper: float | None = None  # number that the paper gives
    decisive: bool = False  # without it the figure does not agree, whatever else holds
    beyond: bool = False  # not the paper's: something of Godwit's that must hold besides

    def check(self, data: Data) -> Check:
        """Decide the clause by a figure's data."""
        text = f"{self.says}: {self.what}" if self.what else self.says
        if self.number is None:
            return Check(claim=text, decisive=self.decisive, unchecked=self.unchecked)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, about nothing
                ours = float(self.number(data))
        except (ArithmeticError, LookupError, ValueError):
            ours = math.nan  # the data that it is about are missing
        return Check(
            claim=text,
            expected=f"{self.sign} {self.bound:.4g} {self.unit}".rstrip(),
            ours=ours if math.isfinite(ours) else None,
            holds=math.isfinite(ours)
            and bool(ours <= self.bound if self.sign == "≤" else ours >= self.bound),
            paper=self.paper,
            unit=self.unit,
            decisive=self.decisive,
        )


class _About(TypedDict, total=False):
    """Fields of a clause that its numbers do not tell."""

    unit: str
    paper: float | None
    decisive: bool
    beyond: bool


def at_most(
    says: str, what: str, number: Callable[..., Any], bound: float, **about: Unpack[_About]
) -> Clause:
    """Return the clause that our number is at most a bound; `about`: further fields."""
    return Clause(says=says, what=what, number=number, bound=bound, sign="≤", **about)


def at_least(
    says: str, what: str, number: Callable[..., Any], bound: float, **about: Unpack[_About]
) -> Clause:
    """Return the clause that our number is at least a bound; `about`: further fields."""
    return Clause(says=says, what=what, number=number, bound=bound, sign="≥", **about)


def unchecked(says: str, reason: str) -> Clause:
    """Return a clause that nothing decides here, with the reason; the figure cannot agree."""
    return Clause(says=says, unchecked=reason)


def acts(names: Sequence[str], *, by: str, column: str = "moves", **where: float | str) -> Clause:
    """Return the condition that every system that is compared did something.

    Where one of `names`, values of the column `by`, has nothing in `column` in the rows that have
    the values `where`, a comparison says nothing about it, and the figure does not agree.
    """
    here = "".join(f", {name} {value}" for name, value in where.items())
    return at_least(
        EVERY_SYSTEM_ACTS,
        f"fewest {column} of {', '.join(names)}{here}",
        lambda data: min(
            float(np.nansum(data.column(column, **{by: name, **where}))) for name in names
        ),
        1.0,
        decisive=True,
        beyond=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A clause that was decided, or stands as not checked."""

    claim: str
    expected: str = ""  # bound that it must keep, such as "≤ 2 ms"
    ours: float | None = None  # None: it could not be computed, and does not hold
    holds: bool = False
    paper: float | None = None
    unit: str = ""
    decisive: bool = False
    unchecked: str = ""

    @property
    def ratio(self) -> float | None:
        """Our number over the paper's; ``None`` without both."""
        if self.paper is None or self.ours is None or self.paper == 0:
            return None
        return self.ours / self.paper

    @property
    def outcome(self) -> str:
        """Outcome in a word or two."""
        return "not checked" if self.unchecked else "yes" if self.holds else "NO"


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Return the verdict: agrees if all clauses hold, and none stands as not checked.

    No, if a decisive one fails or none holds; otherwise partly.
    """
    decisive = any(check.decisive and not check.holds for check in checks)
    if decisive or not any(check.holds for check in checks):
        return Verdict.DISAGREES
    return Verdict.AGREES if all(check.holds for check in checks) else Verdict.PARTLY


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
    """Data of one run of a figure."""

    rows: Sequence[Row]
    notes: tuple[str, ...] = ()  # what a reader must know of this run, such as generated data


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
    clauses: tuple[Clause, ...]  # what the paper says about it, and what must hold besides
    workload: str  # of the run here, and where it differs from the paper's
    place: RunsOn
    run: Callable[[FigureRun], FigureResult]
    charts: tuple[Chart, ...]  # panels, in rows of at most two
    mechanism: str = ""  # what ``--off`` switches off; empty: there is no such switch
    # where ours cannot be as the paper's, and why: shown beside the verdict
    reason: str = ""

    @property
    def claim(self) -> str:
        """Claim of the paper: the words of its clauses."""
        said = list(dict.fromkeys(clause.says for clause in self.clauses if not clause.beyond))
        text = "; ".join(said)
        return f"{text[0].upper()}{text[1:]}."

    def judge(self, data: Data) -> tuple[Check, ...]:
        """Decide every clause by data of the figure."""
        return tuple(clause.check(data) for clause in self.clauses)


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

"""Clauses, verdicts and pictures of a figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from godwit_lab.cli.reproduce import drawing
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Clause,
    Data,
    Figure,
    FigureResult,
    FigureRun,
    RunsOn,
    Verdict,
    acts,
    at_least,
    at_most,
    rank_correlation,
    unchecked,
    verdict_of,
)

if TYPE_CHECKING:
    from godwit_lab.cli.reproduce.figure import Row


NOTHING = Data([])


def clause_of(number: float, bound: float = 2, **about: Any) -> Clause:
    return at_most("it is small", "number", lambda _data: number, bound, **about)


HOLDS, FAILS = clause_of(1), clause_of(3)
DECIDES = clause_of(3, decisive=True)
LEFT_OUT = unchecked("it is beautiful", "it has no number")


@pytest.mark.parametrize(
    ("clauses", "verdict"),
    [
        ((HOLDS, HOLDS), Verdict.AGREES),
        ((HOLDS, FAILS), Verdict.PARTLY),
        ((HOLDS, LEFT_OUT), Verdict.PARTLY),
        ((HOLDS, DECIDES), Verdict.DISAGREES),
        ((FAILS, FAILS), Verdict.DISAGREES),
        ((LEFT_OUT,), Verdict.DISAGREES),
        ((), Verdict.DISAGREES),
    ],
)
def test_a_verdict_follows_from_the_clauses(clauses: tuple[Clause, ...], verdict: Verdict) -> None:
    assert verdict_of([clause.check(NOTHING) for clause in clauses]) is verdict


def test_a_number_that_could_not_be_computed_holds_nothing() -> None:
    for number in (math.nan, math.inf):
        check = clause_of(number).check(NOTHING)
        assert not check.holds
        assert check.ours is None
        assert check.ratio is None
    assert not at_least("x", "y", lambda _data: math.nan, 1).check(NOTHING).holds
    assert not at_most("x", "y", lambda data: data.one("gone"), 1).check(NOTHING).holds
    assert not at_most("x", "y", lambda _data: 1 / 0, 1).check(NOTHING).holds


def test_a_ratio_is_ours_over_the_papers() -> None:
    assert clause_of(3, 4, paper=6).check(NOTHING).ratio == 0.5
    assert clause_of(3, 4).check(NOTHING).ratio is None
    assert clause_of(3, 4, paper=0).check(NOTHING).ratio is None


def test_systems_that_did_nothing_are_not_compared() -> None:
    rows: list[Row] = [{"policy": "a", "moves": 3, "at": 1}, {"policy": "b", "moves": 0, "at": 1}]
    clause = acts(("a", "b"), by="policy")
    assert not clause.check(Data(rows)).holds
    more: list[Row] = [*rows, {"policy": "b", "moves": 1, "at": 2}]
    assert clause.check(Data(more)).holds
    assert not acts(("a", "b"), by="policy", at=1).check(Data(more)).holds
    assert verdict_of([HOLDS.check(NOTHING), clause.check(Data(rows))]) is Verdict.DISAGREES


def test_data_are_looked_up_by_the_values_of_columns() -> None:
    rows: list[Row] = [{"n": n, "who": who, "ms": n / 3} for n in (1, 2) for who in ("us", "them")]
    rows.append({"n": 3, "ms": math.nan})
    data = Data(rows)
    assert data.column("ms", who="us").tolist() == [0.333333, 0.666667]
    assert data.one("ms", who="us", n=2) == 0.666667
    assert math.isnan(data.one("ms", who="us"))
    assert data.values("who") == ("us", "them")
    assert data.table("who", "n", column="ms")["them", 1] == 0.333333
    assert data.table("n", column="ms", who="us") == {1: 0.333333, 2: 0.666667}
    assert Data(data.rows).columns == data.columns


def test_rank_correlation_knows_trends_ties_and_constants() -> None:
    assert rank_correlation([1, 2, 3, 4], [1, 4, 9, 16]) == 1
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert 0 < rank_correlation([1, 2, 3, 4], [1, 1, 2, 2]) < 1
    assert rank_correlation([1, 2, 3], [5, 5, 5]) == 0


def test_equal_seeds_and_streams_draw_the_same() -> None:
    drawn = [FigureRun(seed=1).rng(2).random(), FigureRun(seed=1).rng(2).random()]
    assert drawn[0] == drawn[1] != FigureRun(seed=1).rng(3).random()
    assert FigureRun(quick=True).pick(1, 2) == 1
    assert FigureRun().pick(1, 2) == 2


@pytest.mark.parametrize("kind", ["lines", "steps", "bars"])
def test_a_picture_has_a_panel_a_chart_with_labels_and_series(
    kind: Literal["lines", "steps", "bars"],
) -> None:
    chart = Chart(x="n", y="ms", by="who", x_label="number", y_label="time (ms)")
    rows = [{"n": n, "who": who, "ms": n * 2.0} for n in (1, 2, 4) for who in ("ours", "theirs")]
    figure = Figure(
        title="t",
        clauses=(HOLDS, clause_of(2), LEFT_OUT, replace(FAILS, says="ours", beyond=True)),
        workload="w",
        place=RunsOn.PLANNERS,
        run=lambda _run: FigureResult(rows=rows),
        charts=(
            replace(chart, kind=kind, paper=3.0),
            replace(chart, only=("who", "ours"), log_x=True, log_y=True),
            Chart(x="who", y="ms", x_label="who", y_label="time (ms)", kind="bars"),
        ),
    )
    assert figure.claim == "It is small; it is beautiful."
    axes = drawing.draw(figure, rows).axes
    assert [panel.get_ylabel() for panel in axes] == ["time (ms)"] * 3
    legend = axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"ours", "theirs", "paper"}
    assert axes[1].get_legend() is None
    assert (axes[1].get_xscale(), axes[1].get_yscale()) == ("log", "log")

"""Checks, verdicts and pictures of a figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest

from godwit_lab.cli.reproduce import drawing
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Check,
    Figure,
    FigureResult,
    FigureRun,
    RunsOn,
    Verdict,
    at_least,
    at_most,
    rank_correlation,
    verdict_of,
)

HOLDS, FAILS = at_most("a", 1, 2), at_most("b", 3, 2)
DECIDES = at_most("c", 3, 2, decisive=True)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ((HOLDS, HOLDS), Verdict.AGREES),
        ((HOLDS, FAILS), Verdict.PARTLY),
        ((HOLDS, DECIDES), Verdict.DISAGREES),
        ((FAILS, FAILS), Verdict.DISAGREES),
        ((), Verdict.DISAGREES),
    ],
)
def test_a_verdict_follows_from_the_checks(checks: tuple[Check, ...], verdict: Verdict) -> None:
    assert verdict_of(checks) is verdict


def test_a_number_that_could_not_be_computed_holds_nothing() -> None:
    for number in (math.nan, math.inf):
        check = at_most("x", number, 1)
        assert not check.holds
        assert check.ours is None
        assert check.ratio is None
    assert not at_least("x", math.nan, 1).holds


def test_a_ratio_is_ours_over_the_papers() -> None:
    assert at_most("x", 3, 4, paper=6).ratio == 0.5
    assert at_most("x", 3, 4).ratio is None
    assert at_most("x", 3, 4, paper=0).ratio is None


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
        claim="c",
        workload="w",
        place=RunsOn.PLANNERS,
        run=lambda _run: FigureResult(rows=rows, checks=(HOLDS,)),
        charts=(
            replace(chart, kind=kind, paper=3.0),
            replace(chart, only=("who", "ours"), log_x=True, log_y=True),
            Chart(x="who", y="ms", x_label="who", y_label="time (ms)", kind="bars"),
        ),
    )
    axes = drawing.draw(figure, rows).axes
    assert [panel.get_ylabel() for panel in axes] == ["time (ms)"] * 3
    legend = axes[0].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"ours", "theirs", "paper"}
    assert axes[1].get_legend() is None
    assert (axes[1].get_xscale(), axes[1].get_yscale()) == ("log", "log")

"""Moments at the ends of what a timestamp, or a datetime of Python's, can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
YEAR_250_BC = -70_000_000_000 * S


def sums(keyed: KeyedStream) -> Stream:
    return keyed.window(gw.tumbling("10 seconds")).compute(v=gw.sum("v"))


def counted(key: tuple[str], rows: Any, window: Any) -> Iterable[tuple[Any, ...]]:
    yield key[0], len(rows)


def arrivals(run: WindowedRun) -> tuple[int, int]:
    """Give the rows of the last epoch that were late, and those that were ahead."""
    found = [done.arrivals for report in run.reports for done in report.operators]
    return sum(of.late for of in found), sum(of.ahead for of in found)


def test_windows_of_antiquity_are_like_others(tmp_path: Path) -> None:
    run = WindowedRun(sums, tmp_path)
    run.epoch([("a", YEAR_250_BC + S, 1), ("a", YEAR_250_BC - S, 2)])
    run.times.end_input()
    assert run.epoch() == [
        ("a", YEAR_250_BC, YEAR_250_BC + 10 * S, 1),
        ("a", YEAR_250_BC - 10 * S, YEAR_250_BC, 2),
    ]


@pytest.mark.parametrize("window", [gw.tumbling("10 seconds"), gw.session("10 seconds")])
def test_a_function_that_cannot_be_told_its_window_is_an_error_that_says_so(
    tmp_path: Path, window: Any
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(window).process(counted, output="k string, n long"), tmp_path
    )
    run.epoch([("a", YEAR_250_BC, 1)])
    run.times.end_input()
    with pytest.raises(EpochFailedError, match="before the year 1") as caught:
        run.epoch()
    assert caught.value.remedy


@pytest.mark.parametrize("moment", [-(2**63) + 1, -(2**62)])
def test_a_row_of_before_all_time_is_late(tmp_path: Path, moment: int) -> None:
    run = WindowedRun(sums, tmp_path)
    assert run.epoch([("a", moment, 1), ("a", 5 * S, 2)]) == []
    assert arrivals(run) == (1, 0)
    run.times.end_input()
    assert run.epoch() == [("a", 0, 10 * S, 2)]


@pytest.mark.parametrize("moment", [2**63 - 1, 2**62])
def test_a_row_of_after_all_time_is_ahead_and_counted_once(tmp_path: Path, moment: int) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(gw.session("10 seconds")).compute(v=gw.sum("v")), tmp_path
    )
    assert run.epoch([("a", moment, 1), ("a", 5 * S, 2)]) == []
    assert arrivals(run) == (0, 1)

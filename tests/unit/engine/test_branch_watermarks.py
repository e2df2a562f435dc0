"""A map that computes the event time anew moves the watermark of its own branch, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.restarted import Restarted, Shift

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import Stream

S = 1_000_000
MINUTE = 60 * S
HOURS = 540 * MINUTE


def rows(*moments: int) -> list[tuple[str, int, int]]:
    return [("k", at, 1) for at in moments]


def windows(stream: Stream, name: str) -> Stream:
    return stream.key_by("k").window(gw.tumbling("1 minute"), name=name).compute(n=gw.count())


def beside(by: int, after: Any = None) -> Any:
    """Windows of a source, beside a sum, or what `after` makes, of its rows at other times."""

    def two_branches(source: Stream) -> tuple[Stream, ...]:
        shifted = source.map(Shift(by))
        other = after or (lambda s: s.key_by("k").compute(name="sum", n=gw.count()))
        return windows(source, "windows"), other(shifted)

    return two_branches


@pytest.mark.parametrize("by", [HOURS, -HOURS])
def test_a_shifted_branch_makes_no_row_of_the_source_late(tmp_path: Path, by: int) -> None:
    run = Restarted(tmp_path, beside(by))
    out = []
    for at in (0, 1, 2):
        out += run.epoch(rows=rows(at * MINUTE + HOURS))
        assert run.times.times.watermarks["rows"] == at * MINUTE + HOURS
        assert run.times.times.watermarks["rows/sum"] == at * MINUTE + HOURS + by
    run.times.end_input()
    out += run.epoch()
    assert [row[-1] for row in out] == [1, 1, 1]


def test_windows_of_a_branch_that_is_earlier_than_its_source_close(tmp_path: Path) -> None:
    run = Restarted(tmp_path, lambda source: windows(source.map(Shift(-HOURS)), "windows"))
    run.epoch(rows=rows(HOURS, HOURS + MINUTE))
    (first,) = run.epoch(rows=rows(HOURS + MINUTE))
    assert first[-1] == 1
    assert "rows" not in run.times.times.watermarks


def test_branches_behind_one_computation_share_their_watermark(tmp_path: Path) -> None:
    def filtered_branches(source: Stream) -> tuple[Stream, ...]:
        shifted = source.map(Shift(HOURS))
        return windows(shifted, "windows"), windows(shifted.map(Shift()), "filtered")

    run = Restarted(tmp_path, filtered_branches)
    assert run.compiled.watermarks == (("rows",), ("rows/windows", "rows/filtered"))
    run.epoch(rows=rows(MINUTE))
    assert set(run.times.times.watermarks.values()) == {HOURS + MINUTE}


def test_watermarks_of_branches_come_back_after_a_restart(tmp_path: Path) -> None:
    run = Restarted(tmp_path, beside(HOURS, lambda s: windows(s, "other")))
    run.epoch(rows=rows(MINUTE))
    before = dict(run.times.times.watermarks)
    assert before == {"rows": MINUTE, "rows/other": HOURS + MINUTE}

    def renamed(stream: Stream) -> Stream:
        made = stream.key_by("k").window(
            gw.tumbling("1 minute"), name=gw.types.Identity("new", formerly="other")
        )
        return made.compute(n=gw.count())

    run = Restarted(tmp_path, beside(HOURS, renamed))
    assert dict(run.times.times.watermarks) == {"rows": MINUTE, "rows/new": HOURS + MINUTE}


def test_a_branch_with_a_map_that_keeps_the_time_goes_by_its_source(tmp_path: Path) -> None:
    run = Restarted(tmp_path, beside(0, lambda s: windows(s, "filtered")))
    assert run.compiled.watermarks == (("rows",),)
    run.epoch(rows=rows(MINUTE))
    assert dict(run.times.times.watermarks) == {"rows": MINUTE}

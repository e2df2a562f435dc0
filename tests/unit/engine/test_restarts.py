"""Restarts with a changed program: changes that continue, and changes that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.restarted import Restarted, changed

import godwit as gw
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.api.streams import Stream

S = 1_000_000
ROWS = [("a", 1 * S, 1), ("b", 7 * S, 2)]


def windows(**options: Any) -> Callable[[Stream], Stream]:
    def add_windows(rows: Stream) -> Stream:
        tens = rows.key_by("k").window(gw.tumbling("10 seconds"), name="tens", **options)
        return tens.compute(v=gw.sum("v"))

    return add_windows


def note(key: tuple[str], rows: Any, state: dict[str, int]) -> None:
    for row in rows:
        rows.timers.set(row.ts + timedelta(seconds=10))


def ring(key: tuple[str], timer: Any, state: dict[str, int]) -> Any:
    yield key[0], timer.time


def timed(clock: Any) -> Callable[[Stream], Stream]:
    def add_timed_function(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            note,
            name="timed",
            state=dict,
            timers=gw.types.OnTimer(ring, clock=clock),
            output="k string, at timestamp",
        )

    return add_timed_function


def test_a_source_that_is_renamed_keeps_its_watermark(tmp_path: Path) -> None:
    run = Restarted(tmp_path, windows(), {"rows": {}})
    assert run.epoch(rows=ROWS) == []
    run = Restarted(tmp_path, windows(), {"trips": {}})
    run.times.end_input()
    assert run.epoch() == [("a", 0, 10 * S, 1), ("b", 0, 10 * S, 2)]


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (timed("event"), timed("processing"), "clock of timers was 'event' and is 'processing'"),
        (windows(), windows(output="update"), "output was 'append' and is 'update'"),
    ],
    ids=["clock of timers", "output of windows"],
)
def test_what_would_mean_something_else_is_refused_and_nothing_is_lost(
    tmp_path: Path, before: Any, after: Any, what: str
) -> None:
    expected = Restarted(tmp_path / "other", before)
    run = Restarted(tmp_path / "one", before)
    assert run.epoch(rows=ROWS) == expected.epoch(rows=ROWS)
    with pytest.raises(CheckpointMismatchError) as caught:
        Restarted(tmp_path / "one", after)
    assert what in str(caught.value.context["differences"])
    run = Restarted(tmp_path / "one", before)
    for run_ in (run, expected):
        run_.times.end_input()
    assert run.epoch() == expected.epoch()


@pytest.mark.parametrize("newest", [False, True])
def test_sides_of_a_join_that_change_places_are_refused(tmp_path: Path, newest: bool) -> None:
    def join_sides(left: Stream, right: Stream) -> Stream:
        one, other = left.key_by("k"), right.key_by("k")
        options: dict[str, Any] = {"suffix": "_r", "name": "meet"}
        if newest:
            return one.join_newest(other, **options)
        return one.join(other, between=("0 seconds", "9 seconds"), **options)

    def swapped(left: Stream, right: Stream) -> Stream:
        return join_sides(right, left)

    sources: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    Restarted(tmp_path, join_sides, sources).epoch(a=ROWS)
    with pytest.raises(CheckpointMismatchError, match="changed places"):
        Restarted(tmp_path, swapped, sources)
    run = Restarted(tmp_path, join_sides, sources)
    found = run.epoch(b=ROWS)
    run.times.end_input()
    assert len(found + run.epoch()) == len(ROWS)


@pytest.mark.parametrize("nonsense", [None, [], "text", {"form": 1}])
def test_a_description_of_state_that_makes_no_sense_is_refused(
    tmp_path: Path, nonsense: Any
) -> None:
    Restarted(tmp_path, timed("event")).epoch(rows=ROWS)

    def change(said: Any) -> None:
        said["operators"]["timed"]["states"]["state"]["type"] = nonsense

    changed(tmp_path, "flows", change)
    with pytest.raises(CorruptCheckpointError, match=r"description of state .* cannot be read"):
        Restarted(tmp_path, timed("event"))


@pytest.mark.parametrize("more", [-1, 3])
def test_a_segment_that_says_other_rows_than_it_has_is_refused(tmp_path: Path, more: int) -> None:
    Restarted(tmp_path, windows()).epoch(rows=[*ROWS, ("c", 3 * S, 3)])

    def change(said: Any) -> None:
        said["segments"][-1]["row_ends"][-1] += more

    changed(tmp_path, "commits", change)
    run = Restarted(tmp_path, windows())
    run.times.end_input()
    with pytest.raises(CorruptCheckpointError, match="rows, not"):
        run.epoch()


@pytest.mark.parametrize("of", ["watermarks", "newest"])
def test_a_record_of_a_moment_that_cannot_be_is_refused(tmp_path: Path, of: str) -> None:
    Restarted(tmp_path, windows()).epoch(rows=ROWS)

    def change(said: Any) -> None:
        said[of]["rows"] = 2**63

    changed(tmp_path, "commits", change)
    with pytest.raises(CorruptCheckpointError, match=rf"at `\$\.{of}"):
        Restarted(tmp_path, windows())

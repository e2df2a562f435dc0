"""Streams that meet, over random rows and histories, against plain Python.

Key groups move, lose their state and are suspended; runs start anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.meeting import Duplicates, Interval, Newest
from tests.oracles.windows import BEGINNING, Windows
from tests.support.meeting_flows import TIME, Feed, MeetingRun, S
from tests.support.rounds import rounds

from godwit.library import aggregates as gw
from godwit.operators.window_specs import tumbling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.api.streams import Stream

COLUMNS = {"k": pa.string(), "ts": TIME, "v": pa.int64()}
EXECUTORS = {"a": 2, "b": 1}


def rows_about(rng: np.random.Generator, second: float, most: int) -> list[tuple[Any, ...]]:
    """Draw rows (key, moment, value) of about a moment, some of them far behind."""
    return [
        (
            f"k{rng.integers(0, 4)}",
            int(second - rng.exponential(6)) * S,
            int(rng.integers(0, 1000)),
        )
        for _ in range(int(rng.integers(0, most)))
    ]


def arrived(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in the order in which the two partitions of their source bring them."""
    return [*rows[::2], *rows[1::2]]


class Watermarks:
    """Watermarks of two sources, and the least of them."""

    def __init__(self, **slack: int) -> None:
        self.slack, self.newest = slack, dict.fromkeys(slack, BEGINNING)

    def take(self, **rows: list[tuple[Any, ...]]) -> None:
        for source, found in rows.items():
            self.newest[source] = max([self.newest[source], *(row[1] for row in found)])

    @property
    def least(self) -> int:
        return min(
            BEGINNING if newest == BEGINNING else newest - self.slack[source]
            for source, newest in self.newest.items()
        )


@settings(derandomize=True, deadline=None, max_examples=3, database=None)
@given(st.integers(0, 2**32 - 1))
def test_windows_over_a_union_hold_what_plain_python_says_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slack = {"left": int(rng.integers(0, 8)), "right": int(rng.integers(0, 8))}

    def windows_over_union(streams: Mapping[str, Stream]) -> Stream:
        keyed = streams["left"].union(streams["right"]).key_by("k")
        return keyed.window(tumbling("5 seconds")).compute(n=gw.count(), v=gw.sum("v"))

    feeds = {
        name: Feed(COLUMNS, {"event_time": "ts", "slack": f"{of} seconds"})
        for name, of in slack.items()
    }
    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(windows_over_union, Path(root), feeds, executors=EXECUTORS)
        oracle = Windows([(5 * S, 5 * S, 0)])
        marks = Watermarks(left=slack["left"] * S, right=slack["right"] * S)
        for epoch in range(8):
            left = rows_about(rng, epoch * 6, 15)
            right = rows_about(rng, epoch * 6 - 9, 15)
            held = run.suffer(rng)
            found = run.epoch(left=left, right=right)
            before, late = oracle.watermark, oracle.late
            expected = oracle.epoch([*left, *right], held=held)
            marks.take(left=left, right=right)
            oracle.watermark = max(before, marks.least)
            assert found == sorted(
                ((k, *span, len(vs), sum(vs)) for (k, span), vs in expected.items()), key=repr
            )
            assert run.late == oracle.late - late
            if rng.random() < 0.3:
                run.restart()


@settings(derandomize=True, deadline=None, max_examples=4, database=None)
@given(st.integers(0, 2**32 - 1))
def test_duplicates_are_dropped_as_plain_python_says_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    within, slack = int(rng.integers(1, 9)), int(rng.integers(0, 9))

    def without_duplicates(streams: Mapping[str, Stream]) -> Stream:
        return streams["left"].drop_duplicates("k", within=f"{within} seconds")

    feeds = {"left": Feed(COLUMNS, {"event_time": "ts", "slack": f"{slack} seconds"})}
    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(without_duplicates, Path(root), feeds, executors=EXECUTORS)
        oracle, marks = Duplicates(within=within * S), Watermarks(left=slack * S)
        waiting: list[tuple[Any, ...]] = []
        for epoch in range(8):
            rows = rows_about(rng, epoch * 6, 20)
            held = run.suffer(rng)
            found = run.epoch(left=rows)
            late = oracle.late
            out = oracle.epoch(arrived(rows), BEGINNING if held else marks.least)
            if held or waiting or run.waiting:
                waiting = sorted([*waiting, *out], key=repr)  # rows of suspended keys come later
                for row in found:
                    waiting.remove(row)
            else:
                assert found == sorted(out, key=repr)
            marks.take(left=rows)
            assert run.late == oracle.late - late
            if rng.random() < 0.3:
                run.restart()
        run.recover()
        assert run.epoch() == waiting


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 5), database=None)
@given(st.integers(0, 2**32 - 1))
def test_the_newest_row_is_the_one_that_plain_python_finds_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    within = None if rng.random() < 0.4 else int(rng.integers(0, 15))
    inner, slack = bool(rng.random() < 0.4), int(rng.integers(0, 9))

    def newest_row_join(streams: Mapping[str, Stream]) -> Stream:
        left, right = (streams[name].key_by("k") for name in ("left", "right"))
        return left.join_newest(
            right,
            within=None if within is None else f"{within} seconds",
            how="inner" if inner else "left",
            suffix="_r",
        )

    feeds = {
        name: Feed(COLUMNS, {"event_time": "ts", "slack": f"{slack} seconds"})
        for name in ("left", "right")
    }
    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(newest_row_join, Path(root), feeds, executors=EXECUTORS)
        oracle = Newest(within=None if within is None else within * S, inner=inner)
        both_sides(run, oracle, rng, slack)


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 6), database=None)
@given(st.integers(0, 2**32 - 1))
def test_pairs_within_an_interval_are_those_of_plain_python_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    earliest = int(rng.integers(-8, 6))
    latest, slack = earliest + int(rng.integers(0, 9)), int(rng.integers(0, 9))
    how: Any = ("inner", "left", "right", "full")[int(rng.integers(0, 4))]

    def interval_join(streams: Mapping[str, Stream]) -> Stream:
        left, right = (streams[name].key_by("k") for name in ("left", "right"))
        bounds = (f"{earliest} seconds", f"{latest} seconds")
        return left.join(right, between=bounds, how=how, suffix="_r")

    feeds = {
        name: Feed(COLUMNS, {"event_time": "ts", "slack": f"{slack} seconds"})
        for name in ("left", "right")
    }
    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(interval_join, Path(root), feeds, executors=EXECUTORS)
        oracle = Interval(earliest=earliest * S, latest=latest * S, how=how)
        both_sides(run, oracle, rng, slack)


def both_sides(
    run: MeetingRun, oracle: Newest | Interval, rng: np.random.Generator, slack: int
) -> None:
    """Let two streams meet through a history, and then to their end."""
    marks = Watermarks(left=slack * S, right=slack * S)
    # What keys that wait would have given comes when they continue, all else at once.
    waiting: list[tuple[Any, ...]] = []
    for epoch in range(8):
        left = with_null_keys(rows_about(rng, epoch * 5, 14), rng)
        right = with_null_keys(rows_about(rng, epoch * 5 - 3, 14), rng)
        held = run.suffer(rng)
        late = oracle.late
        found = run.epoch(left=left, right=right)
        out = oracle.epoch(arrived(left), arrived(right), BEGINNING if held else marks.least)
        waiting += out
        for row in found:
            waiting.remove(row)
        run.insist_only_behind(waiting)
        marks.take(left=left, right=right)
        assert run.late == oracle.late - late
        if rng.random() < 0.3:
            run.restart()
    run.recover()
    run.times.end_input()
    found = run.epoch() + run.epoch()
    waiting += oracle.epoch([], [], 2**60)
    if isinstance(oracle, Interval) and oracle.how == "inner":
        assert sorted(found, key=repr) == sorted(waiting, key=repr)
        return
    for row in found:
        waiting.remove(row)
    assert not waiting


def with_null_keys(rows: list[tuple[Any, ...]], rng: np.random.Generator) -> list[tuple[Any, ...]]:
    return [(None, *row[1:]) if rng.random() < 0.1 else row for row in rows]

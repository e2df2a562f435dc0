"""Windows over random streams and histories, against plain Python."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.windows import Windows, windows_of
from tests.support.rounds import rounds
from tests.support.window_flows import WindowedRun

from godwit.library import aggregates as gw
from godwit.operators.window_specs import Hopping
from godwit.time.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
GROUPS = 8


@st.composite
def kinds(draw: st.DrawFn) -> tuple[int, int, int]:
    """Length, frequency and offset, some of which divide one another and some not."""
    every = draw(st.integers(1, 12))
    length = every * draw(st.integers(1, 6)) + draw(st.sampled_from([0, 0, 1, 2, 3]))
    return length * S, every * S, draw(st.integers(0, every - 1)) * S


@given(st.lists(kinds(), min_size=1, max_size=3, unique=True), st.data())
def test_panes_make_exactly_the_windows_of_each_moment(kinds_: Any, data: st.DataObject) -> None:
    windows = [TimeWindow(length_us=n, every_us=e, offset_us=o) for n, e, o in kinds_]
    grid = PaneGrid.of(*windows)
    moments = np.array(data.draw(st.lists(st.integers(-60 * S, 60 * S), min_size=1, max_size=8)))
    closed = data.draw(st.integers(-80 * S, 80 * S))
    until = data.draw(st.integers(closed, 90 * S))
    found = grid.windows_of(grid.panes(moments), closed, until)
    for i, moment in enumerate(moments.tolist()):
        spans_of = [span for kind in kinds_ for span in windows_of(moment, *kind)]
        expected = {span for span in spans_of if closed < span[1] <= until}
        mine = found.pane == i
        spans = zip(found.start[mine].tolist(), found.end[mine].tolist(), strict=True)
        assert sorted(spans) == sorted(expected)
        late = all(end <= closed for _, end in spans_of)
        assert (grid.panes(moments[i : i + 1])[0] < grid.first_open(closed)) == late
        assert grid.end_of(moment) == max(end for _, end in spans_of)
    closing = {
        span
        for moment in range(min(closed, -90 * S) // S, 100)
        for kind in kinds_
        for span in windows_of(moment * S, *kind)
        if closed < span[1] <= until
    }
    assert grid.closes(closed, until) == bool(closing)


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 5), database=None)
@given(
    st.lists(kinds(), min_size=1, max_size=3, unique=True),
    st.integers(0, 15),
    st.integers(0, 2**32 - 1),
)
def test_windows_hold_what_plain_python_says_whatever_happens(
    kinds_: Any, slack: int, seed: int
) -> None:
    """Rows late at random; key groups that move, lose their state, are suspended; restarts."""
    rng = np.random.default_rng(seed)
    shared = rng.choice([0.0, 0.5])
    specs = [Hopping(window=TimeWindow(length_us=n, every_us=e, offset_us=o)) for n, e, o in kinds_]

    def windows_of_kinds(keyed: KeyedStream) -> Stream:
        windows = keyed.window(
            *specs, late=_sink(), consolidate="apart" if seed % 2 else "together"
        )
        return windows.compute(n=gw.count(), v=gw.sum("v"))

    with tempfile.TemporaryDirectory() as root:
        executors = {"a": 2, "b": 1}
        run = WindowedRun(
            windows_of_kinds,
            Path(root),
            executors=executors,
            num_key_groups=GROUPS,
            slack=f"{slack} seconds",
        )
        run.run.snapshots = None if rng.random() < 0.5 else ()
        oracle = Windows(list(kinds_), slack * S)
        late = 0
        for epoch in range(8):
            rows = [
                (
                    f"k{rng.integers(0, 5)}",
                    int((epoch * 6 - rng.exponential(8)) * S),
                    int(rng.integers(0, 100)),
                )
                for _ in range(int(rng.integers(0, 25)))
            ]
            for sharing in run.times.sharing.values():
                sharing.duplicated = bool(rng.random() < shared)  # may change at any time
            held = _misfortune(run, rng)
            found = run.epoch(rows[::2], rows[1::2]) if rows else run.epoch()
            expected = oracle.epoch([*rows[::2], *rows[1::2]], held=held)
            assert found == sorted(
                ((k, *span, len(vs), sum(vs)) for (k, span), vs in expected.items()), key=repr
            )
            late += sum(o.arrivals.late for r in run.reports for o in r.operators)
            assert late == oracle.late
            if rng.random() < 0.3:
                run.restart(knows_kept=bool(rng.random() < 0.7))
        run.run.suspended = frozenset()
        run.times.end_input()
        found = run.epoch() + run.epoch()
        oracle.close(oracle.watermark)
        rest = oracle.close(2**60)
        assert {row[:3] for row in found} >= {(k, *span) for k, span in rest}


def _misfortune(run: WindowedRun, rng: np.random.Generator) -> bool:
    """Let something happen between two epochs; return whether key groups are suspended."""
    lanes = run.run
    lanes.suspended = frozenset()
    if rng.random() < 0.3:
        executor_of = rng.integers(0, 2, GROUPS).astype(np.int32)
        lane_of = (rng.integers(0, 6, GROUPS) % np.array([2, 1])[executor_of]).astype(np.int32)
        lanes.assignment = replace(lanes.assignment, executor_of=executor_of, lane_of=lane_of)
    if rng.random() < 0.2:
        lanes.lose("a")
    if rng.random() < 0.25:
        lanes.suspended = frozenset(rng.integers(0, GROUPS, 3).tolist())
    return bool(lanes.suspended)


def _sink() -> Any:
    from tests.support.fake_flow import FakeSink

    return FakeSink()


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 8), database=None)
@given(
    st.lists(kinds(), min_size=1, max_size=6, unique=True), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_windows_built_of_one_another_hold_what_plain_python_says(
    kinds_: Any, overlapping: bool, seed: int
) -> None:
    """All windows of a minute close at once: planned with auxiliary ones, and with parts that
    overlap where the aggregates allow it; rows come in order, so first and last are by time."""
    rng = np.random.default_rng(seed)
    specs = [Hopping(window=TimeWindow(length_us=n, every_us=e, offset_us=o)) for n, e, o in kinds_]
    some = {"low": gw.min("v"), "high": gw.max("v"), "values": gw.approx_distinct("v")}
    some["exact"] = gw.count_distinct("v")
    if not overlapping:
        some = {"n": gw.count(), "v": gw.sum("v"), "first": gw.first("v"), "last": gw.last("v")}
        some |= {"all": gw.collect_list("v"), "most": gw.max_by("v", "v", where="v > 20")}

    def windows_from_specs(keyed: KeyedStream) -> Stream:
        return keyed.window(*specs).compute(**some)

    def of(values: list[int]) -> tuple[Any, ...]:
        if overlapping:
            return min(values), max(values), len(set(values)), len(set(values))
        most = max((v for v in values if v > 20), default=None)
        return len(values), sum(values), values[0], values[-1], values, most

    moments = np.sort(rng.integers(0, 60 * S, 80))
    rows = [(f"k{rng.integers(0, 5)}", int(m), int(rng.integers(0, 50))) for m in moments]
    oracle = Windows(list(kinds_))
    oracle.epoch(rows)
    with (
        tempfile.TemporaryDirectory() as root,
        patch("godwit.library.windows.closing._WORTH_A_SEARCH", 0),
    ):
        run = WindowedRun(windows_from_specs, Path(root), num_key_groups=GROUPS)
        found = run.epoch(rows)
        run.times.end_input()
        found += run.epoch()
    expected = {**oracle.close(2**60)}
    assert found == sorted(((k, *span, *of(vs)) for (k, span), vs in expected.items()), key=repr)

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
from tests.oracles.windows import BEGINNING, Windows
from tests.unit.lane.meeting_flows import TIME, Feed, MeetingRun, S

from godwit.dataflow import aggregates as gw
from godwit.dataflow.windows.spec import tumbling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.dataflow.stream import Stream

COLUMNS = {"k": pa.string(), "ts": TIME, "v": pa.int64()}
EXECUTORS = {"a": 2, "b": 1}


def rows_about(rng: np.random.Generator, second: float, most: int) -> list[tuple[Any, ...]]:
    """Draw rows (key, moment, value) of about a moment, some of them far behind."""
    return [
        (
            f"k{rng.integers(0, 4)}",
            int((second - rng.exponential(6)) * S),
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


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_windows_over_a_union_hold_what_plain_python_says_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slack = {"left": int(rng.integers(0, 8)), "right": int(rng.integers(0, 8))}

    def build(streams: Mapping[str, Stream]) -> Stream:
        keyed = streams["left"].union(streams["right"]).key_by("k")
        return keyed.window(tumbling("5 seconds")).compute(n=gw.count(), v=gw.sum("v"))

    feeds = {
        name: Feed(COLUMNS, {"event_time": "ts", "slack": f"{of} seconds"})
        for name, of in slack.items()
    }
    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(build, Path(root), feeds, executors=EXECUTORS)
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

"""Joins whose hot keys are spread and gathered again, over random histories, against plain Python.

Key groups move, lose their state and are suspended, grids change, and runs start anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.meeting import Interval, Newest
from tests.support.meeting_flows import TIME, Feed, MeetingRun, S
from tests.support.rounds import rounds

from godwit.checkpoint.records import Grid
from godwit.operators.hot_keys import WHOLE, hash_undivided
from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.api.streams import Stream
    from godwit.operators.hot_key_orders import SpreadOrders

COLUMNS = {"k": pa.string(), "ts": TIME, "v": pa.int64()}
EXECUTORS = {"a": 2, "b": 1}
HOT = "k0"
HASH = int(hash_undivided(pa.record_batch({"k": [HOT]}))[0])


def feeds(slack: int) -> dict[str, Feed]:
    options = {"event_time": "ts", "slack": f"{slack} seconds"}
    return {name: Feed(COLUMNS, options) for name in ("left", "right")}


def drawn_rows(rng: np.random.Generator, second: float, count: int) -> list[tuple[Any, ...]]:
    """Draw rows of which half have the hot key, and some are alike."""
    return [
        (
            None
            if rng.random() < 0.05
            else HOT
            if rng.random() < 0.5
            else f"k{rng.integers(1, 4)}",
            int(second - rng.exponential(6)) * S,
            int(rng.integers(0, 40)),
        )
        for _ in range(count)
    ]


def drawn_grid(rng: np.random.Generator, orders: SpreadOrders) -> Grid:
    """Draw a grid of parts that the key does not have now."""
    taken = set(orders.spreads.grid_of(HASH).parts)
    if taken != set(WHOLE.parts) and rng.random() < 0.4:
        return WHOLE
    rows, columns = ((4, 1), (1, 3), (2, 2), (2, 3))[int(rng.integers(0, 4))]
    free = [part for part in range(1, 60) if part not in taken]
    chosen = rng.choice(free, rows * columns, replace=False).tolist()
    return Grid(rows=rows, columns=columns, parts=tuple(chosen))


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 8), database=None)
@given(st.integers(0, 2**32 - 1))
def test_pairs_of_spread_keys_are_those_of_plain_python_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    earliest = int(rng.integers(-8, 6))
    latest, slack = earliest + int(rng.integers(0, 9)), int(rng.integers(0, 9))

    def spread_interval_join(streams: Mapping[str, Stream]) -> Stream:
        left, right = (streams[name].key_by("k") for name in ("left", "right"))
        bounds = (f"{earliest} seconds", f"{latest} seconds")
        return left.join(right, between=bounds, suffix="_r", spread=8)

    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(spread_interval_join, Path(root), feeds(slack), executors=EXECUTORS)
        oracle = Interval(earliest=earliest * S, latest=latest * S, how="inner")
        newest, changes = {"left": BEGINNING, "right": BEGINNING}, 0
        waiting: list[tuple[Any, ...]] = []
        for epoch in range(14):
            rows = {
                "left": drawn_rows(rng, epoch * 5, int(rng.integers(0, 14))),
                "right": drawn_rows(rng, epoch * 5 - 3, int(rng.integers(0, 8))),
            }
            (orders,) = run.times.spreading.values()
            if epoch == 1 or rng.random() < 0.5:
                changes += orders.order(HASH, HOT, drawn_grid(rng, orders))
            held = run.suffer(rng)
            until = min(newest.values())
            until = BEGINNING if held or until == BEGINNING else until - slack * S
            found, late = run.epoch(**rows), oracle.late
            waiting += oracle.epoch(rows["left"], rows["right"], until)
            for row in found:
                waiting.remove(row)
            run.insist_only_behind(waiting, spread=HOT)
            assert run.late == oracle.late - late
            for name, of in rows.items():
                newest[name] = max([newest[name], *(row[1] for row in of)])
            if rng.random() < 0.3:
                run.restart()
        run.recover()
        assert sorted(run.epoch(), key=repr) == sorted(waiting, key=repr)
        assert changes


@settings(derandomize=True, deadline=None, max_examples=4, database=None)
@given(st.integers(0, 2**32 - 1))
def test_the_newest_row_is_found_in_whichever_part_a_row_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    within, slack = int(rng.integers(1, 15)), int(rng.integers(0, 9))
    inner = bool(rng.random() < 0.5)

    def spread_newest_row_join(streams: Mapping[str, Stream]) -> Stream:
        left, right = (streams[name].key_by("k") for name in ("left", "right"))
        how: Any = "inner" if inner else "left"
        return left.join_newest(right, within=f"{within} seconds", how=how, suffix="_r", spread=3)

    with tempfile.TemporaryDirectory() as root:
        run = MeetingRun(spread_newest_row_join, Path(root), feeds(slack), executors=EXECUTORS)
        oracle = Newest(within=within * S, inner=inner)
        newest = {"left": BEGINNING, "right": BEGINNING}
        waiting: list[tuple[Any, ...]] = []
        for epoch in range(8):
            rows = {
                "left": drawn_rows(rng, epoch * 5, int(rng.integers(0, 14))),
                "right": drawn_rows(rng, epoch * 5 - 3, int(rng.integers(0, 8))),
            }
            held = run.suffer(rng)
            until = min(newest.values())
            until = BEGINNING if held or until == BEGINNING else until - slack * S
            found = run.epoch(**rows)
            arrived = [[*of[::2], *of[1::2]] for of in rows.values()]
            waiting += oracle.epoch(arrived[0], arrived[1], until)
            for row in found:
                waiting.remove(row)
            run.insist_only_behind(waiting, spread=HOT)
            for name, of in rows.items():
                newest[name] = max([newest[name], *(row[1] for row in of)])
            if rng.random() < 0.3:
                run.restart()

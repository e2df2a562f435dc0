"""Operators of adopted aggregates against Spark's rules in plain Python, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.adopt.grouped import GroupsInTime
from godwit.adopt.sessions import SparkSessions
from godwit.adopt.windows import SparkWindows
from godwit.api.streams import Stream
from godwit.library import aggregates as gwa
from godwit.plan.nodes import CustomNode
from godwit.time.event_time import RowTime
from godwit.time.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.operators.operator import KeyedOperator

S = 1_000_000
_START = 1_700_000_000 * S
_COLUMNS = "k string, ts timestamp, until timestamp, ms timestamp, only_time boolean, v long"
Row = tuple[str, int, int]
"""Key, event time in microseconds since `_START`, and value."""


def _moment(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=us)


def _micros(moment: dt.datetime) -> int:
    return round((moment - dt.datetime.fromtimestamp(0, dt.UTC)) / dt.timedelta(microseconds=1))


def _play(
    make: Callable[[Sequence[pa.Schema]], KeyedOperator],
    batches: list[list[Row]],
    until: Callable[[int], int],
) -> list[list[dict[str, Any]]]:
    """Run an operator over batches; return what each emitted, and an epoch without rows."""
    flow = gw.Flow("adopted", num_key_groups=4)
    source = flow.source(
        "rows",
        gw.testing.stream(_COLUMNS),
        event_time="ms",
        slack="10 seconds",
        max_ahead=dt.timedelta(days=40_000),
    )
    node = CustomNode(name="op", upstream=source.node, keys=("k",), make=make, action="aggregate")
    flow._add_operator(node)
    sink = gw.sinks.memory()
    flow.sink("out", Stream(flow, node), sink)
    rows = [
        [
            {
                "k": key,
                "ts": _moment(_START + time),
                "until": _moment(_START + until(time)),
                "ms": _moment((_START + time) // 1000 * 1000),
                "only_time": False,
                "v": value,
            }
            for key, time, value in batch
        ]
        for batch in batches
    ]
    tables = gw.testing.run(flow, {"rows": rows})._rows.get("out", {})
    return [
        tables[epoch].to_pylist() if epoch in tables else [] for epoch in range(2 * len(batches))
    ]


class Watermark:
    """Spark's watermark: rows are late by `closed`, groups are removed by `until`."""

    def __init__(self) -> None:
        self.closed = self.until = 0

    def after(self, batch: list[Row]) -> None:
        """Advance by the rows of a batch."""
        times = [(_START + time) // 1000 * 1000 - 10 * S for _, time, _ in batch]
        self.closed, self.until = self.until, max([self.until, *times])

    def steps(self, batches: list[list[Row]]) -> Iterator[tuple[int, list[Row]]]:
        """Yield the number of each batch and its rows, also of those that run without rows."""
        number = 0
        for batch in batches:
            yield number, batch
            self.after(batch)
            number += 1
            if self.until > self.closed:
                yield number, []
                self.after([])
                number += 1


def _draw(draw: random.Random) -> list[list[Row]]:
    """Draw batches of rows, some of them late."""
    return [
        [
            (
                draw.choice("ab"),
                batch * 12 * S + draw.randint(-20 * S, 20 * S) // draw.choice((1, S)) * 1,
                draw.randint(0, 9),
            )
            for _ in range(draw.randint(0, 6))
        ]
        for batch in range(5)
    ]


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("append", [True, False])
def test_groups_are_emitted_and_removed_as_spark_does_it(append: bool) -> None:
    def make(schemas: Sequence[pa.Schema]) -> KeyedOperator:
        """Return the operator of groups that end at the column `until`."""
        (schema,) = schemas
        return GroupsInTime(
            name="op",
            keys=pa.schema([schema.field("k")]),
            arriving=schema,
            time="ms",
            removed_by="until",
            only_time="only_time",
            inputs=pa.schema([schema.field("v")]),
            aggregates={"t": gwa.sum("v")},
            append=append,
        )

    width = 7 * S

    def end(time: int) -> int:
        """Return the end of a row's group."""
        return time // width * width + width

    for seed in range(12):
        batches = _draw(random.Random(seed))
        emitted = _play(make, batches, end)
        groups: dict[tuple[str, int], int] = {}
        mark = Watermark()
        for number, batch in mark.steps(batches):
            touched = set()
            for key, time, value in batch:
                group = (key, _START + end(time))
                if group[1] > mark.closed:
                    groups[group] = groups.get(group, 0) + value
                    touched.add(group)
            over = {group for group in groups if group[1] <= mark.until}
            shown = over if append else touched
            expected = [(key, until, groups[key, until]) for key, until in shown]
            rows = [(row["k"], _micros(row["until"]), row["t"]) for row in emitted[number]]
            assert _sorted(rows) == _sorted(expected), (seed, number)
            for group in over:
                del groups[group]


def test_sessions_are_emitted_as_spark_does_it() -> None:
    def make(schemas: Sequence[pa.Schema]) -> KeyedOperator:
        """Return the operator of sessions."""
        (schema,) = schemas
        return SparkSessions(
            name="op",
            keys=("k",),
            arriving=schema,
            start="ts",
            end="until",
            only_time="only_time",
            inputs=pa.schema([schema.field("v")]),
            aggregates={"t": gwa.collect_list("v")},
        )

    def end(time: int) -> int:
        """Return the end of the session of a row alone, by a gap that differs."""
        return time + (3 if time % 2 else 6) * S

    for seed in range(12):
        batches = _draw(random.Random(seed))
        emitted = _play(make, batches, end)
        sessions: list[tuple[str, int, int, list[int]]] = []
        mark = Watermark()
        for number, batch in mark.steps(batches):
            for key, time, value in batch:
                first, last = _START + time, _START + end(time)
                if last <= mark.closed:
                    continue
                met = [s for s in sessions if s[0] == key and s[1] <= last and first <= s[2]]
                sessions = [s for s in sessions if s not in met]
                values = [value, *(v for s in met for v in s[3])]
                bounds = [(first, last), *((s[1], s[2]) for s in met)]
                sessions.append((key, min(b[0] for b in bounds), max(b[1] for b in bounds), values))
            over = [s for s in sessions if s[2] <= mark.until]
            expected = [(k, first, last, sorted(values)) for k, first, last, values in over]
            rows = [
                (
                    row["k"],
                    _micros(row["window_start"]),
                    _micros(row["window_end"]),
                    sorted(row["t"]),
                )
                for row in emitted[number]
            ]
            assert _sorted(rows) == _sorted(expected), (seed, number)
            sessions = [s for s in sessions if s not in over]


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("length_every", [(6, 6), (10, 4), (9, 3)])
def test_windows_of_panes_are_emitted_as_spark_does_it(
    update: bool, length_every: tuple[int, int]
) -> None:
    length, every = (seconds * S for seconds in length_every)
    window = TimeWindow(length_us=length, every_us=every, offset_us=S)

    def make(schemas: Sequence[pa.Schema]) -> KeyedOperator:
        """Return the operator of windows."""
        (schema,) = schemas
        return SparkWindows(
            name="op",
            keys=("k",),
            arriving=schema,
            time=RowTime(column="ts"),
            inputs=pa.schema([schema.field("v")]),
            aggregates={"t": gwa.sum("v")},
            grid=PaneGrid.of(window),
            update=update,
            only_time="only_time",
        )

    def windows(time: int) -> list[int]:
        """Return the ends of the windows of a row."""
        moment = _START + time
        last = (moment - S) // every * every + S
        return [last + length - n * every for n in range(-(-length // every))]

    for seed in range(8):
        batches = _draw(random.Random(seed))
        emitted = _play(make, batches, lambda time: time)
        sums: dict[tuple[str, int], int] = {}
        mark = Watermark()
        for number, batch in mark.steps(batches):
            touched = set()
            for key, time, value in batch:
                for end in windows(time):
                    if end > _START + time and end > mark.closed:
                        sums[key, end] = sums.get((key, end), 0) + value
                        touched.add((key, end))
            over = {group for group in sums if group[1] <= mark.until}
            shown = touched if update else over
            expected = [(key, end, sums[key, end]) for key, end in shown]
            rows = [(row["k"], _micros(row["window_end"]), row["t"]) for row in emitted[number]]
            assert _sorted(rows) == _sorted(expected), (seed, number)
            for group in over:
                del sums[group]

"""Rows of a key in order of event time, with timers in between, and the two orders of timers."""

from __future__ import annotations

import ast
import datetime as dt
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import CheckpointError, InvalidFlowError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

US = dt.timedelta(microseconds=1)
BASE = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
SLACK, WAIT = 9, 10
OUTPUT = "k string, what string, at long, now long, seen string"

Row = tuple[str, int, int]
"""Key, event time, and a value."""
Told = tuple[Any, ...]


def micros(at: dt.datetime) -> int:
    return (at - BASE) // US


def on_rows(key: Any, rows: Any, seen: list[int]) -> Iterator[Told]:
    """Ask for a timer after the last row; tell of the rows so far."""
    for earlier in rows.timers.list():
        rows.timers.cancel(earlier)
    for row in rows:
        seen.append(row.v)
        yield key[0], "row", micros(row.ts), micros(rows.timers.now), repr(seen)
        rows.timers.set(row.ts + (WAIT if row.v % 5 else -3) * US)
        if row.v % 7 == 6:
            rows.drop_state()


def on_timer(key: Any, timer: Any, seen: list[int]) -> Iterator[Told]:
    now = timer.timers.now
    yield key[0], "timer", micros(timer.time), 0 if now.year == 9999 else micros(now), repr(seen)
    if len(seen) > 3:
        timer.drop_state()
    elif len(seen) == 2:
        timer.timers.set(timer.time + 4 * US)
        seen.append(-1)


@dataclass
class Model:
    """One key, its rows in order, by plain Python."""

    key: str
    told: list[Told]
    seen: list[int] = field(default_factory=list)
    timers: set[int] = field(default_factory=set)

    def fire(self, until: int, now: int | None = None) -> None:
        while self.timers and min(self.timers) <= until:
            at = min(self.timers)
            self.timers.discard(at)
            self.told.append((self.key, "timer", at, at if now is None else now, repr(self.seen)))
            if len(self.seen) > 3:
                self.drop()
            elif len(self.seen) == 2:
                self.timers.add(at + 4)
                self.seen.append(-1)

    def drop(self) -> None:
        self.seen.clear()
        self.timers.clear()

    def take(self, at: int, values: list[int]) -> None:
        self.fire(at - 1)
        self.timers.clear()
        for value in values:
            self.seen.append(value)
            self.told.append((self.key, "row", at, at, repr(self.seen)))
            self.timers.add(at + (WAIT if value % 5 else -3))
        if any(value % 7 == 6 for value in values):
            self.drop()


def expected(rows: list[Row]) -> list[Told]:
    """Say what comes of the rows of each key in order."""
    told: list[Told] = []
    for key in sorted({key for key, *_ in rows}):
        model = Model(key, told)
        for at in sorted({at for of, at, _ in rows if of == key}):
            model.take(at, sorted(v for of, t, v in rows if (of, t) == (key, at)))
        model.fire(max(at for _, at, _ in rows))
        model.fire(10**9, now=0)
    return told


def flow_of(variant: str, late: Any = None) -> gw.Flow:
    function: Any = on_rows
    options: dict[str, Any] = {"state": list}
    if variant == "async":

        async def awaited(key: Any, rows: Any, seen: list[int]) -> list[Told]:
            return list(on_rows(key, rows, seen))

        function = awaited
    timer: Any = on_timer
    if variant == "states":
        options = {"state": {"seen": gw.ValueState(list)}}

        def with_states(own: Any) -> Any:
            def call(key: Any, argument: Any, states: Any) -> Any:
                seen = list(states.seen.value or [])
                told = list(own(key, argument, seen))
                states.seen.value = seen
                return told

            return call

        function, timer = with_states(on_rows), with_states(on_timer)
    flow = gw.Flow("ordered", num_key_groups=4)
    rows = gw.testing.stream("k string, ts timestamp, v bigint")
    stream = flow.source("s", rows, event_time="ts", slack=SLACK * US)
    told = stream.key_by("k").process(
        function,
        name="ordered",
        output=OUTPUT,
        timers=gw.types.OnTimer(timer, clock="event"),
        order="event_time",
        late=late,
        **options,
    )
    flow.sink("told", told, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("variant", ["state", "states", "async"])
def test_results_depend_neither_on_epochs_nor_on_the_order_of_arrival(variant: str) -> None:
    rng = random.Random(variant)
    now, rows = 0, list[Row]()
    for number in range(24):
        now += rng.choice([0, 3, 5, 10, 11, 30])
        rows.append((rng.choice("abc"), max(0, now - rng.choice([0, 0, 4, 9])), number))
    wanted = expected(rows)
    for _ in range(4):
        run = gw.testing.cluster(flow_of(variant), executors={"1": 2, "2": 1}, now=BASE)
        at = 0
        while at < len(rows):
            count = rng.choice([1, 1, 2, 5, 12])
            run.epoch({"s": [(k, BASE + t * US, v) for k, t, v in rows[at : at + count]]})
            at += count
            if rng.random() < 0.3:
                run.restart()
            if rng.random() < 0.3:
                run.migrate({g: rng.choice(["1", "2"]) for g in range(4)}, component="ordered")
            if rng.random() < 0.2:
                run.epoch({})
        run.end_input()
        assert not run.late
        told = [tuple(row.values()) for row in run.rows("told").to_pylist()]
        assert sorted(told, key=lambda row: row[0]) == wanted


def test_late_rows_are_left_out_and_counted_and_can_be_kept() -> None:
    run = gw.testing.cluster(flow_of("state", late=gw.sinks.noop()), now=BASE)
    for rows in ([("a", 0, 1)], [("a", 50, 2)], [], [("a", 40, 3), ("a", 41, 4), ("a", 51, 5)]):
        run.epoch({"s": [(k, BASE + t * US, v) for k, t, v in rows]})
    run.end_input()
    assert [(row["v"], row["reason"]) for row in run.rows("ordered_late").to_pylist()] == [
        (3, "late")
    ]
    told = [row["at"] for row in run.rows("told").to_pylist() if row["what"] == "row"]
    assert told == [0, 41, 50, 51]


def test_rows_of_one_event_time_come_together_in_the_order_of_their_columns() -> None:
    values = [1.5, math.nan, None, -2.0, 0.0, -0.0, math.inf]
    rows = [("a", BASE, value, text) for value in values for text in ("y", None, "x")]
    found = set()
    for seed in range(3):
        flow = gw.Flow("ties", num_key_groups=2)
        columns = "k string, ts timestamp, x double, t string"
        stream = flow.source("s", gw.testing.stream(columns), event_time="ts")
        told = stream.key_by("k").process(
            show,
            state=int,
            output="k string, rows string",
            order="event_time",
        )
        flow.sink("told", told, gw.sinks.noop())
        random.Random(seed).shuffle(rows)
        run = gw.testing.run(flow, {"s": [rows[:4], rows[4:]]}, close_at_end=True, now=BASE)
        (row,) = run.rows("told").to_pylist()
        found.add(row["rows"])
    (text,) = found
    assert text.endswith("(None, 'x'), (None, 'y'), (None, None)]")
    assert [
        value
        for value, _ in ast.literal_eval(text.replace("nan", "'nan'").replace("inf", "9e999"))[::3]
    ] == [
        -2.0,
        -0.0,
        0.0,
        1.5,
        math.inf,
        "nan",
        None,
    ]


def show(key: Any, rows: Any, state: Any) -> Any:
    return [(key[0], repr([(row.x, row.t) for row in rows]))]


@dataclass
class Typed:
    v: int


def test_windows_of_ordered_rows_close_with_those_of_the_source() -> None:
    flow = gw.Flow("typed", num_key_groups=2)
    rows = gw.testing.stream("k string, ts timestamp, v bigint")
    stream = flow.source("s", rows, event_time="ts", slack=SLACK * US)

    def add_up(key: Any, rows: Any, state: Any) -> Any:
        return [(key[0], BASE, sum(row.v for row in rows))]

    def same(key: Any, rows: Any, state: Any) -> Any:
        return [(key[0], row.ts, row.v) for row in rows]

    total = stream.key_by("k").process(
        add_up,
        name="total",
        row=Typed,
        state=int,
        output="k string, at timestamp, n long",
        order="event_time",
    )
    flow.sink("told", total, gw.sinks.noop())
    told = stream.key_by("k").process(
        same,
        name="same",
        state=int,
        output=gw.types.Output("k string, ts timestamp, n long", event_time="ts"),
        order="event_time",
    )
    counts = told.key_by("k").window(gw.tumbling(20 * US), name="w").compute(n=gw.sum("n"))
    flow.sink("windows", counts, gw.sinks.noop())
    given = [("a", BASE + t * US, v) for t, v in ((5, 1), (15, 2), (9, 4), (20, 8), (60, 16))]
    for epochs in ([given], [[row] for row in given]):
        run = gw.testing.run(flow, {"s": epochs}, close_at_end=True, now=BASE)
        assert not run.late
        assert [row["n"] for row in run.rows("windows").to_pylist()] == [7, 8, 16]
        assert sorted(row["n"] for row in run.rows("told").to_pylist()) == [1, 2, 4, 8, 16]


def at(clock: Any, order: Any = None) -> gw.types.OnTimer[Any, Any]:
    return gw.types.OnTimer(on_timer, clock=clock, order=order)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "time"}, "order='time'"),
        ({"late": gw.sinks.noop()}, "late=, but no order"),
        ({"order": "event_time", "late": "late/"}, "which is not a sink"),
        ({"order": "event_time", "state": gw.ValueState(list, merge=lambda a, b: a)}, "order="),
        ({"order": "event_time", "timers": at("processing")}, "clock='processing'"),
        ({"order": "event_time", "timers": at("event", "after_rows")}, "order='after_rows'"),
        ({"timers": at("event", "first")}, "order='first'"),
    ],
)
def test_orders_that_contradict_other_options_are_refused(
    options: dict[str, Any], says: str
) -> None:
    flow = gw.Flow("refused", num_key_groups=2)
    stream = flow.source("s", gw.testing.stream("k string, ts timestamp"), event_time="ts")
    with pytest.raises(InvalidFlowError, match=says):
        stream.key_by("k").process(on_rows, **{"state": list, "output": "k string", **options})


def test_an_order_of_event_time_needs_one_and_rows_that_state_can_hold() -> None:
    for columns, event_time, says in (
        ("k string, ts timestamp", None, "has no event time"),
        ("k string, ts timestamp, l array<int>", "ts", "state cannot hold"),
    ):
        flow = gw.Flow("refused", num_key_groups=2)
        stream = flow.source("s", gw.testing.stream(columns), event_time=event_time)
        told = stream.key_by("k").process(
            on_rows, state=list, output="k string", order="event_time"
        )
        flow.sink("told", told, gw.sinks.noop())
        with pytest.raises(InvalidFlowError, match=says):
            flow.explain()
    with pytest.raises(InvalidInputError, match=r"gw.testing.run"):
        gw.testing.process(on_rows, state=list, order="event_time")


def test_the_order_of_rows_cannot_change_under_state(tmp_path: Path) -> None:
    checkpoint = tmp_path / "ck"
    with gw.testing.cluster(flow_of("state"), checkpoint=checkpoint, now=BASE) as first:
        first.epoch({"s": [("a", BASE, 1)]})
    flow = gw.Flow("ordered", num_key_groups=4)
    rows = gw.testing.stream("k string, ts timestamp, v bigint")
    stream = flow.source("s", rows, event_time="ts", slack=SLACK * US)
    told = stream.key_by("k").process(
        on_rows,
        name="ordered",
        state=list,
        output=OUTPUT,
        timers=gw.types.OnTimer(on_timer, clock="event"),
    )
    flow.sink("told", told, gw.sinks.noop())
    with pytest.raises(CheckpointError, match="in order of event time"):
        gw.testing.cluster(flow, checkpoint=checkpoint, now=BASE)


def test_timers_fire_before_or_after_the_rows_of_their_epoch() -> None:
    for order in (None, "before_rows", "after_rows"):
        done = gw.testing.process(
            note,
            [{"ts": BASE + 20 * US, "v": -15}],
            key={"k": "a"},
            state=int,
            timers=gw.types.OnTimer(
                lambda key, timer, state: [(key[0], -micros(timer.time))],
                clock="event",
                order=order,
            ),
            timers_before=[BASE + 5 * US],
            now=BASE + 6 * US,
        )
        # After the rows no timer is left: the row cancels it.
        assert [at for _, at in done.rows] == ([20] if order == "after_rows" else [-5, 20])


def note(key: Any, rows: Any, state: Any) -> Iterator[Told]:
    for row in rows:
        yield key[0], micros(row.ts)
        if row.v < 0:
            rows.timers.cancel(row.ts + row.v * US)
        else:
            rows.timers.set(row.ts + row.v * US)

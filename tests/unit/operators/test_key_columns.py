"""Rows of functions have all columns of the stream, also those of the key."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

import godwit as gw
from godwit.model.errors import UserFunctionError

COLUMNS = "v bigint, k string, ts timestamp, n int"
ROWS = [
    (1, "a", "2026-01-01 00:00", 7),
    (2, None, "2026-01-01 00:01", 7),
    (3, "a", "2026-01-01 00:02", 8),
    (4, "a", "2026-01-01 00:02", 7),
]
OUTPUT = "k string, n int, same boolean, ks string, columns string"


def emitted(key: Any, rows: Any, *_: Any, **__: Any) -> list[Any]:
    """What a function sees of the key columns: in rows, and as columns."""
    listed = list(rows)
    same = all((row.k, row.n) == key and row._asdict()["n"] == row.n for row in listed)
    same = same and rows.column("k") == [row.k for row in listed]
    return [
        (*key, same and isinstance(listed[0].ts, dt.datetime), "", ", ".join(listed[0]._fields))
    ]


async def awaited(key: Any, rows: Any, state: Any) -> list[Any]:
    return emitted(key, rows)


def keyed(flow: gw.Flow) -> Any:
    source = flow.source("s", gw.testing.stream(COLUMNS), event_time="ts")
    return source.key_by("k", "n")


def with_table(stream: Any, flow: gw.Flow) -> Any:
    table = flow.source("t", gw.testing.stream("c string, x int")).key_by("c")
    return stream.process(emitted, state=int, output=OUTPUT, broadcast={"t": table})


KINDS: dict[str, Any] = {
    "state": lambda s, _: s.process(emitted, state=int, output=OUTPUT),
    "states": lambda s, _: s.process(emitted, state={"x": gw.ValueState(int)}, output=OUTPUT),
    "timers": lambda s, _: s.process(
        emitted,
        state=int,
        output=OUTPUT,
        timers=gw.types.OnTimer(lambda key, timer, state: [], clock="event"),
    ),
    "async": lambda s, _: s.process(awaited, state=int, output=OUTPUT),
    "merge": lambda s, _: s.process(
        emitted, state=gw.ValueState(int, merge=lambda state, other: state + other), output=OUTPUT
    ),
    "broadcast": with_table,
    "windows": lambda s, _: s.window(gw.tumbling("1 hour")).process(emitted, output=OUTPUT),
    "hopping": lambda s, _: s.window(gw.hopping("1 hour", every="1 hour")).process(
        emitted, output=OUTPUT
    ),
    "sessions": lambda s, _: s.window(gw.session("1 hour")).process(emitted, output=OUTPUT),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epochs", [1, 4])
def test_rows_have_their_key_columns(kind: str, epochs: int) -> None:
    flow = gw.Flow("f", num_key_groups=4)
    flow.sink("o", KINDS[kind](keyed(flow), flow), gw.sinks.noop())
    played = gw.testing.run(flow, {"s": ROWS}, epochs=epochs, close_at_end=True, now="2026-01-02")
    rows = played.rows("o").to_pylist()
    assert {(row["k"], row["n"]) for row in rows} == {("a", 7), (None, 7), ("a", 8)}
    assert all(row["same"] and row["columns"] == "v, ts, k, n" for row in rows)


def test_errors_list_the_key_columns() -> None:
    flow = gw.Flow("f")
    wrong = keyed(flow).process(
        lambda key, rows, state: [r.kk for r in rows], state=int, output="k int"
    )
    flow.sink("o", wrong, gw.sinks.noop())
    with pytest.raises(
        UserFunctionError, match=r"no column 'kk'. Did you mean 'k'.*'v', 'ts', 'k', 'n'"
    ):
        gw.testing.run(flow, {"s": ROWS})


def test_rows_of_a_class_have_the_key_columns_that_it_names() -> None:
    @dataclass
    class Row:
        n: int
        v: int
        k: str | None

    def look(key: Any, rows: Any, state: Any) -> Any:
        return [(row.k, row.n, row.v) for row in rows]

    flow = gw.Flow("f")
    seen = keyed(flow).process(look, state=int, output="k string, n int, v bigint", row=Row)
    flow.sink("o", seen, gw.sinks.noop())
    played = gw.testing.run(flow, {"s": ROWS}).rows("o").to_pylist()
    assert sorted((row["v"], row["k"], row["n"]) for row in played) == [
        (v, k, n) for v, k, _, n in ROWS
    ]

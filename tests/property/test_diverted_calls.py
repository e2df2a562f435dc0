"""Rows are either processed or diverted, and state is as if the diverted calls had not been.

Drawn rows with bad values among them, for every kind of function that a user may give, while key
groups move, executors die and the run restarts; against plain Python over the rows that are left.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
from collections import Counter
from operator import add
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.support.rounds import rounds
from tests.unit.adopt.processors import Remembering

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

Row = dict[str, Any]
COLUMNS = "id long, k string, n long, moment timestamp"
OUTPUT = "k string, id long"
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
BAD, MISFIT = 13, 14  # values of ``n``: the function raises; it emits a row that does not fit
SEEDS = range(rounds(2, 300))


def _emitted(key: tuple[Any, ...], row: Any) -> tuple[Any, ...]:
    """Return the row to emit; raise for a bad row, after state was changed for it."""
    if row.n == BAD:
        raise ValueError(f"row {row.id}")
    return (*key, "no number" if row.n == MISFIT else row.id)


def by_key(key: tuple[Any, ...], rows: Any, seen: list[int]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        seen.append(row.id)
        yield _emitted(key, row)


def by_value(key: tuple[Any, ...], rows: Any, seen: Any) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        seen.value = (*seen.value, row.id)
        yield _emitted(key, row)


def by_states(key: tuple[Any, ...], rows: Any, states: Any) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        states.last.value = row.id
        states.ids.append(row.id)
        states.by_n[row.n % 3] = row.id
        yield _emitted(key, row)


async def awaited(key: tuple[Any, ...], rows: Any, seen: list[int]) -> AsyncIterator[Any]:
    for row in rows:
        seen.append(row.id)
        yield _emitted(key, row)


def of_tables(rows: pa.Table, states: pa.Table, key_of_row: Any) -> tuple[pa.Table, pa.Table]:
    if BAD in rows["n"].to_pylist():
        raise ValueError("a bad row")
    texts = [value or "" for value in states["value"].to_pylist()]
    for number, key in zip(rows["id"].to_pylist(), key_of_row.tolist(), strict=True):
        texts[key] += f"{number} "
    out = rows.select(["k", "id"])
    if MISFIT in rows["n"].to_pylist():
        out = out.rename_columns(["k", "other"])
    return out, states.set_column(1, "value", pa.array(texts, pa.string()))


def of_window(key: tuple[Any, ...], rows: Any, window: Any) -> list[tuple[Any, ...]]:
    return [_emitted(key, row) for row in rows]


def mapped(rows: pa.Table) -> pa.Table:
    n = rows["n"].to_pylist()
    if BAD in n:
        raise ValueError("a bad row")
    return rows.drop_columns(["n"]) if MISFIT in n else rows


def of_frames(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        if key[0] in "abc":
            raise ValueError("a bad time-out")
        return
    ids = list(state.get[0]) if state.exists else []
    for frame in frames:
        ids += frame["id"].tolist()
        state.update((ids,))
        if BAD in frame["n"].to_list():
            raise ValueError("a bad row")
        out = pd.DataFrame({"k": frame["k"], "id": frame["id"]})
        if MISFIT in frame["n"].to_list():
            out["id"] = "no number"
        state.setTimeoutDuration(1)
        yield out


def _transformed(rows: gw.types.Stream) -> Any:
    return rows.key_by("k").transform_with_state(
        Remembering(_emitted), output=OUTPUT, time_mode="ProcessingTime", name="calls"
    )


def _applied(rows: gw.types.Stream) -> Any:
    return rows.key_by("k").apply_in_pandas_with_state(
        of_frames,
        output=OUTPUT,
        state="ids array<long>",
        timeout="ProcessingTimeTimeout",
        name="calls",
    )


def _process(function: Any, state: Any, **options: Any) -> Callable[[gw.types.Stream], Any]:
    return lambda rows: rows.key_by("k").process(
        function, state=state, output=OUTPUT, name="calls", **options
    )


KINDS: dict[str, Callable[[Any], Any]] = {
    "state": _process(by_key, list[int]),
    "ttl": _process(by_key, gw.ValueState(list[int], ttl="30 days")),
    "value": _process(by_value, tuple[int, ...]),
    "states": _process(
        by_states,
        {"last": gw.ValueState(int), "ids": gw.ListState(int), "by_n": gw.MapState(int, int)},
    ),
    "merged": _process(by_key, gw.ValueState(list[int], merge=add)),
    "merged states": _process(
        by_states,
        {
            "last": gw.ValueState(int, merge=max),
            "ids": gw.ListState(int, merge=add),
            "by_n": gw.MapState(int, int, merge=max),
        },
    ),
    "processor": _transformed,
    "group state": _applied,
    "asynchronous": _process(awaited, list[int]),
    "in order": _process(by_key, list[int], order="event_time"),
    "batch": lambda rows: rows.key_by("k").process_batch(
        of_tables, state="value string", output=OUTPUT, name="calls"
    ),
    "window": lambda rows: (
        rows.key_by("k")
        .window(gw.tumbling("1 minute"), name="calls")
        .process(of_window, output=OUTPUT)
    ),
    "session": lambda rows: (
        rows.key_by("k")
        .window(gw.session("20 seconds"), name="calls")
        .process(of_window, output=OUTPUT)
    ),
    "map": lambda rows: rows.map(mapped),
    "map after": lambda rows: (
        rows.key_by("k")
        .process(
            lambda _, rows, __: [
                tuple(row._asdict()[c] for c in ("id", "k", "n", "moment")) for row in rows
            ],
            state=list[int],
            output=COLUMNS,
            name="calls",
        )
        .map(mapped)
    ),
}


def _flow(kind: str) -> gw.Flow:
    flow = gw.Flow("diverted", num_key_groups=16)
    source = gw.sources.memory(COLUMNS)
    rows = flow.source("rows", source, event_time="moment", slack="1 hour")
    out = KINDS[kind](rows)
    flow.sink("out", out, gw.sinks.noop())
    flow.divert_errors("failed", out, gw.sinks.noop(), max_error_share=1.0)
    return flow


def _rows(rng: random.Random, count: int, first: int) -> list[Row]:
    return [
        {
            "id": first + number,
            "k": rng.choice("abcdef"),
            "n": rng.choices([1, 2, 3, BAD, MISFIT], [30, 30, 30, 3, 3])[0],
            "moment": START + dt.timedelta(seconds=first + number),
        }
        for number in range(count)
    ]


def _disturb(run: gw.testing.Run, rng: random.Random, kind: str) -> None:
    if "merged" in kind and rng.random() < 0.7:
        key, hot = rng.choice("abcdef"), run.hot_keys["calls"]
        with contextlib.suppress(gw.errors.MigrationError):  # the last change is under way
            if json.dumps([key]) in hot:
                run.hot_keys.gather("calls", key)
            else:
                run.hot_keys.spread("calls", key, left=rng.choice([2, 3]))
    draw, names = rng.random(), list(run.executors)
    if draw < 0.2:
        run.restart()
    elif draw < 0.4:
        run.migrate({group: rng.choice(names) for group in rng.sample(range(16), 5)})
    elif draw < 0.5:
        run.add(f"x{len(run.epochs)}")
        run.kill(rng.choice(names))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_processed_or_diverted_once(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    rows: list[Row] = []
    with gw.testing.cluster(_flow(kind), executors=2) as run:
        for _ in range(8):
            new = _rows(rng, rng.choice([1, 5, 40]), len(rows))
            rows += new
            run.epoch({"rows": new})
            _disturb(run, rng, kind)
        run.end_input()
        # A timer that failed has no row.
        diverted = [json.loads(row) for row in run.rows("failed")["row"].to_pylist() if row]
        emitted = run.rows("out")["id"].to_pylist()
        states = [] if "map" in kind or kind in ("window", "session") else _states(run, kind)
    assert all(row["n"] == bad["n"] for bad in diverted for row in [rows[bad["id"]]])
    lost = {row["id"] for row in diverted}
    assert Counter(emitted) + Counter(row["id"] for row in diverted) == Counter(range(len(rows)))
    bad = {row["id"] for row in rows if row["n"] in (BAD, MISFIT)}
    assert bad <= lost
    if "map" in kind:
        assert bad == lost
    else:
        keys = {rows[number]["k"] for number in bad}
        assert {rows[number]["k"] for number in lost} <= keys
    for key, ids in states:
        expected = [r["id"] for r in rows if r["k"] == key and r["id"] not in lost]
        assert (sorted(ids) if "merged" in kind else ids) == expected, key


@pytest.mark.parametrize("kind", ["merged", "merged states"])
def test_a_call_that_fails_as_a_hot_key_is_gathered_leaves_its_parts_merged(kind: str) -> None:
    def rows(first: int, n: int) -> list[Row]:
        return [{"id": first + i, "k": "a", "n": n, "moment": START} for i in range(8)]

    with gw.testing.cluster(_flow(kind)) as run:
        run.epoch({"rows": rows(0, 1)})
        run.hot_keys.spread("calls", "a", left=3)
        run.epoch({"rows": rows(8, 1)})
        run.hot_keys.gather("calls", "a")
        run.epoch({"rows": rows(16, BAD)})
        [(key, ids)] = _states(run, kind)
        assert run.rows("failed").num_rows == 8
    assert (key, sorted(ids)) == ("a", list(range(16)))


def _states(run: gw.testing.Run, kind: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the keys, and the numbers of the rows that the state says were processed."""
    if kind in ("states", "merged states", "processor"):
        of_key: dict[str, list[int]] = {}
        for row in run.state("calls", "ids").to_pylist():
            of_key.setdefault(row["k"], []).extend(_plain(json.loads(row["state"])))
        yield from of_key.items()
        last: dict[str, int] = {}
        for row in run.state("calls", "last").to_pylist():
            (number,) = _plain([json.loads(row["state"])])
            last[row["k"]] = max(number, last.get(row["k"], -1))
        assert last == {key: max(ids) for key, ids in of_key.items()}
        return
    column = "value" if kind == "batch" else "state"
    states = {"in order": "state", "group state": "group_state"}
    of_parts: dict[str, list[int]] = {}
    for row in run.state("calls", states.get(kind)).to_pylist():
        text = row[column]
        if kind == "batch":
            ids = [*map(int, text.split())]
        elif kind == "group state":
            (ids,) = json.loads(text).values()
        else:
            ids = json.loads(text)
        of_parts.setdefault(row["k"], []).extend(ids)
    yield from of_parts.items()


def _plain(values: list[Any]) -> list[int]:
    """Return numbers, also of records with one column, as Spark's states have them."""
    return [next(iter(v.values())) if isinstance(v, dict) else v for v in values]

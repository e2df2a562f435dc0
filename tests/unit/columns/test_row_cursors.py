# ruff: noqa: B007, B023, E731, N802, N803, PERF401 - functions as users write them
"""Rows as one object: where it is proven that no code can tell, and what it says there."""

from __future__ import annotations

import datetime as dt
import random
import sys
from decimal import Decimal
from types import MethodType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.unit.adopt.processors import Processed

import godwit as gw
from godwit.columns.row_cursors import Cursors, columns_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLUMNS = (
    "k string, i int, x long, f double, z boolean, s string, b binary, d decimal(9,2), day date, "
    "ts timestamp, a array<int>, count int"
)
NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


def in_a_loop(key: Any, rows: Any) -> Iterator[Any]:
    total, seen = 0, set()
    for row in rows:
        total, one = total + row.x, row.s
        if row.z:
            seen.add(f"{row.s}: {one.upper()}")
    yield key, total, seen


def in_two_loops(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.i
        break
    for row in rows:
        key = row.f
    return key, row.z


def in_a_generator(key: Any, rows: Any) -> Any:
    return sum(row.x * key for row in rows if row.z)


def in_a_list(key: Any, rows: Any) -> Any:
    return [key, [row.x for row in rows]]


def of_none(key: Any, rows: Any) -> Any:
    return key


@pytest.mark.parametrize(
    ("function", "read"),
    [
        (in_a_loop, {"x", "s", "z"}),
        (in_two_loops, {"i", "f", "z"}),
        (in_a_generator, {"x", "z"}),
        (of_none, set()),
    ],
)
def test_columns_of_which_only_attributes_are_read_are_proven(
    function: Any, read: set[str]
) -> None:
    assert columns_read(function, 1, NAMES) == tuple(n for n in NAMES if n in read)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the bytecode has another shape")
def test_columns_read_in_a_list_are_proven() -> None:
    assert columns_read(in_a_list, 1, NAMES) == ("x",)


def passes_rows(key: Any, rows: Any) -> Any:
    return list(rows), key


def passes_a_row(key: Any, rows: Any) -> Any:
    return [key(row) for row in rows]


def compares_two_rows(key: Any, rows: Any) -> Any:
    for first in rows:
        break
    for row in rows:
        key += first.x < row.x
    return key


def compares_rows_of_generators(key: Any, rows: Any) -> Any:
    first, second = (row.x for row in rows), (row.x for row in rows)
    return key, zip(first, second, strict=False)


def compares_rows_of_one_generator(key: Any, rows: Any) -> Any:
    several = []
    for _ in range(2):
        several.append((row.x + key(row.i)) for row in rows)
    return several


def keeps_a_row(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row
    return key


def keeps_rows(key: Any, rows: Any) -> Any:
    for row in rows:
        key += row.x
    return key, rows


def calls_a_method(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.asDict()
    return key


def takes_a_method(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.asDict
    return key


def takes_an_attribute_of_every_row(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.count
    return key


def takes_another_attribute(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.other
    return key


def takes_an_item(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row["x"]
    return key


def unpacks(key: Any, rows: Any) -> Any:
    for first, *_ in rows:
        key = first
    return key


def closes_over_rows(key: Any, rows: Any) -> Any:
    return lambda: (key, next(rows))


def closes_over_a_row(key: Any, rows: Any) -> Any:
    for row in rows:
        key = lambda: row
    return key


def counts(key: Any, rows: Any) -> Any:
    for number, row in enumerate(rows):
        key = number, row.x
    return key


def looks_at_frames(key: Any, rows: Any) -> Any:
    for row in rows:
        key = row.x, locals()
    return key


def nests(key: Any, rows: Any) -> Any:
    return [row for row in (row for row in rows) if key]


def compares(key: Any, rows: Any) -> Any:
    for row in rows:
        if row == key:
            key = row.x
    return key


def formats(key: Any, rows: Any) -> Any:
    for row in rows:
        key += f"{row}"
    return key


def takes_the_next(key: Any, rows: Any) -> Any:
    return next(rows).x, key


def takes_all(*arguments: Any) -> Any:
    return arguments


@pytest.mark.parametrize(
    "function",
    [
        passes_rows,
        passes_a_row,
        compares_two_rows,
        compares_rows_of_generators,
        compares_rows_of_one_generator,
        keeps_a_row,
        keeps_rows,
        calls_a_method,
        takes_a_method,
        takes_an_attribute_of_every_row,
        takes_another_attribute,
        takes_an_item,
        unpacks,
        closes_over_rows,
        closes_over_a_row,
        counts,
        looks_at_frames,
        nests,
        compares,
        formats,
        takes_the_next,
        takes_all,
        print,
        None,
    ],
)
def test_columns_count_as_read_where_a_row_goes_anywhere_else(function: Any) -> None:
    assert columns_read(function, 1, NAMES) is None


def by_key(key: Any, rows: Any, state: Any) -> Iterator[Any]:
    total = state.value + len(rows)
    for row in rows:
        total += row.i or 0
        if row.z:
            rows.drop_state()
    state.value = total
    yield key[0], f"{total} {rows.column('s')}"


def by_key_whole(key: Any, rows: Any, state: Any) -> Iterator[Any]:
    total = state.value + len(rows)
    for row in list(rows):
        total += row.i or 0
        if row.z:
            rows.drop_state()
    state.value = total
    yield key[0], f"{total} {rows.column('s')}"


def test_functions_of_a_key_may_ask_for_more_than_rows() -> None:
    methods = frozenset(["column", "drop_state"])
    assert columns_read(by_key, 1, NAMES, methods=methods) == ("i", "z")
    assert columns_read(by_key, 1, NAMES) is None
    assert columns_read(by_key_whole, 1, NAMES, methods=methods) is None
    draw = random.Random(1)
    runs = []
    for function in (by_key, by_key_whole):
        flow = gw.Flow("rows", num_key_groups=8)
        rows = flow.source("rows", gw.testing.stream(COLUMNS)).key_by("k")
        said = rows.process(function, state=int, output="k string, said string")
        flow.sink("out", said, gw.sinks.memory())
        runs.append(gw.testing.cluster(flow))
    for _ in range(2):
        drawn = [_drawn_row(draw) for _ in range(30)]
        for run in runs:
            run.epoch({"rows": drawn})
    fast, plain = (run.rows("out") for run in runs)
    assert fast == plain


class Reading(StatefulProcessor):
    """Says columns of its rows by a function, after the second key of a lane by another one."""

    def __init__(self, function: Callable[..., Any], later: Callable[..., Any] | None = None):
        self.function, self.later = function, later

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "said string")
        self.calls = 0
        self._use(self.function)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        raise NotImplementedError

    def say(self, key: Any, values: list[Any]) -> Iterator[Any]:
        """Say values, and those that were said before them."""
        self.calls += 1
        if self.later is not None and self.calls == 2:
            self._use(self.later)
        yield Row(k=key[0], said=f"{values} after {self.last.get()}")
        self.last.update((repr(values),))

    def _use(self, function: Callable[..., Any]) -> None:
        self.handleInputRows = MethodType(function, self)  # type: ignore[method-assign]

    def close(self) -> None:
        pass


def by_attribute(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    values = []
    for row in rows:
        values.append((row.i, row.x, row.s, row.d, row.ts))
    return self.say(key, values)


def by_item(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    return self.say(key, [tuple(row[name] for name in ("i", "x", "s", "d", "ts")) for row in rows])


def whole(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    return self.say(key, [tuple(row) for row in rows])


def by_all_attributes(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    values = []
    for row in rows:
        first = row.k, row.i, row.x, row.f, row.z, row.s
        values.append((*first, row.b, row.d, row.day, row.ts, row.a))
    return self.say(key, values)


def whole_but_count(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    return self.say(key, [tuple(row)[:-1] for row in rows])


def number(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    values = []
    for row in rows:
        values.append(1)
    return self.say(key, values)


def number_of_list(self: Any, key: Any, rows: Any, timerValues: Any) -> Any:
    return self.say(key, [1] * len(list(rows)))


@pytest.mark.parametrize(
    ("fast", "plain"),
    [
        (Reading(by_attribute), Reading(by_item)),
        (Reading(by_all_attributes), Reading(whole_but_count)),
        (Reading(by_attribute, later=whole), Reading(by_item, later=whole)),
        (Reading(number), Reading(number_of_list)),
    ],
)
def test_rows_as_one_object_say_what_rows_say(fast: Any, plain: Any) -> None:
    assert columns_read(fast.function, 2, NAMES, row=Row) is not None
    assert columns_read(plain.function, 2, NAMES, row=Row) is None
    draw = random.Random(1)
    runs = [Processed(each, columns=COLUMNS) for each in (fast, plain)]
    for _ in range(2):
        rows = [_drawn_row(draw) for _ in range(30)]
        said, expected = (run.epoch(rows) for run in runs)
        assert said == expected


def test_the_object_shows_the_present_row() -> None:
    cursor = next(iter(Cursors(("a", "b")).over([[1, 2], ["x", "y"]], 2)))
    assert repr(cursor) == "Row(a=1, b='x', ...)"


def _drawn_row(draw: random.Random) -> dict[str, Any]:
    """Return a row of `COLUMNS`, in which any value but the key may be null."""
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=draw.random() * 1e7)
    row = {
        "k": draw.choice("abcdef"),
        "i": draw.randrange(-(2**31), 2**31),
        "x": draw.randrange(-(2**63), 2**63),
        "f": draw.random(),
        "z": draw.random() < 0.5,
        "s": draw.choice(["", "text", "ä"]),
        "b": draw.randbytes(2),
        "d": Decimal(draw.randrange(10**6)).scaleb(-2),
        "day": moment.date(),
        "ts": moment,
        "a": [1, None],
        "count": draw.randrange(9),
    }
    return {name: v if name == "k" or draw.random() < 0.8 else None for name, v in row.items()}

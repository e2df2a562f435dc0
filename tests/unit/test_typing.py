"""Findings of a type checker in a user's program."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]

PROGRAM = """
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from pyspark.sql import DataFrame, SparkSession, functions as F
import godwit as gw


def long_ones(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("arr_delay") > 60)


def build(spark: SparkSession) -> gw.Flow:
    flow = gw.Flow("delays")
    flights = flow.source("flights", spark.readStream.parquet("in/"))
    late = flights.map(long_ones).key_by("tailnum").compute(n=gw.count())
    flow.sink("late", late, gw.sinks.parquet("out/"))
    return flow


def run(flow: gw.Flow) -> gw.types.Query:
    query = flow.start(checkpoint="ck/", trigger={"availableNow": True}, executors=2)
    moving = query.migrate({0: "1"}, component="late", bounds=gw.migration.Bounds(max_moves=2))
    print(moving.done, query.components, query.events)
    return query


def wrong(flow: gw.Flow, query: gw.types.Query) -> None:
    flow.start(checkpont="ck/")  # WRONG
    flow.start(checkpoint="ck/", trigger="1 second")  # WRONG
    flow.start(checkpoint="ck/", trigger={"availablenow": True})  # WRONG
    flow.start(checkpoint="ck/", executors="2")  # WRONG
    flow.start(checkpoint="ck/", lanes=gw.Lanes(compression="gzip"))  # WRONG
    query.migrate({0: 1})  # WRONG
    query.migrate({0: "1"}, bounds=3)  # WRONG
    query.migrate({0: "1"}, strategy="gentle")  # WRONG
    gw.Flow(3)  # WRONG
    gw.sumn("arr_delay")  # WRONG
    flow.source("flights", None).compute(n=gw.count())  # WRONG
    flow.sink("late", "stream", gw.sinks.noop())  # WRONG


# -- rows, state and output of classes


@dataclass
class Order:
    symbol: str
    price: float


class Trade(msgspec.Struct):
    symbol: str
    price: float


class Refusal(msgspec.Struct):
    symbol: str
    reason: str


@dataclass
class Book:
    bids: list[float] = field(default_factory=list)


def clear(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> Iterator[Trade]:
    for order in rows:
        book.bids.append(order.price)
        yield Trade(key[0], order.price)


def count(
    key: tuple[str], rows: gw.types.KeyRows[Order], seen: gw.types.State[int]
) -> Iterator[Trade]:
    seen.value += len(rows)
    yield Trade(key[0], float(seen.value))


def wake(key: tuple[str], timer: gw.types.FiredTimer, book: Book) -> list[Trade]:
    return [Trade(key[0], max(book.bids))]


def plain(key, rows, state):  # type: ignore[no-untyped-def]
    return [(key[0], len(rows))]


async def ask(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> list[Trade]:
    return []


def several(key: tuple[str], rows: gw.types.KeyRows[Order], states: gw.types.States) -> list[Trade]:
    return []


def asks_rates(
    key: tuple[str], rows: gw.types.KeyRows[Order], book: Book, rates: dict[str, float]
) -> list[Trade]:
    return []


def wakes_rates(
    key: tuple[str], timer: gw.types.FiredTimer, book: Book, rates: dict[str, float]
) -> list[Trade]:
    return []


def joined(one: Book, other: Book) -> Book:
    return Book(one.bids + other.bids)


def typed(orders: gw.types.KeyedStream, flow: gw.Flow) -> None:
    right = orders.process(
        clear,
        row=Order,
        state=gw.ValueState(Book, ttl="1 day"),
        output=gw.types.Output(Trade, event_time="at", slack="1 hour"),
        timers=gw.types.OnTimer(wake, clock="event"),
        name=gw.types.Identity("clear", formerly="cleared"),
    )
    divided = gw.ValueState(Book, merge=joined)
    merged = orders.process(clear, row=Order, state=divided, output=Trade, name="m")
    rates = orders.process(
        asks_rates,
        row=Order,
        state=Book,
        output=Trade,
        timers=gw.types.OnTimer(wakes_rates, clock="event"),
        broadcast={"rates": orders},
    )
    texts = gw.types.Output("symbol string, n long", slack="1 hour", event_time="at")
    bare = orders.process(
        plain, state=dict, output=texts, timers=gw.types.OnTimer(plain, clock="processing")
    )
    counted = orders.process(count, row=Order, state=int, output=Trade)
    untyped = orders.process(plain, state=dict[str, int], output="symbol string, n long")
    asked = orders.process(ask, row=Order, state=Book, output=Trade, asynchronous=gw.types.Async())
    named = orders.process(several, row=Order, state={"n": gw.ValueState(int)}, output=Trade)
    kinds = {"n": gw.ValueState(int), "prices": gw.ListState(float), "m": gw.MapState(str, int)}
    mixed = orders.process(several, row=Order, state=kinds, output=Trade)
    for stream in (right, merged, rates, bare, counted, untyped, asked, named, mixed):
        flow.sink("out", stream, gw.sinks.noop())


def puts(key: tuple[str], rows: gw.types.KeyRows[Order], seen: gw.types.State[int]) -> None:
    seen.value = "many"  # E: Incompatible types in assignment


def reads(key: tuple[str], rows: gw.types.KeyRows[Order], seen: gw.types.State[str]) -> None: ...
def other(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> list[Refusal]:
    return []


def forgets(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> list[Trade]:
    return [Trade(key[0])]  # E: Missing positional argument "price"


def unknown(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> list[Trade]:
    return [Trade(key[0], order.prize) for order in rows]  # E: "Order" has no attribute "prize"


def late(key: tuple[str], rows: gw.types.KeyRows[Order], book: Book) -> list[Trade]:
    return []


def wakes_count(
    key: tuple[str], timer: gw.types.FiredTimer, seen: gw.types.State[int]
) -> list[Trade]:
    return []


def refuses_late(key: tuple[str], timer: gw.types.FiredTimer, book: Book) -> list[Refusal]:
    return []


def three(one: Book, two: int) -> Book:
    return one


def whole(key: str, rows: gw.types.KeyRows[Order], book: Book) -> list[Trade]:
    return []


def mistaken(orders: gw.types.KeyedStream) -> None:
    orders.process(reads, row=Order, state=int, output=Trade)  # E: Argument 1 to "process"
    orders.process(other, row=Order, state=Book, output=Trade)  # E: Argument 1 to "process"
    orders.process(clear, row=Trade, state=Book, output=Trade)  # E: Argument 1 to "process"
    gw.types.OnTimer(late, clock="event")  # E: Argument 1 to "OnTimer"
    of_count = gw.types.OnTimer(wakes_count, clock="event")
    orders.process(clear, state=Book, output=Trade, timers=of_count)  # E: type parameter "S"
    refuses = gw.types.OnTimer(refuses_late, clock="event")
    orders.process(clear, state=Book, output=Trade, timers=refuses)  # E: Argument "timers"
    gw.ValueState(Book, merge=three)  # E: type parameter "T" of "ValueState"
    counts = gw.ValueState(int, ttl="1 day")
    orders.process(clear, row=Order, state=counts, output=Trade)  # E: Argument 1 to "process"
    refusals = gw.types.Output(Refusal, event_time="at")
    orders.process(clear, row=Order, state=Book, output=refusals)  # E: Argument 1 to "process"
    orders.process(clear, state=Book, output=Trade, ttl="1 day")  # E: No overload variant
    orders.process(whole, row=Order, state=Book, output=Trade)  # E: Argument 1 to "process"
    orders.process(clear, row=Order, state=Book)  # E: No overload variant
"""


def test_a_right_program_passes_and_every_wrong_line_is_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # The project's own configuration is strict, and its cache knows PySpark already.
    config = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    said, errors, _ = api.run([*config, "--no-error-summary", "--hide-error-context", str(program)])
    assert not errors
    said_of: dict[int, str] = {}
    for line in said.splitlines():
        if ": error:" in line:
            number = int(line.split(":")[1])
            said_of[number] = said_of.get(number, "") + line
    expected = {
        number: text.partition("# E: ")[2]
        for number, text in enumerate(PROGRAM.splitlines(), 1)
        if "# WRONG" in text or "# E: " in text
    }
    assert said_of.keys() == expected.keys(), said
    assert [
        said_of[number] for number, text in expected.items() if text not in said_of[number]
    ] == []

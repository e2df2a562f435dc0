"""A job as a user's main script, with a JVM of its own: its classes, its Python, and its errors.

How classes of a notebook, or of standard input, travel: `tests/unit/spark/stages`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

JOB = """
from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys

import msgspec
from pyspark.sql import SparkSession

import godwit as gw

work = os.environ["GODWIT_TEST_DIR"]
os.makedirs(work + "/in")
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .getOrCreate()
)


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class OrderBook(msgspec.Struct):
    bids: list[float] = []
    asks: list[float] = []
    last: Side | None = None


@dataclasses.dataclass
class Seen:
    sides: dict[Side, int] = dataclasses.field(default_factory=dict)
    pairs: list = dataclasses.field(default_factory=list)


def clear_market(key, rows, book):
    for order in rows:
        book.last = Side.BUY if order.size > 0 else Side.SELL
        if order.size > 0:
            book.bids.append(order.price)
        else:
            book.asks.append(order.price)
        if book.bids and book.asks and max(book.bids) >= min(book.asks):
            price = min(book.asks)
            book.bids.remove(max(book.bids))
            book.asks.remove(price)
            yield key[0], price


def count_sides(key, rows, seen):
    for order in rows:
        side = Side.BUY if order.size > 0 else Side.SELL
        seen.sides[side] = seen.sides.get(side, 0) + 1
        if (order.price, side) not in seen.pairs:
            seen.pairs.append((order.price, side))
    yield key[0], seen.sides.get(Side.BUY, 0), len(seen.pairs)


def fail(key, rows, state):
    return 1 // 0


def play_wrong(name, stream_of, rows):
    flow = gw.Flow(name)
    flow.sink("out", stream_of(flow.source("rows", rows).key_by("k")), gw.sinks.noop())
    try:
        flow.start(checkpoint=work + "/" + name, trigger={"availableNow": True}).awaitTermination()
    except gw.errors.GodwitError as error:
        print(type(error).__name__, flush=True)


for number, size in enumerate([1, -1, 1, -1]):
    with open(f"{work}/in/{number}.json", "w") as file:
        for price in (1.0, 2.0):
            file.write(json.dumps({"symbol": "a", "price": price, "size": size}) + "\\n")
    os.utime(f"{work}/in/{number}.json", (1_600_000_000 + number,) * 2)

flow = gw.Flow("market", num_key_groups=4)
orders = flow.source(
    "orders",
    spark.readStream.schema("symbol string, price double, size long")
    .option("maxFilesPerTrigger", 1)
    .json(work + "/in"),
).key_by("symbol")
trades = orders.process(clear_market, state=OrderBook, output="symbol string, price double")
sides = orders.process(count_sides, state=Seen, output="symbol string, buys long, pairs long")
traded, counted = gw.sinks.memory(), gw.sinks.memory()
flow.sink("trades", trades, traded)
flow.sink("sides", sides, counted)
query = flow.start(checkpoint=work + "/ck")
query.processAllAvailable()
query.stop()
for sink in (traded, counted):
    rows = [row for table in sink.epochs.values() for row in table.to_pylist()]
    print(sorted(tuple(row.values()) for row in rows), flush=True)

rows = spark.readStream.schema("symbol string").json(work + "/in")
failing = rows.selectExpr("symbol as k")
play_wrong("failing", lambda keyed: keyed.process(fail, state=dict, output="k string"), failing)
casting = rows.selectExpr("cast(symbol as int) as k")  # 'a' is no number
play_wrong("casting", lambda keyed: keyed.compute(n=gw.count()), casting)
spark.stop()
"""


def plain_environment(path: str) -> dict[str, str]:
    hidden = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "PYTHONPATH")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": path,
    }


def test_state_of_its_classes_lasts_where_its_environment_is_not_activated_and_errors_are_told_once(
    tmp_path: Path,
) -> None:
    """First on the PATH is a python3 that has nothing."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={
            **plain_environment(f"{bare / 'bin'}:{os.environ['PATH']}"),
            "GODWIT_TEST_DIR": str(tmp_path / "work"),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "[('a', 1.0), ('a', 1.0), ('a', 2.0)]",
        "[('a', 2, 2), ('a', 2, 4), ('a', 4, 4), ('a', 4, 4)]",
        "UserFunctionError",
        "EpochFailedError",
    ], done.stderr[-3000:]
    # Errors of Spark's are in its log; those of a user's function are told, and that is all.
    assert done.stderr.count("terminated with error") == 1
    assert "ZeroDivisionError" not in done.stderr

"""State whose classes are the main script's.

How classes of a notebook, or of standard input, travel: `tests/unit/spark/stages`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


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
spark.stop()
"""


@pytest.mark.spark
def test_state_of_classes_of_the_main_script_lasts_over_epochs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "GODWIT_TEST_DIR": str(tmp_path / "work"),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "[('a', 1.0), ('a', 1.0), ('a', 2.0)]",
        "[('a', 2, 2), ('a', 2, 4), ('a', 4, 4), ('a', 4, 4)]",
    ], done.stderr[-3000:]

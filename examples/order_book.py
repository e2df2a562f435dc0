"""Arbitrary Python per key with state: a limit order book that matches orders as they arrive.

Run with ``python examples/order_book.py``.
"""

import heapq
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import godwit as gw

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@dataclass
class OrderBook:
    """State of a symbol: heaps of (price, number, quantity); bids have negative prices."""

    bids: list[tuple[float, int, int]] = field(default_factory=list)
    asks: list[tuple[float, int, int]] = field(default_factory=list)


def clear_market(
    key: tuple[str], rows: gw.KeyRows, book: OrderBook
) -> Iterator[tuple[str, float, int]]:
    """Match every order against the book; rows come in the order in which they arrived."""
    (symbol,) = key
    for order in rows:
        side, sign = (book.asks, 1) if order.side == "buy" else (book.bids, -1)
        left = order.quantity
        while left and side and abs(side[0][0]) * sign <= order.price * sign:
            price, number, quantity = heapq.heappop(side)
            traded = min(left, quantity)
            left -= traded
            if quantity > traded:
                heapq.heappush(side, (price, number, quantity - traded))
            yield symbol, abs(price), traded
        if left:
            own = book.bids if order.side == "buy" else book.asks
            heapq.heappush(own, (-sign * order.price, order.number, left))


work = Path(tempfile.mkdtemp(prefix="godwit-example-"))
(work / "in").mkdir()
dice = random.Random(7)
for part in range(4):
    orders = [
        {
            "number": part * 500 + i,
            "symbol": dice.choice(["AAA", "BBB", "CCC"]),
            "side": dice.choice(["buy", "sell"]),
            "price": float(dice.randint(95, 105)),
            "quantity": dice.randint(1, 10),
        }
        for i in range(500)
    ]
    pq.write_table(pa.Table.from_pylist(orders), work / "in" / f"part-{part}.parquet")

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

flow = gw.Flow("exchange", num_key_groups=16)
orders = flow.source(
    "orders",
    spark.readStream.schema("number long, symbol string, side string, price double, quantity long")
    .option("maxFilesPerTrigger", 1)
    .parquet(str(work / "in")),
)
trades = orders.key_by("symbol").process(
    clear_market,
    state=OrderBook,
    output="symbol string, price double, quantity long",
    name="trades",
    codec="msgpack",
)
volume = trades.key_by("symbol").compute(
    name="volume", trades=gw.count(), shares=gw.sum("quantity"), highest=gw.max("price")
)
result = gw.sinks.memory()
flow.sink("volume", volume, result)

query = flow.start(checkpoint=work / "checkpoint")
query.processAllAvailable()
query.stop()
table = result.table().sort_by("symbol")
print(table.to_pandas().to_string(index=False))
assert table.num_rows == 3
assert min(table["trades"].to_pylist()) > 100
spark.stop()

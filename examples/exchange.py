"""A stock exchange: orders are matched, and what is traded gives six statistics and five alarms.

    python examples/exchange.py                     # orders of a generator
    python examples/exchange.py orders.parquet      # columns ts, symbol, side, price, size, ...
    python examples/exchange.py --orders 200000 --per-second 2200 --spark

This is the application of "Elasticutor: Rapid Elasticity for Realtime Stateful Stream Processing"
(Wang et al.): limit orders come to a transactor, which keeps the order book of each stock; its
transactions go to statistics, such as moving averages and the composite index, and to operators
that look for events, such as a price beyond a threshold. The paper names those four; the others
are ours. Stocks are popular by Zipf's law, and the rate of each goes up and down. Without
``--spark`` key groups move between epochs, and executors die. Everything is compared with a book
that is searched from end to end for every order, and with pandas.
"""

import argparse
import datetime as dt
import heapq
import os
import random
import sys
import tempfile
import time
from bisect import insort_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import godwit as gw

ORDERS = pa.schema(
    [
        ("number", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("stock", pa.string()),
        ("side", pa.string()),  # buy or sell
        ("price", pa.int64()),  # cents
        ("shares", pa.int64()),
        ("trader", pa.int64()),
    ]
)
TRADES = pa.schema(
    [
        ("stock", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.int64()),
        ("shares", pa.int64()),
        ("buyer", pa.int64()),
        ("seller", pa.int64()),
    ]
)
LIMITS = pa.schema([("stock", pa.string()), ("above", pa.int64())])
MINUTE = gw.tumbling("1 minute")
SLIDING = gw.hopping("3 minutes", every="1 minute")
LENGTH, EVERY = 20, 5  # trades of a moving average, and from one to the next
MOMENT = dt.timedelta(microseconds=1)
SOON = dt.timedelta(seconds=30)
JUMP, BLOCK, RISES = 0.015, 5, 5  # share of a price; times the mean trade; trades in a row


# -- the transactor -------------------------------------------------------------------------------


@dataclass
class OrderBook:
    """Open orders of a stock: heaps of (price, number, shares, trader); bids by negative price."""

    bids: list[tuple[int, int, int, int]] = field(default_factory=list)
    asks: list[tuple[int, int, int, int]] = field(default_factory=list)


def match(key: tuple[str], rows: gw.types.KeyRows, book: OrderBook) -> Iterator[Any]:
    """Match each order with the best open ones; what is left of it is open from now on."""
    for order in rows:
        buys = order.side == "buy"
        own, others, sign = (book.bids, book.asks, 1) if buys else (book.asks, book.bids, -1)
        left = order.shares
        while left and others and others[0][0] <= sign * order.price:
            signed, number, shares, trader = heapq.heappop(others)
            traded = min(left, shares)
            left -= traded
            if shares > traded:
                heapq.heappush(others, (signed, number, shares - traded, trader))
            buyer, seller = (order.trader, trader) if buys else (trader, order.trader)
            yield key[0], order.at, sign * signed, traded, buyer, seller
        if left:
            heapq.heappush(own, (-sign * order.price, order.number, left, order.trader))


# -- statistics -----------------------------------------------------------------------------------


def moving_average(trades: Any) -> Any:
    """Mean price of the last trades."""
    last = trades.key_by("stock").window(gw.rows(LENGTH, every=EVERY), name="moving_average")
    return last.compute(mean=gw.mean("price"))


def candles(trades: Any) -> Any:
    """First, highest, lowest and last price of each minute."""
    prices = {"open": gw.first("price"), "high": gw.max("price"), "low": gw.min("price")}
    minutes = trades.key_by("stock").window(MINUTE, name="candles")
    return minutes.compute(**prices, close=gw.last("price"))


def weighted_price(trades: Any) -> Any:
    """Value and shares of the last minutes, which make a mean price by volume."""
    sliding = trades.map(with_value).key_by("stock").window(SLIDING, name="weighted_price")
    return sliding.compute(value=gw.sum("value"), shares=gw.sum("shares"))


def with_value(trades: pa.Table) -> pa.Table:
    return trades.append_column("value", pc.multiply(trades["price"], trades["shares"]))


def volatility(trades: Any) -> Any:
    """Deviation of the prices of the last minutes from their mean."""
    sliding = trades.key_by("stock").window(SLIDING, name="volatility")
    return sliding.compute(deviation=gw.stddev("price", population=True))


def turnover(trades: Any) -> Any:
    """All that was traded so far."""
    return trades.key_by("stock").compute(
        name="turnover", trades=gw.count(), shares=gw.sum("shares"), largest=gw.max("shares")
    )


def composite_index(trades: Any) -> Any:
    """All stocks' last prices by their first ones, minute by minute: their mean, times 1000."""
    closes = trades.key_by("stock").window(MINUTE, name="closes").compute(close=gw.last("price"))
    return (
        closes.map(of_one_market, schema=f"market string, {_CLOSES}")
        .key_by("market")
        .process(
            collect,
            name="composite_index",
            state=dict,
            timers=gw.types.OnTimer(weigh, clock="event"),
            output="window_end timestamp, index double",
        )
    )


_CLOSES = "stock string, window_end timestamp, close long"


def of_one_market(closes: pa.Table) -> pa.Table:
    market = pa.repeat(pa.scalar("all"), len(closes))
    return closes.select(["stock", "window_end", "close"]).add_column(0, "market", market)


def collect(_key: Any, rows: gw.types.KeyRows, state: dict) -> None:
    """Wait until a minute is over, since stocks are in different lanes."""
    minutes = state.setdefault("minutes", {})
    for row in rows:
        over = row.window_end - MOMENT  # what a window emits has happened just before its end
        minutes.setdefault(over, {})[row.stock] = row.close
        rows.timers.set(over)


def weigh(_key: Any, timer: Any, state: dict) -> Iterator[Any]:
    prices = state.setdefault("prices", {})
    for stock, close in state["minutes"].pop(timer.time).items():
        prices[stock] = [prices.get(stock, [close])[0], close]
    mean = sum(last / first for first, last in prices.values()) / len(prices)
    yield timer.time + MOMENT, 1000 * mean


# -- events ---------------------------------------------------------------------------------------


def price_alarm(key: Any, rows: gw.types.KeyRows, state: dict, limits: Any) -> Iterator[Any]:
    """Alarm: the price has risen above what someone asked to be told of."""
    limit = limits.get(key[0])
    for row in rows:
        above = limit is not None and row.price > limit.above
        if above and not state.get("above"):
            yield key[0], row.at, row.price
        state["above"] = above


def jump(key: Any, rows: gw.types.KeyRows, state: dict) -> Iterator[Any]:
    """Alarm: the price is far from what it was within the last seconds."""
    recent = state.get("recent", [])
    for row in rows:
        recent = [(at, price) for at, price in recent if row.at - at <= SOON]
        if any(abs(row.price - price) > JUMP * price for _, price in recent):
            yield key[0], row.at, row.price
        recent.append((row.at, row.price))
    state["recent"] = recent


def block_trade(key: Any, rows: gw.types.KeyRows, state: dict) -> Iterator[Any]:
    """Alarm: far more shares than in a usual trade of the stock."""
    trades, shares = state.get("trades", 0), state.get("shares", 0)
    for row in rows:
        if row.shares * trades > BLOCK * shares and trades:
            yield key[0], row.at, row.price
        trades, shares = trades + 1, shares + row.shares
    state.update(trades=trades, shares=shares)


def wash_trade(key: Any, rows: gw.types.KeyRows, state: dict) -> Iterator[Any]:
    """Alarm: two traders sell one another the same stock, or one trades alone; perhaps fraud."""
    for row in rows:
        back = state.get(f"{row.seller} to {row.buyer}")
        state[f"{row.buyer} to {row.seller}"] = row.at
        if row.buyer == row.seller or (back is not None and row.at - back <= SOON):
            yield key[0], row.at, row.price


def by_pair(trades: pa.Table) -> pa.Table:
    """Name the two traders, whoever of them buys."""
    for name, of_both in (("low", pc.min_element_wise), ("high", pc.max_element_wise)):
        trades = trades.append_column(name, of_both(trades["buyer"], trades["seller"]))
    return trades


def rally(key: Any, rows: gw.types.KeyRows, state: dict) -> Iterator[Any]:
    """Alarm: the price has risen from trade to trade, several times in a row."""
    rises = state.get("rises", 0)
    for row in rows:
        rises = rises + 1 if row.price > state.get("price", row.price) else 0
        state["price"] = row.price
        if rises == RISES:
            yield key[0], row.at, row.price
    state["rises"] = rises


STATISTICS = (moving_average, candles, weighted_price, volatility, turnover, composite_index)
EVENTS = (price_alarm, jump, block_trade, wash_trade, rally)


def build(orders: Any, limits: Any, store: Callable[[str], Any]) -> gw.Flow:
    """Describe the flow; `store` makes the sink of a result."""
    flow = gw.Flow("exchange", num_key_groups=32)
    arriving = flow.source("orders", orders, event_time="at", max_ahead="36500 days")
    above = flow.source("limits", limits)
    trades = arriving.key_by("stock").process(
        match, name="transactor", state=OrderBook, output=gw.types.Output(TRADES, event_time="at")
    )
    flow.sink("trades", trades, store("trades"))
    for statistic in STATISTICS:
        flow.sink(statistic.__name__, statistic(trades), store(statistic.__name__))
    for event in EVENTS:
        keyed = trades.key_by("stock")
        if event is wash_trade:
            keyed = trades.map(by_pair).key_by("stock", "low", "high")
        tables: Any = {"limits": above.key_by("stock")} if event is price_alarm else None
        found = keyed.process(
            event,
            name=event.__name__,
            state=dict,
            output="stock string, at timestamp, price long",
            broadcast=tables,
        )
        flow.sink(event.__name__, found, store(event.__name__))
    return flow


# -- the oracle -----------------------------------------------------------------------------------


def traded(orders: pa.Table) -> pd.DataFrame:
    """Match all orders; open ones are in a sorted list for each side, the best one last."""
    trades: list = []
    open_orders: defaultdict = defaultdict(list)
    for order in orders.to_pylist():
        sign = 1 if order["side"] == "buy" else -1
        own, others = (open_orders[order["stock"], side] for side in (sign, -sign))
        left = order["shares"]
        while left and others and sign * others[-1]["price"] <= sign * order["price"]:
            best = others[-1]
            shares = min(left, best["shares"])
            left -= shares
            best["shares"] -= shares
            if not best["shares"]:
                others.pop()
            buyer, seller = (order, best)[::sign]
            trades.append([order["stock"], order["at"], best["price"], shares,
                           buyer["trader"], seller["trader"]])  # fmt: skip
        if left:
            # Of equal prices the older order is the better one, and so comes later.
            still = {**order, "shares": left, "rank": sign * order["price"]}
            insort_left(own, still, key=itemgetter("rank"))
    return pd.DataFrame(trades, columns=TRADES.names)


def sliding(trades: pd.DataFrame) -> pd.DataFrame:
    """Put each trade into the windows that it is in."""
    first = trades["at"].dt.floor("min") + pd.Timedelta(minutes=1)
    ends = [trades.assign(window_end=first + pd.Timedelta(minutes=m)) for m in range(3)]
    return pd.concat(ends)


def index_of(candles_: pd.DataFrame) -> pd.DataFrame:
    """Compute the composite index of minutes' last prices."""
    closes = candles_.pivot_table(index="window_end", columns="stock", values="close")
    relative = closes.ffill() / closes.bfill().iloc[0]
    return (1000 * relative.mean(axis=1)).rename("index").reset_index()


def events_of(trades: pd.DataFrame, limits: dict[str, int]) -> dict[str, list[pd.Series]]:
    """Find events, each by looking back over all trades of the stock."""
    found = defaultdict(list)
    for stock, own in trades.groupby("stock"):
        own = own.reset_index(drop=True)  # noqa: PLW2901
        before = own.shift()
        high = own.price > limits.get(stock, 2**62)
        found["price_alarm"].append(own[high & ~high.shift(fill_value=False)])
        total = own.shares.cumsum() - own.shares
        found["block_trade"].append(own[(own.shares * own.index > BLOCK * total) & (own.index > 0)])
        rises = own.price > before.price
        rallies = rises.groupby((~rises).cumsum()).cumsum()
        found["rally"].append(own[rallies == RISES])
        first = own["at"].searchsorted(own["at"] - SOON)  # of the trades within the last seconds
        price, buyer, seller = (own[name].to_numpy() for name in ("price", "buyer", "seller"))
        jumps, washes = np.zeros((2, len(own)), bool)
        for now, since in enumerate(first):
            jumps[now] = (abs(price[since:now] - price[now]) > JUMP * price[since:now]).any()
            back = (buyer[since:now] == seller[now]) & (seller[since:now] == buyer[now])
            washes[now] = back.any() or buyer[now] == seller[now]
        found["jump"].append(own[jumps])
        found["wash_trade"].append(own[washes])
    return found


def expected(orders: pa.Table, limits: dict[str, int]) -> dict[str, pd.DataFrame]:
    """Compute all results from all orders at once."""
    trades = traded(orders)
    minutes = trades.assign(window_end=trades["at"].dt.floor("min") + pd.Timedelta(minutes=1))
    windows = sliding(trades).assign(value=lambda rows: rows.price * rows.shares)
    keys = ["stock", "window_end"]
    prices = trades.groupby("stock").price
    number = prices.cumcount() + 1
    means = prices.rolling(LENGTH).mean().reset_index("stock", drop=True)
    averages = trades.assign(mean=means, window_number=(number - LENGTH) // EVERY)
    ohlc = minutes.groupby(keys).price.agg(open="first", high="max", low="min", close="last")
    of_shares = {"trades": "size", "shares": "sum", "largest": "max"}
    found = {
        "trades": trades,
        "moving_average": averages[(number >= LENGTH) & ((number - LENGTH) % EVERY == 0)],
        "candles": ohlc.reset_index(),
        "weighted_price": windows.groupby(keys, as_index=False)[["value", "shares"]].sum(),
        "volatility": windows.groupby(keys).price.std(ddof=0).rename("deviation").reset_index(),
        "turnover": trades.groupby("stock").shares.agg(**of_shares).reset_index(),
        "composite_index": index_of(ohlc.reset_index()),
    }
    for event, parts in events_of(trades, limits).items():
        found[event] = pd.concat(parts)
    columns = {
        "moving_average": ["stock", "window_number", "mean"],
        **{event.__name__: ["stock", "at", "price"] for event in EVENTS},
    }
    return {name: rows[columns.get(name, rows.columns)] for name, rows in found.items()}


def check(found: dict[str, pd.DataFrame], of_pandas: dict[str, pd.DataFrame]) -> dict[str, int]:
    """Compare all results; return the numbers of their rows."""
    for name, rows in found.items():
        other = of_pandas.get(name, rows[:0])
        names = list(other.columns)
        ordered = [t[names].sort_values(names).reset_index(drop=True) for t in (rows, other)]
        pd.testing.assert_frame_equal(*ordered, check_dtype=False, rtol=1e-9, obj=name)
    return {name: len(rows) for name, rows in found.items()}


# -- orders ---------------------------------------------------------------------------------------


def invented(count: int, per_second: float = 8, stocks: int = 20, seed: int = 1) -> pa.Table:
    """Make orders of a generator: rates of stocks and their prices walk, second by second."""
    dice = np.random.default_rng(seed)
    seconds = int(count / per_second) + 1
    micros = np.sort(dice.uniform(0, 1e6 * count / per_second, count))
    walks = dice.normal(0, 0.3, (seconds, stocks)).cumsum(axis=0)
    rates = np.exp(walks) / np.arange(1, stocks + 1)
    chances = (rates / rates.sum(axis=1, keepdims=True)).cumsum(axis=1)
    second = (micros // 1e6).astype(int)
    stock = (chances[second] < dice.random(count)[:, None]).sum(axis=1).clip(max=stocks - 1)
    middles = 10_000 * np.exp(dice.normal(0, 0.001, (seconds, stocks)).cumsum(axis=0))
    buys = dice.random(count) < 0.5
    distance = dice.normal(20, 60, count)
    price = middles[second, stock] - np.where(buys, distance, -distance)
    columns = [
        np.arange(count),
        np.datetime64("2024-05-02T09:30", "us") + micros.astype("timedelta64[us]"),
        pa.array([f"{600_000 + number}" for number in stock]),
        pa.array(np.where(buys, "buy", "sell").tolist()),
        price.astype(np.int64).clip(1),
        100 * dice.geometric(0.2, count),
        dice.integers(0, 60, count),
    ]
    return pa.table(columns, names=ORDERS.names).cast(ORDERS)


def recorded(path: Path, count: int) -> pa.Table:
    """Read the first new orders of stocks in a Parquet file; who gave them is not in it."""
    rows = pq.read_table(path).to_pandas()
    new = (rows.event_type == "new") & (rows["size"] % 1 == 0) & (rows["size"] > 0)
    rows = rows[new & rows.side.isin(["B", "S"])].sort_values("ts", kind="stable")[:count]
    made = pd.DataFrame(
        {
            "number": np.arange(len(rows)),
            "at": rows.ts.dt.floor("us"),
            "stock": rows.symbol,
            "side": rows.side.map({"B": "buy", "S": "sell"}),
            "price": (rows.price * 100).round().astype(int),
            "shares": rows["size"].astype(int),
            "trader": np.random.default_rng(1).integers(0, 500, len(rows)),
        }
    )
    return pa.Table.from_pandas(made, ORDERS, preserve_index=False)


def limits_of(orders: pa.Table) -> dict[str, int]:
    """Ask to be told of prices that are 1 % above a stock's first, of every second stock."""
    first = dict(zip(*(orders[name].to_pylist()[::-1] for name in ("stock", "price")), strict=True))
    return {stock: first[stock] * 101 // 100 for stock in sorted(first)[::2]}


# -- what runs it ---------------------------------------------------------------------------------


def play(orders: pa.Table, limits: dict[str, int], epochs: int, seed: int = 0) -> dict[str, Any]:
    """Play the flow in this process while key groups move and executors die."""
    dice, share = random.Random(seed), -(-len(orders) // epochs)
    sources = gw.sources.memory(ORDERS), gw.sources.memory(LIMITS)
    flow = build(*sources, lambda _name: gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2) as run:
        for number in range(epochs):
            above = [] if number else [*limits.items()]
            run.epoch({"orders": orders.slice(number * share, share), "limits": above})
            if number % 3 == 2:
                run.add(f"new-{number}")
                run.kill(dice.choice([name for name in run.executors if name != f"new-{number}"]))
            else:
                run.migrate(
                    dice.choice(list(run.executors)),
                    component=dice.choice(list(run.placement.assignments)),
                )
        run.end_input()
        assert not run.late
        return {sink.name: run.current(sink.name).to_pandas() for sink in flow.sinks}


def stream(orders: pa.Table, limits: dict[str, int], epochs: int) -> dict[str, Any]:
    """Run the flow on Spark, and say how fast."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  in this process nobody needs it

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    arriving = gw.sources.memory(ORDERS, orders, max_rows_per_epoch=-(-len(orders) // epochs))
    above = gw.sources.memory(LIMITS, [*limits.items()])
    results: dict[str, Any] = {}
    flow = build(arriving, above, lambda name: results.setdefault(name, gw.sinks.memory()))
    began = time.perf_counter()
    query = flow.start(
        checkpoint=tempfile.mkdtemp(prefix="godwit-example-"),
        trigger={"availableNow": True},
        close_at_end=True,
    )
    query.awaitTermination()
    seconds = time.perf_counter() - began
    spark.stop()
    print(f"{len(orders) / seconds:,.0f} orders a second, {epochs} epochs")
    return {name: sink.table().to_pandas() for name, sink in results.items()}


def main() -> None:
    """Read the command line, trade, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("file", nargs="?", help="a Parquet file; by default orders are invented")
    options.add_argument("--orders", type=int, default=2000, help="orders that are taken")
    options.add_argument("--per-second", type=float, default=8, help="that the generator makes")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--spark", action="store_true", help="run on Spark")
    given = options.parse_args()
    path = given.file or os.environ.get("GODWIT_ORDERS")
    if path and not Path(path).exists():
        options.error(f"There is no {path}: name a Parquet file, or none for invented orders.")
    if path:
        orders = recorded(Path(path), given.orders)
    else:
        orders = invented(given.orders, given.per_second)
    limits = limits_of(orders)
    found = (stream if given.spark else play)(orders, limits, given.epochs)
    for name, rows in check(found, expected(orders, limits)).items():
        print(f"{rows:>8,} {name}, those of all orders at once")


if __name__ == "__main__":
    main()

"""NEXMark: queries 1 to 8, 11 and 12 over an auction house, each compared with pandas.

    python lab/examples/nexmark.py            # all queries
    python lab/examples/nexmark.py q4 q7      # some of them
    python lab/examples/nexmark.py --events 100000 --seed 3

The queries are those of Tucker et al., "NEXMark - A Benchmark for Queries over Data Streams", with
the windows of their later versions, in this process and without Spark; between epochs key groups
move, executors die, and the query starts again on one to four executors. What comes out is
compared, row by row, with what pandas makes of all events at once.
"""

import argparse
import datetime as dt
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import godwit as gw
from godwit_lab.sources.nexmark import nexmark

WINDOW_S, EVERY_S, GAP_S = 10, 2, 2
TICK_S = 3  # that the clock is moved on between two epochs
EXCHANGE = 0.908
STATES = ("OR", "ID", "CA")
Kind = Literal["bids", "auctions", "persons"]
KINDS: dict[Kind, int] = {"bids": 46, "auctions": 3, "persons": 1}  # of 50 events
_PLAN = {"start": "2024-01-01T00:00:00+00:00", "paced": False, "events_per_second": 100.0}


@dataclass(frozen=True)
class House:
    """An auction house: its events, for a flow or as a whole."""

    events: int
    epochs: int
    seed: int

    def source(self, kind: Kind) -> Any:
        """Make the source of one kind of events."""
        rows = self.events // 50 * KINDS[kind]
        share = -(-rows // self.epochs)
        options: dict[str, Any] = {"num_rows": rows, "max_rows_per_epoch": share, **_PLAN}
        return nexmark(kind, seed=self.seed, **options)

    def table(self, kind: Kind) -> pd.DataFrame:
        """Return all events of a kind, with the number of the epoch that reads them."""
        source = self.source(kind)
        source.open(None)
        start = source.start()
        tables = [
            pa.Table.from_batches(
                [b for s in source.splits(start, end, 1) for b in source.read(s, names)]
            )
            for names in [source.schema.names]
            for end in [source.end(start)]
        ]
        rows = tables[0].to_pandas()
        rows["epoch"] = rows.index // -(-len(rows) // self.epochs)
        return rows


class Streams:
    """Streams of an auction house in one flow; those that nobody asks for are not read."""

    def __init__(self, flow: gw.Flow, house: House) -> None:
        self._flow, self._house = flow, house

    def _stream(self, kind: Kind) -> Any:
        source = self._house.source(kind)
        return self._flow.source(kind, source, event_time="date_time", max_ahead="36500 days")

    @cached_property
    def bids(self) -> Any:
        """Bids."""
        return self._stream("bids")

    @cached_property
    def auctions(self) -> Any:
        """Auctions."""
        return self._stream("auctions")

    @cached_property
    def persons(self) -> Any:
        """Persons."""
        return self._stream("persons")


# -- queries: what a user writes, and the same in pandas ------------------------------------------


def columns(rows: pa.Table, **values: Any) -> pa.Table:
    """Make a table of columns of another, named or computed."""
    return pa.table({name: rows[v] if isinstance(v, str) else v for name, v in values.items()})


def q1(house: Streams) -> Any:
    """Prices in another currency."""

    def converted(rows: pa.Table) -> pa.Table:
        price = pc.multiply(rows["price"], EXCHANGE)
        return columns(rows, auction="auction", bidder="bidder", price=price, date_time="date_time")

    def passed(key: Any, rows: Any, _state: dict) -> Iterator[Any]:
        yield from ((key[0], row.bidder, row.price) for row in rows)

    stream = house.bids.map(converted).key_by("auction")
    return stream.process(passed, state=dict, output="auction long, bidder long, price double")


def q1_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids")[["auction", "bidder", "price"]]
    return bids.assign(price=bids.price * EXCHANGE)


def q2(house: Streams) -> Any:
    """Bids for some auctions."""

    def chosen(rows: pa.Table) -> pa.Table:
        auction = rows["auction"]
        rest = pc.subtract(auction, pc.multiply(pc.divide(auction, 123), 123))
        return rows.filter(pc.equal(rest, 0)).select(["auction", "price", "date_time"])

    def passed(key: Any, rows: Any, _state: dict) -> Iterator[Any]:
        yield from ((key[0], row.price) for row in rows)

    stream = house.bids.map(chosen).key_by("auction")
    return stream.process(passed, state=dict, output="auction long, price long")


def q2_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids")
    return bids[bids.auction % 123 == 0][["auction", "price"]]


def q3(house: Streams) -> Any:
    """Who sells in category 10, in some states: a join without an end."""
    empty = {"long": pa.int64(), "text": pa.string()}

    def people(rows: pa.Table) -> pa.Table:
        near = rows.filter(pc.is_in(rows["state"], pa.array(STATES)))
        return columns(
            near,
            seller="id",
            auction=pa.nulls(len(near), empty["long"]),
            name="name",
            state="state",
            date_time="date_time",
        )

    def items(rows: pa.Table) -> pa.Table:
        fits = rows.filter(pc.equal(rows["category"], 10))
        nothing = pa.nulls(len(fits), empty["text"])
        return columns(
            fits, seller="seller", auction="id", name=nothing, state=nothing, date_time="date_time"
        )

    def match(_key: Any, rows: Any, state: dict) -> Iterator[Any]:
        """Emit an auction with its seller, whoever comes first."""
        auctions = state.setdefault("auctions", [])
        for row in rows:
            if row.auction is not None and "person" in state:
                yield *state["person"], row.auction
            elif row.auction is not None:
                auctions.append(row.auction)
            else:
                state["person"] = (row.name, row.state)
                yield from ((row.name, row.state, auction) for auction in auctions)
                auctions.clear()

    both = house.persons.map(people).union(house.auctions.map(items)).key_by("seller")
    return both.process(match, state=dict, output="name string, state string, auction long")


def q3_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    persons, auctions = house.table("persons"), house.table("auctions")
    near = persons[persons.state.isin(STATES)]
    joined = auctions[auctions.category == 10].merge(
        near, left_on="seller", right_on="id", suffixes=("", "_of_person")
    )
    return joined[["name", "state", "id"]].rename(columns={"id": "auction"})


def closed_auctions(house: Streams) -> Any:
    """Auctions that are over, with the highest bid that came in time."""

    def offers(rows: pa.Table) -> pa.Table:
        nothing, count = pa.int64(), len(rows)
        return columns(
            rows,
            auction="auction",
            price="price",
            seller=pa.nulls(count, nothing),
            category=pa.nulls(count, nothing),
            expires=pa.nulls(count, pa.timestamp("us", tz="UTC")),
            date_time="date_time",
        )

    def items(rows: pa.Table) -> pa.Table:
        return columns(
            rows,
            auction="id",
            price=pa.nulls(len(rows), pa.int64()),
            seller="seller",
            category="category",
            expires="expires",
            date_time="date_time",
        )

    def take(_key: Any, rows: Any, state: dict) -> None:
        bids = state.setdefault("bids", [])
        for row in rows:
            if row.price is None:
                state["item"] = (row.seller, row.category, row.date_time, row.expires)
                rows.timers.set(row.expires)
            else:
                bids.append((row.date_time, row.price))

    def close(key: Any, timer: Any, state: dict) -> Iterator[Any]:
        seller, category, begin, end = state["item"]
        prices = [price for at, price in state["bids"] if begin <= at <= end]
        if prices:
            yield key[0], seller, category, max(prices), end
        timer.drop_state()

    both = house.bids.map(offers).union(house.auctions.map(items)).key_by("auction")
    return both.process(
        take,
        name="closed",
        state=dict,
        timers=gw.types.OnTimer(close, clock="event"),
        output="auction long, seller long, category long, price long, expires timestamp",
    )


def closed_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    joined = house.table("auctions").merge(
        house.table("bids"), left_on="id", right_on="auction", suffixes=("", "_of_bid")
    )
    in_time = joined[
        (joined.date_time <= joined.date_time_of_bid) & (joined.date_time_of_bid <= joined.expires)
    ]
    return in_time.groupby(["id", "seller", "category", "expires"], as_index=False).price.max()


def q4(house: Streams) -> Any:
    """Mean price of what was sold, by category."""
    by_category = closed_auctions(house).key_by("category")
    return by_category.compute(price=gw.mean("price"), sold=gw.count())


def q4_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    sold = closed_expected(house).groupby("category").price
    return sold.agg(["mean", "size"]).reset_index().set_axis(["category", "price", "sold"], axis=1)


def q6(house: Streams) -> Any:
    """Mean price of the last ten auctions of a seller that were sold."""

    def mean(key: Any, rows: Any, state: dict) -> Iterator[Any]:
        last = state.setdefault("last", [])
        last += [[row.expires, row.auction, row.price] for row in rows]
        last.sort()
        del last[:-10]
        yield key[0], sum(price for *_, price in last) / len(last)

    sold = closed_auctions(house).key_by("seller")
    return sold.process(mean, state=dict, output="seller long, price double")


def q6_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    sold = closed_expected(house).sort_values(["expires", "id"])
    return sold.groupby("seller").price.agg(lambda prices: prices.tail(10).mean()).reset_index()


def q5(house: Streams) -> Any:
    """Auctions with most bids, in windows that overlap."""

    def hottest(key: Any, rows: Any, _window: Any) -> Iterator[Any]:
        most = max(rows.column("bids"))
        for row in rows:
            if row.bids == most:
                yield key[0], row.auction, row.bids

    sliding = gw.hopping(f"{WINDOW_S} seconds", every=f"{EVERY_S} seconds")
    counts = house.bids.key_by("auction").window(sliding, name="bids").compute(bids=gw.count())
    of_window = counts.key_by("window_end").window(
        gw.tumbling(f"{EVERY_S} seconds"), time="window_end", name="hottest"
    )
    return of_window.process(hottest, output="window_end timestamp, auction long, bids long")


def q5_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids")[["auction", "date_time"]]
    first = bids.date_time.dt.floor(f"{EVERY_S}s") + pd.Timedelta(seconds=EVERY_S)
    ends = [
        bids.assign(window_end=first + pd.Timedelta(seconds=s)) for s in range(0, WINDOW_S, EVERY_S)
    ]
    counts = pd.concat(ends).groupby(["window_end", "auction"]).size().reset_index(name="bids")
    most = counts.groupby("window_end").bids.transform("max")
    return counts[counts.bids == most]


def q7(house: Streams) -> Any:
    """Highest bid of every window."""

    def alike(rows: pa.Table) -> pa.Table:
        house = pa.nulls(len(rows), pa.int64()).fill_null(0)
        return columns(rows, house=house, price="price", date_time="date_time")

    whole = house.bids.map(alike).key_by("house").window(gw.tumbling(f"{WINDOW_S} seconds"))
    return whole.compute(price=gw.max("price"))


def q7_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids")
    start = bids.date_time.dt.floor(f"{WINDOW_S}s").rename("window_start")
    return bids.groupby(start).price.max().reset_index()


def q8(house: Streams) -> Any:
    """Persons who offer something in the window in which they came."""

    def people(rows: pa.Table) -> pa.Table:
        return columns(rows, person="id", name="name", date_time="date_time")

    def items(rows: pa.Table) -> pa.Table:
        name = pa.nulls(len(rows), pa.string())
        return columns(rows, person="seller", name=name, date_time="date_time")

    def both(key: Any, rows: Any, window: Any) -> Iterator[Any]:
        names = rows.column("name")
        if None in names:  # an auction
            yield from ((key[0], name, window.start) for name in names if name is not None)

    union = house.persons.map(people).union(house.auctions.map(items)).key_by("person")
    windowed = union.window(gw.tumbling(f"{WINDOW_S} seconds"), name="newcomers")
    return windowed.process(both, output="person long, name string, window_start timestamp")


def q8_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    persons, auctions = (
        house.table(kind).assign(window_start=lambda of: of.date_time.dt.floor(f"{WINDOW_S}s"))
        for kind in ("persons", "auctions")
    )
    sellers = auctions[["seller", "window_start"]].drop_duplicates()
    joined = persons.merge(
        sellers, left_on=["id", "window_start"], right_on=["seller", "window_start"]
    )
    return joined[["id", "name", "window_start"]].rename(columns={"id": "person"})


def q11(house: Streams) -> Any:
    """Bids of a bidder in each of his sessions."""
    sessions = house.bids.key_by("bidder").window(gw.session(f"{GAP_S} seconds"))
    return sessions.compute(bids=gw.count())


def q11_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids").sort_values(["bidder", "date_time"])
    gap = pd.Timedelta(seconds=GAP_S)
    new = bids.groupby("bidder").date_time.diff().fillna(2 * gap) > gap
    sessions = bids.groupby(["bidder", new.cumsum().rename("session")]).date_time
    found = sessions.agg(["min", "size"]).reset_index()
    return found[["bidder", "min", "size"]].set_axis(["bidder", "window_start", "bids"], axis=1)


def q12(house: Streams) -> Any:
    """Bids of a bidder in windows of the clock."""

    def count(_key: Any, rows: Any, state: dict) -> None:
        now = int(rows.timers.now.timestamp())
        start = now // WINDOW_S * WINDOW_S
        state[start] = state.get(start, 0) + len(rows)
        rows.timers.set(dt.datetime.fromtimestamp(start + WINDOW_S, dt.UTC))

    def tell(key: Any, timer: Any, state: dict) -> Iterator[Any]:
        start = int(timer.time.timestamp()) - WINDOW_S
        yield key[0], start, state.pop(start)

    bidders = house.bids.key_by("bidder")
    return bidders.process(
        count,
        name="by_clock",
        state=dict,
        timers=gw.types.OnTimer(tell, clock="processing"),
        output="bidder long, start long, bids long",
    )


def q12_expected(house: House) -> pd.DataFrame:
    """Compute the same in pandas."""
    bids = house.table("bids")
    start = ((NOW_S + bids.epoch * TICK_S) // WINDOW_S * WINDOW_S).rename("start")
    return bids.groupby(["bidder", start]).size().reset_index(name="bids")


@dataclass(frozen=True)
class Query:
    """A query, and its oracle."""

    build: Callable[[Streams], Any]
    expected: Callable[[House], pd.DataFrame]
    newest: bool = False  # a later row of a key replaces the one before


NOW_S = 1_714_521_600  # the clock at the beginning
QUERIES = {
    "q1": Query(q1, q1_expected),
    "q2": Query(q2, q2_expected),
    "q3": Query(q3, q3_expected),
    "q4": Query(q4, q4_expected, newest=True),
    "q5": Query(q5, q5_expected),
    "q6": Query(q6, q6_expected, newest=True),
    "q7": Query(q7, q7_expected),
    "q8": Query(q8, q8_expected),
    "q11": Query(q11, q11_expected),
    "q12": Query(q12, q12_expected),
}


def play(name: str, house: House, dice: random.Random) -> pd.DataFrame:
    """Play a query to its end while key groups move, executors die and it restarts on others."""
    query = QUERIES[name]
    flow = gw.Flow(name, num_key_groups=16)
    flow.sink("out", query.build(Streams(flow, house)), gw.sinks.noop())
    now = dt.datetime.fromtimestamp(NOW_S, dt.UTC)
    with gw.testing.cluster(flow, executors=2, now=now) as run:
        for number in range(house.epochs):
            run.epoch()
            run.advance(f"{TICK_S} seconds")
            trouble = dice.choice(["move", "death", "rescaling", "none"])
            if trouble == "move":
                component = dice.choice(list(run.placement.assignments))
                run.migrate(dice.choice(list(run.executors)), component=component)
            elif trouble == "death":
                run.add(f"new-{number}")
                run.kill(dice.choice([e for e in run.executors if e != f"new-{number}"]))
            elif trouble == "rescaling":
                run.restart(executors=dice.randint(1, 4))
        run.advance(f"{WINDOW_S} seconds")
        run.end_input()
        found = run.rows("out").to_pandas()
    keys = [c for c in ("category", "seller") if c in found.columns]
    return found.drop_duplicates(keys, keep="last") if query.newest else found


def comparable(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Put rows in order, and all moments in UTC."""
    rows = rows[names].copy()
    for name in names:
        if isinstance(rows[name].dtype, pd.DatetimeTZDtype) or rows[name].dtype.kind == "M":
            rows[name] = pd.to_datetime(rows[name], utc=True).astype("datetime64[us, UTC]")
    return rows.sort_values(names).reset_index(drop=True)


def check(name: str, house: House, seed: int = 0) -> int:
    """Compare what a query makes of a house with pandas; return the number of rows."""
    expected = QUERIES[name].expected(house)
    names = list(expected.columns)
    found = comparable(play(name, house, random.Random(seed)), names)
    pd.testing.assert_frame_equal(found, comparable(expected, names), check_dtype=False, rtol=1e-12)
    return len(found)


def main() -> None:
    """Read the command line, and compare the queries."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("queries", nargs="*", help=f"of {', '.join(QUERIES)}; by default all")
    options.add_argument("--events", type=int, default=5000)
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--seed", type=int, default=7)
    given = options.parse_args()
    house = House(events=given.events, epochs=given.epochs, seed=given.seed)
    for name in given.queries or QUERIES:
        print(f"{name}: {check(name, house, given.seed):,} rows, those of pandas", flush=True)


if __name__ == "__main__":
    main()

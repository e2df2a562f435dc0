"""Flows of every shape give what plain Python gives: sources, maps, operators and sinks at will."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark's users know
from tests.spark.streams import Inbox, by_epoch, counted, drain, rows_of

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_graph_of_three_levels_gives_what_the_same_steps_in_python_give(
    spark: SparkSession, tmp_path: Path
) -> None:
    # orders ──▶ by_item ──▶ by_size ──▶ by_last    (and by_item twice, with and without a map)
    #      └──▶ by_shop (process) ──▶ by_count
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="item string, shop int, v long")
    rng = random.Random(5)
    epochs = [
        [(f"i{rng.randrange(30)}", rng.randrange(5), rng.randrange(100)) for _ in range(120)]
        for _ in range(3)
    ]
    inbox.put(*epochs)

    def count_rows(key: tuple[int], rows: Any, seen: list[int]) -> Iterable[tuple[int, int]]:
        seen.append(len(rows))
        return [(key[0], sum(seen))]

    flow = gw.Flow("graph", num_key_groups=16)
    orders = flow.source("orders", inbox.stream())
    by_item = orders.key_by("item").compute(name="by_item", total=gw.sum("v"))
    by_shop = orders.key_by("shop").process(
        count_rows, state=list, output="shop int, rows long", name="by_shop"
    )

    def with_size(table: pa.Table) -> pa.Table:
        size = pc.cast(pc.floor(pc.divide(pc.cast(table["total"], "double"), 500.0)), "int64")
        return table.append_column("size", size)

    sized = by_item.map(with_size)
    by_size = sized.key_by("size").compute(
        name="by_size", updates=gw.count(), largest=gw.max("total")
    )
    by_last = by_size.key_by("updates").compute(name="by_last", sizes=gw.count())
    by_count = by_shop.key_by("rows").compute(name="by_count", shops=gw.count("shop"))
    sinks = {
        name: gw.sinks.memory()
        for name in ("by_item", "sized", "by_shop", "by_size", "by_last", "by_count")
    }
    for (name, sink), stream in zip(
        sinks.items(), (by_item, sized, by_shop, by_size, by_last, by_count), strict=True
    ):
        flow.sink(name, stream, sink)
    drain(flow, tmp_path / "ck")

    expected: dict[str, dict[int, list[tuple[Any, ...]]]] = {name: {} for name in sinks}
    total: dict[str, int] = defaultdict(int)
    shop_rows: dict[int, int] = defaultdict(int)
    sizes: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = defaultdict(int)
    counts: dict[int, int] = defaultdict(int)
    for epoch, rows in enumerate(epochs):
        for item, shop, v in rows:
            total[item] += v
            shop_rows[shop] += 1
        items = sorted({row[0] for row in rows})
        shops = sorted({row[1] for row in rows})
        expected["by_item"][epoch] = [(i, total[i]) for i in items]
        expected["sized"][epoch] = [(i, total[i], total[i] // 500) for i in items]
        expected["by_shop"][epoch] = [(s, shop_rows[s]) for s in shops]
        for i in items:
            updates, largest = sizes.get(total[i] // 500, (0, -1))
            sizes[total[i] // 500] = (updates + 1, max(largest, total[i]))
        changed = sorted({total[i] // 500 for i in items})
        expected["by_size"][epoch] = [(s, *sizes[s]) for s in changed]
        for s in changed:
            last[sizes[s][0]] += 1
        expected["by_last"][epoch] = [(u, last[u]) for u in sorted({sizes[s][0] for s in changed})]
        for s in shops:
            counts[shop_rows[s]] += 1
        expected["by_count"][epoch] = [
            (n, counts[n]) for n in sorted({shop_rows[s] for s in shops})
        ]
    for name, sink in sinks.items():
        assert by_epoch(sink.epochs) == {e: counted(r) for e, r in expected[name].items()}, name


def test_several_sources_with_shared_and_different_maps_are_one_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    flights = Inbox(spark=spark, directory=tmp_path / "f", columns="plane string, delay double")
    planes = Inbox(spark=spark, directory=tmp_path / "p", columns="seats int, plane string")
    flights.put([("a", 1.0), ("b", None), ("c", 3.0)], [("a", 5.0), ("b", -2.0)], [("c", 0.5)])
    planes.put([(100, "a"), (200, "b")], [(300, "c")])

    def late(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("delay") > 0)

    flow = gw.Flow("sources", num_key_groups=8)
    all_flights = flow.source("flights", flights.stream())
    late_flights = all_flights.map(late)
    doubled = late_flights.map(lambda frame: frame.withColumn("delay", F.col("delay") * 2))
    seats = flow.source("planes", planes.stream())
    sinks = {name: gw.sinks.memory() for name in ("all", "late", "worst", "doubled", "seats")}
    streams = [
        all_flights.key_by("plane").compute(name="all", n=gw.count(), known=gw.count("delay")),
        late_flights.key_by("plane").compute(name="late", n=gw.count()),
        late_flights.key_by("plane").compute(name="worst", worst=gw.max("delay")),
        doubled.key_by("plane").compute(name="doubled", total=gw.sum("delay")),
        seats.key_by("plane").compute(name="seats", seats=gw.last("seats")),
    ]
    for (name, sink), stream in zip(sinks.items(), streams, strict=True):
        flow.sink(name, stream, sink)
    query = drain(flow, tmp_path / "ck")
    assert {name: sorted(rows_of(sink.table())) for name, sink in sinks.items()} == {
        "all": [("a", 2, 2), ("b", 2, 1), ("c", 2, 2)],
        "late": [("a", 2), ("c", 2)],
        "worst": [("a", 5.0), ("c", 3.0)],
        "doubled": [("a", 12.0), ("c", 7.0)],
        "seats": [("a", 100), ("b", 200), ("c", 300)],
    }
    assert len(query.recentProgress) == 3


def test_one_stream_goes_to_several_sinks_and_a_map_on_the_way_changes_only_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    inbox.put([("a", 1), ("b", 2)], [("a", 10)])
    given: list[tuple[int, int]] = []
    flow = gw.Flow("sinks", num_key_groups=4)
    totals = flow.source("rows", inbox.stream()).key_by("k").compute(total=gw.sum("v"))
    large = totals.map(lambda table: table.filter(pc.greater(table["total"], 5)))
    plain, mapped, path = gw.sinks.memory(), gw.sinks.memory(), tmp_path / "out"
    flow.sink("plain", totals, plain)
    flow.sink("mapped", large, mapped)
    flow.sink("files", totals, gw.sinks.parquet(path))
    flow.sink("calls", large, gw.sinks.foreach(lambda df, e: given.append((e, df.count()))))
    flow.sink("nowhere", totals, gw.sinks.noop())
    drain(flow, tmp_path / "ck")
    assert by_epoch(plain.epochs) == {
        0: counted([("a", 1), ("b", 2)]),
        1: counted([("a", 11)]),
    }
    assert by_epoch(mapped.epochs) == {0: counted([]), 1: counted([("a", 11)])}
    files = spark.read.parquet(str(path)).select("epoch", "k", "total").collect()
    assert sorted(files) == [(0, "a", 1), (0, "b", 2), (1, "a", 11)]
    assert given == [(0, 0), (1, 1)]


def test_complete_output_is_every_key_in_every_epoch(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, v long")
    inbox.put([(i, 1) for i in range(20)], [(3, 5)], [(99, 7), (3, 1)])
    flow = gw.Flow("complete", num_key_groups=8)
    whole = flow.source("rows", inbox.stream()).key_by("k")
    sink, downstream = gw.sinks.memory(), gw.sinks.memory()
    complete = whole.compute(name="complete", output="complete", total=gw.sum("v"))
    flow.sink("complete", complete, sink)
    flow.sink("seen", complete.key_by("k").compute(name="seen", times=gw.count()), downstream)
    drain(flow, tmp_path / "ck")
    first = dict.fromkeys(range(20), 1)
    second = {**first, 3: 6}
    third = {**second, 3: 7, 99: 7}
    assert [dict(rows_of(sink.epochs[e])) for e in range(3)] == [first, second, third]
    assert dict(rows_of(downstream.table())) == {99: 1, **dict.fromkeys(range(20), 3)}


def test_an_epoch_that_leaves_no_rows_commits_and_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    inbox.put([], [("a", 1)], [("a", -5)], [], [("a", 2)])
    flow = gw.Flow("empty", num_key_groups=4)
    positive = flow.source("rows", inbox.stream()).map(lambda frame: frame.where("v > 0"))
    sink, nobody = gw.sinks.memory(), gw.sinks.memory()
    totals = positive.key_by("k").compute(total=gw.sum("v"))
    flow.sink("out", totals, sink)
    nothing = totals.map(lambda table: table.slice(0, 0))
    flow.sink("nobody", nothing.key_by("total").compute(name="nobody", n=gw.count()), nobody)
    query = drain(flow, tmp_path / "ck")
    assert [p["numInputRows"] for p in query.recentProgress] == [0, 1, 0, 0, 1]
    assert by_epoch(sink.epochs) == {
        0: counted([]),
        1: counted([("a", 1)]),
        2: counted([]),
        3: counted([]),
        4: counted([("a", 3)]),
    }
    assert rows_of(nobody.table()) == []


def test_process_sees_the_rows_of_a_key_in_the_order_in_which_they_arrived(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    rng = random.Random(3)
    number: dict[int, int] = defaultdict(int)
    epochs = []
    for _ in range(5):
        rows = []
        for _ in range(400):
            key = rng.randrange(25)
            rows.append((key, number[key]))
            number[key] += 1
        epochs.append(rows)
    inbox.put(*epochs)

    def in_order(
        key: tuple[int], rows: Any, seen: dict[str, int]
    ) -> Iterable[tuple[int, int, int]]:
        for row in rows:
            expected = seen.get("next", 0)
            if row.number != expected:
                msg = f"key {key}: number {row.number} came where {expected} was due"
                raise ValueError(msg)
            seen["next"] = expected + 1
            yield key[0], row.number, seen["next"]

    flow = gw.Flow("order", num_key_groups=8)
    sink = gw.sinks.memory()
    ordered = flow.source("rows", inbox.stream()).key_by("k")
    output = "k int, number long, next long"
    flow.sink("out", ordered.process(in_order, state=dict, output=output), sink)
    drain(flow, tmp_path / "ck")
    assert by_epoch(sink.epochs) == {
        epoch: counted((k, n, n + 1) for k, n in rows) for epoch, rows in enumerate(epochs)
    }


def test_state_that_process_drops_is_gone_and_the_key_begins_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    inbox.put([("a", 1), ("b", 1)], [("a", 2), ("b", -1)], [("a", 3), ("b", 4)], [("b", -1)])

    def session(key: tuple[str], rows: Any, total: list[int]) -> Iterable[tuple[str, int]]:
        for row in rows:
            total.append(row.v)
            if row.v < 0:
                rows.drop_state()
        return [(key[0], sum(total))]

    flow = gw.Flow("drops", num_key_groups=4)
    sink = gw.sinks.memory()
    sessions = flow.source("rows", inbox.stream()).key_by("k")
    stream = sessions.process(session, state=list, output="k string, total long", name="sessions")
    flow.sink("out", stream, sink)
    checkpoint = tmp_path / "ck"
    drain(flow, checkpoint)
    assert by_epoch(sink.epochs) == {
        0: counted([("a", 1), ("b", 1)]),
        1: counted([("a", 3), ("b", 0)]),
        2: counted([("a", 6), ("b", 4)]),
        3: counted([("b", 3)]),
    }
    held = gw.read_state(spark, checkpoint, "sessions").select("k", "state").collect()
    assert [tuple(row) for row in held] == [("a", "[1,2,3]")]

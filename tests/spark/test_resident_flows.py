"""Lanes that stay work what small epochs bring: rows of both kinds, tables and lookups."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox
from tests.spark.test_short_cuts import EXPECTED

import godwit as gw
from godwit.spark.resident import lanes
from godwit.spark.resident.lanes import ResidentLanes
from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS = "id long, currency string, amount long"


class Discounts:
    """Answers after a while, and refuses the first question of each customer."""

    def __init__(self) -> None:
        self.asked: set[int] = set()
        self.waiting = self.most = 0

    async def of(self, customer: int) -> int:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await asyncio.sleep(0.002)
        self.waiting -= 1
        if customer not in self.asked:
            self.asked.add(customer)
            raise ConnectionError("busy")
        return customer % 3


async def charge(key: Any, rows: Any, total: Any, rates: Any, discounts: Any) -> Any:
    discount = await discounts.of(key[0])
    for row in rows:
        total.value += row.amount * rates[row.currency].rate - discount
    return [(key[0], total.value, discounts.most, os.getpid())]


def test_both_kinds_of_sources_tables_and_lookups_are_worked_by_lanes_that_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SourceRows, "few_expected", EXPECTED)
    monkeypatch.setattr(ResidentLanes, "waits_s", 60.0)
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=ORDERS)
    rates = gw.sources.memory("currency string, rate long")
    own = gw.sources.memory(ORDERS)
    flow = gw.Flow("charges", num_key_groups=8)
    table = flow.source("rates", rates)
    charged = (
        flow.source("frames", inbox.stream())
        .union(flow.source("own", own))
        .key_by("id")
        .process(
            charge,
            state=int,
            output="id long, total long, most long, pid long",
            name="charged",
            broadcast={"rates": table.key_by("currency")},
            asynchronous=gw.types.Async(
                backoff="1 millisecond", resources={"discounts": Discounts}
            ),
        )
    )
    sink = gw.sinks.memory()
    flow.sink("out", charged, sink)
    expected = dict.fromkeys(range(12), 0)

    def orders(currency: str, rate: int) -> list[tuple[int, str, int]]:
        for customer in expected:
            expected[customer] += 5 * rate - customer % 3
        return [(customer, currency, 5) for customer in expected]

    def of_own(currency: str, rate: int) -> list[dict[str, Any]]:
        names = ("id", "currency", "amount")
        return [dict(zip(names, row, strict=True)) for row in orders(currency, rate)]

    query = flow.start(checkpoint=tmp_path / "ck", lanes=gw.Lanes(resident=True))
    rates.add([{"currency": "EUR", "rate": 2}])
    query.processAllAvailable()
    for number in range(4):
        own.add(of_own("EUR", 2))
        query.processAllAvailable()
        inbox.put(orders("EUR", 2))
        query.processAllAvailable()
        if number == 2:
            rates.add([{"currency": "USD", "rate": 7}])
            query.processAllAvailable()
            inbox.put(orders("USD", 7))
            query.processAllAvailable()
    before = query.status["residentEpochs"]
    inbox.put(orders("USD", 7))
    query.processAllAvailable()
    of_frames = query.status["residentEpochs"]
    own.add(of_own("EUR", 2))
    query.processAllAvailable()
    worked = query.status["residentEpochs"]
    query.stop()
    assert 0 < before < of_frames < worked  # each kind of rows by resident lanes
    rows = sink.table("id").to_pylist()
    assert {row["id"]: row["total"] for row in rows} == expected
    assert max(row["most"] for row in rows) > 3  # lookups that waited together
    assert {row["pid"] for row in rows}.isdisjoint({os.getpid()})


def test_lanes_that_the_system_chose_work_small_epochs_until_other_jobs_wait_for_slots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine epochs are slow.
    monkeypatch.setattr(lanes, "_CHOSEN_WITHIN_S", 600.0)
    monkeypatch.setattr(lanes, "_IDLE_S", 600.0)
    rows = gw.sources.memory("key long, amount long")
    flow, sink = gw.Flow("chosen", num_key_groups=8), gw.sinks.memory()
    totals = flow.source("rows", rows).key_by("key").compute(total=gw.sum("amount"), n=gw.count())
    flow.sink("totals", totals, sink)
    query = flow.start(checkpoint=tmp_path / "ck", session=spark)
    expected: Counter[int] = Counter()

    def epochs_until(condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            key = len(expected) % 50
            expected[key] += 1
            rows.add([{"key": key, "amount": 2}])
            query.processAllAvailable()
            if condition():
                return
        pytest.fail(f"in vain: {query.status}")

    try:
        assert query.status["residentReason"] == "no epoch has run yet"
        epochs_until(lambda: query.status["residentEpochs"] > 3)
        assert query.status["residentReason"] == ""
        slots = spark.sparkContext.defaultParallelism
        go_on = tmp_path / "continue"

        def waits(_: int) -> None:
            deadline = time.monotonic() + 120
            while not go_on.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

        numbers = spark.sparkContext.parallelize(range(4 * slots), 4 * slots)
        other = threading.Thread(target=lambda: numbers.foreach(waits), daemon=True)
        other.start()
        deadline = time.monotonic() + 120
        while not any(isinstance(e, gw.events.ResidentLanesEnded) for e in query.events):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        go_on.touch()
        other.join()
        epochs_until(lambda: True)
        assert query.status["residentLanes"] == 0
    finally:
        query.stop()
    ended = [e.reason for e in query.events if isinstance(e, gw.events.ResidentLanesEnded)]
    assert ended == ["tasks of other jobs wait for task slots"]
    result = sink.table("key").to_pylist()
    assert {row["key"]: (row["n"], row["total"]) for row in result} == {
        key: (count, 2 * count) for key, count in expected.items()
    }

"""Lanes that stay work what small epochs bring: rows of both kinds, tables and lookups."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox
from tests.spark.test_short_cuts import EXPECTED

import godwit as gw
from godwit.spark.resident.lanes import ResidentLanes
from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
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
            asynchronous=gw.Async(backoff="1 millisecond", resources={"discounts": Discounts}),
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

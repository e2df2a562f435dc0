"""Asynchronous functions on Spark: in its Python workers, with a resource that they keep."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain, rows_of

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_lookups_wait_together_in_a_worker_and_are_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Client:
        """Refuses the first call of each key, and knows how often it was opened."""

        opened = 0

        def __init__(self) -> None:
            Client.opened += 1
            self.asked: set[int] = set()
            self.waiting = self.most = 0

        async def square(self, key: int) -> int:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            await asyncio.sleep(0.01)
            self.waiting -= 1
            if key not in self.asked:
                self.asked.add(key)
                raise ConnectionError("busy")
            return key * key

    async def ask(key: tuple[int], rows: Any, calls: Any, client: Client) -> Any:
        calls.value += len(rows)
        answer = await client.square(key[0])
        return [(key[0], answer, calls.value, client.most, Client.opened, os.getpid())]

    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k long")
    flow = gw.Flow("asks", num_key_groups=4)
    asked = (
        flow.source("rows", inbox.stream())
        .key_by("k")
        .process(
            ask,
            state=int,
            output="k long, answer long, calls long, most long, opened long, pid long",
            name="asked",
            asynchronous=gw.types.Async(backoff="1 millisecond", resources={"client": Client}),
        )
    )
    sink = gw.sinks.memory()
    flow.sink("out", asked, sink)
    inbox.put([(k,) for k in range(20)], [(k,) for k in range(20)])
    drain(flow, tmp_path / "ck")
    rows = sink.table().to_pylist()
    assert sorted(rows_of(sink.table("k").select(["k", "answer", "calls"]))) == [
        (k, k * k, 2) for k in range(20)
    ]
    assert len(rows) == 40
    assert {row["pid"] for row in rows}.isdisjoint({os.getpid()})
    assert {row["opened"] for row in rows} == {1}
    assert max(row["most"] for row in rows) > 3

"""Kafka in, Kafka out, on Spark: readers of committed messages see every result once."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.engine import cluster as cluster_port

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from godwit.connect.kafka.sink import KafkaSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

KEYS = 7


class DiedError(Exception):
    """The driver is gone."""


def flow_of(kafka: KafkaBroker, arriving: str, leaving: str, bad: Path) -> gw.Flow:
    source = gw.sources.kafka(
        kafka.servers,
        arriving,
        value="json",
        schema="k string, v long",
        include=["timestamp"],
        max_rows_per_epoch=30,
        group=f"{arriving}-monitor",
        on_bad="divert",
        rejects=gw.sinks.parquet(bad),
    )
    flow = gw.Flow("through", num_key_groups=8)
    totals = flow.source("rows", source).key_by("k").compute(total=gw.sum("v"), n=gw.count())
    flow.sink("out", totals, gw.sinks.kafka(kafka.servers, leaving, key="k"))
    return flow


def test_rows_go_through_once_whatever_dies_in_between(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arriving, leaving = kafka.topic(3), kafka.topic(2)
    put = 0
    for number, step in enumerate(("staged", "committed", "commit", None)):
        # Every other time executors read the topic, by consumers of their own.
        monkeypatch.setattr(cluster_port, "ROWS_HERE", -1 if number % 2 else 10_000)
        flow = flow_of(kafka, arriving, leaving, tmp_path / "bad")
        query = flow.start(checkpoint=tmp_path / "ck", session=spark)
        query.processAllAvailable()

        def at_step(done: str, _epoch: int, step: str | None = step) -> None:
            if done == step:
                raise DiedError

        def commit(_sink: KafkaSink, _producer: Any) -> None:
            raise DiedError

        with monkeypatch.context() as breaking:
            setattr(query._run.loop, "at_step", at_step)  # noqa: B010  a method of the class
            if step == "commit":
                breaking.setattr(KafkaSink, "_commit_transaction", commit)
            for partition in range(3):
                rows = [
                    b'{"k":"k%d","v":%d}' % (row % KEYS, row)
                    for row in range(put + partition, put + 40, 3)
                ]
                kafka.put(arriving, *rows, b"%d?" % number, partition=partition)
            put += 40
            if step is None:
                query.processAllAvailable()
                query.stop()
            else:
                with pytest.raises(gw.GodwitError, match="DiedError"):
                    query.awaitTermination()
    files = (tmp_path / "bad").glob("epoch=*/*.parquet")
    bad = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    places = sorted((row["value"], row["partition"]) for row in bad)
    assert places == [(b"%d?" % number, partition) for number in range(4) for partition in range(3)]
    expected = {f"k{key}": sum(range(key, put, KEYS)) for key in range(KEYS)}
    totals: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for message in kafka.read(leaving):
        row = json.loads(message.value())
        assert message.key() == row["k"].encode()
        totals[row["k"]].append((row["n"], row["total"]))
    assert {key: values[-1][1] for key, values in totals.items()} == expected
    for values in totals.values():
        assert values == sorted(set(values)), "a result is there twice, or out of order"

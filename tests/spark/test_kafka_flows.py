"""Kafka in, Kafka out, on Spark: readers of committed messages see every result once."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.support.postgres_sinks import execute

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
                with pytest.raises(gw.errors.GodwitError, match="DiedError"):
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


def _change_event(op: str, before: Any, after: Any) -> bytes:
    payload = {"before": before, "after": after, "op": op, "source": {}, "ts_ms": 1}
    return json.dumps(payload).encode()


@pytest.mark.postgres
def test_tables_follow_change_events_from_topic_to_table(
    spark: SparkSession, kafka: KafkaBroker, postgres: str, tmp_path: Path
) -> None:
    arriving, leaving = kafka.topic(), kafka.topic(2)
    rng, live = random.Random(5), dict[int, dict[str, Any]]()

    def changes() -> list[bytes]:
        events = []
        for _ in range(40):
            number = rng.randrange(12)
            former = live.pop(number, None)
            if former is None or rng.random() < 0.6:
                live[number] = {"id": number, "city": rng.choice("abcdef"), "n": rng.randrange(9)}
            op = "c" if former is None else "u" if number in live else "d"
            # As databases do by default: no row before an update, and the key of a deleted one.
            before = {"id": number} if op == "d" else None
            events.append(_change_event(op, before, live.get(number)))
        return events

    def start() -> Any:
        flow = gw.Flow("mirror", num_key_groups=8)
        table = gw.formats.debezium("id long, city string, n long", key="id")
        source = gw.sources.kafka(kafka.servers, arriving, value=table, max_rows_per_epoch=15)
        newest = flow.source("rows", source).key_by("id").latest()
        cities = newest.key_by("city").compute(rows=gw.count(), largest=gw.max("n"))
        flow.sink("mirror", newest, gw.sinks.postgres(postgres, "mirror", mode="upsert"))
        flow.sink("cities", cities, gw.sinks.postgres(postgres, "cities", mode="upsert"))
        flow.sink("topic", newest, gw.sinks.kafka(kafka.servers, leaving, key="id"))
        return flow.start(checkpoint=tmp_path / "ck", session=spark)

    for _ in range(2):
        query = start()
        try:
            for _ in range(2):
                kafka.put(arriving, *changes())
                query.processAllAvailable()
                rows = [tuple(live[number].values()) for number in sorted(live)]
                assert execute(postgres, "SELECT id, city, n FROM mirror ORDER BY id") == rows
                groups = {c: [n for _, city, n in rows if city == c] for _, c, _ in rows}
                assert execute(postgres, "SELECT * FROM cities ORDER BY city") == [
                    (city, len(ns), max(ns)) for city, ns in sorted(groups.items())
                ]
        finally:
            query.stop()
    messages = {message.key(): message.value() for message in kafka.read(leaving)}
    mirrored = [json.loads(value) for value in messages.values() if value is not None]
    assert sorted(mirrored, key=lambda row: row["id"]) == [live[number] for number in sorted(live)]
    assert None in messages.values()

"""Rows a second from Kafka into an aggregate: Debezium's events beside plain JSON, whole queries.

    python -m benchmarks.kafka.debezium [--rows 1000000] [--rounds 3] [--deletes 0.0]

``GODWIT_KAFKA=host:port`` for a cluster of your own.  Three queries on Spark with two cores, so two
readers, take turns over all messages of a topic, each with a count and two sums for each of 1,000
customers: *debezium* reads the events as changes, *json* the same bytes as plain JSON, of which it
takes the columns of ``after`` in a map, and *flat* rows of as many bytes without an envelope.  A
rate is of the epochs behind the first, in which Python workers and JVM get warm.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session

import godwit as gw

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = "id long, customer long, amount long, price double, note string"
_INNER = "struct<id: bigint, customer: bigint, amount: bigint, price: double, note: string>"


def messages(rows: int, deletes: float) -> Any:
    """Yield an event, and a plain row with as many bytes, for each row."""
    rng = random.Random(1)
    place = {
        "version": "2.7.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_700_000_000_123,
        "snapshot": "false",
        "db": "shop",
        "schema": "public",
        "table": "orders",
        "txId": 571,
        "lsn": 24_023_128,
    }
    for number in range(rows):
        row = {
            "id": number,
            "customer": rng.randrange(1000),
            "amount": rng.randrange(10**6),
            "price": rng.random(),
            "note": f"order {number}",
        }
        event = {"before": None, "after": row, "source": place, "op": "c", "ts_ms": 1, "z": None}
        if rng.random() < deletes:
            event |= {"before": row, "after": None, "op": "d"}
        value = json.dumps(event).encode()
        plain = json.dumps({**row, "pad": ""}).encode()
        pad = "x" * (len(value) - len(plain))
        yield value, json.dumps({**row, "pad": pad}).encode()


def after(rows: pa.Table) -> pa.Table:
    """Return the columns of the rows in plain JSON of events."""
    column = pc.if_else(pc.is_valid(rows["after"]), rows["after"], rows["before"]).combine_chunks()
    return pa.Table.from_arrays(column.flatten(), names=[f.name for f in column.type])


def flow_of(subject: str, servers: str, topic: str, epoch: int) -> gw.Flow:
    """Return the flow of a subject over a topic, with so many rows an epoch."""
    formats = {
        "debezium": gw.formats.debezium(COLUMNS, key="id", before=True),
        "json": gw.formats.json(f"op string, before {_INNER}, after {_INNER}"),
        "flat": gw.formats.json(COLUMNS),
    }
    source = gw.sources.kafka(servers, topic, value=formats[subject], max_rows_per_epoch=epoch)
    flow = gw.Flow(subject, num_key_groups=32)
    rows = flow.source("rows", source)
    if subject == "json":
        rows = rows.map(after)
    totals = rows.key_by("customer").compute(
        orders=gw.count(), amount=gw.sum("amount"), price=gw.sum("price")
    )
    flow.sink("out", totals, gw.sinks.noop())
    return flow


def run(flow: gw.Flow, spark: Any, work: Path) -> tuple[float, int]:
    """Run a query over all messages; return rows a second behind its first epoch, and rows."""
    query = flow.start(checkpoint=work, trigger={"availableNow": True}, session=spark)
    query.awaitTermination()
    if (failure := query.exception()) is not None:
        raise failure
    epochs = [p for p in query.recentProgress if p["numInputRows"]]
    rows = sum(p["numInputRows"] for p in epochs[1:])
    return rows / (sum(p["durationMs"]["triggerExecution"] for p in epochs[1:]) / 1e3), rows


def main() -> None:
    """Measure in turns, and print."""
    from tests.kafka_broker import running_broker

    options = read_options(
        __doc__, rows=1_000_000, rounds=3, partitions=4, epoch=200_000, deletes=0.0
    )
    rates: dict[str, list[float]] = defaultdict(list)
    with running_broker() as broker, temporary_directory() as work:
        topics = [broker.topic(options.partitions) for _ in range(2)]
        settings: dict[str, Any] = {"queue.buffering.max.messages": 2_000_000}
        producer = broker.producer(**settings)
        size = 0
        for number, values in enumerate(messages(options.rows, options.deletes)):
            for topic, value in zip(topics, values, strict=True):
                producer.produce(topic, value, partition=number % options.partitions)
            size += len(values[0])
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(300) == 0
        print(f"{options.rows:,} rows of {size / options.rows:.0f} bytes", flush=True)
        spark = session(2)
        for number in range(options.rounds + 1):
            for subject, topic in (
                ("debezium", topics[0]),
                ("json", topics[0]),
                ("flat", topics[1]),
            ):
                place = work / f"{subject}-{number}"
                begin_s = time.perf_counter()
                rate, rows = run(
                    flow_of(subject, broker.servers, topic, options.epoch), spark, place
                )
                took_s = time.perf_counter() - begin_s
                if number:
                    rates[subject].append(rate)
                print(f"  {subject}: {rows:,} rows, {rate:,.0f} rows/s; {took_s:.1f} s", flush=True)
        spark.stop()
    base = median(rates["debezium"])
    for subject, values in rates.items():
        of_it = base / median(values)
        print(f"{subject:9} median {median(values):10,.0f} rows/s; debezium has {of_it:.2f} of it")


if __name__ == "__main__":
    main()

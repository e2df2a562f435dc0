"""Rows a second that the Kafka source reads: JSON of about 100 bytes, decoded, by warm consumers.

Run ``python -m benchmarks.kafka.source`` (``GODWIT_KAFKA=host:port`` for a cluster of your own).
Each reader is a process, as an executor's Python worker is; what is measured begins when all have
read once.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from typing import Any

from benchmarks.options import read_options

import godwit as gw

SCHEMA = "tailnum string, year long, delay double, origin string, seq long, pad string"


def message(seq: int) -> bytes:
    """Make a row of about 100 bytes."""
    row = {"tailnum": f"N{seq % 5000}", "year": 2013, "delay": seq / 8, "origin": "JFK"}
    return json.dumps({**row, "seq": seq, "pad": "x" * 16}, separators=(",", ":")).encode()


def fill(broker: Any, topic: str, partitions: int, rows: int) -> int:
    """Put rows; return their bytes."""
    producer = broker.producer(**{"queue.buffering.max.messages": 2_000_000})
    size = 0
    for seq in range(rows):
        value = message(seq)
        size += len(value)
        producer.produce(topic, value, partition=seq % partitions)
        if seq % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0
    return size


def read(source: Any, splits: list[Any], rounds: int, start: Any, times: Any) -> None:
    """Read splits once for warmth, then for the record."""
    for number in range(rounds):
        start.wait()
        began_s = time.perf_counter()
        rows = sum(b.num_rows for s in splits for b in source.read(s, source.schema.names))
        times.put((number, rows, time.perf_counter() - began_s))


def main() -> None:
    from tests.kafka_broker import running_broker

    options = read_options(__doc__, rows=1_000_000, readers=2, partitions=4, rounds=4)
    processes = multiprocessing.get_context("spawn")
    with running_broker() as broker:
        topic = broker.topic(options.partitions)
        size = fill(broker, topic, options.partitions, options.rows)
        print(f"{options.rows:,} rows of {size / options.rows:.0f} bytes")
        source = gw.sources.kafka(broker.servers, topic)
        source.open(None)
        begin = source.start()
        splits = list(source.splits(begin, source.end(begin), options.readers * 2))
        for value in ("bytes", "json"):
            schema = SCHEMA if value == "json" else None
            reading = gw.sources.kafka(broker.servers, topic, value=value, schema=schema)
            start, times = processes.Barrier(options.readers), processes.Queue()
            readers = [
                processes.Process(
                    target=read,
                    args=(reading, splits[number :: options.readers], options.rounds, start, times),
                )
                for number in range(options.readers)
            ]
            for reader in readers:
                reader.start()
            took = [times.get(timeout=300) for _ in range(options.rounds * options.readers)]
            for reader in readers:
                reader.join()
            for number in range(1, options.rounds):
                of_round = [(rows, took_s) for n, rows, took_s in took if n == number]
                rows = sum(rows for rows, _ in of_round)
                rate = rows / max(took_s for _, took_s in of_round)
                print(f"{value}: {rows:,} rows by {options.readers} readers, {rate:,.0f} rows/s")
        source.close()


if __name__ == "__main__":
    main()

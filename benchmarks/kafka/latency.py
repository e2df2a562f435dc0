"""End-to-end latency of every row: Kafka, a flow with state, Kafka; 1,000 rows a second.

    python -m benchmarks.kafka.latency [--seconds 20] [--rate 1000] [--only NAME]

Four processes: the broker (``noida-db``; ``GODWIT_KAFKA=host:port`` for a cluster of your own), a
producer that puts the time of the call into every row, the query (a stateful aggregate, a Spark
job for each epoch, or lanes that stay), and a consumer of committed messages that notes when each
row has come.  Exactly once and at least once take turns in one session.  A row's key is its number
modulo the rate, so every row comes out by itself while an epoch is shorter than a second.

Printed are percentiles over rows, and where the time goes, by epoch: how far apart epochs begin (a
row waits half of that, on average), planning (asks the broker where partitions end), stages (reads
the messages and computes), commit, delivery, and within it what is said to the sink's group and the
end of the transaction.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from benchmarks.resident import session
from confluent_kafka import Consumer, Producer, TopicPartition

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_PHASES = (
    "period",
    "epoch",
    "plan",
    "stages",
    "commit",
    "deliver",
    "offsets",
    "end of transaction",
)
_ROW = "key long, seq long, sent_us long, pad string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a query runs."""

    name: str
    resident: bool
    exactly_once: bool


MODES = (
    Mode(name="own loop", resident=False, exactly_once=True),
    Mode(name="resident", resident=True, exactly_once=True),
    Mode(name="own loop, at least once", resident=False, exactly_once=False),
    Mode(name="resident, at least once", resident=True, exactly_once=False),
)


@dataclass(slots=True)
class Measured:
    """Latencies of rows, and times of epochs, in milliseconds."""

    rows_ms: list[float] = field(default_factory=list)
    sent: int = 0  # rows that were to come
    twice: int = 0
    epochs_ms: dict[str, list[float]] = field(default_factory=dict)


def produce(servers: str, topic: str, options: argparse.Namespace, stop: Any, sent: Any) -> None:
    """Put so many rows a second, evenly, until told to stop."""
    rate, partitions = options.rate, options.partitions
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    seq, began_s = 0, time.perf_counter()
    while not stop.is_set():
        due = int((time.perf_counter() - began_s) * rate)
        while seq < due:
            row = {
                "key": seq % rate,
                "seq": seq,
                "sent_us": time.time_ns() // 1000,
                "pad": "x" * 40,
            }
            producer.produce(topic, json.dumps(row).encode(), partition=seq % partitions)
            seq += 1
        producer.poll(0)
        time.sleep(0.001)
    producer.flush(30)
    sent.value = seq


def consume(servers: str, topic: str, committed: bool, stop: Any, came: Any) -> None:
    """Note when rows come, until told to stop; send their numbers and both times."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "latency",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    rows: list[tuple[int, int, int]] = []
    while (message := consumer.poll(0.05)) is not None or not stop.is_set():
        if message is None or message.error() is not None:
            continue
        now_us = time.time_ns() // 1000
        row = json.loads(message.value() or b"{}")
        rows.append((row["seq"], row["sent_us"], now_us))
    came.put(rows)
    consumer.close()


class _TimedProducer(Producer):
    """Times what ends a transaction."""

    offsets_ms: ClassVar[list[float]] = []
    commits_ms: ClassVar[list[float]] = []

    def send_offsets_to_transaction(self, *args: Any) -> None:
        began_s = time.perf_counter()
        super().send_offsets_to_transaction(*args)
        self.offsets_ms.append((time.perf_counter() - began_s) * 1e3)

    def commit_transaction(self, *args: Any) -> None:
        began_s = time.perf_counter()
        super().commit_transaction(*args)
        self.commits_ms.append((time.perf_counter() - began_s) * 1e3)


def flow_of(servers: str, arriving: str, leaving: str, mode: Mode) -> gw.Flow:
    """Aggregate rows by key; an epoch gives the rows of all keys that it has changed."""
    flow = gw.Flow("latency")
    source = gw.sources.kafka(servers, arriving, value="json", schema=_ROW)
    by_key = flow.source("rows", source).key_by("key")
    results = by_key.compute(
        rows=gw.count(), seq=gw.max("seq"), sent_us=gw.max("sent_us"), pad=gw.max("pad")
    )
    sink = gw.sinks.kafka(servers, leaving, key="key", exactly_once=mode.exactly_once)
    flow.sink("out", results, sink)
    return flow


def measure(spark: SparkSession, broker: Any, mode: Mode, options: argparse.Namespace) -> Measured:
    """Run a query of one mode for a while."""
    arriving, leaving = broker.topic(options.partitions), broker.topic(options.partitions)
    processes = multiprocessing.get_context("spawn")
    stop, over = processes.Event(), processes.Event()
    sent, came = processes.Value("l", 0), processes.Queue()
    producer = processes.Process(
        target=produce,
        args=(broker.servers, arriving, options, stop, sent),
    )
    consumer = processes.Process(
        target=consume, args=(broker.servers, leaving, mode.exactly_once, over, came)
    )
    directory = Path(tempfile.mkdtemp(prefix="godwit-latency-"))
    measured = Measured()
    flow = flow_of(broker.servers, arriving, leaving, mode)
    query = flow.start(
        checkpoint=directory / "ck", lanes=gw.Lanes(resident=mode.resident), session=spark
    )
    try:
        producer.start()
        consumer.start()
        time.sleep(options.warmup)
        first_us = time.time_ns() // 1000
        for times in (_TimedProducer.offsets_ms, _TimedProducer.commits_ms):
            times.clear()
        until_s = time.monotonic() + options.seconds
        progress: dict[int, dict[str, Any]] = {}
        while time.monotonic() < until_s:
            time.sleep(0.5)
            if (error := query.exception()) is not None:
                raise error
            progress |= {entry["epoch"]: entry for entry in query.recentProgress}
        last_us = time.time_ns() // 1000
        stop.set()
        producer.join(60)
        query.processAllAvailable()
        time.sleep(0.5)
        resident = query.status["residentEpochs"] if mode.resident else None
    finally:
        stop.set()
        query.stop()
        over.set()
    rows = came.get(timeout=60)
    for process in (producer, consumer):
        process.join(30)
    shutil.rmtree(directory, ignore_errors=True)
    if mode.resident and not resident:
        msg = "no epoch was worked by lanes that stay"
        raise RuntimeError(msg)
    seqs = [seq for seq, _, _ in rows]
    measured.sent, measured.twice = sent.value, len(seqs) - len(set(seqs))
    measured.sent -= len(set(seqs))
    measured.rows_ms = [(at - s) / 1e3 for _, s, at in rows if first_us <= s <= last_us]
    if not measured.rows_ms:
        msg = f"none of {len(rows)} rows that came was put after the warm-up: give it more time"
        raise RuntimeError(msg)
    measured.epochs_ms = dict(_epochs(progress, first_us / 1e6))
    measured.epochs_ms["offsets"] = list(_TimedProducer.offsets_ms)
    measured.epochs_ms["end of transaction"] = list(_TimedProducer.commits_ms)
    return measured


def _epochs(
    progress: dict[int, dict[str, Any]], since_s: float
) -> Iterator[tuple[str, list[float]]]:
    """Yield phase → its times, of epochs with rows that began after the warm-up."""
    entries = [progress[epoch] for epoch in sorted(progress) if progress[epoch]["numInputRows"]]
    at_s = np.array([datetime.fromisoformat(entry["timestamp"]).timestamp() for entry in entries])
    counted = [n for n in range(len(entries)) if at_s[n] >= since_s]
    yield "period", [float(at_s[n] - at_s[n - 1]) * 1e3 for n in counted if n]
    for phase in ("epoch", "plan", "stages", "commit", "deliver"):
        yield phase, [float(entries[n]["durationMs"][phase]) for n in counted]


def main() -> None:
    """Measure every mode, and print."""
    from tests.kafka_broker import running_broker

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (
        ("seconds", 20),
        ("warmup", 12),
        ("rate", 1000),
        ("partitions", 2),
        ("cores", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="*", choices=[mode.name for mode in MODES])
    options = parser.parse_args()
    import_module("godwit.sinks.kafka_sink").Producer = _TimedProducer  # type: ignore[attr-defined]
    spark = session(options.cores)
    with running_broker() as broker:
        for mode in MODES:
            if options.only and mode.name not in options.only:
                continue
            measured = measure(spark, broker, mode, options)
            rows = np.array(measured.rows_ms)
            told = ", ".join(
                f"{name} {np.percentile(rows, at):.0f} ms"
                for name, at in (("median", 50), ("95 %", 95), ("99 %", 99))
            )
            print(f"{mode.name}: {told}; the longest {rows.max():.0f} ms of {len(rows):,} rows")
            print(f"  rows that came with a later one of their key: {measured.sent}, ", end="")
            print(f"that came twice: {measured.twice}")
            for phase in _PHASES:
                if times := measured.epochs_ms.get(phase):
                    print(
                        f"  {phase:20s} median {np.median(times):7.1f} ms, "
                        f"99 % {np.percentile(times, 99):7.1f} ms, {len(times)} epochs"
                    )
            sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()

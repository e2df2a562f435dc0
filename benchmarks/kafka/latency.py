"""End-to-end latency of every row: Kafka, a flow with state, Kafka; 1,000 rows a second.

    python -m benchmarks.kafka.latency [--seconds 20] [--rate 1000] [--only NAME]

Four processes: the broker (``noida-db``; ``GODWIT_KAFKA=host:port`` for a cluster of your own), a
producer that puts the time of the call into every row, the query (a stateful aggregate, a Spark
job for each epoch, or lanes that stay), and a consumer of committed messages that notes when each
row has come.  Exactly once and at least once take turns in one session, after a query that is not
measured, in which the JVM compiles what an epoch runs (``--cold``): at ten epochs a second that
takes more than a minute.  A row's key is its number modulo the rate, so every row comes out by
itself while an epoch is shorter than a second.

Beside them the floor, by the same producer and consumer: no query at all, and, instead of one, a
process that does nothing but consume what there is, produce it again, and wait for the broker or
commit a transaction.

Printed are percentiles over rows, the cores that each process kept busy, and where the time goes,
by epoch: how far apart epochs begin (a row waits half of that, on average), planning, stages (read
the messages and compute), commit, delivery, and within it what is said to the sink's group and the
end of the transaction.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from benchmarks.options import read_options
from benchmarks.resident import Resident, session
from benchmarks.streaming.measure import family_of
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
    resident: Resident
    exactly_once: bool


FLOORS = {  # name → what takes the place of a query; None: nothing does
    "floor: the broker alone": None,
    "floor: a relay, at least once": False,
    "floor: a relay, exactly once": True,
}
MODES = (
    Mode(name="own loop", resident=False, exactly_once=True),
    Mode(name="auto", resident="auto", exactly_once=True),
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
    cores: dict[str, float] = field(default_factory=dict)  # that each process kept busy


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


def consume(servers: str, topic: str, committed: bool, events: tuple[Any, Any], came: Any) -> None:
    """Note when rows come, until told to stop; send their numbers and both times."""
    ready, stop = events
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
    ready.set()
    rows: list[tuple[int, int, int]] = []
    while (message := consumer.poll(0.05)) is not None or not stop.is_set():
        if message is None or message.error() is not None:
            continue
        now_us = time.time_ns() // 1000
        row = json.loads(message.value() or b"{}")
        rows.append((row["seq"], row["sent_us"], now_us))
    came.put(rows)
    consumer.close()


def relay(servers: str, arriving: str, leaving: str, exactly_once: bool, stop: Any) -> None:
    """Consume what there is and produce it again, without a look at it, until told to stop."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "relay",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(arriving, timeout=30).topics[arriving].partitions
    consumer.assign([TopicPartition(arriving, number, 0) for number in partitions])
    transactional = {"transactional.id": leaving} if exactly_once else {}
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, **transactional})
    if exactly_once:
        producer.init_transactions(30)
    while not stop.is_set():
        messages = consumer.consume(10_000, 0.001)
        if not messages:
            continue
        if exactly_once:
            producer.begin_transaction()
        for message in messages:
            if message.error() is None:
                producer.produce(leaving, message.value(), partition=message.partition() or 0)
        if exactly_once:
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction(30)
        else:
            producer.flush(30)
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


class Traffic:
    """A producer and a consumer, and what they and others take of the machine."""

    def __init__(self, broker: Any, options: argparse.Namespace) -> None:
        self.options = options
        self.processes = multiprocessing.get_context("spawn")
        self.arriving = broker.topic(options.partitions)
        self.leaving = broker.topic(options.partitions)
        self.pids: dict[str, int | None] = {"broker": broker.pid}
        self.first_us = self.last_us = 0
        self._ready, self._stop, self._over = (self.processes.Event() for _ in range(3))
        self._sent, self._came = self.processes.Value("l", 0), self.processes.Queue()
        self._servers = broker.servers

    @contextmanager
    def running(self, topic: str, *, committed: bool) -> Iterator[None]:
        """Produce and consume; within it, rows count after `began` and until `ended`."""
        producer = self.processes.Process(
            target=produce,
            args=(self._servers, self.arriving, self.options, self._stop, self._sent),
        )
        consumer = self.processes.Process(
            target=consume,
            args=(self._servers, topic, committed, (self._ready, self._over), self._came),
        )
        try:
            for name, process in (("producer", producer), ("consumer", consumer)):
                process.start()
                self.pids[name] = process.pid
            yield
        finally:
            self._stop.set()
            producer.join(60)
            self._over.set()
            self._rows = self._came.get(timeout=60)
            consumer.join(30)

    def warm_up(self) -> None:
        """Wait until everything runs; rows count from now on."""
        self._ready.wait(60)
        time.sleep(self.options.warmup)
        self.first_us, self._cpu_s = time.time_ns() // 1000, cpu_s(self.pids)

    def end(self) -> dict[str, float]:
        """Produce no more; return name → cores that were busy since the warm-up."""
        self.last_us, cpu = time.time_ns() // 1000, cpu_s(self.pids)
        self._stop.set()
        took_s = (self.last_us - self.first_us) / 1e6
        return {name: (cpu[name] - self._cpu_s[name]) / took_s for name in cpu}

    def measured(self) -> Measured:
        """Return the latencies of the rows that were put in between."""
        rows = self._rows
        seqs = [seq for seq, _, _ in rows]
        came = len(set(seqs))
        times = [(at - s) / 1e3 for _, s, at in rows if self.first_us <= s <= self.last_us]
        if not times:
            msg = f"none of {len(rows)} rows that came was put after the warm-up: give more time"
            raise RuntimeError(msg)
        return Measured(rows_ms=times, sent=self._sent.value - came, twice=len(seqs) - came)


def cpu_s(pids: dict[str, int | None]) -> dict[str, float]:
    """Return the CPU time of processes and their children, of each of these names, in seconds."""
    ticks_s = os.sysconf("SC_CLK_TCK")
    families = {name: {*family_of(pid)} for name, pid in pids.items() if pid is not None}
    total = dict.fromkeys(families, 0.0)
    for name, family in families.items():
        # Those with a name of their own do not count towards their parent.
        others = (families[n] for n in families if n != name and pids[n] in family)
        own = family.difference(*others)
        for pid in own:
            with suppress(OSError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total[name] += (int(fields[11]) + int(fields[12])) / ticks_s
    return total


def floor(broker: Any, exactly_once: bool | None, options: argparse.Namespace) -> Measured:
    """Measure rows that no query has processed; `None`: nothing has."""
    traffic = Traffic(broker, options)
    over = traffic.processes.Event()
    between = traffic.processes.Process(
        target=relay,
        args=(broker.servers, traffic.arriving, traffic.leaving, bool(exactly_once), over),
    )
    relayed = exactly_once is not None
    topic = traffic.leaving if relayed else traffic.arriving
    with traffic.running(topic, committed=bool(exactly_once)):
        if relayed:
            between.start()
            traffic.pids["relay"] = between.pid
        try:
            traffic.warm_up()
            time.sleep(options.seconds)
            cores = traffic.end()
            time.sleep(1)
        finally:
            over.set()
            if relayed:
                between.join(30)
    measured = traffic.measured()
    measured.cores = cores
    return measured


def measure(spark: SparkSession, broker: Any, mode: Mode, options: argparse.Namespace) -> Measured:
    """Run a query of one mode for a while."""
    traffic = Traffic(broker, options)
    jvm: Any = spark.sparkContext._gateway  # noqa: SLF001  the process that PySpark has started
    traffic.pids |= {"driver": os.getpid(), "JVM": jvm.proc.pid}
    directory = Path(tempfile.mkdtemp(prefix="godwit-latency-"))
    flow = flow_of(broker.servers, traffic.arriving, traffic.leaving, mode)
    with traffic.running(traffic.leaving, committed=mode.exactly_once):
        query = flow.start(
            checkpoint=directory / "ck", lanes=gw.Lanes(resident=mode.resident), session=spark
        )
        try:
            _wait_for_epochs(query, mode)
            traffic.warm_up()
            for times in (_TimedProducer.offsets_ms, _TimedProducer.commits_ms):
                times.clear()
            until_s = time.monotonic() + options.seconds
            progress: dict[int, dict[str, Any]] = {}
            while time.monotonic() < until_s:
                time.sleep(0.5)
                if (error := query.exception()) is not None:
                    raise error
            progress |= {entry["epoch"]: entry for entry in query.recentProgress}
            cores = traffic.end()
            time.sleep(0.5)
            query.processAllAvailable()
            time.sleep(0.5)
            resident = query.status["residentEpochs"] if mode.resident else 0
        finally:
            query.stop()
    shutil.rmtree(directory, ignore_errors=True)
    if mode.resident and resident < len(progress) // 2:
        msg = f"lanes that stay worked {resident} epochs, and there were {len(progress)}"
        raise RuntimeError(msg)
    measured = traffic.measured()
    measured.cores = cores
    measured.epochs_ms = dict(_epochs(progress, traffic.first_us / 1e6))
    measured.epochs_ms["offsets"] = list(_TimedProducer.offsets_ms)
    measured.epochs_ms["end of transaction"] = list(_TimedProducer.commits_ms)
    return measured


def _wait_for_epochs(query: gw.types.Query, mode: Mode) -> None:
    """Wait until epochs run as they are to, however long it takes to begin."""
    until_s = time.monotonic() + 120
    while not query.recentProgress or (mode.resident and not query.status["residentEpochs"]):
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > until_s:
            msg = "no epoch was worked by lanes that stay"
            raise RuntimeError(msg)
        time.sleep(0.1)


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

    options = read_options(
        __doc__,
        seconds=20,
        warmup=8,
        cold=90,
        rate=1000,
        partitions=2,
        cores=3,
        only=[*FLOORS, *(mode.name for mode in MODES)],
    )
    import_module("godwit.connect.kafka.sink").Producer = _TimedProducer  # type: ignore[attr-defined]
    wanted = options.only
    with running_broker() as broker:
        for name, exactly_once in FLOORS.items():
            if name in wanted:
                tell(name, floor(broker, exactly_once, options))
        if any(mode.name in wanted for mode in MODES):
            spark = session(options.cores)
            cold = argparse.Namespace(**vars(options) | {"seconds": options.cold})
            if options.cold:
                measure(spark, broker, MODES[0], cold)
            for mode in MODES:
                if mode.name in wanted:
                    tell(mode.name, measure(spark, broker, mode, options))
            spark.stop()


def tell(name: str, measured: Measured) -> None:
    """Print the figures of a mode."""
    rows = np.array(measured.rows_ms)
    told = ", ".join(
        f"{of} {np.percentile(rows, at):.0f} ms"
        for of, at in (("median", 50), ("95 %", 95), ("99 %", 99))
    )
    print(f"{name}: {told}; the longest {rows.max():.0f} ms of {len(rows):,} rows")
    print(f"  rows that came with a later one of their key: {measured.sent}, ", end="")
    print(f"that came twice: {measured.twice}")
    busy = ", ".join(f"{of} {cores:.2f}" for of, cores in measured.cores.items())
    print(f"  cores busy: {busy}")
    for phase in _PHASES:
        if times := measured.epochs_ms.get(phase):
            print(
                f"  {phase:20s} median {np.median(times):7.1f} ms, "
                f"99 % {np.percentile(times, 99):7.1f} ms, {len(times)} epochs"
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()

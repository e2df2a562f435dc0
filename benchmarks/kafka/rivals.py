"""Rows a second from Kafka, JSON of 100 bytes decoded: Godwit beside Bytewax and Quix Streams.

    python3 -m venv /tmp/godwit-rivals
    /tmp/godwit-rivals/bin/pip install "bytewax[kafka]==0.21.1" "quixstreams==3.23.1" orjson
    python -m benchmarks.kafka.rivals --rivals /tmp/godwit-rivals/bin/python [--rounds 3]

They are not among the packages that Godwit needs, so they have an environment of their own.  One
broker (``GODWIT_KAFKA=host:port`` for a cluster of your own) has a topic for each process that
reads.  Readers take turns, as many processes at once as cores.  A rate counts from the first rows
that are there, so nobody's start counts, and CPU time a million rows is that of the readers alone.
Rivals give a dict for each row, decoded by orjson; Godwit gives Arrow columns of declared types.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.kafka.source import fill
from benchmarks.options import read_options

_READERS = Path(__file__).with_name("readers.py")


def run(
    python: str, reader: str, servers: str, topics: list[str], rows: int
) -> tuple[float, float]:
    """Let processes read a topic each; return rows a second, and CPU seconds a million rows."""
    processes = [
        subprocess.Popen(
            [python, _READERS, reader, servers, topic, str(rows)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for topic in topics
    ]
    told: list[dict[str, Any]] = []
    for process in processes:
        try:
            out, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
        lines = [line for line in out.splitlines() if line.startswith("READ ")]
        if not lines:
            raise RuntimeError(f"{reader} has not read everything:\n{errors[-3000:]}")
        told.append(json.loads(lines[0].removeprefix("READ ")))
    counted = sum(one["rows"] for one in told)
    took_s = max(one["last_s"] for one in told) - min(one["first_s"] for one in told)
    return counted / took_s, sum(one["cpu_s"] for one in told) / counted * 1e6


def main() -> None:
    """Measure in turns, and print."""
    from tests.kafka_broker import running_broker

    options = read_options(__doc__, rows=400_000, readers=2, rounds=3, partitions=2, rivals=str)
    readers = {"godwit": sys.executable}
    if options.rivals:
        readers |= dict.fromkeys(("bytewax", "quix"), options.rivals)
    rates: dict[str, list[float]] = defaultdict(list)
    cpu_s: dict[str, list[float]] = defaultdict(list)
    with running_broker() as broker:
        topics = [broker.topic(options.partitions) for _ in range(options.readers)]
        size = sum(fill(broker, topic, options.partitions, options.rows) for topic in topics)
        each = size / options.rows / options.readers
        print(f"{options.readers} readers, {options.rows:,} rows of {each:.0f} bytes for each")
        for _ in range(options.rounds):
            for reader, python in readers.items():
                rate, cpu = run(python, reader, broker.servers, topics, options.rows)
                rates[reader].append(rate)
                cpu_s[reader].append(cpu)
                print(f"  {reader}: {rate:,.0f} rows/s, {cpu:.2f} s of CPU a million", flush=True)
    for reader, of in rates.items():
        ratio = median(rates["godwit"]) / median(of)
        less = median(cpu_s[reader]) / median(cpu_s["godwit"])
        print(
            f"{reader:8s} median {median(of):10,.0f} rows/s, {median(cpu_s[reader]):6.2f} s of CPU "
            f"a million; Godwit is {ratio:.1f}x as fast by the clock, {less:.1f}x by CPU"
        )


if __name__ == "__main__":
    main()

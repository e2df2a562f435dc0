"""One reader of a topic of JSON, by Godwit, Bytewax or Quix Streams, in a process of its own.

    python benchmarks/kafka/readers.py READER SERVERS TOPIC ROWS

`benchmarks.kafka.rivals` runs it, those of the rivals in an environment that does not have Godwit;
so nothing is imported before it is known who reads.  Every message is decoded.  Printed is one line
of JSON: when the first rows were there and when the last, how many, and the CPU time in between.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

SCHEMA = "tailnum string, year long, delay double, origin string, seq long, pad string"


class Clock:
    """Counts rows, and times from the first to the last of them."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.rows = self.first_rows = 0
        self.first_s = self.cpu_s = 0.0

    def __call__(self, rows: int) -> bool:
        """Take note of rows; return true once all are there."""
        if not self.rows:
            self.first_s, self.cpu_s, self.first_rows = time.time(), _cpu_s(), rows
        self.rows += rows
        if self.rows < self.expected:
            return False
        told = {
            "first_s": self.first_s,
            "last_s": time.time(),
            "rows": self.rows - self.first_rows,
            "cpu_s": _cpu_s() - self.cpu_s,
        }
        print("READ " + json.dumps(told), flush=True)
        return True


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def godwit(servers: str, topic: str, clock: Clock) -> None:
    """Read by the source of Godwit's own, into Arrow columns."""
    import pyarrow as pa

    import godwit as gw

    source = gw.sources.kafka(servers, topic, value="json", schema=SCHEMA)
    source.open(None)
    begin = source.start()
    for split in source.splits(begin, source.end(begin), 1):
        for batch in source.read(split, source.schema.names):
            if isinstance(batch, pa.RecordBatch) and clock(batch.num_rows):
                break
    source.close()


def bytewax(servers: str, topic: str, clock: Clock) -> None:
    """Read by Bytewax's Kafka input, one worker; a dict for each row."""
    import bytewax.operators as op
    import orjson
    from bytewax.connectors.kafka import operators as kop
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import run_main

    class Counting(StatelessSinkPartition[Any]):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            clock(len(items))

    class CountingSink(DynamicSink[Any]):  # type: ignore[misc]
        def build(self, *_: object) -> Counting:
            return Counting()

    flow = Dataflow("rows")
    messages = kop.input(
        "in", flow, brokers=[servers], topics=[topic], tail=False, batch_size=10_000
    )
    rows = op.map("decode", messages.oks, lambda message: orjson.loads(message.value))
    op.output("out", rows, CountingSink())
    run_main(flow)


def quix(servers: str, topic: str, clock: Clock) -> None:
    """Read by Quix Streams, with its own JSON deserializer; a dict for each row."""
    from quixstreams import Application

    app = Application(
        broker_address=servers,
        consumer_group=f"quix-{time.time_ns()}",
        auto_offset_reset="earliest",
        loglevel="WARNING",
    )
    frame = app.dataframe(app.topic(topic, value_deserializer="json"))

    def count(row: dict[str, Any]) -> None:
        del row
        if clock(1):
            app.stop()

    frame.update(count)
    app.run()


READERS = {"godwit": godwit, "bytewax": bytewax, "quix": quix}

if __name__ == "__main__":
    READERS[sys.argv[1]](sys.argv[2], sys.argv[3], Clock(int(sys.argv[4])))

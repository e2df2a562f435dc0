"""Flink in one JVM, two slots, a checkpoint every 10 s.

Variants: ``heap`` and ``rocksdb`` (SQL with mini-batches and two phases, by where state is kept),
``function`` (PyFlink's keyed process function with a value state on the heap, its Python in the
JVM: ``thread`` mode).
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.peers.programs.job import PARALLELISM, Job

os.environ["JVM_ARGS"] = "-Xmx4g"  # as Spark's driver; before its JVM starts
from pyflink.common import Configuration, Row, Types
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = """
CREATE TABLE `rows` (`key` STRING, v DOUBLE)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""
SUMS = "SELECT `key`, COUNT(*) AS n, SUM(v) AS s FROM `rows` GROUP BY `key`"
SINK = """
CREATE TABLE results (`key` STRING, n BIGINT, s DOUBLE) WITH ('connector' = '{connector}')
"""
PRINTED = re.compile(r"\+[IU]\[(.+), (\d+), (.+)\]")  # new results, without retracted ones


class Sums(KeyedProcessFunction):  # type: ignore[misc]
    """Number and sum of the rows of a key."""

    def open(self, runtime_context: Any) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.DOUBLE()])
        self.state = runtime_context.get_state(ValueStateDescriptor("sums", kind))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        n, s = self.state.value() or (0, 0.0)
        n, s = n + 1, s + value[1]
        self.state.update((n, s))
        yield Row(value[0], n, s)


def table_environment(job: Job) -> StreamTableEnvironment:
    """Start Flink."""
    settings = {
        "parallelism.default": str(PARALLELISM),
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "taskmanager.memory.managed.size": "1g",  # of RocksDB
        "state.backend.type": "rocksdb" if job.variant == "rocksdb" else "hashmap",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": (job.work / "checkpoints").as_uri(),
        "execution.checkpointing.incremental": "true",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1 s",
        "table.exec.mini-batch.size": "50000",
        "table.optimizer.agg-phase-strategy": "TWO_PHASE",
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "restart-strategy.type": "none",  # an error ends the job
    }
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    stream = StreamExecutionEnvironment.get_execution_environment(configuration)
    tables = StreamTableEnvironment.create(stream)
    tables.execute_sql(SOURCE.format(path=job.input.as_uri()))
    connector = "blackhole" if job.results is None else "print"
    tables.execute_sql(SINK.format(connector=connector))
    return tables


def processed(tables: StreamTableEnvironment) -> Any:
    """Count and add up by a Python function with state."""
    stream = tables.to_data_stream(tables.from_path("rows"))
    kind = Types.ROW_NAMED(["key", "n", "s"], [Types.STRING(), Types.LONG(), Types.DOUBLE()])
    keyed = stream.key_by(lambda row: row[0], key_type=Types.STRING())
    return tables.from_data_stream(keyed.process(Sums(), output_type=kind))


@contextmanager
def output_of_jvm(path: Path) -> Iterator[None]:
    """Context in which a JVM starts whose standard output is a file."""
    own = os.dup(1)
    with path.open("wb") as out:
        os.dup2(out.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(own, 1)


def main() -> None:
    """Run the job that the command line names."""
    job = Job.of_command_line()
    printed = job.work / "printed.txt"
    with output_of_jvm(printed):
        tables = table_environment(job)
    job.begin()
    results = processed(tables) if job.variant == "function" else tables.sql_query(SUMS)
    results.execute_insert("results").wait()
    if job.results is not None:
        found = map(PRINTED.search, printed.read_text().splitlines())
        job.write((row[1], int(row[2]), float(row[3])) for row in found if row is not None)
    job.end()


if __name__ == "__main__":
    main()

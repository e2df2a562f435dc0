"""Adopted queries write to every target of Spark's writer, over a restart, in every mode it has."""

from __future__ import annotations

import datetime as dt
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions as sf
from tests.adopted.agreed import agreed, comparison, remember
from tests.support.long_tests import chosen
from tests.support.native import Stream, run, settings, write, written
from tests.support.postgres_sinks import execute

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.kafka_broker import KafkaBroker

    from godwit.adopt.writer import StreamWriter

    Rows = list[tuple[Any, ...]]

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

_START = dt.datetime(2024, 1, 1)
_BATCHES = [
    [("a", _START + dt.timedelta(minutes=3 * batch + n % 4), n) for n in range(batch, batch + 5)]
    + [("b", _START + dt.timedelta(minutes=3 * batch), batch)]
    for batch in range(4)
]


def _totals(s: DataFrame) -> DataFrame:
    """A total for each key, and an expression over it."""
    return s.groupBy("k").agg(sf.sum("n").alias("t")).withColumn("u", sf.expr("t + 1"))


def _windows(s: DataFrame) -> DataFrame:
    """Totals of windows, once they are closed."""
    window = sf.window("ts", "2 minutes")
    closed = s.withWatermark("ts", "1 minute").groupBy(window, "k").agg(sf.sum("n").alias("t"))
    return closed.select("k", "t", sf.expr("t + 1").alias("u"))


def _messages(s: DataFrame) -> DataFrame:
    """The windows as messages of Kafka."""
    message = "cast(concat(k, ' ', t, ' ', u) AS binary) AS value"
    return _windows(s).selectExpr("k AS key", message, "t AS ignored")


def _plain_messages(s: DataFrame, topics: tuple[str, str]) -> DataFrame:
    """Rows as messages of Kafka, each for a topic that it names."""
    return s.select(
        sf.expr(f"if(k = 'a', '{topics[0]}', '{topics[1]}') AS topic"),
        sf.col("k").alias("key"),
        sf.expr("concat_ws(' ', k, n, n + 1) AS value"),
        sf.expr("array(struct('unit' AS key, cast('n' AS binary) AS value)) AS headers"),
        sf.lit(0).alias("partition"),
    )


def _rows(s: DataFrame) -> DataFrame:
    """The rows of these messages."""
    return s.select("k", sf.col("n").cast("long").alias("t"), sf.expr("n + 1L AS u"))


class _Job:
    """A query that writes to a target, and what the target has afterwards."""

    def __init__(
        self,
        build: Callable[[DataFrame], DataFrame],
        mode: str,
        target: Callable[[StreamWriter], StreamWriter],
        read: Callable[[], Rows],
        *,
        expected: str = "all",  # rows of all batches, of the last one, or the last of each key
        result: Callable[[DataFrame], DataFrame] | None = None,  # if it differs from `build`
    ) -> None:
        self.build, self.mode, self.target, self.read = build, mode, target, read
        self.expected, self.result = expected, result or build


_ONLY_LONG = (  # complete tables go to Iceberg, too, and every other test adopts a function
    "delta, complete",
    "foreachBatch",
    "noop",
)


def _end(query: Any) -> None:
    """Wait for the end of a query."""
    query.awaitTermination()
    assert query.exception() is None


def test_every_target_gets_the_rows_of_spark_over_a_restart(
    spark: SparkSession,
    kafka: KafkaBroker,
    postgres: str,
    tmp_path: Path,
) -> None:
    out = str(tmp_path)
    catalog = {"type": "sql", "uri": f"sqlite:///{out}/c.db", "warehouse": f"file://{out}/ice"}
    default_place = "spark.sql.streaming.checkpointLocation"
    topic, epochs, own = kafka.topic(), kafka.topic(), (kafka.topic(), kafka.topic())
    seen: dict[str, Rows] = {"foreach": [], "batches": []}

    def note(rows: DataFrame, batch: int) -> None:
        """Remember the rows of a batch."""
        seen["batches"] += [tuple(row) for row in rows.collect()]

    class Writer:
        def open(self, partition: int, batch: int) -> bool:
            self.rows: Rows = []
            return batch >= 0

        def process(self, row: Any) -> None:
            self.rows.append(tuple(row))

        def close(self, error: Exception | None) -> None:
            if self.rows:
                name = f"{out}/rows-{id(self)}-{len(self.rows)}-{self.rows[0][0]}{self.rows[0][1]}"
                with open(name, "a") as file:  # noqa: PTH123  on an executor
                    file.write(f"{self.rows!r}\n")

    def by_foreach() -> Rows:
        texts = (file.read_text().splitlines() for file in tmp_path.glob("rows-*"))
        return [row for text in itertools.chain(*texts) for row in eval(text)]

    def delta(name: str) -> Rows:
        table = DeltaTable(f"{out}/{name}").to_pyarrow_table()
        return list(map(tuple, (row.values() for row in table.to_pylist())))

    def iceberg(name: str) -> Rows:
        rows = load_catalog("ours", **catalog).load_table(name).scan().to_arrow()
        return list(map(tuple, (row.values() for row in rows.to_pylist())))

    def messages(*topics: str) -> Rows:
        read = [message for topic in topics for message in kafka.read(topic)]
        headers = [("unit", b"n")] if topics == own else None
        assert all(message.headers() == headers for message in read)
        rows = [_fields(message.value()) for message in read]
        assert [row[0].encode() for row in rows] == [message.key() for message in read]
        return rows

    def files() -> Rows:
        rows = spark.read.parquet(f"{out}/files").select("k", "t", "u").collect()
        return [tuple(row) for row in rows]

    def table(name: str) -> Rows:
        return execute(postgres, f"SELECT k, t, u FROM {name}")

    def to_kafka(w: Any) -> Any:
        return w.format("kafka").option("kafka.bootstrap.servers", kafka.servers)

    def to_postgres(w: Any, name: str) -> Any:
        return w.format("postgres").option("url", postgres).option("dbtable", name)

    jobs = {
        "parquet": _Job(
            _windows,
            "append",
            lambda w: w.format("parquet").partitionBy("k").option("path", f"{out}/files"),
            files,
        ),
        "delta": _Job(
            _windows,
            "append",
            lambda w: w.format("delta").partitionBy("k").option("path", f"{out}/delta"),
            lambda: delta("delta"),
        ),
        "delta, complete": _Job(
            _totals,
            "complete",
            lambda w: w.format("delta").option("path", f"{out}/all"),
            lambda: delta("all"),
            expected="last",
        ),
        "kafka": _Job(
            _messages,
            "append",
            lambda w: to_kafka(w).option("topic", topic),
            lambda: messages(topic),
            result=_windows,
        ),
        "kafka, topics of rows": _Job(
            lambda s: _plain_messages(s, own),
            "append",
            lambda w: to_kafka(w).option("epochsTopic", epochs),
            lambda: messages(*own),
            result=_rows,
        ),
        "iceberg": _Job(
            _windows, "append", lambda w: w.format("iceberg"), lambda: iceberg("db.windows")
        ),
        "iceberg, complete": _Job(
            _totals,
            "complete",
            lambda w: w.format("iceberg"),
            lambda: iceberg("more.totals"),
            expected="last",
        ),
        "postgres": _Job(
            _windows, "append", lambda w: to_postgres(w, "windows"), lambda: table("windows")
        ),
        "postgres, update": _Job(
            _totals,
            "update",
            lambda w: to_postgres(w, "totals").option("keys", "k"),
            lambda: table("totals"),
            expected="keys",
        ),
        "foreach": _Job(_windows, "append", lambda w: w.foreach(Writer()), by_foreach),
        "foreachBatch": _Job(
            _totals, "update", lambda w: w.foreachBatch(note), lambda: seen["batches"]
        ),
        "memory": _Job(
            _totals,
            "complete",
            lambda w: w.format("memory").queryName("in_memory"),
            lambda: [tuple(row) for row in spark.table("in_memory").collect()],
            expected="last",
        ),
        "noop": _Job(_totals, "update", lambda w: w.format("noop"), list, expected="none"),
    }
    jobs = chosen(jobs, only_long=_ONLY_LONG)
    tables = {"iceberg": "ours.db.windows", "iceberg, complete": "ours.more.totals"}
    schema = "k string, ts timestamp, n int"
    streams = {"s": Stream(schema=schema, batches=_BATCHES[:2])}
    with settings(spark), written(spark, streams) as frames, ThreadPoolExecutor(4) as pool:
        compared = {
            name: comparison(job.result(frames["s"]), job.result, job.mode, job.expected, _BATCHES)
            for name, job in jobs.items()
        }
        spark.conf.set(default_place, f"{out}/checkpoints")
        for key, value in catalog.items():
            spark.conf.set(f"spark.sql.catalog.ours.{key}", value)

        def finish(name: str) -> None:
            """Run a job over the input that is there."""
            job = jobs[name]
            writer = gw.write_stream(job.build(frames["s"])).outputMode(job.mode)
            writer = writer.trigger(availableNow=True).queryName(name.replace(", ", "_"))
            writer = job.target(writer)
            _end(writer.toTable(tables[name]) if name in tables else writer.start())

        def batches_of(oracle: tuple[Any, str]) -> list[Rows]:
            """Return the batches of a query in Spark."""
            build, mode = oracle
            place = f"{out}/native/{build.__name__}-{mode}"
            outcome = run(build(frames["s"]).writeStream, mode=mode, checkpoint=place)
            return list(outcome.batches.values())

        try:
            list(pool.map(finish, jobs))
            write(streams["s"], _BATCHES[2:])
            list(pool.map(finish, jobs))
            results = {name: sorted(job.read()) for name, job in jobs.items()}
            asked = [n for n in jobs if not agreed(compared[n], results[n])]
            oracles = list({(jobs[name].result, jobs[name].mode): None for name in asked})
            native = dict(zip(oracles, pool.map(batches_of, oracles), strict=True))
        finally:
            spark.conf.unset(default_place)
            for key in catalog:
                spark.conf.unset(f"spark.sql.catalog.ours.{key}")
    assert all(rows for name, rows in results.items() if jobs[name].expected != "none")
    for name in asked:
        job = jobs[name]
        batches = native[job.result, job.mode]
        every = list(itertools.chain(*batches))
        expected = {
            "all": every,
            "last": batches[-1],
            "keys": list({row[0]: row for row in every}.values()),
            "none": [],
        }[job.expected]
        assert results[name] == sorted(expected), name
        remember(compared[name], results[name], f"to {name}")


def _fields(value: bytes) -> tuple[Any, ...]:
    """Return the columns of a message."""
    key, total, more = value.decode().split()
    return key, int(total), int(more)

"""Typical jobs run here with one line changed, and give the rows that they give in Spark."""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  as programs write it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.adopted.agreed import check_with_spark, comparison
from tests.support.native import settings

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

_START = dt.datetime(2024, 1, 1)
_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


_HEAD = """
clicks = (
    spark.readStream.schema("id long, user string, page string, ts timestamp, amount int")
    .option("maxFilesPerTrigger", 1)
    .json(clicks_in)
)
orders = (
    spark.readStream.schema("user string, ts timestamp, total int")
    .option("maxFilesPerTrigger", 1)
    .json(orders_in)
)
"""
_TAIL = """
query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
"""
_IDLE = '''
class Idle(StatefulProcessor):
    """Reports a user who was idle for fifteen seconds."""

    def init(self, handle):
        self.handle = handle
        self.seen = handle.getValueState("seen", "clicks int")

    def handleInputRows(self, key, rows, timerValues):
        times = [row.ts.timestamp() for row in rows]
        before = self.seen.get()
        self.seen.update(((before[0] if before else 0) + len(times),))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int(max(times) * 1000) + 15_000)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        clicks = self.seen.get()[0]
        self.seen.clear()
        yield Row(user=key[0], clicks=clicks, idle=expiredTimerInfo.getExpiryTimeInMs() // 1000)

    def close(self):
        pass

'''
_SAVE = '''
def save(rows, batch):
    """Insert or replace the row of each user in a table: a directory with a file for each."""
    os.makedirs(out, exist_ok=True)
    for row in rows.collect():
        with open(f"{out}/{row.user}.json", "w") as file:
            json.dump({**row.asDict(), "batch": batch}, file)

'''
_JOBS = {
    "JSON to Delta, with windows of rows without duplicates": """
counts = (
    clicks.withWatermark("ts", "2 minutes")
    .dropDuplicates(["id", "ts"])
    .groupBy(F.window("ts", "1 minute"), "page")
    .agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    .select(F.col("window.start").alias("minute"), "page", "n", "amount")
)
query = (
    counts.writeStream
    .format("delta")
    .option("path", out)
)
""",
    "sessions": """
sessions = (
    clicks.withWatermark("ts", "1 minute")
    .groupBy("user", F.session_window("ts", "30 seconds").alias("s"))
    .agg(F.count("*").alias("n"), F.max("page").alias("page"))
    .select("user", "s.start", "s.end", "n", "page")
)
query = sessions.writeStream.format("parquet").option("path", out)
""",
    "transformWithState with timers": _IDLE
    + """
idle = clicks.withWatermark("ts", "1 minute").groupBy("user").transformWithState(
    Idle(), "user string, clicks int, idle long", "Append", "EventTime"
)
query = (
    idle.writeStream
    .outputMode("append")
    .format("parquet")
    .option("path", out)
)
""",
    "an outer join": """
left = clicks.withWatermark("ts", "1 minute").alias("c")
right = orders.withWatermark("ts", "2 minutes").alias("o")
joined = left.join(
    right,
    F.expr("c.user = o.user AND o.ts BETWEEN c.ts AND c.ts + interval 1 minute"),
    "leftOuter",
).select("c.user", "c.id", "c.ts", "o.total")
query = joined.writeStream.format("parquet").option("path", out)
""",
    "an upsert by foreachBatch": _SAVE
    + """
totals = clicks.groupBy("user").agg(F.sum("amount").alias("amount"), F.max("id").alias("last"))
query = totals.writeStream.outputMode("update").foreachBatch(save)
""",
    "Kafka": """
messages = clicks.where("amount > 3").select(
    F.col("user").alias("key"), F.to_json(F.struct("id", "user", "amount")).alias("value")
)
query = (
    messages.writeStream
    .format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", topic)
)
""",
    "two stateful operators in a row": """
busiest = (
    clicks.withWatermark("ts", "1 minute")
    .groupBy(F.window("ts", "20 seconds"), "page")
    .count()
    .groupBy(F.window(F.window_time("window"), "1 minute"))
    .agg(F.max("count").alias("most"), F.sum("count").alias("n"))
    .select("window.start", "most", "n")
)
query = busiest.writeStream.format("parquet").option("path", out)
""",
    "SQL alone": """
clicks.createOrReplaceTempView(view)
counts = spark.sql(f"SELECT page, count(*) AS n, sum(amount) AS t FROM {view} GROUP BY page")
query = counts.writeStream.outputMode("complete").format("memory").queryName(name)
""",
}


_KAFKA = """.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", topic)"""
_WITHOUT_SINK = {
    next(iter(_JOBS)): ('"delta"', '"parquet"'),
    "Kafka": (_KAFKA, '.format("memory").queryName(name)'),
}
"""Changes to jobs whose sinks Spark has only with further packages."""


def _changed(job: str) -> str:
    """Return the text of a job with its one line changed."""
    return re.sub(r"(?m)^(query = |    )(\w+)\.writeStream", r"\1gw.write_stream(\2)", job)


@contextmanager
def _rocks(spark: SparkSession) -> Iterator[None]:
    """Context with the state store that processors need in Spark."""
    spark.conf.set(_STORE, _ROCKS)
    try:
        yield
    finally:
        spark.conf.unset(_STORE)


def _write_input(directory: Path) -> None:
    """Write four files of clicks and of orders, some of them late, or twice.

    Users of the first two files are not in the others.
    """
    draw = random.Random(5)
    for batch in range(4):
        clicks, orders = [], []
        for number in range(25):
            second = 120 * batch + draw.randint(-90, 120)
            time = str(_START + dt.timedelta(seconds=second))
            user = draw.choice((("ann", "bob", "cem"), ("dan", "eve", "flo"))[batch // 2])
            click = {"id": 100 * batch + number, "user": user, "page": draw.choice("xyz")}
            clicks.append({**click, "ts": time, "amount": draw.randint(1, 9)})
            if number % 3 == 0:
                clicks.append(clicks[-1])
                orders.append({"user": user, "ts": time, "total": draw.randint(1, 9)})
        for name, rows in (("clicks", clicks), ("orders", orders)):
            place = directory / name / f"{batch}.json"
            place.parent.mkdir(exist_ok=True)
            place.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(place, (1_700_000_000 + batch,) * 2)  # by which files are read in order


def test_a_typical_job_runs_with_one_line_changed(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    _write_input(tmp_path)
    topic = kafka.topic()

    def rows_of(job: str, text: str, who: str) -> tuple[str, list[str]]:
        """Run a job; return its `comparison`, and the rows that its target has then."""
        place = tmp_path / f"{who}-{list(_JOBS).index(job)}"
        place.mkdir()
        out, name = str(place / "out"), f"counts_{who}"
        program = {
            "__name__": "__main__",
            "spark": spark,
            "F": F,
            "gw": gw,
            "Row": Row,
            "json": json,
            "os": os,
            "StatefulProcessor": StatefulProcessor,
            "servers": kafka.servers,
            "topic": topic,
            "clicks_in": str(tmp_path / "clicks"),
            "orders_in": str(tmp_path / "orders"),
            "out": out,
            "checkpoint": str(place / "checkpoint"),
            "name": name,
            "view": f"clicks_{who}",
        }
        exec(_HEAD + text + _TAIL, program)
        frame = [value for value in program.values() if isinstance(value, DataFrame)][-1]
        compared = comparison(frame, _write_input, text, inspect.getsource(_write_input))
        if '"memory"' in text:
            rows = spark.table(name).collect()
        elif '"kafka"' in text:
            read = kafka.read(topic)
            rows = [Row(key=m.key().decode(), value=m.value().decode()) for m in read]
        elif "foreachBatch(save)" in text:
            return compared, sorted(file.read_text() for file in Path(out).iterdir())
        elif '"delta"' in text:
            rows = spark.createDataFrame(DeltaTable(out).to_pyarrow_table()).collect()
        else:
            rows = spark.read.parquet(out).collect()
        return compared, sorted(map(str, rows))

    def compare(job: str) -> None:
        text = _JOBS[job]
        changed = _changed(text)
        difference = difflib.ndiff(text.splitlines(), changed.splitlines())
        assert sum(line.startswith("+ ") for line in difference) == 1, job
        here = text.replace(*_WITHOUT_SINK.get(job, ("", "")))
        compared, adopted = rows_of(job, changed, "adopted")
        assert len(adopted) >= 3, job
        check_with_spark(compared, adopted, lambda: rows_of(job, here, "native")[1], f"job {job}")

    with settings(spark), _rocks(spark), ThreadPoolExecutor(4) as pool:
        list(pool.map(compare, _JOBS))

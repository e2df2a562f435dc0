"""Streams that meet, on Spark: what Spark's own batch queries give over the same rows."""

from __future__ import annotations

import inspect
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  the name everybody gives it
from tests.adopted.agreed import check_with_spark, evaluation
from tests.spark.streams import Inbox, as_texts, drain, rows_of

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

S = 1_000_000
BASE = 1_700_000_000 * S
COLUMNS = {
    "united": ["k", "window_start", "window_end", "n", "total"],
    "once": ["k", "ts", "v"],
    "newest": ["k", "ts", "v", "at", "w"],
    "pairs": ["k", "ts", "v", "at", "w"],
    "spread": ["k", "ts", "v", "at", "w"],
    "counts": ["k", "n"],
}
NAMES = tuple(COLUMNS)
LONG_AGO = BASE - 10 * 86_400 * S


def random_rows(rng: np.random.Generator, first: int, number: int) -> list[tuple[Any, ...]]:
    """Rows of a few keys, some without one, no two of a stream at one moment."""
    moments = BASE + (first * 100 + rng.permutation(400)[:number]) * S + first
    keys = [None if k == 0 else f"k{k}" for k in rng.integers(0, 6, number)]
    values = [int(v) for v in rng.integers(0, 9, number)]
    return [(k, int(m), v) for k, m, v in zip(keys, moments, values, strict=True)]


def count(key: tuple[str], rows: Any, state: dict[str, int]) -> list[tuple[str, int]]:
    """Count rows of a key, one of which takes long."""
    if key[0] == "k1":
        time.sleep(0.05)
    state["n"] = state.get("n", 0) + len(rows)
    return [(key[0], len(rows))]


def add(state: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {"n": state.get("n", 0) + other.get("n", 0)}


def meeting_flow(
    left: Inbox, right: Inbox, late: Path, *, reordered: bool = False
) -> tuple[gw.Flow, dict[str, Any]]:
    """Let two streams meet in every way there is; of one, rows that are late go to files."""
    flow = gw.Flow("meeting", num_key_groups=8)
    frames = [inbox.stream() for inbox in (left, right)]
    if reordered:
        frames = [frame.select(*reversed(frame.columns)) for frame in frames]
    one = flow.source("left", frames[0], event_time="ts", slack="1 hour")
    other = flow.source("right", frames[1], event_time="at", slack="1 hour")
    same = other.map(
        lambda df: df.select("k", F.col("at").alias("ts"), F.col("w").alias("v"), "at")
    )
    wide = one.map(lambda df: df.select("k", "ts", "v", F.col("ts").alias("at")))
    united = wide.union(same).key_by("k").window(gw.tumbling("1 minute"), time="ts", name="united")
    streams = {
        "united": united.compute(n=gw.count(), total=gw.sum("v")),
        "once": one.drop_duplicates("k", "v", within="1 day"),
        "newest": one.key_by("k").join_newest(other.key_by("k"), within="1 minute"),
        "pairs": one.key_by("k").join(
            other.key_by("k"),
            between=("-20 seconds", "30 seconds"),
            how="full",
            late=gw.sinks.parquet(str(late)),
        ),
        "spread": one.key_by("k").join(
            other.key_by("k"), between=("-20 seconds", "30 seconds"), spread=2, name="spread"
        ),
        "counts": one.key_by("k").process(
            count, state=gw.ValueState(dict, merge=add), output="k string, n long", name="counts"
        ),
    }
    sinks = {name: gw.sinks.memory() for name in NAMES}
    for name in NAMES:
        flow.sink(f"{name}_out", streams[name], sinks[name])
    return flow, sinks


def expected(spark: SparkSession, left: Inbox, right: Inbox) -> dict[str, list[str]]:
    """Give the same of batch queries, but for rows of long ago."""
    one, other = (
        spark.read.schema(inbox.columns)
        .parquet(str(inbox.directory))
        .where(F.unix_micros(time) > LONG_AGO)
        for inbox, time in ((left, "ts"), (right, "at"))
    )
    both = one.unionAll(other.select("k", F.col("at").alias("ts"), F.col("w").alias("v")))
    united = both.groupBy("k", F.window("ts", "1 minute").alias("x")).agg(F.count("*"), F.sum("v"))
    newest = Window.partitionBy("k", "ts", "v").orderBy(F.col("at").desc_nulls_last())
    later = F.unix_micros(other.at) - F.unix_micros(one.ts)
    as_of = one.join(
        other.withColumnRenamed("k", "r"),
        (one.k == F.col("r")) & later.between(-60 * S, 0),
        "left",
    )
    pairs = one.join(
        other.withColumnRenamed("k", "r"),
        (one.k == F.col("r")) & later.between(-20 * S, 30 * S),
        "full",
    )
    found = {
        "united": united.select("k", "x.start", "x.end", "count(1)", "sum(v)"),
        "once": one.select("k", "v").distinct(),
        "newest": as_of.withColumn("n", F.row_number().over(newest))
        .where("n = 1")
        .select("k", "ts", "v", "at", "w"),
        "pairs": pairs.select(F.coalesce("k", "r"), "ts", "v", "at", "w"),
        "spread": pairs.where("k = r").select("k", "ts", "v", "at", "w"),
    }
    return {name: as_texts(rows_of(micros(frame))) for name, frame in found.items()}


def micros(frame: DataFrame) -> DataFrame:
    """Moments as microseconds."""
    moments = [name for name, dtype in frame.dtypes if dtype == "timestamp"]
    return frame.select(
        *(F.unix_micros(n).alias(n) if n in moments else F.col(f"`{n}`") for n in frame.columns)
    )


def plain(table: pa.Table) -> pa.Table:
    """Moments as microseconds."""
    fields = [f.with_type(pa.int64()) if pa.types.is_timestamp(f.type) else f for f in table.schema]
    return table.cast(pa.schema(fields))


@pytest.fixture
def zones(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Time zones of two sessions; that of the test's own is as it was afterwards."""
    zone = spark.conf.get("spark.sql.session.timeZone", "UTC")
    assert zone is not None
    yield "Asia/Tokyo", "America/New_York"
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_streams_meet_as_in_batch_queries_across_a_restart_in_another_time_zone(
    spark: SparkSession,
    tmp_path: Path,
    zones: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("godwit.control.spreading._MIN_WORK", 1)  # hot, however few rows there are
    monkeypatch.setattr("godwit.control.spreading._MAX_WORK_RATIO", 0.99)
    hot = gw.control.Spreading(epochs=1, confirm=1, spread_above=0.2, gather_below=0.01)
    rng = np.random.default_rng(11)
    left = Inbox(spark=spark, directory=tmp_path / "l", columns="k string, ts timestamp, v long")
    right = Inbox(spark=spark, directory=tmp_path / "r", columns="k string, at timestamp, w long")
    # A start delivers the last epoch again.
    epochs: dict[str, dict[int, list[Any]]] = {name: {} for name in NAMES}
    put = []
    for run in range(2):
        for epoch in (2 * run, 2 * run + 1):
            late = [("late", LONG_AGO, 1)] * (epoch == 3)
            for inbox in (left, right):
                put.append([*random_rows(rng, epoch, 40), *late])
                inbox.put(put[-1])
        spark.conf.set("spark.sql.session.timeZone", zones[run])
        flow, sinks = meeting_flow(left, right, tmp_path / "late", reordered=run == 1)
        query = drain(
            flow,
            tmp_path / "ck",
            close_at_end=run == 1,
            adaptation=gw.control.Adaptation(spreading=hot),
        )
        assert query.hot_keys["spread"]
        assert '["k1"]' in query.hot_keys["counts"]
        for name, sink in sinks.items():
            epochs[name] |= {
                e: rows_of(plain(table).select(COLUMNS[name])) for e, table in sink.epochs.items()
            }
    found = {name: [row for rows in of.values() for row in rows] for name, of in epochs.items()}
    gave = {name: as_texts(found[name]) for name in ("united", "newest", "pairs", "spread")}
    gave["once"] = as_texts((row[0], row[2]) for row in found["once"])
    compared = evaluation(spark, inspect.getsource(expected), put)
    check_with_spark(compared, gave, lambda: expected(spark, left, right), "streams that meet")
    rows = spark.read.schema(left.columns).parquet(str(left.directory)).groupBy("k").count()
    totals: dict[str, int] = dict(rows_of(rows))
    states = gw.read_state(spark, str(tmp_path / "ck"), "counts").select("k", "part", "state")
    for found_counts in (
        found["counts"],
        [(key, json.loads(state)["n"]) for key, _, state in rows_of(states)],
    ):
        summed: dict[str, int] = {}
        for key, number in found_counts:
            summed[key] = summed.get(key, 0) + number
        assert summed == totals
    assert any(part is not None for _, part, _ in rows_of(states))
    written = micros(spark.read.parquet(str(tmp_path / "late")))
    assert sorted(rows_of(written.select("k", "side", "ts", "v", "at", "w", "reason"))) == [
        ("late", 0, LONG_AGO, 1, None, None, "late"),
        ("late", 1, None, None, LONG_AGO, 1, "late"),
    ]
    kept = gw.read_state(spark, tmp_path / "ck", "left_join_right_by_k").columns
    assert {"k", "pane", "side", "number", "met", "rows", "ts", "at"} <= set(kept)

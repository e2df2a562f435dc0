"""Windows on Spark: what Spark's own windows give, row by row and epoch by epoch."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812  the name everybody gives it
from tests.adopted.agreed import check_with_spark, comparison
from tests.spark.streams import Inbox, as_texts, drain, rows_of

import godwit as gw
from godwit.model.errors import InvalidFlowError
from godwit.spark.batch_rows import SparkStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "k string, ts timestamp, v long"
S = 1_000_000
BASE = 1_700_000_000 * S


def random_epochs(seed: int, epochs: int) -> list[list[tuple[Any, ...]]]:
    """Rows whose times wander forward, some of them far behind."""
    rng = np.random.default_rng(seed)
    parts = []
    for epoch in range(epochs):
        rows = []
        for _ in range(80):
            behind = int(rng.exponential(40 if rng.random() < 0.8 else 400) * S)
            moment = BASE + epoch * 60 * S - behind
            key = None if rng.random() < 0.05 else f"k{rng.integers(0, 6)}"
            rows.append((key, moment, int(rng.integers(-5, 50))))
        parts.append(rows)
    return parts


@pytest.fixture
def native(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session whose epochs have rows, like the ones compared with."""
    name = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = {n: spark.conf.get(n) for n in (name, "spark.sql.shuffle.partitions")}
    spark.conf.set(name, "false")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    # Between two micro-batches a slow machine looks quiet for long enough.
    monkeypatch.setattr(SparkStream, "is_quiet", lambda self: not self.is_active)
    yield spark
    for n, value in before.items():
        spark.conf.set(n, str(value))


def plain(table: pa.Table) -> pa.Table:
    """Moments as microseconds."""
    fields = [f.with_type(pa.int64()) if pa.types.is_timestamp(f.type) else f for f in table.schema]
    return table.cast(pa.schema(fields))


def native_windows(inbox: Inbox, window: Column, slack: str) -> DataFrame:
    """Spark's own query."""
    rows = inbox.stream().withWatermark("ts", slack).groupBy("k", window.alias("w"))
    return rows.agg(F.count("*").alias("n"), F.sum("v").alias("total")).select(
        "k", F.unix_micros("w.start"), F.unix_micros("w.end"), "n", "total"
    )


def native_epochs(result: DataFrame, mode: str, checkpoint: Path) -> dict[int, list[str]]:
    """Results of Spark's own query in each of its micro-batches."""
    results: dict[int, list[str]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        results[number] = as_texts(rows_of(batch))

    query = (
        result.writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    return {number: rows for number, rows in results.items() if rows}


FROM_A_START, SESSION = gw.tumbling("1 minute", start="7 seconds"), gw.session("20 seconds")
HOPPING = gw.hopping("2 minutes", every="30 seconds")
WINDOWS: dict[str, tuple[Any, Any, tuple[str, ...], Any]] = {
    "tumbling": (FROM_A_START, F.window, ("1 minute", "1 minute", "7 seconds"), "update"),
    "hopping": (HOPPING, F.window, ("2 minutes", "30 seconds"), "append"),
    "session": (SESSION, F.session_window, ("20 seconds",), "append"),
}


def test_every_epoch_gives_what_sparks_own_windows_give(
    native: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=native, directory=tmp_path / "in", columns=COLUMNS)
    given = random_epochs(7, 5)
    inbox.put(*given)
    flow = gw.Flow("windows", num_key_groups=16)
    rows = flow.source("rows", inbox.stream(), event_time="ts", slack="90 seconds").key_by("k")
    sinks = {name: gw.sinks.memory() for name in WINDOWS}
    for name, (window, _, _, mode) in WINDOWS.items():
        windowed = rows.window(window, output=mode, name=name)
        result = windowed.compute(n=gw.count(), total=gw.sum("v"))
        flow.sink(name, result, sinks[name])
    drain(flow, tmp_path / "ck")
    for name, (_, function, lengths, mode) in WINDOWS.items():
        epochs = sinks[name].epochs.items()
        ours = {e: as_texts(rows_of(plain(t))) for e, t in epochs if e < 5 and t.num_rows}
        theirs = native_windows(inbox, function("ts", *lengths), "90 seconds")
        asked = partial(native_epochs, theirs, mode, tmp_path / "native" / name)
        check_with_spark(comparison(theirs, native_windows, mode, given), ours, asked, name)


@pytest.mark.parametrize("strategy", ["live", "instant"])
def test_windows_hold_every_row_once_while_key_groups_move(
    spark: SparkSession, tmp_path: Path, strategy: Any
) -> None:
    """All key groups change places, twice, while windows of four kinds are open."""
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    rng = np.random.default_rng(3)
    epochs = [
        [
            (f"k{rng.integers(0, 6)}", BASE + (e * 60 - int(rng.integers(0, 60))) * S, i)
            for i in range(60)
        ]
        for e in range(9)
    ]
    flow = gw.Flow("moving", num_key_groups=16)
    rows = flow.source("rows", inbox.stream(), event_time="ts", slack="1 minute")
    kinds = {n: gw.tumbling(f"{n} minutes") for n in (1, 2, 3, 4)}
    options: Any = {"consolidate": "measured"}
    if strategy == "instant":
        options = {"consolidate": "apart", "share": "always"}
    windows = rows.key_by("k").window(*kinds.values(), name="w", **options)
    result = windows.compute(n=gw.count(), v=gw.sum("v"))
    sink = gw.sinks.memory()
    flow.sink("out", result, sink)
    with pytest.raises(InvalidFlowError, match="splitting of adaptation is of type str"):
        flow.start(checkpoint=tmp_path / "ck", adaptation=gw.control.Adaptation(splitting=strategy))
    query = flow.start(checkpoint=tmp_path / "ck")
    assert query.components.operators == {"w": ("w",)}
    other = {"local-0": "local-1", "local-1": "local-0"}
    for turn in range(3):
        inbox.put(*epochs[3 * turn : 3 * turn + 3])
        if turn:
            current = query.placement.assignments["w"]
            plan = {g: other[current.executor(g)] for g in range(16)}
            migration = query.migrate(plan, component="w", strategy=strategy)
        query.processAllAvailable()
        if turn:
            assert migration.wait(120).outcome == "finished"
            warmed = [e for e in query.events if isinstance(e, gw.events.KeyGroupsWarmed)]
            assert turn == 2 or bool(warmed) == (strategy == "live")  # no state moved at first
            now = query.placement.assignments["w"]
            assert {g: now.executor(g) for g in range(16)} == plan
            assert {e.component for e in warmed} <= {"w"}
    query.stop()
    expected: dict[tuple[Any, ...], list[int]] = {}
    newest = max(ts for part in epochs for _, ts, _ in part)
    for k, ts, v in (row for part in epochs for row in part):
        for minutes in kinds:
            start = ts // (minutes * 60 * S) * minutes * 60 * S
            expected.setdefault((k, start, start + minutes * 60 * S), []).append(v)
    results = Counter(row for t in sink.epochs.values() for row in rows_of(plain(t)))
    assert all(times == 1 for times in results.values())
    over = {row[:3]: row[3:] for row in results}
    due = {at: (len(vs), sum(vs)) for at, vs in expected.items() if at[2] <= newest - 60 * S}
    assert {at: over[at] for at in due} == due
    if strategy == "instant":  # both slots are shown, and panes that are gone from neither
        state = gw.read_state(spark, tmp_path / "ck", "w")
        held = state.selectExpr("unix_micros(pane) AS pane", "n").collect()
        first = min(row.pane for row in held)
        kept = [ts for part in epochs for _, ts, _ in part if ts >= first]
        assert sum(row.n for row in held) == len(kept) > 0


def test_windows_of_local_time_are_local_days_also_where_summer_time_begins_and_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    half_hours = [
        [("a", start * S + n * 1_800 * S, n) for n in range(3 * 48)]
        for start in (1_774_656_000, 1_792_800_000)  # 2026-03-28 and 2026-10-24, UTC
    ]
    inbox.put(*half_hours)
    flow = gw.Flow("local", num_key_groups=4)
    source = flow.source("rows", inbox.stream(), event_time="ts")
    sink = gw.sinks.memory()
    days = source.key_by("k").window(gw.tumbling("1 day", zone="Europe/Berlin"))
    flow.sink("days", days.compute(n=gw.count(), v=gw.sum("v")), sink)
    query = drain(flow, tmp_path / "ck")
    assert not any(progress["leftOutRows"] for progress in query.recentProgress)
    berlin = ZoneInfo("Europe/Berlin")
    dates: dict[date, list[int]] = defaultdict(list)
    for _, ts, value in (row for part in half_hours for row in part):
        dates[datetime.fromtimestamp(ts / S, berlin).date()].append(value)
    results = rows_of(sink.table())
    assert {row[1].astimezone(berlin).date(): row[3:] for row in results} == {
        day: (len(values), sum(values)) for day, values in dates.items()
    }
    assert all(at.astimezone(berlin).hour == 0 for row in results for at in row[1:3])
    assert {46, 50} <= {row[3] for row in results}  # days of 23 and of 25 hours

"""Flows that mix DataFrames with Godwit's own sources: Spark's micro-batches read both."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.streams import Inbox

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.engine import cluster as cluster_port
from godwit.model import events
from godwit.model.errors import CheckpointMismatchError, SourceError, StopTimeoutError
from godwit.ops.verification import verify
from godwit.spark import micro_batch_query
from godwit.spark.stages.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.sources import MemorySource

pytestmark = pytest.mark.spark

COLUMNS = "k string, v long"

Pair = tuple[str, int]


def pairs(first: int, count: int) -> list[Pair]:
    return [(f"k{i % 7}", i) for i in range(first, first + count)]


def dicts(rows: Iterable[Pair]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in rows]


def negated(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "v", pc.negate(rows["v"]))


def running(key: Any, rows: Any, state: Any) -> Any:
    """Emit every row with the sum so far of its kind: order counts within each."""
    for row in rows:
        kind = "own" if row.v < 0 else "frame"
        state[kind] = (state.get(kind, 0) * 3 + row.v) % 1_000_003
        yield key[0], row.v, state[kind]


class Mixed:
    """A flow over both kinds of sources, and what it is to give."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.directory = directory
        self.inbox = Inbox(spark=spark, directory=directory / "in", columns=COLUMNS)
        self.rows: list[Pair] = []  # of the own source
        self.framed: list[Pair] = []
        self.ordered, self.totals = gw.sinks.memory(), gw.sinks.memory()
        self.source: MemorySource

    @property
    def checkpoint(self) -> Path:
        return self.directory / "ck"

    def flow(self, *, most: int | None = 15, with_frames: bool = True) -> gw.Flow:
        self.source = gw.sources.memory(COLUMNS, dicts(self.rows), max_rows_per_epoch=most)
        flow = gw.Flow("mixed", num_key_groups=8)
        own = flow.source("own", self.source).map(negated)
        both = own
        if with_frames:
            both = flow.source("frame", self.inbox.stream()).union(own)
        keyed = both.key_by("k")
        totals = keyed.compute(name="t", total=gw.sum("v"), n=gw.count())
        flow.sink("totals", totals, self.totals)
        ordered = keyed.process(
            running, name="o", state=dict, output="k string, v long, total long"
        )
        flow.sink("ordered", ordered, self.ordered)
        return flow

    def start(self, **options: Any) -> gw.types.Query:
        return self.flow().start(checkpoint=self.checkpoint, **options)

    def add(self, own: int, framed: int) -> None:
        """Let both sources have some more rows."""
        more = pairs(len(self.rows) + 1, own)
        self.rows += more
        if more:
            self.source.add(dicts(more))
        more = pairs(len(self.framed) + 1, framed)
        self.framed += more
        if more:
            self.inbox.put(more)

    def insist(self) -> None:
        """Insist that every row was processed once, in the order of its source."""
        signed = [*((k, -v) for k, v in self.rows), *self.framed]
        state = {
            row["k"]: (row["total"], row["n"])
            for _, table in sorted(self.totals.epochs.items())
            for row in table.to_pylist()
        }
        expected: dict[str, tuple[int, int]] = {}
        for k, v in signed:
            total, n = expected.get(k, (0, 0))
            expected[k] = (total + v, n + 1)
        assert state == expected
        given: Counter[tuple[Any, ...]] = Counter()
        states: dict[str, dict[str, int]] = {}
        for k, v in signed:
            given.update(running((k,), [Row(v)], states.setdefault(k, {})))
        found = Counter(
            tuple(row.values())
            for _, table in sorted(self.ordered.epochs.items())
            for row in table.to_pylist()
        )
        assert found == given


class Row:
    def __init__(self, v: int) -> None:
        self.v = v


def test_every_row_of_both_kinds_is_processed_once_over_restarts_and_migrations(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mixed = Mixed(spark, tmp_path)
    mixed.rows = pairs(1, 20)
    query = mixed.start()
    mixed.add(0, 20)
    query.processAllAvailable()
    mixed.add(20, 0)  # while Spark has nothing to offer
    query.processAllAvailable()
    mixed.insist()
    places = query.placement.assignments["t"]
    move = query.migrate(dict.fromkeys(range(8), places.executors[1]), component="t")
    # Rows of either kind are read by the driver or by tasks, in every combination.
    for frames_here, own_here in ((True, True), (True, False), (False, False), (False, True)):
        monkeypatch.setattr(SourceRows, "few_expected", frames_here)
        monkeypatch.setattr(cluster_port, "ROWS_HERE", 10_000 if own_here else -1)
        mixed.add(9, 11)
        query.processAllAvailable()
    move.wait(120)
    mixed.insist()
    progress = [p for p in query.recentProgress if p["batchId"] is not None]
    assert sum(p["numInputRows"] for p in progress) == len(mixed.rows) + len(mixed.framed)
    assert {"position": len(mixed.rows)} in [p["sources"][-1]["endOffset"] for p in progress[-2:]]
    query.stop()
    assert query.exception() is None

    mixed.add(33, 5)
    again = mixed.start(trigger={"availableNow": True})
    again.awaitTermination()
    assert again.id == query.id
    mixed.insist()
    assert verify(CheckpointStorage.open(tmp_path / "ck")).ok
    capsys.readouterr()
    assert main(["checkpoint", "inspect", str(tmp_path / "ck")]) == 0
    assert f"{len(mixed.rows)}" in capsys.readouterr().out
    assert main(["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "copy")]) == 0
    assert verify(CheckpointStorage.open(tmp_path / "copy")).ok


def test_a_driver_that_dies_between_any_two_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    class DiedError(Exception):
        pass

    mixed = Mixed(spark, tmp_path)
    for step in ("planned", "staged", "committed", "delivered"):
        query = mixed.start()
        query.processAllAvailable()

        def at_step(done: str, _epoch: int, step: str = step) -> None:
            if done == step:
                raise DiedError

        setattr(query._run.loop, "at_step", at_step)  # noqa: B010  a method of the class
        # Own rows, or those of both, whoever comes first; more come before the next start.
        mixed.add(20, 10 if step != "staged" else 0)
        with pytest.raises(gw.errors.GodwitError, match="DiedError"):
            query.awaitTermination()
        mixed.add(3, 2)
    query = mixed.start(trigger={"once": True})
    query.awaitTermination()
    query = mixed.start(trigger={"availableNow": True})
    query.awaitTermination()
    mixed.insist()


def test_windows_wait_for_the_watermark_of_each_kind_and_close_once_both_have_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = "k string, ts timestamp"
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=columns)

    def at(hour: int) -> dt.datetime:
        return dt.datetime(2024, 5, 1, hour, 30, tzinfo=dt.UTC)

    def built(source: Any, sink: Any) -> gw.Flow:
        flow = gw.Flow("hours", num_key_groups=4)
        own = flow.source("own", source, event_time="ts")
        frame = flow.source("frame", inbox.stream(), event_time="ts")
        window = own.union(frame).key_by("k").window(gw.tumbling("1 hour"))
        flow.sink("out", window.compute(n=gw.count()), sink)
        left, right = own.key_by("k"), frame.key_by("k")
        met = left.join(right, between=("-10 minutes", "10 minutes"), suffix="_frame")
        flow.sink("met", met, meetings)
        return flow

    source, sink, meetings = gw.sources.memory(columns), gw.sinks.memory(), gw.sinks.memory()

    def counts() -> list[int]:
        return [row["n"] for table in sink.epochs.values() for row in table.to_pylist()]

    query = built(source, sink).start(checkpoint=tmp_path / "ck")
    source.add([{"k": "a", "ts": at(hour)} for hour in (1, 2, 9)])
    query.processAllAvailable()
    assert counts() == []  # nothing is known of the DataFrame's time
    inbox.put([("a", at(1)), ("a", at(5))])
    query.processAllAvailable()
    assert sorted(counts()) == [1, 2]
    query.stop()
    rest = gw.sources.memory(
        columns, [{"k": "a", "ts": at(hour)} for hour in (1, 2, 9, 10)], max_rows_per_epoch=1
    )
    inbox.put([("a", at(10))])
    bounded = built(rest, sink).start(
        checkpoint=tmp_path / "ck", trigger={"availableNow": True}, close_at_end=True
    )
    bounded.awaitTermination()
    assert sorted(counts()) == [1, 1, 1, 2, 2]
    assert sum(table.num_rows for table in meetings.epochs.values()) == 2  # of hours 1 and 10


def test_sources_of_either_kind_come_and_go_but_do_not_take_each_other_s_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    mixed = Mixed(spark, tmp_path)
    mixed.rows = pairs(1, 5)
    alone = mixed.flow(with_frames=False)
    alone.start(checkpoint=mixed.checkpoint, trigger={"availableNow": True}).awaitTermination()
    mixed.add(2, 3)
    mixed.start(trigger={"availableNow": True}).awaitTermination()
    mixed.insist()
    flow = gw.Flow("mixed", num_key_groups=8)
    framed = flow.source("own", mixed.inbox.stream()).key_by("k")
    flow.sink("totals", framed.compute(name="t", total=gw.sum("v"), n=gw.count()), gw.sinks.noop())
    with pytest.raises(CheckpointMismatchError, match=r"reads DataFrames \('own'\)"):
        flow.start(checkpoint=mixed.checkpoint)


class Failing(gw.sources.MemorySource):
    """Raises, or blocks, where it is asked."""

    blocks: threading.Event | None = None
    is_asked = threading.Event()  # while it blocks
    raises = False

    def latest(self, position: Any, **options: Any) -> Any:
        if self.blocks is not None:
            self.is_asked.set()
            self.blocks.wait(120)
        if self.raises:
            message = "it has gone"
            raise OSError(message)
        return super().latest(position, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "blocks": None}


def failing_flow(source: Any, inbox: Inbox) -> gw.Flow:
    flow = gw.Flow("failing", num_key_groups=4)
    both = flow.source("own", source).union(flow.source("frame", inbox.stream()))
    flow.sink("out", both.key_by("k").compute(name="t", n=gw.count()), gw.sinks.noop())
    return flow


def test_a_source_that_raises_fails_the_query_by_name_and_one_that_blocks_keeps_nobody(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro_batch_query, "_STOP_S", 0.2)
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns=COLUMNS)
    source = Failing(COLUMNS)
    query = failing_flow(source, inbox).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    source.raises = True
    inbox.put(pairs(0, 3))
    with pytest.raises(SourceError, match=r"Source 'own' could not say .*it has gone"):
        query.awaitTermination()

    source = Failing(COLUMNS)
    query = failing_flow(source, inbox).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    source.blocks = blocks = threading.Event()
    inbox.put(pairs(3, 3))
    assert source.is_asked.wait(120)
    with suppress(StopTimeoutError):  # the query ends anyway
        query.stop()
    assert query.awaitTermination(120)
    assert any(
        isinstance(event, events.BackgroundFailed) and "not answered" in event.error
        for event in query.events
    )
    blocks.set()
    assert spark.streams.active == []

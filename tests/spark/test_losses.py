"""Local stores and executors may vanish at any time: rows wait for their state, in order."""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext
from tests.spark.streams import Inbox, by_epoch, rows_of
from tests.spark.test_restart import Example, generated

from godwit.migration import LossPolicy, Policy
from godwit.model import events
from godwit.spark import run
from godwit.spark.errands import Errands
from godwit.spark.stages import run_stages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    import godwit as gw

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Stream:
    """The example flow over epochs that are put one by one."""

    def __init__(self, spark: SparkSession, directory: Path, **options: Any) -> None:
        self.inbox = Inbox(spark=spark, directory=directory / "in", columns="k int, number long")
        # On one level: operators that feed others load what they lack.
        self.example = Example(self.inbox, deep=False)
        self.local = directory / "local"
        self.query: gw.Query = self.example.flow.start(
            checkpoint=directory / "ck",
            local_dir=str(self.local),
            name=directory.name,
            **options,
        )

    def process(self, *epochs: list[tuple[int, int]]) -> None:
        for rows in epochs:
            self.inbox.put(rows)
            self.query.processAllAvailable()

    def read(self, *epochs: list[tuple[int, int]]) -> None:
        """Let rows be read, whether or not they wait then."""
        for rows in epochs:
            due = self.batches() + 1
            self.inbox.put(rows)
            until(partial(self.has_read, due), "the rows to be read")

    def has_read(self, batches: int) -> bool:
        return self.batches() >= batches

    def batches(self) -> int:
        return sum(p["batchId"] is not None for p in self.query.recentProgress)

    def lose_local_stores(self) -> None:
        # Warming may be writing there at this moment: that is the point.
        shutil.rmtree(self.local, ignore_errors=True)

    def wait_until_everything_runs(self) -> None:
        until(lambda: self.query.status["keyGroupsSuspended"] == 0, "all key groups to run")

    def seen(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.query.events if isinstance(event, kind)]

    def check(self, epochs: list[list[tuple[int, int]]]) -> None:
        """Every row was processed once and in order, and the last totals are right."""
        numbers = defaultdict(list)
        for table in self.example.sinks["order"].epochs.values():
            for key, number, due in rows_of(table):
                assert due == number + 1
                numbers[key].append(number)
        expected = defaultdict(list)
        for rows in epochs:
            for key, number in rows:
                expected[key].append(number)
        assert numbers == expected
        assert {row[0]: row[1:] for row in rows_of(self.example.sinks["totals"].table())} == {
            key: (sum(n), n[-1]) for key, n in expected.items()
        }


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what warming waits for."""
    allowed = threading.Event()
    warm = Errands._warm

    def patient(self: Errands, command: Any) -> None:
        assert allowed.wait(PATIENCE_S)
        warm(self, command)

    monkeypatch.setattr(Errands, "_warm", patient)
    return allowed


def lose_executor(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    """Let the second of two executors vanish; in local mode that is a matter of counting cores."""
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 1))
    until(lambda: stream.seen(events.ExecutorLost), "the loss to be seen")


def test_rows_of_a_lost_executor_wait_while_the_others_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    epochs = generated(1)
    stream = Stream(spark, tmp_path)
    stream.process(*epochs[:3])
    owned = stream.query.assignment["order"].key_groups("local-1").tolist()
    lose_executor(monkeypatch, stream)
    stream.read(*epochs[3:5])
    waiting = stream.query.status["keyGroupsSuspended"]
    gate.set()
    stream.wait_until_everything_runs()
    stream.process(epochs[5])
    stream.query.stop()
    stream.check(epochs)
    assert waiting >= len(owned)
    suspended = [e for e in stream.seen(events.KeyGroupsSuspended) if e.component == "order"]
    assert [list(e.key_groups) for e in suspended] == [owned]
    committed = stream.seen(events.EpochCommitted)
    assert all(e.waiting_key_groups and e.rows_out for e in committed[3:5])
    # Key groups that did not wait gave their rows in the epochs in which they came.
    for epoch in (3, 4):
        some = by_epoch(stream.example.sinks["order"].epochs)[epoch]
        whole = {(k, n, n + 1) for k, n in epochs[epoch]}
        assert 0 < some.total() < len(whole)


def test_a_lost_executor_changes_no_row_of_any_epoch_if_its_state_is_loaded_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = generated(1)
    stream = Stream(spark, tmp_path, policy=Policy(on_loss=LossPolicy.LOAD))
    stream.process(*epochs[:3])
    lose_executor(monkeypatch, stream)
    stream.process(epochs[3])
    stream.lose_local_stores()
    stream.process(*epochs[4:])
    stream.query.stop()
    stream.check(epochs)
    assert not stream.seen(events.KeyGroupsSuspended)
    found = by_epoch(stream.example.sinks["order"].epochs)
    assert {epoch: rows.total() for epoch, rows in found.items()} == dict.fromkeys(range(6), 100)


def test_local_stores_that_vanish_between_epochs_cost_time_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    epochs = generated(1)
    stream = Stream(spark, tmp_path)
    stream.process(*epochs[:2])
    assert stream.local.is_dir()  # what an epoch changes enters it with the next one
    for rows in epochs[2:4]:
        stream.process(rows)
        stream.lose_local_stores()
    stream.process(*epochs[4:])
    stream.query.stop()
    stream.check(epochs)


def test_rows_that_wait_are_kept_if_their_state_vanishes_again_before_they_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    epochs = generated(1)
    stream = Stream(spark, tmp_path)
    stream.process(*epochs[:3])
    lose_executor(monkeypatch, stream)
    stream.read(*epochs[3:5])
    assert stream.query.status["keyGroupsSuspended"] >= 8
    gate.set()
    stream.wait_until_everything_runs()
    # The copies are warm, and gone again before an epoch that has no row for any of them; nor has
    # any later one.
    stream.lose_local_stores()
    stream.query.processAllAvailable()
    stream.query.stop()
    stream.check(epochs[:5])


def test_an_epoch_whose_executor_is_lost_is_carried_out_again_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = generated(1)
    stream = Stream(spark, tmp_path, policy=Policy(on_loss=LossPolicy.LOAD))
    stream.process(*epochs[:2])
    lost = threading.Event()

    def at_step(step: str, epoch: int) -> None:
        if (step, epoch) == ("planned", 2) and not lost.is_set():
            # Its lanes are on their way when it vanishes; Spark itself would wait for it.
            monkeypatch.setattr(run, "run_stages", stuck)

    def stuck(*_given: Any) -> Any:
        monkeypatch.setattr(run, "run_stages", run_stages)
        monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 1))
        lost.set()
        spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(PATIENCE_S))

    monkeypatch.setattr(run.Run, "at_step", staticmethod(at_step))
    started = time.monotonic()
    stream.process(epochs[2])
    assert time.monotonic() - started < PATIENCE_S / 2
    assert [e.reason for e in stream.seen(events.EpochAborted)] == ["executor local-1 was lost"]
    stream.process(*epochs[3:])
    stream.query.stop()
    stream.check(epochs)

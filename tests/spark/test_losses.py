"""An executor that is lost while lanes are on their way to it costs an attempt, not a timeout."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkContext
from tests.spark.streams import Inbox, rows_of
from tests.spark.test_restart import Example, generated

from godwit.engine.loop import EpochLoop
from godwit.migration import LossPolicy, Policy
from godwit.model import events
from godwit.spark import cluster
from godwit.spark.stages.stages import run_stages

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
        self.query: gw.types.Query = self.example.flow.start(
            checkpoint=directory / "ck",
            name=directory.name,
            **options,
        )

    def process(self, *epochs: list[tuple[int, int]]) -> None:
        for rows in epochs:
            self.inbox.put(rows)
            self.query.processAllAvailable()

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


def lose_executor(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    """Let the second of two executors vanish; in local mode that is a matter of counting cores."""
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 1))
    until(lambda: stream.seen(events.ExecutorLost), "the loss to be seen")


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
            monkeypatch.setattr(cluster, "run_stages", stuck)

    def stuck(*_given: Any, jobs: Any, **_options: Any) -> Any:
        monkeypatch.setattr(cluster, "run_stages", run_stages)
        monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 1))
        lost.set()
        with jobs():
            spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(PATIENCE_S))

    monkeypatch.setattr(EpochLoop, "at_step", staticmethod(at_step))
    started = time.monotonic()
    stream.process(epochs[2])
    assert time.monotonic() - started < PATIENCE_S / 2
    assert [e.reason for e in stream.seen(events.EpochAborted)] == ["executor local-1 was lost"]
    stream.process(*epochs[3:])
    stream.query.stop()
    stream.check(epochs)

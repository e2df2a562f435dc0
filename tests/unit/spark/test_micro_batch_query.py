"""The thread beside Spark's query of a mixed flow: when own rows get epochs, and how it ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

import godwit as gw
from godwit.checkpoint.records import BatchRef
from godwit.engine.cluster import SourceLook
from godwit.engine.source_positions import RecordedSources, SourcePositions
from godwit.runtime import source_loop
from godwit.runtime.threads import EpochGate
from godwit.spark import micro_batch_query
from godwit.spark.micro_batch_epochs import MicroBatchEpochs
from godwit.spark.micro_batch_query import MicroBatchQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.engine.cluster import SourceBatch
    from godwit.sources import MemorySource

PATIENCE_S = 120.0


def unused() -> NoReturn:
    raise AssertionError("no query here is drained")


class Run:
    """A run that commits every batch, and in which epochs are due, or are not."""

    name, num_recent = "flow", 100
    session = SimpleNamespace(is_stopped=False)

    def __init__(self) -> None:
        self.gate = EpochGate()
        self.view = SimpleNamespace(awaits=False)
        self.told: list[tuple[str, ...]] = []
        self.cluster = SimpleNamespace(executors={"1": SimpleNamespace(lanes=2)})
        self.log = SimpleNamespace(latest_epoch=-1)
        self.epochs = SimpleNamespace(last_batch=None)
        self.is_due = self.is_pending = self.input_ended = False
        self.batches = 0
        self.read: list[tuple[int | None, int | None]] = []  # micro-batch, own rows of each epoch
        self.on_epoch: Callable[[], None] = lambda: None

    def use_this_thread(self) -> None:
        pass

    def check_lease(self) -> None:
        pass

    def background_failed(self, *told: str) -> None:
        self.told.append(told)

    def with_input(
        self,
        offered: Callable[[BatchRef | None], SourceBatch[Any] | None],
        _stopped: Callable[[], bool],
        **_broken_off: Callable[[], bool],
    ) -> dict[str, float]:
        with self.gate.epoch():
            batch = offered(self.epochs.last_batch)
            if batch is not None:
                self.on_epoch()
                frames: Any = batch.rows
                number = None if frames is None else frames.number
                self.read.append((number, batch.split_rows))
                self.epochs.last_batch = batch.ref
                self.log.latest_epoch += 1
        self.batches += 1
        return {}

    def end_input(self) -> None:
        self.input_ended = True

    def advance_clock(self) -> None:
        pass


class SparkQuery:
    """A query of Spark's that a test ends."""

    recentProgress: tuple[Any, ...] = ()  # noqa: N815  Spark's own spelling

    def __init__(self) -> None:
        self.isActive, self.has_rows, self.input_ended = True, False, False
        self.seen = threading.Event()  # someone has looked while it had rows
        execution = SimpleNamespace(noNewData=self.has_seen_no_rows)
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)

    def exception(self) -> None:
        return None

    def has_seen_no_rows(self) -> bool:
        has_rows = self.has_rows
        if has_rows:
            self.seen.set()
        return self.input_ended or (self.isActive and not has_rows)

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": self.has_rows, "isDataAvailable": False}

    def stop(self) -> None:
        self.isActive = False

    def processAllAvailable(self) -> None:  # noqa: N802  Spark's own spelling
        pass


class ThreadOverMemory:
    """The thread over one source in memory, with everything that it looks at."""

    def __init__(
        self, trigger: Mapping[str, object] | None = None, source: MemorySource | None = None
    ) -> None:
        self.run, self.spark = Run(), SparkQuery()
        self.source = gw.sources.memory("k string") if source is None else source
        self.positions = SourcePositions({"rows": self.source}, RecordedSources())
        self.positions.open()
        rows = SimpleNamespace(
            positions=self.positions,
            identify=self.identify,
            look=lambda _ref, _session: SourceLook(at_us=0),
        )
        self.finished = threading.Event()
        self.epochs = MicroBatchEpochs(cast("Any", self.run), cast("Any", rows), trigger=trigger)
        self.query = MicroBatchQuery(
            cast("Any", self.spark),
            self.epochs,
            run=cast("Any", self.run),
            trigger=trigger,
            start_bounded=unused,
        )

    @staticmethod
    def identify(number: int, last: BatchRef | None) -> BatchRef | None:
        committed = last is not None and last.of_spark and last.number == number
        return None if committed else BatchRef(number=number, digest=f"digest {number}")

    def begin(self) -> MicroBatchQuery:
        self.query.begin(cast("Any", SimpleNamespace(finish=self.finished.set)))
        return self.query

    def micro_batch(self, number: int) -> None:
        rows = SimpleNamespace(sparkSession=None, number=number)
        self.epochs.run_micro_batch(cast("Any", rows), number, lambda: False)

    def end(self) -> None:
        self.run.gate.close()
        assert self.query.wait(PATIENCE_S)
        assert self.finished.is_set()
        assert self.positions.positions == {}  # they are closed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch_query, "_LOOK_S", 0.001)
    monkeypatch.setattr(micro_batch_query, "_LOOK_AT_SPARK_S", 0.0)
    monkeypatch.setattr(micro_batch_query, "_STOP_S", PATIENCE_S)
    monkeypatch.setattr(source_loop, "_LOOK_S", 0.001)
    monkeypatch.setattr(source_loop, "_FIRST_PAUSE_S", 0.001)


def rows(count: int) -> list[dict[str, str]]:
    return [{"k": "a"}] * count


def test_own_rows_get_epochs_of_their_own_only_while_spark_has_nothing_to_offer() -> None:
    story = ThreadOverMemory()
    story.source.add(rows(3))
    query = story.begin()
    query.process_all_available()
    assert story.run.read == [(None, 3)]
    story.spark.has_rows = True
    story.micro_batch(0)
    assert story.spark.seen.wait(PATIENCE_S)
    story.source.add(rows(2))
    story.micro_batch(1)
    assert story.run.read[1:] == [(0, 0), (1, 2)]
    story.spark.has_rows = False
    story.source.add(rows(4))
    query.process_all_available()
    assert story.run.read[3:] == [(None, 4)]
    last = story.run.epochs.last_batch
    assert (last.number, last.digest, last.positions) == (1, "digest 1", {"rows": 9})
    progress = query.add_source_figures([{"epoch": 3, "batchId": 1}])
    assert progress[0]["sources"][0]["endOffset"] == {"position": 9}
    story.end()
    assert story.run.gate.failure is None


def test_a_micro_batch_that_is_offered_again_reads_nothing() -> None:
    story = ThreadOverMemory()
    story.micro_batch(0)
    story.source.add(rows(2))
    story.micro_batch(0)
    assert story.run.read == [(0, 0)]
    assert story.epochs.has_own_rows()
    story.epochs.run_own_epoch(lambda: False)
    assert story.run.read[1:] == [(None, 2)]


def test_rows_that_a_micro_batch_took_are_not_read_again_for_an_epoch_of_their_own() -> None:
    story = ThreadOverMemory()
    story.source.add(rows(2))
    assert story.epochs.has_own_rows()
    story.source.add(rows(3))
    story.micro_batch(0)
    story.epochs.run_own_epoch(lambda: False)  # what was planned for it is gone
    assert story.run.read == [(0, 5)]


def test_a_bounded_query_ends_once_both_kinds_have_ended() -> None:
    source = gw.sources.memory("k string", rows(4), max_rows_per_epoch=2)
    story = ThreadOverMemory({"availableNow": True}, source)
    story.positions.fix_ends()
    query = story.begin()
    source.add(rows(9))  # too late
    while len(story.run.read) < 2:
        assert query.is_active
    assert not query.wait(0.05)
    before = story.run.input_ended
    story.spark.input_ended = True
    story.spark.stop()
    assert query.wait(PATIENCE_S)
    assert (before, story.run.input_ended) == (False, True)
    assert story.run.read == [(None, 2), (None, 2)]


def test_a_query_that_others_have_stopped_leaves_rows_for_the_next_run() -> None:
    story = ThreadOverMemory({"availableNow": True})
    story.spark.has_rows = True
    query = story.begin()
    story.source.add(rows(2))
    story.spark.stop()
    assert query.wait(PATIENCE_S)
    assert story.run.read == []
    assert not story.run.input_ended


def test_with_one_epoch_own_rows_come_with_the_micro_batch_whatever_their_limit() -> None:
    source = gw.sources.memory("k string", rows(5), max_rows_per_epoch=2)
    story = ThreadOverMemory({"once": True}, source)
    query = story.begin()
    story.micro_batch(0)
    story.spark.stop()
    assert query.wait(PATIENCE_S)
    assert story.run.read == [(0, 5)]
    assert story.run.input_ended


def test_a_source_that_does_not_answer_keeps_neither_an_epoch_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(micro_batch_query, "_STOP_S", 0.1)
    story, asked, answers = ThreadOverMemory(), threading.Event(), threading.Event()

    def latest(*_: Any, **__: Any) -> int:
        asked.set()
        answers.wait(PATIENCE_S)
        return 0

    story.source.latest = latest  # type: ignore[method-assign]
    query = story.begin()
    assert asked.wait(PATIENCE_S)
    story.run.gate.close()
    assert query.wait(PATIENCE_S)
    assert story.run.told == [("closing the sources", "a source has not answered for 0 s")]
    answers.set()

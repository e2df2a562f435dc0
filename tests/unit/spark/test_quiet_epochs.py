"""The thread of epochs without input ends the query with a word, whatever is raised on it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from py4j.protocol import Py4JError

from godwit.engine.source_positions import RecordedSources, SourcePositions
from godwit.model.errors import CheckpointInUseError, UserFunctionError
from godwit.runtime.threads import EpochGate
from godwit.spark import micro_batch_query
from godwit.spark.batch_rows import SparkStream
from godwit.spark.micro_batch_epochs import MicroBatchEpochs
from godwit.spark.micro_batch_query import MicroBatchQuery
from godwit.spark.start import comes_of_cancelled_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE_S = 120.0


def unused() -> NoReturn:
    raise AssertionError("no query here is drained")


class Run:
    """A run in which epochs are due, or are not."""

    name, num_recent = "flow", 100
    session = SimpleNamespace(is_stopped=False)

    def __init__(self) -> None:
        self.gate = EpochGate()
        self.batches = 0
        self.view = SimpleNamespace(waiting=False, awaits=False)
        self.is_due = self.is_pending = False
        self.input_ended = False
        self.epochs = 0
        self.on_look: Callable[[], None] = lambda: None
        self.on_epoch: Callable[[], None] = lambda: None

    def use_this_thread(self) -> None:
        pass

    def check_lease(self) -> None:
        self.on_look()

    def without_input(self, stopped: Callable[[], bool]) -> None:
        with self.gate.epoch(stopped):
            self.epochs += 1
            self.is_due = False
            self.on_epoch()

    def end_input(self) -> None:
        self.input_ended = True

    def advance_clock(self) -> None:
        pass

    def background_failed(self, *told: str) -> None:
        raise AssertionError(told)


class SparkQuery:
    def __init__(self) -> None:
        self.active = True
        self.found_nothing, self.has_looked = False, True
        self.error: Exception | None = None
        execution = SimpleNamespace(noNewData=self.has_seen_no_rows)
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)

    def has_seen_no_rows(self) -> bool:
        return self.found_nothing or (self.active and self.has_looked)

    @property
    def isActive(self) -> bool:  # noqa: N802  Spark's own spelling
        if self.error is not None:
            raise self.error
        return self.active

    def exception(self) -> None:
        return None

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": False, "isDataAvailable": False}


class QuietThread:
    """The thread, with everything that it looks at."""

    def __init__(self, trigger: Mapping[str, object] | None = None) -> None:
        self.run, self.spark = Run(), SparkQuery()
        self.gate = self.run.gate
        self.finished = threading.Event()
        self.trigger = trigger

    def start(self) -> MicroBatchQuery:
        rows = SimpleNamespace(positions=SourcePositions({}, RecordedSources()))
        run, trigger = cast("Any", self.run), self.trigger
        epochs = MicroBatchEpochs(run, cast("Any", rows), trigger=trigger)
        query = MicroBatchQuery(
            cast("Any", self.spark), epochs, run=run, trigger=trigger, start_bounded=unused
        )
        query.begin(cast("Any", SimpleNamespace(finish=self.finished.set)))
        return query


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch_query, "_LOOK_S", 0.001)
    monkeypatch.setattr(micro_batch_query, "_LOOK_AT_SPARK_S", 0.0)


def test_an_error_of_py4j_s_ends_the_query_as_a_failure() -> None:
    story = QuietThread()
    story.spark.error = ConnectionRefusedError("the JVM is gone")
    quiet = story.start()
    assert quiet.wait(PATIENCE_S)
    assert story.finished.is_set()
    assert story.gate.failure is story.spark.error


def test_an_epoch_that_fails_ends_the_query() -> None:
    story = QuietThread()
    story.run.is_due = True
    error = RuntimeError("a sink")

    def fail() -> None:
        raise error

    story.run.on_epoch = fail
    assert story.start().wait(PATIENCE_S)
    assert story.finished.is_set()
    assert story.gate.failure is error


def test_a_query_whose_input_has_ended_waits_for_what_stands_in_the_way_of_its_windows() -> None:
    story = QuietThread({"availableNow": True})
    story.spark.active, story.spark.found_nothing, story.run.is_pending = False, True, True
    looks = iter(range(20))

    def look() -> None:
        if next(looks, None) is None:  # what stood in the way is over
            story.run.is_due = not story.run.epochs

    def close() -> None:
        story.run.is_pending = False

    story.run.on_look, story.run.on_epoch = look, close
    assert story.start().wait(PATIENCE_S)
    assert story.run.epochs == 1
    assert story.gate.failure is None


def test_a_checkpoint_that_somebody_has_taken_ends_the_query_though_no_row_arrives() -> None:
    story = QuietThread()
    error = CheckpointInUseError("taken", remedy="Do.")

    def insist() -> None:
        raise error

    story.run.on_look = insist
    assert story.start().wait(PATIENCE_S)
    assert story.gate.failure is error


def test_an_epoch_that_is_held_ends_when_spark_s_query_is_stopped() -> None:
    story = QuietThread()
    story.run.is_due = True
    held = threading.Event()

    def hold() -> None:
        while True:
            held.set()
            story.gate.pause(0.001)

    story.run.on_epoch = hold
    quiet = story.start()
    assert held.wait(PATIENCE_S)
    story.spark.active = False
    assert quiet.wait(PATIENCE_S)
    assert story.gate.failure is None
    assert not story.run.input_ended


@pytest.mark.parametrize("stopped", [True, False])
def test_a_micro_batch_that_fails_because_spark_s_query_was_stopped_is_no_failure(
    stopped: bool,
) -> None:
    gate = EpochGate()
    with (
        pytest.raises(ValueError, match="cancelled"),
        gate.epoch(broken_off=lambda: stopped),
    ):
        int("cancelled")
    assert gate.cut_short is stopped
    assert (gate.failure is None) is stopped


@pytest.mark.parametrize("by_spark", [True, False])
def test_an_error_of_its_own_fails_the_query_though_the_epoch_is_being_broken_off(
    by_spark: bool,
) -> None:
    gate = EpochGate(is_cancellation=comes_of_cancelled_jobs)
    cause = Py4JError("the job was cancelled") if by_spark else ValueError("no number")
    with pytest.raises(UserFunctionError), gate.epoch(broken_off=lambda: True):
        raise UserFunctionError("It raised.", remedy="Mend it.") from cause
    assert gate.cut_short is by_spark
    assert (gate.failure is None) is by_spark


@pytest.mark.parametrize(
    ("trigger", "found_nothing", "ended"),
    [
        (None, True, False),
        ({"processingTime": "1 second"}, True, False),
        ({"availableNow": True}, False, False),
        ({"availableNow": True}, True, True),
        ({"once": True}, False, False),
    ],
)
def test_only_the_end_of_the_input_counts_as_such(
    trigger: Mapping[str, object] | None, found_nothing: bool, ended: bool
) -> None:
    story = QuietThread(trigger)
    story.spark.active, story.spark.found_nothing = False, found_nothing
    assert story.start().wait(PATIENCE_S)
    assert story.run.input_ended is ended
    assert story.finished.is_set()
    assert story.gate.failure is None


def test_the_one_micro_batch_of_a_query_that_runs_once_is_all_its_input() -> None:
    story = QuietThread({"once": True})
    story.run.batches = 1
    story.spark.active = False
    assert story.start().wait(PATIENCE_S)
    assert story.run.input_ended


def test_an_interval_that_only_spark_can_read_is_nobody_else_s_business() -> None:
    story = QuietThread({"processingTime": "1 month"})
    query = story.start()
    story.gate.close()
    assert query.wait(PATIENCE_S)
    assert story.gate.failure is None


@pytest.mark.parametrize("trigger", [None, {"processingTime": "0 seconds"}])
def test_spark_is_not_quiet_while_it_looks_for_rows_after_a_batch(
    trigger: Mapping[str, object] | None,
) -> None:
    spark = SparkQuery()
    spark.has_looked = False  # its status says the same as between two triggers
    stream = SparkStream(cast("Any", spark), trigger, batches=lambda: 1)
    assert not stream.is_quiet()
    spark.has_looked = True
    assert stream.is_quiet()


def test_spark_is_quiet_between_two_triggers() -> None:
    spark = SparkQuery()
    spark.has_looked = False
    stream = SparkStream(cast("Any", spark), {"processingTime": "1 minute"}, batches=lambda: 1)
    assert stream.is_quiet()

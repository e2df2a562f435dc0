"""One ending: it waits for whatever runs, closes everything once, and tells how that went."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from godwit.model import events
from godwit.model.errors import EndingError, StopTimeoutError
from godwit.runtime import lifecycle as ending_module
from godwit.runtime.dispatcher import EventDispatcher
from godwit.runtime.lifecycle import Ending
from godwit.runtime.threads import EpochGate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 120.0

Problems = list[tuple[str, str]]


class SparkQuery:
    """Spark's query: stops at once, or raises."""

    what = "Spark's query"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        if self.error is not None:
            raise self.error


class EndingQuery:
    """An ending, with what it ends."""

    def __init__(self) -> None:
        self.gate, self.spark = EpochGate(), SparkQuery()
        self.dispatcher = EventDispatcher("q")
        self.closed: list[Problems] = []
        self.cancelled = 0
        self.close_error: Exception | None = None
        self.closing: Problems = []
        self.ending = Ending(
            gate=self.gate,
            driver=cast("Any", self.spark),
            dispatcher=self.dispatcher,
            cancel=self._cancel,
            close=self._close,
        )

    def _cancel(self) -> None:
        self.cancelled += 1

    def _close(self, problems: Problems) -> Problems:
        assert not self.gate.busy
        self.closed.append(problems)
        if self.close_error is not None:
            raise self.close_error
        return [*problems, *self.closing]


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndingQuery]:
    monkeypatch.setattr(ending_module, "_GRACE_S", 0.02)
    monkeypatch.setattr(ending_module, "_DRIVER_S", PATIENCE_S)
    made = EndingQuery()
    yield made
    made.ending.finish(PATIENCE_S)


def epoch_that_waits(gate: EpochGate) -> tuple[threading.Event, threading.Thread]:
    """Carry out an epoch on a thread that Spark does not know, until the event is set."""
    go_on, inside = threading.Event(), threading.Event()

    def work() -> None:
        with gate.epoch():
            inside.set()
            assert go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE_S)
    return go_on, thread


def test_nothing_is_closed_while_an_epoch_without_input_delivers(
    story: EndingQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, thread = epoch_that_waits(story.gate)
    with monkeypatch.context() as hasty:
        hasty.setattr(ending_module, "_DRIVER_S", 0.02)
        with pytest.raises(StopTimeoutError, match="still being carried out"):
            story.ending.stop()
    assert story.closed == []
    until_s = time.monotonic() + PATIENCE_S
    while not story.cancelled:  # the epoch is broken off once its grace is over
        assert time.monotonic() < until_s
        time.sleep(0.005)
    go_on.set()
    thread.join(PATIENCE_S)
    story.ending.stop()
    assert story.ending.finished
    assert story.closed == [[]]
    assert story.cancelled == 1


def deliver_beside(gate: EpochGate, deliver: Callable[[], None]) -> threading.Thread:
    """Deliver an epoch on a thread of its own, as a loop does beside the next one."""
    thread = threading.Thread(target=gate.register_delivery(deliver), daemon=True)
    thread.start()
    return thread


def test_a_sink_that_stops_its_query_does_not_wait_for_itself(story: EndingQuery) -> None:
    stopped = threading.Event()

    def deliver() -> None:
        story.ending.stop()  # else it raises, since the query cannot end before
        stopped.set()

    thread = deliver_beside(story.gate, deliver)
    thread.join(PATIENCE_S)
    assert stopped.is_set()
    assert story.ending.finish(PATIENCE_S)
    assert story.closed == [[]]


def test_nothing_is_closed_while_an_epoch_is_delivered_beside_the_next(
    story: EndingQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def deliver() -> None:
        assert go_on.wait(PATIENCE_S)

    thread = deliver_beside(story.gate, deliver)
    with monkeypatch.context() as hasty:
        hasty.setattr(ending_module, "_DRIVER_S", 0.02)
        with pytest.raises(StopTimeoutError, match="carried out or delivered"):
            story.ending.stop()
    assert story.closed == []
    go_on.set()
    thread.join(PATIENCE_S)
    story.ending.stop()
    assert story.closed == [[]]


def test_a_query_whose_input_failed_is_closed_only_once_its_epoch_is_over(
    story: EndingQuery,
) -> None:
    go_on, thread = epoch_that_waits(story.gate)
    assert not story.ending.finish(0.01)
    assert story.closed == []
    go_on.set()
    thread.join(PATIENCE_S)
    assert story.ending.finish(PATIENCE_S)
    assert story.closed == [[]]


def test_everything_is_closed_although_spark_s_stop_fails_and_stop_says_so(
    story: EndingQuery,
) -> None:
    story.spark.error = ConnectionRefusedError("the JVM is gone")
    for _ in range(2):
        with pytest.raises(EndingError, match=r"Spark's query: ConnectionRefusedError: the JVM"):
            story.ending.stop()
    assert story.ending.finished
    assert len(story.closed) == 1


def test_what_cannot_be_closed_is_told_and_the_query_has_ended(story: EndingQuery) -> None:
    story.closing = [("closing sinks", "OSError: no room")]
    with pytest.raises(EndingError, match="closing sinks: OSError: no room"):
        story.ending.stop()
    assert story.ending.finished


def test_closing_that_raises_leaves_nothing_half_ended(story: EndingQuery) -> None:
    story.close_error = RuntimeError("no")
    with pytest.raises(EndingError, match="closing the query: RuntimeError: no"):
        story.ending.stop()
    assert story.ending.finished
    assert story.dispatcher.flush(PATIENCE_S)  # its threads have ended


def test_an_epoch_s_own_thread_does_not_wait_for_the_end(story: EndingQuery) -> None:
    with story.gate.epoch():
        story.ending.stop()
        assert not story.ending.finished
    assert story.ending.finish(PATIENCE_S)
    assert story.closed == [[]]


def test_a_listener_does_not_wait_for_the_end(story: EndingQuery) -> None:
    stopped = threading.Event()

    def listen(_event: events.Event) -> None:
        story.ending.stop()
        stopped.set()

    story.dispatcher.add_listener(listen)
    story.dispatcher.emit(events.QueryStopped(epoch=0, at_s=0.0, name="q"))
    assert stopped.wait(PATIENCE_S)
    assert story.ending.finish(PATIENCE_S)


def test_it_ends_once_however_many_ask(story: EndingQuery) -> None:
    threads = [threading.Thread(target=story.ending.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert story.closed == [[]]
    assert story.spark.stops == 1

"""Events reach listeners and journal in order, whatever listeners and disks do."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from godwit.checkpoint.journal import JournalWriter, read_tail
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.runtime import dispatcher as dispatcher_module
from godwit.runtime.dispatcher import EventDispatcher

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 120.0


def event(number: int) -> events.Event:
    return events.QueryStopped(epoch=number, at_s=0.0, name="q")


def test_a_listener_hears_of_what_comes_after_it_in_order_and_of_nothing_before() -> None:
    dispatcher = EventDispatcher("q")
    heard: list[int] = []
    dispatcher.emit(event(0))
    dispatcher.add_listener(lambda e: heard.append(e.epoch))
    for n in range(1, 100):
        dispatcher.emit(event(n))
    assert dispatcher.flush(PATIENCE_S)
    assert heard == list(range(1, 100))
    assert [e.epoch for e in dispatcher.events] == list(range(100))
    dispatcher.close()
    assert dispatcher.flush(PATIENCE_S)


def test_whoever_emits_never_waits_for_a_listener() -> None:
    dispatcher = EventDispatcher("q")
    go_on = threading.Event()

    def wait(_event: events.Event) -> None:
        assert go_on.wait(PATIENCE_S)

    dispatcher.add_listener(wait)
    dispatcher.emit(event(0))
    dispatcher.emit(event(1))
    assert not dispatcher.flush(0.01)
    go_on.set()
    assert dispatcher.flush(PATIENCE_S)
    dispatcher.close()


def test_a_listener_may_wait_for_the_others_without_waiting_for_itself() -> None:
    dispatcher = EventDispatcher("q")
    answers: list[bool] = []
    dispatcher.add_listener(lambda _: answers.append(dispatcher.flush(PATIENCE_S)))
    dispatcher.emit(event(0))
    assert dispatcher.flush(PATIENCE_S)
    assert answers == [False]
    dispatcher.close()


def test_the_journal_holds_what_was_emitted_once_it_is_flushed(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", JournalWriter(storage, "r"))
    dispatcher.emit(event(7))
    assert dispatcher.flush(PATIENCE_S)
    (entry,) = read_tail(storage, 10)
    assert entry == {"event": {"kind": "QueryStopped", "epoch": 7, "at_s": 0.0, "name": "q"}}
    dispatcher.close()


def background(dispatcher: EventDispatcher) -> list[tuple[str, str]]:
    found = [e for e in dispatcher.events if isinstance(e, events.BackgroundFailed)]
    return [(e.what, e.error) for e in found]


def test_a_journal_that_cannot_be_written_for_a_while_goes_on_and_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CheckpointStorage.open(tmp_path)
    full = True

    class Journal(JournalWriter):  # not for all: other tests' may not have ended yet
        def flush(self) -> None:
            if full:
                msg = "no room"
                raise OSError(msg)
            super().flush()

    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", Journal(storage, "r"))
    heard: list[int] = []
    dispatcher.add_listener(
        lambda e: heard.append(e.epoch) if isinstance(e, events.QueryStopped) else None
    )
    for n in (0, 1):
        dispatcher.emit(event(n))
        assert dispatcher.flush(PATIENCE_S)
    full = False
    dispatcher.emit(event(2))
    assert dispatcher.flush(PATIENCE_S)
    assert heard == [0, 1, 2]
    assert background(dispatcher) == [("writing the journal", "OSError: no room")]
    assert len([r for r in caplog.records if "no room" in r.getMessage()]) == 1
    written = [entry["event"] for entry in read_tail(storage, 10)]
    assert [e["epoch"] for e in written if e["kind"] == "QueryStopped"] == [0, 1, 2]
    dispatcher.close()


def test_rows_that_are_gone_are_a_warning_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = EventDispatcher("q")
    for sink in ("", "late"):
        dispatcher.emit(events.RowsLeftOut(epoch=1, at_s=0.0, operator="w", late=3, sink=sink))
    assert dispatcher.flush(PATIENCE_S)
    dispatcher.close()
    (told,) = caplog.records
    assert told.getMessage() == "Flow 'q': operator w left out in epoch 1: 3 rows late"


def test_values_that_cannot_be_had_cost_one_entry_and_are_told() -> None:
    """One that raised used to end the thread: no listener and no journal heard of anything."""
    dispatcher = EventDispatcher("q")
    kept: list[str] = []

    class Keeps:
        def add(self, kind: str, values: object) -> None:
            kept.append(f"{kind} {values}")

        def flush(self) -> None:
            pass

    def broken() -> Any:
        raise KeyError("x")

    dispatcher.add_recorder("journal", Keeps())
    heard: list[int] = []
    dispatcher.add_listener(lambda e: heard.append(e.epoch))
    dispatcher.record("outcome", broken)
    dispatcher.record("outcome", lambda: {"epoch": 1})
    dispatcher.emit(event(7))
    assert dispatcher.flush(PATIENCE_S)
    assert "outcome {'epoch': 1}" in kept
    assert 7 in heard
    assert background(dispatcher) == [("recording", "KeyError: 'x'")]
    dispatcher.close()


def test_one_recorder_that_raises_costs_the_others_nothing() -> None:
    dispatcher = EventDispatcher("q")
    kept: list[str] = []

    class Broken:
        def add(self, kind: str, values: object) -> None:
            raise ValueError(kind)

        def flush(self) -> None:
            raise ValueError

    class Keeps:
        def add(self, kind: str, values: object) -> None:
            kept.append(kind)

        def flush(self) -> None:
            pass

    dispatcher.add_recorder("journal", Broken())
    dispatcher.add_recorder("metrics", Keeps())
    for _ in range(3):
        dispatcher.record("outcome", dict)
    assert dispatcher.flush(PATIENCE_S)
    assert kept.count("outcome") == 3
    dispatcher.close()


def test_a_listener_that_waits_for_ever_holds_up_neither_the_others_nor_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "_MAX_BEHIND", 50)
    storage = CheckpointStorage.open(tmp_path)
    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", JournalWriter(storage, "r"))
    go_on, others, late = threading.Event(), threading.Semaphore(0), []

    def waits(told: events.Event) -> None:
        assert go_on.wait(PATIENCE_S)
        late.append(told.epoch)

    dispatcher.add_listener(waits)
    dispatcher.add_listener(lambda _: others.release())
    for n in range(200):
        dispatcher.emit(event(n))
        assert others.acquire(timeout=PATIENCE_S)
    dispatcher.stop_recording(PATIENCE_S)
    assert len(read_tail(storage, 1000)) > 200
    (failed,) = failures(dispatcher)
    assert (failed.listener, failed.error) == ("waits", "50 events behind; the oldest are dropped")
    go_on.set()
    assert dispatcher.flush(PATIENCE_S)
    assert late[-49:] == list(range(151, 200))
    assert len(late) < 60
    dispatcher.close()


def test_nothing_is_recorded_once_the_claim_on_the_checkpoint_is_gone(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", JournalWriter(storage, "r"))
    dispatcher.emit(event(1))
    dispatcher.stop_recording(PATIENCE_S)
    dispatcher.emit(event(2))
    assert dispatcher.flush(PATIENCE_S)
    dispatcher.close()
    assert dispatcher.flush(PATIENCE_S)
    assert [entry["event"]["epoch"] for entry in read_tail(storage, 10)] == [1]


def test_a_recorder_that_hangs_is_waited_for_no_longer_than_that() -> None:
    dispatcher = EventDispatcher("q")
    go_on, asked, kept = threading.Event(), threading.Event(), []

    class Hangs:
        def add(self, kind: str, values: object) -> None:
            kept.append(values)
            asked.set()
            assert go_on.wait(PATIENCE_S)

        def flush(self) -> None:
            pass

    dispatcher.add_recorder("journal", Hangs())
    dispatcher.record("outcome", lambda: {"epoch": 1})
    dispatcher.record("outcome", lambda: {"epoch": 2})
    assert asked.wait(PATIENCE_S)
    with pytest.raises(TimeoutError, match="could not be written within"):
        dispatcher.stop_recording(0.01)
    go_on.set()
    dispatcher.close()
    assert dispatcher.flush(PATIENCE_S)
    assert kept == [{"epoch": 1}]


def failures(dispatcher: EventDispatcher) -> list[events.ListenerFailed]:
    return [e for e in dispatcher.events if isinstance(e, events.ListenerFailed)]


def test_a_listener_that_fails_is_an_event_once_for_each_kind_of_error(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", JournalWriter(storage, "r"))
    heard: list[str] = []

    def broken(told: events.Event) -> None:
        if told.epoch == 0:
            raise KeyError(told.epoch)
        msg = "no more\nat line 3"
        raise ValueError(msg)

    dispatcher.add_listener(broken)
    dispatcher.add_listener(lambda e: heard.append(type(e).__name__))
    for n in (0, 1, 2, 0, 1):
        dispatcher.emit(event(n))
    assert dispatcher.flush(PATIENCE_S)
    assert dispatcher.flush(PATIENCE_S)  # what a failure is told by comes after it
    assert [(f.listener, f.error, f.heard, f.epoch) for f in failures(dispatcher)] == [
        ("broken", "KeyError: 0", "QueryStopped", 0),
        ("broken", "ValueError: no more", "QueryStopped", 1),
    ]
    assert heard.count("ListenerFailed") == 2
    told = [entry["event"]["kind"] for entry in read_tail(storage, 100)]
    assert told.count("ListenerFailed") == 2
    dispatcher.close()


def test_a_listener_that_fails_on_its_own_failure_is_not_told_of_without_end() -> None:
    dispatcher = EventDispatcher("q")

    def worse_every_time(_told: events.Event) -> None:
        name = f"Error{len(dispatcher.events)}"
        raise type(name, (Exception,), {})

    dispatcher.add_listener(worse_every_time)
    dispatcher.emit(event(0))
    for _ in range(5):
        assert dispatcher.flush(PATIENCE_S)
    assert len(failures(dispatcher)) == 1
    for n in range(500):
        dispatcher.emit(event(n))
    for _ in range(5):
        assert dispatcher.flush(PATIENCE_S)
    assert len(failures(dispatcher)) <= 100
    dispatcher.close()


def test_an_error_that_cannot_be_told_and_a_listener_that_exits_end_nothing() -> None:
    class Unspeakable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    dispatcher = EventDispatcher("q")
    heard: list[int] = []

    def raises(told: events.Event) -> None:
        if told.epoch == 0:
            raise Unspeakable
        raise SystemExit

    dispatcher.add_listener(raises)
    dispatcher.add_listener(lambda e: heard.append(e.epoch))
    dispatcher.emit(event(0))
    dispatcher.emit(event(1))
    assert dispatcher.flush(PATIENCE_S)
    assert dispatcher.flush(PATIENCE_S)
    assert [f.error for f in failures(dispatcher)] == ["Unspeakable", "SystemExit"]
    assert heard[:2] == [0, 1]
    dispatcher.close()


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.name)

    log, broken = logging.getLogger("godwit"), Broken()
    dispatcher = EventDispatcher("q")
    heard: list[int] = []

    def raises(_: events.Event) -> None:
        raise ValueError

    class Full:
        def add(self, kind: str, values: object) -> None:
            raise OSError(kind)

        def flush(self) -> None:
            pass

    dispatcher.add_recorder("journal", Full())
    dispatcher.add_listener(raises)
    dispatcher.add_listener(lambda e: heard.append(e.epoch))
    log.addHandler(broken)
    try:
        dispatcher.emit(event(0))
        assert dispatcher.flush(PATIENCE_S)
    finally:
        log.removeHandler(broken)
    assert dispatcher.flush(PATIENCE_S)  # the failure itself is told in a second round
    assert heard.count(0) >= 2
    assert [f.error for f in failures(dispatcher)] == ["ValueError"]
    dispatcher.close()


def test_samples_are_written_when_they_change_and_may_fail(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    dispatcher = EventDispatcher("q")
    dispatcher.add_recorder("journal", JournalWriter(storage, "r"))
    answers: list[Any] = [None, {"behind": 4}, {"behind": 4}, RuntimeError(), {"behind": 2}]

    def ask() -> Any:
        answer = answers.pop(0) if answers else {"behind": 2}
        if isinstance(answer, Exception):
            raise answer
        return answer

    dispatcher.record_samples("sources", ask)
    while answers:
        assert dispatcher.flush(PATIENCE_S)
    assert dispatcher.flush(PATIENCE_S)
    assert read_tail(storage, 10) == [{"sources": {"behind": 4}}, {"sources": {"behind": 2}}]
    dispatcher.record("outcome", lambda: {"epoch": 3})
    assert dispatcher.flush(PATIENCE_S)
    assert read_tail(storage, 1) == [{"outcome": {"epoch": 3}}]
    dispatcher.close()


def test_what_cannot_be_called_is_no_listener() -> None:
    dispatcher = EventDispatcher("q")
    with pytest.raises(InvalidFlowError, match="of type int, which cannot be called"):
        dispatcher.add_listener(3)  # type: ignore[arg-type]
    dispatcher.close()

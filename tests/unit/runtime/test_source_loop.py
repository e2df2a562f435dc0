"""The loop of epochs over Godwit's own sources: when epochs come, and how a query ends."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import godwit as gw
from godwit.engine.cluster import ROWS_HERE
from godwit.engine.policies import PlacementChange
from godwit.engine.source_positions import RecordedSources, SourcePositions
from godwit.model.errors import (
    CheckpointInUseError,
    InvalidFlowError,
    SourceError,
    StopTimeoutError,
)
from godwit.runtime import source_loop
from godwit.runtime.settings import interval_s
from godwit.runtime.source_loop import SourceLoop
from godwit.runtime.threads import EpochGate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from godwit.engine.cluster import SourceBatch
    from godwit.sources import MemorySource, Position

PATIENCE_S = 120.0


class Run:
    """A run that takes batches, and in which epochs are due, or are not."""

    name, num_recent = "flow", 100

    def __init__(self) -> None:
        self.gate = EpochGate()
        self.view = SimpleNamespace(awaits=False)
        self.cluster = SimpleNamespace(executors={"1": SimpleNamespace(lanes=2)})
        self.log = SimpleNamespace(identity=SimpleNamespace(query_id="0" * 32), latest=None)
        self.loop = SimpleNamespace(finish_delivery=lambda: None)
        self.is_due = self.is_pending = self.input_ended = False
        self.epochs: list[Any] = []  # rows of each epoch; None: without input
        self.begun: list[tuple[int, int]] = []  # rows of an epoch, and what is held back
        self.ticks = 0
        self.told: list[tuple[Any, ...]] = []
        self.on_epoch: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None

    def use_this_thread(self) -> None:
        pass

    def check_lease(self) -> None:
        self.on_look()

    def background_failed(self, *told: str) -> None:
        self.told.append(told)

    def with_input(self, offered: Callable[[None], SourceBatch[Any] | None]) -> None:
        with self.gate.epoch():
            self.on_epoch()
            batch = offered(None)
            if batch is not None:
                self.epochs.append(batch.split_rows)

    def epoch_begun(self, rows: int, held_back: int) -> None:
        self.begun.append((rows, held_back))

    def placement_change(self) -> PlacementChange:
        return PlacementChange()

    def without_input(self, _stopped: Callable[[], bool]) -> None:
        with self.gate.epoch():
            self.is_due = self.is_pending = False
            self.epochs.append(None)

    def end_input(self) -> None:
        self.input_ended = True

    def advance_clock(self) -> None:
        self.ticks += 1


class LoopOverMemory:
    """The loop over one source in memory, with everything that it looks at."""

    def __init__(
        self,
        trigger: Mapping[str, object] | None = None,
        source: MemorySource | None = None,
        longest_s: float | None = None,
        others: Iterable[str] = (),  # sources that have no rows
    ) -> None:
        self.run = Run()
        self.source = gw.sources.memory("k string") if source is None else source
        idle = {name: gw.sources.memory("k string") for name in others}
        self.positions = SourcePositions({"rows": self.source, **idle}, RecordedSources())
        self.positions.open()
        self.finished = threading.Event()
        self.loop = SourceLoop(
            cast("Any", self.run), self.positions, trigger=trigger, longest_s=longest_s
        )

    def begin(self) -> SourceLoop:
        self.loop.begin(cast("Any", SimpleNamespace(finish=self.finished.set)))
        return self.loop

    def end(self) -> None:
        self.run.gate.close()
        assert self.loop.wait(PATIENCE_S)
        assert self.finished.is_set()
        assert self.positions.positions == {}  # they are closed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_loop, "_LOOK_S", 0.001)
    monkeypatch.setattr(source_loop, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(SourceLoop, "stop_s", PATIENCE_S)


def rows(count: int) -> list[dict[str, str]]:
    return [{"k": "a"}] * count


def eventually(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        done.wait(0.005)
    raise AssertionError("it did not come")


def test_rows_are_processed_as_they_come_and_whoever_waits_goes_on_once_theirs_are() -> None:
    story = LoopOverMemory()
    story.source.add(rows(3))
    loop = story.begin()
    loop.process_all_available()
    assert story.run.epochs == [3]
    story.source.add(rows(2))
    loop.process_all_available()
    assert story.run.epochs == [3, 2]
    assert story.positions.positions == {"rows": 5}
    story.end()
    assert story.run.gate.failure is None
    loop.process_all_available()  # returns at once, as everything is over


def test_a_batch_that_was_planned_before_other_columns_placed_the_state_is_planned_again() -> None:
    story = LoopOverMemory()
    latest = iter([object()])

    def repartitioned() -> None:
        story.run.log.latest = next(latest, story.run.log.latest)

    story.run.on_epoch = repartitioned
    story.source.add(rows(3))
    story.begin().process_all_available()
    assert story.run.epochs == [3]
    assert story.positions.positions == {"rows": 3}
    story.end()


def test_whoever_waits_goes_on_although_rows_come_without_an_end() -> None:
    story = LoopOverMemory(source=gw.sources.memory("k string", max_rows_per_epoch=1))
    story.source.add(rows(2))
    story.run.on_epoch = lambda: story.source.add(rows(1))
    story.begin().process_all_available()
    assert len(story.run.epochs) >= 2
    story.end()


@pytest.mark.parametrize("others", [(), ("idle", "idle too")])
def test_an_epoch_takes_no_more_rows_than_are_processed_in_the_longest_time(
    monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """Every row takes 10 ms and an epoch 100 ms besides; idle sources take no part of it."""
    story, looks, began_s = (
        LoopOverMemory(longest_s=0.5, others=others),
        itertools.count(),
        time.monotonic(),
    )

    def now_s() -> float:
        epochs = [count or 0 for count in story.run.epochs]
        return began_s + 0.1 * len(epochs) + 0.01 * sum(epochs) + 1e-3 * next(looks)

    monkeypatch.setattr(source_loop, "time", SimpleNamespace(monotonic=now_s))
    story.source.add(rows(64))
    loop = story.begin()
    loop.process_all_available()
    story.source.add(rows(200))
    loop.process_all_available()
    first, second, probe, *rest, _last = story.run.epochs
    assert first == 64
    assert second == pytest.approx(43, abs=2)
    assert probe == pytest.approx(22, abs=2)  # tells the fixed part
    assert rest == pytest.approx([40] * len(rest), abs=2)
    assert len(rest) >= 2
    assert sum(story.run.epochs) == 264
    story.end()


def test_whoever_waits_also_waits_for_what_is_due_without_rows() -> None:
    story = LoopOverMemory()
    story.run.is_pending = True
    loop = story.begin()
    waiter = threading.Thread(target=loop.process_all_available, daemon=True)
    waiter.start()
    story.run.is_due = True
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()
    assert story.run.epochs == [0, None]  # the first commits where the source starts
    story.end()


@pytest.mark.parametrize(
    ("trigger", "epochs"), [({"availableNow": True}, [2, 2, 1]), ({"once": True}, [5])]
)
def test_a_bounded_query_ends_with_what_was_there_when_it_began(
    trigger: Mapping[str, object], epochs: list[int]
) -> None:
    story = LoopOverMemory(trigger, gw.sources.memory("k string", max_rows_per_epoch=2))
    story.source.add(rows(5))
    story.run.on_epoch = lambda: story.source.add(rows(10))
    loop = story.begin()
    loop.process_all_available()
    assert loop.wait(PATIENCE_S)
    assert story.run.epochs == epochs
    assert story.run.input_ended
    assert story.finished.is_set()
    assert not loop.is_active


def test_a_query_whose_input_has_ended_waits_for_what_stands_in_the_way_of_its_windows() -> None:
    story = LoopOverMemory({"availableNow": True})
    story.run.is_pending = True
    looks = iter(range(20))

    def look() -> None:
        if next(looks, None) is None:  # what stood in the way is over
            story.run.is_due = story.run.is_pending

    story.run.on_look = look
    assert story.begin().wait(PATIENCE_S)
    assert story.run.epochs == [0, None]


def test_time_passes_for_the_protocol_while_no_row_comes() -> None:
    story = LoopOverMemory()
    story.run.view.awaits = True
    story.begin()
    eventually(lambda: story.run.ticks > 2)
    story.end()


class Broken(gw.sources.MemorySource):
    """Raises, or does not answer."""

    def __init__(self, go_on: threading.Event | None = None) -> None:
        super().__init__("k string")
        self.go_on, self.asked = go_on, threading.Event()

    def latest(self, position: Position, **_limits: Any) -> Position:
        self.asked.set()
        if self.go_on is None:
            message = "no broker"
            raise ConnectionError(message)
        assert self.go_on.wait(PATIENCE_S)
        return position


def test_a_source_that_raises_fails_the_query_by_its_name() -> None:
    story = LoopOverMemory(source=Broken())
    assert story.begin().wait(PATIENCE_S)
    assert isinstance(story.run.gate.failure, SourceError)
    assert "Source 'rows'" in str(story.run.gate.failure)
    assert "no broker" in story.loop.status()["message"]
    assert story.finished.is_set()


def test_a_source_that_does_not_answer_does_not_keep_the_query_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SourceLoop, "stop_s", 0.1)
    source = Broken(threading.Event())
    story = LoopOverMemory(source=source)
    loop = story.begin()
    assert source.asked.wait(PATIENCE_S)
    monkeypatch.setattr(source_loop, "_LONG_S", 0.0)
    assert "source 'rows' has not returned from latest" in loop.status()["message"]
    story.run.gate.close()
    with pytest.raises(StopTimeoutError, match="Source 'rows' has not returned from latest for"):
        loop.stop()
    assert source.go_on is not None
    source.go_on.set()
    assert loop.wait(PATIENCE_S)
    loop.stop()


def test_a_delivery_that_takes_long_is_waited_for_and_not_blamed_on_a_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story, go_on = LoopOverMemory(), threading.Event()
    gate = story.run.gate
    until_idle = gate.wait_until_idle

    def then_patiently() -> None:
        until_idle()
        monkeypatch.setattr(SourceLoop, "stop_s", PATIENCE_S)

    monkeypatch.setattr(SourceLoop, "stop_s", 0.0)
    monkeypatch.setattr(gate, "wait_until_idle", then_patiently)
    delivery = threading.Thread(target=gate.register_delivery(lambda: _wait(go_on)), daemon=True)
    delivery.start()
    story.run.loop.finish_delivery = lambda: _wait(go_on)
    loop = story.begin()
    gate.close()
    threading.Timer(0.1, go_on.set).start()
    loop.stop()
    assert go_on.is_set()
    assert loop.wait(PATIENCE_S)
    delivery.join(PATIENCE_S)


def _wait(for_: threading.Event) -> None:
    assert for_.wait(PATIENCE_S)


def test_an_epoch_that_fails_ends_the_query_and_its_rows_are_not_counted_as_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story, told = LoopOverMemory(), list[Any]()
    story.source.add(rows(3))
    error = RuntimeError("a sink")

    def fail() -> None:
        raise error

    story.run.on_epoch = fail
    monkeypatch.setattr(story.positions, "committed", told.append)
    assert story.begin().wait(PATIENCE_S)
    assert story.run.gate.failure is error
    assert not told


def test_a_checkpoint_that_somebody_has_taken_ends_the_query_though_no_row_arrives() -> None:
    story = LoopOverMemory()
    error = CheckpointInUseError("taken", remedy="Do.")

    def insist() -> None:
        raise error

    story.run.on_look = insist
    assert story.begin().wait(PATIENCE_S)
    assert story.run.gate.failure is error


def test_figures_of_sources_stand_beside_those_of_their_epoch() -> None:
    story = LoopOverMemory(source=gw.sources.memory("k string", max_rows_per_epoch=2))
    story.source.add(rows(3))
    loop = story.begin()
    loop.process_all_available()
    story.end()
    made: list[dict[str, Any]] = [
        {"batchId": number, "durationMs": {"epoch": 1.0}} for number in (0, None, 1)
    ]
    first, quiet, second = loop.add_source_figures(made)
    assert "sources" not in quiet
    assert first["durationMs"].keys() == {"epoch", "triggerExecution"}
    (of_first,), (of_second,) = first["sources"], second["sources"]
    assert (of_first["startOffset"], of_first["endOffset"]) == ({"position": 0}, {"position": 2})
    assert [of_first["numInputRows"], of_second["numInputRows"]] == [2, 1]
    assert of_first["description"] == "memory memory"
    told = loop.sources()
    assert told is not None
    assert told["batchId"] == 1
    assert [source["description"] for source in told["sources"]] == ["memory memory"]
    assert loop.rows_held_back() in (0, 1)  # as of the last time that the source was asked


@pytest.mark.parametrize(
    ("text", "length_s"), [("1 second", 1.0), ("interval 2 minutes", 120.0), ("500 ms", 0.5)]
)
def test_intervals_are_read_as_spark_reads_them(text: str, length_s: float) -> None:
    assert interval_s({"processingTime": text}) == length_s


def test_an_interval_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match="soon"):
        interval_s({"processingTime": "soon"})
    assert interval_s({"availableNow": True}) == interval_s(None) == 0


def test_a_query_without_rows_for_a_while_rests_by_the_cpu_time_that_a_look_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_loop, "_LOOK_S", 0.05)
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(source_loop, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    pace = source_loop.ReadPace(None)
    pace.record_poll(100.0, has_rows=True)
    clock.now_s = 104.0
    assert pace.pause_s(1e-4) == 0.001
    clock.now_s = 106.0
    pace.record_poll(106.0, has_rows=False)
    assert pace.pause_s(1e-4) == pytest.approx(0.015)
    assert pace.pause_s(1.0) == 0.1
    pace.record_poll(106.0, has_rows=True)
    assert pace.pause_s(1.0) == 0.001


def test_what_the_row_limit_held_back_does_not_wait_for_the_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(source_loop, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    pace = source_loop.ReadPace({"processingTime": "10 seconds"})
    pace.record_poll(100.0, has_rows=True)
    clock.now_s = 103.0
    assert pace.seconds_to_poll == 7
    pace.poll_at_once()
    assert pace.seconds_to_poll <= 0
    pace.record_poll(103.0, has_rows=True)
    assert pace.seconds_to_poll == 7  # epochs begin at the same multiples as before


def test_epochs_with_rows_begin_at_multiples_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(source_loop, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    story = LoopOverMemory({"processingTime": "10 seconds"})
    story.source.add(rows(1))
    story.begin()
    eventually(lambda: story.run.epochs == [1])
    story.source.add(rows(2))
    story.run.is_due = True  # what needs no rows does not wait
    eventually(lambda: story.run.epochs == [1, None])
    clock.now_s = 109.9
    story.run.is_due = True
    eventually(lambda: story.run.epochs == [1, None, None])
    clock.now_s = 125.0
    eventually(lambda: story.run.epochs == [1, None, None, 2])
    story.source.add(rows(3))
    story.run.is_due = True
    eventually(lambda: story.run.epochs == [1, None, None, 2, None])
    clock.now_s = 130.0  # the third multiple, and not ten seconds after the last one
    eventually(lambda: story.run.epochs == [1, None, None, 2, None, 3])
    story.end()


def test_small_epochs_are_read_in_one_split_and_others_in_one_for_each_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = LoopOverMemory()
    asked: list[int] = []
    splits = story.source.splits

    def noted(begin: Position, end: Position, parallelism: int) -> Any:
        asked.append(parallelism)
        return splits(begin, end, parallelism)

    monkeypatch.setattr(story.source, "splits", noted)
    story.source.add(rows(3))
    loop = story.begin()
    loop.process_all_available()
    for count in (3, ROWS_HERE + 1, 3):
        story.source.add(rows(count))
        loop.process_all_available()
    story.end()
    assert story.run.epochs == [3, 3, ROWS_HERE + 1, 3]
    assert asked == [2, 1, 1, 2, 2]

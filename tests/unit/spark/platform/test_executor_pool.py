"""The pool asks a cluster for executors and gives them back; this cluster does as it is told."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_cluster import FakeScheduler, FakeStream

from godwit.engine.cluster import PoolView
from godwit.migration.messages import MigrationRequested
from godwit.model import events
from godwit.model.errors import InvalidPlanError, ScalingError
from godwit.spark.platform.executor_pool import SparkExecutorPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.engine.cluster import ExecutorPool


@pytest.fixture
def stream() -> Iterator[FakeStream]:
    made = FakeStream(["a", "b"], FakeScheduler())
    yield made
    made.pool.close()


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def told(stream: FakeStream, kind: type[events.Event]) -> list[Any]:
    return [event for event in stream.ports.events if isinstance(event, kind)]


def emptied(stream: FakeStream, executor: str) -> None:
    """Send all that an executor owns to the first of the others."""
    now = stream.assignment
    other = next(name for name in stream.there if name != executor)
    with stream.coordinator.locked() as coordinator:
        coordinator.drain(executor)
        target = now.moved(dict.fromkeys(now.key_groups(executor).tolist(), other))
        coordinator.migrate(MigrationRequested(id="m", component="totals", target=target))
    for _ in range(4):
        stream.run()
    assert stream.coordinator.view.owns_nothing(executor)


def test_it_is_the_pool_that_a_controller_drives(stream: FakeStream) -> None:
    pool: ExecutorPool = stream.pool
    assert pool.view == PoolView()


def test_the_cluster_is_told_how_many_there_are_to_be(stream: FakeStream) -> None:
    stream.pool.add(2)
    eventually(lambda: stream.scheduler.requests == [4])
    assert stream.pool.view.pending == 2
    (asked,) = told(stream, events.ExecutorsRequested)
    assert (asked.count, asked.total) == (2, 4)
    stream.come("c")
    assert stream.pool.view.pending == 1
    stream.pool.add(1)
    eventually(lambda: stream.scheduler.requests == [4, 5])
    stream.come("d", "e")
    assert stream.pool.view.pending == 0
    assert stream.pool.staying == ("a", "b", "c", "d", "e")


def test_what_does_not_come_in_time_is_given_up_and_told_and_used_if_it_comes_late(
    stream: FakeStream,
) -> None:
    stream.pool.add(2)
    eventually(lambda: stream.scheduler.requests == [4])
    stream.come("c")
    stream.now_s = 61.0
    eventually(lambda: bool(stream.pool.view.refused))
    assert "none to give within 60 s" in stream.pool.view.refused
    assert stream.pool.view.pending == 0
    eventually(lambda: stream.scheduler.requests == [4, 3])
    (missing,) = told(stream, events.ExecutorsMissing)
    assert missing.count == 1
    stream.come("late")
    assert stream.pool.staying == ("a", "b", "c", "late")
    stream.pool.add(1)
    eventually(lambda: stream.scheduler.requests == [4, 3, 5])


@pytest.mark.parametrize("how", ["says no", "raises"])
def test_a_request_that_is_not_taken_is_told_at_once(stream: FakeStream, how: str) -> None:
    stream.scheduler.takes = False
    if how == "raises":
        stream.scheduler.raises = ConnectionError("the master is gone")
    stream.pool.add(1)
    eventually(lambda: bool(told(stream, events.ExecutorsMissing)))
    assert "did not take the request" in stream.pool.view.refused
    assert ("the master is gone" in stream.pool.view.refused) is (how == "raises")


def test_one_that_dies_is_waited_for_until_the_cluster_replaces_it(stream: FakeStream) -> None:
    stream.pool.add(1)
    stream.come("c")
    stream.pool.check_executors()
    stream.now_s = 1000.0
    stream.die("c")
    assert stream.pool.view.pending == 1
    stream.pool.check_executors()
    assert told(stream, events.ExecutorsMissing) == []
    stream.come("d")
    assert stream.pool.view.pending == 0


def test_executors_that_own_something_are_not_given_back(stream: FakeStream) -> None:
    with pytest.raises(InvalidPlanError, match="'b' cannot be given back: it owns key groups"):
        stream.pool.remove(["b"])
    with pytest.raises(InvalidPlanError, match="'z' cannot be given back: it is not there"):
        stream.pool.remove(["z"])
    assert stream.scheduler.ended == []


def test_the_last_executor_is_not_given_back(stream: FakeStream) -> None:
    emptied(stream, "b")
    stream.pool.remove(["b"])
    eventually(lambda: stream.scheduler.ended == ["b"])
    with pytest.raises(InvalidPlanError, match="owns key groups"):
        stream.pool.remove(["a"])


def test_an_empty_one_is_given_back_between_two_epochs_and_is_no_loss(stream: FakeStream) -> None:
    stream.run()
    emptied(stream, "b")
    with stream.gate.epoch():  # an epoch runs, perhaps with tasks there
        stream.pool.remove(["b"])
        time.sleep(0.5)
        assert stream.scheduler.ended == []
    eventually(lambda: stream.scheduler.ended == ["b"])
    # Giving back lowers what the cluster keeps up by itself, so it is told the number once more.
    eventually(lambda: stream.scheduler.requests[-1:] == [1])
    stream.look()
    assert [event.executor for event in told(stream, events.ExecutorRemoved)] == ["b"]
    assert told(stream, events.ExecutorLost) == []
    assert stream.pool.staying == ("a",)


def test_lanes_that_stay_are_let_go_before_their_executor_is_given_back(
    stream: FakeStream,
) -> None:
    emptied(stream, "b")
    stream.scheduler.busy.add("b")
    stream.pool.remove(["b"])
    eventually(lambda: stream.scheduler.ended == ["b"])
    assert not stream.pool.view.not_returned


def test_one_that_gets_key_groups_back_because_the_others_died_is_kept(stream: FakeStream) -> None:
    stream.run()
    emptied(stream, "b")
    with stream.gate.epoch():
        stream.pool.remove(["b"])
        stream.die("a")
        assert not stream.coordinator.view.owns_nothing("b")
    time.sleep(0.5)
    assert stream.scheduler.ended == []


def test_one_that_dies_before_it_is_given_back_is_not_replaced(stream: FakeStream) -> None:
    stream.run()
    emptied(stream, "b")
    with stream.gate.epoch():
        stream.pool.remove(["b"])
        stream.die("b")
    eventually(lambda: stream.scheduler.requests[-1:] == [1])
    assert stream.scheduler.ended == []
    assert stream.pool.view.pending == 0


def test_executors_that_are_not_taken_back_stay_and_it_is_told(stream: FakeStream) -> None:
    emptied(stream, "b")
    stream.scheduler.takes = False
    stream.pool.remove(["b"])
    eventually(lambda: "did not take back b" in stream.pool.view.not_returned)
    stream.look()
    assert "b" in stream.coordinator.view.executors


def test_where_executors_cannot_be_scaled_it_says_so_at_once() -> None:
    scheduler = FakeScheduler(refusal="local[2] is one process. Run on a cluster.")
    stream = FakeStream(["a", "b"], scheduler)
    refused = r"neither added nor removed: local\[2\] is one process\. Run on a cluster"
    with pytest.raises(ScalingError, match=refused):
        stream.pool.add(1)
    with pytest.raises(ScalingError, match=refused):
        stream.pool.remove(["b"])
    assert scheduler.requests == []


def test_more_than_the_settings_allow_is_refused_by_their_number() -> None:
    stream = FakeStream(["a", "b"], FakeScheduler(most=3))
    with pytest.raises(ScalingError, match=r"4 executors were asked for, .* allow 3"):
        stream.pool.add(2)
    assert stream.pool.view.most == 3


def test_a_query_that_stops_is_not_held_up(stream: FakeStream) -> None:
    emptied(stream, "b")
    with stream.gate.epoch():
        stream.pool.remove(["b"])
        time.sleep(0.3)
        stream.gate.close()
    stream.pool.close()
    assert not [t for t in threading.enumerate() if t.name == "godwit-pool" and t.is_alive()]
    assert stream.scheduler.ended == []


def test_a_look_that_fails_is_told_and_executors_are_asked_for_all_the_same(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error used to end the thread of the pool permanently."""
    give_back, fails = SparkExecutorPool._release_idle, [KeyError("x")]

    def broken(self: SparkExecutorPool) -> None:
        if fails:
            raise fails.pop()
        give_back(self)

    monkeypatch.setattr(SparkExecutorPool, "_release_idle", broken)
    stream.pool.add(2)
    eventually(lambda: stream.scheduler.requests == [4])
    (failed,) = told(stream, events.BackgroundFailed)
    assert failed.what == "adding and giving back executors"

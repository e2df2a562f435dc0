"""Another number of executors, with a cluster that is generous, slow, mean or on fire."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_cluster import KEY_GROUPS, FakeScheduler, FakeStream

from godwit.migration.messages import MigrationRequested
from godwit.model import events
from godwit.model.errors import GodwitError, ScalingError
from godwit.runtime.scaling import Scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture
def stream() -> Iterator[FakeStream]:
    made = FakeStream(["a", "b"], FakeScheduler())
    for _ in range(5):  # an empty copy is fresh enough for the first ones
        made.run()
    yield made
    made.coordinator.close()
    made.pool.close()


def scaled(stream: FakeStream, wanted: int, patience_s: float | None = None) -> Scaling:
    return Scaling(
        wanted,
        placement=stream.placement,
        pool=stream.pool,
        coordinator=stream.coordinator,
        planner="milp",
        strategy="live",
        bounds=None,
        patience_s=patience_s,
    )


def run_until(stream: FakeStream, holds: Callable[[], Any]) -> None:
    """Carry out epochs until something holds."""
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until, [event.describe() for event in stream.ports.events]
        stream.run()
        time.sleep(0.02)


def told(stream: FakeStream, kind: type[events.Event]) -> list[Any]:
    return [event for event in stream.ports.events if isinstance(event, kind)]


def test_out_waits_for_all_and_gives_them_their_share(stream: FakeStream) -> None:
    scaling = scaled(stream, 4)
    run_until(stream, lambda: stream.scheduler.requests == [4])
    stream.come("c")
    run_until(stream, lambda: "waiting for 1 executor" in scaling.stage)
    assert set(stream.owned()) == {"a", "b"}
    stream.come("d")
    run_until(stream, lambda: scaling.done)
    assert scaling.wait() == ("a", "b", "c", "d")
    assert stream.owned() == dict.fromkeys("abcd", KEY_GROUPS // 4)
    (end,) = told(stream, events.ScalingFinished)
    assert (end.executors, end.moved) == (("a", "b", "c", "d"), KEY_GROUPS // 2)


def test_in_empties_those_with_the_least_state_and_gives_them_back(stream: FakeStream) -> None:
    stream.come("c", "d")  # idle: they hold nothing
    scaling = scaled(stream, 2)
    run_until(stream, lambda: scaling.done)
    assert scaling.wait() == ("a", "b")
    assert sorted(stream.scheduler.ended) == ["c", "d"]
    smaller = scaled(stream, 1)
    run_until(stream, lambda: smaller.done)
    (left,) = smaller.wait()
    assert stream.owned() == {left: KEY_GROUPS}
    # Of key groups 0 to 5 and 6 to 11, whose state grows with their number.
    assert left == "b"
    assert told(stream, events.ExecutorLost) == []


def test_as_many_as_there_are_is_nothing_to_do(stream: FakeStream) -> None:
    scaling = scaled(stream, 2)
    assert scaling.wait(60) == ("a", "b")
    assert stream.scheduler.requests == []
    assert told(stream, events.ExecutorDraining) == []


def test_a_cluster_that_gives_only_some_is_told_and_those_are_used(stream: FakeStream) -> None:
    scaling = scaled(stream, 4)
    run_until(stream, lambda: stream.scheduler.requests == [4])
    stream.come("c")
    stream.now_s = 61.0
    run_until(stream, lambda: scaling.done)
    with pytest.raises(ScalingError, match="4 executors were requested, and 3 executors run"):
        scaling.wait()
    assert stream.owned() == dict.fromkeys("abc", KEY_GROUPS // 3)
    (failed,) = told(stream, events.ScalingFailed)
    assert failed.wanted == 4
    smaller = scaled(stream, 2)
    run_until(stream, lambda: smaller.done)
    assert len(smaller.wait()) == 2


def test_what_is_asked_for_is_waited_for_as_long_as_was_said(stream: FakeStream) -> None:
    hasty = scaled(stream, 3, patience_s=2.5)
    run_until(stream, lambda: stream.scheduler.requests == [3])
    stream.now_s += 3
    run_until(stream, lambda: hasty.done)
    with pytest.raises(ScalingError, match=r"none to give within 2\.5 s"):
        hasty.wait()
    patient = scaled(stream, 3)
    run_until(stream, lambda: stream.pool.view.pending)
    stream.now_s += 3
    stream.come("c")
    run_until(stream, lambda: patient.done)
    assert len(patient.wait()) == 3


def test_one_that_dies_while_others_are_emptied_is_made_up_for(stream: FakeStream) -> None:
    three = scaled(stream, 3)
    run_until(stream, lambda: stream.scheduler.requests == [3])
    stream.come("c")
    run_until(stream, lambda: three.done)
    stream.answers = False  # what is emptied stays full until the other is dead
    first = scaled(stream, 2)
    run_until(stream, lambda: told(stream, events.ExecutorDraining))
    draining = told(stream, events.ExecutorDraining)[0].executor
    dead = next(name for name in "abc" if name != draining)
    stream.die(dead)
    stream.answers = True
    run_until(stream, lambda: first.done)
    assert set(first.wait()) == {*"abc"} - {dead}
    assert stream.scheduler.ended == []
    assert stream.coordinator.view.draining == frozenset()
    assert sum(stream.owned().values()) == KEY_GROUPS


def test_one_that_dies_as_it_is_given_back_is_gone_all_the_same(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.come("c")
    remove = stream.pool.remove

    def too_late(names: Sequence[str]) -> None:
        stream.die("c")
        remove(names)

    monkeypatch.setattr(stream.pool, "remove", too_late)
    scaling = scaled(stream, 2)
    run_until(stream, lambda: scaling.done)
    assert scaling.wait() == ("a", "b")
    assert stream.scheduler.ended == []


def test_one_that_comes_late_is_given_back(stream: FakeStream) -> None:
    stream.come("c")
    scaling = scaled(stream, 2)
    run_until(stream, lambda: told(stream, events.ExecutorDraining))
    stream.come("late")
    run_until(stream, lambda: scaling.done)
    assert scaling.wait() == ("a", "b")
    assert sorted(stream.scheduler.ended) == ["c", "late"]


def test_key_groups_that_will_not_move_end_it_and_nothing_drains_any_more(
    stream: FakeStream,
) -> None:
    stream.fails_to_warm = True
    scaling = scaled(stream, 1)
    run_until(stream, lambda: scaling.done)
    with pytest.raises(ScalingError, match="are not empty after 8 plans"):
        scaling.wait()
    assert stream.coordinator.view.draining == frozenset()
    assert told(stream, events.ExecutorKept)
    assert stream.scheduler.ended == []
    stream.run()


def test_executors_that_are_not_taken_back_end_it_and_stay(stream: FakeStream) -> None:
    stream.come("c")
    stream.scheduler.takes = False
    scaling = scaled(stream, 2)
    run_until(stream, lambda: scaling.done)
    with pytest.raises(ScalingError, match="c could not be given back: the cluster did not take"):
        scaling.wait()
    assert stream.coordinator.view.draining == frozenset()
    assert stream.pool.staying == ("a", "b", "c")


@pytest.mark.parametrize("wanted", [1, 4], ids=["in", "out"])
def test_cancelled_it_leaves_what_was_done_and_asks_for_no_more(
    stream: FakeStream, wanted: int
) -> None:
    stream.fails_to_warm = True
    scaling = scaled(stream, wanted)
    run_until(stream, lambda: stream.scheduler.requests or stream.coordinator.view.draining)
    scaling.cancel()
    run_until(stream, lambda: scaling.done)
    with pytest.raises(ScalingError, match="ended early: cancelled by the user"):
        scaling.wait()
    view = stream.coordinator.view
    assert view.draining == frozenset()
    assert stream.pool.view.pending == 0
    run_until(stream, lambda: stream.coordinator.view.components["totals"].migration is None)
    stream.fails_to_warm = False
    again = scaled(stream, 2)
    assert again.wait(60) == ("a", "b")


def test_ctrl_c_ends_the_waiting_and_not_the_scaling(stream: FakeStream) -> None:
    scaling = scaled(stream, 3)
    run_until(stream, lambda: stream.scheduler.requests == [3])
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  the signal may come at any moment
        interrupt.start()
        scaling.wait(60)
    assert not scaling.done
    stream.come("c")
    run_until(stream, lambda: scaling.done)
    assert scaling.wait() == ("a", "b", "c")


def test_it_ends_with_the_query(stream: FakeStream) -> None:
    scaling = scaled(stream, 4)
    run_until(stream, lambda: stream.scheduler.requests == [4])
    stream.gate.close()
    stream.coordinator.close()
    with pytest.raises(ScalingError, match="query ended before there were 4 executors"):
        scaling.wait(60)


def test_a_migration_of_somebody_else_comes_first(stream: FakeStream) -> None:
    stream.answers = False
    with stream.coordinator.locked() as coordinator:
        target = stream.assignment.moved({0: "b"})
        coordinator.migrate(MigrationRequested(id="by hand", component="totals", target=target))
    scaling = scaled(stream, 1)
    for _ in range(3):
        stream.run()
        time.sleep(0.1)
    assert [event.migration for event in told(stream, events.MigrationStarted)] == ["by hand"]
    stream.answers = True
    run_until(stream, lambda: scaling.done)
    assert len(scaling.wait()) == 1
    ended = told(stream, events.MigrationFinished)[0]
    assert (ended.migration, ended.withdrawn) == ("by hand", 0)


def test_it_says_where_it_stands(stream: FakeStream) -> None:
    scaling = scaled(stream, 3)
    run_until(stream, lambda: "waiting" in scaling.stage)
    assert repr(scaling) == "<Scaling to 3 executors: waiting for 1 executor>"
    with pytest.raises(ScalingError, match=r"not ended after 0.1 s; it is waiting for 1 executor"):
        scaling.wait(0.1)
    assert not scaling.done
    with pytest.raises(GodwitError):
        scaling.wait(0)


def test_a_drain_that_cannot_be_planned_leaves_the_executor_as_it_was(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> Any:
        raise ScalingError("No planner is there.", remedy="Install one.")

    monkeypatch.setattr("godwit.runtime.placement.planner_named", fail)
    with pytest.raises(ScalingError, match="No planner"):
        stream.placement._drain("b")
    assert stream.coordinator.view.draining == frozenset()
    assert stream.owned().keys() == {"a", "b"}

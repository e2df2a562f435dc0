"""Lanes that are started before the rows of an epoch are chosen."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.lane_tasks import PATIENCE_S, TWO, Instruction, Threads, answer, row

from godwit.engine.cluster import AttemptLostError
from godwit.spark.resident import epoch_lanes as module
from godwit.spark.resident.channel import ChannelError
from godwit.spark.resident.epoch_lanes import EpochLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.spark.resident.lane_task import LaneAnswer, Work

THREE = (*TWO, ("local-2", 0))


class Jobs(Threads):
    """Tasks of jobs that follow one another; counts those that have ended."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ended = threading.Semaphore(0)
        self.started = 0

    def run(self, lane: Any, places: Any) -> None:
        self.started += 1
        super().run(lane, places)
        self.ended.release()


def prepared(
    answers: Callable[[int, Work], LaneAnswer] = lambda _, work: answer(work), **options: Any
) -> tuple[EpochLanes, Jobs]:
    """Make lanes whose first epoch has gone as Spark jobs."""
    tasks = Jobs(answers=answers, **options)
    lanes = EpochLanes(cast("Any", lambda: None), lambda _: tasks, given_up=lambda: "")
    lanes.patience_s = PATIENCE_S
    assert not lanes.prepare()  # where lanes are to be is not known yet
    assert epoch(lanes) is None
    return lanes, tasks


def epoch(lanes: EpochLanes, **values: Any) -> Any:
    return lanes.run(cast("Any", Instruction(**values)), {0: [row(1)], 1: [row(1), row(2)]})


def ended(tasks: Jobs) -> bool:
    """Wait for the end of a job."""
    return tasks.ended.acquire(timeout=PATIENCE_S)


@pytest.fixture(autouse=True)
def _nobody_starts_lanes() -> Iterator[None]:
    yield
    assert not module._starting.locked()


def test_every_epoch_has_lanes_of_its_own_which_end_with_it() -> None:
    lanes, tasks = prepared()
    for number in range(1, 4):
        assert lanes.prepare()
        assert sorted((r.place, r.level) for r in epoch(lanes, levels=2)) == [
            (place, level) for place in (0, 1) for level in (1, 2)
        ]
        assert ended(tasks)
        assert (tasks.started, lanes.epochs) == (number, number)
    assert epoch(lanes) is None  # nobody has prepared it


def test_lanes_end_that_wait_too_long_for_their_epoch() -> None:
    lanes, tasks = prepared()
    lanes.idle_s = 0.05
    assert lanes.prepare()
    assert ended(tasks)  # a source may wait for Spark jobs, which need their cores
    assert epoch(lanes) is None
    assert not lanes.prepare()


@pytest.mark.parametrize("end", ["yield_cores", "release", "close"])
def test_lanes_that_are_ready_end_where_no_small_epoch_begins(end: str) -> None:
    lanes, tasks = prepared()
    assert lanes.prepare()
    getattr(lanes, end)()
    assert ended(tasks)
    assert epoch(lanes) is None
    assert lanes.prepare() is (end != "close")
    lanes.close()


def test_an_epoch_at_other_places_goes_as_spark_jobs_and_the_next_has_lanes_there() -> None:
    lanes, tasks = prepared()
    assert lanes.prepare()
    assert epoch(lanes, places=THREE, levels=2) is None
    assert ended(tasks)
    assert lanes.prepare()
    assert epoch(lanes, places=THREE, levels=2) is not None


def test_after_a_refusal_some_epochs_go_as_spark_jobs() -> None:
    refuse = True
    lanes, _ = prepared(
        lambda number, work: answer(work, refusal="no" if refuse and number else "")
    )
    assert lanes.prepare()
    assert epoch(lanes, levels=2) is None
    refuse = False
    for _ in range(10):
        assert not lanes.prepare()
        assert epoch(lanes, levels=2) is None
    assert lanes.prepare()
    assert epoch(lanes, levels=2) is not None


def test_a_lane_that_is_lost_loses_the_attempt() -> None:
    def dies(number: int, work: Work) -> LaneAnswer:
        if number == 1:
            raise ChannelError
        return answer(work)

    lanes, _ = prepared(dies)
    assert lanes.prepare()
    with pytest.raises(AttemptLostError, match="lane 0 of executor local-1"):
        epoch(lanes)
    assert epoch(lanes) is None  # the next attempt


def test_lanes_that_do_not_come_are_tried_again_after_more_and_more_epochs() -> None:
    lanes, tasks = prepared(missing=frozenset({1}))
    lanes.patience_s = 0.01
    tried = []
    for number in range(40):
        failures = lanes._failures
        assert not lanes.prepare()
        if lanes._failures > failures:
            tried.append(number)
        assert epoch(lanes) is None
    assert tried == [0, 10, 30]
    tasks.released.set()


def test_two_queries_do_not_wait_for_lanes_at_the_same_time() -> None:
    lanes, tasks = prepared()
    with module._starting:  # another query does
        assert not lanes.prepare()
        assert epoch(lanes) is None
    assert tasks.started == 0
    assert lanes.prepare()
    lanes.close()

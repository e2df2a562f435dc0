"""Which epochs resident lanes work, and what becomes of them when a lane misbehaves."""

from __future__ import annotations

import pickle
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.lane_tasks import (
    PATIENCE_S,
    TWO,
    Instruction,
    Threads,
    answer,
    row,
    slots,
)

from godwit.engine.cluster import AttemptLostError
from godwit.engine.lane.messages import LaneReport
from godwit.model import events
from godwit.spark.resident import job as job_module
from godwit.spark.resident import lane_task
from godwit.spark.resident.channel import ChannelError
from godwit.spark.resident.job import LaneJob
from godwit.spark.resident.lane_task import LaneAnswer, Work
from godwit.spark.resident.lanes import ResidentLanes, SlotShares

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from godwit.spark.resident.channel import Channel
    from godwit.spark.resident.lanes import QuerySlots


@dataclass(slots=True, kw_only=True)
class AnnouncedLanes:
    """Resident lanes, and what they announce."""

    tasks: list[Threads]
    chosen: bool = False
    query: QuerySlots | None = None
    announced: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    now_s: float = 0.0
    given_up: str = ""
    lanes: ResidentLanes = field(init=False)

    def __post_init__(self) -> None:
        waiting = list(self.tasks)
        self.lanes = ResidentLanes(
            cast("Any", lambda: None),
            lambda _: cast("Any", waiting.pop(0)),
            slots=self.query or slots(now_s=lambda: self.now_s),
            chosen=self.chosen,
            announce=lambda kind, **values: self.announced.append((kind.__name__, values)),
            given_up=lambda: self.given_up,
            now_s=lambda: self.now_s,
        )
        self.lanes.waits_s = PATIENCE_S

    def epoch(self, number: int = 0, **values: Any) -> Any:
        instruction = Instruction(epoch=number, **values)
        return self.lanes.run(cast("Any", instruction), {0: [row(1)], 1: [row(1), row(2)]})

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.announced]

    def failure(self) -> dict[str, Any]:
        """Wait for the first announcement, which a thread of the job makes; return its values."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.announced:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        ((kind, values),) = self.announced
        assert kind == events.ResidentLanesFailed.__name__
        return values


@contextmanager
def story(*tasks: Threads, **options: Any) -> Iterator[AnnouncedLanes]:
    announced = AnnouncedLanes(tasks=list(tasks), **options)
    try:
        yield announced
    finally:
        announced.lanes.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_second_small_epoch_in_a_row_is_worked_and_a_large_one_ends_the_lanes() -> None:
    with story(
        Threads(answers=lambda _, w: answer(w)), Threads(answers=lambda _, w: answer(w))
    ) as s:
        assert s.epoch(0) is None
        assert s.epoch(1, levels=2) is not None
        assert s.lanes.lanes == 2
        s.lanes.yield_cores()
        assert s.lanes.lanes == 0
        assert s.kinds == ["ResidentLanesStarted", "ResidentLanesEnded"]
        assert s.epoch(3) is None
        assert s.epoch(4, levels=2) is not None
        assert s.lanes.epochs == 2


def test_rows_reach_the_lanes_of_the_level_that_they_are_for() -> None:
    def passes_on(number: int, work: Work) -> LaneAnswer:
        blobs = [(1 - work.place, row(2) + bytes([number]))] if work.level == 1 else []
        return answer(work, blobs=blobs)

    with story(Threads(answers=passes_on)) as s:
        s.epoch(0)
        reports = s.epoch(1, levels=2)
        assert sorted(
            (r.place, r.level, [bytes.fromhex(of) for of in r.executor.split()]) for r in reports
        ) == [
            (0, 1, [row(1)]),
            (0, 2, [row(2) + b"\x01"]),
            (1, 1, [row(1)]),
            (1, 2, [row(2), row(2) + b"\x00"]),
        ]


def test_an_epoch_goes_as_spark_jobs_while_its_lanes_start() -> None:
    with story(Threads(answers=lambda _, w: answer(w), missing=frozenset({1}))) as s:
        s.lanes.waits_s = 0.0
        assert s.epoch(0) is s.epoch(1) is s.epoch(2) is None
        s.tasks[0].released.set()


def test_lanes_that_do_not_come_are_told_of_and_asked_for_again_after_a_pause() -> None:
    late = Threads(answers=lambda _, w: answer(w), missing=frozenset({1}))
    with story(late, Threads(answers=lambda _, w: answer(w))) as s:
        s.lanes.patience_s = 0.05
        s.epoch(0)
        assert s.epoch(1) is None
        values = s.failure()
        # On a busy machine the other one was too late as well.
        assert re.match(r"[12] of 2 tasks did not connect within 0.05 s", values["reason"])
        late.released.set()
        assert s.epoch(2) is None  # too early
        s.now_s += values["pause_s"]
        s.lanes.patience_s = PATIENCE_S
        assert s.epoch(3, levels=2) is not None


def test_a_lane_that_spark_has_placed_elsewhere_is_not_taken() -> None:
    with story(Threads(answers=lambda _, w: answer(w), executor_of=lambda _: "local-0")) as s:
        s.epoch(0)
        assert s.epoch(1) is None
        assert "placed lanes of executor local-1 on local-0" in s.failure()["reason"]


def test_an_epoch_that_a_lane_refuses_is_done_again_and_so_are_some_after_it() -> None:
    refusing = Threads(
        answers=lambda n, w: (
            answer(w, report=b"", refusal="no") if n and w.attempt == 1 else answer(w)
        )
    )
    with story(refusing) as s:
        s.epoch(0)
        assert s.epoch(1, levels=2) is not None
        assert s.epoch(2, levels=2) is None
        assert [s.epoch(n, levels=2) for n in range(3, 13)] == [None] * 10
        assert s.epoch(13, levels=2) is not None
        assert s.kinds == ["ResidentLanesStarted"]  # the same lanes


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"attempt": 7}, r"answered for \[\(7, 1, 0\)\]"),
        ({"level": 2}, r"answered for \[\(0, 2, 0\)\]"),
        ({"place": 1}, r"answered for \[\(0, 1, 1\)\]"),
    ],
)
def test_an_answer_to_another_attempt_ends_the_lanes_and_is_never_counted(
    wrong: dict[str, int], why: str
) -> None:
    late = Threads(answers=lambda n, w: answer(w, **wrong) if n == 0 else answer(w))
    with story(late, Threads(answers=lambda _, w: answer(w))) as s:
        s.epoch(0)
        with pytest.raises(AttemptLostError, match=why):
            s.epoch(1)
        assert s.kinds[-1] == "ResidentLanesFailed"
        assert s.lanes.lanes == 0
        s.now_s += 1000
        assert s.epoch(1) is None  # the same epoch, done again
        assert s.epoch(2, levels=2) is not None


def test_a_lane_that_dies_loses_the_attempt_and_all_lanes() -> None:
    def dies(number: int, work: Work) -> LaneAnswer:
        if number == 1:
            raise ChannelError
        return answer(work)

    with story(Threads(answers=dies)) as s:
        s.epoch(0)
        with pytest.raises(AttemptLostError, match="lane 0 of executor local-1"):
            s.epoch(1)
        assert s.epoch(1) is None


def test_nobody_waits_for_a_lane_once_its_executor_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "_LOOK_S", 0.01)
    stuck = threading.Event()

    def hangs(number: int, work: Work) -> LaneAnswer:
        if number == 1:
            assert stuck.wait(PATIENCE_S)
        return answer(work)

    with story(Threads(answers=hangs)) as s:
        s.epoch(0)
        s.given_up = "an executor was lost"
        with pytest.raises(AttemptLostError, match="an executor was lost"):
            s.epoch(1)
        stuck.set()


def test_lanes_at_other_places_are_started_when_places_change() -> None:
    three = (*TWO, ("local-2", 0))
    with story(*(Threads(answers=lambda _, w: answer(w)) for _ in range(2))) as s:
        s.epoch(0)
        assert s.epoch(1, levels=2) is not None
        assert s.epoch(2, levels=2, places=three) is not None
        assert s.lanes.lanes == 3
        assert s.epoch(3, levels=2) is not None  # fewer places need no other lanes
        assert s.kinds == ["ResidentLanesStarted", "ResidentLanesEnded", "ResidentLanesStarted"]


def test_a_task_that_is_tried_again_finds_nobody() -> None:
    tasks = Threads(answers=lambda _, w: answer(w))
    with story(tasks) as s:
        s.epoch(0)
        s.epoch(1, levels=2)
        assert tasks.endpoint is not None
        again = list(lane_task.serve_lanes(tasks.endpoint, 0, TWO[0], cast("Any", lambda: None)))
        assert again == []
        assert s.epoch(2, levels=2) is not None


def test_lanes_that_do_not_end_are_killed() -> None:
    stuck = Threads(answers=lambda _, w: answer(w), missing=frozenset({1}))
    job = LaneJob(
        [[place] for place in TWO],
        cast("Any", lambda: None),
        cast("Any", stuck),
        patience_s=PATIENCE_S,
        on_ready=lambda _: None,
        on_failed=lambda *_: pytest.fail("it was ended"),
        watch=lambda _: None,
    )
    job.end(0.4)
    assert stuck.cancelled
    assert job.end(2 * PATIENCE_S)


class Silent:
    """A channel that gives pieces of work, one after the other."""

    def __init__(self, *work: Work) -> None:
        self.frames = [pickle.dumps([w]) for w in work]
        self.sent: list[LaneAnswer] = []

    def receive(self) -> bytes:
        if not self.frames:
            raise ChannelError
        return self.frames.pop(0)

    def send(self, frame: bytes) -> None:
        self.sent.extend(pickle.loads(frame))


def test_a_lane_sends_on_so_much_and_tells_what_it_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def lane(_flow: object, instruction: str, *_: object) -> Generator[Any, None, Report]:
        yield 0, b"12345678"
        if instruction == "raise":
            raise ZeroDivisionError
        return Report()

    monkeypatch.setattr(lane_task, "run_lane", lane)
    monkeypatch.setattr(lane_task, "remove_earlier", lambda _: None)
    works = [
        Work(
            attempt=n,
            level=1,
            place=0,
            instruction=cast("Any", Told(told)),
            payloads=[],
            bytes_at_most=most,
        )
        for n, (told, most) in enumerate([("go", 8), ("go", 7), ("raise", 8)])
    ]
    channel = Silent(*works)
    with pytest.raises(ChannelError):
        lane_task.serve(cast("Channel", channel), cast("Any", None))
    fine, much, raised = channel.sent
    assert (fine.blobs, fine.report, fine.refusal) == ([(0, b"12345678")], b"report", "")
    assert (much.blobs, much.report) == ((), b"")
    assert "more than 7 bytes" in much.refusal
    assert (raised.blobs, raised.report) == ((), b"")
    assert "ZeroDivisionError" in raised.refusal


@dataclass(frozen=True, slots=True)
class Told:
    told: str

    def for_place(self, place: int) -> str:
        assert place == 0
        return self.told


class Report:
    def dumps(self) -> bytes:
        return b"report"


def test_a_lane_takes_no_work_of_an_attempt_whose_instruction_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_task, "run_lane", lambda *_: pytest.fail("it was worked"))
    work = Work(attempt=1, level=2, place=0, instruction=None, payloads=[], bytes_at_most=1)
    with pytest.raises(ChannelError, match="without its instruction"):
        lane_task.serve(cast("Channel", Silent(work)), cast("Any", None))


def working(**options: Any) -> Threads:
    """Make tasks whose lanes work."""
    return Threads(answers=lambda _, work: answer(work), **options)


def chosen(s: AnnouncedLanes, *, first: int = 0) -> None:
    """Run the small epochs after which the system chooses resident lanes."""
    assert [s.epoch(first + n, levels=2) for n in range(9)] == [None] * 9
    assert s.epoch(first + 9, levels=2) is not None


def test_the_system_chooses_lanes_after_ten_small_epochs_that_follow_one_another() -> None:
    with story(working(), chosen=True) as s:
        assert s.epoch(0) is None
        s.lanes.yield_cores()
        assert s.lanes.reason == "the last epoch had many rows"
        for number in range(1, 40):
            assert s.epoch(number) is None
            s.now_s += 1.2  # ten take more than ten seconds
        assert s.lanes.reason == "fewer than 10 small epochs in a row within 10 s"
        s.lanes.yield_cores()
        chosen(s, first=40)
        assert s.lanes.reason == ""
        assert s.kinds == ["ResidentLanesStarted"]


def test_chosen_lanes_end_when_epochs_pause_and_start_after_ten_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "_WATCH_S", 0.01)
    with story(working(), working(), chosen=True) as s:
        chosen(s)
        s.now_s += 11
        eventually(lambda: len(s.kinds) == 2)
        assert s.announced[1] == ("ResidentLanesEnded", {"reason": "no epoch has begun for 10 s"})
        chosen(s, first=10)


def test_chosen_lanes_end_for_waiting_tasks_and_pause_longer_if_that_comes_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "_WATCH_S", 0.01)
    tasks = [working() for _ in range(3)]
    with story(*tasks, chosen=True) as s:
        chosen(s)
        for count, pause_s in ((2, 60.0), (4, 120.0)):
            tasks[count // 2 - 1].waiting_tasks = 1
            eventually(lambda count=count: len(s.kinds) == count)  # type: ignore[misc]
            assert s.lanes.reason == "tasks of other jobs wait for task slots"
            assert [s.epoch(20 * count + n) for n in range(15)] == [None] * 15
            s.now_s += pause_s - 1
            assert [s.epoch(20 * count + n) for n in range(15)] == [None] * 15
            s.now_s += 1
            assert s.epoch(20 * count + 16, levels=2) is not None
        assert s.kinds[-1] == "ResidentLanesStarted"


@pytest.mark.parametrize(
    ("by_jobs_s", "lane_ms", "asked_for", "ends"),
    [
        (0.2, 150.0, False, True),
        (0.4, 150.0, False, False),  # jobs take longer
        (0.2, 20.0, False, False),  # not because a lane waits for another one
        (0.2, 150.0, True, False),
    ],
)
def test_chosen_lanes_that_wait_for_each_other_end_if_jobs_are_faster(
    by_jobs_s: float, lane_ms: float, *, asked_for: bool, ends: bool
) -> None:
    def answers(_: int, work: Work) -> LaneAnswer:
        s.now_s += 0.075  # for each of two lanes and levels
        report = LaneReport(level=work.level, place=work.place, executor="local")
        report.took_ms["lane"] = lane_ms
        return answer(work, report=report.dumps())

    tasks = Threads(answers=answers)
    query = slots(2, now_s=lambda: 0.0)  # so that a task runs both lanes
    with story(tasks, chosen=not asked_for, query=query) as s:
        number = 0
        while s.epoch(number, levels=2) is None:
            s.lanes.record_job(by_jobs_s)
            number += 1
        for _ in range(4):
            assert s.lanes.lanes == 2
            s.lanes.record_job(by_jobs_s)
            number += 1
            s.epoch(number, levels=2)
        assert (s.lanes.lanes == 0) is ends
        assert ("one after the other" in s.lanes.reason) is ends
        if ends:
            assert s.epoch(number + 1) is None
            assert s.kinds == ["ResidentLanesStarted", "ResidentLanesEnded"]


def test_lanes_that_the_user_asked_for_stay_while_epochs_pause_and_tasks_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "_WATCH_S", 0.001)
    with story(working(waiting_tasks=1)) as s:
        s.epoch(0)
        assert s.epoch(1, levels=2) is not None
        s.now_s += 1000
        time.sleep(0.05)  # many looks
        assert s.epoch(2, levels=2) is not None
        assert s.kinds == ["ResidentLanesStarted"]


def test_a_job_whose_slots_are_asked_for_in_an_epoch_ends_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_module, "_WATCH_S", 0.001)
    asked, looked = threading.Event(), threading.Event()
    tasks = working()

    def answers(_number: int, work: Work) -> LaneAnswer:
        if work.attempt == 1:
            tasks.waiting_tasks = 1
            asked.set()
            assert looked.wait(PATIENCE_S)
        return answer(work)

    tasks.answers = answers
    with story(tasks, chosen=True) as s:
        chosen(s)
        worked: list[Any] = []
        epoch = threading.Thread(target=lambda: worked.append(s.epoch(10, levels=2)))
        epoch.start()
        assert asked.wait(PATIENCE_S)
        eventually(lambda: bool(s.lanes._to_end))
        looked.set()
        epoch.join()
        assert len(worked[0]) == 4
        assert s.epoch(11) is None
        # The thread that looks ends them, and announces it once they are no longer used.
        eventually(lambda: s.kinds == ["ResidentLanesStarted", "ResidentLanesEnded"])


def test_two_queries_of_a_session_both_have_resident_lanes_and_share_the_slots() -> None:
    shares = SlotShares()
    places = tuple((f"local-{n}", 0) for n in range(4))
    with (
        story(working(), working(), query=slots(5, shares)) as first,
        story(working(), query=slots(5, shares)) as second,
    ):
        assert [first.epoch(n, places=places, levels=2) is None for n in range(2)] == [True, False]
        assert [second.epoch(n, places=places, levels=2) for n in range(2)] == [None, None]
        assert second.lanes.reason.startswith("2 queries share 5 task slots")
        assert first.epoch(2, places=places, levels=2) is not None  # by fewer tasks
        assert second.epoch(2, places=places, levels=2) is not None
        reason = "other queries of the session take or free task slots"
        assert first.announced[1] == ("ResidentLanesEnded", {"reason": reason})
        assert len({*first.lanes.pids.values()}) == len({*second.lanes.pids.values()}) == 2


def test_a_task_that_runs_several_lanes_gets_the_rows_of_each() -> None:
    with story(working(), query=slots(2)) as s:
        s.epoch(0)
        reports = s.epoch(1, levels=2)
        assert sorted((r.place, r.level, r.executor) for r in reports) == [
            (0, 1, row(1).hex()),
            (0, 2, ""),
            (1, 1, row(1).hex()),
            (1, 2, row(2).hex()),
        ]
        assert s.lanes.lanes == 2
        assert {*s.lanes.pids.values()} == {0}

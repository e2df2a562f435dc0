"""Stateful stages are found among everything that Spark writes, and nothing else is kept."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.spark_events import (
    QUERY,
    application,
    as_lines,
    micro_batch,
    query_started,
)

from godwit.ops.advise import stage_advice
from godwit.ops.advise.event_log import EventLogError, StageReader, StageRun
from godwit.ops.advise.stage_advice import StageAdvice, advise

if TYPE_CHECKING:
    from collections.abc import Iterable


def read(events: Iterable[dict[str, Any]]) -> tuple[list[StageRun], StageReader]:
    reader = StageReader()
    return list(reader.read(iter(as_lines(events)))), reader


def advised(events: Iterable[dict[str, Any]]) -> list[StageAdvice]:
    return advise(read(events)[0])


def test_a_stage_is_told_by_its_query_micro_batch_operators_slots_and_tasks() -> None:
    runs, reader = read(
        [*application(cores=(4, 5), task_cpus=2), query_started(), *micro_batch(7, [1000, 3000])]
    )
    (run,) = runs
    assert (run.query, run.batch, run.operators, run.slots) == (QUERY, 7, ("StateStoreSave",), 4)
    task = run.tasks[1]
    assert task.took_s == 3.0
    assert (task.cpu_s, task.shuffle_rows, task.shuffle_bytes) == (1.5, 3000, 3010)
    assert (task.state_rows, task.state_bytes) == (2, 100)
    assert (reader.spark_version, reader.application) == ("4.3.0", "skewed")
    figures = reader.queries[QUERY]
    assert (figures.name, figures.batches, figures.trigger_s) == ("totals", 1, 8.0)
    assert figures.operators["0 stateStoreSave"]["rows"] == 10


def test_attempts_that_failed_and_tasks_that_ran_twice_are_not_counted() -> None:
    once = micro_batch(0, [100, 200])
    failed = json.loads(json.dumps(once[1]))
    failed["Task End Reason"]["Reason"] = "ExceptionFailure"
    failed["Task Info"]["Finish Time"] += 10**6
    late = json.loads(json.dumps(once[2]))
    late["Task Info"]["Finish Time"] += 10**6
    events = [*application(), once[0], failed, *once[1:3], late, *once[3:]]
    (run,) = read(events)[0]
    assert sorted(t.took_s for t in run.tasks.values()) == [0.1, 0.2]
    assert read([*application(), *micro_batch(0, [5], failure="lost")])[0] == []


def test_stages_without_state_and_batch_queries_are_left_out() -> None:
    plain = micro_batch(0, [10])
    plain[0]["Stage Info"]["RDD Info"] = [{"Name": "ShuffledRowRDD"}]
    batch = micro_batch(1, [10])
    del batch[0]["Properties"]["sql.streaming.queryId"]
    assert read([*application(), *plain, *batch])[0] == []


def test_two_stages_of_one_micro_batch_with_the_same_operators_are_told_apart() -> None:
    events = application()
    for batch in range(3):
        for place in (0, 1):
            events += micro_batch(batch, [100 + place], stage=10 * batch + place, progress=False)
    events += micro_batch(3, [100], stage=30) + micro_batch(3, [100], stage=30, attempt=1)
    stages = advised(events)
    assert {(s.place, s.batches) for s in stages} == {(0, 5), (1, 3)}
    assert {s.label for s in stages} == {"StateStoreSave", "StateStoreSave (2)"}


def test_executors_that_come_and_go_change_the_slots() -> None:
    gone = {"Event": "SparkListenerExecutorRemoved", "Executor ID": "1"}
    events = [*application(cores=(2, 3)), *micro_batch(0, [10]), gone, *micro_batch(1, [10])]
    assert [run.slots for run in read(events)[0]] == [5, 2]
    (stage,) = advised(events)
    assert stage.slots == (2, 5)


def test_without_executors_in_sight_the_slots_are_those_seen_at_once() -> None:
    (stage,) = advised(micro_batch(0, [100] * 9, slots=3))
    assert stage.slots == (3, 3)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([100, 100, 100, 100], "Well balanced"),
        (
            [1000, 10, 10, 10],
            "The longest task determines the time, so moving whole partitions saves 0%",
        ),
        ([100, 100, 200], "Placing the same partitions better would have saved 33% of its time"),
    ],
)
def test_the_verdict_says_what_would_have_helped(tasks: list[int], said: str) -> None:
    events = application()
    for batch in range(5):
        events += micro_batch(batch, tasks)
    (stage,) = advised(events)
    assert stage.verdict().startswith(said)


def test_sums_are_of_all_micro_batches_however_many_are_drawn() -> None:
    events = chain(application(), *(micro_batch(b, [100, 300]) for b in range(2500)))
    (stage,) = advised(events)
    assert stage.batches == sum(b.count for b in stage.drawn) == 2500
    assert stage.as_run_s == pytest.approx(750)
    assert sum(b.as_run_s for b in stage.drawn) == pytest.approx(750)
    assert stage.mean_s == pytest.approx(500)
    assert len(stage.drawn) <= 1024
    assert [b.first for b in stage.drawn] == sorted(b.first for b in stage.drawn)
    assert stage.drawn[-1].last == 2499
    assert stage.hottest[0] == 1
    assert stage.hottest[1] == pytest.approx(0.75)


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_advice, "_DRAWN", 64)

    def peak(batches: int) -> int:
        lines = chain(
            as_lines(application()),
            (line for b in range(batches) for line in as_lines(micro_batch(b, [10] * 2))),
        )
        tracemalloc.start()
        advise(StageReader().read(lines))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(900) < 2 * peak(150)


def test_what_is_no_event_is_refused_at_the_start_and_counted_later() -> None:
    for first in (b"PAR1\x00", b"[1, 2]", b'{"epoch": 3}', b"{" * 100_000):
        with pytest.raises(EventLogError, match="This is not a Spark event log"):
            list(StageReader().read(iter([first])))
    reader = StageReader()
    lines = [*as_lines(application()), b"nonsense", *as_lines(micro_batch(0, [10]))]
    assert len(list(reader.read(iter(lines)))) == 1
    assert reader.bad_lines == 1


def test_numbers_that_spark_does_not_have_are_no_tasks() -> None:
    ended = json.loads(as_lines(micro_batch(0, [10]))[1])
    ended["Task Info"]["Finish Time"] = 10**400
    lines = [*as_lines(application()), *as_lines(micro_batch(0, [10, 20]))]
    lines.insert(len(application()) + 1, json.dumps(ended).encode())
    reader = StageReader()
    advise(reader.read(iter(lines)))
    assert reader.bad_lines == 1


def test_json_of_another_writer_is_read_too() -> None:
    lines = [json.dumps(e, indent=None).encode() for e in (*application(), *micro_batch(0, [10]))]
    assert lines[0].startswith(b'{"Event": ')
    assert len(list(StageReader().read(iter(lines)))) == 1


def test_no_event_however_made_up_ends_the_reading() -> None:
    rnd = random.Random(4)
    strange: list[Any] = [None, -1, 1e300, 10**30, "", "x", [], {}, [[1]], {"a": 1}, True]

    def spoil(value: Any) -> Any:
        if rnd.random() < 0.1:
            return rnd.choice(strange)
        if isinstance(value, dict):
            return {k: v if k == "Event" else spoil(v) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v) for v in value]
        return value

    good = [*application(), query_started(), *micro_batch(0, [10, 20])]
    for _ in range(300):
        for stage in advise(StageReader().read(iter(as_lines([good[0], *map(spoil, good)])))):
            assert stage.verdict()

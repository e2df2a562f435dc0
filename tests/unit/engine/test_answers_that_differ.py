"""A lane that is run again after its rows were sent on, and was given other answers."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import godwit as gw
from godwit import local as local_run
from godwit.engine.lane.lane import run_lane
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    import pytest

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction


def test_lanes_behind_never_keep_rows_of_two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lane 0 of level 1 runs twice in the first attempt; some of its receivers have either's."""
    answers = count(1)
    attempts = count(1)

    async def ask(key: Any, rows: Any, state: Any) -> Any:
        answer = next(answers)
        return [(f"{key[0]}{n}", answer) for n in range(8)]

    def lane(
        flow: LaneFlow, instruction: EpochInstruction, level: int, place: int, due: Iterable[bytes]
    ) -> Generator[Any, None, Any]:
        payloads = list(due)
        run = run_lane(flow, instruction, level, place, payloads)
        if (level, place) == (1, 0) and next(attempts) == 1:
            first = list(run_lane(flow, instruction, level, place, payloads))
            yield from (blob for blob in first if blob[0] == 0)
            while True:
                try:
                    blob = next(run)
                except StopIteration as end:
                    return end.value
                if blob[0] != 0:
                    yield blob
        return (yield from run)

    monkeypatch.setattr(local_run, "run_lane", lane)
    flow = gw.Flow("answers", num_key_groups=8)
    rows = flow.source("rows", gw.testing.stream("k string"))
    asked = rows.key_by("k").process(ask, state=dict, output="part string, answer long", name="ask")
    newest = asked.key_by("part").compute(answer=gw.max("answer"), n=gw.count(), name="newest")
    flow.sink("out", newest, gw.sinks.noop())
    run = gw.testing.cluster(flow, executors=2)
    run.epoch({"rows": [{"k": key} for key in "abcdefgh"]})
    answered: dict[str, set[int]] = {}
    for row in run.rows("out").to_pylist():
        assert row["n"] == 1
        answered.setdefault(row["part"][0], set()).add(row["answer"])
    assert sorted(answered) == list("abcdefgh")
    assert all(len(of_key) == 1 for of_key in answered.values())
    assert sum(isinstance(event, events.EpochAborted) for event in run.events) == 1

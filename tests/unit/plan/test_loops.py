"""Loops of feedback: what is refused, how they are explained, when they pause, and event time."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from tests.support.loop_flows import (
    ROUNDS,
    closure_flow,
    countdown_flow,
    counted_down,
    counts_in,
)

import godwit as gw
from godwit.model.errors import (
    CheckpointMismatchError,
    EpochFailedError,
    InvalidFlowError,
    InvalidInputError,
    SourceError,
)
from godwit.model.events import FeedbackPaused
from godwit.plan.explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = gw.testing.stream("key string, left long")


def echo(key: Any, rows: Any, _state: Any) -> Iterator[tuple[str, int]]:
    for row in rows:
        yield key[0], row.left


def worked(stream: Any, name: str = "worked", output: str = ROUNDS) -> Any:
    return stream.key_by("key").process(echo, name=name, state=dict, output=output)


def half(event_time: str | None = None) -> tuple[gw.Flow, Any, Any]:
    flow = gw.Flow("f")
    return flow, flow.source("rows", COLUMNS), flow.feedback("again", ROUNDS, event_time=event_time)


def refused(flow: gw.Flow) -> str:
    with pytest.raises(InvalidFlowError) as error:
        flow.compiled()
    return str(error.value)


def test_a_loop_without_an_end_is_refused() -> None:
    flow, rows, loop = half()
    flow.sink("out", worked(rows.union(loop)), gw.sinks.noop())
    assert "Nothing is fed back to the loop 'again'" in refused(flow)


def test_an_edge_that_leads_downstream_is_refused() -> None:
    flow, rows, loop = half()
    flow.sink("out", worked(loop, "below"), gw.sinks.noop())
    worked(rows).feed_back_to(loop)
    assert "is not computed from the loop's rows" in refused(flow)


def test_rows_of_other_columns_are_refused() -> None:
    flow, rows, loop = half()
    stream = worked(rows.union(loop), output="key string, left double")
    flow.sink("out", stream, gw.sinks.noop())
    stream.feed_back_to(loop)
    assert "'left' is int64 in source 'again', and double in operator 'worked'" in refused(flow)


def test_columns_may_come_in_another_order() -> None:
    flow, rows, loop = half()
    stream = worked(rows.union(loop), output="left long, key string")
    flow.sink("out", stream, gw.sinks.noop())
    stream.feed_back_to(loop)  # in another order is as good
    assert flow.compiled().feedbacks[0].loop == "again"


def test_two_streams_for_one_loop_are_refused() -> None:
    _, rows, loop = half()
    stream = worked(rows.union(loop))
    stream.feed_back_to(loop)
    with pytest.raises(InvalidFlowError, match="Two streams are fed back"):
        worked(stream, "more").feed_back_to(loop)


def test_what_is_no_loop_is_refused() -> None:
    flow, rows, loop = half()
    stream = worked(rows.union(loop))
    with pytest.raises(InvalidFlowError, match="source 'rows', which is not a loop"):
        stream.feed_back_to(rows)
    with pytest.raises(InvalidFlowError, match="of type str, which is not a loop"):
        stream.feed_back_to("again")
    with pytest.raises(InvalidFlowError, match="no keyed operator has worked"):
        rows.feed_back_to(loop)
    other = gw.Flow("other").feedback("again", ROUNDS)
    with pytest.raises(InvalidFlowError, match="another flow"):
        stream.feed_back_to(other)
    with pytest.raises(InvalidFlowError, match="max_rounds is 0"):
        flow.feedback("more", ROUNDS, max_rounds=0)


TIMED = "key string, left long, at timestamp"


def timed_half(**options: Any) -> tuple[gw.Flow, Any, Any]:
    flow = gw.Flow("f")
    rows = flow.source("rows", gw.testing.stream(TIMED), event_time="at", slack="1 minute")
    return flow, rows, flow.feedback("again", TIMED, event_time="at", **options)


def test_what_a_window_emits_cannot_go_back_into_it_since_it_is_closed() -> None:
    flow, rows, loop = timed_half()
    windowed = rows.union(loop).key_by("key").window(gw.tumbling("1 hour"))
    counts = windowed.compute(left=gw.count())
    back = counts.map(
        lambda t: t.rename_columns(["key", "start", "at", "left"]).select(["key", "left", "at"])
    )
    flow.sink("out", counts, gw.sinks.noop())
    back.feed_back_to(loop)
    assert "when the windows that they belong to are closed" in refused(flow)


def test_windows_behind_a_loop_without_event_time_are_refused() -> None:
    flow = gw.Flow("f")
    rows = flow.source("rows", gw.testing.stream(TIMED), event_time="at")
    loop = flow.feedback("again", TIMED)
    stream = rows.union(loop).key_by("key")
    counts = stream.window(gw.tumbling("1 hour")).compute(left=gw.count())
    flow.sink("out", counts, gw.sinks.noop())
    stream.process(echo, name="worked", state=dict, output=TIMED).feed_back_to(loop)
    assert "flow.feedback('again', schema, event_time=\"ts\")" in refused(flow)


def test_a_loop_with_event_time_needs_sources_that_have_it_too() -> None:
    flow = gw.Flow("f")
    rows = flow.source("rows", gw.testing.stream(TIMED))
    loop = flow.feedback("again", TIMED, event_time="at")
    stream = rows.union(loop).key_by("key").process(echo, state=dict, output=TIMED)
    stream.feed_back_to(loop)
    hours = loop.key_by("key").window(gw.tumbling("1 hour")).compute(left=gw.count())
    flow.sink("out", hours, gw.sinks.noop())
    assert "rows, whose rows go round in it, has none" in refused(flow).replace("'", "")


def test_explain_shows_both_ends_of_the_edge() -> None:
    text = explain(countdown_flow(COLUMNS, gw.sinks.noop(), max_rounds=7).compiled())
    assert "1 source, 1 loop, 2 keyed operators" in text
    assert "loop 'again', at most 7 rounds without other rows" in text
    assert "loop 'again' in the next epoch" in text


def test_rows_fed_back_arrive_in_the_next_epoch_with_other_rows() -> None:
    flow = closure_flow(gw.testing.stream("node long, origin long, target long"), gw.sinks.noop())
    with gw.testing.cluster(flow) as run:
        first = run.epoch({"edges": [{"node": 1, "origin": None, "target": 2}]})
        second = run.epoch({"edges": [{"node": 2, "origin": None, "target": 3}]})
        pairs = [
            {(row["origin"], row["node"]) for row in rows["pairs"].to_pylist()}
            for rows in (first, second)
        ]
        assert pairs == [{(1, 2)}, {(1, 3), (2, 3)}]
        assert [outcome.rows_in for outcome in run.epochs] == [1, 2]


def test_a_loop_that_does_not_dry_pauses_and_goes_on_with_other_rows_and_after_a_restart() -> None:
    def built() -> gw.Flow:
        return countdown_flow(COLUMNS, gw.sinks.noop(), max_rounds=3)

    with gw.testing.cluster(built()) as run:
        run.epoch({"rows": [{"key": "a", "left": 20}]})
        run.go_round()
        paused = [event for event in run.events if isinstance(event, FeedbackPaused)]
        assert [(e.loop, e.rounds, e.rows) for e in paused] == [("again", 3, 1)]
        assert "pauses after 3 rounds without other rows; 1 row in it" in paused[0].describe()
        assert run.go_round() == {}
        run.migrate("1", component="down")
        run.epoch({"rows": [{"key": "b", "left": 0}]})  # takes a round along
        run.go_round()
        run.restart(built())
        run.go_round()
        assert sum(rows for rows, _ in counts_in(run).values()) == 1 + 3 + 2 + 3 + 3
    played = gw.testing.run(
        countdown_flow(COLUMNS, gw.sinks.noop()), {"rows": [{"key": "a", "left": 20}]}
    )
    assert counts_in(played) == counted_down([("a", 20)])


def test_an_epoch_that_is_due_while_a_loop_pauses_reads_what_waits() -> None:
    flow = countdown_flow(COLUMNS, gw.sinks.noop(), max_rounds=1)
    with gw.testing.cluster(flow, executors=2) as run:
        run.epoch({"rows": [{"key": "a", "left": 9}]})
        run.go_round()
        run.migrate("2", component="down")
        run.migrate("1", component="totals")
        run.add("3")
        run.kill("2")
        for _ in range(9):  # each takes a round along
            run.epoch({"rows": [{"key": "b", "left": 0}]})
        assert counts_in(run) == counted_down([("a", 9), *[("b", 0)] * 9])


def test_no_epoch_leaves_out_what_waits() -> None:
    with gw.testing.cluster(countdown_flow(COLUMNS, gw.sinks.noop())) as run:
        run.epoch({"rows": [{"key": "a", "left": 2}]})
        with pytest.raises(EpochFailedError, match="does not read the rows that epoch 0 fed back"):
            run._driver.loop.run(None)  # as nobody does


def test_a_loop_with_waiting_rows_cannot_be_taken_out(tmp_path: Path) -> None:
    with gw.testing.cluster(
        countdown_flow(COLUMNS, gw.sinks.noop()), checkpoint=tmp_path / "ck"
    ) as run:
        run.epoch({"rows": [{"key": "a", "left": 2}]})
        flow = gw.Flow("countdown", num_key_groups=8)
        left = worked(flow.source("rows", COLUMNS), "down")
        flow.sink("totals", left.key_by("key").compute(n=gw.count()), gw.sinks.noop())
        with pytest.raises(CheckpointMismatchError, match="1 row of the loop 'again' waits"):
            run.restart(flow)


@pytest.mark.parametrize("changed", ["key string, right long", "key string"])
def test_columns_of_waiting_rows_cannot_change(changed: str, tmp_path: Path) -> None:
    def built(columns: str) -> gw.Flow:
        flow = gw.Flow("f", num_key_groups=4)
        loop = flow.feedback("again", columns)
        rows = flow.source("rows", gw.testing.stream(columns))
        stream = rows.union(loop).key_by("key")
        echoed = stream.process(_same, name="same", state=dict, output=columns)
        echoed.feed_back_to(loop)
        flow.sink("out", echoed, gw.sinks.noop())
        return flow

    with gw.testing.cluster(built("key string, left long"), checkpoint=tmp_path / "ck") as run:
        run.epoch({"rows": [{"key": "a", "left": 2}]})
        run.restart(built(changed))
        with pytest.raises(SourceError, match=r"not have its present columns 'key'.* earlier"):
            run.go_round(1)


def _same(key: Any, rows: Any, _state: Any) -> Iterator[Any]:
    yield from ((key[0], 1) for _ in rows)


def test_rows_cannot_be_given_for_a_loop() -> None:
    flow = countdown_flow(COLUMNS, gw.sinks.noop())
    with pytest.raises(InvalidInputError, match="'again', which is a loop"):
        gw.testing.run(flow, {"again": [{"key": "a", "left": 1}]})


def hop(key: Any, rows: Any, _state: Any) -> Iterator[Any]:
    for row in rows:
        yield key[0], row.left - 1, row.at


def hourly(*, holds: bool) -> gw.Flow:
    """Count rows by hour, each in as many epochs as it goes round."""
    flow, rows, loop = timed_half(holds_watermark=holds)
    hops = (
        rows.union(loop)
        .key_by("key")
        .process(hop, name="hop", state=dict, output=gw.types.Output(TIMED, event_time="at"))
    )
    hops.map(lambda table: table.filter(_positive(table))).feed_back_to(loop)
    windowed = hops.key_by("key").window(gw.tumbling("1 hour"), name="hours")
    flow.sink("hours", windowed.compute(n=gw.count()), gw.sinks.noop())
    return flow


def _positive(table: Any) -> Any:
    return pc.greater(table["left"], 0)


@pytest.mark.parametrize("holds", [True, False])
def test_rows_that_wait_hold_the_watermark_if_they_are_to(*, holds: bool) -> None:
    start = dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)
    with gw.testing.cluster(hourly(holds=holds), now="2024-05-01 12:00") as run:
        for hour in range(4):  # each moves the watermark past the windows of the one before
            at = start + dt.timedelta(hours=hour)
            run.epoch({"rows": [{"key": "a", "left": 8, "at": at}]})
        run.restart(hourly(holds=holds))
        run.go_round()
        run.end_input()
        counts = {row["window_start"]: row["n"] for row in run.rows("hours").to_pylist()}
        late = sum(event.late for event in run.late)
        if holds:
            assert late == 0
            hours = [start + dt.timedelta(hours=hour) for hour in range(4)]
            assert {at.replace(tzinfo=dt.UTC): n for at, n in counts.items()} == dict.fromkeys(
                hours, 8
            )
        else:
            assert late > 0
            assert sum(counts.values()) + late == 32

"""Streams that meet in one operator: one state, and the watermark of the one furthest behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.meeting_flows import TIME, Feed, MeetingRun, S

from godwit.library import aggregates as gw
from godwit.operators.window_specs import tumbling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from godwit.api.streams import Stream

COLUMNS = {"k": pa.string(), "ts": TIME, "v": pa.int64()}
TWO = {"a": Feed(COLUMNS), "b": Feed(COLUMNS, {"event_time": "ts", "idle": "10 seconds"})}


def hourly(streams: Mapping[str, Stream]) -> Stream:
    united = streams["a"].union(streams["b"])
    return united.key_by("k").window(tumbling("10 seconds")).compute(n=gw.count(), v=gw.sum("v"))


def test_the_source_furthest_behind_holds_windows_open(tmp_path: Path) -> None:
    run = MeetingRun(hourly, tmp_path, TWO)
    assert run.epoch(a=[("x", 1 * S, 1), ("x", 25 * S, 2)], b=[("x", 3 * S, 10)]) == []
    assert run.epoch() == []  # b is at 3 s
    assert run.epoch(b=[("x", 9 * S, 10), ("x", 11 * S, 10)]) == []
    assert run.epoch() == [("x", 0, 10 * S, 3, 21)]
    assert run.epoch(b=[("x", 9 * S, 1)]) == []
    assert run.late == 1


def test_a_source_that_never_had_rows_holds_windows_open_until_its_time_out(
    tmp_path: Path,
) -> None:
    run = MeetingRun(hourly, tmp_path, TWO)
    run.epoch(a=[("x", 1 * S, 1), ("x", 25 * S, 2)])
    assert run.epoch() == []
    run.run.clock_us = 10 * S
    assert run.times.is_due(
        clock_us=10 * S, silence_us=10 * S, components=run.run.component_views()
    )
    assert run.epoch() == [("x", 0, 10 * S, 1, 1)]


def test_a_source_that_comes_back_does_not_take_back_what_was_closed(tmp_path: Path) -> None:
    run = MeetingRun(hourly, tmp_path, TWO)
    run.epoch(a=[("x", 1 * S, 1), ("x", 25 * S, 2)], b=[("x", 3 * S, 10)])
    run.run.clock_us = 20 * S
    assert run.epoch() == [("x", 0, 10 * S, 2, 11)]
    assert run.epoch(b=[("x", 4 * S, 7), ("x", 22 * S, 7)]) == []
    assert run.late == 1
    # a alone is past the end of the next window, and b is heard of again, at 22 s.
    run.epoch(a=[("x", 60 * S, 3)], b=[("x", 31 * S, 7)])
    assert run.epoch() == [("x", 20 * S, 30 * S, 2, 9)]


def test_the_end_of_all_input_closes_the_windows_of_both(tmp_path: Path) -> None:
    run = MeetingRun(hourly, tmp_path, TWO)
    run.epoch(a=[("x", 1 * S, 1)], b=[("y", 31 * S, 10)])
    run.times.end_input()
    assert run.epoch() == [("x", 0, 10 * S, 1, 1), ("y", 30 * S, 40 * S, 1, 10)]


def test_watermarks_of_both_sources_come_back_after_a_restart(tmp_path: Path) -> None:
    run = MeetingRun(hourly, tmp_path, TWO)
    run.epoch(a=[("x", 1 * S, 1), ("x", 25 * S, 2)], b=[("x", 13 * S, 10)])
    assert run.record.watermarks == {"a": 25 * S, "b": 13 * S}
    run.restart()
    assert run.epoch() == [("x", 0, 10 * S, 1, 1)]


def test_slack_and_the_bound_ahead_are_those_of_each_source(tmp_path: Path) -> None:
    feeds = {
        "a": Feed(COLUMNS, {"event_time": "ts", "slack": "5 seconds", "max_ahead": "1 hour"}),
        "b": Feed(COLUMNS, {"event_time": "ts", "max_ahead": "1 minute"}),
    }
    run = MeetingRun(hourly, tmp_path, feeds)
    run.epoch(a=[("x", 14 * S, 1), ("x", 61 * S, 9)], b=[("x", 20 * S, 10), ("x", 62 * S, 9)])
    assert run.record.watermarks == {"a": 56 * S, "b": 20 * S}
    found = [o.arrivals for r in run.reports for o in r.operators]
    assert sum(f.ahead for f in found) == 1
    run.times.end_input()
    assert run.epoch() == [
        ("x", 10 * S, 20 * S, 1, 1),
        ("x", 20 * S, 30 * S, 1, 10),
        ("x", 60 * S, 70 * S, 1, 9),
    ]


@pytest.mark.parametrize("first", ["alone", "united"])
def test_what_one_operator_leaves_out_for_being_ahead_moves_the_watermark_of_none(
    tmp_path: Path, first: str
) -> None:
    feeds = {
        "a": Feed(COLUMNS, {"event_time": "ts", "max_ahead": "1 hour"}),
        "b": Feed(COLUMNS, {"event_time": "ts", "max_ahead": "1 minute"}),
    }

    def union_of_counts(streams: Mapping[str, Stream]) -> Stream:
        both = {
            "alone": streams["a"],
            "united": streams["a"].union(streams["b"]),
        }
        names = sorted(both, reverse=first != "alone")
        counted = [
            both[name].key_by("k").window(tumbling("10 seconds"), name=name).compute(n=gw.count())
            for name in names
        ]
        return counted[0].union(counted[1]).key_by("k").compute(n=gw.sum("n"), name="all")

    run = MeetingRun(union_of_counts, tmp_path, feeds)
    run.epoch(a=[("x", 1 * S, 0), ("x", 600 * S, 0)], b=[("x", 1 * S, 0), ("x", 600 * S, 0)])
    # Of "a" the row counts everywhere, of "b" nowhere.
    assert run.record.watermarks == {"a": 600 * S, "b": 1 * S}
    done = [o for r in run.reports for o in r.operators]
    ahead = {
        name: sum(o.arrivals.ahead for o in done if o.operator == name)
        for name in ("alone", "united")
    }
    assert ahead == {"alone": 0, "united": 1}
    assert run.epoch(b=[("x", 2 * S, 0), ("x", 15 * S, 0)]) == [("x", 1)]
    assert run.epoch() == [("x", 4)]


def in_order(key: tuple[Any, ...], rows: Any, seen: list[int]) -> list[tuple[Any, ...]]:
    seen.extend(rows.column("v"))
    return [(key[0], str(seen))]


@pytest.mark.parametrize("executors", [{"a": 1}, {"a": 2, "b": 1}])
def test_rows_of_a_key_keep_their_order_within_each_source(
    tmp_path: Path, executors: dict[str, int]
) -> None:
    feeds = {name: replace(feed, options={}) for name, feed in TWO.items()}

    def union_in_order(streams: Mapping[str, Stream]) -> Stream:
        united = streams["a"].union(streams["b"], streams["a"])
        return united.key_by("k").process(in_order, state=list, output="k string, seen string")

    run = MeetingRun(union_in_order, tmp_path, feeds, executors=executors)
    found = []
    for epoch in range(3):
        numbers = [epoch * 8 + i for i in range(8)]
        found = run.epoch(a=[("x", 0, n) for n in numbers], b=[("x", 0, 100 + n) for n in numbers])
    ((_, text),) = found
    seen: list[int] = [int(n) for n in text.strip("[]").split(",")]
    assert len(seen) == 3 * 24
    # Source partitions hold every other row, so order is looked at within a partition.
    for first in (0, 1, 100, 101):
        of_partition = [n for n in seen if n >= 100 or first < 100]
        of_partition = [n for n in of_partition if n % 2 == first % 2 and n // 100 == first // 100]
        assert list(dict.fromkeys(of_partition)) == sorted(set(of_partition))
    report = [o for r in run.reports for o in r.operators]
    assert {n: sum(o.rows_in.get(n, 0) for o in report) for n in range(3)} == {0: 8, 1: 8, 2: 8}


def test_windows_and_rows_of_another_source_meet_on_the_second_level(tmp_path: Path) -> None:
    columns = {"k": pa.string(), "window_end": TIME, "n": pa.int64()}
    feeds = {"a": Feed(COLUMNS), "b": Feed(columns, {"event_time": "window_end"})}

    def windows_over_union(streams: Mapping[str, Stream]) -> Stream:
        counted = streams["a"].key_by("k").window(tumbling("10 seconds")).compute(n=gw.count())
        known = counted.map(lambda t: t.select(["k", "window_end", "n"]))
        united = known.union(streams["b"]).key_by("k")
        return united.window(tumbling("20 seconds"), time="window_end").compute(n=gw.sum("n"))

    run = MeetingRun(windows_over_union, tmp_path, feeds, executors={"a": 2, "b": 1})
    run.epoch(a=[("x", 1 * S, 0), ("x", 2 * S, 0), ("x", 35 * S, 0)], b=[("x", 5 * S, 100)])
    assert run.epoch(b=[("x", 45 * S, 200)]) == []
    # What a's window counts comes to the second operator in the epoch in which both close.
    assert run.epoch(a=[("x", 70 * S, 0)]) == [("x", 0, 20 * S, 102)]

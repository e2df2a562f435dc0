"""Splits that are read again, while some lanes have rows of the first time."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.number_source import Numbers

import godwit as gw
from godwit import local as local_run
from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.lane_flow import columns_read, source_feeds
from godwit.engine.lane.source_side import MappedRows, read_split
from godwit.engine.lane.wire import split_by_level
from godwit.local import Boxes, add_splits, run_lanes
from godwit.model.errors import SourceError
from godwit.plan.maps import bind_map
from godwit.sources.source import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport


def increased(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(1, rows.schema.field(1), pc.add(rows.column(1), 1))


def two_levels(source: Numbers) -> gw.Flow:
    flow = gw.Flow("levels", num_key_groups=8)
    numbers = flow.source("numbers", source)
    totals = numbers.key_by("key").compute(name="first", total=gw.sum("number"))
    flow.sink("out", totals.key_by("total").compute(name="next", n=gw.count()), gw.sinks.noop())
    return flow


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    second: Callable[[pa.RecordBatch], Any],
    run: Callable[[LaneFlow, EpochInstruction, Boxes, Boxes], list[LaneReport]],
) -> None:
    """Run an epoch whose splits are read twice, the second time as `second` says."""
    source = Numbers(20)
    again: Boxes = []

    def twice(boxes: Boxes, *args: Any, **options: Any) -> None:
        add_splits(boxes, *args, **options)
        again[:] = [[] for _ in boxes]
        source.at_read = second
        add_splits(again, *args, **options)

    def run_both(flow: LaneFlow, instruction: EpochInstruction, boxes: Boxes) -> list[LaneReport]:
        return run(flow, instruction, boxes, again)

    monkeypatch.setattr(local_run, "add_splits", twice)
    monkeypatch.setattr(local_run, "run_lanes", run_both)
    with gw.testing.cluster(two_levels(source), executors=2) as played:
        played.epoch()


def other_lane_read_again(
    flow: LaneFlow, instruction: EpochInstruction, first: Boxes, second: Boxes
) -> list[LaneReport]:
    return run_lanes(flow, instruction, [first[0], second[1]])


def lanes_ran_again(
    flow: LaneFlow, instruction: EpochInstruction, first: Boxes, second: Boxes
) -> list[LaneReport]:
    """Run the lanes of the first level on either read; those of the next have rows of both."""
    sent: list[Boxes] = []
    reports: list[LaneReport] = []
    for boxes in (first, second):
        reports.clear()
        sent.append([[] for _ in instruction.places])
        for place, box in enumerate(boxes):
            due, later = split_by_level(1, box)
            sent[-1][place] += later
            lane = run_lane(flow, instruction, 1, place, due)
            while True:
                try:
                    to, payload = next(lane)
                except StopIteration as end:
                    reports.append(end.value)
                    break
                sent[-1][to].append(payload)
    for place, box in enumerate([sent[0][0], sent[1][1]]):
        with pytest.raises(StopIteration) as ended:
            next(run_lane(flow, instruction, 2, place, box))
        reports.append(ended.value.value)
    return reports


@pytest.mark.parametrize("run", [other_lane_read_again, lanes_ran_again])
def test_other_rows_of_the_same_split_are_refused(
    monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    with pytest.raises(
        SourceError, match="source 'numbers' returned different rows when it was read"
    ):
        run_with(monkeypatch, increased, run)


@pytest.mark.parametrize("run", [other_lane_read_again, lanes_ran_again])
def test_the_same_rows_are_taken_however_they_are_read(
    monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    run_with(monkeypatch, lambda rows: rows.take(pa.array(range(rows.num_rows))), run)


def test_the_split_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(rows: pa.RecordBatch) -> pa.RecordBatch:
        return increased(rows) if rows.column(1)[0].as_py() == 15 else rows

    with pytest.raises(SourceError, match=r"^The split 10\.\.20 of source 'numbers'"):
        run_with(monkeypatch, one, other_lane_read_again)


def test_the_source_side_can_be_sent_to_executors() -> None:
    source = Numbers(5)
    feeds = source_feeds(two_levels(source).compiled())
    assert pickle.loads(pickle.dumps(feeds)) == feeds
    assert columns_read(source, feeds).names == ["key", "number"]


@pytest.mark.parametrize(
    ("rows", "exact", "refused"),
    [(5, True, False), (6, True, True), (6, False, False), (4, True, True), (4, False, True)],
)
def test_a_split_may_have_fewer_rows_than_it_says_only_if_it_says_so(
    rows: int, exact: bool, refused: bool
) -> None:
    split = Split(rows=rows, size_bytes=None, what="0..5", payload=(0, 5), exact=exact)
    reading = read_split("numbers", Numbers(5), split, pa.schema([("number", pa.int64())]))
    if refused:
        with pytest.raises(SourceError, match=f"returned 5 rows of 0..5, which has {rows}"):
            list(reading)
    else:
        assert pa.Table.from_batches(reading).num_rows == 5


@dataclass(frozen=True)
class _Renamed:
    names: dict[str, str]

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.rename_columns(self.names)


def test_a_function_that_has_no_hash_maps_rows() -> None:
    table = pa.table({"number": [1]})
    renamed = bind_map(_Renamed({"number": "n"}), feed="numbers", inputs=table.schema, schema=None)
    mapped = MappedRows(table)
    assert mapped.after((renamed,)).column_names == ["n"]
    assert mapped.after((renamed,)) is mapped.after((renamed,))

"""A lane task sends rows on and gives one report, whatever becomes of it."""

from __future__ import annotations

import contextvars
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.lane_flows import flow_of, rows_of, summed
from tests.support.manual_run import ManualRun

from godwit.checkpoint.records import StateId
from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.lane_flow import shipments
from godwit.engine.lane.messages import LaneReport, OperatorReport
from godwit.engine.lane.wire import ship, split_by_level
from godwit.model.errors import UserFunctionError
from godwit.model.key_groups import NO_LOAD, PerKeyGroup
from godwit.time.event_time import NO_ARRIVALS, Arrivals, Due

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from godwit.engine.lane.wire import Blob
    from godwit.plan.compiled import CompiledFlow


def ended(lane: Generator[Blob, None, LaneReport]) -> tuple[list[Blob], LaneReport]:
    blobs = []
    while True:
        try:
            blobs.append(next(lane))
        except StopIteration as end:
            return blobs, end.value


def lanes_of(flow: CompiledFlow, directory: Path) -> Iterator[tuple[list[Blob], LaneReport]]:
    """Run the lanes of the first level for some rows."""
    run = ManualRun(flow, directory, {"a": 2})
    told = run.instruction()
    shipment = shipments(run.lane_flow, told)[0]
    boxes: dict[int, list[bytes]] = {0: [], 1: []}
    for batch in rows_of(np.random.default_rng(0), 200, 50):
        for place, payload in ship(shipment, batch, (0, 0, 0)):
            boxes[place].append(payload)
    for place, box in boxes.items():
        yield ended(run_lane(run.lane_flow, told, 1, place, box))


def test_a_lane_without_operators_downstream_gives_a_report_and_no_rows(tmp_path: Path) -> None:
    for place, (blobs, report) in enumerate(lanes_of(flow_of(summed, 8), tmp_path)):
        assert blobs == []
        assert (report.level, report.place, report.executor, report.error) == (1, place, "a", None)
        assert report.segments
        assert report.took_ms["lane"] > 0


def test_a_lane_leaves_the_context_of_its_thread_as_it_was(tmp_path: Path) -> None:
    before = contextvars.copy_context()
    assert list(lanes_of(flow_of(summed, 8), tmp_path))
    assert dict(contextvars.copy_context().items()) == dict(before.items())


def test_what_a_function_raises_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    def broken(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
        raise ZeroDivisionError(key[0])

    flow = flow_of(lambda keyed: keyed.process(broken, state=dict, output="k string"), 8)
    for _, report in lanes_of(flow, tmp_path):
        assert isinstance(report.error, UserFunctionError)
        assert (report.segments, report.outputs) == ([], [])


def test_a_report_travels_whatever_its_error_holds() -> None:
    error = UserFunctionError("It raised.", remedy="Correct it.", value=lambda: None)
    report = LaneReport(level=1, place=0, executor="a", error=error)
    again = LaneReport.loads(report.dumps())
    assert again.error is not None
    assert (again.error.message, again.error.remedy) == ("It raised.", "Correct it.")
    assert replace(again, error=None) == replace(report, error=None)


def test_a_report_takes_only_what_it_has_to_say_and_comes_back_whole() -> None:
    nothing = LaneReport(
        level=1, place=7, executor="a", operators=[OperatorReport(operator="sums")]
    )
    assert len(nothing.dumps()) < 250
    said = LaneReport(level=2, place=7, executor="a", rows_out=3, took_ms={"apply": 0.5})
    said.operators.append(
        OperatorReport(
            operator="sums",
            rows_in={0: 9},
            arrivals=Arrivals(newest={0: 5}, late=2),
            next_due=Due(clock=4),
            versions={StateId("sums", "state"): PerKeyGroup(np.arange(3), np.full(3, 8))},
            duplicate_partials=1,
        )
    )
    for report in (nothing, said):
        assert LaneReport.loads(report.dumps()) == report
    again = LaneReport.loads(nothing.dumps()).operators[0]
    # The very same objects, by which `event_times_of` knows that there is nothing to add.
    assert again.arrivals is NO_ARRIVALS
    assert again.load is NO_LOAD


def test_payloads_for_later_levels_are_told_from_those_that_are_due(tmp_path: Path) -> None:
    run = ManualRun(flow_of(summed, 8), tmp_path, {"a": 2})
    shipment = shipments(run.lane_flow, run.instruction())[0]
    (batch, _) = rows_of(np.random.default_rng(0), 20, 5)
    by_level = {
        level: [p for _, p in ship(replace(shipment, level=level), batch, (0, 0, 0))]
        for level in (1, 2, 3)
    }
    mixed = [payload for payloads in by_level.values() for payload in payloads]
    assert split_by_level(1, mixed) == (by_level[1], [*by_level[2], *by_level[3]])

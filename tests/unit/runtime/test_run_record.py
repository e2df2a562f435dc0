"""Entries of a run for the journal: the graph, where key groups are, loads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.journal_story import assignment

import godwit as gw
from godwit.engine.policies import FlowEpoch
from godwit.engine.run_record import RunRecorder
from godwit.migration.outcome import EpochOutcome, LoadSummary
from godwit.migration.state import ComponentView
from godwit.ops.heat import moved_placement
from godwit.ops.run_state import RunState, reduced


@pytest.fixture
def flow() -> Any:
    made = gw.Flow("delays", num_key_groups=8)
    rows = made.source("flights", gw.testing.stream(pa.schema({"k": pa.string(), "v": pa.int64()})))
    stream = rows.key_by("k").compute(name="by_plane", total=gw.sum("v"))
    made.sink("totals", stream, gw.sinks.noop())
    return made.compiled()


def committed(flow: Any, epoch: int, **assignments: Any) -> FlowEpoch:
    return FlowEpoch(
        outcome=EpochOutcome(epoch=epoch, batch=epoch),
        component_views={name: ComponentView(assignment=at) for name, at in assignments.items()},
        took_s=0.1,
        at_s=float(epoch),
        flow=flow,
    )


def test_the_graph_is_told_at_first_when_it_changes_and_now_and_then(flow: Any) -> None:
    noted: list[tuple[int, str]] = []
    at = 0
    record = RunRecorder(lambda kind, _: noted.append((at, kind)))
    here = assignment(0, 0, 0, 0, 1, 1, 1, 1)
    for at in range(600):
        record.committed(committed(flow, at, by_plane=here))
    assert [epoch for epoch, kind in noted if kind == "flow"] == [0, 256, 512]
    assert [epoch for epoch, kind in noted if kind == "placement"] == [0]
    at = 600
    record.committed(committed(flow.with_plan(flow.physical_plan), 600, by_plane=here))
    assert noted[-1] == (600, "flow")


def test_key_groups_that_changed_place_are_told_and_no_others(flow: Any) -> None:
    noted: list[dict[str, Any]] = []
    record = RunRecorder(lambda kind, values: noted.append({kind: values()}))
    placements = (
        assignment(0, 0, 0, 0, 1, 1, 1, 1),
        assignment(0, 0, 0, 0, 1, 1, 1, 1),  # the same once more
        assignment(0, 1, 0, 0, 1, 1, 1, 1, version=2),
        assignment(0, 1, 0, 0, 2, 1, 1, 1, version=3, executors=("a", "b", "c")),
    )
    for epoch, placement in enumerate(placements):
        record.committed(committed(flow, epoch, by_plane=placement))
    told = [entry for entry in noted if "placement" in entry]
    assert [entry["placement"]["epoch"] for entry in told] == [0, 2, 3]
    second = told[1]["placement"]["components"]["by_plane"]
    alone = moved_placement(second, None)
    assert alone is not None
    assert (alone.lane_of != 65535).nonzero()[0].tolist() == [1]
    state = RunState()
    for entry in noted:
        state = reduced(state, entry)
    now = state.frame.placements["by_plane"]
    assert now.executors == ("a", "b", "c")
    assert now.lane_of.tolist() == placements[-1].flat_lanes().tolist()
    assert [node["name"] for node in state.flow["operators"]] == ["by_plane"]
    assert [edge["to"] for edge in state.flow["edges"]] == [
        ["operator", "by_plane"],
        ["sink", "totals"],
    ]


def test_loads_are_in_the_journal_once_they_are_due(flow: Any) -> None:
    noted: list[str] = []
    record = RunRecorder(lambda kind, _: noted.append(kind))
    record.committed(committed(flow, 0))
    assert "load" not in noted
    record.loads(LoadSummary(epoch=0, epochs=1, loads={}))
    assert noted[-1] == "load"

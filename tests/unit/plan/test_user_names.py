"""Users see one name of a two-phase window, wherever they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.model import events
from godwit.plan.explain import UserNames, explain

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow

COLUMNS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def flow(consolidate: Any) -> CompiledFlow:
    made = LogicalFlow("flow", 8)
    frame: Any = FakeDataFrame(COLUMNS)
    rows = made.source("rows", frame, event_time="ts", slack="1 second").key_by("k")
    windows = rows.window(gw.tumbling("1 minute"), consolidate=consolidate, name="hourly")
    total = windows.compute(n=gw.count()).key_by("k").compute(name="total", n=gw.sum("n"))
    made.sink("out", total, FakeSink())
    return made.compile(resolver(made))


@pytest.mark.parametrize("consolidate", ["together", "apart", "measured"])
def test_explain_names_no_part(consolidate: Any) -> None:
    text = explain(flow(consolidate))
    assert "hourly_second" not in text
    assert "hourly_windows" not in text
    assert "2 keyed operators" in text
    assert "reads     operator 'hourly'" in text
    assert ("hourly, its windows" in text) is (consolidate != "together")


def test_components_and_groups_of_them_go_by_operators() -> None:
    names = UserNames(flow("apart").operators)
    assert names["hourly_second"] == names["hourly_windows"] == names["hourly"] == "hourly"
    assert names["hourly_windows+total"] == "hourly+total"
    assert names["total"] == "total"
    assert names.each(["hourly", "hourly_second", "total"]) == ("hourly", "total")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            events.PlanAbandoned(epoch=1, at_s=0.0, component="hourly_second", reason="it is over"),
            "plan for hourly abandoned: it is over",
        ),
        (
            events.ManualOverrideRespected(
                epoch=1, at_s=0.0, what="migration of hourly_windows", until_s=60.0
            ),
            "migration of hourly was decided by hand, left alone for 60 s",
        ),
        (
            events.DecisionSkipped(
                epoch=1, at_s=0.0, what="balancing of hourly, hourly_second", reason="it is even"
            ),
            "no balancing of hourly: it is even",
        ),
        (
            events.ComponentsRegrouped(
                epoch=1,
                at_s=0.0,
                regrouping="r1",
                components={"hourly": "hourly, hourly_second, hourly_windows", "total": "total"},
            ),
            "components regrouped (r1): hourly of hourly; total of total",
        ),
    ],
)
def test_events_name_what_users_know(event: events.Event, line: str) -> None:
    assert UserNames(flow("measured").operators).event(event).describe() == line
    assert UserNames(flow("together").operators).event(event) is event


def test_migrations_of_both_slots_are_told_together() -> None:
    started = events.RebalancingStarted(
        epoch=1,
        at_s=0.0,
        migrations={"hourly": "control-1", "hourly_second": "control-2", "total": "control-3"},
        planner="milp",
        moves=3,
        state_bytes=0,
        draining=0,
        distance_before=1.0,
        distance_after=0.0,
        gain_s=1.0,
        cost_s=0.0,
    )
    seen = UserNames(flow("apart").operators).event(started)
    assert isinstance(seen, events.RebalancingStarted)
    assert seen.migrations == {"hourly": "control-1, control-2", "total": "control-3"}

"""Operators are placed by columns in common where these have values enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.control.fusing import by_attributes
from godwit.control.placing import (
    ComparePlacing,
    partly_common_inputs,
    place_as_measured,
    place_by_attributes,
)
from godwit.control.windows import ExchangeCosts
from godwit.engine.policies import FlowEpoch, Repartition
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.migration.state import ComponentView
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import KeyGroupLoad

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow

GROUPS, LANES = 64, 4
ROWS = pa.schema({"area": pa.string(), "user": pa.int64(), "v": pa.int64()})


def flow_of(**stated: Any) -> CompiledFlow:
    """By (user, area), again, by area, and by user; behind a map, by area."""
    made = LogicalFlow("flow", GROUPS)
    frame: Any = FakeDataFrame(ROWS)
    rows = made.source("rows", frame)
    first = rows.key_by("user", "area", **stated).compute(name="first", v=gw.sum("v"))
    again = first.key_by("user", "area", **stated).compute(name="again", v=gw.sum("v"))
    area = again.key_by("area").compute(name="area_total", v=gw.sum("v"))
    user = first.key_by("user").compute(name="user_total", v=gw.sum("v"))
    mapped = first.map(lambda table: table).key_by("area").compute(name="mapped", v=gw.sum("v"))
    for stream in (area, user, mapped):
        made.sink(stream.node.name, stream, FakeSink())  # type: ignore[union-attr]
    return made.compile(resolver(made))


def placed(flow: CompiledFlow) -> dict[str, tuple[str, ...]]:
    return {o.name: tuple(o.placed_by.names) for o in flow.operators}


def decided(flow: CompiledFlow, **cardinality: int) -> list[dict[str, Any]]:
    settings = gw.control.Fusion(by="attributes", cardinality=cardinality)
    return place_by_attributes(flow, [o.name for o in flow.operators], settings, LANES)


BOTH = ("user", "area")
AS_THEY_ARE = {
    "first": BOTH,
    "again": BOTH,
    "area_total": ("area",),
    "user_total": ("user",),
    "mapped": ("area",),
}


def test_keys_that_contain_one_another_are_found_where_rows_come_unchanged() -> None:
    edges = {(feed.upstream, feed.operator) for feed in partly_common_inputs(flow_of())}
    assert edges == {("again", "area_total"), ("first", "user_total")}


def test_phases_of_windows_stay_where_the_other_phase_has_its_key_groups() -> None:
    made = LogicalFlow("flow", GROUPS)
    frame: Any = FakeDataFrame(ROWS.append(pa.field("ts", pa.timestamp("us", tz="UTC"))))
    windows = made.source("rows", frame, event_time="ts").key_by("user", "area")
    days = windows.window(gw.tumbling("1 day"), name="days", consolidate="apart")
    of_days = days.compute(v=gw.sum("v"))
    again = of_days.key_by("user", "area").compute(name="again", v=gw.sum("v"))
    for number, stream in enumerate((again, of_days)):
        total = stream.key_by("area").compute(name=f"total_{number}", v=gw.sum("v"))
        made.sink(f"out_{number}", total, FakeSink())
    flow = made.compile(resolver(made))
    assert decided(flow, area=1_000_000)
    phases = {o.name: o.partition_by for o in flow.operators if o.two_phase is not None}
    assert len(phases) == 3
    assert not any(phases.values())


def test_columns_with_values_enough_place_all_operators_of_a_component() -> None:
    flow = flow_of()
    told = decided(flow, area=1_000_000)
    assert placed(flow) == {**AS_THEY_ARE, "first": ("area",), "again": ("area",)}
    assert by_attributes(flow) == {"first+again+area_total": ("first", "again", "area_total")}
    assert {fields["downstream"]: fields["chosen"] for fields in told} == {
        "area_total": True,
        "user_total": False,
    }
    assert told[0]["columns"] == ("user",)
    assert "cardinality= does not say" in told[0]["reason"]
    assert told[1]["imbalance"] == pytest.approx(1.0, abs=0.02)


def test_of_two_the_columns_with_more_values_are_chosen() -> None:
    flow = flow_of()
    decided(flow, area=10**6, user=10**9)
    assert placed(flow) == {**AS_THEY_ARE, "first": ("user",), "again": ("user",)}


@pytest.mark.parametrize("cardinality", [{}, {"area": 8}, {"area": 8, "user": 3}])
def test_few_values_or_unknown_ones_place_nothing(cardinality: dict[str, int]) -> None:
    flow = flow_of()
    told = decided(flow, **cardinality)
    assert placed(flow) == AS_THEY_ARE
    assert not any(fields["chosen"] for fields in told)


def test_what_the_program_states_and_what_has_state_is_left_alone() -> None:
    flow = flow_of(partition_by=["user", "area"])
    assert decided(flow, area=10**9) == []
    flow = flow_of()
    settings = gw.control.Fusion(by="attributes", cardinality={"area": 10**9})
    assert place_by_attributes(flow, ["first", "area_total", "user_total"], settings, LANES)
    assert placed(flow) == AS_THEY_ARE


def load(busy_ms: Any) -> KeyGroupLoad:
    ones = np.ones(GROUPS, np.int64)
    times = np.broadcast_to(np.asarray(busy_ms, np.float64), GROUPS)
    return KeyGroupLoad(
        key_groups=np.arange(GROUPS), rows=ones, keys=ones, cpu_ms=times, busy_ms=times
    )


def compared(flow: CompiledFlow, rows: list[int], epochs: int = 2) -> list[dict[str, Any]]:
    """Return what is told of epochs in which `again` sends rows to key groups of `area_total`."""
    policy, told = observed(flow, rows, epochs)
    assert list(policy.propose(0.0)) == []
    return told


def observed(
    flow: CompiledFlow, rows: list[int], epochs: int, **settings: Any
) -> tuple[ComparePlacing, list[dict[str, Any]]]:
    """Return a policy after such epochs, and what it has told."""
    told: list[dict[str, Any]] = []
    policy = ComparePlacing(
        flow,
        gw.control.Fusion(epochs=2, **settings),
        ExchangeCosts(byte_ms=0.0, lane_ms=10.0),
        announce=lambda _, **fields: told.append(fields),
    )
    plan = ComponentView(assignment=gw.migration.even_assignment(GROUPS, ["1", "2"], [2, 2]))
    traffic = ComponentTraffic(
        key_groups=tuple(range(GROUPS)),
        rows=tuple(rows),
        size_bytes=(1,) * GROUPS,
        crossed_bytes=0,
        cpu_ms=40.0,
    )
    outcome = EpochOutcome(
        epoch=0,
        batch=0,
        loads={"again": load(1.0), "area_total": load(0.5)},
        traffic={"area_total": traffic},
    )
    for _ in range(epochs):
        component_views = {component.name: plan for component in flow.components}
        policy.observe(
            FlowEpoch(outcome=outcome, took_s=0.0, flow=flow, component_views=component_views)
        )
    return policy, told


def test_what_it_would_cost_follows_from_the_rows_that_key_groups_are_sent() -> None:
    (even,) = compared(flow_of(), [5] * GROUPS)
    assert (even["operator"], even["downstream"], even["columns"]) == (
        "again",
        "area_total",
        ("area",),
    )
    assert even["better"]
    # 16 and 8 ms of the lanes, and 80 ms of an exchange that four of them share.
    assert (even["apart_ms"], even["together_ms"]) == (44.0, 24.0)
    (skewed,) = compared(flow_of(), [1000] + [1] * (GROUPS - 1))
    assert not skewed["better"]
    assert skewed["imbalance"] > 3.5
    assert compared(flow_of(), [5] * GROUPS, epochs=1) == []


def test_columns_are_proposed_once_comparisons_agree_and_settings_allow_it() -> None:
    even, skewed = [5] * GROUPS, [1000] + [1] * (GROUPS - 1)
    policy, _ = observed(flow_of(), even, 4, repartition=True)
    (proposal,) = policy.propose(0.0)
    assert proposal.change == Repartition(operator="again", columns=("area",))
    assert proposal.gain == 500 * (44.0 - 24.0)  # ms that epochs take less, within payback_epochs
    assert proposal.reason == "an epoch takes 24.0 ms instead of 44.0 ms"
    assert [*policy.propose(0.0)] == [proposal]
    policy.answered(proposal)
    assert list(policy.propose(0.0)) == []
    stated = flow_of(partition_by=["user", "area"])
    for flow, rows, epochs in ((flow_of(), even, 2), (flow_of(), skewed, 4), (stated, even, 4)):
        policy, told = observed(flow, rows, epochs, repartition=True)
        assert told
        assert list(policy.propose(0.0)) == []


def event(downstream: str, together_ms: float, *columns: str) -> events.PartitioningCompared:
    return events.PartitioningCompared(
        epoch=7,
        at_s=0.0,
        operator={"area_total": "again", "user_total": "first"}[downstream],
        downstream=downstream,
        columns=columns or ("area",),
        chosen=False,
        reason="",
        better=together_ms < 40.0,
        apart_ms=40.0,
        together_ms=together_ms,
    )


ANEW = events.FlowChanged(epoch=7, at_s=0.0, results=("again is partitioned anew",))


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        ([], {}),
        ([event("area_total", 30.0)], {}),
        ([event("area_total", 30.0), event("area_total", 50.0)], {}),
        ([event("area_total", 50.0)] + 2 * [event("area_total", 30.0)], {"again": ("area",)}),
        (2 * [event("area_total", 30.0)] + [ANEW], {}),
        (2 * [event("area_total", 30.0, "zone")], {}),
        (2 * [event("user_total", 30.0, "user")], {"first": ("user",)}),
    ],
)
def test_a_start_carries_out_what_comparisons_agree_on(
    past: list[events.Event], expected: dict[str, tuple[str, ...]]
) -> None:
    flow = flow_of()
    told = place_as_measured(flow, past, confirm=2)
    assert placed(flow) == {**AS_THEY_ARE, **expected}
    assert {fields["operator"]: fields["columns"] for fields in told} == expected
    stated = flow_of(partition_by=["user", "area"])
    assert place_as_measured(stated, past, confirm=2) == []
    assert placed(stated) == AS_THEY_ARE


@pytest.mark.parametrize(
    "settings",
    [
        {"cardinality": 7},
        {"cardinality": {"area": 0}},
        {"cardinality": {"area": 1.5}},
        {"max_imbalance": 1},
        {"max_imbalance": "1.1"},
        {"repartition": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        gw.control.Fusion(by="attributes", **settings)
    assert caught.value.remedy

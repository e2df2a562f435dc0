"""Operators are fused by the rows that they send each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.control.fusing import Fusing, by_attributes
from godwit.control.policy import ManualOverrides
from godwit.engine.policies import FlowEpoch
from godwit.migration.outcome import EpochOutcome
from godwit.model.errors import InvalidFlowError
from godwit.plan.grouping import in_lane_inputs, regrouped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.engine.policies import Proposal
    from godwit.plan.compiled import CompiledFlow

SETTINGS = gw.control.Fusion(epochs=2, fuse_above=0.1, part_below=0.02, confirm=2)


def each(key: Any, rows: Any, state: Any) -> Any:
    return []


@pytest.fixture
def flow() -> CompiledFlow:
    """Three in a row by k, then one by v, one behind a map, and one behind a function."""
    made = LogicalFlow("flow", 4)
    frame: Any = FakeDataFrame(pa.schema({"k": pa.string(), "v": pa.int64()}))
    a = made.source("rows", frame).key_by("k").compute(name="a", v=gw.sum("v"))
    b = a.key_by("k").compute(name="b", v=gw.sum("v"))
    c = b.key_by("k").compute(name="c", v=gw.sum("v"))
    d = b.key_by("v").compute(name="d", n=gw.count())
    m = a.map(lambda table: table).key_by("k").compute(name="m", n=gw.count())
    p = a.key_by("k").process(each, state=dict, output="k string, x long", name="p")
    q = p.key_by("k").compute(name="q", n=gw.count())
    for name, stream in (("c", c), ("d", d), ("m", m), ("q", q)):
        made.sink(name, stream, FakeSink())
    return made.compile(resolver(made))


def epoch(rows: Mapping[tuple[str, str], int], *, batch: int | None = 0) -> EpochOutcome:
    return EpochOutcome(
        epoch=0,
        batch=batch,
        rows_in=100,
        streams={edge: (count, 10 * count) for edge, count in rows.items()},
    )


def fusing_of(flow: CompiledFlow, *stated: str) -> Fusing:
    overrides = ManualOverrides(announce=lambda *_, **__: None, stated=stated)
    return Fusing(flow, SETTINGS, overrides=overrides)


def after(fusing: Fusing, flow: CompiledFlow, epochs: int, **rows: int) -> Proposal | None:
    """Let epochs pass; `ab=5` are five rows from a to b."""
    proposal = None
    for _ in range(epochs):
        proposal = proposed(fusing, flow, epoch({(e[0], e[1]): n for e, n in rows.items()}))
    return proposal


def proposed(fusing: Fusing, flow: CompiledFlow, outcome: EpochOutcome) -> Proposal | None:
    fusing.observe(FlowEpoch(outcome=outcome, took_s=0.0, flow=flow, component_views={}))
    return next(iter(fusing.propose(0.0)), None)


def test_rows_surely_stay_between_operators_of_one_key_without_a_function_of_the_users(
    flow: CompiledFlow,
) -> None:
    edges = {(given.upstream, given.operator) for given in in_lane_inputs(flow)}
    assert edges == {("a", "b"), ("b", "c"), ("a", "p")}


def test_by_attributes_all_that_can_be_are_fused(flow: CompiledFlow) -> None:
    found = by_attributes(flow)
    assert found == {"a+b+p+c": ("a", "b", "p", "c")}
    fused = flow.with_plan(regrouped(flow, found))
    assert fused.levels == 2
    assert by_attributes(flow, {"b"}) == {"a+p": ("a", "p")}


def test_streams_that_are_worth_it_are_fused_once_decisions_agree(flow: CompiledFlow) -> None:
    fusing = fusing_of(flow)
    assert after(fusing, flow, 3, ab=80, bc=5, bd=50) is None
    proposal = after(fusing, flow, 1, ab=80, bc=5, bd=50)
    assert proposal is not None
    assert proposal.change.components == {"a+b": ("a", "b")}
    assert proposal.gain == 800 * SETTINGS.payback_epochs
    assert proposal.reason == "a → b is 34.0% of all rows"


def test_an_epoch_without_input_is_no_evidence(flow: CompiledFlow) -> None:
    fusing = fusing_of(flow)
    for _ in range(8):
        assert proposed(fusing, flow, epoch({("a", "b"): 80}, batch=None)) is None


def test_decisions_that_do_not_agree_change_nothing(flow: CompiledFlow) -> None:
    fusing = fusing_of(flow)
    for _ in range(3):
        assert after(fusing, flow, 2, ab=80) is None
        assert after(fusing, flow, 2, ab=80, bc=60) is None


def test_a_steady_stream_is_decided_upon_once(flow: CompiledFlow) -> None:
    fusing = fusing_of(flow)
    assert after(fusing, flow, 4, ab=80) is not None
    fused = flow.with_plan(regrouped(flow, {"a+b": ("a", "b")}))
    for _ in range(10):
        assert after(fusing, fused, 2, ab=80) is None
        assert after(fusing, fused, 2, ab=6) is None  # less than for fusing, more than for parting


def test_operators_part_when_next_to_nothing_goes_between_them(flow: CompiledFlow) -> None:
    fused = flow.with_plan(regrouped(flow, {"a+b": ("a", "b")}))
    fusing = fusing_of(flow)
    proposal = after(fusing, fused, 4, ab=1)
    assert proposal is not None
    assert proposal.change.components == {"a": ("a",), "b": ("b",)}
    assert proposal.gain == math.inf
    assert proposal.reason == "a → b is 1.0% of all rows"


def test_what_somebody_has_named_is_left_alone(flow: CompiledFlow) -> None:
    assert after(fusing_of(flow, "b"), flow, 8, ab=80, bc=60) is None
    overrides = ManualOverrides(60.0, announce=lambda *_, **__: None)
    fusing = Fusing(flow, SETTINGS, overrides=overrides)
    after(fusing, flow, 3, ab=80)
    overrides.record(["components of a"], 0.0)
    assert after(fusing, flow, 9, ab=80) is None
    overrides.record(["components of a"], -100.0)  # long ago
    assert after(fusing, flow, 4, ab=80) is not None


def test_a_proposal_stands_until_it_is_answered_or_the_components_are_others(
    flow: CompiledFlow,
) -> None:
    fusing = fusing_of(flow)
    proposal = after(fusing, flow, 4, ab=80)
    assert proposal is not None
    assert after(fusing, flow, 1, ab=80) is proposal
    fusing.answered(proposal)
    assert after(fusing, flow, 2, ab=80) is None  # confirmed anew
    assert after(fusing, flow, 2, ab=80) is not None
    fused = flow.with_plan(regrouped(flow, {"a+b": ("a", "b")}))
    assert after(fusing, fused, 1, ab=80) is None


def test_operators_that_nothing_flows_between_were_put_together_by_somebody(
    flow: CompiledFlow,
) -> None:
    together = flow.with_plan(regrouped(flow, {"x": ("m", "c")}))
    assert after(fusing_of(flow), together, 8) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"by": "luck"},
        {"epochs": 0},
        {"confirm": 1.5},
        {"payback_epochs": True},
        {"fuse_above": 0.01, "part_below": 0.05},
        {"fuse_above": 2.0},
        {"part_below": "no"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        gw.control.Fusion(**settings)
    assert caught.value.remedy

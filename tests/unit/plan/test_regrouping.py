"""Components named by a user, as a physical plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.model.errors import InvalidPlanError
from godwit.plan.grouping import checked_components, regrouped

if TYPE_CHECKING:
    from godwit.plan.compiled import CompiledFlow

import pyarrow as pa


def plan(**components: tuple[str, ...]) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=n, operators=o) for n, o in components.items())
    )


@pytest.fixture
def flow() -> CompiledFlow:
    """Three operators side by side, of which two share a component."""
    made = LogicalFlow("flow", 4)
    frame: Any = FakeDataFrame(pa.schema({"k": pa.string(), "v": pa.int64()}))
    keyed = made.source("rows", frame).key_by("k")
    for name in ("a", "b", "c"):
        made.sink(name, keyed.compute(name=name, v=gw.sum("v")), FakeSink())
    return made.compile(resolver(made)).with_plan(plan(both=("a", "b"), c=("c",)))


def test_what_is_named_is_made_anew_and_the_rest_stays(flow: CompiledFlow) -> None:
    assert regrouped(flow, {}) == flow.physical_plan
    assert regrouped(flow, {"all": ["c", "a", "b"]}) == plan(all=("c", "a", "b"))
    assert regrouped(flow, {"d": ("c",)}) == plan(d=("c",), both=("a", "b"))


def test_an_operator_that_is_left_alone_gives_its_component_its_name(flow: CompiledFlow) -> None:
    assert regrouped(flow, {"a": ["a"]}) == plan(a=("a",), b=("b",), c=("c",))
    assert regrouped(flow, {"both": ["a", "c"]}) == plan(both=("a", "c"), b=("b",))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x": ["a", "ghost"]}, "no operator 'ghost'"),
        ({"x": ["a"], "y": ["a"]}, "'a' was given to components more than once"),
        ({"both": ["c"]}, "Two components would have the name 'both'"),
        ({"c": ["a"], "d": ["c", "b"]}, "'c' would have the name of an operator"),
    ],
)
def test_what_names_nothing_or_two_things_is_refused(
    flow: CompiledFlow, given: dict[str, list[str]], told: str
) -> None:
    with pytest.raises(InvalidPlanError, match=told) as caught:
        regrouped(flow, given)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "given", [7, ["a"], {"x": "ab"}, {"x": []}, {"x": [1]}, {"x": ["a", ["b"]]}, {"x": b"a"}]
)
def test_components_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(InvalidPlanError, match="given as") as caught:
        checked_components(given)
    assert "component" in str(caught.value.remedy)


@pytest.mark.parametrize("name", ["", 3, ("a",), "a/b", "\x1b[2J", "__godwit", "x" * 5_000])
def test_a_name_that_no_operator_may_have_is_refused(name: Any) -> None:
    with pytest.raises(InvalidPlanError, match="a component") as caught:
        checked_components({name: ["a"]})
    assert caught.value.remedy


def test_components_are_taken_as_plain_values() -> None:
    assert checked_components({"x": ["a", "b"]}) == {"x": ("a", "b")}
    found = checked_components({np.str_("x"): np.array(["a", "b"])})
    assert {type(text) for name, of in found.items() for text in (name, *of)} == {str}

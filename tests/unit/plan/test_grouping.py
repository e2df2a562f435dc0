"""Operators that may share a component, and the levels that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.library.aggregates import count, sum  # noqa: A004
from godwit.model.errors import InvalidPlanError
from godwit.plan.explain import explain
from godwit.plan.grouping import in_lane_inputs

if TYPE_CHECKING:
    from godwit.api.flow import LogicalFlow as Flow
    from godwit.plan.compiled import CompiledFlow

Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def plan(**components: tuple[str, ...]) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=n, operators=o) for n, o in components.items())
    )


@pytest.fixture
def chain(flow: Flow, flights: Any, sink: Any, resolve: Resolve) -> CompiledFlow:
    """Flights by plane, planes again, those by number of flights; and airports, by themselves."""
    stream = flow.source("flights", flights)
    plane = stream.key_by("tailnum").compute(name="plane", n=count(), total=sum("arr_delay"))
    again = plane.key_by("tailnum").compute(name="again", seen=count())
    often = again.key_by("seen").compute(name="often", planes=count())
    airport = stream.key_by("origin").compute(name="airport", flights=count())
    for name, made in (("plane", plane), ("again", again), ("often", often), ("airport", airport)):
        flow.sink(name, made, sink)
    return flow.compile(resolve)


def test_each_operator_is_a_component_of_its_own_by_itself(chain: CompiledFlow) -> None:
    own = plan(plane=("plane",), airport=("airport",), again=("again",), often=("often",))
    assert chain.physical_plan == own
    assert "Every operator is a component of its own" in explain(chain)


def test_operators_of_one_component_have_its_level_and_all_their_inputs(
    chain: CompiledFlow,
) -> None:
    shared = chain.with_plan(plan(late=("often",), mid=("again",), both=("airport", "plane")))
    found = [(c.name, c.level) for c in shared.components]
    assert found == [("both", 1), ("mid", 2), ("late", 3)]
    assert shared.component_of("plane").name == "both"
    assert "plane, airport share component 'both'" in explain(shared)


def test_operators_in_a_row_run_on_one_level_where_rows_stay_in_their_lane(
    chain: CompiledFlow,
) -> None:
    shared = chain.with_plan(plan(late=("often",), row=("again", "plane"), airport=("airport",)))
    found = [(c.name, c.level, [o.name for o in c.operators]) for c in shared.components]
    assert found == [
        ("row", 1, ["plane", "again"]),
        ("airport", 1, ["airport"]),
        ("late", 2, ["often"]),
    ]
    told = explain(shared)
    assert "exchange  none: rows stay in the lane of 'plane'" in told
    assert "plane, again share component 'row' (by tailnum, flexible)" in " ".join(told.split())


def test_operators_and_inputs_are_in_one_order_under_every_plan(chain: CompiledFlow) -> None:
    shared = chain.with_plan(plan(late=("often",), row=("again", "plane", "airport")))
    assert [o.name for o in shared.operators] == [o.name for o in chain.operators]
    assert shared.inputs == chain.inputs


@pytest.mark.parametrize(
    ("components", "told"),
    [
        (
            {"one": ("plane", "often"), "two": ("again", "airport")},
            "'one', 'two' feed one another",
        ),
        (
            {"one": ("again", "often"), "two": ("plane", "airport")},
            "keyed by 'tailnum', not by 'seen': its rows belong to other lanes",
        ),
        ({"one": ("plane", "airport")}, "has operators 'airport', 'plane', but flow"),
        ({"one": ("plane", "again", "airport", "often", "ghost")}, "'ghost'"),
        (
            {"one": ("often", "airport"), "plane": ("plane",), "again": ("again",)},
            "airport by string; often by int64",
        ),
    ],
)
def test_operators_that_cannot_run_together_are_refused(
    chain: CompiledFlow, components: dict[str, tuple[str, ...]], told: str
) -> None:
    with pytest.raises(InvalidPlanError, match=told) as caught:
        chain.with_plan(plan(**components))
    assert caught.value.remedy


@pytest.fixture
def areas(flow: Flow, flights: Any, sink: Any, resolve: Resolve) -> CompiledFlow:
    """Flights by airport and plane, placed by airport; those by airport; those by plane."""
    stream = flow.source("flights", flights)
    both = stream.key_by("origin", "tailnum", partition_by="origin")
    pair = both.compute(name="pair", n=count())
    flow.sink("airport", pair.key_by("origin").compute(name="airport", n=sum("n")), sink)
    flow.sink("plane", pair.key_by("tailnum").compute(name="plane", n=sum("n")), sink)
    return flow.compile(resolve)


def test_operators_whose_rows_the_same_columns_place_share_a_component(
    areas: CompiledFlow,
) -> None:
    inside = [(feed.upstream, feed.operator) for feed in in_lane_inputs(areas)]
    assert inside == [("pair", "airport")]
    shared = areas.with_plan(plan(origins=("pair", "airport"), plane=("plane",)))
    assert [(c.name, c.level, c.keys) for c in shared.components] == [
        ("origins", 1, ("origin",)),
        ("plane", 2, ("tailnum",)),
    ]
    told = explain(shared)
    assert "exchange  none: rows stay in the lane of 'pair'" in told
    assert "placed    by origin" in told
    assert "pair, airport share component 'origins' (by origin, flexible)" in " ".join(told.split())


def test_columns_that_do_not_place_the_rows_of_both_do_not_fuse(areas: CompiledFlow) -> None:
    with pytest.raises(
        InvalidPlanError, match="partitioned by 'origin', not by 'tailnum'"
    ) as caught:
        areas.with_plan(plan(one=("pair", "plane"), airport=("airport",)))
    assert "partition_by=" in caught.value.remedy

"""Which operators may share a component, and what becomes of levels then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from godwit.dataflow.aggregates import count, sum  # noqa: A004
from godwit.model.errors import InvalidPlanError
from godwit.state.physical_plan import ComponentPlan, PhysicalPlan

if TYPE_CHECKING:
    from godwit.dataflow.compiled import CompiledFlow
    from godwit.dataflow.flow import LogicalFlow as Flow

Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def plan(**components: tuple[str, ...]) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=n, operators=o) for n, o in components.items())
    )


@pytest.fixture
def chain(flow: Flow, flights: Any, sink: Any, resolve: Resolve) -> CompiledFlow:
    """Flights by plane, those by number of flights; and airports, by themselves."""
    stream = flow.source("flights", flights)
    plane = stream.key_by("tailnum").compute(name="plane", n=count(), total=sum("arr_delay"))
    often = plane.key_by("n").compute(name="often", planes=count())
    airport = stream.key_by("origin").compute(name="airport", flights=count())
    for name, made in (("plane", plane), ("often", often), ("airport", airport)):
        flow.sink(name, made, sink)
    return flow.compile(resolve)


def test_each_operator_is_a_component_of_its_own_by_itself(chain: CompiledFlow) -> None:
    own = plan(plane=("plane",), airport=("airport",), often=("often",))
    assert chain.physical_plan == own
    assert "Every operator is a component of its own" in chain.explain()


def test_operators_of_one_component_have_its_level_and_all_their_inputs(
    chain: CompiledFlow,
) -> None:
    shared = chain.under(plan(late=("often",), both=("airport", "plane")))
    assert [(c.name, c.level) for c in shared.components] == [("both", 1), ("late", 2)]
    assert [o.name for o in shared.operators] == ["airport", "plane", "often"]
    assert [given.operator for given in shared.inputs] == ["airport", "plane", "often"]
    assert shared.component_of("plane").name == "both"
    assert "airport, plane share component 'both'" in shared.explain()


@pytest.mark.parametrize(
    ("components", "told"),
    [
        ({"one": ("plane", "often"), "airport": ("airport",)}, "'one' feed one another"),
        ({"one": ("plane", "airport")}, "is of operators 'airport', 'plane', and flow"),
        ({"one": ("plane", "airport", "often", "ghost")}, "'ghost'"),
        ({"one": ("often", "airport"), "plane": ("plane",)}, "often by int64; airport by string"),
    ],
)
def test_operators_that_cannot_run_together_are_refused(
    chain: CompiledFlow, components: dict[str, tuple[str, ...]], told: str
) -> None:
    with pytest.raises(InvalidPlanError, match=told) as caught:
        chain.under(plan(**components))
    assert caught.value.remedy

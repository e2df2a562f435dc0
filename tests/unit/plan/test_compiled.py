"""Compiled flows: the graph that a runtime gets, and its identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.refusals import assert_refused

from godwit.api.flow import LogicalFlow as Flow
from godwit.library.aggregates import count, max, sum  # noqa: A004
from godwit.library.compute import ComputeOperator
from godwit.library.process import ProcessOperator
from godwit.plan.compiled import CompiledFlow, SourceInput, UpstreamInput
from godwit.plan.lineage import flow_version

if TYPE_CHECKING:
    from godwit.api.streams import Stream
    from godwit.checkpoint.evolution import FlowVersion

Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def clear_market(key: Any, rows: Any, state: Any) -> None: ...


def without_legs(df: Any) -> Any:
    return df.drop("legs")


def late(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(table["total"], 60.0))


def per_hour(table: pa.Table) -> pa.Table:
    return table.append_column("hourly", pc.divide(table["total"], 24.0))


@pytest.fixture
def stream(flow: Flow, flights: Any) -> Stream:
    return flow.source("flights", flights)


@pytest.fixture
def diamond(flow: Flow, stream: Stream, orders: Any, sink: Any) -> Flow:
    """Two sources; one operator feeds two others and a sink; maps are shared."""
    year_first = stream.map(without_legs)
    plane = year_first.key_by("year", "tailnum").compute(
        name="plane", total=sum("arr_delay"), flights=count()
    )
    hourly = plane.map(per_hour)
    worst = hourly.map(late).key_by("year").compute(name="worst", worst=max("hourly"))
    fleet = hourly.key_by("tailnum").process(
        clear_market, state=dict, output="tailnum string, n int", name="fleet"
    )
    market = (
        flow.source("orders", orders)
        .key_by("symbol")
        .process(clear_market, state=list, output="price double", name="market")
    )
    flow.sink("planes", plane, sink)
    flow.sink("hourly", hourly, sink)
    flow.sink("worst", worst, sink)
    flow.sink("fleet", fleet.map(lambda t: t.select(["n"])), sink)
    flow.sink("market", market, sink)
    return flow


@pytest.fixture
def compiled(diamond: Flow, resolve: Resolve) -> CompiledFlow:
    return diamond.compile(resolve)


def test_components_come_level_by_level_and_then_as_declared(compiled: CompiledFlow) -> None:
    assert [(c.name, c.level) for c in compiled.components] == [
        ("plane", 1),
        ("market", 1),
        ("worst", 2),
        ("fleet", 2),
    ]
    assert [c.operators[0].name for c in compiled.components] == [
        operator.name for operator in compiled.operators
    ]
    assert compiled.levels == 2
    assert compiled.sources == ("flights", "orders")
    assert (compiled.name, compiled.num_key_groups) == ("delays", 64)


def test_an_input_says_where_rows_come_from_and_which_columns_are_sent(
    compiled: CompiledFlow,
) -> None:
    plane, market, worst, fleet = compiled.inputs
    assert plane == SourceInput(
        operator="plane",
        source="flights",
        maps=(without_legs,),
        keys=("year", "tailnum"),
        schema=pa.schema(
            [("year", pa.int32()), ("tailnum", pa.string()), ("arr_delay", pa.float64())]
        ),
    )
    assert plane.columns == ("year", "tailnum", "arr_delay")
    assert isinstance(market, SourceInput)
    assert (market.source, market.maps) == ("orders", ())
    assert market.columns == ("symbol", "price", "size")
    assert isinstance(worst, UpstreamInput)
    assert worst.upstream == "plane"
    assert [m.name for m in worst.maps] == ["per_hour", "late"]
    assert worst.columns == ("year", "hourly")
    assert isinstance(fleet, UpstreamInput)
    assert fleet.columns == ("tailnum", "year", "total", "flights", "hourly")


def test_a_shared_map_is_one_object(compiled: CompiledFlow) -> None:
    worst, fleet = compiled.inputs_fed_by("plane")
    planes, hourly = compiled.outputs_of("plane")
    assert worst.maps[0] is fleet.maps[0] is hourly.maps[0]
    assert planes.maps == ()


def test_operators_are_bound_to_the_types_of_their_columns(compiled: CompiledFlow) -> None:
    plane = compiled.operator("plane")
    assert isinstance(plane, ComputeOperator)
    assert plane.output == pa.schema(
        [
            ("year", pa.int32()),
            ("tailnum", pa.string()),
            ("total", pa.float64()),
            ("flights", pa.int64()),
        ]
    )
    assert plane.inputs.names == ["arr_delay"]
    assert plane.schema.keys.names == ["year", "tailnum"]
    assert plane.mergeable
    market = compiled.operator("market")
    assert isinstance(market, ProcessOperator)
    assert market.inputs.names == ["price", "size"]
    assert not market.mergeable


def test_an_output_knows_its_columns_and_its_whole_key_or_none(compiled: CompiledFlow) -> None:
    outputs = {output.name: output for output in compiled.outputs}
    assert list(outputs) == ["planes", "hourly", "worst", "fleet", "market"]
    assert outputs["planes"].keys == ("year", "tailnum")
    assert outputs["hourly"].schema.names == ["year", "tailnum", "total", "flights", "hourly"]
    assert outputs["hourly"].operator == "plane"
    assert outputs["fleet"].schema == pa.schema([("n", pa.int32())])
    assert outputs["fleet"].keys == ()


def test_the_graph_can_be_asked_by_name(compiled: CompiledFlow) -> None:
    assert compiled.component_of("worst").level == 2
    assert [given.operator for given in compiled.inputs_of("worst")] == ["worst"]
    assert [fed.operator for fed in compiled.inputs_fed_by("plane")] == ["worst", "fleet"]
    assert compiled.inputs_fed_by("worst") == ()
    assert [output.name for output in compiled.outputs_of("plane")] == ["planes", "hourly"]


def test_an_unknown_operator_is_answered_with_close_names(compiled: CompiledFlow) -> None:
    for ask in (
        compiled.operator,
        compiled.inputs_of,
        compiled.component_of,
        compiled.inputs_fed_by,
    ):
        assert_refused(
            lambda ask=ask: ask("plan"),
            "Flow 'delays'",
            "'plan'",
            "Did you mean 'plane'",
            "'worst'",
        )


def version(flights: Any, build: Callable[[Flow, Stream, Any], None], sink: Any) -> FlowVersion:
    flow = Flow("f")
    build(flow, flow.source("flights", flights), sink)
    return flow_version(flow.compile(lambda *_: flights.schema))


def test_the_order_of_lines_is_not_part_of_the_version(flights: Any, sink: Any) -> None:
    def forward(flow: Flow, stream: Stream, sink: Any) -> None:
        flow.sink("a", stream.key_by("year").compute(n=count()), sink)
        flow.sink("b", stream.key_by("dest").compute(n=count()), sink)

    def backward(flow: Flow, stream: Stream, sink: Any) -> None:
        flow.sink("b", stream.key_by("dest").compute(n=count()), sink)
        flow.sink("a", stream.key_by("year").compute(n=count()), sink)

    assert version(flights, forward, sink) == version(flights, backward, sink)


def test_another_aggregate_or_key_is_another_version(flights: Any, sink: Any) -> None:
    def flow_builder(key: str, aggregate: Any) -> Callable[[Flow, Stream, Any], None]:
        def build_flow(flow: Flow, stream: Stream, sink: Any) -> None:
            flow.sink("a", stream.key_by(key).compute(name="o", n=aggregate), sink)

        return build_flow

    first = version(flights, flow_builder("year", count()), sink)
    assert first == version(flights, flow_builder("year", count()), sink)
    assert first != version(flights, flow_builder("dest", count()), sink)
    assert first != version(flights, flow_builder("year", sum("arr_delay")), sink)

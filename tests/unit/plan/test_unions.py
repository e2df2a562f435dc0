"""Unions: what may be united, and what an operator on a union reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import ORDERS, FakeDataFrame, FakeSink

from godwit.api.flow import LogicalFlow as Flow
from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError
from godwit.operators.window_specs import tumbling
from godwit.plan.compiled import SourceInput, UpstreamInput
from godwit.plan.explain import explain

if TYPE_CHECKING:
    from tests.support.fake_flow import Resolve

TIMED = pa.schema([("symbol", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])


def frame(schema: pa.Schema) -> Any:
    return FakeDataFrame(schema)


def refused(flow: Flow, resolve: Resolve) -> InvalidFlowError:
    with pytest.raises(InvalidFlowError) as caught:
        flow.compile(resolve)
    return caught.value


def test_an_operator_on_a_union_reads_every_stream(flow: Flow, resolve: Resolve) -> None:
    a, b = (flow.source(name, frame(ORDERS)) for name in "ab")
    sums = b.key_by("symbol").compute(name="sums", price=gw.max("price"), size=gw.sum("size"))
    doubled = sums.map(lambda table: table)
    united = a.map(lambda df: df).union(b, a)
    counted = united.key_by("symbol").compute(name="counted", n=gw.count("price"))
    flow.sink("counted", counted, FakeSink())
    mixed = a.union(doubled).key_by("symbol").compute(name="mixed", n=gw.count("size"))
    flow.sink("mixed", mixed, FakeSink())
    compiled = flow.compile(resolve)
    inputs = compiled.inputs_of("counted")
    assert [i.source for i in inputs if isinstance(i, SourceInput)] == ["a", "b", "a"]
    assert [i.number for i in inputs] == [0, 1, 2]
    source, upstream = compiled.inputs_of("mixed")
    assert isinstance(source, SourceInput)
    assert isinstance(upstream, UpstreamInput)
    assert len(upstream.maps) == 1
    assert compiled.component_of("mixed").level == 2
    assert set(compiled.sources_of("mixed")) == {"a", "b"}
    assert "Level 2: fed by operators and sources" in explain(compiled)


def test_names_of_operators_say_which_sources_meet(flow: Flow) -> None:
    a, b, c = (flow.source(name, frame(ORDERS)) for name in "abc")
    a.union(b).key_by("symbol").compute(n=gw.count())
    a.union(b, c).key_by("symbol").compute(n=gw.count())
    assert flow.components == ("a_and_b_n_by_symbol", "a_and_2_more_n_by_symbol")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (pa.schema(list(ORDERS)[:2]), "source 'a' has 'size', and source 'b' has not"),
        (ORDERS.append(pa.field("x", pa.int8())), "source 'b' has 'x', and source 'a' has not"),
        (
            ORDERS.set(2, pa.field("size", pa.int32())),
            "'size' is int64 in source 'a', and int32 in source 'b'",
        ),
        (pa.schema(list(ORDERS)[::-1]), "they are in the order"),
    ],
)
def test_streams_of_other_columns_are_refused_by_what_differs(
    flow: Flow, resolve: Resolve, other: pa.Schema, told: str
) -> None:
    united = flow.source("a", frame(ORDERS)).union(flow.source("b", frame(other)))
    flow.sink("out", united.map(lambda df: df).key_by("symbol").compute(n=gw.count()), FakeSink())
    error = refused(flow, resolve)
    assert told in str(error)
    assert "in a map before union" in error.remedy


def test_what_is_no_stream_of_the_flow_is_refused(flow: Flow) -> None:
    a = flow.source("a", frame(ORDERS))
    with pytest.raises(InvalidFlowError, match="names no other stream"):
        a.union()
    with pytest.raises(InvalidFlowError, match="FakeDataFrame, not a stream"):
        a.union(frame(ORDERS))
    with pytest.raises(InvalidFlowError, match="KeyedStream, not a stream"):
        a.union(a.key_by("symbol"))  # type: ignore[arg-type]
    with pytest.raises(InvalidFlowError, match="of another flow, 'others'"):
        a.union(Flow("others").source("b", frame(ORDERS)))


def test_a_map_after_a_union_of_sources_with_operators_is_refused(flow: Flow) -> None:
    a = flow.source("a", frame(ORDERS))
    best = a.key_by("symbol").compute(price=gw.max("price"), size=gw.max("size"))
    with pytest.raises(InvalidFlowError, match="DataFrames of sources, and Arrow tables"):
        a.union(best).map(lambda rows: rows)


def test_a_union_reaches_a_sink_by_an_operator_without_state(flow: Flow, resolve: Resolve) -> None:
    a = flow.source("a", frame(ORDERS)).key_by("symbol")
    both = a.compute(n=gw.count()).union(a.compute(n=gw.count("price"), name="other"))
    flow.sink("out", both, FakeSink())
    compiled = flow.compile(resolve)
    assert len(compiled.inputs_of("out_rows")) == 2
    assert compiled.component_of("out_rows").level == 2


def test_windows_on_a_union_need_an_event_time_of_every_source(
    flow: Flow, resolve: Resolve
) -> None:
    a = flow.source("a", frame(TIMED), event_time="ts")
    hourly = a.union(flow.source("b", frame(TIMED))).key_by("symbol").window(tumbling("1 hour"))
    flow.sink("out", hourly.compute(n=gw.count()), FakeSink())
    assert "source 'b' has no event time" in str(refused(flow, resolve))


def test_event_times_in_different_columns_are_refused(flow: Flow, resolve: Resolve) -> None:
    both = TIMED.append(pa.field("at", TIMED.field("ts").type))
    a = flow.source("a", frame(both), event_time="ts")
    b = flow.source("b", frame(both), event_time="at")
    flow.sink(
        "out",
        a.union(b).key_by("symbol").window(tumbling("1 hour")).compute(n=gw.count()),
        FakeSink(),
    )
    assert "in several columns: 'ts', 'at'" in str(refused(flow, resolve))


def test_maps_that_let_go_of_the_event_time_are_refused(flow: Flow, resolve: Resolve) -> None:
    both = TIMED.append(pa.field("at", TIMED.field("ts").type))
    a = flow.source("a", frame(both), event_time="ts").map(lambda df: df.drop("ts"))
    windows = a.key_by("symbol").window(tumbling("1 hour"), time="at")
    flow.sink("out", windows.compute(n=gw.count()), FakeSink())
    error = refused(flow, resolve)
    assert "its watermark would never move" in str(error)
    assert error.context["source"] == "a"


def test_an_event_time_that_is_no_moment_is_refused(flow: Flow, resolve: Resolve) -> None:
    both = TIMED.append(pa.field("at", pa.string()))
    a = flow.source("a", frame(both), event_time="at")
    windows = a.key_by("symbol").window(tumbling("1 hour"), time="ts")
    flow.sink("out", windows.compute(n=gw.count()), FakeSink())
    assert "has the event time 'at' of source 'a', whose type is string" in str(
        refused(flow, resolve)
    )

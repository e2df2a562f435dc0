"""Compiling: what is refused because of columns, types and paths, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.fake_flow import flow_of
from tests.support.refusals import assert_refused

from godwit.api.flow import LogicalFlow as Flow
from godwit.library.aggregates import count, last, sum  # noqa: A004
from godwit.model.errors import GodwitError
from godwit.operators.aggregate import Aggregator
from godwit.operators.declared import ValueState

if TYPE_CHECKING:
    from godwit.api.streams import Stream

Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def without_legs(df: Any) -> Any:
    return df.drop("legs")


def per_hour(table: pa.Table) -> pa.Table:
    return table.append_column("hourly", pc.divide(table["total"], 24.0))


@pytest.fixture
def stream(flow: Flow, flights: Any) -> Stream:
    return flow.source("flights", flights)


def test_each_mapped_source_is_resolved_once(flow: Flow, stream: Stream, sink: Any) -> None:
    asked: list[tuple[str, int]] = []
    shorter = stream.map(without_legs)
    for key in ("year", "dest", "origin"):
        flow.sink(key, shorter.key_by(key).compute(n=count()), sink)

    def resolve(source: str, maps: Any) -> pa.Schema:
        asked.append((source, len(maps)))
        return pa.schema([("year", pa.int32()), ("dest", pa.string()), ("origin", pa.string())])

    flow.compile(resolve)
    assert asked == [("flights", 1)]


def test_an_aggregate_may_read_a_key_column(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    flow.sink("s", stream.key_by("year").compute(name="o", same=last("year"), n=count()), sink)
    compiled = flow.compile(resolve)
    assert compiled.operator("o").inputs.names == ["year"]
    assert compiled.inputs[0].columns == ("year",)


def test_an_aggregator_of_the_user_is_bound_like_any_other(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    class Rows(Aggregator):
        state = pa.schema([("rows", pa.int64())])
        output = pa.int64()

        def create(self, count: int) -> pa.RecordBatch:
            raise NotImplementedError

        def update(self, states: pa.RecordBatch, groups: Any, *columns: pa.Array) -> Any:
            raise NotImplementedError

        def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
            raise NotImplementedError

        def finish(self, states: pa.RecordBatch) -> pa.Array:
            raise NotImplementedError

    flow.sink("s", stream.key_by("year").compute(name="o", rows=Rows("dest")), sink)
    assert flow.compile(resolve).operator("o").output.field("rows").type == pa.int64()
    unknown = stream.key_by("year").compute(name="p", rows=Rows("des"))
    flow.sink("t", unknown, sink)
    assert_refused(lambda: flow.compile(resolve), "'p'", "'rows'", "'des'", "Did you mean 'dest'")


def test_a_flow_needs_a_sink(flow: Flow, stream: Stream, resolve: Resolve) -> None:
    stream.key_by("year").compute(n=count())
    assert_refused(lambda: flow.compile(resolve), "Flow 'delays'", "no sink", "flow.sink(")


def test_every_operator_needs_a_path_to_a_sink(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    used = stream.key_by("year").compute(name="used", n=count())
    flow.sink("s", used.key_by("n").compute(name="last", m=count()), sink)
    stream.key_by("dest").compute(name="idle", n=count())
    error = assert_refused(
        lambda: flow.compile(resolve), "'delays'", "without a path to a sink: 'idle'", "to a sink"
    )
    assert error.context["operators"] == ["idle"]


def test_every_source_needs_a_path_to_a_sink(
    flow: Flow, stream: Stream, orders: Any, sink: Any, resolve: Resolve
) -> None:
    flow.sink("s", stream.key_by("year").compute(n=count()), sink)
    flow.source("orders", orders)
    assert_refused(lambda: flow.compile(resolve), "'delays'", "feed no sink: 'orders'", "leave")


def test_a_key_column_that_does_not_exist_is_answered_with_close_ones(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    flow.sink("s", stream.map(without_legs).key_by("TailNumb").compute(name="o", n=count()), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "Operator 'o' is keyed by column 'TailNumb'",
        "source 'flights' (after its maps 'without_legs')",
        "Did you mean 'tailnum'",
        "Its columns are 'tailnum', 'year', 'origin', 'dest', 'arr_delay'",
    )


def test_an_aggregates_column_that_does_not_exist_is_answered_with_close_ones(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    flow.sink("s", stream.key_by("year").compute(name="o", total=sum("arr_dly")), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "Operator 'o', result 'total', reads column 'arr_dly'",
        "source 'flights'",
        "Did you mean 'arr_delay'",
    )


def test_columns_after_an_operator_are_looked_up_in_its_output(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    plane = stream.key_by("tailnum").compute(name="plane", total=sum("arr_delay"))
    flow.sink("s", plane.key_by("origin").compute(name="o", n=count()), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "'origin', which operator 'plane' does not have",
        "Its columns are 'tailnum', 'total'",
    )
    flow = Flow("again")
    mapped = flow.source("flights", flow_of(stream).sources["flights"]).key_by("tailnum")
    mapped_stream = mapped.compute(name="plane", total=sum("arr_delay")).map(per_hour)
    flow.sink("s", mapped_stream.key_by("hour").compute(name="o", n=count()), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "'hour', which map 'per_hour' after operator 'plane' does not have",
        "Did you mean 'hourly'",
    )


def test_an_aggregate_of_a_wrong_type_names_operator_result_and_type(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    flow.sink("s", stream.key_by("year").compute(name="o", total=sum("origin")), sink)
    assert_refused(lambda: flow.compile(resolve), "'o'", "'total'", "'origin'", "string", "cast")


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        (pa.list_(pa.string()), "explode"),
        (pa.map_(pa.string(), pa.int32()), "explode"),
        (pa.struct([("city", pa.string())]), "k.city"),
        (pa.duration("us"), "number of seconds"),
        (pa.month_day_nano_interval(), "number of seconds"),
    ],
    ids=str,
)
def test_a_key_of_an_unsupported_type_is_refused_with_a_way_out(
    stream: Stream, sink: Any, resolve: Resolve, dtype: pa.DataType, remedy: str
) -> None:
    flow = flow_of(stream)
    mapped = stream.map(lambda df: df.with_column("k", dtype))
    flow.sink("s", mapped.key_by("year", "k").compute(name="o", n=count()), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "Operator 'o' is keyed by column 'k' of source 'flights'",
        str(dtype),
        "cannot be a key",
        remedy,
    )


def test_reserved_and_repeated_columns_of_a_source_are_refused(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    reserved = stream.map(lambda df: df.with_column("__godwit_lane", pa.int32()))
    flow.sink("s", reserved.key_by("year").compute(name="o", n=count()), sink)
    assert_refused(
        lambda: flow.compile(resolve), "Source 'flights'", "'__godwit_lane'", "another name"
    )
    flow = Flow("again")
    twice = flow.source("flights", flow_of(stream).sources["flights"]).map(
        lambda df: df.with_column("year", pa.int32())
    )
    flow.sink("s", twice.key_by("year").compute(name="o", n=count()), sink)
    again = flow
    assert_refused(
        lambda: again.compile(lambda _, maps: maps[0](again.sources["flights"]).schema),
        "Source 'flights'",
        "two columns named 'year'",
        "Drop one",
    )


def test_a_map_over_dataframes_that_fails_is_named(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    def broken(df: Any) -> Any:
        return df.no_such_method()

    mapped = stream.map(without_legs).map(broken)
    flow.sink("s", mapped.key_by("year").compute(n=count()), sink)
    assert_refused(lambda: flow.compile(resolve), "Map 'broken' on source 'flights'", "Correct")


def test_whatever_a_resolver_raises_names_the_source(flow: Flow, stream: Stream, sink: Any) -> None:
    flow.sink("s", stream.map(without_legs).key_by("year").compute(n=count()), sink)

    def broken(source: str, maps: Any) -> pa.Schema:
        raise KeyError(source)

    assert_refused(
        lambda: flow.compile(broken), "source 'flights'", "'without_legs'", "KeyError", "Correct"
    )

    def stopped(source: str, maps: Any) -> pa.Schema:
        raise GodwitError("Spark is gone.")

    with pytest.raises(GodwitError, match=r"^Spark is gone\.$"):
        flow.compile(stopped)


def test_a_map_after_an_operator_that_fails_on_nothing_is_named(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    def first(table: pa.Table) -> pa.Table:
        return table["n"].to_pylist()[0]

    plane = stream.key_by("tailnum").compute(name="plane", n=count())
    flow.sink("s", plane.map(first), sink)
    assert_refused(
        lambda: flow.compile(resolve),
        "The map 'first' after operator 'plane' raised IndexError",
        "schema=",
    )


def test_a_declared_schema_of_a_map_is_believed(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    plane = stream.key_by("tailnum").compute(name="plane", n=count())
    flow.sink("s", plane.map(lambda _: None, schema="tailnum string, x int"), sink)
    (output,) = flow.compile(resolve).outputs
    assert output.schema == pa.schema([("tailnum", pa.string()), ("x", pa.int32())])
    assert output.keys == ("tailnum",)


def test_rows_of_one_key_that_go_to_several_lanes_are_placed_by_nothing_else(
    flow: Flow, stream: Stream, sink: Any, resolve: Resolve
) -> None:
    def each(key: Any, rows: Any, state: Any) -> Any:
        return []

    keyed = stream.key_by("origin", "dest", partition_by="dest")
    made = keyed.process(
        each, state=ValueState(dict, merge=lambda a, b: a), output="n int", name="merged"
    )
    flow.sink("s", made, sink)
    assert_refused(
        lambda: flow.compile(resolve), "'merged' has partition_by='dest'", "Leave one of the two"
    )

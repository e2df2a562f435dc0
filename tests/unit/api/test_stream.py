"""Streams: names, options and arguments, checked in the line that writes them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
from tests.support.refusals import assert_refused

from godwit.api.flow import LogicalFlow as Flow
from godwit.api.streams import KeyedStream, Stream, WindowedStream
from godwit.library.aggregates import count, sum  # noqa: A004
from godwit.model.errors import InvalidFlowError
from godwit.operators.aggregate import Aggregator
from godwit.operators.declared import ValueState
from godwit.plan.nodes import ComputeNode, ProcessNode


def clear_market(key: Any, rows: Any, state: Any) -> None: ...


@pytest.fixture
def stream(flow: Flow, flights: Any) -> Stream:
    return flow.source("flights", flights)


@pytest.fixture
def total(stream: Stream) -> Stream:
    return stream.key_by("tailnum").compute(total=sum("arr_delay"))


def test_two_operators_cannot_have_one_name(stream: Stream) -> None:
    stream.key_by("tailnum").compute(name="totals", total=sum("arr_delay"))
    assert_refused(
        lambda: stream.key_by("origin").compute(name="totals", total=sum("arr_delay")),
        "'totals' is taken by another operator",
        "another name",
    )


def test_two_operators_that_do_the_same_need_names(stream: Stream) -> None:
    """Numbers would depend on the order of lines, and state would swap with them."""
    stream.key_by("tailnum").compute(total=sum("arr_delay"))
    late = stream.map(lambda df: df)
    assert_refused(
        lambda: late.key_by("tailnum").compute(total=sum("arr_delay")),
        "'flights_total_by_tailnum' is taken by another operator",
        "another name",
    )
    late.key_by("tailnum").compute(name="late", total=sum("arr_delay"))


def test_default_names_say_source_results_and_key(stream: Stream, flow: Flow) -> None:
    by_plane = stream.key_by("tailnum", "year").compute(
        total=sum("arr_delay"), worst=sum("arr_delay")
    )
    by_plane.key_by("year").compute(
        a=sum("arr_delay"), b=sum("arr_delay"), c=sum("arr_delay"), d=sum("arr_delay")
    )
    stream.key_by("dest").process(clear_market, state=dict, output="x int")
    stream.key_by("dest").process(lambda *_: None, state=dict, output="x int")
    stream.key_by("year").process(functools.partial(clear_market), state=dict, output="x int")
    assert [node.name for node in flow.operators] == [
        "flights_total_worst_by_tailnum_year",
        "flights_a_b_2_more_by_year",
        "flights_clear_market_by_dest",
        "flights_process_by_dest",
        "flights_clear_market_by_year",
    ]


def test_default_names_do_not_depend_on_the_order_of_lines(flights: Any) -> None:
    def names(*keys: str) -> set[str]:
        flow = Flow("f")
        stream = flow.source("flights", flights)
        for key in keys:
            stream.key_by(key).compute(total=sum("arr_delay"))
        return {node.name for node in flow.operators}

    assert names("tailnum", "dest") == names("dest", "tailnum")


def test_a_stream_may_be_used_many_times(stream: Stream, flow: Flow) -> None:
    shorter = stream.map(lambda df: df.drop("legs"))
    shorter.key_by("tailnum").compute(total=sum("arr_delay"))
    shorter.key_by("year").compute(total=sum("arr_delay"))
    stream.key_by("origin").compute(total=sum("arr_delay"))
    first, second, third = flow.operators
    assert first.upstream is second.upstream is shorter.node
    assert third.upstream is stream.node


def test_streams_are_immutable(stream: Stream) -> None:
    with pytest.raises(AttributeError):
        stream.node = stream.node  # type: ignore[misc]


def test_streams_and_flows_show_what_they_are(stream: Stream, total: Stream, flow: Flow) -> None:
    assert repr(stream.map(lambda df: df)) == (
        "<Stream of flow 'delays': source 'flights' after 1 map>"
    )
    assert repr(stream.key_by("year", "dest")) == (
        "<KeyedStream of flow 'delays': source 'flights' by year, dest>"
    )
    assert repr(total.map(len).map(len)) == (
        "<Stream of flow 'delays': operator 'flights_total_by_tailnum' after 2 maps>"
    )
    assert repr(flow) == (
        "<Flow 'delays': sources ['flights'], operators ['flights_total_by_tailnum'], sinks []>"
    )


def test_a_map_must_be_a_function(stream: Stream) -> None:
    not_callable: Any = "arr_delay > 0"
    assert_refused(
        lambda: stream.map(not_callable), "map on source 'flights'", "str", "Give it a function"
    )


def test_a_map_over_dataframes_takes_no_schema(stream: Stream) -> None:
    assert_refused(
        lambda: stream.map(lambda df: df, schema="x int"),
        "map on source 'flights'",
        "Leave schema= out",
    )


def test_a_bad_schema_of_an_arrow_map_is_refused_where_it_is_written(total: Stream) -> None:
    assert_refused(
        lambda: total.map(lambda table: table, schema="x strng"),
        "The schema of map on operator 'flights_total_by_tailnum'",
        "'string'",
    )


def test_a_key_is_made_of_distinct_column_names(stream: Stream) -> None:
    columns: Any = ["origin", "dest"]
    assert_refused(lambda: stream.key_by(columns), "list", 'key_by("origin", "dest")')
    assert_refused(lambda: stream.key_by("dest", "dest"), "'dest' twice", "once")


def test_key_columns_that_place_rows_are_some_of_the_key(stream: Stream) -> None:
    keyed = stream.key_by("origin", "dest", partition_by="dest")
    assert keyed.partition_by == ("dest",)
    assert repr(keyed).endswith("by origin, dest, partitioned by dest>")
    assert stream.key_by("origin", "dest", partition_by=["dest", "origin"]).partition_by
    assert not stream.key_by("origin", "dest", partition_by=["origin", "dest"]).partition_by
    wrong: Any = 7
    for columns, words in (
        ("tailnum", ("'tailnum' is not a key column", "only key columns can place them")),
        (["origin", "origin"], ("'origin' twice",)),
        ([], ("partition_by= of key_by on source 'flights' names no column",)),
        (wrong, ("of type int",)),
    ):
        assert_refused(lambda c=columns: stream.key_by("origin", "dest", partition_by=c), *words)
    assert_refused(
        lambda: stream.drop_duplicates("origin", within="forever", partition_by="dest"),
        "'dest' is not a key column",
    )


def test_both_sides_of_a_join_are_placed_by_the_same_columns(stream: Stream) -> None:
    left = stream.key_by("origin", "dest", partition_by="origin")
    other = stream.key_by("dest", "origin")
    assert_refused(
        lambda: left.join_newest(other),
        "places rows of the left by 'origin' and those of the right by 'dest', 'origin'",
        "partition_by=",
    )
    left.join_newest(stream.key_by("dest", "origin", partition_by="dest"), suffix="_r")


def test_a_table_that_every_lane_has_is_not_partitioned(stream: Stream) -> None:
    table = stream.key_by("origin", "dest", partition_by="origin")
    assert_refused(
        lambda: stream.key_by("dest").process(
            clear_market, state=dict, output="x int", broadcast={"names": table}
        ),
        "a stream with partition_by=",
        "Leave partition_by= out",
    )


def test_compute_needs_aggregates(stream: Stream) -> None:
    keyed = stream.key_by("tailnum")
    text: Any = "arr_delay"
    cls: Any = Aggregator
    assert_refused(keyed.compute, "by 'tailnum'", "source 'flights'", "gw.count()")
    assert_refused(
        lambda: keyed.compute(total=text),
        "'flights_total_by_tailnum'",
        "'total'",
        "str",
        "total=gw.sum",
    )
    assert_refused(lambda: keyed.compute(total=cls), "'total'", "the class Aggregator")
    number: Any = 5
    assert_refused(
        lambda: keyed.compute(total=sum(number)),
        "sum was given",
        "type int",
        "Pass a column's name",
    )


def test_a_result_cannot_have_the_name_of_a_key_or_a_reserved_one(stream: Stream) -> None:
    keyed = stream.key_by("tailnum", "year")
    assert_refused(
        lambda: keyed.compute(name="o", year=sum("arr_delay")),
        "Operator 'o'",
        "'year'",
        "another name",
    )
    assert_refused(
        lambda: keyed.compute(name="o", __godwit_x=sum("arr_delay")),
        "Operator 'o'",
        "'__godwit_x'",
        "another name",
    )


def test_a_result_cannot_be_called_like_an_option(stream: Stream) -> None:
    keyed: Any = stream.key_by("tailnum")
    assert_refused(
        lambda: keyed.compute(name=sum("arr_delay")),
        "an aggregate for name=",
        "choose another name",
    )
    assert_refused(
        lambda: keyed.compute(output=sum("arr_delay")), "an aggregate for output=", "another name"
    )


def test_the_output_mode_is_update_or_complete(stream: Stream, flow: Flow) -> None:
    keyed: Any = stream.key_by("tailnum")
    assert_refused(
        lambda: keyed.compute(name="o", output="updates", total=sum("arr_delay")),
        "Operator 'o'",
        "output='updates'",
        "Did you mean 'update'",
    )
    keyed.compute(name="u", total=sum("arr_delay"))
    keyed.compute(name="c", total=sum("arr_delay"), output="complete")
    update, complete = flow.operators
    assert isinstance(update, ComputeNode)
    assert isinstance(complete, ComputeNode)
    assert (update.mode, complete.mode) == ("update", "complete")


def test_process_needs_function_state_and_output(stream: Stream) -> None:
    keyed: Any = stream.key_by("tailnum")
    wrong: Any = 17
    wrong_codec: Any = "mspack"
    assert_refused(
        lambda: keyed.process("clear", state=dict, output="x int"), "process by 'tailnum'", "str"
    )
    assert_refused(
        lambda: keyed.process(clear_market, output="x int"),
        "'flights_clear_market_by_tailnum'",
        "no type of state",
        "state=dict",
    )
    assert_refused(
        lambda: keyed.process(clear_market, state={}, output="x int"),
        "an empty mapping for state=",
        "state=dict",
    )
    assert_refused(
        lambda: keyed.process(clear_market, state=ValueState(dict, upgrade=wrong), output="x int"),
        "upgrade=17, which cannot be called",
        "gets the old state",
    )
    assert_refused(
        lambda: keyed.process(clear_market, state=dict),
        "'flights_clear_market_by_tailnum'",
        "no output columns",
        "symbol string",
    )
    assert_refused(
        lambda: keyed.process(clear_market, state=dict, output="x in"),
        "The output of operator 'flights_clear_market_by_tailnum'",
        "Did you mean",
    )
    assert_refused(
        lambda: keyed.process(
            clear_market, state=ValueState(dict, codec=wrong_codec), output="x int"
        ),
        "codec='mspack'",
        "Did you mean 'msgpack'",
    )


def test_process_keeps_what_it_was_given(stream: Stream, flow: Flow) -> None:
    stream.key_by("tailnum").process(
        clear_market, state=ValueState(list, codec="pickle"), output={"x": int}, name="market"
    )
    (node,) = flow.operators
    assert isinstance(node, ProcessNode)
    assert node.name == "market"
    assert node.function is clear_market
    assert node.state == ValueState(list, codec="pickle")
    assert str(node.output) == "x: int64"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("compute", r'Name the key first, as in stream.key_by\("symbol"\).compute\('),
        ("process", r"state is per key"),
        ("groupBy", r'Use key_by\("symbol"\), and then compute'),
        ("where", r"Use map, as in stream.map\(lambda df: df.where"),
        ("count", r"compute\(n=gw.count\(\)\)"),
        ("writeStream", r"flow.sink\(name, stream, sink\)"),
        ("withWatermark", r"Say it at the source"),
        ("mapp", r"Did you mean 'map'\? It has 'map', 'union', 'drop_duplicates', 'key_by'"),
    ],
)
def test_calls_that_a_stream_does_not_have_are_answered_with_those_that_were_meant(
    stream: Stream, name: str, remedy: str
) -> None:
    told = rf"A stream \(source 'flights'\) has no '{name}'.*{remedy}"
    with pytest.raises(InvalidFlowError, match=told):
        getattr(stream, name)
    assert not hasattr(stream, name)
    with pytest.raises(AttributeError):
        getattr(stream, "__len__")  # noqa: B009  a checker knows that it is not there


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("where", r"Use map before key_by, as in stream.map"),
        ("map", r"Call map before key_by, or after the operator"),
        ("key_by", r"all columns of the key in one key_by"),
        ("agg", r"compute\(n=gw.count\(\)\)"),
        ("computee", r"Did you mean 'compute'"),
    ],
)
def test_calls_that_a_keyed_stream_does_not_have_too(
    stream: Stream, name: str, remedy: str
) -> None:
    with pytest.raises(InvalidFlowError, match=rf"keyed stream .*by tailnum.* '{name}'.*{remedy}"):
        getattr(stream.key_by("tailnum"), name)


class SparkColumn:
    """As a column of Spark's: it has an attribute of any name."""

    def __getattr__(self, name: str) -> SparkColumn:
        return self

    def __repr__(self) -> str:
        return "Column<'sum(arr_delay)'>"


SparkColumn.__module__ = "pyspark.sql.classic.column"


@pytest.mark.parametrize(
    ("aggregate", "answer"),
    [
        (SparkColumn(), r"not an aggregate, but Column<'sum\(arr_delay\)'>, which Spark would"),
        ("sum", "not an aggregate, but str"),
        (sum, "not an aggregate, but function"),
    ],
)
def test_what_is_no_aggregate_is_answered_with_all_of_them(
    stream: Stream, aggregate: Any, answer: str
) -> None:
    with pytest.raises(InvalidFlowError, match=rf"{answer}.*gw\.approx_distinct, .*gw\.variance"):
        stream.key_by("tailnum").compute(total=aggregate)


def test_results_and_keys_that_differ_in_case_only_are_refused(stream: Stream) -> None:
    keyed = stream.key_by("tailnum")
    with pytest.raises(InvalidFlowError, match="'tailnum' and 'TailNum', which differ in case"):
        keyed.compute(TailNum=count())
    with pytest.raises(InvalidFlowError, match="'n' and 'N', which differ in case only"):
        keyed.compute(n=count(), N=count())


@pytest.mark.parametrize("stream", [Stream, KeyedStream, WindowedStream])
def test_no_call_takes_more_than_ten_arguments(stream: type) -> None:
    calls = {
        name: [p for p in inspect.signature(call).parameters if p != "self"]
        for name, call in vars(stream).items()
        if callable(call) and not name.startswith("_")
    }
    assert calls
    assert {name: len(taken) for name, taken in calls.items() if len(taken) > 10} == {}

"""Flows, sources and sinks: what is refused before any column is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_flow import resolver
from tests.support.refusals import assert_refused

from godwit.api.flow import LogicalFlow as Flow
from godwit.library.aggregates import sum  # noqa: A004

if TYPE_CHECKING:
    from godwit.api.streams import Stream


@pytest.fixture
def stream(flow: Flow, flights: Any) -> Stream:
    return flow.source("flights", flights)


@pytest.fixture
def total(stream: Stream) -> Stream:
    return stream.key_by("tailnum").compute(total=sum("arr_delay"))


@pytest.mark.parametrize("number", [1, 7, 256, 32_768])
def test_a_flow_has_between_one_and_32768_key_groups(number: int) -> None:
    assert Flow("f", num_key_groups=number).num_key_groups == number


@pytest.mark.parametrize("number", [0, -1, 32_769, 2.0, "8", None, True])
def test_other_numbers_of_key_groups_are_refused(number: Any) -> None:
    assert_refused(
        lambda: Flow("f", num_key_groups=number),
        "Flow 'f'",
        f"num_key_groups={number!r}",
        "from 1 to 32768",
    )


def test_a_flow_has_256_key_groups_by_default() -> None:
    assert Flow("f").num_key_groups == 256


def test_a_flow_needs_a_name() -> None:
    assert_refused(lambda: Flow(""), "''", "name of a flow")


def test_a_source_must_be_a_streaming_dataframe(flow: Flow, flights: Any) -> None:
    batch = type(flights)(flights.schema, isStreaming=False)
    assert_refused(
        lambda: flow.source("flights", batch), "'flights'", "not streaming", "spark.readStream"
    )
    not_a_frame: Any = [1, 2]
    assert_refused(
        lambda: flow.source("flights", not_a_frame), "'flights'", "list", "spark.readStream"
    )
    assert not flow.sources


def test_two_sources_cannot_have_one_name(flow: Flow, flights: Any, orders: Any) -> None:
    flow.source("flights", flights)
    assert_refused(
        lambda: flow.source("flights", orders),
        "'delays'",
        "'flights' is taken by another source",
        "another name",
    )
    assert flow.sources["flights"] is flights


def test_two_sinks_cannot_have_one_name(flow: Flow, total: Stream, sink: Any) -> None:
    flow.sink("totals", total, sink)
    assert_refused(
        lambda: flow.sink("totals", total, sink),
        "'totals' is taken by another sink",
        "another name",
    )


def test_rows_of_a_source_reach_a_sink_by_an_operator_without_state(
    flow: Flow, stream: Stream, sink: Any
) -> None:
    flow.sink("raw", stream.map(lambda df: df), sink)
    assert [operator.name for operator in flow.operators] == ["raw_rows"]


def test_a_sink_takes_streams_of_its_own_flow_only(total: Stream, sink: Any) -> None:
    other = Flow("other")
    assert_refused(
        lambda: other.sink("totals", total, sink),
        "Sink 'totals' of flow 'other'",
        "another flow, 'delays'",
        "Build the stream from a source of flow 'other'",
    )


class Keeping:
    """As much of a sink as a flow looks at."""

    def __init__(self, rejects: Any = None) -> None:
        self.rejects = rejects

    def open(self, context: Any) -> None: ...

    def deliver(self, output: Any) -> None: ...


def test_one_object_cannot_be_two_sinks(flow: Flow, total: Stream) -> None:
    shared = Keeping()
    flow.sink("totals", total, shared)
    flow.sink("again", total, shared)
    assert_refused(
        lambda: flow.compile(resolver(flow)), "'totals' and 'again'", "same object", "for each"
    )


def test_sinks_cannot_share_one_object_for_their_rejected_rows(flow: Flow, total: Stream) -> None:
    rejected = Keeping()
    flow.sink("totals", total, Keeping(rejects=rejected))
    flow.sink("more", total, Keeping(rejects=rejected))
    assert_refused(
        lambda: flow.compile(resolver(flow)), "'totals_rejects' and 'more_rejects'", "same object"
    )


def test_a_sink_must_be_a_sink_and_its_stream_a_stream(
    flow: Flow, stream: Stream, total: Stream, sink: Any
) -> None:
    keyed: Any = stream.key_by("year")
    assert_refused(lambda: flow.sink("s", keyed, sink), "Sink 's'", "KeyedStream", "compute")
    assert_refused(lambda: flow.sink("s", total, "out/"), "Sink 's'", "str", "gw.sinks.parquet")
    assert_refused(lambda: flow.sink("s", total, type(sink)), "the class FakeSink", "instance")
    assert not flow.sinks

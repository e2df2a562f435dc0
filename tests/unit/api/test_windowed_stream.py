"""Facts about what windows may be said, and what is said of those that may not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, flow_of, resolver
from tests.support.window_flows import ROWS

from godwit.api.flow import LogicalFlow
from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError
from godwit.operators.window_specs import hopping, rows, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.streams import KeyedStream


def keyed(**options: Any) -> KeyedStream:
    frame: Any = FakeDataFrame(ROWS)
    options = {"event_time": "ts", **options}
    return LogicalFlow("flow").source("rows", frame, **options).key_by("k")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tumbling("0 seconds"), "which is no time"),
        (lambda: tumbling("-5 minutes"), "which is negative"),
        (lambda: tumbling(timedelta(hours=-1)), "which is negative"),
        (lambda: tumbling("1 month"), "has no fixed length"),
        (lambda: tumbling("five minutes"), "not a duration"),
        (lambda: tumbling(5), "a value of type int"),  # type: ignore[arg-type]
        (lambda: tumbling("1 hour", start="1 hour"), "begin every 1 hour anyway"),
        (lambda: hopping("1 hour", every="2 hours"), "leave gaps"),
        (lambda: keyed().window(hopping("6 hours", every="7 milliseconds")), "made of"),
        (lambda: keyed().window(), "names no window"),
        (lambda: keyed().window("1 hour"), "a value of type str"),  # type: ignore[arg-type]
        (lambda: keyed().window(tumbling("1 hour"), tumbling("60 minutes")), "twice"),
        (lambda: keyed().window(tumbling("1 hour"), output="complete"), "output='complete'"),  # type: ignore[arg-type]
        (lambda: keyed().window(tumbling("1 hour"), late="late/"), "not a sink"),
        (lambda: keyed().window(tumbling("1 hour")).compute(), "no aggregates"),
        (lambda: keyed().window(tumbling("1 hour")).process(print), "no output columns"),
        (lambda: rows(0), "is 0"),
        (lambda: rows(True), "is True"),
        (lambda: rows(10, every=3), "cannot be emitted every 3 rows"),
        (lambda: rows(100_000, every=1), "cannot be emitted every 1 rows"),
        (lambda: keyed().window(rows(9), tumbling("1 hour")), "beside other windows"),
        (lambda: keyed().window(rows(9), output="update"), "output='update'"),
        (lambda: keyed().window(rows(9), time="ts"), "time='ts'"),
        (lambda: keyed().window(rows(9)).process(print, output="k string"), "only aggregates"),
        (lambda: keyed().window(rows(9)).compute(), "no aggregates"),
        (lambda: keyed(slack="-1 second"), "negative"),
        (lambda: keyed(idle="0 seconds"), "no time"),
        (lambda: keyed(event_time=3), "as event time"),
    ],
)
def test_what_will_not_do_is_refused_where_it_is_said(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidFlowError, match=says):
        make()


@pytest.mark.parametrize(
    ("source", "window", "says"),
    [
        ({"event_time": None}, {}, "has no event time"),
        ({"event_time": "when"}, {}, "which source 'rows' does not have"),
        ({"event_time": "v"}, {}, "whose type is int64"),
        ({}, {"time": "k"}, "whose type is string"),
    ],
)
def test_a_column_that_cannot_be_event_time_is_refused(
    source: dict[str, Any], window: dict[str, Any], says: str
) -> None:
    stream = keyed(**source).window(tumbling("1 hour"), **window).compute(n=gw.count())
    flow_of(stream).sink("out", stream, FakeSink())
    with pytest.raises(InvalidFlowError, match=says):
        flow_of(stream).compile(resolver(flow_of(stream)))


def test_no_name_is_taken_from_results() -> None:
    stream = (
        keyed()
        .window(tumbling("1 hour"))
        .compute(
            name=gw.count(),
            output=gw.sum("v"),
            time=gw.max("ts"),
            late=gw.count(),
            formerly=gw.count(),
        )
    )
    flow_of(stream).sink("out", stream, FakeSink())
    (operator,) = flow_of(stream).compile(resolver(flow_of(stream))).operators
    assert operator.output.names[3:] == ["name", "output", "time", "late", "formerly"]
    assert operator.output.field("window_start").type == pa.timestamp("us", tz="UTC")


def test_a_result_cannot_be_called_as_the_window() -> None:
    stream = keyed().window(tumbling("1 hour")).compute(window_end=gw.count())
    flow_of(stream).sink("out", stream, FakeSink())
    with pytest.raises(InvalidFlowError, match="window_end"):
        flow_of(stream).compile(resolver(flow_of(stream)))

"""Whatever is given for an option is taken, or refused by name: nothing raises from inside."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, flow_of, resolver
from tests.support.refusals import assert_refused

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.model.errors import GodwitError
from godwit.operators.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.api.streams import Stream

COLUMNS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    np.int64(5),
    2.5,
    "",
    " ",
    "5 min",
    "-1 s",
    "1 month",
    "9" * 5000 + " seconds",
    "inf seconds",
    dt.timedelta.max,
    pd.NaT,
    np.timedelta64(5, "m"),
    pd.DateOffset(months=1),
    [5],
    lambda: 5,
    b"5 minutes",
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    pd.Series([1, 2]),
    pd.DataFrame({"a": [1]}),
    np.array([1, 2]),
    gw.sum("v"),
    gw.tumbling("1 hour"),
)
HOUR = gw.tumbling("1 hour")
BETWEEN = ("0 seconds", "1 hour")


def option_of_process(option: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {option: value}


def option_of_state(option: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {"state": gw.ValueState(dict, **{option: value})}


def option_of_named_state(option: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {"state": {"n": gw.ListState(int, **{option: value})}}


OF_PROCESS = ("state", "output", "row", "name", "timers", "order", "late", "broadcast")
OF_STATE = ("ttl", "codec", "classes", "upgrade", "merge")
PROCESS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **{option: option_of_process(option) for option in OF_PROCESS},
    **{f"state {option}": option_of_state(option) for option in OF_STATE},
    **{f"list {option}": option_of_named_state(option) for option in OF_STATE},
    "a state": lambda v: {"state": {"n": v}},
    "states": lambda v: {"state": {v: gw.ValueState(int)} if isinstance(v, str) else [v]},
    "function": lambda v: {"timers": gw.types.OnTimer(v, clock="event")},
    "clock": lambda v: {"timers": gw.types.OnTimer(told, clock=v)},
    "timer order": lambda v: {"timers": gw.types.OnTimer(told, clock="event", order=v)},
    "columns": lambda v: {"output": gw.types.Output(v)},
    "event_time": lambda v: {"output": gw.types.Output("k string", event_time=v)},
    "slack": lambda v: {"output": gw.types.Output("ts timestamp", event_time="ts", slack=v)},
    "new name": lambda v: {"name": gw.types.Identity(v)},
    "formerly": lambda v: {"name": gw.types.Identity("p", formerly=v)},
    "starts_empty": lambda v: {"name": gw.types.Identity(starts_empty=v)},
}


def told(key: Any, rows: Any, state: Any) -> None: ...
def windowed(key: Any, rows: Any, window: Any) -> None: ...


def source(flow: LogicalFlow, name: str, **options: Any) -> Stream:
    frame: Any = FakeDataFrame(COLUMNS)
    return flow.source(name, frame, **{"event_time": "ts", **options})


CALLS: dict[str, Callable[[Stream, Stream, Any], Any]] = {
    "length": lambda a, _, v: a.key_by("k").window(gw.tumbling(v)).compute(n=gw.count()),
    "start": lambda a, _, v: a.key_by("k").window(gw.tumbling("1 hour", start=v)),
    "every": lambda a, _, v: a.key_by("k").window(gw.hopping("1 hour", every=v)),
    "gap": lambda a, _, v: a.key_by("k").window(gw.session(v)),
    "slack": lambda a, _, v: source(flow_of(a), "c", slack=v),
    "idle": lambda a, _, v: source(flow_of(a), "c", idle=v),
    "max_ahead": lambda a, _, v: source(flow_of(a), "c", max_ahead=v),
    "event_time": lambda a, _, v: source(flow_of(a), "c", event_time=v),
    "window": lambda a, _, v: a.key_by("k").window(v),
    "time": lambda a, _, v: a.key_by("k").window(HOUR, time=v),
    "output": lambda a, _, v: a.key_by("k").window(HOUR, output=v),
    "late": lambda a, _, v: a.key_by("k").window(HOUR, late=v),
    "window name": lambda a, _, v: a.key_by("k").window(HOUR, name=v).compute(n=gw.count()),
    "result": lambda a, _, v: a.key_by("k").window(HOUR).compute(n=v),
    "function": lambda a, _, v: a.key_by("k").window(HOUR).process(v, output="k string"),
    "columns": lambda a, _, v: a.key_by("k").window(HOUR).process(windowed, output=v),
    "population": lambda a, _, v: a.key_by("k").compute(r=gw.variance("v", population=v)),
    "ignore_nulls": lambda a, _, v: a.key_by("k").compute(r=gw.first("v", ignore_nulls=v)),
    "error": lambda a, _, v: a.key_by("k").compute(r=gw.approx_distinct("v", error=v)),
    "k": lambda a, _, v: a.key_by("k").compute(r=gw.top_k("v", v)),
    "by": lambda a, _, v: a.key_by("k").compute(r=gw.top_k("v", 2, by=v)),
    "percentage": lambda a, _, v: a.key_by("k").compute(r=gw.approx_percentile("v", v)),
    "where": lambda a, _, v: a.key_by("k").compute(r=gw.sum("v", where=v)),
    "max_by": lambda a, _, v: a.key_by("k").compute(r=gw.max_by("v", v)),
    "limit": lambda a, _, v: a.key_by("k").compute(r=gw.collect_set("v", limit=v)),
    "column": lambda a, _, v: a.key_by("k").compute(r=gw.sum(v)),
    "union": lambda a, _, v: a.union(v),
    "duplicates": lambda a, _, v: a.drop_duplicates("k", within=v),
    "duplicates of": lambda a, _, v: a.drop_duplicates(v, within="1 hour"),
    "other": lambda a, _, v: a.key_by("k").join(v, between=BETWEEN),
    "between": lambda a, b, v: a.key_by("k").join(b.key_by("k"), between=v, suffix="_r"),
    "bound": lambda a, b, v: a.key_by("k").join(b.key_by("k"), between=(v, "1 hour"), suffix="_r"),
    "how": lambda a, b, v: a.key_by("k").join(b.key_by("k"), between=BETWEEN, how=v, suffix="_r"),
    "suffix": lambda a, b, v: a.key_by("k").join(b.key_by("k"), between=BETWEEN, suffix=v),
    "join name": lambda a, b, v: a.key_by("k").join(
        b.key_by("k"), between=BETWEEN, suffix="_r", name=v
    ),
    "within": lambda a, b, v: a.key_by("k").join_newest(b.key_by("k"), within=v, suffix="_r"),
    "newest how": lambda a, b, v: a.key_by("k").join_newest(b.key_by("k"), how=v, suffix="_r"),
    "newest other": lambda a, _, v: a.key_by("k").join_newest(v),
}


def processed(option: str, stream: Stream, value: Any) -> Any:
    """Give an option of process a value."""
    options: dict[str, Any] = {"state": dict, "output": "k string", **PROCESS[option](value)}
    return stream.key_by("k").process(told, **options)


@pytest.mark.parametrize(
    "option",
    [*((name, CALLS) for name in CALLS), *((name, PROCESS) for name in PROCESS)],
    ids=lambda option: f"{option[0]} of {'process' if option[1] is PROCESS else 'others'}",
)
def test_a_value_is_taken_or_refused_by_name(option: tuple[str, Any]) -> None:
    name, calls = option
    for value in VALUES:
        flow = LogicalFlow("flow", 8)
        try:
            a, b = source(flow, "a"), source(flow, "b")
            made = processed(name, a, value) if calls is PROCESS else calls[name](a, b, value)
            if hasattr(made, "key_by"):
                flow.sink("out", made, FakeSink())
                flow.compile(resolver(flow))
        except GodwitError as error:
            assert error.message  # noqa: PT017 - most of the values are refused, some are not
            assert error.remedy  # noqa: PT017


def test_a_bound_has_one_sign(flow: LogicalFlow) -> None:
    a, b = (source(flow, name).key_by("k") for name in "ab")
    assert_refused(
        lambda: a.join(b, between=("-1 hour -30 minutes", "1 hour")), "more than one sign"
    )


@pytest.mark.parametrize("value", ["no", "", 0, 1, None])
def test_a_flag_is_a_flag(value: Any) -> None:
    assert_refused(lambda: gw.first("v", ignore_nulls=value), "first('v') has ignore_nulls=")
    assert_refused(lambda: gw.stddev("v", population=value), "stddev('v') has population=")


def test_lengths_of_time_are_read_to_the_microsecond() -> None:
    assert gw.tumbling("9007199254740993 microseconds").window.length_us == 9007199254740993


@pytest.mark.parametrize("value", [None, 5, "2020-01-01", dt.date(2020, 1, 1), pd.NaT])
def test_a_timer_is_set_to_a_datetime(value: Any) -> None:
    timers = Timers([], 0)
    with pytest.raises(TypeError, match="a timer is set to a datetime"):
        timers.set(value)
    with pytest.raises(TypeError, match="a timer is set to a datetime"):
        timers.cancel(value)


@pytest.mark.parametrize("way", ["join", "newest", "windows", "sessions"])
def test_a_column_that_cannot_wait_is_named_with_the_operator_that_keeps_it(
    flow: LogicalFlow, way: str
) -> None:
    frame: Any = FakeDataFrame(COLUMNS.append(pa.field("tags", pa.list_(pa.string()))))
    rows = flow.source("rows", frame, event_time="ts").key_by("k")
    other = source(flow, "other").key_by("k")
    made = {
        "join": lambda: rows.join(other, between=BETWEEN, suffix="_r", name="kept"),
        "newest": lambda: other.join_newest(rows, suffix="_r", name="kept"),
        "windows": lambda: rows.window(HOUR, name="kept").process(windowed, output="k string"),
        "sessions": lambda: rows.window(gw.session("1 hour"), name="kept").process(
            windowed, output="k string"
        ),
    }[way]()
    flow.sink("out", made, FakeSink())
    if way in ("windows", "sessions"):
        flow.sink("other", other.compute(n=gw.count()), FakeSink())
    refused = assert_refused(
        lambda: flow.compile(resolver(flow)), "'kept'", "'tags'", "an earlier map"
    )
    assert refused.context["column"] == "tags"

"""Functions count in instants, whatever zone the session has."""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.oracles.lane import Lane
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.declarations import OnTimer
from godwit.api.flow import LogicalFlow
from godwit.columns.python_values import (
    in_zone,
    instants_of,
    python_values,
    rows_as_tuples,
    zone_of,
)
from godwit.library.emitted import Emitted
from godwit.library.windows.process import WindowedProcess, call_for_windows
from godwit.model.errors import UserFunctionError
from godwit.time.event_time import RowTime
from godwit.time.grid import PaneGrid, TimeWindow

if TYPE_CHECKING:
    import godwit as gw

BERLIN = "Europe/Berlin"
HOUR = dt.timedelta(hours=1)
# 2024-10-27: summer time ends at 03:00, which is 02:00 again.
BEFORE = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)
ROWS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz=BERLIN))])


def rows(*moments: dt.datetime) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": "a", "ts": ts} for ts in moments], schema=ROWS)


def operator(function: Any, output: str, zone: str = BERLIN, **options: Any) -> Any:
    flow = LogicalFlow("flow", 8)
    frame: Any = FakeDataFrame(ROWS)
    options = {"state": dict, **options}
    stream = (
        flow.source("rows", frame, event_time="ts")
        .key_by("k")
        .process(function, output=output, **options)
    )
    flow.sink("out", stream, FakeSink())
    (made,) = flow.compile(resolver(flow), zone=zone).operators
    return made


def test_an_hour_after_a_row_is_an_hour_later_also_where_summer_time_ends() -> None:
    moments = [BEFORE, BEFORE + HOUR, BEFORE + 2 * HOUR]
    values = [ts for _, ts in rows_as_tuples(rows(*moments))]
    assert values == moments
    assert [ts + HOUR - ts for ts in values] == [HOUR] * 3
    assert [later - earlier for earlier, later in itertools.pairwise(values)] == [HOUR] * 2
    assert [ts + HOUR for ts in values] == [ts + HOUR for ts in moments]
    assert sorted(values) == values
    assert [ts.hour for ts in values] == [2, 2, 3]  # the clock on the wall


def test_moments_within_rows_values_have_offsets_too() -> None:
    instant = ROWS.field("ts").type
    dtype = pa.struct({"many": pa.list_(instant), "by": pa.map_(pa.string(), instant)})
    value = {"many": [BEFORE, None, BEFORE + HOUR], "by": [("x", BEFORE + HOUR)]}
    ((read,),) = rows_as_tuples(pa.record_batch({"v": pa.array([value], dtype)}))
    assert read["many"] == value["many"]
    assert read["many"][2] - read["many"][0] == HOUR
    assert read["by"] == value["by"]


def test_a_timer_set_by_a_rows_time_is_due_when_that_time_has_passed() -> None:
    set_at: list[dt.datetime] = []

    def function(_key: Any, given: Any, _state: Any) -> None:
        for row in given:
            given.timers.set(row.ts + HOUR)
        set_at.extend(given.timers.list())

    made = operator(function, "k string", timers=OnTimer(lambda *_: [], clock="event"))
    Lane(made).epoch(rows(BEFORE).select(["k", "ts"]))
    assert set_at == [BEFORE + HOUR]


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/New_York", "+02:00"])
def test_instants_are_as_arrow_converts_them(zone: str) -> None:
    draw = np.random.default_rng(3)
    for first, last in ((-62_135_000_000, 253_402_000_000), (1_700_000_000, 1_700_000_060)):
        seconds = draw.integers(first, last, 300)
        times = seconds * 1_000_000 + draw.integers(0, 1_000_000, 300)
        for moments in (times, [*times.tolist(), None], [], [-1, 0, 951_782_399_999_999]):
            column = pa.array(moments, pa.timestamp("us", zone))
            expected = column.to_pylist()
            assert instants_of(column) == expected
            assert [getattr(m, "tzinfo", None) for m in instants_of(column)] == [
                getattr(m, "tzinfo", None) for m in expected
            ]


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/New_York", "+02:00", "UTC-3", "Z"])
def test_a_datetime_without_a_zone_is_of_the_sessions(zone: str) -> None:
    wall = dt.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - twice in Berlin
    made = operator(
        lambda *_: [(wall, [wall], wall), (wall.replace(fold=1), None, None)],
        "at timestamp, many array<timestamp>, local timestamp_ntz",
        zone,
    )
    output = Lane(made).epoch(rows(BEFORE)).output
    first, second = output.column(0).to_pylist()
    assert first == wall.replace(tzinfo=zone_of(zone)).astimezone(dt.UTC)
    assert (second - first == HOUR) is (zone == BERLIN)
    assert output.column(1).to_pylist()[0] == [first]
    assert output.column(2).to_pylist()[0] == wall
    if zone == BERLIN:
        assert first == BEFORE


def test_a_zone_that_python_does_not_know_is_named_where_it_is_needed() -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])

    def emitted(moment: dt.datetime) -> Emitted:
        return Emitted(
            rows=[(moment,)], ends=[1], keys=[("a",)], schema=schema, operator="o", zone="Mars/X"
        )

    assert emitted(BEFORE).to_batch().num_rows == 1
    with pytest.raises(UserFunctionError, match=r"key \('a',\).*no zone 'Mars/X'"):
        emitted(BEFORE.replace(tzinfo=None)).to_batch()


def test_moments_within_values_are_of_the_sessions_zone_too() -> None:
    instant = pa.timestamp("us", tz="UTC")
    wall = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001
    there = wall.replace(tzinfo=zoneinfo.ZoneInfo(BERLIN))
    dtype = pa.struct({"at": instant, "by": pa.map_(pa.string(), instant)})
    value = {"at": wall, "by": {"x": wall, "y": None}}
    assert in_zone(value, dtype, BERLIN) == {"at": there, "by": [("x", there), ("y", None)]}


def test_windows_give_their_bounds_and_take_moments_as_functions_of_keys_do() -> None:
    moments = pa.array([BEFORE, BEFORE + HOUR], ROWS.field("ts").type)
    seen: list[gw.types.Window] = []

    def function(_key: Any, _rows: Any, window: gw.types.Window) -> Any:
        seen.append(window)
        return [(window.start.replace(tzinfo=None),)]

    made = WindowedProcess(
        name="o",
        keys=("k",),
        arriving=ROWS,
        time=RowTime(column="ts"),
        function=function,
        output=pa.schema([("at", pa.timestamp("us", tz="UTC"))]),
        grid=PaneGrid.of(TimeWindow(length_us=1, every_us=1)),
        zone=BERLIN,
    )
    batch = rows(BEFORE)
    output = call_for_windows(
        made,
        keys=batch.select(["k"]),
        starts=moments[:1],
        ends=moments[1:],
        rows=batch.select(["ts"]),
        order=pa.array([0]).to_numpy(),
        bounds=pa.array([0, 1]).to_numpy(),
    )
    assert seen[0].end - seen[0].start == HOUR
    assert output["output"].column(0).to_pylist() == [BEFORE]


NUMBERS = [None, 0, 1, -1, 10**5, -(10**5), 10**9, 2**31 - 1, -(2**31)]
TIMES = [None, 0, -1, 10**12, 10**17, -(10**17), 2**63 - 1, 1 - 2**63, -(2**63), 1_700_000_000]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(NUMBERS, pa.date32()),
        pa.array(NUMBERS[:6], pa.date32()).slice(1, 4),
        *[pa.array(TIMES, pa.timestamp(unit)) for unit in ("s", "ms", "us")],
        *[pa.array(TIMES[1:8], pa.timestamp(unit)) for unit in ("s", "ms", "us")],
        pa.array(TIMES[:3], pa.timestamp("ns")),
        pa.array(NUMBERS, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(30, 11)),
        pa.array([None, "a", ""]),
        pa.array([None, b"a", b""]),
        pa.array([], pa.date32()),
        pa.nulls(2, pa.timestamp("us")),
    ],
    ids=lambda column: str(column.type),
)
def test_values_are_those_of_arrow_or_numbers_where_it_has_none(column: pa.Array) -> None:
    values = python_values(column)
    for value, scalar in zip(values, column, strict=True):
        try:
            expected = scalar.as_py()
        except (OverflowError, ValueError):
            expected = scalar.value
        assert value == expected
        assert type(value) is type(expected)

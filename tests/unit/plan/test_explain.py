"""The text that explains how a flow runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.fake_flow import FakeDataFrame

from godwit.api.flow import LogicalFlow as Flow
from godwit.library.aggregates import count, max, sum  # noqa: A004
from godwit.operators.window_specs import hopping, session, tumbling
from godwit.plan.explain import explain

Resolve = Callable[[str, tuple[Callable[[Any], Any], ...]], pa.Schema]


def clear_market(key: Any, rows: Any, state: Any) -> None: ...
def rank(key: Any, rows: Any, window: Any) -> None: ...


def late(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(table["total"], 60.0))


@pytest.fixture
def delays(flow: Flow, flights: Any, orders: Any, sink: Any) -> Flow:
    plane = (
        flow.source("flights", flights)
        .map(lambda df: df.drop("legs"))
        .key_by("tailnum", "year")
        .compute(name="plane", total=sum("arr_delay"), flights=count())
    )
    worst = (
        plane.map(late).key_by("year").compute(name="worst", output="complete", worst=max("total"))
    )
    trades = (
        flow.source("orders", orders)
        .key_by("symbol")
        .process(clear_market, state=dict, output="price double", name="trades")
    )
    flow.sink("planes", plane, sink)
    flow.sink("worst", worst, sink)
    flow.sink("trades", trades, sink)
    return flow


def sections(text: str) -> dict[str, dict[str, str]]:
    """Operator → label → text, with wrapped lines joined."""
    found: dict[str, dict[str, str]] = {}
    operator = label = ""
    for line in text.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            operator = line.strip()
            found[operator] = {}
        elif line.startswith("    "):
            label = line[4:14].strip() or label
            found[operator][label] = f"{found[operator].get(label, '')} {line[14:]}".strip()
    return found


def test_it_begins_with_the_size_of_the_flow(delays: Flow, resolve: Resolve) -> None:
    text = explain(delays.compile(resolve))
    assert text.startswith(
        "Flow 'delays': 2 sources, 3 keyed operators on 2 levels, 3 sinks\n"
        "The keys of every operator fall into 64 key groups; "
    )


def test_operators_come_level_by_level(delays: Flow, resolve: Resolve) -> None:
    lines = explain(delays.compile(resolve)).splitlines()
    order = ["Level 1: fed by sources", "  plane", "  trades", "Level 2: fed by operators"]
    positions = [lines.index(line) for line in [*order, "  worst"]]
    assert positions == sorted(positions)


def test_an_aggregate_is_combined_before_its_exchange(delays: Flow, resolve: Resolve) -> None:
    assert sections(explain(delays.compile(resolve)))["plane"] == {
        "does": "compute total = sum(arr_delay), flights = count()",
        "reads": "source 'flights', after 1 map in Catalyst",
        "key": "tailnum string, year int32",
        "exchange": "one partial state per key: the source side may combine rows before they are "
        "sent",
        "state": ", ".join(
            f"{field.name} {field.type}"
            for field in delays.compile(resolve).operator("plane").schema.values
        ),
        "kind": "stateful and flexible: its state can be made of partial states",
        "emits": "keys that changed in the epoch: tailnum string, year int32, total double, "
        "flights int64",
        "feeds": "sink 'planes' (FakeSink) operator 'worst', after 1 map in the lane (late)",
    }


def test_a_process_gets_every_row_in_order(delays: Flow, resolve: Resolve) -> None:
    trades = sections(explain(delays.compile(resolve)))["trades"]
    assert trades["does"] == "process with clear_market, state dict"
    assert trades["reads"] == "source 'orders'"
    assert trades["exchange"] == ("every row, uncombined and in arrival order: symbol, price, size")
    assert trades["kind"] == "stateful and rigid: rows have to come to their state"
    assert trades["emits"].startswith("what the function returns: ")
    assert trades["emits"].endswith("price double")


def test_an_operator_after_another_says_which(delays: Flow, resolve: Resolve) -> None:
    worst = sections(explain(delays.compile(resolve)))["worst"]
    assert worst["reads"] == "operator 'plane', after 1 map in the lane (late)"
    assert "lanes that emit them may combine" in worst["exchange"]
    assert worst["emits"] == "all keys, in every epoch: year int32, worst double"
    assert worst["feeds"] == "sink 'worst' (FakeSink)"


@pytest.mark.parametrize(
    ("output", "emits"),
    [
        ("append", "windows, once each, when the watermark has passed their end: "),
        ("update", "windows that grew in the epoch, with what they hold by then: "),
    ],
)
@pytest.mark.parametrize("slack", ["5 minutes", "0 seconds"])
def test_windows_say_which_they_are_and_how_far_their_time_has_come(
    flow: Flow, sink: Any, output: Any, emits: str, slack: str
) -> None:
    rows: Any = FakeDataFrame(pa.schema({"k": pa.string(), "ts": pa.timestamp("us", tz="UTC")}))
    keyed = flow.source("rides", rows, event_time="ts", slack=slack).key_by("k")
    windows = (tumbling("1 hour"), hopping("6 hours", every="1 hour"))
    flow.sink("w", keyed.window(*windows, output=output, name="w").compute(n=count()), sink)
    sessions = keyed.window(session("10 minutes"), name="s").process(rank, output="price double")
    flow.sink("s", sessions, sink)
    text = explain(flow.compile(lambda *_: rows.schema))
    told = sections(text)
    assert told["w"]["does"] == (
        "compute n = count() per window: tumbling 1 hour, hopping 6 hours every 1 hour"
    )
    assert told["w"]["time"] == told["s"]["time"] == "event time 'ts'"
    assert told["w"]["emits"].startswith(emits)
    assert told["s"]["does"] == "process with rank per window: session of gap 10 minutes"
    assert told["s"]["emits"].startswith("windows, once each")
    watermark = next(line for line in text.splitlines() if line.startswith("Watermark of"))
    assert watermark.startswith("Watermark of source 'rides': the greatest 'ts' that was seen, ")
    assert ("less the slack of 5 minutes" in watermark) is (slack == "5 minutes")
    assert ("rows out of order" in text) is (slack == "0 seconds")


def test_lines_are_at_most_100_characters_long(
    flow: Flow, flights: Any, sink: Any, resolve: Resolve
) -> None:
    results: Any = {f"result_number_{i}": sum("arr_delay") for i in range(30)}
    wide = flow.source("flights", flights).key_by("tailnum").compute(name="wide", **results)
    flow.sink("s", wide, sink)
    text = explain(flow.compile(resolve))
    assert not [line for line in text.splitlines() if len(line) > 100]
    does = sections(text)["wide"]["does"]
    assert does == "compute " + ", ".join(f"{name} = sum(arr_delay)" for name in results)


def test_a_column_and_its_type_stay_on_one_line(
    flow: Flow, flights: Any, sink: Any, resolve: Resolve
) -> None:
    results: Any = {f"result_{i}": count() for i in range(30)}
    wide = flow.source("flights", flights).key_by("tailnum").compute(name="wide", **results)
    flow.sink("s", wide, sink)
    lines = explain(flow.compile(resolve)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    emits"))
    stop = next(i for i, line in enumerate(lines) if line.startswith("    feeds"))
    assert stop - start > 1
    assert [line for line in lines[start:stop] if not line.endswith((" int64,", " int64"))] == []


def test_one_of_each_is_said_in_the_singular(flights: Any, sink: Any) -> None:
    flow = Flow("small", num_key_groups=1)
    flow.sink("s", flow.source("flights", flights).key_by("year").compute(n=count()), sink)
    text = explain(flow.compile(lambda *_: flights.schema))
    assert text.startswith(
        "Flow 'small': 1 source, 1 keyed operator on 1 level, 1 sink\n"
        "The keys of every operator fall into 1 key group; "
    )
    assert "one chain of stages" not in text

"""Joins and dropped duplicates: what may be asked for, and what comes out of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink

from godwit.api.flow import LogicalFlow as Flow
from godwit.library import aggregates as gw
from godwit.library.joins.sides import within
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError
from godwit.operators.window_specs import tumbling
from godwit.plan.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fake_flow import Resolve

    from godwit.api.streams import Stream

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("id", pa.int64()), ("ts", TIME), ("price", pa.float64())])
PAYMENTS = pa.schema([("order", pa.int64()), ("paid", TIME), ("price", pa.float64())])
MINUTES = ("-1 minute", "5 minutes")


def source(flow: Flow, name: str, schema: pa.Schema, time: str | None) -> Stream:
    frame: Any = FakeDataFrame(schema)
    return flow.source(name, frame, event_time=time)


@pytest.fixture
def left(flow: Flow) -> Stream:
    return source(flow, "orders", ORDERS, "ts")


@pytest.fixture
def right(flow: Flow) -> Stream:
    return source(flow, "payments", PAYMENTS, "paid")


def compiled(flow: Flow, resolve: Resolve, stream: Stream) -> Any:
    flow.sink("out", stream, FakeSink())
    return flow.compile(resolve)


def refused(call: Callable[[], object], *told: str) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        call()
    for part in told:
        assert part in f"{caught.value} {caught.value.remedy}"


def test_a_join_has_the_columns_of_both(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    met = left.key_by("id").join(right.key_by("order"), between=MINUTES, how="full", suffix="_paid")
    found = compiled(flow, resolve, met)
    (operator,) = found.operators
    assert operator.name == "orders_join_payments_by_id"
    assert operator.output.names == ["id", "ts", "price", "paid", "price_paid"]
    assert [given.keys for given in found.inputs] == [("id",), ("order",)]
    text = explain(found)
    assert "join (full) with rows of the right from -1 minute to 5 minutes later" in text
    assert "source 'payments'" in text
    assert found.outputs[0].keys == ()


def test_names_of_both_sides_are_refused_without_a_suffix(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    met = left.key_by("id").join_newest(right.key_by("order"))
    refused(lambda: compiled(flow, resolve, met), "which both have 'price'", 'suffix="_right"')


def test_a_suffix_that_makes_a_name_of_another_column_is_refused(
    flow: Flow, resolve: Resolve, right: Stream
) -> None:
    both = ORDERS.append(pa.field("price_r", pa.float64()))
    met = (
        source(flow, "more", both, "ts")
        .key_by("id")
        .join_newest(right.key_by("order"), suffix="_r")
    )
    refused(lambda: compiled(flow, resolve, met), "two columns named 'price_r'")


def test_keys_of_other_types_or_numbers_are_refused(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    met = left.key_by("id").join_newest(right.key_by("price"), suffix="_r")
    refused(
        lambda: compiled(flow, resolve, met),
        "'id' of source 'orders', whose type is int64",
        "double",
    )


def test_keys_of_another_number_of_columns_are_refused(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    met = left.key_by("id").join_newest(right.key_by("order", "price"), suffix="_r")
    refused(lambda: compiled(flow, resolve, met), "joins by 'id' of source 'orders' and by")


def test_columns_that_are_not_there_are_refused_on_either_side(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    met = left.key_by("id").join_newest(right.key_by("oder"), suffix="_r")
    refused(lambda: compiled(flow, resolve, met), "column 'oder', which source 'payments' does not")


def test_a_side_without_event_time_is_refused(flow: Flow, resolve: Resolve, left: Stream) -> None:
    other = source(flow, "untimed", PAYMENTS, None)
    met = left.key_by("id").join(other.key_by("order"), between=MINUTES, suffix="_r")
    refused(
        lambda: compiled(flow, resolve, met), "joins by event time, but source 'untimed' has no"
    )


def test_an_event_time_that_is_no_moment_is_refused(
    flow: Flow, resolve: Resolve, left: Stream
) -> None:
    other = source(flow, "wrong", PAYMENTS, "price")
    met = left.key_by("id").join_newest(other.key_by("order"), suffix="_r")
    refused(lambda: compiled(flow, resolve, met), "'price' of source 'wrong', whose type is double")


def test_options_of_joins_that_will_not_do_are_refused(left: Stream, right: Stream) -> None:
    one, other = left.key_by("id"), right.key_by("order")
    wrong: Any = "5 minutes"
    refused(lambda: one.join(other, between=("1 hour", "1 minute")), "ends before it begins")
    refused(lambda: one.join(other, between=wrong), "between='5 minutes'", "at least and at most")
    refused(lambda: one.join(other, between=("a while", "1 hour")), "which is not a duration")
    outer: Any = "outer"
    refused(lambda: one.join(other, between=MINUTES, how=outer), "how='outer'", "'full'")
    full: Any = "full"
    refused(lambda: one.join_newest(other, how=full), "how='full'", "'inner'")
    refused(lambda: one.join_newest(other, within="-1 hour"), "is negative")
    refused(lambda: one.join_newest(other, suffix=""), "suffix=''")
    stream: Any = right
    refused(lambda: one.join_newest(stream), "type Stream, not a keyed stream", "key_by")
    foreign = source(Flow("foreign"), "payments", PAYMENTS, "paid").key_by("order")
    refused(lambda: one.join_newest(foreign), "a stream of another flow, 'foreign'")


def test_bounds_may_be_negative_as_text_and_as_timedeltas(
    flow: Flow, left: Stream, right: Stream
) -> None:
    one, other = left.key_by("id"), right.key_by("order")
    one.join(other, between=(timedelta(seconds=-90), timedelta()), name="a")
    one.join(other, between=("-1 minute 30 seconds", "0 seconds"), name="b")
    assert [getattr(node, "between_us", None) for node in flow.operators] == [(-90_000_000, 0)] * 2


def test_duplicates_need_columns_and_a_time(left: Stream) -> None:
    forever: Any = "for ever"
    refused(lambda: left.drop_duplicates(within="1 hour"), "names no column", "within=")
    refused(lambda: left.drop_duplicates("id"), "within which time", 'within="forever"')
    refused(lambda: left.drop_duplicates("id", within="-1 hour"), "is negative")
    refused(lambda: left.drop_duplicates("id", within=forever), "not a duration")
    refused(lambda: left.drop_duplicates("id", "id", within="1 hour"), "'id' twice")


def test_duplicates_keep_the_columns_in_their_order(
    flow: Flow, resolve: Resolve, left: Stream
) -> None:
    once = left.drop_duplicates("ts", "id", within="1 hour")
    again = once.drop_duplicates("id", within="forever")
    hourly = again.key_by("id").window(tumbling("1 hour")).compute(n=gw.count())
    found = compiled(flow, resolve, hourly)
    first, second, windows = found.operators
    assert first.name == "orders_drop_duplicates_by_ts_id"
    assert first.output.names == second.output.names == ORDERS.names
    assert windows.time.column == "ts"
    assert "drop duplicates by ts, id within 1 hour" in explain(found)


def test_duplicates_within_a_time_need_an_event_time(flow: Flow, resolve: Resolve) -> None:
    once = source(flow, "untimed", ORDERS, None).drop_duplicates("id", within="1 hour")
    refused(
        lambda: compiled(flow, resolve, once),
        "drops duplicates by event time, but source 'untimed' has no event time",
    )


def test_another_interval_means_another_state(
    flow: Flow, resolve: Resolve, left: Stream, right: Stream
) -> None:
    one, other = left.key_by("id"), right.key_by("order")
    changes: list[dict[str, Any]] = [
        {},
        {"between": ("0 seconds", "1 hour")},
        {"how": "left"},
        {"suffix": "_paid"},
    ]
    for number, options in enumerate(changes):
        told: Any = {"between": MINUTES, "suffix": "_r", "name": f"join{number}", **options}
        flow.sink(f"out{number}", one.join(other, **told), FakeSink())
    first, *others = flow.compile(resolve).operators
    assert first.upgrade_from(first.describe_state()) is None
    for changed, says in zip(
        others, ("latest_us", "how", "price_r is gone and price_paid is new"), strict=True
    ):
        with pytest.raises(CheckpointMismatchError, match=says):
            changed.upgrade_from(first.describe_state())


def test_rows_within_a_reach_are_those_that_a_loop_finds() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        n, m = rng.integers(0, 12, 2)
        key, other = rng.integers(0, 3, n), rng.integers(0, 3, m)
        first, moment = rng.integers(-5, 5, n), rng.integers(-5, 5, m)
        last = first + rng.integers(-2, 4, n)
        found = within(key, first, last, other, moment)
        pairs = sorted(zip(*(part.tolist() for part in found.pairs()), strict=True))
        assert pairs == [
            (i, j)
            for i in range(n)
            for j in range(m)
            if key[i] == other[j] and first[i] <= moment[j] <= last[i]
        ]

"""Feeds: what operators read of sources, laid out as one table, and given back to each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.library import aggregates as gw
from godwit.operators.window_specs import tumbling
from godwit.spark.stages.source_rows import feeds_of, read_feeds, union_columns

LEFT = pa.schema({"k": pa.string(), "v": pa.int64(), "w": pa.int64(), "unread": pa.binary()})
RIGHT = pa.schema({"name": pa.string(), "size": pa.int64()})


def flow_of(*names: str) -> Any:
    """Sums of two columns of one source and of one of another; operators declared as named."""
    flow = LogicalFlow("feeds", num_key_groups=4)
    left: Any = FakeDataFrame(LEFT)
    right: Any = FakeDataFrame(RIGHT)
    streams = {"z": flow.source("z", left), "a": flow.source("a", right)}
    made = {
        "one": lambda: streams["z"].key_by("k").compute(name="one", s=gw.sum("v")),
        "two": lambda: streams["z"].key_by("k").compute(name="two", s=gw.sum("w")),
        "other": lambda: streams["a"].key_by("name").compute(name="other", s=gw.sum("size")),
    }
    for name in names:
        flow.sink(name, made[name](), FakeSink())
    return flow.compile(resolver(flow))


def test_operators_of_one_source_share_a_feed_of_the_columns_they_read() -> None:
    feeds = feeds_of(flow_of("one", "two", "other"))
    assert [feed.source for feed in feeds] == ["a", "z"]
    other, shared = feeds
    assert set(shared.schema.names) == {"k", "v", "w"}
    assert len(shared.inputs) == 2
    # Slots are shared by type: the union is as wide as its widest feed.
    assert set(union_columns(other).values()) <= set(union_columns(shared).values())


def test_the_order_of_feeds_does_not_follow_the_operators() -> None:
    one, other = (feeds_of(flow_of(*n)) for n in (("one", "other"), ("other", "one")))
    assert [feed.source for feed in one] == [feed.source for feed in other] == ["a", "z"]


def test_each_operator_gets_its_own_rows_under_its_own_names() -> None:
    flow = flow_of("one", "two", "other")
    feeds = feeds_of(flow)
    a, z = feeds
    slots = union_columns(z)
    table = pa.table(
        {
            slots["k"]: ["x", "y", "m"],
            slots["v"]: pa.array([1, 2, 7], pa.int64()),
            slots["w"]: pa.array([3, 4, None], pa.int64()),
            "__godwit_feed": pa.array([1, 1, 0], pa.int32()),
        }
    )
    found = {
        flow.operators[given.index].name: columns.to_pylist()
        for given, columns in read_feeds(feeds, table)
    }
    assert found["one"] == [{"k": "x", "v": 1}, {"k": "y", "v": 2}]
    assert found["two"] == [{"k": "x", "w": 3}, {"k": "y", "w": 4}]
    assert list(found["other"][0].values()) == ["m", 7]
    assert a.source == "a"


def test_a_feed_without_rows_is_passed_over() -> None:
    feeds = feeds_of(flow_of("one", "other"))
    slots = {slot for feed in feeds for slot in union_columns(feed).values()}
    columns = {
        slot: pa.array([None], pa.string() if slot.startswith("string") else pa.int64())
        for slot in slots
    }
    table = pa.table({**columns, "__godwit_feed": pa.array([0], pa.int32())})
    assert [given for given, _ in read_feeds(feeds, table)] == [feeds[0].inputs[0]]


def test_feeds_are_the_same_under_every_physical_plan() -> None:
    # The driver lays rows out before the checkpoint is opened, which may hold another plan.
    flow = flow_of("one", "two", "other")
    plan = PhysicalPlan(
        components=(
            ComponentPlan(name="b", operators=("other", "two")),
            ComponentPlan(name="a", operators=("one",)),
        )
    )
    assert feeds_of(flow.with_plan(plan)) == feeds_of(flow)


def test_a_feed_moves_the_watermark_of_the_maps_that_computed_its_time() -> None:
    def later(rows: Any) -> Any:
        return rows

    columns = pa.schema({"k": pa.string(), "ts": pa.timestamp("us", tz="UTC")})
    flow = LogicalFlow("feeds", num_key_groups=4)
    frames: dict[str, Any] = {name: FakeDataFrame(columns) for name in ("a", "b")}
    for name, frame in frames.items():
        stream = flow.source(name, frame, event_time="ts")
        for operator, of in ((f"raw-{name}", stream), (f"later-{name}", stream.map(later))):
            windows = of.key_by("k").window(tumbling("1 minute"), name=operator)
            flow.sink(operator, windows.compute(n=gw.count()), FakeSink())
    made = flow.compile(resolver(flow), lambda source, maps, _: len(maps) * (source == "b"))
    assert made.watermarks == (("a",), ("b",), ("b/later-b",))
    moved = {
        made.operators[i.index].name: i.watermark
        for feed in feeds_of(made)
        for i in feed.inputs
        if i.time is not None
    }
    assert moved == {"raw-a": 0, "later-a": 0, "raw-b": 1, "later-b": 2}

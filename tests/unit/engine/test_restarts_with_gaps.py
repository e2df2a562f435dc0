"""State that a version of a program did not have is gone, even if the checkpoint still has it."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.restarted import COLUMNS, Restarted

import godwit as gw
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.api.streams import Stream

    Build = Callable[[Stream], Stream]

S = 1_000_000


def count(key: tuple[str], rows: Any, state: Any) -> Any:
    state.n += len(rows)
    yield key[0], state.n, getattr(state, "extra", -1)
    if hasattr(state, "extra"):
        state.extra = 7


def counted(**fields: Any) -> Build:
    cls = make_dataclass("Count", [("n", int, 0), *((name, *of) for name, of in fields.items())])

    def add_counter(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            count, name="op", state=cls, output="k string, n bigint, extra bigint"
        )

    return add_counter


@pytest.mark.parametrize("tagged", [False, True])
def test_a_field_that_some_version_did_not_have_begins_with_its_default(
    tmp_path: Path, tagged: bool
) -> None:
    more: dict[str, Any] = {"open": (Any, None)} if tagged else {}
    extra: dict[str, Any] = {"extra": (int, 0), **more}
    run = Restarted(tmp_path, counted(**extra))
    run.epoch(rows=[("a", 1 * S, 1), ("b", 1 * S, 1)])
    run = Restarted(tmp_path, counted(**more))
    assert run.epoch(rows=[("b", 2 * S, 1)]) == [("b", 2, -1)]
    for n in (2, 3):  # the second time, state is what the first one wrote
        run = Restarted(tmp_path, counted(**extra))
        found = run.epoch(rows=[("a", 3 * S, 1), ("b", 3 * S, 1)])
        assert found == [("a", n, 0 if n == 2 else 7), ("b", n + 1, 0 if n == 2 else 7)]


def test_a_field_in_the_values_of_a_list_that_came_back_begins_with_its_default(
    tmp_path: Path,
) -> None:
    def flow_with_fields(*fields: Any) -> Build:
        item: Any = make_dataclass("Item", [("n", int, 0), *fields])

        def note(key: tuple[str], rows: Any, states: Any) -> Any:
            for row in rows:
                states.items.append(item(row.v, *(9 for _ in fields)))
            yield key[0], [getattr(i, "extra", -1) for i in states.items]

        def flow(rows: Stream) -> Stream:
            return rows.key_by("k").process(
                note,
                name="op",
                state={"items": gw.ListState(item)},
                output=pa.schema([("k", pa.string()), ("extras", pa.list_(pa.int64()))]),
            )

        return flow

    extra = ("extra", int, 0)
    assert Restarted(tmp_path, flow_with_fields(extra)).epoch(rows=[("a", S, 1)]) == [("a", [9])]
    Restarted(tmp_path, flow_with_fields()).epoch(rows=[("b", S, 1)])
    assert Restarted(tmp_path, flow_with_fields(extra)).epoch(rows=[("a", S, 2)]) == [("a", [0, 9])]


def total(key: tuple[str], rows: Any, state: Any) -> Any:
    state.value += len(rows)
    yield key[0], state.value


def total_of_states(key: tuple[str], rows: Any, states: Any) -> Any:
    yield from total(key, rows, states.n)


def kept_for(ttl: str | None, *, named: bool) -> Build:
    def add_totals(rows: Stream) -> Stream:
        if named:
            options: dict[str, Any] = {"state": {"n": gw.ValueState(int, ttl=ttl)}}
        else:
            options = {"state": gw.ValueState(int, ttl=ttl)}
        return rows.key_by("k").process(
            total_of_states if named else total, name="op", output="k string, n bigint", **options
        )

    return add_totals


@pytest.mark.parametrize("named", [False, True])
def test_state_does_not_expire_by_a_time_to_live_that_was_taken_away_in_between(
    tmp_path: Path, named: bool
) -> None:
    rows = [("a", S, 1)]
    for at_s, ttl, others in ((100, "10 seconds", rows), (200, None, [("b", S, 1)])):
        run = Restarted(tmp_path, kept_for(ttl, named=named))
        run.lanes.clock_us = at_s * S
        run.epoch(rows=others)
    run = Restarted(tmp_path, kept_for("10 seconds", named=named))
    run.lanes.clock_us = 300 * S
    assert run.epoch(rows=rows) == [("a", 2)]


def add_rows(key: tuple[str], rows: Any, states: Any) -> Any:
    for row in rows:
        states.items.append(row.v)
    yield key[0], list(states.items), bool(states.items)


def listed(ttl: str | None) -> Build:
    def add_lists(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            add_rows,
            name="op",
            state={"items": gw.ListState(int, ttl=ttl)},
            output=pa.schema(
                [("k", pa.string()), ("items", pa.list_(pa.int64())), ("any", pa.bool_())]
            ),
        )

    return add_lists


def list_run(root: Path, ttl: str | None, at_s: int) -> Restarted:
    run = Restarted(root, listed(ttl))
    run.lanes.clock_us = at_s * S
    return run


def test_elements_keep_the_time_that_they_have_when_a_list_has_no_time_to_live_any_more(
    tmp_path: Path,
) -> None:
    run = list_run(tmp_path, "10 seconds", 100)
    run.epoch(rows=[("a", S, 1)])
    run.lanes.clock_us = 108 * S
    assert run.epoch(rows=[("a", S, 2)]) == [("a", [1, 2], True)]
    run.lanes.clock_us = 112 * S
    assert run.epoch(rows=[("a", S, 3)]) == [("a", [2, 3], True)]
    run = list_run(tmp_path, None, 113)
    assert run.epoch(rows=[("a", S, 4)]) == [("a", [2, 3, 4], True)]
    run.lanes.clock_us = 1000 * S
    assert run.epoch(rows=[("a", S, 5)]) == [("a", [4, 5], True)]
    run = list_run(tmp_path, "10 seconds", 2000)
    assert run.epoch(rows=[("a", S, 6)]) == [("a", [4, 5, 6], True)]
    run.lanes.clock_us = 3000 * S
    assert run.epoch(rows=[("a", S, 7)]) == [("a", [4, 5, 7], True)]


@pytest.mark.parametrize("before", [1, 100])
def test_a_list_that_gets_a_time_to_live_does_not_grow_for_good(
    tmp_path: Path, before: int
) -> None:
    many = [("a", S, v) for v in range(70)]
    run = list_run(tmp_path, None, 100)
    run.epoch(rows=[("a", S, -1)] * before)
    run = list_run(tmp_path, "10 seconds", 200)
    sizes = []
    for epoch in range(6):
        run.lanes.clock_us = (200 + 20 * epoch) * S
        ((_, items, there),) = run.epoch(rows=many)
        assert there
        assert items == [-1] * before + list(range(70))
        sizes.append(len(run.lanes.held(state="items")))
    assert sizes[-1] == sizes[1]


def note(key: tuple[str], rows: Any, state: Any) -> None:
    for row in rows:
        if hasattr(rows, "timers"):
            rows.timers.set(row.ts + timedelta(seconds=10))


def ring(key: tuple[str], timer: Any, state: Any) -> Any:
    yield key[0], timer.time


def timed(clock: Any, *, named: bool) -> Build:
    def add_timers(rows: Stream) -> Stream:
        options: dict[str, Any] = {"state": dict}
        if named:
            options = {"state": {"n": gw.ValueState(int)}}
        if clock is not None:
            options["timers"] = gw.types.OnTimer(ring, clock=clock)
        return rows.key_by("k").process(note, name="op", output="k string, at timestamp", **options)

    return add_timers


@pytest.mark.parametrize("named", [False, True])
def test_timers_that_were_taken_away_in_between_do_not_fire(tmp_path: Path, named: bool) -> None:
    Restarted(tmp_path, timed("event", named=named)).epoch(rows=[("a", 1 * S, 1), ("b", 2 * S, 1)])
    Restarted(tmp_path, timed(None, named=named)).epoch(rows=[("b", 3 * S, 1)])
    run = Restarted(tmp_path, timed("event", named=named))
    run.epoch(rows=[("b", 4 * S, 1)])
    found = run.epoch(rows=[("c", 100 * S, 1)])
    assert found + run.epoch() == [("b", 14 * S)]


def boxes(item: Any, classes: Any = None) -> Build:
    def fill(key: tuple[str], rows: Any, state: dict[str, Any]) -> Any:
        if not state:
            state["item"] = item()
        yield key[0], str(state["item"])

    def add_boxes(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            fill,
            name="op",
            state=gw.ValueState(dict, classes=[item] if classes is None else classes),
            output="k string, item string",
        )

    return add_boxes


Item = make_dataclass("Item", [("n", int, 5)])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (make_dataclass("Item", [("m", int, 0)]), "n gone and m new"),
        (make_dataclass("Item", [("n", str, "")]), r"Item.n: int → str"),
        (make_dataclass("Item", [("more", list), ("n", int, 5)]), "more: new, without a default"),
        (make_dataclass("Another", [("n", int, 5)]), "class Item is gone"),
    ],
)
def test_a_changed_class_that_the_type_does_not_mention_is_refused(
    tmp_path: Path, changed: Any, says: str
) -> None:
    rows = [("a", S, 1)]
    Restarted(tmp_path, boxes(Item)).epoch(rows=rows)
    with pytest.raises(CheckpointMismatchError, match=says):
        Restarted(tmp_path, boxes(changed, [changed]))
    wider = make_dataclass("Item", [("n", int, 0), ("more", list, field(default_factory=list))])
    assert Restarted(tmp_path, boxes(wider)).epoch(rows=rows) == [("a", "Item(n=5, more=[])")]


def test_a_class_that_only_a_gone_field_mentions_may_be_gone(tmp_path: Path) -> None:
    def counter_of_class(cls: Any) -> Build:
        def seen(key: tuple[str], rows: Any, state: Any) -> Any:
            yield key[0], state.n

        return lambda rows: rows.key_by("k").process(
            seen, name="op", state=cls, output="k string, n bigint"
        )

    with_item = make_dataclass("Box", [("n", int, 1), ("item", Item, field(default_factory=Item))])
    Restarted(tmp_path, counter_of_class(with_item)).epoch(rows=[("a", S, 1)])
    run = Restarted(tmp_path, counter_of_class(make_dataclass("Box", [("n", int, 2)])))
    assert run.epoch(rows=[("a", S, 1)]) == [("a", 1)]


def test_a_list_is_not_read_as_a_value(tmp_path: Path) -> None:
    def add(key: tuple[str], rows: Any, states: Any) -> None:
        states.state.append(1)

    def as_list(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            add, name="op", state={"state": gw.ListState(int)}, output="n bigint"
        )

    def as_value(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            lambda key, rows, state: None, name="op", state=list[int], output="n bigint"
        )

    Restarted(tmp_path, as_list).epoch(rows=[("a", S, 1)])
    with pytest.raises(CheckpointMismatchError, match="entries"):
        Restarted(tmp_path, as_value)


def function(length: str) -> Build:
    def rows_of_windows(rows: Stream) -> Stream:
        windows = rows.key_by("k").window(gw.tumbling(length), name="op")
        return windows.process(
            lambda key, rows, window: [(key[0], row.v) for row in rows], output="k string, v bigint"
        )

    return rows_of_windows


def test_rows_that_wait_for_other_windows_are_refused(tmp_path: Path) -> None:
    run = Restarted(tmp_path, function("10 seconds"))
    run.lanes.suspended = frozenset(range(8))
    run.epoch(rows=[("a", 15 * S, 1)])
    assert run.lanes.waiting()
    with pytest.raises(CheckpointMismatchError, match=r"rows for operator.*length_us"):
        Restarted(tmp_path, function("20 seconds"))
    run = Restarted(tmp_path, function("10 seconds"))
    run.epoch()
    run.times.end_input()
    assert run.epoch() == [("a", 1)]


@pytest.mark.parametrize(
    "columns",
    [
        pa.schema(list(reversed(COLUMNS))),
        COLUMNS.set(1, pa.field("ts", pa.timestamp("us", tz="Asia/Tokyo"))),
        pa.schema([("new", pa.int64()), *COLUMNS]),
    ],
    ids=["another order", "another zone", "a new column"],
)
def test_rows_that_wait_are_read_by_name(tmp_path: Path, columns: pa.Schema) -> None:
    run = Restarted(tmp_path, function("10 seconds"))
    run.lanes.suspended = frozenset(range(8))
    run.epoch(rows=[("a", 15 * S, 1), ("b", 16 * S, 2)])
    run = Restarted(tmp_path, function("10 seconds"), {"rows": {"columns": columns}})
    run.epoch()
    run.times.end_input()
    assert run.epoch() == [("a", 1), ("b", 2)]


def test_rows_that_wait_with_a_column_that_may_have_been_renamed_are_refused(
    tmp_path: Path,
) -> None:
    def rows_with_gap(rows: Stream) -> Stream:
        return rows.key_by("k").process(
            lambda key, rows, state: None, name="op", state=dict, output="n bigint"
        )

    run = Restarted(tmp_path, rows_with_gap)
    run.lanes.suspended = frozenset(range(8))
    run.epoch(rows=[("a", S, 1)])
    renamed = pa.schema([f.with_name("w") if f.name == "v" else f for f in COLUMNS])
    with pytest.raises(CheckpointMismatchError, match="column v is gone and w is new"):
        Restarted(tmp_path, rows_with_gap, {"rows": {"columns": renamed}})


def test_partial_states_that_wait_are_read_by_name_in_another_time_zone(tmp_path: Path) -> None:
    def flow_with_results(**results: Any) -> Build:
        def flow(rows: Stream) -> Stream:
            return rows.key_by("k").window(gw.tumbling("10 seconds"), name="op").compute(**results)

        return flow

    run = Restarted(tmp_path, flow_with_results(total=gw.sum("v"), last=gw.max("ts")))
    run.lanes.suspended = frozenset(range(8))
    run.epoch(rows=[("a", 15 * S, 4), ("a", 16 * S, 5)])
    columns = COLUMNS.set(1, pa.field("ts", pa.timestamp("us", tz="Asia/Tokyo")))
    after = flow_with_results(n=gw.count(), last=gw.max("ts"), total=gw.sum("v"))
    run = Restarted(tmp_path, after, {"rows": {"columns": columns}})
    run.epoch(rows=[("a", 17 * S, 1)])
    run.times.end_input()
    assert run.epoch() == [("a", 10 * S, 20 * S, 1, 17 * S, 10)]

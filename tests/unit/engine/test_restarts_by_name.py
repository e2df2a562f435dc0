"""State and waiting rows are read by name, and refused where they would mean something else."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.restarted import TIME, Restarted

import godwit as gw
from godwit.checkpoint import entries
from godwit.model.errors import CheckpointMismatchError
from godwit.ops.edits import remove_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from godwit.api.streams import Stream

    Build = Callable[..., Stream]

S = 1_000_000
AB = pa.schema([("k", pa.string()), ("ts", TIME), ("a", pa.int64()), ("b", pa.int64())])
ABC = pa.schema([("c", pa.int64()), *AB])
OF_OTHER = pa.schema([("k", pa.string()), ("ts", TIME), ("x", pa.int64())])
ZONED = pa.timestamp("us", tz="Europe/Berlin")
ROWS = [
    {"k": "k", "ts": 1 * S, "a": 1, "b": 10, "c": 100},
    {"k": "k", "ts": 2 * S, "a": 2, "b": 20, "c": 200},
    {"k": "l", "ts": 3 * S, "a": 3, "b": 30, "c": 300},
]
LATER = [{"k": "k", "ts": 4 * S, "a": 4, "b": 40, "c": 400}]
OTHER = [{"k": "k", "ts": 5 * S, "x": 7}, {"k": "l", "ts": 6 * S, "x": 8}]
MEET = ("0 seconds", "9 seconds")
OUTPUT = "k string, a bigint, b bigint"


def reordered(schema: pa.Schema) -> pa.Schema:
    return pa.schema(list(reversed(schema)))


def zoned(schema: pa.Schema, zone: pa.DataType = ZONED) -> pa.Schema:
    return pa.schema([f.with_type(zone) if f.type == TIME else f for f in schema])


def rows_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in schema.names) for row in rows]


def join(rows: Stream, other: Stream) -> Stream:
    return rows.key_by("k").join(other.key_by("k"), between=MEET, suffix="_r", name="op")


def join_newest(rows: Stream, other: Stream) -> Stream:
    return other.key_by("k").join_newest(rows.key_by("k"), suffix="_r", name="op")


def all_rows(key: tuple[str], rows: Any, window: Any) -> Any:
    for row in rows:
        yield key[0], row.a, row.b


def window_process(rows: Stream) -> Stream:
    windows = rows.key_by("k").window(gw.tumbling("10 seconds"), name="op")
    return windows.process(all_rows, output=OUTPUT)


def session_process(rows: Stream) -> Stream:
    windows = rows.key_by("k").window(gw.session("10 seconds"), name="op")
    return windows.process(all_rows, output=OUTPUT)


def window_compute(rows: Stream) -> Stream:
    windows = rows.key_by("k").window(gw.tumbling("10 seconds"), name="op")
    return windows.compute(a=gw.sum("a"), b=gw.max("b"), last=gw.last("ts"))


def duplicates(rows: Stream) -> Stream:
    return rows.drop_duplicates("k", within="1 minute", name="op")


def compute(rows: Stream) -> Stream:
    return rows.key_by("k").compute(
        name="op",
        a=gw.sum("a"),
        newest=gw.max("ts"),
        first=gw.first("ts"),
        seen=gw.collect_set("ts"),
        different=gw.count_distinct("ts"),
        best=gw.max_by("ts", "a"),
        some=gw.sum("a", where="ts is not null and a > 1"),
    )


def by_moment(rows: Stream) -> Stream:
    return rows.key_by("ts").compute(name="op", a=gw.sum("a"), n=gw.count())


def run_of(root: Path, build: Build, **columns: pa.Schema) -> Restarted:
    """One run of a flow of as many sources as it is built of."""
    needed = list(columns)[: len(inspect.signature(build).parameters)]
    return Restarted(root, build, {name: {"columns": columns[name]} for name in needed})


def played(root: Path, build: Build, before: pa.Schema, after: pa.Schema) -> list[dict[str, Any]]:
    """Everything that comes out of two runs, of the columns that both have."""
    run = run_of(root, build, rows=before, other=zoned(OF_OTHER, before.field("ts").type))
    found = named(run, run.epoch(rows=rows_of(before, ROWS)))
    run = run_of(root, build, rows=after, other=zoned(OF_OTHER, after.field("ts").type))
    later = {"rows": rows_of(after, LATER), "other": rows_of(OF_OTHER, OTHER)}
    found += named(run, run.epoch(**{name: later[name] for name in run.columns}))
    run.times.end_input()
    return sorted(found + named(run, run.epoch()), key=repr)


def named(run: Restarted, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    names = run.compiled.operator("op").output.names
    found = (dict(zip(names, row, strict=True)) for row in rows)
    return [{name: row[name] for name in sorted(row) if name != "c"} for row in found]


KEPT = [join, join_newest, window_process, session_process]
EVERY = [*KEPT, window_compute, duplicates, compute]


@pytest.mark.parametrize("build", EVERY)
def test_columns_of_a_source_that_are_reordered_keep_their_values(
    tmp_path: Path, build: Build
) -> None:
    undisturbed = played(tmp_path / "one", build, AB, AB)
    assert len(undisturbed) > 1
    assert played(tmp_path / "other", build, AB, reordered(AB)) == undisturbed


@pytest.mark.parametrize("build", KEPT)
def test_a_column_that_is_new_makes_no_difference_to_the_others(
    tmp_path: Path, build: Build
) -> None:
    undisturbed = played(tmp_path / "one", build, AB, AB)
    assert played(tmp_path / "other", build, AB, ABC) == undisturbed


@pytest.mark.parametrize("build", [*EVERY, by_moment])
@pytest.mark.parametrize("zones", [("UTC", "Europe/Berlin"), ("Europe/Berlin", "Etc/UTC")])
def test_a_session_in_another_time_zone_goes_on_with_all_state(
    tmp_path: Path, build: Build, zones: tuple[str, str]
) -> None:
    undisturbed = played(tmp_path / "one", build, AB, AB)
    before, after = (zoned(AB, pa.timestamp("us", tz=zone)) for zone in zones)
    assert played(tmp_path / "other", build, before, after) == undisturbed


def rows_with_c(key: tuple[str], rows: Any, window: Any) -> Any:
    for row in rows:
        yield key[0], row.a, row.c


@pytest.mark.parametrize("window", [gw.tumbling("10 seconds"), gw.session("10 seconds")])
def test_rows_kept_before_there_was_a_column_have_null_for_it(tmp_path: Path, window: Any) -> None:
    def before(rows: Stream) -> Stream:
        return rows.key_by("k").window(window, name="op").process(all_rows, output=OUTPUT)

    def after(rows: Stream) -> Stream:
        windows = rows.key_by("k").window(window, name="op")
        return windows.process(rows_with_c, output="k string, a bigint, c bigint")

    run = run_of(tmp_path, before, rows=AB)
    run.epoch(rows=rows_of(AB, ROWS))
    run = run_of(tmp_path, after, rows=ABC)
    run.epoch(rows=rows_of(ABC, LATER))
    run.times.end_input()
    assert run.epoch() == [("k", 1, None), ("k", 2, None), ("k", 4, 400), ("l", 3, None)]


def keyed(right_key: str, right_time: str = "ts") -> Build:
    def newest_row_join(rows: Stream, other: Stream) -> Stream:
        return rows.key_by("k").join_newest(other.key_by(right_key), suffix="_r", name="op")

    return newest_row_join


def by_time(operator: Callable[..., Stream], time: str) -> Build:
    def operator_by_time(rows: Stream) -> Stream:
        return operator(rows, time)

    return operator_by_time


def hours(rows: Stream, time: str) -> Stream:
    return (
        rows.key_by("k").window(gw.tumbling("1 hour"), name="op", time=time).compute(n=gw.count())
    )


def sessions(rows: Stream, time: str) -> Stream:
    return rows.key_by("k").window(gw.session("1 hour"), name="op", time=time).compute(n=gw.count())


def function(rows: Stream, time: str) -> Stream:
    windows = rows.key_by("k").window(gw.tumbling("1 hour"), name="op", time=time)
    return windows.process(lambda key, rows, window: [(key[0],)], output="k string")


def odd(frame: Any) -> Any:
    return frame.where("a % 2 = 1") if hasattr(frame, "where") else frame


def even(frame: Any) -> Any:
    return frame.where("a % 2 = 0") if hasattr(frame, "where") else frame


def of_one_source(left: Callable[[Any], Any], right: Callable[[Any], Any]) -> Build:
    def self_join(rows: Stream) -> Stream:
        one, two = rows.map(left).key_by("k"), rows.map(right).key_by("k")
        return one.join(two, between=MEET, suffix="_r", name="op")

    return self_join


TWO_TIMES = pa.schema([*AB, ("ts2", TIME), ("l", pa.string())])
WITH_TIMES = [{**row, "ts2": 0, "l": "k"} for row in ROWS]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (keyed("k"), keyed("l"), "keys right was"),
        (of_one_source(odd, even), of_one_source(even, odd), "changed places"),
        *(
            (by_time(of, "ts"), by_time(of, "ts2"), "time column was 'ts' and is 'ts2'")
            for of in (hours, sessions, function)
        ),
    ],
    ids=["key of the right", "sides of one source", "windows", "sessions", "window function"],
)
def test_state_that_would_mean_something_else_is_refused_and_goes_on_as_it_was(
    tmp_path: Path, before: Build, after: Build, says: str
) -> None:
    columns = {"rows": TWO_TIMES, "other": TWO_TIMES}
    run_of(tmp_path, before, **columns).epoch(rows=rows_of(TWO_TIMES, WITH_TIMES))
    with pytest.raises(CheckpointMismatchError, match=says):
        run_of(tmp_path, after, **columns)
    run_of(tmp_path, before, **columns)


def test_a_column_that_has_changed_sides_is_refused(tmp_path: Path) -> None:
    def interval_join(rows: Stream, other: Stream) -> Stream:
        return rows.key_by("k").join(other.key_by("k"), between=MEET, name="op")

    def sources(left: list[str], right: list[str]) -> dict[str, dict[str, Any]]:
        types = {"k": pa.string(), "ts": TIME, "rts": TIME, "x": pa.int64(), "y": pa.int64()}
        return {
            name: {"columns": pa.schema([(of, types[of]) for of in names]), "event_time": time}
            for name, names, time in (("rows", left, "ts"), ("other", right, "rts"))
        }

    Restarted(tmp_path, interval_join, sources(["k", "ts", "x"], ["k", "rts", "y"])).epoch(
        rows=[("k", S, 1)]
    )
    with pytest.raises(CheckpointMismatchError, match="side of column y was 'right'"):
        Restarted(tmp_path, interval_join, sources(["k", "ts", "x", "y"], ["k", "rts"]))


def test_a_column_of_kept_rows_that_may_have_been_renamed_is_refused(tmp_path: Path) -> None:
    renamed = pa.schema([f.with_name("a2") if f.name == "a" else f for f in AB])

    def rows_of_windows(rows: Stream) -> Stream:
        windows = rows.key_by("k").window(gw.tumbling("10 seconds"), name="op")
        return windows.process(lambda key, rows, window: None, output=OUTPUT)

    Restarted(tmp_path, rows_of_windows, {"rows": {"columns": AB}}).epoch(rows=rows_of(AB, ROWS))
    with pytest.raises(CheckpointMismatchError, match="column a is gone and a2 is new"):
        Restarted(tmp_path, rows_of_windows, {"rows": {"columns": renamed}})


def ones(key: tuple[str], rows: Any, state: Any) -> Any:
    state.value += 1
    yield key[0], state.value


def hundreds(key: tuple[str], rows: Any, state: Any) -> Any:
    state.value += 100
    yield key[0], state.value


def two_counters(of_ones: str, of_hundreds: str, *, formerly: bool) -> Build:
    def add_counters(rows: Stream) -> Any:
        return tuple(
            rows.key_by("k").process(
                function,
                name=gw.types.Identity(name, formerly=other if formerly else None),
                state=int,
                output="k string, n bigint",
            )
            for function, name, other in (
                (ones, of_ones, of_hundreds),
                (hundreds, of_hundreds, of_ones),
            )
        )

    return add_counters


def test_operators_that_exchange_their_names_twice_keep_their_own_state(tmp_path: Path) -> None:
    row = [("k", S, 1, 1)]
    programs = [
        two_counters("a", "b", formerly=False),
        two_counters("b", "a", formerly=True),
        two_counters("b", "a", formerly=True),
        two_counters("a", "b", formerly=True),
        two_counters("a", "b", formerly=True),
    ]
    for n, program in enumerate(programs, 1):
        run = run_of(tmp_path, program, rows=AB)
        assert run.epoch(rows=row)[0] == ("k", n)
        states = {o.name: run.lanes.held(i) for i, o in enumerate(run.compiled.operators)}
        ones_in = "ab"[n in (2, 3)]
        assert states[ones_in][("k",)] < states["ab".replace(ones_in, "")][("k",)]


def three_counters(names: str, *, formerly: str = "", steps: Sequence[int] = (1, 10, 100)) -> Build:
    """Three counters of names a letter long, each of which was called as the letter below it."""
    was = dict(zip(names, formerly, strict=False))

    def counter(step: int) -> Any:
        def count(key: tuple[str], rows: Any, state: Any) -> Any:
            state.value += step
            yield key[0], state.value

        return count

    def add_three_counters(rows: Stream) -> Any:
        return tuple(
            rows.key_by("k").process(
                counter(step),
                name=gw.types.Identity(name, formerly=was.get(name)),
                state=int,
                output="k string, n bigint",
            )
            for name, step in zip(names, steps, strict=True)
        )

    return add_three_counters


@pytest.mark.parametrize("changed_code", [False, True])
def test_operators_that_pass_their_names_round_twice_keep_their_own_state(
    tmp_path: Path, *, changed_code: bool
) -> None:
    row = [("k", S, 1, 1)]
    last = 1_000 if changed_code else 100  # the third function is another one at the last start
    programs = [
        three_counters("abc"),
        three_counters("bca", formerly="abc"),
        three_counters("bca", formerly="abc"),
        three_counters("cab", formerly="bca", steps=(1, 10, last)),
    ]
    for program in programs:
        run = run_of(tmp_path, program, rows=AB)
        assert run.epoch(rows=row)[0][0] == "k"
    held = {o.name: run.lanes.held(i) for i, o in enumerate(run.compiled.operators)}
    states = {name: msgspec.msgpack.decode(of[("k",)][0]) for name, of in held.items()}
    assert states == {"c": 4, "a": 40, "b": 300 + last}


def test_a_key_is_removed_from_state_that_was_written_in_two_time_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(entries, "type_in_utc", lambda dtype: dtype)
        run_of(tmp_path, by_moment, rows=zoned(AB)).epoch(rows=rows_of(AB, ROWS))
    run = run_of(tmp_path, by_moment, rows=AB)
    run.epoch(rows=rows_of(AB, ROWS))

    def is_second(keys: pa.RecordBatch) -> Any:
        return keys.column(0).cast("int64").to_numpy() == 2 * S

    assert remove_key(run.lanes.log, "op", is_second, key="2") == {"op/state": 1}


def test_state_is_not_read_in_the_key_groups_of_other_columns(tmp_path: Path) -> None:
    def sums(*by: str) -> Build:
        placed = list(by) or None
        return lambda rows: rows.key_by("k", "a", partition_by=placed).compute(
            name="op", n=gw.count()
        )

    run = run_of(tmp_path, sums("a"), rows=AB)
    run.epoch(rows=rows_of(AB, ROWS))
    for by in (["k"], ["k", "a"]):
        with pytest.raises(
            CheckpointMismatchError, match=f"'op' was partitioned by a and is by {', '.join(by)}"
        ):
            run_of(tmp_path, sums(*by), rows=AB)
    for times, by in ((2, ["a"]), (3, [])):  # who names no columns continues with those
        same = run_of(tmp_path, sums(*by), rows=AB)
        assert same.compiled.operator("op").partition_by == ("a",)
        assert same.epoch(rows=rows_of(AB, ROWS[:1])) == [("k", 1, times)]

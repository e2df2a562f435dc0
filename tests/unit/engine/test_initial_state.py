"""A flow begins with the state of another one, and gives the results of an undisturbed run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.initial_state import initial_state_of
from godwit.engine.recovery import recover_flow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
COLUMNS = "k string, v long, f double, d decimal(12,2), t timestamp"


def drawn_rows(seed: int, count: int, *, begin_s: int = 0) -> list[dict[str, Any]]:
    """Return rows with few keys, event times that grow, and values of each kind."""
    chance = random.Random(seed)
    return [
        {
            "k": None if chance.random() < 0.1 else f"k{chance.randrange(6)}",
            "v": chance.randrange(-50, 50),
            "f": chance.choice([0.5, -0.0, 2.25, 7.0]),
            "d": Decimal(chance.randrange(10**6)).scaleb(-2),
            "t": T0 + dt.timedelta(seconds=begin_s + number * 20 + chance.randrange(15)),
        }
        for number in range(count)
    ]


@dataclasses.dataclass
class Seen:
    """State of a key."""

    count: int = 0
    values: list[int] = dataclasses.field(default_factory=list)


def count_rows(key: tuple[Any, ...], rows: Any, state: Seen) -> list[tuple[Any, ...]]:
    """Emit the number of rows of a key, and the last values."""
    for row in rows:
        state.count += 1
        state.values = [*state.values, row.v][-3:]
    return [(*key, state.count, sum(state.values))]


def with_timers(key: tuple[Any, ...], rows: Any, state: Seen) -> None:
    """Count rows, and set a timer some minutes after each."""
    for row in rows:
        state.count += 1
        rows.timers.set(row.t + dt.timedelta(minutes=10))


def on_timer(key: tuple[Any, ...], timer: Any, state: Seen) -> list[tuple[Any, ...]]:
    """Emit the number of rows, and the time."""
    state.count += 100
    return [(*key, state.count, timer.time)]


def named(key: tuple[Any, ...], rows: Any, states: Any) -> list[tuple[Any, ...]]:
    """Add rows to a value, a list and a map."""
    for row in rows:
        states.total.value += row.v
        states.recent.append(row.v)
        states.by_value[row.v % 3] = states.by_value.get(row.v % 3, 0) + 1
    return [(*key, states.total.value, len(states.recent), sum(states.by_value.values()))]


def totals(stream: Any) -> Any:
    """Aggregates whose results are their states, and others."""
    return stream.key_by("k").compute(
        name="op",
        total=gw.sum("v"),
        decimals=gw.sum("d"),
        n=gw.count(),
        mean=gw.mean("f"),
        low=gw.min("v"),
        high=gw.max("f"),
        first=gw.first("v"),
        spread=gw.stddev("f"),
        distinct=gw.count_distinct("v"),
    )


def whole(stream: Any) -> Any:
    """One result of the whole stream."""
    return stream.key_by().compute(name="op", total=gw.sum("v"), n=gw.count())


def tumbling(stream: Any) -> Any:
    """Windows that do not overlap."""
    return stream.key_by("k").window(gw.tumbling("3 minutes"), name="op").compute(total=gw.sum("v"))


def hopping(stream: Any) -> Any:
    """Windows that overlap."""
    windows = gw.hopping("6 minutes", every="2 minutes")
    return stream.key_by("k").window(windows, name="op").compute(total=gw.sum("v"), n=gw.count())


def sessions(stream: Any) -> Any:
    """Sessions, several of which are open at a time."""
    return stream.key_by("k").window(gw.session("90 seconds"), name="op").compute(n=gw.count())


def distinct_rows(stream: Any) -> Any:
    """First row of each key and value."""
    return stream.drop_duplicates("k", "v", within="forever", name="op")


def distinct_within(stream: Any) -> Any:
    """First row of each key within some minutes."""
    return stream.drop_duplicates("k", within="4 minutes", name="op")


def processed(stream: Any) -> Any:
    """A function with a state of a class."""
    return stream.key_by("k").process(
        count_rows, name="op", state=Seen, output="k string, n long, last long"
    )


def timed(stream: Any) -> Any:
    """A function with timers of event time."""
    return stream.key_by("k").process(
        with_timers,
        name="op",
        state=Seen,
        timers=gw.types.OnTimer(on_timer, clock="event"),
        output="k string, n long, at timestamp",
    )


def joined(stream: Any) -> Any:
    """Pairs of rows of a key, and rows without another one."""
    keyed = stream.key_by("k")
    return keyed.join(
        keyed, name="op", how="left", between=("20 seconds", "1 minute"), suffix="_right"
    )


def of_states(stream: Any) -> Any:
    """A function with a value, a list and a map of its own."""
    return stream.key_by("k").process(
        named,
        name="op",
        state={
            "total": gw.ValueState(int),
            "recent": gw.ListState(int),
            "by_value": gw.MapState(int, int),
        },
        output="k string, total long, rows long, counted long",
    )


def two_phase(stream: Any) -> Any:
    """Windows whose partials are consolidated by an operator of its own."""
    windows = stream.key_by("k").window(gw.tumbling("5 minutes"), consolidate="apart", name="op")
    return windows.compute(n=gw.count(), v=gw.sum("v"))


def newest_rows(stream: Any) -> Any:
    """The newest row of each key."""
    return stream.key_by("k").latest(order_by="t", name="op")


BUILDERS = [
    two_phase,
    newest_rows,
    totals,
    whole,
    tumbling,
    hopping,
    sessions,
    distinct_rows,
    distinct_within,
    processed,
    timed,
    joined,
]


def flow_of(build: Callable[[Any], Any], num_key_groups: int = 8) -> gw.Flow:
    """Return a flow of one operator."""
    flow = gw.Flow("begun", num_key_groups=num_key_groups)
    stream = flow.source("s", gw.testing.stream(COLUMNS), event_time="t", slack="1 minute")
    flow.sink("out", build(stream), gw.sinks.noop())
    return flow


def texts(tables: list[pa.Table]) -> list[str]:
    """Return the rows of tables as sorted text."""
    return sorted(str(row) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("seed", range(rounds(1, 3)))
def test_a_flow_that_begins_with_the_state_of_another_goes_on_like_it(
    build: Callable[[Any], Any], seed: int
) -> None:
    before, after = drawn_rows(seed, 40), drawn_rows(seed + 100, 40, begin_s=800)
    with gw.testing.cluster(flow_of(build)) as undisturbed:
        undisturbed.epoch({"s": before})
        undisturbed.epoch()
        state, watermark = undisturbed.state("op"), undisturbed.watermarks.get("s")
        expected = [undisturbed.epoch({"s": after})["out"], undisturbed.end_input()["out"]]
    with gw.testing.cluster(
        flow_of(build, 5), initial={"op": state}, initial_watermark=watermark
    ) as begun:
        result = [begun.epoch({"s": after})["out"], begun.end_input()["out"]]
        assert [
            e.entries for e in begun.events if isinstance(e, gw.events.InitialStateWritten)
        ] == [state.num_rows]
    assert texts(result) == texts(expected)


def test_rows_of_one_source_begin_named_states() -> None:
    rows = drawn_rows(7, 60)
    with gw.testing.cluster(flow_of(of_states)) as undisturbed:
        undisturbed.epoch({"s": rows[:30]})
        expected = undisturbed.epoch({"s": rows[30:]})["out"]
    keys = sorted({row["k"] for row in rows[:30]}, key=str)
    values = {key: [row["v"] for row in rows[:30] if row["k"] == key] for key in keys}
    residues = {
        key: {
            residue: [v % 3 for v in of_key].count(residue) for residue in {v % 3 for v in of_key}
        }
        for key, of_key in values.items()
    }
    initial = {
        "total": [{"k": key, "value": sum(values[key])} for key in keys],
        "recent": pa.table({"k": pa.array(keys, pa.string()), "value": [values[k] for k in keys]}),
        "by_value": pa.table(
            {
                "k": pa.array(keys, pa.string()),
                "value": pa.array(
                    [list(residues[key].items()) for key in keys], pa.map_(pa.int64(), pa.int64())
                ),
            }
        ),
    }
    begun = gw.testing.run(flow_of(of_states), {"s": rows[30:]}, initial={"op": initial})
    assert texts([begun.rows("out")]) == texts([expected])


def test_windows_begin_with_partial_results_by_window() -> None:
    partial: list[dict[str, Any]] = [
        {"k": "k1", "window_start": T0 + dt.timedelta(minutes=2 * number), "total": 5, "n": 1}
        for number in range(3)
    ]
    for row in partial:
        row["window_end"] = row["window_start"] + dt.timedelta(minutes=6)
    later = {"k": "k1", "v": 2, "t": T0 + dt.timedelta(minutes=5)}
    begun = gw.testing.run(
        flow_of(hopping), {"s": [later]}, initial={"op": partial}, close_at_end=True
    )
    assert [
        (r["total"], r["n"]) for r in begun.rows("out").sort_by("window_start").to_pylist()
    ] == [
        (7, 2),
        (7, 2),
        (7, 2),
    ]


def test_sums_begin_with_results_alone() -> None:
    flow = gw.Flow("sums", num_key_groups=4)
    stream = flow.source("s", gw.testing.stream(COLUMNS))
    flow.sink("out", stream.key_by("k").compute(name="op", total=gw.sum("v")), gw.sinks.noop())
    run = gw.testing.run(
        flow, {"s": [{"k": "a", "v": 2}]}, initial={"op": [{"k": "a", "total": 40, "x": 1}]}
    )
    assert run.rows("out").to_pylist() == [{"k": "a", "total": 42}]


def test_state_that_exceeds_the_memory_goes_over_files(tmp_path: Path) -> None:
    count = 20_000
    table = pa.table({"k": [f"k{n}" for n in range(count)], "total": list(range(count))})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=500)
    flow = gw.Flow("large", num_key_groups=100)
    stream = flow.source("s", gw.testing.stream(COLUMNS))
    flow.sink("out", stream.key_by("k").compute(name="op", total=gw.sum("v")), gw.sinks.noop())
    compiled = flow.compiled()
    initial = initial_state_of({"op": str(tmp_path)}, None, compiled)
    assert initial is not None
    results = []
    for name, max_bytes in (("a", 50_000), ("b", 10**9)):
        storage = CheckpointStorage.open(tmp_path / name)
        small = dataclasses.replace(initial, max_bytes=max_bytes)
        log, recovery = recover_flow(compiled, storage, "run", retain_epochs=1, initial=small)
        assert [written.entries for written in recovery.initial] == [count]
        assert log.latest is not None
        assert len(log.latest.snapshots) == 100
        with gw.testing.cluster(flow, checkpoint=tmp_path / name) as run:
            results.append(run.state("op").sort_by("total"))
            assert run.epoch({"s": [{"k": "k7", "v": 1}]})["out"].to_pylist() == [
                {"k": "k7", "total": 8}
            ]
    assert results[0].equals(results[1])
    assert results[0].column("total").to_pylist() == list(range(count))


def test_a_checkpoint_that_began_with_the_state_goes_on_without_it(tmp_path: Path) -> None:
    given = {"op": [{"k": "a", "total": 40}]}
    flow = gw.Flow("sums", num_key_groups=4)
    stream = flow.source("s", gw.testing.stream(COLUMNS))
    flow.sink("out", stream.key_by("k").compute(name="op", total=gw.sum("v")), gw.sinks.noop())
    gw.testing.run(flow, {"s": [{"k": "a", "v": 2}]}, initial=given, checkpoint=tmp_path / "ck")
    again = gw.testing.run(
        flow, {"s": [{"k": "a", "v": 3}]}, initial=given, checkpoint=tmp_path / "ck"
    )
    assert again.rows("out").to_pylist() == [{"k": "a", "total": 45}]
    assert any(isinstance(event, gw.events.InitialStateIgnored) for event in again.events)
    without = gw.testing.run(flow, {"s": [{"k": "a", "v": 1}]}, checkpoint=tmp_path / "ck")
    assert without.rows("out").to_pylist() == [{"k": "a", "total": 46}]
    with pytest.raises(gw.errors.CheckpointMismatchError, match="began with another state"):
        gw.testing.run(flow, initial={"op": [{"k": "a", "total": 1.0}]}, checkpoint=tmp_path / "ck")
    gw.testing.run(flow, {"s": [{"k": "a", "v": 2}]}, checkpoint=tmp_path / "plain")
    with pytest.raises(gw.errors.CheckpointMismatchError, match="began without state"):
        gw.testing.run(flow, initial=given, checkpoint=tmp_path / "plain")


def test_a_start_that_fails_claims_nothing(tmp_path: Path) -> None:
    flow = gw.Flow("sums", num_key_groups=4)
    stream = flow.source("s", gw.testing.stream(COLUMNS))
    flow.sink("out", stream.key_by("k").compute(name="op", total=gw.sum("v")), gw.sinks.noop())
    twice = [{"k": "a", "total": 1}, {"k": "b", "total": 1}, {"k": "a", "total": 2}]
    with pytest.raises(gw.errors.InvalidInputError, match=r"two rows of key \('a',\)"):
        gw.testing.run(flow, initial={"op": twice}, checkpoint=tmp_path / "ck")
    run = gw.testing.run(flow, {"s": [{"k": "a", "v": 2}]}, checkpoint=tmp_path / "ck")
    assert run.rows("out").to_pylist() == [{"k": "a", "total": 2}]


@pytest.mark.parametrize(
    ("build", "given", "message"),
    [
        (totals, {"other": [{"k": "a"}]}, "'other', which is not"),
        (totals, {"op": {"old": [{"k": "a"}]}}, "cannot begin with a state 'old'"),
        (whole, {"op": [{"total": 4}]}, "no column 'n'"),
        (whole, {"op": [{"total": "many", "n": 4}]}, "'total'.* cannot be converted"),
        (whole, {"op": 5}, "of type int"),
        (whole, 5, "initial is of type int"),
        (whole, {"op": "/nowhere/at/all"}, "cannot be read"),
        (processed, {"op": [{"k": "a"}]}, "neither a column 'value' nor 'state'"),
        (processed, {"op": [{"k": "a", "value": {"count": "x"}}]}, "does not have the declared"),
        (of_states, {"op": [{"k": "a"}]}, "has the states"),
        (distinct_within, {"op": [{"k": "a"}]}, "no column 'seen'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_a_reason(
    build: Callable[[Any], Any], given: Any, message: str
) -> None:
    with pytest.raises(gw.errors.InvalidInputError, match=message):
        gw.testing.run(flow_of(build), initial=given)


def test_elements_and_items_of_an_initial_state_expire_when_it_says() -> None:
    states = {
        "recent": gw.ListState(int, ttl="1 hour"),
        "seen": gw.MapState(str, int, ttl="1 hour"),
    }
    flow = gw.Flow("expiring")
    rows = flow.source("rows", gw.sources.memory("k string, v long"))
    processed = rows.key_by("k").process(named, output="k string, n long", name="p", state=states)
    flow.sink("out", processed, gw.sinks.noop())
    operator = flow.compiled().operator("p")
    moments = [T0 + dt.timedelta(hours=hour) for hour in (1, 1, 3)]
    micros = [int(moment.timestamp()) * 1_000_000 for moment in moments]
    given = {"k": ["a"], "value": [[7, 8, 9]], "expires": pa.array([moments])}
    _, values = operator.initial_entries("recent", pa.RecordBatch.from_pydict(given))
    (page,) = [row for row in values.to_pylist() if row["moments"]]
    assert page["moments"] == b"".join(moment.to_bytes(8, "little") for moment in micros)
    assert page["expires"] == micros[-1]
    items = pa.array([[("x", 1), ("y", 2)]], pa.map_(pa.string(), pa.int64()))
    given = {"k": ["a"], "value": items, "expires": pa.array([moments[1:]])}
    keys, values = operator.initial_entries("seen", pa.RecordBatch.from_pydict(given))
    assert {*micros[1:]} <= {*values.column("expires").to_pylist()}
    assert keys.num_rows >= 2


def test_tables_of_deltalake_and_datasets_are_read_as_they_are_now(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / "table"
    old = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    deltalake.write_deltalake(path, old)
    new = pa.table({"k": ["a", "c"], "n": pa.array([10, 20], pa.int64())})
    deltalake.write_deltalake(path, new, mode="overwrite")

    flow = gw.Flow("counts", num_key_groups=8)
    keyed = flow.source("s", gw.testing.stream("k string")).key_by("k")
    flow.sink("out", keyed.compute(name="op", n=gw.count()), gw.sinks.noop())
    table = deltalake.DeltaTable(path)
    for given in (table, table.to_pyarrow_dataset()):
        with gw.testing.cluster(flow, initial={"op": given}) as played:
            state = {row["k"]: row["n"] for row in played.state("op").to_pylist()}
            assert state == {"a": 10, "c": 20}
    with pytest.raises(gw.errors.InvalidInputError, match="is a table of Delta") as caught:
        gw.testing.cluster(flow, initial={"op": str(path)})
    assert "DeltaTable" in caught.value.remedy

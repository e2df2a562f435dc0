"""Flows whose checkpoints are stored: together they have every kind of record and of state.

A stored checkpoint ends in the middle of the rows of its flow.  Neither flows nor rows may change:
a new kind of state gets a flow of its own.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from godwit.testing import Run

__all__ = ["FLOWS", "START", "GoldenFlow"]

START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
COLUMNS = "k string, g int, n long, v double, ts timestamp"
Epoch = dict[str, list[dict[str, Any]]]


def _nothing(_run: Run) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class GoldenFlow:
    """A flow, and when something happens to it before its checkpoint is stored."""

    build: Callable[[], gw.Flow]
    first: Callable[[], gw.Flow] | None = None  # flow of the first two epochs, if another one
    # flow of a query on Spark that runs the first half; the argument is the directory of its sink
    on_spark: Callable[[Path], gw.Flow] | None = None
    num_epochs: int = 8  # half of them before the checkpoint is stored, half afterwards
    num_continued: int | None = None  # of the latter, those that are played; by default, all
    sources: tuple[str, ...] = ("rows",)  # those for which rows are given
    before: Callable[[Run], None] = _nothing  # after two epochs
    components: Mapping[str, tuple[str, ...]] | None = None

    def epochs(self) -> list[Epoch]:
        """Return the rows of all epochs."""
        rng = random.Random(7)
        return [
            {source: [_row(rng, number) for _ in range(12)] for source in self.sources}
            for number in range(self.num_epochs)
        ]


def _row(rng: random.Random, epoch: int) -> dict[str, Any]:
    seconds = epoch * 600 + rng.randrange(900)
    return {
        "k": rng.choice(["a", "a", "a", "b", "c", "d", "ü", None]),
        "g": rng.randrange(3),
        "n": rng.choice([None, *range(-3, 9)]),
        "v": rng.randrange(64) / 8,  # sums of these are exact in any order
        "ts": START + dt.timedelta(seconds=seconds),
    }


def _flow(*sources: str) -> tuple[gw.Flow, list[gw.types.Stream]]:
    flow = gw.Flow("golden", num_key_groups=8)
    streams = [
        flow.source(
            name, gw.testing.stream(COLUMNS), event_time="ts", slack="5 minutes", idle="1 hour"
        )
        for name in sources or ("rows",)
    ]
    return flow, streams


def _finished(flow: gw.Flow, **streams: gw.types.Stream) -> gw.Flow:
    for name, stream in streams.items():
        flow.sink(name, stream, gw.sinks.noop())
    return flow


# --- aggregates and windows -----------------------------------------------------------------------


class Rows(gw.types.Aggregator):
    """Number of rows with a value: an aggregate of a user's own."""

    state = pa.schema({"rows": pa.int64()})
    output = pa.int64()

    def create(self, count: int) -> pa.RecordBatch:
        return self._states(np.zeros(count, np.int64))

    def update(self, states: Any, groups: Any, column: Any) -> pa.RecordBatch:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        rows = np.bincount(groups[present], minlength=states.num_rows)
        return self._states(states["rows"].to_numpy() + rows)

    def merge(self, left: Any, right: Any) -> pa.RecordBatch:
        return self._states(pc.add(left["rows"], right["rows"]))

    def finish(self, states: Any) -> Any:
        return states["rows"]

    def _states(self, rows: Any) -> pa.RecordBatch:
        return pa.record_batch([pa.array(rows, pa.int64())], schema=self.state)


def aggregates() -> gw.Flow:
    flow, [rows] = _flow()
    every = rows.key_by("k").compute(
        name="every",
        rows=gw.count(),
        known=gw.count("n"),
        total=gw.sum("v"),
        positive=gw.sum("n", where="n > 0"),
        mean=gw.mean("v"),
        deviation=gw.stddev("v"),
        variance=gw.variance("n", population=True),
        least=gw.min("n"),
        greatest=gw.max("k"),
        first=gw.first("n"),
        last=gw.last("ts"),
        of_least=gw.min_by("g", "v"),
        of_greatest=gw.max_by("g", "ts"),
        distinct=gw.count_distinct("n"),
        about=gw.approx_distinct("n", error=0.1),
        median=gw.approx_median("v", error=0.05),
        quartile=gw.approx_percentile("v", 0.25, error=0.05),
        some=gw.collect_list("n", 5),
        different=gw.collect_set("g", 5),
        top=gw.top_k("v", 3),
        often=gw.most_frequent("g", 2),
        own=Rows("n"),
    )
    whole = rows.key_by().compute(name="whole", total=gw.sum("v"), output="complete")
    changes = rows.key_by("k", "g").compute(name="counts", rows=gw.count(), output="changes")
    sizes = changes.as_rows().key_by("rows").compute(name="sizes", keys=gw.count())
    return _finished(flow, every=every, whole=whole, sizes=sizes)


def windows() -> gw.Flow:
    flow, [rows] = _flow()
    several = (
        rows.key_by("k")
        .window(
            gw.tumbling("5 minutes"),
            gw.tumbling("10 minutes"),
            gw.hopping("30 minutes", every="5 minutes"),
            length_as="length",
            name="several",
        )
        .compute(rows=gw.count(), total=gw.sum("v"), often=gw.count_distinct("g"))
    )
    updated = (
        rows.key_by("k")
        .window(
            gw.tumbling("10 minutes"),
            output="update",
            allowed_lateness="20 minutes",
            name="updated",
        )
        .compute(greatest=gw.max("v"), some=gw.collect_list("n"))
    )
    local = (
        rows.key_by("g")
        .window(gw.tumbling("1 day", zone="Europe/Berlin"), name="local")
        .compute(rows=gw.count())
    )
    sessions = (
        rows.key_by("k")
        .window(gw.session("1 minute"), name="sessions")
        .compute(rows=gw.count(), last=gw.max("ts"))
    )
    last_rows = rows.key_by("k").window(gw.rows(6, every=2), name="last_rows")
    listed = (
        rows.key_by("k")
        .window(gw.tumbling("10 minutes"), name="listed")
        .process(_in_a_window, output="k string, numbers array<bigint>")
    )
    return _finished(
        flow,
        several=several,
        updated=updated,
        local=local,
        sessions=sessions,
        last_rows=last_rows.compute(total=gw.sum("v")),
        listed=listed,
    )


def _in_a_window(key: Any, rows: Any, window: Any) -> Any:
    yield key[0], sorted(n for n in rows.column("n") if n is not None)


def two_phase() -> gw.Flow:
    flow, [rows] = _flow()
    apart = (
        rows.key_by("k")
        .window(gw.hopping("30 minutes", every="10 minutes"), consolidate="apart", name="apart")
        .compute(rows=gw.count(), total=gw.sum("v"), often=gw.most_frequent("g"))
    )
    return _finished(flow, apart=apart)


def _migrate_instantly(run: Run) -> None:
    run.migrate({0: "2", 1: "2", 5: "1"}, component="apart", strategy="instant")


# --- joins ----------------------------------------------------------------------------------------


def joins() -> gw.Flow:
    flow, [left, right] = _flow("rows", "others")
    pairs = left.key_by("k").join(
        right.key_by("k"),
        between=("-2 minutes", "2 minutes"),
        how="full",
        suffix="_right",
        name="pairs",
    )
    newest = left.key_by("k").join_newest(
        right.key_by("k"), within="20 minutes", suffix="_newest", name="newest"
    )
    once = left.drop_duplicates("k", "n", within="20 minutes", name="once")
    ever = left.drop_duplicates("g", "n", within="forever", name="ever")
    return _finished(flow, pairs=pairs, newest=newest, once=once, ever=ever, all=left.union(right))


def spread_join() -> gw.Flow:
    flow, [left, right] = _flow("rows", "others")
    pairs = left.key_by("k").join(
        right.key_by("k"),
        between=("-5 minutes", "5 minutes"),
        suffix="_right",
        spread=4,
        name="pairs",
    )
    sums = left.key_by("k").process(
        _sum_by_group,
        state=gw.ValueState(dict, merge=_merged),
        output="k string, groups long",
        name="sums",
    )
    return _finished(flow, pairs=pairs, sums=sums)


def _sum_by_group(key: Any, rows: Any, state: Any) -> Any:
    for row in rows:
        state[row.g] = state.get(row.g, 0) + 1
    yield key[0], sum(state.values())


def _merged(state: Any, other: Any) -> Any:
    for group, number in other.items():
        state[group] = state.get(group, 0) + number
    return state


def _spread(run: Run) -> None:
    run.hot_keys.spread("pairs", "a", left=2, right=2)
    run.hot_keys.spread("sums", "a", left=3)


# --- functions ------------------------------------------------------------------------------------


class Mood(enum.Enum):
    """A class of a user's that is stored."""

    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Profile:
    """Values of many types."""

    rows: int = 0
    mood: Mood = Mood.LOW
    days: set[dt.date] = dataclasses.field(default_factory=set)
    by_group: dict[tuple[int, str], list[float]] = dataclasses.field(default_factory=dict)
    latest: dt.datetime | None = None


def functions() -> gw.Flow:
    flow, [rows, rates] = _flow("rows", "others")
    profiles = rows.key_by("k").process(
        _profile, state=Profile, output="k string, rows long, moods string", name="profiles"
    )
    named = rows.key_by("k").process(
        _named,
        state={
            "total": gw.ValueState(float),
            "recent": gw.ListState(float, ttl="1 hour"),
            "per_group": gw.MapState(tuple[int, str], int),
        },
        timers=gw.types.OnTimer(_on_timer, clock="processing"),
        output="k string, total double, recent long, groups long",
        name="named",
    )
    silent = rows.key_by("k").process(
        _note,
        state=dict,
        timers=gw.types.OnTimer(_silent, clock="event"),
        output="k string, since timestamp, rows long",
        name="silent",
    )
    pickled = rows.key_by("g").process(
        _pickled,
        state=gw.ValueState(list, codec="pickle", ttl="1 day"),
        output="g int, n long",
        name="pickled",
    )
    rated = rows.key_by("k").process(
        _rated,
        state=float,
        output="k string, total double",
        broadcast={"rates": rates.key_by("g")},
        name="rated",
    )
    batched = rows.key_by("k").process_batch(
        _batched, state="total double", output="k string, total double", name="batched"
    )
    return _finished(
        flow,
        profiles=profiles,
        named=named,
        silent=silent,
        pickled=pickled,
        rated=rated,
        batched=batched,
    )


def _profile(key: Any, rows: Any, profile: Profile) -> Any:
    for row in rows:
        profile.rows += 1
        profile.mood = Mood.HIGH if row.v > 4 else Mood.LOW
        profile.days.add(row.ts.date())
        profile.by_group.setdefault((row.g, profile.mood.value), []).append(row.v)
        profile.latest = row.ts
    yield key[0], profile.rows, f"{profile.mood.value} {sorted(profile.by_group)}"


def _named(key: Any, rows: Any, states: Any) -> Any:
    for row in rows:
        states.total.value += row.v
        states.recent.append(row.v)
        item = (row.g, "odd" if (row.n or 0) % 2 else "even")
        states.per_group[item] = states.per_group.get(item, 0) + 1
    rows.timers.set(rows.timers.now + dt.timedelta(minutes=3))
    yield key[0], states.total.value, len(states.recent), len(states.per_group)


def _on_timer(key: Any, timer: Any, states: Any) -> Any:
    yield key[0], -states.total.value, len(states.recent), len(states.per_group)
    states.recent.clear()


def _note(_key: Any, rows: Any, state: Any) -> None:
    for earlier in rows.timers.list():
        rows.timers.cancel(earlier)
    for row in rows:
        state["rows"] = state.get("rows", 0) + 1
        state["last"] = max(state.get("last", row.ts), row.ts)
    rows.timers.set(state["last"] + dt.timedelta(minutes=12))


def _silent(key: Any, timer: Any, state: Any) -> Any:
    yield key[0], timer.time, state["rows"]
    timer.drop_state()


def _pickled(key: Any, rows: Any, state: Any) -> Any:
    state.extend(rows.column("n"))
    yield key[0], len(state)


def _rated(key: Any, rows: Any, total: Any, rates: Any) -> Any:
    for row in rows:
        rate = rates.get(row.g)
        if rate is not None:
            total.value += row.v * rate.v
    yield key[0], total.value


def _batched(rows: pa.Table, states: pa.Table, key_of_row: Any) -> tuple[pa.Table, pa.Table]:
    total = np.bincount(key_of_row, rows["v"], minlength=states.num_rows)
    new = pa.table({"k": states["k"], "total": pc.add(pc.fill_null(states["total"], 0.0), total)})
    return new, new


# --- loops, sources, changes of a flow ------------------------------------------------------------


def feedback() -> gw.Flow:
    flow, [rows] = _flow()
    loop = flow.feedback("again", COLUMNS, event_time="ts", max_rounds=2)
    halves = (
        rows.union(loop)
        .key_by("k")
        .process(
            _halved, state=int, output=gw.types.Output(COLUMNS, event_time="ts"), name="halves"
        )
    )
    halves.map(_large).feed_back_to(loop)
    return _finished(flow, halves=halves)


def _halved(key: Any, rows: Any, number: Any) -> Any:
    for row in rows:
        number.value += 1
        yield key[0], row.g, number.value, row.v / 2, row.ts


def _large(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(table["v"], 0.05))


def own_sources() -> gw.Flow:
    flow = gw.Flow("golden", num_key_groups=8)
    rate = flow.source(
        "rate",
        gw.sources.rate(num_keys=5, num_rows=96, paced=False, start=START, max_rows_per_epoch=12),
        event_time="timestamp",
    )
    memory = flow.source(
        "memory",
        gw.sources.memory(
            "k string, n long",
            [{"k": "abc"[number % 3], "n": number} for number in range(40)],
            max_rows_per_epoch=5,
        ),
    )
    counted = rate.key_by("key").compute(name="counted", rows=gw.count())
    summed = memory.key_by("k").compute(name="summed", total=gw.sum("n"), all=gw.collect_list("n"))
    return _finished(flow, counted=counted, summed=summed)


def _numbers(count: int) -> tuple[gw.Flow, dict[str, gw.types.Stream]]:
    """Return a flow over the first `count` rows of a source that has five in each epoch."""
    flow = gw.Flow("golden", num_key_groups=8)
    rows = [
        {"k": "abc"[number % 3], "n": number, "ts": START + number * dt.timedelta(minutes=1)}
        for number in range(count)
    ]
    source = gw.sources.memory(
        "k string, n long, ts timestamp", rows, name="numbers", max_rows_per_epoch=5
    )
    numbers = flow.source("numbers", source, event_time="ts").key_by("k")
    return flow, {
        "sums": numbers.compute(name="sums", total=gw.sum("n"), all=gw.collect_list("n")),
        "hourly": numbers.window(gw.tumbling("10 minutes"), name="hourly").compute(n=gw.count()),
    }


def _query(directory: Path) -> gw.Flow:
    flow, streams = _numbers(20)
    flow.sink("sums", streams["sums"], gw.sinks.parquet(str(directory)))
    flow.sink("hourly", streams["hourly"], gw.sinks.memory())
    return flow


def after_query() -> gw.Flow:
    flow, streams = _numbers(40)
    return _finished(flow, **streams)


def many_epochs() -> gw.Flow:
    flow, [rows] = _flow()
    sums = rows.key_by("k").compute(name="sums", total=gw.sum("v"))
    counts = rows.key_by("k", "g", partition_by="k").compute(name="counts", rows=gw.count())
    return _finished(flow, sums=sums, counts=counts)


def _move_and_lose(run: Run) -> None:
    run.migrate({0: "2", 3: "2", 6: "1"}, component="sums", strategy="live")
    run.add("3", lanes=2)
    run.kill("1")
    run.add("1", lanes=2)


def renamed() -> gw.Flow:
    """Return the flow that a checkpoint of `_first_version` is continued by."""
    flow, [rows] = _flow()
    sums = rows.key_by("k").compute(
        name=gw.types.Identity("sums", formerly="totals"), total=gw.sum("v")
    )
    more = rows.key_by("g").compute(
        name=gw.types.Identity("more", starts_empty=True), rows=gw.count()
    )
    return _finished(flow, sums=sums, more=more)


def _first_version() -> gw.Flow:
    flow, [rows] = _flow()
    totals = rows.key_by("k").compute(name="totals", total=gw.sum("v"))
    return _finished(flow, sums=totals)


def _rename(run: Run) -> None:
    run.restart(renamed())


def fused() -> gw.Flow:
    flow, [rows] = _flow()
    sums = rows.key_by("k").compute(name="sums", total=gw.sum("v"))
    again = sums.key_by("k").compute(name="again", times=gw.count(), greatest=gw.max("total"))
    return _finished(flow, again=again)


# --- tables that change ---------------------------------------------------------------------------


def changes() -> gw.Flow:
    flow, [rows, others] = _flow("rows", "others")
    newest = rows.key_by("k").latest(name="newest")
    signed = others.drop_duplicates("k", "n", "ts", within="forever", name="events").map(_signed)
    ordered = signed.as_upserts().key_by("k").latest(order_by="ts", name="ordered")
    groups = newest.key_by("g").compute(
        name="groups",
        rows=gw.count(),
        total=gw.sum("v"),
        mean=gw.mean("n"),
        deviation=gw.stddev("v"),
        greatest=gw.max("k"),
        first=gw.first("n"),
        distinct=gw.count_distinct("n"),
        all=gw.collect_list("n"),
        output="changes",
    )
    late = (
        signed.as_changes()
        .key_by("g")
        .compute(name="late", rows=gw.count(), least=gw.min("n"), on_missing="wait")
    )
    tables = newest.key_by("g").join(
        ordered.key_by("g"), how="full", suffix="_right", name="tables"
    )
    once = newest.drop_duplicates("g", within="forever", name="once")
    return _finished(flow, groups=groups, late=late, tables=tables, once=once)


def _signed(rows: pa.Table) -> pa.Table:
    """Let an eighth of the rows, those with a whole number, delete others."""
    is_delete = pc.equal(rows["v"], pc.floor(rows["v"]))
    signs = pc.if_else(is_delete, pa.scalar(-1, pa.int8()), pa.scalar(1, pa.int8()))
    return rows.append_column("change", signs)


FLOWS = {
    "aggregates": GoldenFlow(build=aggregates, num_continued=2),
    "windows": GoldenFlow(build=windows, num_epochs=10, num_continued=2),
    "two_phase": GoldenFlow(build=two_phase, before=_migrate_instantly),
    "joins": GoldenFlow(build=joins, sources=("rows", "others")),
    "spread_join": GoldenFlow(
        build=spread_join, sources=("rows", "others"), before=_spread, num_continued=2
    ),
    "functions": GoldenFlow(build=functions, sources=("rows", "others"), num_continued=2),
    "feedback": GoldenFlow(build=feedback),
    "own_sources": GoldenFlow(build=own_sources, sources=()),
    "query": GoldenFlow(build=after_query, sources=(), on_spark=_query),
    "many_epochs": GoldenFlow(
        build=many_epochs, num_epochs=106, num_continued=5, before=_move_and_lose
    ),
    "renamed": GoldenFlow(build=renamed, first=_first_version, before=_rename),
    "changes": GoldenFlow(build=changes, sources=("rows", "others"), num_continued=2),
    "fused": GoldenFlow(build=fused, components={"one": ("sums", "again")}),
}

"""History, then live rows: every row once, at any cut, over restarts."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import godwit as gw
from godwit.model.errors import InvalidFlowError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.sources import MemorySource, Source

COLUMNS = "id long, name string"


def rows(first: int, after: int) -> list[tuple[int, str]]:
    return [(number, f"n{number % 3}") for number in range(first, after)]


def history(kind: str, path: Path, count: int) -> Source:
    """A source of the rows 0 to `count` - 1."""
    if kind == "memory":
        return gw.sources.memory(COLUMNS, rows(0, count), name="history")
    for first in range(0, max(count, 1), 4):
        part = rows(first, min(first + 4, count))
        table = pa.table(
            {
                "id": pa.array([row[0] for row in part], pa.int64()),
                "name": pa.array([row[1] for row in part], pa.string()),
            }
        )
        if kind == "delta":
            write_deltalake(str(path), table, mode="append")
        else:
            path.mkdir(exist_ok=True)
            pq.write_table(table, path / f"{first:03}.parquet")
    if kind == "delta":
        return gw.sources.delta(path)
    return gw.sources.parquet(path, schema=COLUMNS)


KINDS = ["memory", "delta", "files"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [None, ("id", 9), pc.field("id") < 9])
def test_contract(tmp_path: Path, kind: str, cut: Any) -> None:
    old = history(kind, tmp_path / "t", 11)
    live = gw.sources.memory(COLUMNS, rows(7, 20), name="live")
    source = gw.sources.sequence(old, live, cut=cut)
    gw.testing.check_source(source, add=lambda: live.add(rows(20, 25)))


def read(source: Source, begin: Any, end: Any, parallelism: int) -> list[int]:
    numbers: list[int] = []
    for split in source.splits(begin, end, parallelism):
        for batch in source.read(split, ["id"]):
            numbers += batch.column("id").to_pylist()
    return numbers


@pytest.mark.parametrize("seed", range(30))
def test_every_row_comes_once_over_restarts(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kind = draw.choice(KINDS)
    count = draw.randint(1 if kind != "memory" else 0, 20)
    old = history(kind, tmp_path / "t", count)
    cut = draw.choice([None, draw.randint(0, count)])
    first = count if cut is None else draw.randint(0, cut)
    live = gw.sources.memory(COLUMNS, rows(first, 30), name="live")

    def start(position: Any) -> Source:
        source = gw.sources.sequence(old, live, cut=None if cut is None else ("id", cut))
        source.open(position)
        return source

    source = start(None)
    position, numbers, former = source.start(), [], None
    for _ in range(200):
        limit = draw.choice([None, 1, 5])
        until = source.end(position) if draw.random() < 0.5 else None
        end = source.latest(position, limit=limit, until=until)
        if end == position:
            break
        assert not source.precedes(end, position)
        if draw.random() < 0.3:  # killed before the commit
            source = start(None if former is None else position)
            continue
        numbers += read(source, position, end, draw.choice([1, 3]))
        former, position = position, end
        if draw.random() < 0.3:
            if kind == "delta":  # which gets rows that are not history any more
                write_deltalake(
                    str(tmp_path / "t"), pa.table({"id": [99], "name": ["x"]}), mode="append"
                )
            source = start(position)
    assert numbers == list(range(30))


def test_the_end_of_history_is_that_of_the_start(tmp_path: Path) -> None:
    old = gw.sources.memory(COLUMNS, rows(0, 3), name="history")
    live: MemorySource = gw.sources.memory(COLUMNS, rows(3, 4), name="live")
    source = gw.sources.sequence(old, live)
    source.open(None)
    start = source.start()
    old.add(rows(50, 60))
    middle = source.latest(start)
    assert read(source, start, middle, 2) == [0, 1, 2]
    assert source.describe(middle) == {"reads": "memory live", "position": 0}
    assert source.describe(start) == {"reads": "memory history", "position": 0}
    assert read(source, middle, source.latest(middle), 2) == [3]
    assert read(source, start, source.end(start), 2) == [0, 1, 2, 3]
    assert source.lag(start).rows == 14


def test_without_history_the_live_rows_begin(tmp_path: Path) -> None:
    live = gw.sources.memory(COLUMNS, rows(0, 2), name="live")
    source = gw.sources.sequence(gw.sources.memory(COLUMNS, name="old"), live)
    source.open(None)
    start = source.start()
    assert read(source, start, source.latest(start), 1) == [0, 1]


def test_rows_with_null_in_the_column_of_the_cut_are_live() -> None:
    old = gw.sources.memory(COLUMNS, [(1, "a"), (None, "old")], name="old")
    live = gw.sources.memory(COLUMNS, [(None, "live"), (1, "a"), (2, "b")], name="live")
    flow = gw.Flow("f")
    both = flow.source("both", gw.sources.sequence(old, live, cut=("id", 2)))
    flow.sink("rows", both, gw.sinks.noop())
    assert gw.testing.run(flow).rows("rows")["name"].to_pylist() == ["a", "live", "b"]


def test_plain_history_is_inserted_before_upserts() -> None:
    old = gw.sources.memory("id long, v long", [(1, 5), (2, 6)], name="old")

    class Upserts(gw.sources.MemorySource):
        kind = "upserts"
        table_keys = ("id",)

    live = Upserts("id long, v long, change byte, unchanged string", name="live")
    live.add([(1, 9, 1, None), (2, None, -1, None), (3, None, 1, "v")])
    source = gw.sources.sequence(old, live)
    assert (source.kind, source.table_keys) == ("upserts", ("id",))
    flow = gw.Flow("f")
    table = flow.source("t", source).key_by("id").latest()
    flow.sink("n", table.key_by().compute(n=gw.count(), v=gw.sum("v")), gw.sinks.noop())
    assert gw.testing.run(flow).rows("n").to_pylist()[-1]["v"] == 9


def test_windows_are_those_of_the_rows() -> None:
    """The watermark is that of the rows: none of the live ones is late after the switch."""
    columns = "ts timestamp, n long"
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    moments = [(start + dt.timedelta(seconds=10 * number), number) for number in range(40)]
    shuffled = [moment for pair in zip(moments[1::2], moments[::2], strict=True) for moment in pair]
    old = gw.sources.memory(columns, shuffled, name="old", max_rows_per_epoch=7)
    live = gw.sources.memory(columns, shuffled, name="live", max_rows_per_epoch=5)
    source = gw.sources.sequence(old, live, cut=("ts", start + dt.timedelta(seconds=205)))
    flow = gw.Flow("f")
    stream = flow.source("rows", source, event_time="ts", slack="20 seconds")
    windows = stream.key_by().window(gw.tumbling("1 minute"))
    counts = windows.compute(n=gw.count(), s=gw.sum("n"))
    flow.sink("counts", counts, gw.sinks.noop())
    table = gw.testing.run(flow).rows("counts")
    assert table["n"].to_pylist()[:6] == [6] * 6
    assert sum(table["s"].to_pylist()[:6]) == sum(range(36))


@pytest.mark.parametrize(
    ("columns", "cut", "message"),
    [
        ("id int, name string", None, r"id \(int32, then int64\)"),
        ("id long", None, r"name \(missing, then string\)"),
        ("id long, name string, x int", None, r"x \(int32, then missing\)"),
        (COLUMNS, ("no", 1), "cut at column 'no'"),
        (COLUMNS, ("id", "x"), "does not fit its columns"),
        (COLUMNS, 5, "has cut=5"),
        (COLUMNS, ("id", None), "no row is before that"),
        (COLUMNS, pc.field("id") < pc.scalar(dt.date(2024, 1, 1)), "does not fit its columns"),
        (COLUMNS, pc.field("y") < 5, "does not fit its columns"),
    ],
)
def test_sources_that_do_not_fit_are_refused(columns: str, cut: Any, message: str) -> None:
    old = gw.sources.memory(columns, name="old")
    live = gw.sources.memory(COLUMNS, name="live")
    with pytest.raises(InvalidFlowError, match=message):
        gw.sources.sequence(old, live, cut=cut)


def test_mistakes_in_sources_and_zones_are_found_at_once() -> None:
    source = gw.sources.memory(COLUMNS)
    with pytest.raises(InvalidFlowError, match="has the source 'memory memory' twice"):
        gw.sources.sequence(source, source)
    old, new = (gw.sources.memory("t timestamp", name=name) for name in ("old", "new"))
    with pytest.raises(InvalidFlowError, match="does not fit its columns: Cannot compare"):
        gw.sources.sequence(old, new, cut=("t", dt.datetime(2024, 1, 1)))  # noqa: DTZ001


def test_another_cut_is_another_source(tmp_path: Path) -> None:
    old = history("files", tmp_path / "t", 5)
    live = gw.sources.parquet(tmp_path / "t", schema=COLUMNS)
    sources = [gw.sources.sequence(old, live, cut=cut) for cut in (None, ("id", 1), ("id", 2))]
    assert len({source.identity for source in sources}) == 3
    with pytest.raises(InvalidFlowError, match="of type str"):
        gw.sources.sequence("old", live)  # type: ignore[arg-type]
    with pytest.raises(SourceError):
        gw.sources.sequence(gw.sources.delta(tmp_path / "nothing"), live)

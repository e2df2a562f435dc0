"""Files that turn up in a directory."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import gzip
import json
import lzma
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.connect.files import directory
from godwit.connect.files.file_formats import _repeated_text
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.sources.source import Source

SCHEMA = "n bigint, name string, price double"
FORMATS = ("parquet", "arrow", "csv", "json")
BASE_S = 1_700_000_000
UTC = dt.UTC
MIDNIGHT = dt.datetime(2024, 5, 1)  # noqa: DTZ001  of a zone that nobody says
MOMENT = MIDNIGHT.replace(hour=8)


def table_of(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "name": pa.array([None if n % 7 == 0 else f"name {n}" for n in numbers]),
            "price": pa.array([n / 4 for n in numbers]),
        }
    )


def write(path: Path, rows: pa.Table, *, at: int | None = None, group: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.name.partition(".")[2]
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=group)
    elif kind == "arrow":
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=group)
    elif kind == "csv":
        pacsv.write_csv(rows, path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
        path.write_bytes(gzip.compress(lines.encode()) if kind == "json.gz" else lines.encode())
    if at is not None:
        os.utime(path, (BASE_S + at, BASE_S + at))
    return path


def source_of(kind: str, path: Path | str, **options: Any) -> Source:
    options = {"schema": SCHEMA, **options}
    source: Source = getattr(gw.sources, kind)(path, **options)
    return source


def opened(kind: str, path: Path | str, **options: Any) -> Source:
    source = source_of(kind, path, **options)
    source.open(None)
    return source


def steps(source: Source) -> Iterator[tuple[Any, Any]]:
    """Begin and end of each epoch that reads all there is."""
    position = source.start()
    while (after := source.latest(position)) != position:
        yield position, after
        position = after


def read(source: Source, begin: Any, end: Any, parallelism: int = 1, columns: Any = None) -> Any:
    columns = source.schema.names if columns is None else columns
    splits = source.splits(begin, end, parallelism)
    batches = [batch for split in splits for batch in source.read(split, columns)]
    schema = pa.schema([source.schema.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema)


def everything(source: Source, columns: Any = None) -> Any:
    source.open(None)
    start = source.start()
    return read(source, start, source.latest(start), columns=columns)


def numbers(rows: pa.Table) -> list[int]:
    return list(rows["n"].to_pylist())


def test_text_that_parquet_has_as_numbers_of_a_dictionary_is_read_as_it_is(tmp_path: Path) -> None:
    count = 50_000
    rows = pa.table(
        {
            "n": pa.array(range(count), pa.int64()),
            "few": pa.array([None if n % 11 == 0 else f"name {n % 300}" for n in range(count)]),
            "all": pa.array([f"name {n}" for n in range(count)]),
            "raw": pa.array([bytes([n % 7]) * 9 for n in range(count)], pa.binary()),
            "code": pa.array([f"code-{n % 3000:06d}" for n in range(count)]),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=20_000)
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert _repeated_text(metadata, rows.schema, [0, 1, 2]) == ["few", "raw", "code"]
    assert _repeated_text(metadata, rows.schema, [2]) == []  # too few rows to gain anything
    source = gw.sources.parquet(tmp_path)
    assert everything(source).equals(rows)
    assert everything(source, columns=["raw", "n"]).equals(rows.select(["raw", "n"]))
    start = source.start()
    middle = source.latest(start, limit=33_333)
    parts = [read(source, start, middle), read(source, middle, source.latest(middle), 3)]
    assert pa.concat_tables(parts).equals(rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_contract_is_kept_over_files_large_and_small(kind: str, tmp_path: Path) -> None:
    write(tmp_path / f"b.{kind}", table_of(0, 55), at=1)
    write(tmp_path / f"a.{kind}", table_of(55, 1), at=2)
    write(tmp_path / f"sub/c.{kind}", table_of(56, 0), at=3)
    write(tmp_path / f"c.{kind}", table_of(56, 30), at=3)
    added = iter(range(10))

    def add() -> None:
        write(tmp_path / f"old-{next(added)}.{kind}", table_of(100, 5), at=0)

    gw.testing.check_source(source_of(kind, tmp_path), add=add)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_file_is_cut_into_splits_of_like_size(kind: str, tmp_path: Path) -> None:
    write(tmp_path / f"one.{kind}", table_of(0, 60_000), group=1_000)
    source = opened(kind, tmp_path)
    start = source.start()
    end = source.latest(start)
    for parallelism in (2, 4):
        splits = source.splits(start, end, parallelism)
        assert len(splits) == parallelism
        counts = [sum(batch.num_rows for batch in source.read(split, ["n"])) for split in splits]
        assert sum(counts) == 60_000
        assert min(counts) > 0.8 * 60_000 / parallelism
    assert numbers(read(source, start, end, 7)) == list(range(60_000))
    assert read(source, start, end, 3) == table_of(0, 60_000)


@pytest.mark.parametrize("kind", FORMATS)
def test_few_rows_are_counted_so_that_the_driver_may_read_them(kind: str, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.{kind}", table_of(10 * number, 10))
    source = opened(kind, tmp_path, max_rows_per_epoch=25)
    start = source.start()
    for begin, end, rows in (
        (start, source.latest(start), 25),
        (source.latest(start), source.latest(source.latest(start)), 5),
    ):
        splits = source.splits(begin, end, 4)
        assert sum(split.rows or 0 for split in splits) == rows
        assert all(split.size_bytes for split in splits)
        assert all(split.exact == (kind in ("parquet", "arrow")) for split in splits)
    write(tmp_path / f"large.{kind}", table_of(0, 60_000), group=60_000)
    (split,) = source_of(kind, tmp_path / f"large.{kind}").splits(start, _all(kind, tmp_path), 1)
    assert (split.rows is None) == (kind in ("csv", "json"))


def _all(kind: str, directory: Path) -> Any:
    return (one := source_of(kind, directory / f"large.{kind}")).end(one.start())


def test_a_large_directory_is_listed_again_only_if_a_name_has_come_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_MANY", 0)
    for path in (tmp_path / "sub", tmp_path / "other"):
        write(path / "a.json", table_of(0, 1))
    for path in (tmp_path / "sub", tmp_path / "other", tmp_path):
        os.utime(path, (BASE_S, BASE_S))
    listed = 0
    list_files = directory.Directory._local_files

    def listing(of: directory.Directory) -> Any:
        nonlocal listed
        listed += 1
        return list_files(of)

    monkeypatch.setattr(directory.Directory, "_local_files", listing)
    source = opened("json", tmp_path)
    position = source.latest(source.start())
    assert [source.latest(position) for _ in range(5)] == [position] * 5
    assert source.lag(position).rows == 0
    assert listed == 1
    write(tmp_path / "sub" / "b.json", table_of(1, 1))
    after = source.latest(position)
    assert numbers(read(source, position, after)) == [1]
    # The directory has just changed, so it may change again and have the same time.
    count = listed
    assert [source.latest(after) for _ in range(3)] == [after] * 3
    assert listed == count + 3
    os.utime(tmp_path / "sub", (BASE_S + 1, BASE_S + 1))
    assert [source.latest(after) for _ in range(3)] == [after] * 3
    assert listed == count + 4
    # What was written to in its place is seen once the listing counts no more.
    write(tmp_path / "other" / "a.json", table_of(0, 2))
    assert source.latest(after) == after
    monkeypatch.setattr(directory, "_TRUSTED_S", -1.0)
    with pytest.raises(SourceError, match="changed after it was read"):
        source.latest(after)


def test_empty_files_of_a_large_directory_are_looked_at_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_MANY", 0)
    path = tmp_path / "a.json"
    path.touch()
    os.utime(tmp_path, (BASE_S, BASE_S))
    source = opened("json", tmp_path)
    assert source.latest(start := source.start()) == start
    path.write_text('{"n": 5}\n')
    os.utime(tmp_path, (BASE_S, BASE_S))
    assert numbers(read(source, start, source.latest(start))) == [5]


@pytest.mark.parametrize("kind", FORMATS)
def test_small_files_share_a_split(kind: str, tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"{number:02}.{kind}", table_of(number * 10, 10), at=number)
    source = opened(kind, tmp_path)
    (split,) = source.splits(source.start(), source.latest(source.start()), 4)
    assert split.what == f"30 files from 00.{kind}"
    assert (split.rows, split.exact) == (300, kind in {"parquet", "arrow"})


@pytest.mark.parametrize("kind", FORMATS)
def test_limits_of_rows_hold_within_files(kind: str, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.{kind}", table_of(number * 25, 25), at=number)
    source = opened(kind, tmp_path, max_rows_per_epoch=10)
    seen, position = [], source.start()
    for begin, position in steps(source):
        seen.append(numbers(read(source, begin, position, 2)))
        assert len(seen[-1]) <= 10
    assert [n for rows in seen for n in rows] == list(range(75))
    assert len(seen) == 8
    assert source.describe(position) == {"files": 3}
    one = source.latest(source.start())
    unit = "row" if kind in ("parquet", "arrow") else "byte"
    assert source.describe(one)["reading"].startswith(f"0.{kind} at {unit} ")
    assert numbers(read(source, one, source.latest(one, limit=3))) == [10, 11, 12]


def test_limits_of_files_and_ends_hold(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.parquet", table_of(number, 1), at=9 - number)
    source = opened("parquet", tmp_path, max_files_per_epoch=2)
    one = source.latest(source.start())
    assert numbers(read(source, source.start(), one)) == [4, 3]
    end = source.end(one)
    write(tmp_path / "later.parquet", table_of(100, 1), at=0)
    two = source.latest(one, until=end)
    three = source.latest(two, until=end)
    assert numbers(read(source, one, three)) == [2, 1, 0]
    assert three == end == source.latest(three, until=end)
    assert numbers(read(source, three, source.latest(three))) == [100]


def test_a_file_with_an_older_time_than_those_read_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", table_of(0, 1), at=100)
    source = opened("parquet", tmp_path)
    position = source.latest(source.start())
    write(tmp_path / "b.parquet", table_of(1, 1), at=50)
    again = source_of("parquet", tmp_path)  # after a restart
    again.open(position)
    after = again.latest(position)
    assert numbers(read(again, position, after)) == [1]
    assert again.latest(after) == after


def test_files_that_are_gone_leave_the_position_with_the_next_file(tmp_path: Path) -> None:
    old = write(tmp_path / "a.parquet", table_of(0, 1))
    source = opened("parquet", tmp_path)
    position = source.latest(source.start())
    old.unlink()
    assert source.latest(position) == position
    write(tmp_path / "b.parquet", table_of(1, 1))
    after = source.latest(position)
    assert len(after["keys"]) == len(position["keys"]) == 8
    assert numbers(read(source, position, after)) == [1]


def test_each_of_twenty_thousand_files_is_read_once_at_twelve_bytes_in_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"{number}.json" for number in range(20_000)}
    for name in names:
        (tmp_path / name).write_bytes(b'{"n":1}\n')
    listed = []
    list_directory = directory.Directory.list

    def listing(*given: Any) -> Any:
        listed.append(given)
        return list_directory(*given)

    monkeypatch.setattr(directory.Directory, "list", listing)
    source = opened("json", tmp_path, max_files_per_epoch=8_000)
    planned, position = list[list[str]](), source.start()
    for begin, position in steps(source):
        pieces = [piece for split in source.splits(begin, position, 2) for piece in split.payload]
        assert not any(piece.is_cut for piece in pieces)
        planned.append([Path(piece.file.path).name for piece in pieces])
    assert [len(files) for files in planned] == [8_000, 8_000, 4_000]
    assert {name for files in planned for name in files} == names
    assert len(listed) <= 3  # to open, for all that is there, and for what comes after it
    assert len(position["keys"]) + len(position["versions"]) == 20_000 * 12
    again = source_of("json", tmp_path)
    again.open(position)
    assert again.latest(position) == position


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_changes_before_it_is_read_is_refused(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{kind}", table_of(0, 30), at=1)
    source = opened(kind, tmp_path)
    end = source.latest(source.start())
    splits = source.splits(source.start(), end, 1)
    write(path, table_of(7, 30), at=2)
    with pytest.raises(SourceError, match=rf"a\.{kind}' changed while") as failed:
        list(source.read(splits[0], ["n"]))
    assert "rename it" in failed.value.remedy
    path.unlink()
    with pytest.raises(SourceError, match=rf"a\.{kind}' was removed before it was read completely"):
        list(source.read(splits[0], ["n"]))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", table_of(0, 30), at=1)
    source = opened("json", tmp_path)
    (split,) = source.splits(source.start(), source.latest(source.start()), 1)
    batches = source.read(split, ["n"])
    assert next(batches).num_rows == 30
    write(path, table_of(0, 31), at=2)
    with pytest.raises(SourceError, match="changed while"):
        list(batches)


def test_a_file_that_changes_after_it_was_read_is_refused_until_it_is_out_of_the_way(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "in/a.json", table_of(0, 3), at=1)
    source = opened("json", tmp_path / "in")
    position = source.latest(source.start())
    write(path, table_of(0, 4), at=2)
    with pytest.raises(SourceError, match=r"a\.json' changed after it was read"):
        source.latest(position)
    again = source_of("json", tmp_path / "in")
    with pytest.raises(SourceError, match="changed after it was read"):
        again.open(position)
    path.rename(tmp_path / "a.json")
    again.open(position)
    assert again.latest(position) == position


def test_a_file_that_is_read_in_part_must_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table_of(0, 30), at=1)
    source = opened("parquet", tmp_path)
    position = source.latest(source.start(), limit=10)
    again = source_of("parquet", tmp_path)
    again.open(position)
    assert numbers(read(again, position, again.latest(position))) == list(range(10, 30))
    path.unlink()
    with pytest.raises(SourceError, match="removed before it was read completely"):
        source_of("parquet", tmp_path).open(position)


@pytest.mark.parametrize("kind", FORMATS)
def test_files_that_are_none_of_the_format_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / f"bad.{kind}").write_bytes(b"\x00\xff{[ no such thing,\x80\n" * 20)
    source = opened(kind, tmp_path)
    with pytest.raises(SourceError, match=rf"bad\.{kind}"):
        read(source, source.start(), source.latest(source.start(), limit=5))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_that_is_written_to_the_half_is_refused(kind: str, tmp_path: Path) -> None:
    whole = write(tmp_path / f"a.{kind}", table_of(0, 100)).read_bytes()
    for length in (4, len(whole) // 2, len(whole) - 1):
        (tmp_path / f"a.{kind}").write_bytes(whole[:length])
        with pytest.raises(SourceError, match=rf"a\.{kind}' cannot be read"):
            everything(source_of(kind, tmp_path))


def test_empty_files_wait_until_they_have_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    source = opened("parquet", tmp_path)
    start = source.start()
    assert source.latest(start) == start
    write(tmp_path / "a.parquet", table_of(0, 2))
    assert numbers(read(source, start, source.latest(start))) == [0, 1]


def test_names_that_are_no_data_by_custom_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.json", table_of(0, 1))
    write(tmp_path / "_part=1/b.json", table_of(1, 1))
    for name in ("_SUCCESS", ".a.json.crc", "_temporary/0/c.json", ".hidden/d.json"):
        write(tmp_path / name, table_of(9, 1))
    (tmp_path / "e.json._COPYING_").write_text("{")
    (tmp_path / "notes.txt").write_text("no JSON")
    source = source_of("json", tmp_path, pattern="*.json")
    assert sorted(numbers(everything(source))) == [0, 1]
    assert source.identity == f"JSON files in {tmp_path}, *.json"


def test_directories_named_as_hive_does_are_columns(tmp_path: Path) -> None:
    write(tmp_path / "day=2024-05-01/hour=7/a.parquet", table_of(0, 2), at=1)
    write(tmp_path / "day=2024-05-02/hour=8/b.parquet", table_of(2, 1), at=2)
    null = "day=__HIVE_DEFAULT_PARTITION__/hour=9/a%20b.parquet"
    write(tmp_path / null, table_of(3, 1), at=3)
    looked_up = source_of("parquet", tmp_path, schema=None)
    assert looked_up.schema.names == ["n", "name", "price", "day", "hour"]
    assert looked_up.schema.field("hour").type == pa.int64()
    rows = everything(source_of("parquet", tmp_path, schema=f"{SCHEMA}, day date, hour int"))
    days = [dt.date(2024, 5, 1), dt.date(2024, 5, 1), dt.date(2024, 5, 2), None]
    assert rows["day"].to_pylist() == days
    only = everything(source_of("parquet", tmp_path, schema=f"{SCHEMA}, hour int"), ["hour"])
    assert only["hour"].to_pylist() == [7, 7, 8, 9]
    with pytest.raises(SourceError, match="has day=2024-05-01, which is not of type int64"):
        everything(source_of("parquet", tmp_path, schema=f"{SCHEMA}, day bigint"))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_only_columns_of_directories_can_be_asked_for_of_text(kind: str, tmp_path: Path) -> None:
    write(tmp_path / f"hour=7/a.{kind}", table_of(0, 5))
    source = source_of(kind, tmp_path, schema=f"{SCHEMA}, hour int")
    assert everything(source, ["hour"])["hour"].to_pylist() == [7] * 5


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_is_missing_is_null_and_others_are_left_alone(
    kind: str, tmp_path: Path
) -> None:
    write(tmp_path / f"a.{kind}", pa.table({"other": [1, 2], "n": [3, 4]}))
    rows = everything(source_of(kind, tmp_path))
    assert rows.to_pylist() == [{"n": n, "name": None, "price": None} for n in (3, 4)]
    assert everything(source_of(kind, tmp_path), ["price"])["price"].to_pylist() == [None, None]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_a_file_without_any_column_of_the_schema_is_refused_by_name(
    kind: str, tmp_path: Path
) -> None:
    write(tmp_path / f"day=1/a.{kind}", pa.table({"x": [1, 2], "y": [3, 4]}))
    source = source_of(kind, tmp_path, schema=f"{SCHEMA}, day int")
    for columns in (["n"], ["n", "day"]):
        with pytest.raises(SourceError, match=rf"a\.{kind}' has no column .*'x', 'y'"):
            everything(source, columns)
    assert everything(source, ["day"])["day"].to_pylist() == [1, 1]


def test_an_empty_path_is_refused_and_not_the_working_directory() -> None:
    with pytest.raises(SourceError, match="path of a file source is empty"):
        gw.sources.json("", schema=SCHEMA)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_narrower_types_are_widened(kind: str, tmp_path: Path) -> None:
    moment = MOMENT
    narrow = {
        "i": pa.array([1], pa.int16()),
        "f": pa.array([2], pa.int32()),
        "d": pa.array([decimal.Decimal("1.5")], pa.decimal128(3, 1)),
        "t": pa.array([moment], pa.timestamp("ns")),
        "z": pa.array([moment], pa.timestamp("ms", tz="UTC")),
        "s": pa.array(["x"]).dictionary_encode(),
        "l": pa.array([[{"a": 1}]], pa.list_(pa.struct([("a", pa.int32())]))),
    }
    schema = {
        "i": pa.int64(),
        "f": pa.float64(),
        "d": pa.decimal128(10, 2),
        "t": pa.timestamp("us"),
        "z": pa.timestamp("us", tz="UTC"),
        "s": pa.string(),
        "l": pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
    }
    write(tmp_path / f"a.{kind}", pa.table(narrow))
    (row,) = everything(source_of(kind, tmp_path, schema=schema)).to_pylist()
    expected = {"i": 1, "f": 2.0, "d": decimal.Decimal("1.50"), "t": moment, "s": "x"}
    assert row == {**expected, "z": moment.replace(tzinfo=UTC), "l": [{"a": 1, "b": None}]}


@pytest.mark.parametrize(
    ("dtype", "values", "target"),
    [
        (pa.int64(), [1], "int"),
        (pa.string(), ["1"], "bigint"),
        (pa.int64(), [1], "double"),
        (pa.float64(), [1.0], "float"),
        (pa.decimal128(5, 2), [decimal.Decimal(1)], "decimal(5, 1)"),
        (pa.timestamp("us"), [MOMENT], "timestamp"),
        (pa.list_(pa.int64()), [[1]], "array<int>"),
        (pa.struct([("b", pa.int64())]), [{"b": 1}], "struct<a bigint>"),
    ],
)
def test_other_types_are_refused_with_the_files_name(
    dtype: pa.DataType, values: list[Any], target: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.parquet", pa.table({"c": pa.array(values, dtype)}))
    with pytest.raises(SourceError, match=r"'c' of the file .*a\.parquet"):
        everything(source_of("parquet", tmp_path, schema={"c": target}))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_digits_below_microseconds_are_cut_also_before_1970(kind: str, tmp_path: Path) -> None:
    stored = [[1001, -1, -1000, None], None, [-1001]]
    times = pa.array(stored, pa.list_(pa.timestamp("ns")))
    spans = pa.array(stored, pa.list_(pa.duration("ns")))
    write(tmp_path / f"a.{kind}", pa.table({"t": times, "d": spans}))
    schema = "t array<timestamp_ntz>, d array<interval day to second>"
    rows = everything(source_of(kind, tmp_path, schema=schema))
    as_numbers = pa.schema([(name, pa.list_(pa.int64())) for name in ("t", "d")])
    assert rows.cast(as_numbers).to_pydict() == {
        "t": [[1, -1, -1, None], None, [-2]],  # 23:59:59.999999999 is cut to .999999
        "d": [[1, 0, -1, None], None, [-1]],  # PT-0.000001001S to PT-0.000001S
    }


def test_timestamps_of_96_bits_are_instants(tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array([MOMENT], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    for schema in (None, "t timestamp"):
        rows = everything(source_of("parquet", tmp_path, schema=schema))
        assert rows["t"].to_pylist() == [dt.datetime(2024, 5, 1, 8, tzinfo=UTC)]


def test_a_schema_is_looked_up_in_the_first_file(tmp_path: Path) -> None:
    source = source_of("parquet", tmp_path, schema=None)
    with pytest.raises(SourceError, match=r"no files in .* infer a schema from") as failed:
        _ = source.schema
    assert "schema=" in failed.value.remedy
    first = pa.table({"n": [1], "t": pa.array([0], pa.timestamp("ns")), "x": pa.nulls(1)})
    write(tmp_path / "b.parquet", first, at=1)
    write(tmp_path / "a.parquet", table_of(0, 1), at=2)
    assert source.schema == pa.schema({"n": pa.int64(), "t": pa.timestamp("us"), "x": pa.string()})
    for kind in ("csv", "json"):
        write(tmp_path / kind / f"a.{kind}", table_of(1, 4))
        looked_up = source_of(kind, tmp_path / kind, schema=None)
        assert looked_up.schema == pa.schema(
            {"n": pa.int64(), "name": pa.string(), "price": pa.float64()}
        )


def test_text_has_types_of_the_schema(tmp_path: Path) -> None:
    schema = "d decimal(5, 2), t timestamp, l timestamp_ntz, day date, b boolean, s string"
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/a.csv").write_text(
        '\ufeffday,d,t,l,b,s\n2024-05-01,1.5,2024-05-01T08:00:00Z,2024-05-01 08:00:00,true,""\n'
        "2024-05-01,-2,2024-05-01 10:00:00+02:00,2024-05-01,false,NA\n\n,,2024-05-01 08:00:00,,,\n",
        "utf-8",
    )
    (tmp_path / "json").mkdir()
    (tmp_path / "json/a.json").write_text(
        '\ufeff{"day": "2024-05-01", "d": 1.5, "t": "2024-05-01T08:00:00Z", "b": true, "s": "",'
        ' "l": "2024-05-01 08:00:00", "more": [1]}\n'
        '{"s": "NA", "b": false, "d": "-2", "t": "2024-05-01 10:00:00+02:00", "l": "2024-05-01",'
        ' "day": "2024-05-01"}\n\n{"t": "2024-05-01 08:00:00"}',
        "utf-8",
    )
    moment, day = MOMENT, dt.date(2024, 5, 1)
    expected = [
        (decimal.Decimal("1.50"), moment.replace(tzinfo=UTC), moment, day, True, ""),
        (decimal.Decimal("-2.00"), moment.replace(tzinfo=UTC), MIDNIGHT, day, False, "NA"),
        (None, moment.replace(tzinfo=UTC), None, None, None, None),
    ]
    for kind in ("csv", "json"):
        rows = everything(source_of(kind, tmp_path / kind, schema=schema))
        assert [tuple(row.values()) for row in rows.to_pylist()] == expected


def test_csv_has_delimiters_quotes_and_no_header_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "p=1").mkdir()
    (tmp_path / "p=1/a.csv").write_text("1;'a;b'\n2;-\n")
    source = gw.sources.csv(
        tmp_path,
        schema="n bigint, p int, s string",
        header=False,
        delimiter=";",
        quote="'",
        null_values=["-"],
    )
    assert everything(source).to_pylist() == [
        {"n": 1, "p": 1, "s": "a;b"},
        {"n": 2, "p": 1, "s": None},
    ]
    with pytest.raises(SourceError, match="without a header"):
        gw.sources.csv(tmp_path, header=False)


def test_csv_with_line_breaks_in_quotes_is_read_as_a_whole(tmp_path: Path) -> None:
    text = "n,s\n" + "".join(f'{n},"a\nb"\n' for n in range(20_000))
    (tmp_path / "a.csv").write_text(text)
    source = gw.sources.csv(tmp_path, schema="n bigint, s string", newlines_in_values=True)
    rows = everything(source)
    assert numbers(rows) == list(range(20_000))
    assert set(rows["s"].to_pylist()) == {"a\nb"}
    assert len(source.splits(source.start(), source.latest(source.start()), 4)) == 1


@pytest.mark.parametrize(
    "text",
    ['n,s\n1,"a\nb"\n', 'n,s\n1,"a\n2,b\n', 'n,s\n1,"a""\n', 'n,s\n1,x\n2,"a\\"\n'],
)
def test_line_breaks_in_quotes_are_refused_unless_they_are_meant(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SourceError, match=r"a\.csv' .*newlines_in_values=True"):
        everything(gw.sources.csv(tmp_path, schema="n bigint, s string", escape="\\"))


def test_quotes_that_end_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,s\n1,"a,""b"""\n\n2,5" pipe\n3,""\n4,"x"')
    rows = everything(gw.sources.csv(tmp_path, schema="n bigint, s string"))
    assert rows["s"].to_pylist() == ['a,"b"', '5" pipe', "", "x"]


def test_links_are_followed_but_for_those_to_what_is_read_anyway(tmp_path: Path) -> None:
    root = tmp_path / "in"
    write(root / "day=1/a.json", table_of(0, 1))
    write(root / "_staged/b.json", table_of(1, 1))
    write(tmp_path / "elsewhere/c.json", table_of(2, 1))
    (root / "round").symlink_to(root)
    (root / "latest.json").symlink_to(root / "day=1/a.json")
    (root / "days").symlink_to(root / "day=1")
    (root / "nowhere.json").symlink_to(tmp_path / "none")
    (root / "b.json").symlink_to(root / "_staged/b.json")
    (root / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path)
    assert sorted(numbers(everything(source_of("json", root)))) == [0, 1, 2]


def test_names_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")).write_text("{}")
    with pytest.raises(SourceError, match="is not UTF-8"):
        source_of("json", tmp_path).open(None)


def test_compressed_text_is_not_cut(tmp_path: Path) -> None:
    write(tmp_path / "a.json.gz", table_of(0, 5_000), at=1)
    write(tmp_path / "b.json", table_of(5_000, 10), at=2)
    source = source_of("json", tmp_path)
    gw.testing.check_source(source, exact_limits=False, max_rows=6_000)
    source = source_of("json", tmp_path)
    assert numbers(everything(source)) == list(range(5_010))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_lines_come_once_wherever_a_file_is_cut(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{kind}", table_of(0, 12))
    source = opened(kind, tmp_path)
    (split,) = source.splits(source.start(), source.latest(source.start()), 1)
    (piece,) = split.payload
    size = path.stat().st_size
    for cut in range(1, size):
        parts = [replace(piece, stop=cut), replace(piece, start=cut)]
        seen = [
            n
            for part in parts
            for batch in source.read(replace(split, payload=(part,)), ["n"])
            for n in batch.column("n").to_pylist()
        ]
        assert seen == list(range(12)), cut


def test_one_file_and_uris_and_file_systems_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "in/a.parquet", table_of(0, 3))
    inner = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    sources = [
        source_of("parquet", path),
        source_of("parquet", f"file://{tmp_path}/in"),
        source_of("parquet", "in", filesystem=inner),
    ]
    for source in sources:
        assert numbers(everything(source)) == [0, 1, 2]
        gw.testing.check_source(source)
    assert sources[0].identity == f"Parquet files in {path}"
    assert sources[1].identity == f"Parquet files in {tmp_path}/in"
    with pytest.raises(SourceError, match="Cannot open"):
        source_of("parquet", "nosuch://x/y").open(None)
    secret = source_of("parquet", "s3://key:secret@bucket/in")  # nothing is asked for yet
    assert secret.identity == "Parquet files in s3://***@bucket/in"


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    source = source_of("parquet", tmp_path / "none")
    with pytest.raises(SourceError, match="none' cannot be listed"):
        source.open(None)
    write(tmp_path / "none/a.parquet", table_of(0, 1))
    source.open(None)
    position = source.latest(source.start())
    shutil.rmtree(tmp_path / "none")
    with pytest.raises(SourceError, match="none' cannot be listed"):
        source.latest(position)


@pytest.mark.parametrize("option", ["max_rows_per_epoch", "max_files_per_epoch"])
def test_limits_are_whole_numbers_from_one(option: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{option} is 0"):
        source_of("parquet", tmp_path, **{option: 0})


def test_lag_is_what_was_listed_and_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", table_of(0, 3), at=5)
    source = opened("json", tmp_path)
    lag = source.lag(source.start())
    assert (lag.rows, lag.size_bytes, lag.oldest_us) == (
        None,
        path.stat().st_size,
        (BASE_S + 5) * 1_000_000,
    )
    assert source.lag(source.latest(source.start())).rows == 0


@pytest.mark.parametrize(
    "line",
    [
        "true",
        '  true\n{"n": 1}',
        '{"n": 1}\nnull',
        "[1]",
        "7",
        '{\n  "n": 1\n}',
        '{"n":\n1}',
        '{"n": 1}{"n": 2}',
        '{"n": 1} {"m":\n{"n": 2}}',
        '{"n": 1, "m": [{"n": 2},\n{"n": 3}]}',
    ],
)
def test_lines_that_are_no_objects_are_refused_by_the_files_name(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f"{line}\n")
    with pytest.raises(SourceError, match=r"a\.json.*not one JSON object"):
        everything(source_of("json", tmp_path))


def test_objects_over_lines_are_refused_wherever_a_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n":\n2}\n{"n": 3}\n')
    for limit in (1, 2, 3, 4, None):
        source = opened("json", tmp_path, max_rows_per_epoch=limit)
        got = list[int]()
        with pytest.raises(
            SourceError, match=r"a\.json' cannot be read: a line is not one JSON object"
        ):
            got.extend(n for step in steps(source) for n in numbers(read(source, *step)))
        assert got in ([], [1])


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", " \r\n\n", "\n  "])
def test_lines_of_json_may_have_blanks_around_them(ending: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(f'  {{"n": 1}} \r\n\n\t{{"n": 2}}{ending}'.encode())
    assert numbers(everything(source_of("json", tmp_path))) == [1, 2]


def test_text_that_is_not_utf_8_is_refused_by_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"name": "\xff"}\n')
    with pytest.raises(SourceError, match=r"a\.json.*UTF-8"):
        everything(source_of("json", tmp_path))


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
@pytest.mark.parametrize("ending", ["\n", "", "\n\n"])
def test_line_breaks_in_quotes_are_refused_wherever_a_file_is_cut(
    limit: int | None, ending: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f'name\n"one"\n"two\nhalves"{ending}')
    source = opened("csv", tmp_path, schema="name string", max_rows_per_epoch=limit)
    got = list[str]()
    with pytest.raises(SourceError, match=r"a\.csv' .*newlines_in_values=True"):
        got.extend(n for step in steps(source) for n in read(source, *step)["name"].to_pylist())
    assert got in ([], ["one"])


@pytest.mark.parametrize("text", ['"a ""b""",\n\n,"c"\n', '5" pipe,x\n,"c"', '"","\\""\n1,2\n'])
def test_quotes_without_line_breaks_are_read_in_parts_as_in_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    options = {"schema": "one string, two string", "header": False, "escape": "\\"}
    in_one = everything(source_of("csv", tmp_path, newlines_in_values=True, **options))
    source = opened("csv", tmp_path, max_rows_per_epoch=1, **options)
    parts = [read(source, *step) for step in steps(source)]
    assert pa.concat_tables(parts).to_pylist() == in_one.to_pylist() != []


def test_lines_of_empty_values_are_rows_where_spaces_separate_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one\ttwo\n\t\n\t\n")
    source = source_of("csv", tmp_path, schema="one string, two string", delimiter="\t")
    assert everything(source).to_pylist() == [{"one": None, "two": None}] * 2


def test_a_day_is_its_first_moment_where_a_timestamp_is_expected(tmp_path: Path) -> None:
    write(tmp_path / "day=2024-05-01/a.csv", pa.table({"t": ["2024-05-01"]}))
    rows = everything(source_of("csv", tmp_path, schema="t timestamp, day timestamp"))
    assert rows.to_pylist() == [dict.fromkeys(("t", "day"), MIDNIGHT.replace(tzinfo=UTC))]


def test_a_file_with_two_columns_of_one_name_is_refused_by_name(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    for kind in ("parquet", "arrow", "csv"):
        write(tmp_path / kind / f"a.{kind}", twice)
        with pytest.raises(SourceError, match=rf"a\.{kind}.*column.*named 'n'"):
            everything(source_of(kind, tmp_path / kind))


def test_a_header_of_another_delimiter_is_refused_and_no_row_of_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n;name\n1;x\n")
    with pytest.raises(SourceError, match=r"a\.csv.*pass delimiter=';'"):
        everything(source_of("csv", tmp_path))


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ";;"},
        {"delimiter": None},
        {"quote": 5},
        {"escape": ""},
        {"null_values": "NA"},
        {"null_values": [None]},
        {"pattern": 5},
        {"filesystem": "local"},
    ],
    ids=str,
)
def test_options_of_another_type_are_refused_by_name(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=next(iter(options))):
        source_of("csv", tmp_path, **options)
    with pytest.raises(SourceError, match="path"):
        source_of("json", None)  # type: ignore[arg-type]


# -- lines that cannot be read ------------------------------------------------------------------

LINES = {
    "json": lambda n: f'{{"n":{n},"name":"x","price":1.5}}\n',
    "csv": lambda n: f'{n},"x",1.5\n',
}
BAD = {
    "json": [b'{"n":"seven"}', b'{"n":1', b"\xff", b'{"n":1}{"n":2}', b'{"name":"\xff"}'],
    "csv": [b"seven,x,1.5", b"1,x", b'2,"x', b'y",1.5,', b'3,"\xff",2.0', b"4,x,1.5,more"],
}


def with_bad_lines(kind: str, path: Path) -> tuple[list[int], set[bytes]]:
    """Write good lines and bad ones; return the numbers of the good ones, and the bad ones."""
    good, bad = range(3000), BAD[kind]
    lines = [LINES[kind](n).encode() for n in good]
    for number, line in enumerate(bad):
        lines.insert(number * 437, line + b"\n")
    header = b"n,name,price\n" if kind == "csv" else b""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(header + b"".join(lines))
    return list(good), set(bad)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_lines_that_cannot_be_read_are_left_out_and_named_wherever_a_file_is_cut(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = with_bad_lines(kind, tmp_path / f"in/1.{kind}")
    refusing = opened(kind, tmp_path / "in")
    end = refusing.latest(refusing.start())
    with pytest.raises(SourceError, match=f"1.{kind}' cannot be read"):
        read(refusing, refusing.start(), end)
    for parts in (1, 5):
        source = opened(kind, tmp_path / "in", on_bad="skip")
        splits = source.splits(source.start(), source.latest(source.start()), parts)
        batches = [
            batch for split in splits for batch in source.read(split, ["n", "name", "price"])
        ]
        rows = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
        assert [n for batch in rows for n in batch.column(0).to_pylist()] == good
        left_out = [batch.rows for batch in batches if isinstance(batch, gw.sources.Unreadable)]
        assert {value for rows in left_out for value in rows["value"].to_pylist()} == bad
        assert sum(rows.num_rows for rows in left_out) == len(bad)
        assert all(
            path.endswith(f"1.{kind}") for rows in left_out for path in rows["path"].to_pylist()
        )
    assert "cannot be read" in caplog.text
    assert "skipped" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_lines_that_cannot_be_read_come_with_their_epoch_to_a_sink(
    kind: str, tmp_path: Path
) -> None:
    good, bad = with_bad_lines(kind, tmp_path / f"in/1.{kind}")
    source = source_of(kind, tmp_path / "in", on_bad="divert", rejects=gw.sinks.noop())
    flow = gw.Flow("lines", num_key_groups=4)
    counts = flow.source("lines", source).key_by("name").compute(rows=gw.count(), n=gw.sum("n"))
    flow.sink("out", counts, gw.sinks.noop())
    played = gw.testing.run(flow, {})
    assert played.rows("out").to_pylist() == [{"name": "x", "rows": len(good), "n": sum(good)}]
    unreadable = played.rows("lines_unreadable").to_pylist()
    assert {row["value"] for row in unreadable} == bad
    assert all(row["error"] for row in unreadable)


def test_what_means_nothing_for_lines_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gw.errors.GodwitError, match="contradict each other"):
        source_of("csv", tmp_path, on_bad="divert")
    with pytest.raises(gw.errors.GodwitError, match="on_bad='ignore' is not known"):
        source_of("json", tmp_path, on_bad="ignore")
    with pytest.raises(gw.errors.GodwitError, match="single lines cannot be skipped"):
        source_of("csv", tmp_path, on_bad="skip", newlines_in_values=True)


def test_a_source_that_leaves_lines_out_keeps_the_contract(tmp_path: Path) -> None:
    numbers = iter(range(100))

    def add() -> None:
        with_bad_lines("csv", tmp_path / f"in/{next(numbers)}.csv")

    add()
    gw.testing.check_source(source_of("csv", tmp_path / "in", on_bad="skip"), add=add)


# -- files that are not text --------------------------------------------------------------------

NO_TEXT = {
    "gzip": gzip.compress(b"n\n1\n" * 50_000),
    "bzip2": bz2.compress(b"n\n1\n"),
    "xz": lzma.compress(b"n\n1\n"),
    "Zstandard": pa.compress(b"n\n1\n", "zstd", asbytes=True),
    "zip": b"PK\x03\x04\x14\x00",
    "7z": b"7z\xbc\xaf\x27\x1c\x00",
    "Avro": b"Obj\x01\x04\x14avro.codec",
    "ORC": b"ORC\n\x06\x12\x04\x08",
}


def parquet_bytes() -> bytes:
    """Contents of a small Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("ending", ["xz", "snappy", "zip", "7z", "Z", "lzo", "tar.gz", "tgz"])
def test_endings_of_files_that_are_not_read_are_refused_before_an_epoch(
    kind: str, ending: str, tmp_path: Path
) -> None:
    write(tmp_path / f"a.{kind}", table_of(0, 3), at=1)
    source = opened(kind, tmp_path)
    end = source.latest(source.start())
    (tmp_path / f"b.{kind}.{ending}").write_bytes(lzma.compress(b"n\n1\n"))
    for limit in (None, 1):
        with pytest.raises(SourceError, match=rf"b\.{kind}\.{ending}'.* end in '\.br', '\.bz2'"):
            source.latest(end, limit=limit)
    only_plain = opened(kind, tmp_path, pattern=f"*.{kind}")
    assert only_plain.latest(end) == end


@pytest.mark.parametrize("on_bad", ["refuse", "skip"])
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("what", [*NO_TEXT, "Parquet"])
def test_files_that_are_not_text_are_refused_by_their_first_bytes(
    what: str, kind: str, on_bad: str, tmp_path: Path
) -> None:
    data = parquet_bytes() if what == "Parquet" else NO_TEXT[what]
    (tmp_path / f"a.{kind}").write_bytes(data + b"\n" * 300_000)
    source = opened(kind, tmp_path, on_bad=on_bad)

    def read_last_split() -> None:
        splits = source.splits(source.start(), source.latest(source.start()), 4)
        list(source.read(splits[-1], ["n"]))

    with pytest.raises(SourceError, match=rf"a\.{kind}' cannot be read: it is .*{what}"):
        read_last_split()


@pytest.mark.parametrize("header", ["BZh9", "PAR1", "ORC", "PK", "7z"])
def test_texts_that_begin_as_other_formats_do_are_read(header: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{header},n\n1,2\n")
    assert numbers(everything(source_of("csv", tmp_path, schema="n bigint"))) == [2]


@pytest.mark.parametrize("ending", ["gz", "GZ", "bz2"])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_compressed_file_that_is_the_path_itself_is_decompressed(
    kind: str, ending: str, tmp_path: Path
) -> None:
    compress = bz2.compress if ending == "bz2" else gzip.compress
    text = b"n\n1\n2\n" if kind == "csv" else b'{"n": 1}\n{"n": 2}\n'
    path = tmp_path / f"a.{kind}.{ending}"
    path.write_bytes(compress(text))
    for place in (path, tmp_path):
        source = source_of(kind, place, schema="n bigint")
        assert numbers(everything(source)) == [1, 2]

"""Iceberg tables as a source: features of the format, refusals, restarts and pruning."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
)
from tests.support.iceberg_tables import (
    catalog_in,
    commit_deletes,
    compact,
    edit_metadata,
    local_path,
    properties_of,
)

import godwit as gw
from godwit.connect.iceberg.files import all_files, data_files_of
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from godwit.sources import Source

Rows = list[dict[str, Any]]
NAME = "shop.orders"
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
FIELDS = pa.schema([pa.field("id", pa.int64()), pa.field("k", pa.string())])


def numbers(first: int, after: int, schema: pa.Schema = FIELDS) -> pa.Table:
    ids = list(range(first, after))
    columns = [pa.array(ids, pa.int64()), pa.array([f"k{n % 3}" for n in ids])]
    return pa.Table.from_arrays(columns, names=["id", "k"]).cast(schema)


def create(path: Path, *, rows: int = 5, **options: Any) -> Table:
    table = catalog_in(path).create_table(NAME, FIELDS, **options)
    if rows:
        table.append(numbers(0, rows))
    return table


def source_of(path: Path, **options: Any) -> Source:
    source: Source = gw.sources.iceberg(NAME, catalog=properties_of(path), **options)
    return source


def epoch(source: Source, position: Any = None, **options: Any) -> tuple[Rows, Any]:
    """Open a source at a position and read one epoch: its rows, and the next position."""
    assert source.schema.names
    source.open(position)
    begin = source.start() if position is None else position
    end = source.latest(begin, **options)
    rows: Rows = []
    for split in source.splits(begin, end, 3):
        for batch in source.read(split, source.schema.names):
            rows += batch.to_pylist()
    source.close()
    return rows, end


def ids(rows: Rows) -> list[int]:
    return sorted(row["id"] for row in rows)


def signs(rows: Rows) -> dict[int, int]:
    total: Counter[int] = Counter()
    for row in rows:
        total[row["id"]] += row["change"]
    return {key: sign for key, sign in total.items() if sign}


# -- the contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("partitioned", [False, True])
def test_contract(tmp_path: Path, *, changes: bool, partitioned: bool) -> None:
    table = create(tmp_path, rows=0)
    if partitioned:
        with table.update_spec() as update:
            update.add_identity("k")
    table.append(numbers(0, 12))
    table.append(numbers(12, 20))
    first = table.metadata.current_snapshot_id
    if changes:
        table.delete("id = 3")
        table.overwrite(numbers(0, 2), "id < 2")
    source = source_of(
        tmp_path, snapshot=first, changes=changes, include={"snapshot": "s", "timestamp": "t"}
    )
    gw.testing.check_source(source, add=lambda: table.append(numbers(20, 30)))


def test_changes_of_a_flow_mirror_the_table(tmp_path: Path) -> None:
    table = create(tmp_path, rows=9)
    first = table.metadata.current_snapshot_id
    flow = gw.Flow("mirror")
    source = source_of(tmp_path, changes=True, snapshot=first, keys="id")
    counts = flow.source("t", source).key_by("k").compute(n=gw.count(), output="complete")
    flow.sink("count", counts, gw.sinks.noop())
    table.delete("k = 'k1'")
    table.overwrite(pa.table({"id": [2], "k": ["k0"]}, FIELDS), "id = 2")
    played = gw.testing.run(flow)
    last = {row["k"]: row["n"] for row in played.rows("count").to_pylist()}
    assert last == {"k0": 4, "k2": 2}


def test_identifier_fields_are_the_keys(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "k", StringType()),
        identifier_field_ids=[1],
    )
    catalog_in(tmp_path).create_table(NAME, schema)
    source = source_of(tmp_path, changes=True)
    assert source.schema.names == ["id", "k", "change"]
    assert source.table_keys == ("id",)


# -- where a query begins, and what it follows -----------------------------------------------------


def test_begins_at_a_snapshot_or_a_tag_and_follows_a_branch(tmp_path: Path) -> None:
    table = create(tmp_path, rows=2)
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "start").create_branch(first, "audit").commit()
    table.append(numbers(2, 4))
    table.append(numbers(10, 12), branch="audit")
    for begin in ({"snapshot": first}, {"tag": "start"}):
        rows, _ = epoch(source_of(tmp_path, **begin))
        assert ids(rows) == [0, 1, 2, 3]
        rows, _ = epoch(source_of(tmp_path, **begin, existing=False))
        assert ids(rows) == [2, 3]
    rows, position = epoch(source_of(tmp_path, branch="audit", tag="start"))
    assert ids(rows) == [0, 1, 10, 11]
    table.append(numbers(12, 13), branch="audit")
    assert ids(epoch(source_of(tmp_path, branch="audit"), position)[0]) == [12]
    for wrong, text in (({"tag": "x"}, "no tag"), ({"branch": "x"}, "no branch")):
        with pytest.raises(SourceError, match=text):
            epoch(source_of(tmp_path, **wrong))
    with pytest.raises(SourceError, match="no snapshot 17"):
        epoch(source_of(tmp_path, snapshot=17))


def test_a_table_without_snapshots_is_read_from_its_first(tmp_path: Path) -> None:
    table = create(tmp_path, rows=0)
    rows, position = epoch(source_of(tmp_path))
    assert rows == []
    table.append(numbers(0, 2))
    assert ids(epoch(source_of(tmp_path), position)[0]) == [0, 1]


def test_an_empty_table_whose_first_snapshots_expired_loses_no_row(tmp_path: Path) -> None:
    table = create(tmp_path, rows=0)
    _, position = epoch(source_of(tmp_path))
    for first in range(3):
        table.append(numbers(first, first + 1))
        old = table.metadata.current_snapshot()
        if old is not None and old.parent_snapshot_id is not None:
            table.maintenance.expire_snapshots().by_id(old.parent_snapshot_id).commit()
    assert ids(epoch(source_of(tmp_path), position)[0]) == [0, 1, 2]


def test_the_snapshot_that_was_read_may_expire(tmp_path: Path) -> None:
    table = create(tmp_path)
    _, position = epoch(source_of(tmp_path))
    table.append(numbers(5, 6))

    def expire(metadata: dict[str, Any]) -> None:  # as Spark does: the parent stays named
        metadata["snapshots"] = metadata["snapshots"][1:]
        metadata["snapshot-log"] = metadata["snapshot-log"][1:]

    edit_metadata(table, expire)
    assert ids(epoch(source_of(tmp_path), position)[0]) == [5]


def test_a_snapshot_is_whole_where_asked(tmp_path: Path) -> None:
    table = create(tmp_path, rows=0)
    _, position = epoch(source_of(tmp_path))
    for first in (0, 5, 10):
        table.append(numbers(first, first + 5))
    source = source_of(tmp_path, whole_snapshots=True)
    sizes = []
    while True:
        rows, after = epoch(source, position, limit=7)
        if after == position:
            break
        sizes.append(len(rows))
        position = after
    assert sizes == [5, 5, 5]
    rows, _ = epoch(source, None, limit=7)  # those that are there at the start may be divided
    assert len(rows) == 7


def test_compaction_gives_no_row_twice(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.append(numbers(5, 8))
    for changes in (False, True):
        rows, position = epoch(source_of(tmp_path, changes=changes))
        assert len(rows) == len(table.scan().to_arrow())
        compact(table)
        table.append(numbers(10, 12))
        assert ids(epoch(source_of(tmp_path, changes=changes), position)[0]) == [10, 11]


@pytest.mark.parametrize("change", ["delete", "overwrite", "position", "vector"])
def test_appended_rows_alone_refuse_or_skip_changes(tmp_path: Path, change: str) -> None:
    table = create(tmp_path)
    _, position = epoch(source_of(tmp_path))
    if change == "delete":
        table.delete("id = 1")
    elif change == "overwrite":
        table.overwrite(numbers(1, 2), "id = 1")
    else:
        files = all_files(table)
        commit_deletes(table, {files[0].file_path: [1]}, files=files, kind=change)
    with pytest.raises(SourceError, match="updates or deletes rows") as caught:
        epoch(source_of(tmp_path), position)
    assert "changes=True" in str(caught.value)
    skipping = source_of(tmp_path, on_change="skip")
    assert epoch(skipping, position)[0] in ([], [{"id": 1, "k": "k1"}])
    assert "updates or deletes rows, and is skipped" in skipping.take_reports()[0]
    rows, _ = epoch(source_of(tmp_path, changes=True), position)
    assert signs(rows) == ({} if change == "overwrite" else {1: -1})


def test_an_overwrite_that_removes_nothing_is_an_append(tmp_path: Path) -> None:
    table = create(tmp_path, rows=0)
    _, position = epoch(source_of(tmp_path))
    with pytest.warns(UserWarning, match="did not match"):
        table.overwrite(numbers(0, 3))
    assert ids(epoch(source_of(tmp_path), position)[0]) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["position", "vector"])
def test_deletes_by_position(tmp_path: Path, kind: str) -> None:
    table = create(tmp_path, rows=0)
    with table.update_spec() as update:
        update.add_identity("k")
    table.append(numbers(0, 30))
    table.append(numbers(30, 60))
    files = all_files(table)
    position = epoch(source_of(tmp_path, changes=True))[1]
    deleted = {file.file_path: [1, 3] for file in files[:4]}
    new = commit_deletes(table, deleted, files=files, kind=kind)
    rows, position = epoch(source_of(tmp_path, changes=True), position)
    left = set(table.scan().to_arrow()["id"].to_pylist())
    assert signs(rows) == {n: -1 for n in range(60) if n not in left}
    assert ids(epoch(source_of(tmp_path))[0]) == sorted(left)
    # Another commit replaces them, as deletion vectors always do; one row comes back.
    deleted[files[0].file_path] = [1, 5]
    commit_deletes(table, deleted, files=files, kind=kind, removed=new)
    rows, _ = epoch(source_of(tmp_path, changes=True), position)
    now = set(table.scan().to_arrow()["id"].to_pylist())
    assert len(now) == len(left) == 52
    assert signs(rows) == {**dict.fromkeys(now - left, 1), **dict.fromkeys(left - now, -1)}


def test_equality_deletes_are_refused_by_name(tmp_path: Path) -> None:
    table = create(tmp_path)
    position = epoch(source_of(tmp_path, changes=True))[1]
    files = all_files(table)
    commit_deletes(table, {files[0].file_path: [1]}, files=files, kind="equality")
    for changes in (False, True):
        with pytest.raises(SourceError, match="equality deletes"):
            epoch(source_of(tmp_path, changes=changes))
    with pytest.raises(SourceError, match="equality deletes"):
        epoch(source_of(tmp_path, changes=True), position)


# -- a history that is not continued ---------------------------------------------------------------


def test_a_roll_back_is_refused_or_followed(tmp_path: Path) -> None:
    table = create(tmp_path)
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.append(numbers(5, 8))
    table.delete("id = 0")
    positions = {c: epoch(source_of(tmp_path, changes=c))[1] for c in (False, True)}
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    table.append(numbers(8, 9))
    with pytest.raises(SourceError, match="rolled back") as caught:
        epoch(source_of(tmp_path), positions[False])
    assert "changes=True" in str(caught.value)
    rows, _ = epoch(source_of(tmp_path, changes=True), positions[True])
    assert signs(rows) == {0: 1, 5: -1, 6: -1, 7: -1, 8: 1}


def test_a_replaced_branch_is_followed(tmp_path: Path) -> None:
    table = create(tmp_path)
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_branch(first, "audit").commit()
    table.append(numbers(5, 8))
    _, position = epoch(source_of(tmp_path, changes=True))
    table.append(numbers(20, 22), branch="audit")
    number = table.metadata.refs["audit"].snapshot_id
    table.manage_snapshots().set_current_snapshot(snapshot_id=number).commit()
    rows, _ = epoch(source_of(tmp_path, changes=True), position)
    assert signs(rows) == {5: -1, 6: -1, 7: -1, 20: 1, 21: 1}


def test_snapshots_that_expired_unread_say_so(tmp_path: Path) -> None:
    table = create(tmp_path)
    source = source_of(tmp_path, changes=True)
    _, position = epoch(source)
    _, within = epoch(source, None, limit=2)
    old = []
    for first in (5, 6, 7):
        table.append(numbers(first, first + 1))
        old.append(table.metadata.current_snapshot_id)
    numbers_ = [n for n in old[:2] if n is not None]
    table.maintenance.expire_snapshots().by_ids([*numbers_, position["snapshot"]]).commit()
    for place in (position, within):
        with pytest.raises(SourceError, match="expired") as caught:
            epoch(source_of(tmp_path, changes=True), place)
        assert "new checkpoint" in str(caught.value)


def test_files_that_are_gone_say_so(tmp_path: Path) -> None:
    table = create(tmp_path)
    [file] = all_files(table)
    local_path(file.file_path).unlink()
    with pytest.raises(SourceError, match="no longer exists"):
        epoch(source_of(tmp_path))


def test_a_table_that_was_created_again_is_another(tmp_path: Path) -> None:
    create(tmp_path)
    _, position = epoch(source_of(tmp_path))
    catalog_in(tmp_path).drop_table(NAME)
    with pytest.raises(SourceError, match="no Iceberg table"):
        epoch(source_of(tmp_path), position)
    create(tmp_path)
    with pytest.raises(SourceError, match="created again"):
        epoch(source_of(tmp_path), position)


# -- columns ---------------------------------------------------------------------------------------


def test_columns_are_known_by_their_ids(tmp_path: Path) -> None:
    pair = StructType(NestedField(11, "a", IntegerType()), NestedField(12, "b", IntegerType()))
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "x", IntegerType()),
        NestedField(3, "y", IntegerType()),
        NestedField(4, "pair", pair),
    )
    table = catalog_in(tmp_path).create_table(NAME, schema)
    row = {"id": 1, "x": 10, "y": 20, "pair": {"a": 1, "b": 2}}
    table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))
    running = source_of(tmp_path)
    rows, position = epoch(running)
    assert rows == [row]
    with table.update_schema() as update:
        update.rename_column("x", "z")
        update.rename_column("pair.a", "c")
    with table.update_schema() as update:
        update.rename_column("y", "x")
        update.rename_column("pair.b", "a")
        update.add_column("w", StringType())
        update.update_column("z", LongType())
        update.move_first("w")
    with table.update_schema() as update:
        update.rename_column("pair.c", "b")
    source = source_of(tmp_path)
    assert source.schema.field("z").type == pa.int64()
    expected = {"w": None, "id": 1, "z": 10, "x": 20, "pair": {"b": 1, "a": 2}}
    assert epoch(source) == ([expected], position)
    with pytest.raises(SourceError, match="now has type long"):
        epoch(running, position)
    assert "has new columns 'w', which the query will read" in running.take_reports()[0]
    running = source_of(tmp_path)
    epoch(running)
    with table.update_schema() as update:
        update.rename_column("id", "number")
    row = {"w": "w", "number": 2, "z": 1 << 40, "x": 3, "pair": {"b": 4, "a": None}}
    table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))
    rows, _ = epoch(running, position)  # renamed columns keep their names until the next start
    assert rows == [{"w": "w", "id": 2, "z": 1 << 40, "x": 3, "pair": {"b": 4, "a": None}}]
    with table.update_schema() as update:
        update.delete_column("number")
    with pytest.raises(SourceError, match=r"'id'.* dropped"):
        epoch(running, position)


def add_file(table: Table, rows: pa.Table, *, partition: Record | None = None, **more: Any) -> None:
    """Add a file that another writer wrote."""
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    local_path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, local_path(path))
    arguments = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": partition or Record(),
        "record_count": rows.num_rows,
        "file_size_in_bytes": local_path(path).stat().st_size,
        "key_metadata": None,
    }
    file = DataFile.from_args(**(arguments | more))
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def with_ids(schema: pa.Schema, numbers: dict[str, int]) -> pa.Schema:
    """Give the columns of a file their field ids."""
    return pa.schema(
        [field.with_metadata({"PARQUET:field_id": str(numbers[field.name])}) for field in schema]
    )


def test_partition_values_that_files_lack(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "day", DateType(), required=True),
        NestedField(3, "city", StringType()),
        NestedField(4, "price", DoubleType()),
    )
    fields = [
        PartitionField(2, 1000, IdentityTransform(), "d"),
        PartitionField(3, 1001, IdentityTransform(), "c"),
        PartitionField(1, 1002, BucketTransform(4), "b"),
    ]
    table = catalog_in(tmp_path).create_table(NAME, schema, partition_spec=PartitionSpec(*fields))
    rows = pa.table({"id": [1, 2]}, with_ids(pa.schema([("id", pa.int64())]), {"id": 1}))
    add_file(table, rows, partition=Record(19_000, "Bonn", 3))
    add_file(table, rows, partition=Record(19_001, None, 3))
    rows_, _ = epoch(source_of(tmp_path))
    day = dt.date(2022, 1, 8)
    assert sorted(rows_, key=repr) == [
        {
            "id": n,
            "day": day + dt.timedelta(later),
            "city": None if later else "Bonn",
            "price": None,
        }
        for n in (1, 2)
        for later in (0, 1)
    ]
    rows_, _ = epoch(source_of(tmp_path, filters=[("day", "=", day)], columns=["id", "city"]))
    assert rows_ == [{"id": 1, "city": "Bonn"}, {"id": 2, "city": "Bonn"}]


def test_files_without_ids_have_the_names_of_the_mapping(tmp_path: Path) -> None:
    table = create(tmp_path, rows=0)
    add_file(table, numbers(0, 2))
    with pytest.raises(SourceError, match="cannot be read"):
        epoch(source_of(tmp_path))
    mapping = [{"field-id": 1, "names": ["id", "number"]}, {"field-id": 2, "names": ["k"]}]
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
    add_file(table, numbers(2, 4).rename_columns(["number", "k"]))
    assert epoch(source_of(tmp_path))[0] == numbers(0, 4).to_pylist()


def test_defaults_of_format_3(tmp_path: Path) -> None:
    table = create(tmp_path)

    def upgrade(metadata: dict[str, Any]) -> None:
        metadata |= {"format-version": 3, "next-row-id": 0}
        new = {"id": 3, "name": "n", "required": True, "type": "int", "initial-default": 7}
        wide = {"id": 4, "name": "w", "required": False, "type": "unknown"}
        metadata["schemas"][0]["fields"] += [{**new, "write-default": 8}, wide]
        metadata["last-column-id"] = 4

    edit_metadata(table, upgrade)
    rows, _ = epoch(source_of(tmp_path, filters=[("n", ">", 6)]))
    assert rows == [{**row, "n": 7, "w": None} for row in numbers(0, 5).to_pylist()]
    assert epoch(source_of(tmp_path, filters=[("n", "=", 8)]))[0] == []

    def newer(metadata: dict[str, Any]) -> None:
        metadata["format-version"] = 4

    edit_metadata(table, newer)
    with pytest.raises(SourceError, match=r"version 4|cannot be read"):
        epoch(source_of(tmp_path))


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    table = create(tmp_path)
    _, position = epoch(source_of(tmp_path))
    add_file(table, numbers(0, 1), file_format=FileFormat.ORC)
    with pytest.raises(SourceError, match="data files in ORC"):
        epoch(source_of(tmp_path), position)
    with table.transaction() as transaction:
        transaction.set_properties({"encryption.key-id": "k"})
    with pytest.raises(SourceError, match="encrypted"):
        epoch(source_of(tmp_path))


def test_values_of_all_types(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    columns = {
        "b": pa.array([True, None]),
        "f": pa.array([1.5, float("nan")], pa.float32()),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)),
        "day": pa.array([moment.date(), None]),
        "time": pa.array([moment.time(), None], pa.time64("us")),
        "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
        "at_": pa.array([moment, None], pa.timestamp("us", "UTC")),
        "u": pa.array([b"0123456789abcdef", None], pa.uuid()),
        "fixed": pa.array([b"abc", None], pa.binary(3)),
        "bytes": pa.array([b"\xff", None], pa.binary()),
        "list": pa.array([[1, None], []], pa.list_(pa.int64())),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array([{"x": [{"y": "é"}]}, {"x": None}]),
    }
    rows = pa.table(columns)
    table = catalog_in(tmp_path).create_table(NAME, rows.schema)
    table.append(rows)
    source = source_of(tmp_path)
    read, _ = epoch(source)
    expected = rows.set_column(
        rows.schema.get_field_index("u"),
        "u",
        pa.array([str(uuid.UUID(bytes=b"0123456789abcdef")), None]),
    )
    assert repr(read) == repr(expected.to_pylist())
    assert source.schema.field("list").type == pa.list_(pa.int64())


# -- filters ---------------------------------------------------------------------------------------


def test_files_are_skipped_by_partition_and_metrics(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at_", pa.timestamp("us", "UTC"))])
    table = catalog_in(tmp_path).create_table(NAME, schema)
    with table.update_spec() as update:
        update.add_field("at_", DayTransform(), "day")
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    for day in range(4):
        moments = [start + dt.timedelta(days=day, hours=h) for h in (1, 2)]
        table.append(pa.table({"id": [day, day + 3], "at_": moments}, schema))

    def read(filters: Any) -> tuple[list[int], int]:
        source = source_of(tmp_path, filters=filters)
        rows, end = epoch(source)
        source.open(None)
        splits = source.splits(source.start(), end, 1)
        source.close()
        return ids(rows), sum(len(split.payload[1]) for split in splits)

    assert read([("at_", ">=", start + dt.timedelta(days=3))]) == ([3, 6], 1)
    assert read([("id", "in", [0, 6, 9])]) == ([0, 6], 2)
    assert read([[("id", "=", 0)], [("id", ">", 5)]]) == ([0, 6], 2)
    assert read([("id", "<", 0)]) == ([], 0)


@pytest.mark.parametrize(
    "filters",
    [
        [("f", "<", 0.1)],  # of a float of 32 bits
        [("f", "!=", float("nan"))],
        [("d", "in", [float("nan"), 1.5])],
        [("d", ">=", 0.0)],
        [("n", "<", 2.5)],
        [[("dec", "<", Decimal("1.254"))], [("s", "=", "é")]],
        [("t", ">=", dt.datetime(2024, 5, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))))],
    ],
)
def test_filters_choose_the_rows_that_arrow_does(tmp_path: Path, filters: Any) -> None:
    nan, moment = float("nan"), dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    columns = {
        "n": pa.array([1, 2, 3, None]),
        "f": pa.array([0.1, nan, -0.0, None], pa.float32()),
        "d": pa.array([nan, 1.5, -0.0, None]),
        "dec": pa.array([Decimal("1.25"), Decimal("9.00"), None, None], pa.decimal128(9, 2)),
        "s": pa.array(["", "é", "z" * 40, None]),
        "t": pa.array([moment, moment - dt.timedelta(1), None, None], pa.timestamp("us", "UTC")),
    }
    rows = pa.table(columns)
    table = catalog_in(tmp_path).create_table(NAME, rows.schema)
    for n in range(4):  # files that may be skipped
        table.append(rows.slice(n, 1))
    read, _ = epoch(source_of(tmp_path, filters=filters))
    groups = [filters] if isinstance(filters[0], tuple) else filters
    expected = rows.filter(pq.filters_to_expression(groups))
    assert repr(read) == repr(expected.to_pylist())


@pytest.mark.parametrize(
    ("transform", "values", "filters"),
    [
        (TruncateTransform(10), [-(2**63), -5, 5], ("k", "=", -(2**63))),
        (TruncateTransform(10), [-(2**63) + 3, -5, 5], ("k", "<", 0)),
        (YearTransform(), [FIRST, LAST], ("k", ">=", FIRST)),
        (DayTransform(), [FIRST, LAST], ("k", "<=", LAST)),
        (IdentityTransform(), [0.5, 0.1, 1e308], ("k", "=", 0.1)),
        (IdentityTransform(), [0.5, 0.1, 1e308], ("k", "<", 1e309)),
        (IdentityTransform(), [0.5, -0.0], ("k", "not in", [0.0])),
    ],
)
def test_values_that_partitions_round_or_overflow_are_found(
    tmp_path: Path, transform: Any, values: list[Any], filters: Any
) -> None:
    rows = pa.table({"k": values})
    table = catalog_in(tmp_path).create_table(NAME, rows.schema)
    with table.update_spec() as update:
        update.add_field("k", transform, "part")
    table.append(rows)
    read, _ = epoch(source_of(tmp_path, filters=[filters]))
    expected = rows.filter(pq.filters_to_expression([filters]))["k"].to_pylist()
    assert sorted(row["k"] for row in read) == sorted(expected)


def test_deletes_by_position_in_a_partition_of_nan(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = catalog_in(tmp_path).create_table(NAME, schema)
    with table.update_spec() as update:
        update.add_identity("x")
    rows = pa.table({"id": [0, 1, 2], "x": [float("nan")] * 3}, schema)
    new = data_files_of(table, rows)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(new[0])
    commit_deletes(table, {new[0].file_path: [1]}, files=all_files(table))
    assert ids(epoch(source_of(tmp_path))[0]) == [0, 2]


def test_lag_counts_the_rows_of_unread_snapshots(tmp_path: Path) -> None:
    table = create(tmp_path)
    source = source_of(tmp_path)
    _, position = epoch(source)
    table.append(numbers(5, 8))
    compact(table)
    table.append(numbers(8, 10))
    source.open(position)
    lag = source.lag(position)
    assert (lag.rows, lag.size_bytes and lag.size_bytes > 0) == (5, True)
    assert lag.oldest_us == table.metadata.snapshots[1].timestamp_ms * 1000
    end = source.latest(position, limit=3)
    assert source.lag(end).rows == 2
    source.close()


def test_filters_and_options_are_checked(tmp_path: Path) -> None:
    create(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"filters": [("id", "~", 1)]}, "not valid"),
        ({"filters": [("id", "=", "x")]}, "do not fit"),
        ({"filters": [("nothing", "=", 1)]}, "no columns"),
        ({"columns": ["nothing"]}, "no columns"),
        ({"keys": "nothing"}, "keys="),
        ({"snapshot": 1, "tag": "x"}, "snapshot= and tag="),
        ({"on_change": "skip", "changes": True}, "on_change="),
        ({"include": "version"}, "cannot include"),
        ({"include": {"snapshot": "id"}}, "several columns"),
        ({"max_rows_per_epoch": 0}, "max_rows_per_epoch"),
    ]
    for options, text in wrong:
        with pytest.raises(SourceError, match=text):
            epoch(source_of(tmp_path, **options))
    with pytest.raises(SourceError, match="catalog"):
        gw.sources.iceberg("a.b", catalog=3)  # type: ignore[arg-type]


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    catalog = {**properties_of(tmp_path), "uri": "postgresql+nothing://me:hunter22@host/db"}
    source = gw.sources.iceberg(NAME, catalog=catalog)
    assert "hunter22" not in source.identity + repr(source)
    with pytest.raises(SourceError) as caught:
        source.open(None)
    assert "hunter22" not in str(caught.value)

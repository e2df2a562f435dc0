"""Further columns of a table, which others add before or while a query writes to it.

A column that may be null does no harm: new rows have null in it, and upserts keep its values. Only
Iceberg tables of upserts have no further columns. A column that needs a value is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows
from tests.support.postgres_sinks import execute

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog

    from godwit.sinks.sink import Sink

WAYS = ["append", "upsert", "complete"]
FIRST = rows(0, ("a", 1), ("b", 2))
SECOND = rows(1, ("a", 3), ("c", 4))
AFTER = {
    "append": [("a", 1), ("a", 3), ("b", 2), ("c", 4)],
    "upsert": [("a", 3), ("b", 2), ("c", 4)],
    "complete": [("a", 3), ("c", 4)],
}


class DeltaTarget:
    def __init__(self, path: Path) -> None:
        self.path = path / "t"

    def sink(self, way: str) -> Sink:
        mode: Any = "upsert" if way == "upsert" else "append"
        return gw.sinks.delta(self.path, mode=mode, lane_bytes=1)

    def add(self) -> None:
        from deltalake import DeltaTable, Field
        from deltalake.schema import PrimitiveType, StructType

        inner = StructType([Field("x", PrimitiveType("decimal(5,2)"), nullable=False)])
        DeltaTable(self.path).alter.add_columns(
            [Field("note", PrimitiveType("string")), Field("more", inner)]
        )

    def add_note(self, key: str, note: str) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.path).update({"note": f"'{note}'"}, predicate=f"plane = '{key}'")

    def rows(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable, QueryBuilder

        query = QueryBuilder().register("t", DeltaTable(self.path))
        written: list[dict[str, Any]] = pa.table(query.execute("SELECT * FROM t")).to_pylist()
        return written


class IcebergTarget:
    def __init__(self, path: Path) -> None:
        uri = f"sqlite:///{path}/c.db"
        self.properties = {"type": "sql", "uri": uri, "warehouse": f"file://{path}/w"}

    def sink(self, way: str) -> Sink:
        mode: Any = "upsert" if way == "upsert" else "append"
        return gw.sinks.iceberg("db.t", catalog=self.properties, mode=mode)

    def catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.properties)

    def add(self) -> None:
        from pyiceberg.types import DecimalType, NestedField, StringType, StructType, UUIDType

        inner = StructType(NestedField(100, "x", DecimalType(5, 2)))
        with self.catalog().load_table("db.t").update_schema() as update:
            update.add_column("note", StringType())
            update.add_column("more", inner)
            update.add_column("id", UUIDType())
            update.move_first("note")

    def rows(self) -> list[dict[str, Any]]:
        table = self.catalog().load_table("db.t").scan().to_arrow()
        written: list[dict[str, Any]] = table.to_pylist()
        return written


class PostgresTarget:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def sink(self, way: str) -> Sink:
        mode: Any = "upsert" if way == "upsert" else "append"
        return gw.sinks.postgres(self.dsn, "t", mode=mode)

    def add(self) -> None:
        execute(self.dsn, "ALTER TABLE t ADD COLUMN note text, ADD COLUMN more jsonb")

    def add_note(self, key: str, note: str) -> None:
        execute(self.dsn, f"UPDATE t SET note = '{note}' WHERE plane = '{key}'")

    def rows(self) -> list[dict[str, Any]]:
        names = ("plane", "total", "note", "more")
        return [
            dict(zip(names, row, strict=True))
            for row in execute(self.dsn, f"SELECT {', '.join(names)} FROM t")
        ]


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgres":
        return PostgresTarget(request.getfixturevalue("postgres"))
    return (DeltaTarget if request.param == "delta" else IcebergTarget)(tmp_path)


def open_sink(target: Any, way: str) -> Any:
    sink = target.sink(way)
    sink.open(context(complete=way == "complete"))
    return sink


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("restarted", [False, True])
def test_nullable_columns_that_others_add(target: Any, way: str, restarted: bool) -> None:
    sink = open_sink(target, way)
    sink.deliver(FIRST)
    target.add()
    if isinstance(target, IcebergTarget) and way == "upsert":
        with pytest.raises(SinkError, match=r"note .absent in the rows"):
            open_sink(target, way) if restarted else sink.deliver(SECOND)
        sink.close()
        return
    keeps_notes = way == "upsert"
    if keeps_notes:
        target.add_note("a", "first")
    if restarted:
        sink.close()
        sink = open_sink(target, way)
    sink.deliver(SECOND)
    sink.deliver(SECOND)
    sink.close()
    written = sorted(target.rows(), key=lambda row: (row["plane"], row["total"]))
    assert [(row.pop("plane"), row.pop("total")) for row in written] == AFTER[way]
    assert [row.pop("note") for row in written] == [
        "first" if keeps_notes and plane == "a" else None for plane, _ in AFTER[way]
    ]
    assert {value for row in written for value in row.values()} == {None}


@pytest.mark.parametrize("way", ["append", "complete"])
def test_files_that_lanes_wrote_before_the_column_was_added(tmp_path: Path, way: str) -> None:
    target = DeltaTarget(tmp_path)
    sink = open_sink(target, way)
    sink.deliver(FIRST)
    files = sink.lane_writer().write(SECOND.table, epoch=1, place=0)
    target.add()
    sink.deliver(EpochRows(epoch=1, table=SCHEMA.empty_table(), written=files))
    written = sorted((row["plane"], row["total"], row["note"]) for row in target.rows())
    assert written == [(plane, total, None) for plane, total in AFTER[way]]
    open_sink(target, way).deliver(rows(2, ("z", 9)))
    assert {"plane": "z", "total": 9, "note": None, "more": None} in target.rows()


@pytest.mark.parametrize("way", WAYS)
def test_a_further_column_that_partitions_a_delta_table(tmp_path: Path, way: str) -> None:
    from deltalake import DeltaTable

    schema = pa.schema([*SCHEMA, ("day", pa.date32())])
    DeltaTable.create(tmp_path / "t", schema=schema, partition_by=["day"])
    with pytest.raises(SinkError, match=r"other columns: day .absent in the rows"):
        open_sink(DeltaTarget(tmp_path), way)


@pytest.mark.parametrize("way", WAYS)
def test_a_further_column_that_partitions_an_iceberg_table(tmp_path: Path, way: str) -> None:
    target = IcebergTarget(tmp_path)
    with target.catalog() as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", pa.schema([*SCHEMA, ("day", pa.date32())]))
        with table.update_spec() as spec:
            spec.add_field("day", "month", "month")
    if way == "upsert":
        with pytest.raises(SinkError, match=r"other columns: day .absent in the rows"):
            open_sink(target, way)
        return
    sink = open_sink(target, way)
    sink.deliver(FIRST)
    sink.deliver(SECOND)
    sink.close()
    written = sorted((row["plane"], row["total"], row["day"]) for row in target.rows())
    assert written == [(plane, total, None) for plane, total in AFTER[way]]


@pytest.mark.parametrize("way", ["append", "complete"])
def test_a_further_struct_that_pyiceberg_cannot_write_as_null(tmp_path: Path, way: str) -> None:
    from pyiceberg.types import LongType, NestedField, StructType

    target = IcebergTarget(tmp_path)
    sink = open_sink(target, way)
    inner = StructType(NestedField(100, "x", LongType(), required=True))
    with target.catalog().load_table("db.t").update_schema() as update:
        update.add_column("more", inner)
    with pytest.raises(SinkError, match="declared non-nullable"):
        sink.deliver(FIRST)
    sink.close()
    with pytest.raises(
        SinkError, match=r"cannot write rows in the format of the table.*declared non-nullable"
    ):
        open_sink(target, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_further_column_that_needs_a_value(tmp_path: Path, way: str) -> None:
    from deltalake import DeltaTable
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    schema = pa.schema([*SCHEMA, pa.field("need", pa.int64(), nullable=False)])
    DeltaTable.create(tmp_path / "t", schema=schema)
    target = IcebergTarget(tmp_path)
    with target.catalog() as catalog:
        catalog.create_namespace("db")
        fields = [NestedField(1, "plane", StringType()), NestedField(2, "total", LongType())]
        need = NestedField(3, "need", LongType(), required=True)
        catalog.create_table("db.t", Schema(*fields, need))
    for kind in (DeltaTarget(tmp_path), target):
        with pytest.raises(SinkError, match=r"other columns: need .absent in the rows"):
            open_sink(kind, way)

"""Features of Iceberg's format: a sink writes tables that have them, or refuses them at the start.

The notes of `gw.sinks.iceberg` say the same.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from godwit.connect.iceberg.sink import IcebergSink

pytest.importorskip("pyiceberg", reason="Iceberg tests need pyiceberg.")

SCHEMA = pa.schema(
    [("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.float64()), ("n", pa.int64())]
)
AT = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)
NAN = float("nan")
ROWS = [("a", AT, NAN, 1), ("", AT, -0.0, 2), (None, None, None, 3), ("b/ü", AT, 0.0, 4)]
LATER = [("a", AT, 1.0, 5), (None, None, NAN, 6)]


def _epoch(number: int, rows: list[tuple[Any, ...]]) -> EpochRows:
    columns = dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True))
    return EpochRows(epoch=number, table=pa.table(columns, schema=SCHEMA))


class Lake:
    def __init__(self, path: Path) -> None:
        from pyiceberg.catalog import load_catalog

        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{path}/c.db",
            "warehouse": f"file://{path}",
        }
        self.catalog: Catalog = load_catalog("default", **self.properties)
        self.catalog.create_namespace("db")

    def create(self, **properties: str) -> Table:
        return self.catalog.create_table("db.t", SCHEMA, properties=properties)

    def sink(self, way: str) -> IcebergSink:
        mode: Literal["append", "upsert"] = "upsert" if way == "upsert" else "append"
        sink = gw.sinks.iceberg("db.t", catalog=self.properties, mode=mode)
        sink.open(context(schema=SCHEMA, keys=("k",), complete=way == "complete"))
        return sink

    def numbers(self) -> list[int]:
        return sorted(self.catalog.load_table("db.t").scan().to_arrow()["n"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


WAYS = {"append": [1, 2, 3, 4, 5, 6], "upsert": [2, 4, 5, 6], "complete": [5, 6]}


def _partitioned(*fields: tuple[str, str]) -> Callable[[Lake], None]:
    def make(lake: Lake) -> None:
        with lake.create().update_spec() as spec:
            for column, transform in fields:
                spec.add_field(column, transform, f"p_{column}_{len(transform)}")

    return make


def _sorted(lake: Lake) -> None:
    from pyiceberg.transforms import IdentityTransform

    with lake.create().update_sort_order() as order:
        order.asc("n", IdentityTransform())


def _with_identifier(lake: Lake) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

    schema = Schema(
        NestedField(1, "n", LongType(), required=True),
        NestedField(2, "k", StringType()),
        NestedField(3, "at", TimestamptzType()),
        NestedField(4, "x", DoubleType()),
        identifier_field_ids=[1],
    )
    lake.catalog.create_table("db.t", schema)


def _tagged(lake: Lake) -> None:
    table = lake.create()
    table.append(_epoch(9, [("z", AT, 1.0, 0)]).table.slice(0, 0))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "t").commit()
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "b").commit()


def _renamed(lake: Lake) -> None:
    table = lake.create()
    with table.update_schema() as update:
        update.rename_column("n", "m")
    with table.update_schema() as update:
        update.rename_column("m", "n")
    with table.update_schema() as update:
        update.move_first("n")


def _plain(**properties: str) -> Callable[[Lake], None]:
    def make(lake: Lake) -> None:
        lake.create(**properties)

    return make


TAKEN: dict[str, Callable[[Lake], None]] = {
    "identity of text": _partitioned(("k", "identity")),
    "identity of floats": _partitioned(("x", "identity")),
    "bucket": _partitioned(("k", "bucket[3]")),
    "truncate": _partitioned(("k", "truncate[1]")),
    "year": _partitioned(("at", "year")),
    "month": _partitioned(("at", "month")),
    "day": _partitioned(("at", "day")),
    "hour": _partitioned(("at", "hour")),
    "two of one column": _partitioned(("k", "identity"), ("k", "bucket[3]")),
    "sort order": _sorted,
    "identifier field": _with_identifier,
    "tag and branch": _tagged,
    "renamed and moved": _renamed,
    "merge on read": _plain(
        **{"write.delete.mode": "merge-on-read", "write.merge.mode": "merge-on-read"}
    ),
    "manifests merged": _plain(
        **{"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    ),
    "object storage": _plain(**{"write.object-storage.enabled": "true"}),
    "other codec": _plain(**{"write.parquet.compression-codec": "snappy"}),
    "no metrics": _plain(**{"write.metadata.metrics.default": "none"}),
    "no repetitions": _plain(**{"commit.retry.num-retries": "0"}),
    "serializable": _plain(**{"write.merge.isolation-level": "serializable"}),
    "name mapping": _plain(**{"schema.name-mapping.default": '[{"field-id": 1, "names": ["k"]}]'}),
}


@pytest.mark.parametrize(
    ("feature", "way"),
    # Upserts delete rows and append others, and so do what the other two do in turn.
    [(f, w) for n, f in enumerate(TAKEN) for w in ("upsert", ("append", "complete")[n % 2])],
)
def test_epochs_arrive_in_tables_with(lake: Lake, feature: str, way: str) -> None:
    TAKEN[feature](lake)
    sink = lake.sink(way)
    sink.deliver(_epoch(0, ROWS))
    assert lake.numbers() == [1, 2, 3, 4]
    sink.deliver(_epoch(1, LATER))
    assert lake.numbers() == WAYS[way]
    sink.close()


def _of_version_3(lake: Lake) -> None:
    """Create a table as another engine does: pyiceberg writes the metadata of no such table."""
    table = lake.create()
    path = table.metadata_location.removeprefix("file://")
    fields = json.loads(Path(path).read_text())
    fields |= {"format-version": 3, "next-row-id": 0}
    Path(path).write_text(json.dumps(fields))


REFUSED: dict[str, tuple[Callable[[Lake], None], str]] = {
    "version 1": (_plain(**{"format-version": "1"}), "format version 1"),
    "version 3": (_of_version_3, "format version 3, which pyiceberg can read but not write"),
    "ORC": (_plain(**{"write.format.default": "orc"}), "is ORC, which pyiceberg cannot write"),
    "Avro": (_plain(**{"write.format.default": "avro"}), "is AVRO, which pyiceberg cannot write"),
    "encryption": (_plain(**{"encryption.key-id": "k1"}), "encrypted"),
    "unknown codec": (_plain(**{"write.parquet.compression-codec": "lzo"}), "cannot write rows"),
    "codec": (_plain(**{"write.parquet.compression-codec": "bz2"}), "cannot write rows"),
    "no number": (_plain(**{"write.target-file-size-bytes": "1 GB"}), "cannot write rows"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("feature", REFUSED)
def test_a_start_refuses_tables_with(lake: Lake, feature: str, way: str, tmp_path: Path) -> None:
    make, text = REFUSED[feature]
    make(lake)
    with pytest.raises(SinkError, match=text):
        lake.sink(way)
    assert not list(tmp_path.rglob("*.avro"))
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("way", WAYS)
def test_a_start_refuses_partitions_whose_package_is_absent(
    lake: Lake, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _partitioned(("at", "day"))(lake)
    monkeypatch.setitem(sys.modules, "pyiceberg_core", None)
    monkeypatch.setitem(sys.modules, "pyiceberg_core.transform", None)
    with pytest.raises(
        SinkError, match=r"a package that is not installed.*godwit-streams\[iceberg\]"
    ):
        lake.sink(way)


def test_required_fields_of_a_struct_that_may_be_null_in_the_rows_are_refused(lake: Lake) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StructType

    inner = StructType(NestedField(2, "i", LongType(), required=True))
    lake.catalog.create_table("db.t", Schema(NestedField(1, "s", inner)))
    schema = pa.schema([("s", pa.struct([("i", pa.int64())]))])
    sink = gw.sinks.iceberg("db.t", catalog=lake.properties)
    with pytest.raises(SinkError, match="required"):
        sink.open(context(schema=schema, keys=()))


@pytest.mark.parametrize("way", WAYS)
def test_files_of_an_epoch_that_cannot_be_written_are_removed(
    lake: Lake, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create()
    sink = lake.sink(way)
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write", _no_room)
    with pytest.raises(SinkError, match="no room"):
        sink.deliver(_epoch(0, ROWS))
    assert not list(tmp_path.rglob("*.parquet"))


def _no_room(*_: object, **__: object) -> None:
    raise OSError("no room")


def _add_foreign_file(lake: Lake, file_format: str, path: Path) -> None:
    """Add a data file with the row ``k="a", n=0``, as an engine that writes ORC or Avro does."""
    import fastavro
    from pyarrow import orc
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    table = lake.catalog.load_table("db.t")
    file = path / f"foreign-{file_format}"
    if file_format == "ORC":
        rows = _epoch(0, [("a", AT, 0.5, 0)]).table
        orc.write_table(
            rows.cast(schema_to_pyarrow(table.schema(), file_format=FileFormat.ORC)), file
        )
    else:
        types = [("k", "string"), ("at", "long"), ("x", "double"), ("n", "long")]
        fields = [
            {"name": name, "type": ["null", kind], "field-id": number}
            for number, (name, kind) in enumerate(types, 1)
        ]
        schema = {"type": "record", "name": "r", "fields": fields}
        with file.open("wb") as stream:
            fastavro.writer(stream, schema, [{"k": "a", "at": -1, "x": 0.5, "n": 0}])
    added = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{file}",
        file_format=FileFormat[file_format],
        partition=Record(),
        file_size_in_bytes=file.stat().st_size,
        record_count=1,
        spec_id=0,
    )
    with (
        table.transaction() as transaction,
        transaction.update_snapshot().fast_append() as snapshot,
    ):
        snapshot.append_data_file(added)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("when", ["before", "while it runs"])
@pytest.mark.parametrize("file_format", ["ORC", "AVRO"])
def test_data_files_of_others_in(
    lake: Lake, way: str, when: str, file_format: str, tmp_path: Path
) -> None:
    lake.create()
    sink = None if when == "before" else lake.sink(way)
    _add_foreign_file(lake, file_format, tmp_path)
    if way == "upsert":
        with pytest.raises(SinkError, match=f"has data files in {file_format}"):
            (sink or lake.sink(way)).deliver(_epoch(0, ROWS))
        with pytest.raises(SinkError, match=f"has data files in {file_format}, which pyiceberg"):
            lake.sink(way)
        return
    sink = sink or lake.sink(way)
    sink.deliver(_epoch(0, ROWS))
    sink.deliver(_epoch(1, LATER))
    if way == "complete":
        assert lake.numbers() == WAYS[way]
    elif file_format == "ORC":  # pyiceberg does not read the other one
        assert lake.numbers() == [0, *WAYS[way]]
    else:
        files = lake.catalog.load_table("db.t").inspect.data_files()
        assert sorted(files["file_format"].to_pylist()) == ["AVRO", "PARQUET", "PARQUET"]


def test_a_trial_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    _partitioned(("at", "day"))(lake)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    lake.sink("append").close()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert lake.catalog.load_table("db.t").current_snapshot() is None


@pytest.mark.parametrize("way", ["append", "upsert", "complete"])
def test_partition_values_of_any_length(lake: Lake, way: str) -> None:
    with lake.create().update_spec() as spec:
        spec.add_field("k", "identity", "k_long")
    sink = lake.sink(way)
    texts = ["z" * 300, "z" * 299 + "y", "\u00fc" * 100, "%" * 126, "k"]
    sink.deliver(_epoch(0, [(text, AT, 0.0, n) for n, text in enumerate(texts)]))
    sink.close()
    rows = lake.catalog.load_table("db.t").scan().to_arrow()
    assert dict(zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True)) == {
        text: n for n, text in enumerate(texts)
    }
    task = next(iter(lake.catalog.load_table("db.t").scan(f"k == '{texts[1]}'").plan_files()))
    assert task.file.partition[0] == texts[1]

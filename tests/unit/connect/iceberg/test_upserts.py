"""Upserts into Iceberg tables that others write, too: their rows stay, as they are.

The oracle is a list of rows: an epoch removes those with one of its keys, and adds its own.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections import Counter
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import EpochRows, context
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SinkError
from godwit.sinks.target_sink import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from godwit.connect.iceberg.sink import IcebergSink

pytest.importorskip("pyiceberg", reason="Iceberg tests need pyiceberg.")

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [-(2**63), -1, 0, 1, 2, 9, 2**63 - 1, None]),
    "string": (pa.string(), ["", " ", "a", "b/c", "%", "é", "\U0001f426", "z" * 40, None]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2020, 2, 29), dt.date(9999, 1, 1), None]),
    "double": (pa.float64(), [NAN, -0.0, 0.0, 1.5, -math.inf, None]),
    "float": (pa.float32(), [NAN, -0.0, 0.0, 1.5, math.inf, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff\xfe", b"ab", None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("-0.05"), Decimal("0.00"), Decimal("1.25"), None]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
            dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        ],
    ),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999), None]),
}


def _exact(value: Any) -> Any:
    """Return a value that tells -0.0 from 0.0, and not NaN from NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("d", value)
    return value


def _alike(value: Any) -> Any:
    """Return a value of a key, of which -0.0 is 0.0."""
    return _exact(value + 0.0 if isinstance(value, float) else value)


class Oracle:
    """Rows of a table, and upserts as their definition says."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self.rows: list[dict[str, Any]] = []

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(_alike(row[name]) for name in self._keys)

    def append(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        newest = {self._key(row): row for row in rows}
        self.rows = [row for row in self.rows if self._key(row) not in newest]
        # An epoch's keys are written in one form.
        self.rows += [
            {n: v + 0.0 if n in self._keys and isinstance(v, float) else v for n, v in row.items()}
            for row in newest.values()
        ]

    def counted(self) -> Counter[tuple[Any, ...]]:
        return counted(self.rows)


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_exact(row[name]) for name in sorted(row)) for row in rows)


class Targets:
    """A catalog in SQLite, with one table."""

    def __init__(self, path: Path) -> None:
        from pyiceberg.catalog import load_catalog

        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{path}/c.db",
            "warehouse": f"file://{path}",
        }
        self.catalog = load_catalog("default", **self.properties)
        self.catalog.create_namespace("db")

    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return rows


@pytest.fixture
def targets(tmp_path: Path) -> Targets:
    return Targets(tmp_path)


def _draw_partition(rng: random.Random, table: Table, key: str) -> None:
    """Partition a table by its key or by `n`, somehow, instead of how it was."""
    from pyiceberg import transforms

    by_type: dict[str, list[Any]] = {
        "int": [transforms.BucketTransform(3), transforms.TruncateTransform(10)],
        "string": [transforms.BucketTransform(3), transforms.TruncateTransform(1)],
        "date": [
            transforms.YearTransform(),
            transforms.MonthTransform(),
            transforms.DayTransform(),
        ],
        "timestamp": [transforms.DayTransform(), transforms.HourTransform()],
        "binary": [transforms.BucketTransform(2)],
        "decimal": [transforms.BucketTransform(2), transforms.TruncateTransform(10)],
    }
    column, kind = (("n", "double"), ("k", key))[rng.random() < 0.7]
    transform = rng.choice([transforms.IdentityTransform(), *by_type.get(kind, [])])
    with table.update_spec() as spec:
        for field in table.spec().fields:
            spec.remove_field(field.name)
        if not any(field.transform == transform for field in table.spec().fields):
            spec.add_field(column, transform, f"p{rng.randrange(10**6)}")


@pytest.mark.parametrize("key", VALUES)
@pytest.mark.parametrize("seed", range(1))
def test_upserts_replace_rows_with_keys_of_the_epoch_and_no_others(
    targets: Targets, key: str, seed: int
) -> None:
    rng = random.Random(f"{key} {seed}")
    dtype, values = VALUES[key]
    keys = ["k", "j"] if rng.random() < 0.3 else ["k"]
    schema = pa.schema([("k", dtype), ("j", pa.int32()), ("n", pa.float64())])
    table = targets.catalog.create_table("db.t", schema)
    if rng.random() < 0.7:
        _draw_partition(rng, table, key)

    def draw(size: int) -> list[dict[str, Any]]:
        return [
            {
                "k": rng.choice(values),
                "j": rng.choice([None, 1, 2]) if len(keys) > 1 else None,
                "n": rng.choice([NAN, -0.0, 0.0, 1.0, 2.0, None]),
            }
            for _ in range(size)
        ]

    oracle = Oracle(keys)
    sink = gw.sinks.iceberg("db.t", catalog=targets.properties, mode="upsert", keys=keys)
    sink.open(context(schema=schema, keys=tuple(keys)))
    for epoch in range(rounds(4, 6)):
        if rng.random() < 0.7:
            theirs = draw(rng.randrange(1, 6))
            # The library cannot write NaN or times in a partition, and writes -0.0 twice.
            theirs = [
                {n: 3.0 if isinstance(v, float) and not abs(v) > 0 else v for n, v in r.items()}
                if not table.spec().is_unpartitioned()
                else r
                for r in theirs
            ]
            table.refresh().append(pa.Table.from_pylist(theirs, schema))
            oracle.append(theirs)
        if rng.random() < 0.2:
            _draw_partition(rng, table.refresh(), key)
        ours = draw(rng.randrange(1, 5))
        sink.deliver(EpochRows(epoch=epoch, table=pa.Table.from_pylist(ours, schema)))
        oracle.upsert(ours)
        assert counted(targets.rows()) == oracle.counted(), f"epoch {epoch}"
    sink.close()


def test_a_key_is_found_in_files_of_an_earlier_partitioning(targets: Targets) -> None:
    from pyiceberg.transforms import TruncateTransform

    smallest = -(2**31)
    schema = pa.schema([("k", pa.int32()), ("n", pa.int64())])
    table = targets.catalog.create_table("db.t", schema)
    with table.update_spec() as spec:
        spec.add_field("k", TruncateTransform(10), "p")
    keys = [smallest, None, 7]
    table.append(pa.table({"k": pa.array(keys, pa.int32()), "n": [0, 0, 0]}, schema))
    with table.update_spec() as spec:
        spec.remove_field("p")
    sink = _open(targets, schema, mode="upsert", keys=["k"])
    ours = [{"k": key, "n": 1} for key in keys]
    sink.deliver(EpochRows(epoch=0, table=pa.Table.from_pylist(ours, schema)))
    sink.close()
    assert counted(targets.rows()) == counted(ours)


def test_partitions_of_doubles_stay_exact_and_texts_of_any_character_are_stored(
    targets: Targets,
) -> None:
    from pyiceberg.expressions import EqualTo
    from pyiceberg.transforms import IdentityTransform

    schema = pa.schema([("k", pa.string()), ("x", pa.float64())])
    table = targets.catalog.create_table("db.t", schema)
    with table.update_spec() as spec:
        spec.add_field("x", IdentityTransform(), "p")
    table.append(pa.table({"k": ["a", "b"], "x": [0.1, 0.3]}, schema))
    sink = _open(targets, schema, mode="upsert", keys=["k"])
    last = "a" * 15 + "\ud7ff" * 2  # the last character before the surrogates, at the bound's end
    ours = [{"k": "b", "x": 0.7}, {"k": last, "x": 0.2}]
    sink.deliver(EpochRows(epoch=0, table=pa.Table.from_pylist(ours, schema)))
    sink.close()
    table.refresh()
    for x, key in ((0.1, "a"), (0.7, "b"), (0.2, last)):
        assert table.scan(EqualTo("x", x)).to_arrow()["k"].to_pylist() == [key]


def _open(targets: Targets, schema: pa.Schema, **options: Any) -> IcebergSink:
    sink = gw.sinks.iceberg("db.t", catalog=targets.properties, **options)
    sink.open(context(schema=schema, keys=("k",)))
    return sink


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def _pairs(targets: Targets) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in targets.rows())


def _epoch(epoch: int, *pairs: tuple[Any, Any]) -> EpochRows:
    keys, values = zip(*pairs, strict=True)
    return EpochRows(epoch=epoch, table=pa.table({"k": keys, "v": values}, schema=SCHEMA))


def test_files_without_keys_of_the_epoch_are_not_written_anew(targets: Targets) -> None:
    table = targets.catalog.create_table("db.t", SCHEMA)
    table.append(pa.table({"k": [5, 5, 7], "v": [100, 200, 300]}, schema=SCHEMA))
    first = {file.file_path for file in _live(table)}
    table.append(pa.table({"k": [1, 9], "v": [0, 900]}, schema=SCHEMA))
    sink = _open(targets, SCHEMA, mode="upsert")
    sink.deliver(_epoch(0, (1, 1), (8, 8)))
    assert _pairs(targets) == [(1, 1), (5, 100), (5, 200), (7, 300), (8, 8), (9, 900)]
    table = targets.table()
    assert first < {file.file_path for file in _live(table)}
    assert len(table.metadata.snapshots) == 3
    sink.close()


def test_an_upsert_is_committed_beside_others_without_being_made_anew(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    from godwit.connect.iceberg.files import data_files_of

    table = targets.catalog.create_table("db.t", SCHEMA)
    table.append(pa.table({"k": [1, 2], "v": [10, 20]}, schema=SCHEMA))
    sink = _open(targets, SCHEMA, mode="upsert")
    waits: list[float] = []
    sink._retry_policy = RetryPolicy(sleep=waits.append, uniform=lambda _low, high: high)
    commit = SqlCatalog.commit_table
    meetings, written = list(range(4)), []

    def overtaken(self: SqlCatalog, *arguments: Any) -> Any:
        if meetings:
            number = 100 + meetings.pop()
            with monkeypatch.context() as inner:
                inner.setattr(SqlCatalog, "commit_table", commit)
                theirs = pa.table({"k": [number], "v": [number]}, schema=SCHEMA)
                targets.table().append(theirs)
        return commit(self, *arguments)

    def counting(*arguments: Any) -> Any:
        written.append(arguments)
        return data_files_of(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    monkeypatch.setattr("godwit.connect.iceberg.sink.data_files_of", counting)
    sink.deliver(_epoch(0, (2, 2)))
    assert _pairs(targets) == [(1, 10), (2, 2), *((n, n) for n in range(100, 104))]
    assert (len(waits), len(written)) == (4, 1)
    sink.close()


def test_an_upsert_that_always_loses_stops_after_a_time_and_leaves_no_files(
    targets: Targets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    targets.catalog.create_table("db.t", SCHEMA)
    sink = _open(targets, SCHEMA, mode="upsert")
    sink.deliver(_epoch(0, (1, 1)))
    files = set(tmp_path.rglob("*.parquet"))
    now_s = [0.0]

    def wait(seconds: float) -> None:
        now_s[0] += seconds

    sink._retry_policy = RetryPolicy(
        clock=lambda: now_s[0], sleep=wait, uniform=random.Random(1).uniform
    )

    def lose(*_: Any) -> Any:
        now_s[0] += 1.0
        raise CommitFailedException("another commit was first")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    with pytest.raises(SinkError, match=r"epoch 1 cannot be .*attempts in 30\d s.*other writers"):
        sink.deliver(_epoch(1, (1, 2)))
    assert set(tmp_path.rglob("*.parquet")) == files
    sink.close()


def test_rows_that_others_deleted_by_position_stay_deleted(targets: Targets) -> None:
    table = targets.catalog.create_table("db.t", SCHEMA)
    table.append(pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}, schema=SCHEMA))
    add_deletes(table, "position")
    assert _pairs(targets) == [(1, 1), (3, 3)]
    sink = _open(targets, SCHEMA, mode="upsert")
    sink.deliver(_epoch(0, (3, 30), (4, 40)))
    assert _pairs(targets) == [(1, 1), (3, 30), (4, 40)]
    sink.close()


NESTED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.list_(pa.int64()), [[1, None], [], None]),
    (pa.large_list(pa.large_string()), [["a", None], [], None]),
    (pa.struct([("x", pa.int8()), ("y", pa.list_(pa.float16()))]), [{"x": 1, "y": [1.5]}, None]),
    (pa.map_(pa.string(), pa.uint8()), [[("a", 1), ("b", None)], [], None]),
    (pa.map_(pa.int64(), pa.struct([("z", pa.binary())])), [[(1, {"z": b"\xff"})], None]),
    (pa.list_(pa.struct([("z", pa.int8())])), [[{"z": 1}, None], None, [], None]),
    (pa.struct([("m", pa.list_(pa.struct([("z", pa.int8())])))]), [{"m": None}, {"m": []}, None]),
    (pa.list_(pa.list_(pa.struct([("t", pa.timestamp("us"))]))), [[[{"t": None}], []], [None]]),
    (pa.binary(4), [b"abcd", None]),
    (pa.string_view(), ["a", None]),
]


@pytest.mark.parametrize(("dtype", "values"), NESTED, ids=[str(dtype) for dtype, _ in NESTED])
def test_rows_with_columns_of_any_type_stay_as_they_are(
    targets: Targets, dtype: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", dtype)])
    numbers = list(range(len(values)))
    sink = _open(targets, schema, mode="upsert")
    for epoch, keys in enumerate([[*numbers, 8, 9], [9, 10], [10]]):
        cells = [values[key % len(values)] for key in keys]
        table = pa.table([keys, pa.array(cells, dtype)], schema=schema)
        sink.deliver(EpochRows(epoch=epoch, table=table))
    sink.close()
    files = [file.file_path.removeprefix("file://") for file in _live(targets.table())]
    stored = [row for file in files for row in pq.read_table(file).to_pylist()]
    for rows in (stored, targets.rows()):
        assert sorted(((row["k"], row["v"]) for row in rows), key=itemgetter(0)) == [
            (key, values[key % len(values)]) for key in [*numbers, 8, 9, 10]
        ]


def test_an_upsert_into_a_table_with_equality_deletes_is_refused(targets: Targets) -> None:
    table = targets.catalog.create_table("db.t", SCHEMA)
    table.append(pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}, schema=SCHEMA))
    add_deletes(table, "equality")
    with pytest.raises(SinkError, match="has equality deletes"):
        _open(targets, SCHEMA, mode="upsert")
    sink = _open(targets, SCHEMA)
    sink.deliver(_epoch(0, (9, 9)))
    sink.close()
    complete = gw.sinks.iceberg("db.t", catalog=targets.properties)
    complete.open(context(schema=SCHEMA, keys=("k",), complete=True, writer="other"))
    complete.deliver(_epoch(0, (5, 5)))
    assert [file.record_count for file in _live(targets.table())] == [1]
    complete.close()


def _live(table: Table) -> list[DataFile]:
    from godwit.connect.iceberg.files import all_files

    return all_files(table)


def add_deletes(table: Table, kind: str) -> None:
    """Commit a delete file of another writer, for the row with k = 2 of the only data file."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    [data] = [task.file for task in table.scan().plan_files()]
    path = data.file_path.replace(".parquet", "-deletes.parquet")
    if kind == "position":
        fields = [
            pa.field(
                "file_path",
                pa.string(),
                nullable=False,
                metadata={"PARQUET:field_id": "2147483546"},
            ),
            pa.field(
                "pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}
            ),
        ]
        rows = pa.table({"file_path": [data.file_path], "pos": [1]}, schema=pa.schema(fields))
        content = DataFileContent.POSITION_DELETES
    else:
        field = pa.field("k", pa.int64(), metadata={"PARQUET:field_id": "1"})
        rows = pa.table({"k": [2]}, schema=pa.schema([field]))
        content = DataFileContent.EQUALITY_DELETES
    local = path.removeprefix("file://")
    pq.write_table(rows, local)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=Path(local).stat().st_size,
        spec_id=0,
        equality_ids=[1] if kind == "equality" else None,
    )

    class DeleteManifestWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Deletes(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            writer = DeleteManifestWriter(
                table.spec(),
                table.schema(),
                self.new_manifest_output(),
                self._snapshot_id,
                "deflate",
            )
            with writer:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
            return [writer.to_manifest_file(), *self._existing_manifests()]

    with table.transaction() as transaction:
        Deletes(operation=Operation.OVERWRITE, transaction=transaction, io=table.io).commit()

"""Delivery to an Iceberg table: snapshots that say which epoch they are of, whoever else commits.

What it has in common with other targets is in test_conformance.py.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from godwit.connect.iceberg.sink import IcebergSink
    from godwit.sinks.sink import SinkContext

pytest.importorskip("pyiceberg", reason="Iceberg tests need pyiceberg.")

NAME = "delays.by_plane"
EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None), ("N3", 31)),
]


class Place:
    """A catalog in SQLite, and tables in a directory."""

    def __init__(self, path: Path) -> None:
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{path}/c.db",
            "warehouse": f"file://{path}",
        }
        self.sinks: list[IcebergSink] = []

    def sink(self, ctx: SinkContext | None = None, **options: Any) -> IcebergSink:

        sink = gw.sinks.iceberg(NAME, catalog=self.catalog, **options)
        self.sinks.append(sink)
        sink.open(ctx or context())
        return sink

    def table(self) -> Table:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table(NAME)

    def create(self, schema: pa.Schema, **options: Any) -> Table:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("default", **self.catalog)
        catalog.create_namespace("delays")
        return catalog.create_table(NAME, schema, **options)

    def rows(self) -> list[tuple[Any, ...]]:
        table = self.table().scan().to_arrow()
        pairs = zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted(pairs, key=lambda row: (str(row[0]), str(row[1])))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for sink in made.sinks:
        sink.close()


def by_key(*outputs: EpochRows, keys: Sequence[str] = ("plane",)) -> list[tuple[Any, ...]]:
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for output in outputs:
        for row in output.table.to_pylist():
            found[tuple(row[key] for key in keys)] = tuple(row.values())
    return sorted(found.values(), key=lambda row: (str(row[0]), str(row[1])))


def test_sinks_that_create_one_catalog_at_once_both_open(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

    create_tables, create_namespace = SqlCatalog.create_tables, SqlCatalog.create_namespace
    refusals = []

    def created_by_another(catalog: SqlCatalog) -> None:
        create_tables(catalog)
        refusals.append("tables")
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    def taken_by_another(catalog: SqlCatalog, namespace: str, properties: Any = None) -> None:
        if "namespace" not in refusals:
            refusals.append("namespace")
            create_namespace(catalog, namespace, properties)
            with monkeypatch.context() as patch:
                patch.setattr(catalog, "namespace_exists", lambda _: False)
                create_namespace(catalog, namespace, properties)
        create_namespace(catalog, namespace, properties)

    monkeypatch.setattr(SqlCatalog, "create_tables", created_by_another)
    monkeypatch.setattr(SqlCatalog, "create_namespace", taken_by_another)
    place.sink().deliver(EPOCHS[0])
    assert refusals == ["tables", "namespace"]
    assert place.rows() == by_key(EPOCHS[0])


def test_a_trial_leaves_a_catalog_that_another_sink_creates_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from pyiceberg.catalog import load_catalog

    name = "godwit.connect.iceberg.sink.load_catalog"

    def another_comes_first(catalog: str, **properties: str) -> Catalog:
        monkeypatch.setattr(name, load_catalog)
        place.sink().deliver(EPOCHS[0])
        return load_catalog(catalog, **properties)

    first = gw.sinks.iceberg(NAME, catalog=place.catalog)
    first.check(context())
    assert not (tmp_path / "c.db").exists()
    monkeypatch.setattr(name, another_comes_first)
    first.check(context())
    assert place.rows() == by_key(EPOCHS[0])


def test_a_column_that_others_add_while_it_runs_loses_no_values(place: Place) -> None:
    from pyiceberg.types import StringType

    sink = place.sink(mode="upsert")
    sink.deliver(EPOCHS[0])
    table = place.table()
    with table.update_schema() as update:
        update.add_column("note", StringType())
    noted = pa.table({"plane": ["N9"], "total": [9], "note": ["theirs"]})
    table.append(noted)
    with pytest.raises(SinkError, match=r"other columns: note \(absent in the rows"):
        sink.deliver(EPOCHS[1])
    assert ("N9", 9, "theirs") in place.rows()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.timestamp("us", "UTC"), [0, 1, None]),
        (pa.uint64(), [0, 2**64 - 1, None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.0, float("inf"), None]),
        (pa.string(), ["", "'; DROP", None]),
    ],
    ids=str,
)
def test_keys_of_any_type_are_replaced(place: Place, dtype: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", dtype), ("n", pa.int64())])
    first = pa.table({"k": pa.array(values, dtype), "n": [1, 2, 3]}, schema=schema)
    second = pa.table({"k": pa.array(values[1:], dtype), "n": [4, 5]}, schema=schema)
    ctx = context(schema=schema, keys=("k",))
    sink = place.sink(ctx, mode="upsert")
    sink.deliver(EpochRows(epoch=0, table=first))
    sink.deliver(EpochRows(epoch=1, table=second))
    assert sorted(place.table().scan().to_arrow().column("n").to_pylist()) == [1, 4, 5]
    place.sink(ctx, mode="upsert")  # and takes its own table again


def test_a_rival_that_delivers_the_epoch_meanwhile_makes_no_second_copy(place: Place) -> None:
    rival, sink = place.sink(), place.sink()
    sink.deliver(EPOCHS[0])

    def overtake(batch: int) -> None:
        if batch == 1:
            rival.deliver(EPOCHS[1])

    sink.deliver(replace(EPOCHS[1], on_batch=overtake))
    assert len(place.rows()) == 8
    assert sink.last_delivered() == point(1)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_others_commit_meanwhile_is_kept(place: Place, mode: str) -> None:
    sink = place.sink(mode=mode)
    sink.deliver(EPOCHS[0])
    strange = pa.table({"plane": ["N1x"], "total": [7]}, schema=EPOCHS[0].table.schema)
    met: list[int] = []

    def meet(batch: int) -> None:
        if batch == 1 and not met:
            met.append(batch)
            place.table().append(strange)

    sink.deliver(replace(EPOCHS[1], on_batch=meet))
    expected = (
        by_key(*EPOCHS)
        if mode == "upsert"
        else [tuple(row.values()) for epoch in EPOCHS for row in epoch.table.to_pylist()]
    )
    assert place.rows() == sorted([*expected, ("N1x", 7)], key=lambda r: (str(r[0]), str(r[1])))
    assert place.sink(mode=mode).last_delivered() == point(1)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_whose_answer_was_lost_keeps_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    commit, lost = SqlCatalog.commit_table, [1]

    def answer(self: SqlCatalog, *arguments: Any) -> Any:
        answered = commit(self, *arguments)
        if lost:
            raise CommitFailedException(f"repeated by the transport: {lost.pop()}")
        return answered

    sink = place.sink(mode=mode)
    monkeypatch.setattr(SqlCatalog, "commit_table", answer)
    sink.deliver(rows(0, ("N1", 1)))
    assert place.rows() == [("N1", 1)]
    assert sink.last_delivered() == point(0)


def overtake_commits(monkeypatch: pytest.MonkeyPatch, others: list[Callable[[], Any]]) -> None:
    """Let others commit just before the next commits, one after the other."""
    from pyiceberg.catalog.sql import SqlCatalog

    commit = SqlCatalog.commit_table

    def overtaken(self: SqlCatalog, *arguments: Any) -> Any:
        if others:
            others.pop(0)()
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)


@pytest.mark.parametrize("key", ["N1", "N9", None])
def test_a_key_that_another_query_adds_meanwhile_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    sink = place.sink(mode="upsert")
    other = place.sink(replace(context(), writer="other"), mode="upsert")
    sink.deliver(rows(0, ("N5", 5)))
    overtake_commits(monkeypatch, [lambda: other.deliver(rows(0, (key, 1)))])
    sink.deliver(rows(1, (key, 2)))
    assert place.rows() == sorted([("N5", 5), (key, 2)], key=str)


def test_what_others_wrote_since_is_not_undone(place: Place) -> None:
    sink = place.sink()
    for epoch in EPOCHS:
        sink.deliver(epoch)
    place.table().append(EPOCHS[0].table)
    with pytest.raises(SinkError, match="written by another writer, and would be undone too"):
        sink.roll_back(Committed(latest_epoch=0), -1)
    assert len(place.rows()) == 11


def test_a_table_that_is_rolled_back_tells_what_it_lost(place: Place) -> None:
    sink = place.sink()
    for epoch in EPOCHS:
        sink.deliver(epoch)
    first = place.table().metadata.snapshots[0].snapshot_id
    place.table().manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(SinkError, match="was rolled back to a snapshot before"):
        sink.deliver(rows(2, ("N1", 9)))
    again = place.sink()
    assert again.last_delivered() == point(0)
    again.deliver(EPOCHS[1])
    assert len(place.rows()) == 8


def test_epochs_are_known_after_their_snapshots_have_expired(place: Place) -> None:
    sink = place.sink()
    sink.deliver(EPOCHS[0])
    place.table().append(EPOCHS[0].table)
    before = [s.snapshot_id for s in place.table().metadata.snapshots][:-1]
    place.table().maintenance.expire_snapshots().by_ids(before).commit()
    again = place.sink()
    assert again.last_delivered() == point(0)
    again.deliver(EPOCHS[0])
    assert len(place.rows()) == 6
    with pytest.raises(SinkError, match="have expired"):
        again.roll_back(Committed(latest_epoch=0, history="other"), -1)


def test_a_table_of_somebody_else_keeps_its_partitions_and_order_of_columns(place: Place) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    there = place.create(pa.schema([("total", pa.int64()), ("plane", pa.large_string())]))
    with there.update_spec() as update:
        update.add_field("plane", IdentityTransform())
    sink = place.sink(mode="upsert")
    for epoch in EPOCHS:
        sink.deliver(epoch)
    expected = sorted(((t, p) for p, t in by_key(*EPOCHS)), key=lambda r: (str(r[0]), str(r[1])))
    assert place.rows() == expected
    spec = place.table().spec()
    assert isinstance(spec, PartitionSpec)
    assert [f.name for f in spec.fields if isinstance(f, PartitionField)] == ["plane"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (pa.schema([("plane", pa.string())]), r"total \(int64 in the rows, absent in the table\)"),
        (
            pa.schema([("plane", pa.string()), ("total", pa.float64())]),
            r"total \(int64 in the rows, double in the table\)",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused(place: Place, schema: pa.Schema, text: str) -> None:
    place.create(schema)
    with pytest.raises(SinkError, match=text):
        place.sink()


def test_a_table_whose_snapshots_have_no_numbers_is_refused(place: Place) -> None:
    place.create(EPOCHS[0].table.schema, properties={"format-version": "1"})
    with pytest.raises(SinkError, match="format version 1"):
        place.sink()


def test_nulls_that_the_table_cannot_take_are_found_before_the_commit(place: Place) -> None:
    place.create(pa.schema([("plane", pa.string()), pa.field("total", pa.int64(), nullable=False)]))
    sink = place.sink()
    [batch] = EPOCHS[1].table.combine_chunks().to_batches()
    rejected = sink.row_check()(batch)
    assert rejected is not None
    assert rejected.rows.tolist() == [3]
    sink.deliver(EPOCHS[0])
    assert len(place.rows()) == 3


def test_values_of_every_type_arrive(place: Place) -> None:
    table = pa.table(
        {
            "plane": ["a"],
            "small": pa.array([1], pa.int8()),
            "when": pa.array([dt.datetime(2020, 1, 2, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "parts": pa.array([[1, None]], pa.list_(pa.int64())),
            "of": pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
            "by": pa.array([[("k", 2)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    ctx = context(schema=table.schema)
    place.sink(ctx).deliver(EpochRows(epoch=0, table=table))
    assert place.table().scan().to_arrow().to_pylist() == table.to_pylist()
    place.sink(ctx)


def test_errors_name_table_and_cause_and_no_secret(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/absent/c.db"
    sink = gw.sinks.iceberg(
        NAME, catalog={"type": "sql", "uri": uri, "s3.secret-access-key": "hunter2222"}
    )
    with pytest.raises(SinkError, match=r"Iceberg sink .by_plane. on table delays\.by_plane") as e:
        sink.open(context())
    assert "hunter2222" not in str(e.value) + sink.destination + repr(sink)
    sink.close()


def test_a_key_that_cannot_be_compared_is_refused(place: Place) -> None:
    schema = pa.schema([("plane", pa.list_(pa.int64())), ("total", pa.int64())])
    with pytest.raises(SinkError, match="cannot be a key"):
        place.sink(context(schema=schema), mode="upsert")

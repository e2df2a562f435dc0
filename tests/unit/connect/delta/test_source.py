"""Delta tables as a source: features of the format, refusals, restarts and pruning."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from tests.support.delta_logs import (
    add_file,
    commit,
    deletion_vector,
    field,
    live_files,
    make_table,
    vector_on_disk,
)

import godwit as gw
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.sources import Source

Rows = list[dict[str, Any]]


def numbers(first: int, after: int) -> pa.Table:
    ids = list(range(first, after))
    return pa.table({"id": pa.array(ids, pa.int64()), "k": [f"k{n % 3}" for n in ids]})


def append(path: Path, rows: pa.Table, **options: Any) -> None:
    write_deltalake(str(path), rows, mode="append", **options)


def epoch(source: Source, position: Any = None, **options: Any) -> tuple[Rows, Any]:
    """Open a source at a position and read one epoch: its rows, and the next position."""
    source.open(position)
    begin = source.start() if position is None else position
    end = source.latest(begin, **options)
    rows: Rows = []
    for split in source.splits(begin, end, 3):
        for batch in source.read(split, source.schema.names):
            rows += batch.to_pylist()
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
@pytest.mark.parametrize("partition_by", [None, ["k"]])
def test_contract(tmp_path: Path, partition_by: list[str] | None, *, changes: bool) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path), numbers(0, 12), partition_by=partition_by, configuration=feed)
    append(tmp_path, numbers(12, 20))
    if changes:
        DeltaTable(str(tmp_path)).delete("id = 3")
        DeltaTable(str(tmp_path)).update(updates={"k": "'z'"}, predicate="id < 5")
    source = gw.sources.delta(
        tmp_path, version=0, changes=changes, include={"version": "v", "timestamp": "at"}
    )
    gw.testing.check_source(source, add=lambda: append(tmp_path, numbers(20, 30)))


def test_changes_of_a_flow_mirror_the_table(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 9))
    flow = gw.Flow("mirror")
    orders = flow.source("t", gw.sources.delta(tmp_path, changes=True, version=0, keys="id"))
    flow.sink("count", orders.key_by("k").compute(n=gw.count(), output="complete"), gw.sinks.noop())
    table = DeltaTable(str(tmp_path))
    table.delete("k = 'k1'")
    table.update(updates={"k": "'k0'"}, predicate="id = 2")
    played = gw.testing.run(flow)
    last = {row["k"]: row["n"] for row in played.rows("count").to_pylist()}
    assert last == {"k0": 4, "k2": 2}


def test_a_version_is_whole_where_asked(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 1))
    append(tmp_path, numbers(1, 11))
    append(tmp_path, numbers(11, 13))
    options: Any = {"version": 0, "snapshot": False, "max_rows_per_epoch": 3}
    rows, position = epoch(gw.sources.delta(tmp_path, whole_versions=True, **options))
    assert ids(rows) == list(range(1, 11))
    rows, position = epoch(gw.sources.delta(tmp_path, whole_versions=True, **options), position)
    assert ids(rows) == [11, 12]
    rows, position = epoch(gw.sources.delta(tmp_path, **options))
    assert ids(rows) == [1, 2, 3]
    assert gw.sources.delta(tmp_path).describe(position) == {
        "version": 1,
        "reading": "file 0 at row 3",
    }


def test_begins_at_a_time(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long")])
    add_file(tmp_path, pa.table({"id": [1]}))
    add_file(tmp_path, pa.table({"id": [2]}))
    at = dt.datetime.fromtimestamp(1_700_000_000.001, dt.UTC)
    source = gw.sources.delta(tmp_path, timestamp=at, snapshot=False, include=["timestamp"])
    rows, _ = epoch(source)
    assert rows == [{"id": 2, "timestamp": at + dt.timedelta(milliseconds=1)}]
    with pytest.raises(SourceError, match="no version from that time"):
        gw.sources.delta(tmp_path, timestamp="2020-01-01").open(None)


def test_versions_without_rows_are_no_epoch(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 3))
    append(tmp_path, numbers(3, 6))
    _, position = epoch(gw.sources.delta(tmp_path))
    DeltaTable(str(tmp_path)).optimize.compact()
    rows, after = epoch(gw.sources.delta(tmp_path), position)
    assert (rows, after) == ([], position)
    for _ in range(100):
        commit(tmp_path, [], "OPTIMIZE")
    _, after = epoch(gw.sources.delta(tmp_path), position)
    assert after["version"] > position["version"]


# -- what changes rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["delete", "update", "overwrite", "restore"])
def test_appended_rows_alone_refuse_or_skip_changes(tmp_path: Path, change: str) -> None:
    write_deltalake(str(tmp_path), numbers(0, 3))
    append(tmp_path, numbers(3, 4))
    rows, position = epoch(gw.sources.delta(tmp_path))
    append(tmp_path, numbers(4, 5))
    table = DeltaTable(str(tmp_path))
    if change == "delete":
        table.delete("id = 1")
    elif change == "update":
        table.update(updates={"k": "'z'"}, predicate="id = 1")
    elif change == "overwrite":
        write_deltalake(str(tmp_path), numbers(7, 8), mode="overwrite")
    else:
        table.restore(0)
    append(tmp_path, numbers(8, 9))
    rows, later = epoch(gw.sources.delta(tmp_path), position)
    assert ids(rows) == [4]  # up to the version that is refused
    with pytest.raises(SourceError, match="updates or deletes rows") as caught:
        epoch(gw.sources.delta(tmp_path), later)
    assert "changes=True" in str(caught.value.remedy)
    source = gw.sources.delta(tmp_path)
    source.open(later)
    end = source.end(later)
    with pytest.raises(SourceError, match="updates or deletes rows"):
        source.latest(later, until=end)
    skipping = gw.sources.delta(tmp_path, on_change="skip")
    rows, _ = epoch(skipping, position)
    assert ids(rows) == [4, 8]
    reports = skipping.take_reports()
    assert reports
    assert all("updates or deletes rows, and is skipped" in report for report in reports)


@pytest.mark.parametrize("where", ["inline", "disk"])
def test_deletion_vectors(tmp_path: Path, where: str) -> None:
    make_table(tmp_path, [field("id", "long")], reader_features=["deletionVectors"])
    vector = (
        deletion_vector
        if where == "inline"
        else lambda rows: vector_on_disk(tmp_path, deletion_vector(rows))
    )
    add_file(tmp_path, pa.table({"id": list(range(10))}), row_group_size=4)
    first = live_files(tmp_path)[0]
    second = {**first, "deletionVector": vector([2, 5])}
    commit(tmp_path, [{"remove": first}, {"add": second}], "DELETE")
    third = {**first, "deletionVector": vector([2, 5, 9])}
    commit(tmp_path, [{"remove": second}, {"add": third}], "DELETE")
    commit(tmp_path, [{"remove": third}, {"add": second}], "RESTORE")
    commit(tmp_path, [{"remove": second}, {"add": first}], "RESTORE")
    for version, missing in ((1, []), (2, [2, 5]), (3, [2, 5, 9]), (4, [2, 5]), (5, [])):
        table = DeltaTable(str(tmp_path), version=version)
        theirs = pa.table(QueryBuilder().register("t", table).execute("select id from t"))
        assert sorted(theirs["id"].to_pylist()) == sorted(set(range(10)) - set(missing))
        source = gw.sources.delta(tmp_path, version=version)
        source.open(None)
        begin = source.start()
        end = source.latest(begin, until={**begin, "version": version + 1, "commit": True})
        [split] = source.splits(begin, end, 1)
        rows = [row for batch in source.read(split, ["id"]) for row in batch.to_pylist()]
        assert ids(rows) == sorted(set(range(10)) - set(missing))
        assert split.rows == len(rows)
        assert split.exact
    source = gw.sources.delta(tmp_path, version=1, snapshot=False, changes=True)
    rows, _ = epoch(source)
    assert [(row["id"], row["change"]) for row in rows] == [
        *[(2, -1), (5, -1), (9, -1)],
        *[(9, 1), (2, 1), (5, 1)],
    ]
    gw.testing.check_source(gw.sources.delta(tmp_path, version=1, changes=True), exact_limits=False)
    with pytest.raises(SourceError, match="updates or deletes"):
        epoch(gw.sources.delta(tmp_path, version=1, snapshot=False))


def test_a_damaged_deletion_vector_is_refused(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long")], reader_features=["deletionVectors"])
    add_file(tmp_path, pa.table({"id": [0, 1]}), deleted=[1])
    [file] = live_files(tmp_path)
    file["deletionVector"]["cardinality"] = 2
    commit(tmp_path, [{"add": file}])
    with pytest.raises(SourceError, match="has 1 rows, but the log says 2"):
        epoch(gw.sources.delta(tmp_path))


def test_removed_files_without_partition_values(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long"), field("day", "date")], partition_by=["day"])
    add_file(tmp_path, pa.table({"id": [1, 2]}), {"day": "2024-05-01"})
    [file] = live_files(tmp_path)
    removed = {"path": file["path"], "dataChange": True, "deletionTimestamp": 0}
    commit(tmp_path, [{"remove": removed}], "DELETE")
    rows, _ = epoch(gw.sources.delta(tmp_path, version=1, snapshot=False, changes=True))
    day = dt.date(2024, 5, 1)
    assert rows == [{"id": n, "day": day, "change": -1} for n in (1, 2)]


# -- columns ---------------------------------------------------------------------------------------


def mapped(name: str, number: int) -> dict[str, Any]:
    return {"delta.columnMapping.physicalName": name, "delta.columnMapping.id": number}


def test_columns_mapped_by_name(tmp_path: Path) -> None:
    element = {"type": "struct", "fields": [field("y", "date", mapped("c5", 5))]}
    make_table(
        tmp_path,
        [
            field("id", "long", mapped("c1", 1)),
            field("s", {"type": "struct", "fields": [field("x", "string", mapped("c3", 3))]},
                  mapped("c2", 2)),
            field("l", {"type": "array", "elementType": element, "containsNull": True},
                  mapped("c4", 4)),
            field("p", "timestamp", mapped("c6", 6)),
        ],
        versions=(2, 5),
        properties={"delta.columnMapping.mode": "name"},
        partition_by=["p"],
    )  # fmt: skip
    day = dt.date(2024, 1, 1)
    data = {"c1": [1, 2], "c2": [{"c3": "q"}, None], "c4": [[{"c5": day}, None], None]}
    add_file(tmp_path, pa.table(data), {"c6": "2024-05-01 10:00:00.5"})
    add_file(tmp_path, pa.table({"c1": [3]}), {"c6": None})
    rows, _ = epoch(gw.sources.delta(tmp_path))
    moment = dt.datetime(2024, 5, 1, 10, 0, 0, 500_000, dt.UTC)
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "s": {"x": "q"}, "l": [{"y": day}, None], "p": moment},
        {"id": 2, "s": None, "l": None, "p": moment},
        {"id": 3, "s": None, "l": None, "p": None},
    ]
    rows, _ = epoch(gw.sources.delta(tmp_path, filters=[("p", ">", moment - dt.timedelta(1))]))
    assert ids(rows) == [1, 2]


def test_columns_mapped_by_number(tmp_path: Path) -> None:
    make_table(
        tmp_path,
        [field("id", "long", mapped("c1", 1)), field("b", "long", mapped("c2", 2))],
        versions=(2, 5),
        properties={"delta.columnMapping.mode": "id"},
    )
    stored = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": number})
        for name, number in (("x", "2"), ("y", "1"))
    ]
    add_file(tmp_path, pa.table({"x": [1, 2], "y": [3, 4]}, schema=pa.schema(stored)))
    rows, _ = epoch(gw.sources.delta(tmp_path))
    assert rows == [{"id": 3, "b": 1}, {"id": 4, "b": 2}]


def test_widened_types(tmp_path: Path) -> None:
    wide = {"i": "long", "f": "double", "d": "timestamp_ntz", "m": "decimal(12,4)"}
    fields = [field(name, dtype) for name, dtype in wide.items()]
    make_table(tmp_path, fields, reader_features=["typeWidening", "timestampNtz"])
    old = pa.table(
        {
            "i": pa.array([1], pa.int16()),
            "f": pa.array([0.5], pa.float32()),
            "d": pa.array([dt.date(2024, 5, 1)]),
            "m": pa.array([1], pa.decimal128(5, 2)),
        }
    )
    add_file(tmp_path, old)
    rows, _ = epoch(gw.sources.delta(tmp_path))
    day = dt.datetime.fromisoformat("2024-05-01")
    assert rows == [{"i": 1, "f": 0.5, "d": day, "m": 1}]


def test_a_timestamp_of_96_bits_is_an_instant(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)
    make_table(tmp_path, [field("t", "timestamp"), field("n", "timestamp_ntz")])
    rows = pa.table({"t": pa.array([moment], pa.timestamp("us"))})
    add_file(tmp_path, rows, use_deprecated_int96_timestamps=True)
    add_file(tmp_path, rows)  # without a zone, as older writers do
    assert epoch(gw.sources.delta(tmp_path))[0] == [{"t": moment, "n": None}] * 2


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ([field("id", "string"), field("k", "string")], "changes the type of column 'id'"),
        ([field("k", "string")], "drops column 'id'"),
    ],
)
def test_columns_that_go_are_refused_by_name(
    tmp_path: Path, later: list[Any], message: str
) -> None:
    make_table(tmp_path, [field("id", "long"), field("k", "string")])
    add_file(tmp_path, numbers(0, 2))
    source = gw.sources.delta(tmp_path)
    _, position = epoch(source)
    metadata = {
        "id": position["table"],
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": later}),
        "partitionColumns": [],
        "configuration": {},
    }
    commit(tmp_path, [{"metaData": metadata}])
    with pytest.raises(SourceError, match=message):
        source.latest(position)
    remaining = gw.sources.delta(tmp_path, columns=["k"])
    assert epoch(remaining, position)[0] == []


def test_an_added_column_is_reported_and_read_after_a_restart(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 2))
    source = gw.sources.delta(tmp_path)
    _, position = epoch(source)
    rows = numbers(2, 3).append_column("new", pa.array([5]))
    append(tmp_path, rows, schema_mode="merge")
    end = source.latest(position)
    [report] = source.take_reports()
    assert report.endswith("adds 'new', which the query will read after a restart.")
    [split] = source.splits(position, end, 1)
    assert [b.to_pylist() for b in source.read(split, source.schema.names)] == [
        [{"id": 2, "k": "k2"}]
    ]
    rows_again, _ = epoch(gw.sources.delta(tmp_path), position)
    assert rows_again == [{"id": 2, "k": "k2", "new": 5}]
    rows_of_start, _ = epoch(gw.sources.delta(tmp_path, version=0))
    assert [row["new"] for row in rows_of_start] == [None, None, 5]


def test_columns_of_unknown_types_are_refused_by_name(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long"), field("v", "variant")])
    add_file(tmp_path, pa.table({"id": [1]}))
    with pytest.raises(SourceError, match=r"'v' of the Delta table .* is of type variant"):
        epoch(gw.sources.delta(tmp_path))
    assert epoch(gw.sources.delta(tmp_path, columns=["id"]))[0] == [{"id": 1}]
    with pytest.raises(SourceError, match="has no 'x'"):
        epoch(gw.sources.delta(tmp_path, columns=["x"]))


# -- logs ------------------------------------------------------------------------------------------


def test_unknown_features_are_refused_by_name(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long")], reader_features=["deletionVectors", "flyingRows"])
    with pytest.raises(SourceError, match="'flyingRows'"):
        gw.sources.delta(tmp_path).open(None)


def checkpoint(path: Path, form: str) -> None:
    """Write a checkpoint of the newest version in a form, and remove the versions before it."""
    log = path / "_delta_log"
    commits = sorted(log.glob("*.json"))
    newest = commits[-1].stem
    actions = [json.loads(line) for file in commits for line in file.read_text().splitlines()]
    first = [action for action in actions if "protocol" in action or "metaData" in action]
    adds = [{"add": file} for file in live_files(path)]
    schema = pa.schema(
        {
            "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(),
                                   "readerFeatures": pa.list_(pa.string()),
                                   "writerFeatures": pa.list_(pa.string())}),
            "metaData": pa.struct({"id": pa.string(), "schemaString": pa.string(),
                                   "partitionColumns": pa.list_(pa.string()),
                                   "configuration": pa.map_(pa.string(), pa.string())}),
            "add": pa.struct({"path": pa.string(),
                              "partitionValues": pa.map_(pa.string(), pa.string()),
                              "size": pa.int64(), "modificationTime": pa.int64(),
                              "dataChange": pa.bool_(), "stats": pa.string()}),
        }
    )  # fmt: skip
    for action in [*first, *adds]:
        for value in action.values():
            for key in ("partitionValues", "configuration"):
                if key in value:
                    value[key] = list(value[key].items())

    def write(name: str, rows: list[Any]) -> None:
        (log / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), log / name)

    if form == "statistics in columns":
        facts = [schema.field("add").type.field(n) for n in range(5)]
        counts = pa.struct({"numRecords": pa.int64(), "minValues": pa.struct({"id": pa.int64()})})
        schema = schema.set(
            2, pa.field("add", pa.struct([*facts, pa.field("stats_parsed", counts)]))
        )
        for action in adds:
            action["add"]["stats_parsed"] = {"numRecords": 2, "minValues": None}
    if form in {"classic", "statistics in columns"}:
        write(f"{newest}.checkpoint.parquet", [*first, *adds])
    elif form == "parts":
        write(f"{newest}.checkpoint.0000000001.0000000002.parquet", [*first, *adds[:1]])
        write(f"{newest}.checkpoint.0000000002.0000000002.parquet", adds[1:])
        write(f"{int(newest) - 1:020}.checkpoint.0000000001.0000000002.parquet", adds)
    else:
        write("_sidecars/a.parquet", adds[:1])
        write("_sidecars/b.parquet", adds[1:])
        second = [{"sidecar": {"path": f"{name}.parquet"}} for name in "ab"]
        text = "\n".join(
            json.dumps(action) for action in [{"checkpointMetadata": {}}, *first, *second]
        )
        for key in ("configuration", "partitionValues"):
            text = text.replace(f'"{key}": []', f'"{key}": {{}}')
        (log / f"{newest}.checkpoint.{uuid.uuid4()}.json").write_text(text)
    for file in commits:
        file.unlink()


@pytest.mark.parametrize("form", ["classic", "statistics in columns", "parts", "second form"])
def test_checkpoints(tmp_path: Path, form: str) -> None:
    features = ["v2Checkpoint"] if form == "second form" else []
    make_table(tmp_path, [field("id", "long"), field("k", "string")], reader_features=features)
    for first in (0, 2, 4):
        add_file(tmp_path, numbers(first, first + 2))
    _, early = epoch(gw.sources.delta(tmp_path, version=1), limit=1)
    checkpoint(tmp_path, form)
    source = gw.sources.delta(tmp_path)
    rows, position = epoch(source)
    assert ids(rows) == list(range(6))
    assert epoch(source, position)[0] == []
    start = {**position, "version": 3, "commit": False}
    assert [split.rows for split in source.splits(start, position, 1)] == [6]
    with pytest.raises(SourceError, match=r"Version 2 of .* is no longer in its log"):
        epoch(gw.sources.delta(tmp_path), early)
    with pytest.raises(SourceError, match="is no longer in its log"):
        epoch(gw.sources.delta(tmp_path, version=1))


def test_vacuumed_files_say_so(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 3))
    append(tmp_path, numbers(3, 6))
    table = DeltaTable(str(tmp_path))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceError, match="removed before it was read, presumably by VACUUM") as e:
        epoch(gw.sources.delta(tmp_path, version=0))
    assert "delta.deletedFileRetentionDuration" in str(e.value.remedy)
    assert ids(epoch(gw.sources.delta(tmp_path))[0]) == list(range(6))


def test_a_table_that_was_created_again_is_another(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    append(tmp_path / "t", numbers(3, 4))
    _, position = epoch(gw.sources.delta(tmp_path / "t"))
    for versions in (1, 4):
        shutil.rmtree(tmp_path / "t")
        for _ in range(versions):
            append(tmp_path / "t", numbers(0, 3))
        with pytest.raises(SourceError, match="was deleted and created again"):
            epoch(gw.sources.delta(tmp_path / "t"), position)
    with pytest.raises(SourceError, match="There is no Delta table"):
        gw.sources.delta(tmp_path / "nothing").open(None)
    with pytest.raises(SourceError, match="has no version 7; its newest is 3"):
        gw.sources.delta(tmp_path / "t", version=7).open(None)


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b%20c", "é#?&=[x]", "p=1:2"])
def test_special_paths_and_partitions(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    make_table(path, [field("id", "long"), field("k", "string")], partition_by=["k"])
    directory = path / "k=a%20b"
    directory.mkdir()
    pq.write_table(pa.table({"id": [1]}), directory / "x y.parquet")
    elsewhere = tmp_path / "else where.parquet"
    pq.write_table(pa.table({"id": [2]}), elsewhere)
    files = {
        "k=a%2520b/x%20y.parquet": "a b",
        f"file://{str(elsewhere).replace(' ', '%20')}": "c",
        str(elsewhere).replace(" ", "%20"): "",
    }
    for file, value in files.items():
        add = {"path": file, "partitionValues": {"k": value}, "size": 0, "modificationTime": 0}
        commit(path, [{"add": {**add, "dataChange": True}}])
    rows, _ = epoch(gw.sources.delta(path))
    assert sorted(rows, key=str) == [
        {"id": 1, "k": "a b"},
        {"id": 2, "k": "c"},
        {"id": 2, "k": None},
    ]


# -- filters ---------------------------------------------------------------------------------------


def test_files_are_skipped_by_partition_and_statistics(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 30), partition_by=["k"])
    append(tmp_path, numbers(30, 60))
    source = gw.sources.delta(tmp_path, filters=[("k", "=", "k1"), ("id", ">=", 40)])
    source.open(None)
    begin = source.start()
    [split] = source.splits(begin, source.latest(begin), 1)
    assert split.what.endswith(", 5 files skipped by filters")
    rows = [row for batch in source.read(split, ["id"]) for row in batch.to_pylist()]
    assert ids(rows) == list(range(40, 60, 3))
    nothing = gw.sources.delta(tmp_path, filters=[("id", ">", 100)])
    assert epoch(nothing)[0] == []
    gw.testing.check_source(source)


@pytest.mark.parametrize(
    "filters",
    [
        [("n", "<", 3)],
        [("n", ">=", 5)],
        [("n", "in", [1, 9])],
        [("n", "not in", [1, 9])],
        [("n", "!=", 4)],
        [[("n", "=", 4)], [("s", ">", "c")]],
        [("d", "<=", dt.date(2024, 1, 3))],
        [("t", ">", dt.datetime(2024, 1, 4, 0, 0, 0, 500, dt.UTC))],
        [("until", ">=", dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC))],
        [("f", "<", 0.5)],
        [("s", "=", "b"), ("n", "<", 9)],
        [("p", "not in", ["x"])],
        [("p", "=", "x")],
    ],
)
def test_filters_choose_the_rows_that_arrow_does(tmp_path: Path, filters: Any) -> None:
    rows = pa.table(
        {
            "n": [1, 2, None, 4, 5, 6, 9, None],
            "s": ["a", "b", "c", None, "d", "b", "a", "z"],
            "d": [dt.date(2024, 1, n) for n in range(1, 9)],
            "t": pa.array(
                [dt.datetime(2024, 1, n, 0, 0, 0, 999, dt.UTC) for n in range(1, 9)],
                pa.timestamp("us", "UTC"),
            ),
            "until": pa.array(
                [dt.datetime(9999, 12, 31, 23, 59, 59, 999998 + n % 2, dt.UTC) for n in range(8)],
                pa.timestamp("us", "UTC"),
            ),
            "f": [0.0, -0.0, float("nan"), 1.5, None, 0.25, -1.0, 7.0],
            "p": ["x", None, "y", "x", "y", None, "x", "y"],
        }
    )
    for start in range(0, 8, 2):
        append(tmp_path, rows.slice(start, 2), partition_by=["p"])
    expected = rows.filter(pq.filters_to_expression(filters)).to_pylist()
    found, _ = epoch(gw.sources.delta(tmp_path, version=0, filters=filters))
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_filters_and_options_are_checked(tmp_path: Path) -> None:
    append(tmp_path, numbers(0, 2))
    wrong: list[Any] = [[("id", "~", 1)], ["id = 1"], "id = 1", [("id", "=")]]
    for filters in wrong:
        with pytest.raises(SourceError, match="are not valid"):
            gw.sources.delta(tmp_path, filters=filters)
    with pytest.raises(SourceError, match="do not fit its columns"):
        gw.sources.delta(tmp_path, filters=[("id", "=", "x")]).open(None)
    with pytest.raises(SourceError, match="has no 'x'"):
        gw.sources.delta(tmp_path, filters=[("x", "=", "x")]).open(None)
    with pytest.raises(SourceError, match="has version= and timestamp="):
        gw.sources.delta(tmp_path, version=0, timestamp="2024-01-01")
    with pytest.raises(SourceError, match="cannot include 'rows'"):
        gw.sources.delta(tmp_path, include=["rows"])
    with pytest.raises(SourceError, match="on_change='skip' is not valid"):
        gw.sources.delta(tmp_path, changes=True, on_change="skip")
    with pytest.raises(SourceError, match="several columns with the same name"):
        gw.sources.delta(tmp_path, include={"version": "id"}).open(None)


def test_a_snapshot_without_rows_for_the_filters_is_passed(tmp_path: Path) -> None:
    make_table(tmp_path, [field("id", "long")])
    stats = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 1}})
    facts = {"partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    files = [{"path": f"{number}.parquet", "stats": stats, **facts} for number in range(1000)]
    commit(tmp_path, [{"add": file} for file in files])
    source = gw.sources.delta(tmp_path, filters=[("id", ">", 5)])
    rows, position = epoch(source)
    assert rows == []
    assert source.describe(position) == {"version": 1}
    assert source.latest(position) == position


def test_versions_that_go_while_the_query_runs_say_so(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 1))
    source = gw.sources.delta(tmp_path)
    _, position = epoch(source)
    for number in range(1, 4):
        append(tmp_path, numbers(number, number + 1))
    DeltaTable(str(tmp_path)).create_checkpoint()
    assert source.latest(position)["version"] == 4
    other = gw.sources.delta(tmp_path)
    other.open(position)
    for number in range(3):
        (tmp_path / "_delta_log" / f"{number:020}.json").unlink()
    with pytest.raises(SourceError, match=r"Version 1 of .* is no longer in its log"):
        other.latest(position)
    shutil.rmtree(tmp_path)
    with pytest.raises(SourceError, match="There is no Delta table"):
        other.latest(position)


def test_a_column_may_have_the_name_of_a_statistic(tmp_path: Path) -> None:
    make_table(tmp_path, [field("numRecords", "long")])
    pq.write_table(pa.table({"numRecords": [7, 8]}), tmp_path / "a.parquet")
    stats = '{"minValues": {"numRecords": 7}, "maxValues": {"numRecords": 8}, "numRecords": 2}'
    facts = {"partitionValues": {}, "size": 500, "modificationTime": 0, "dataChange": True}
    commit(tmp_path, [{"add": {"path": "a.parquet", "stats": stats, **facts}}])
    gw.testing.check_source(gw.sources.delta(tmp_path))


def test_a_column_that_is_renamed_is_refused_until_a_restart(tmp_path: Path) -> None:
    columns = [field("id", "long", mapped("c1", 1))]
    properties = {"delta.columnMapping.mode": "name"}
    make_table(tmp_path, columns, versions=(2, 5), properties=properties)
    add_file(tmp_path, pa.table({"c1": [1]}))
    source = gw.sources.delta(tmp_path)
    _, position = epoch(source)
    renamed = {"type": "struct", "fields": [field("key", "long", mapped("c1", 1))]}
    metadata = {"id": position["table"], "schemaString": json.dumps(renamed)}
    commit(tmp_path, [{"metaData": {**metadata, "configuration": properties}}])
    add_file(tmp_path, pa.table({"c1": [2]}))
    with pytest.raises(SourceError, match=r"renames \(to 'key'\) column 'id'"):
        source.latest(position)
    assert epoch(gw.sources.delta(tmp_path), position)[0] == [{"key": 2}]

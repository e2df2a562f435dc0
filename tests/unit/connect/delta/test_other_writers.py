"""Rows of other writers in a Delta table: what each mode of the sink may touch."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.delta_logs import add_file, commit, field, live_files, make_table
from tests.support.epoch_rows import SCHEMA, Committed, EpochRows, context, rows
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.connect.delta.sink import DeltaSink

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

Row = tuple[str | None, int | None, str | None]
THEIRS: list[Row] = [
    *[("a", 1, "u"), ("a", 2, "v"), ("b", 3, "w"), ("b", 3, "w"), ("", 4, None)],
    *[(None, 5, "x"), (None, 6, None), ("c", None, "y")],
]
GONE: Row = ("a", 7, "gone")  # in a deletion vector
time_of = dt.datetime.fromisoformat
OURS = {"a": 100, "n": 200}


def table_of_others(path: Path, *, partitioned: bool, note: bool = True) -> Path:
    """Duplicates, null keys, a deletion vector, and a file that lacks a column."""
    columns = [field("plane", "string"), field("total", "long")]
    if note:
        columns.append(field("note", "string"))
    make_table(
        path,
        columns,
        reader_features=["deletionVectors"],
        properties={"delta.enableDeletionVectors": "true"},
        partition_by=["plane"] if partitioned else [],
    )
    names = ["plane", "total", "note"] if note else ["plane", "total"]

    def add(part: list[Row], plane: str | None, deleted: list[int]) -> None:
        columns = dict(zip(names, zip(*part, strict=True), strict=False))
        data = {
            "plane": pa.array(columns["plane"], pa.string()),
            "total": pa.array(columns["total"], pa.int64()),
            "note": pa.array([row[2] for row in part], pa.string()),
        }
        kept = [name for name in names if not (partitioned and name == "plane")]
        if note and all(row[2] is None for row in part):
            kept.remove("note")  # as a file from before the column was added
        values = {"plane": plane} if partitioned else {}
        add_file(path, pa.table({name: data[name] for name in kept}), values, deleted=deleted)

    if not partitioned:
        add([*THEIRS, GONE], None, [len(THEIRS)])
        return path
    for plane in ("a", "b", None, "c"):
        part = [row for row in THEIRS if row[0] == plane]
        add([*part, GONE] if plane == "a" else part, plane, [len(part)] if plane == "a" else [])
    return path


def opened(path: Path, mode: Any, schema: pa.Schema = SCHEMA) -> DeltaSink:
    sink = gw.sinks.delta(path, mode="upsert" if mode == "upsert" else "append")
    sink.open(context(schema=schema, complete=mode == "complete"))
    return sink


def read(path: Path) -> list[str]:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    found = pa.table(table.execute("SELECT * FROM t"))
    return sorted(str(tuple(row.values())) for row in found.to_pylist())


def texts(expected: list[Row]) -> list[str]:
    return sorted(str(row) for row in expected)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("partitioned", [False, True])
def test_an_upsert_touches_rows_of_its_keys_alone(
    tmp_path: Path, partitioned: bool, compacted: bool
) -> None:
    path = table_of_others(tmp_path / "t", partitioned=partitioned)
    there = [row for row in THEIRS if not (partitioned and row[0] == "")]
    sink = opened(path, "upsert")
    for epoch in range(2):
        if compacted:
            deltalake.DeltaTable(path).optimize.compact()
        sink.deliver(rows(epoch, *((plane, total + epoch) for plane, total in OURS.items())))
    touched = [(p, OURS["a"] + 1, note) if p == "a" else (p, t, note) for p, t, note in there]
    assert read(path) == texts([*touched, ("n", OURS["n"] + 1, None)])
    sink.deliver(rows(2, (None, 300)))
    touched = [(p, 300, note) if p is None else (p, t, note) for p, t, note in touched]
    assert read(path) == texts([*touched, ("n", OURS["n"] + 1, None)])


@pytest.mark.parametrize("partitioned", [False, True])
def test_appended_rows_touch_none_and_complete_results_replace_all(
    tmp_path: Path, partitioned: bool
) -> None:
    path = table_of_others(tmp_path / "t", partitioned=partitioned, note=False)
    before = read(path)
    opened(path, "append").deliver(rows(0, ("a", 100), (None, 200)))
    assert read(path) == sorted([*before, "('a', 100)", "(None, 200)"])
    opened(path, "complete").deliver(rows(1, ("a", 1)))
    assert read(path) == ["('a', 1)"]


def test_a_roll_back_is_refused_rather_than_take_rows_of_others_along(tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", partitioned=False, note=False)
    before = read(path)
    sink = opened(path, "upsert")
    sink.deliver(rows(0, ("a", 100)))
    shared = read(path)
    sink.deliver(rows(1, ("b", 100)))
    deltalake.DeltaTable(path).optimize.compact()
    opened(path, "upsert").roll_back(Committed(latest_epoch=0), -1)
    assert read(path) == shared
    assert shared != before
    sink = opened(path, "upsert")
    sink.deliver(rows(1, ("b", 100)))
    add_file(path, pa.table({"plane": ["z"], "total": [1]}))
    there = read(path)
    with pytest.raises(SinkError, match="written by another writer"):
        opened(path, "upsert").roll_back(Committed(latest_epoch=0), -1)
    assert read(path) == there


def test_values_that_the_sink_cannot_have_survive_a_merge(tmp_path: Path) -> None:
    inner = {"type": "map", "keyType": "string", "valueType": "binary", "valueContainsNull": True}
    columns = [
        *[field("plane", "string"), field("total", "long"), field("at", "timestamp")],
        *[field("m", inner), field("d", "decimal(38,38)"), field("v", "variant")],
    ]
    path = make_table(tmp_path / "t", columns, reader_features=["variantType"])
    variant = pa.struct(
        [pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)]
    )
    theirs = pa.table(
        {
            "plane": ["a", "b"],
            "total": [1, 2],
            "at": pa.array([time_of("9999-12-31"), time_of("0001-01-01")], pa.timestamp("us")),
            "m": pa.array([[("x", b"\xff")], [("y", None)]], pa.map_(pa.string(), pa.binary())),
            "d": pa.array([Decimal("-0.1"), None], pa.decimal128(38, 38)),
            "v": pa.array([{"metadata": b"\x01\0\0", "value": b"\x0c\x05"}, None], variant),
        }
    )
    # Spark writes timestamps of 96 bits, which do not fit nanoseconds in 64.
    add_file(path, theirs, use_deprecated_int96_timestamps=True)
    before = {row.split(",")[0]: row.split(",")[2:] for row in read(path)}
    opened(path, "upsert").deliver(rows(0, ("a", 100), ("n", 1)))
    after = {row.split(",")[0]: row.split(",")[2:] for row in read(path)}
    assert {key: after[key] for key in before} == before
    assert "9999" in str(after)


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1, None]),
    (pa.string(), ["", "a", "A", "ä", "a ", "\0", "x" * 100, None]),
    (pa.float64(), [float("nan"), 0.0, float("inf"), -1.5, 5e-324, None]),
    (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("-0.05"), Decimal("0.00"), Decimal("1.25")]),
    (pa.binary(), [b"", b"\0", b"ab", b"\xff", None]),
    (pa.bool_(), [True, False, None]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us"), [time_of("0001-01-01"), time_of("1969-12-31 23:59:59.000001"), None]),
]


@pytest.mark.parametrize("seed", range(rounds(1, 3)))
@pytest.mark.parametrize(("dtype", "values"), KEYS, ids=lambda value: str(value)[:20])
def test_drawn_epochs_between_writes_of_others_leave_what_a_dictionary_holds(
    tmp_path: Path, dtype: pa.DataType, values: list[Any], seed: int
) -> None:
    drawn = random.Random(f"{seed} {dtype}")
    schema = pa.schema([("part", pa.int64()), ("k", dtype), ("n", pa.int64())])
    path = tmp_path / "t"
    sink = gw.sinks.delta(path, mode="upsert", keys=["k"], partition_by="part")
    sink.open(context(schema=schema, keys=()))
    held: list[tuple[str, int]] = []  # key and value of each row
    for epoch in range(8):
        keys = drawn.sample(values, drawn.randint(1, len(values)))
        new = {repr(key): epoch * 100 + place for place, key in enumerate(keys)}
        table = pa.table(
            [[drawn.randint(0, 2) for _ in keys], pa.array(keys, dtype), list(new.values())],
            schema=schema,
        )
        sink.deliver(EpochRows(epoch=epoch, table=table))
        known = {key for key, _ in held}
        held = [(key, new.get(key, number)) for key, number in held]
        held += [(key, number) for key, number in new.items() if key not in known]
        if drawn.random() < 0.6:  # another writer appends, also keys that are there
            keys = drawn.choices(values, k=3)
            theirs = pa.table([[1, 2, 1], pa.array(keys, dtype), [-epoch] * 3], schema=schema)
            deltalake.write_deltalake(path, theirs, mode="append")
            held += [(repr(key), -epoch) for key in keys]
        if drawn.random() < 0.4:
            deltalake.DeltaTable(path).optimize.compact()
        if drawn.random() < 0.3:
            sink = gw.sinks.delta(path, mode="upsert", keys=["k"])
            sink.open(context(schema=schema, keys=()))
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        found = pa.table(query.execute("SELECT k, n FROM t")).to_pylist()
        assert sorted((repr(row["k"]), row["n"]) for row in found) == sorted(held), seed


def test_a_file_that_others_delete_while_epochs_come_stays_deleted(tmp_path: Path) -> None:
    path = table_of_others(tmp_path / "t", partitioned=False, note=False)
    sink = opened(path, "upsert")
    sink.deliver(rows(0, ("n", 1)))
    removed = [file for file in live_files(path) if file["path"].startswith("theirs")]
    actions = [
        {
            "remove": {
                "path": file["path"],
                "dataChange": True,
                "deletionTimestamp": 1,
                **{key: file[key] for key in ("deletionVector", "partitionValues") if key in file},
                "extendedFileMetadata": True,
                "size": file["size"],
            }
        }
        for file in removed
    ]
    commit(path, actions, "DELETE")
    sink.deliver(rows(1, ("a", 2)))
    assert read(path) == ["('a', 2)", "('n', 1)"]

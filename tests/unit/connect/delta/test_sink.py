"""Delivery to a Delta Lake table: one commit an epoch, once each, whoever else commits."""

from __future__ import annotations

import datetime as dt
import math
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.connect.delta.sink import DeltaSink
    from godwit.sinks.sink import SinkContext

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None), ("N3", 31)),
]
APPENDED = [
    *[(None, 3), (None, None), ("N1", 1), ("N1", 10), ("N1", 11)],
    *[("N2", 2), ("N3", 30), ("N3", 31)],
]
UPSERTED = [(None, None), ("N1", 11), ("N2", 2), ("N3", 31)]
REPLACED = [(None, None), ("N1", 10), ("N1", 11), ("N3", 30), ("N3", 31)]
MODES = [
    pytest.param({"mode": "append"}, False, APPENDED, id="append"),
    pytest.param({"mode": "upsert"}, False, UPSERTED, id="upsert"),
    pytest.param({"mode": "append"}, True, REPLACED, id="complete"),
]


def read(path: Path) -> list[tuple[Any, ...]]:
    table = pa.table(
        deltalake.QueryBuilder()
        .register("t", deltalake.DeltaTable(path))
        .execute("SELECT plane, total FROM t")
    )
    pairs = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(pairs, key=lambda row: (row[0] or "", row[1] is None, row[1] or 0))


def opened(path: Path, ctx: SinkContext | None = None, **options: Any) -> DeltaSink:

    sink = gw.sinks.delta(path, **options)
    sink.open(ctx or context())
    return sink


def test_the_table_says_which_epoch_it_holds(tmp_path: Path) -> None:
    for _ in range(2):
        opened(tmp_path).deliver(EPOCHS[1])
    table = deltalake.DeltaTable(tmp_path)
    assert table.transaction_version("godwit-query-1-by_plane") == 1
    assert table.version() == 1


def test_partitioned_tables_are_merged_as_well(tmp_path: Path) -> None:
    sink = opened(tmp_path, mode="upsert", keys=["plane"], partition_by="plane")
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert deltalake.DeltaTable(tmp_path).metadata().partition_columns == ["plane"]
    assert read(tmp_path) == UPSERTED


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.timestamp("us", "Etc/UTC"), [0, 1, None]),
        (pa.timestamp("us"), [0, 1, None]),
        (pa.date32(), [0, 1, None]),
        (pa.int64(), [0, 1, None]),
        (pa.string(), ["", "x", None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.0, 0.5, None]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.decimal128(9, 2), [0, 1, None]),
    ],
    ids=str,
)
def test_several_keys_are_merged_whatever_their_types(
    tmp_path: Path, dtype: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("plane", pa.string()), ("at", dtype), ("total", pa.int64())])
    keys = ("plane", "at")
    sink = opened(tmp_path, context(schema=schema, keys=keys), mode="upsert")
    at = pa.array([value for value in values for _ in (0, 1)], dtype)
    for epoch in range(2):
        table = pa.table([["N1", None] * 3, at, [epoch] * 6], schema=schema)
        sink.deliver(EpochRows(epoch=epoch, table=table))
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert found.column("total").to_pylist() == [1] * 6


def test_keys_with_odd_names_are_merged(tmp_path: Path) -> None:
    schema = pa.schema([('the "plane".x', pa.string()), ("Total", pa.int64())])
    sink = opened(tmp_path, context(schema=schema, keys=schema.names[:1]), mode="upsert")
    for number in range(2):
        sink.deliver(EpochRows(epoch=number, table=pa.table([["N1"], [number]], schema=schema)))
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert found.column("Total").to_pylist() == [1]


def test_floats_that_are_one_key_to_spark_have_one_row(tmp_path: Path) -> None:
    schema = pa.schema([("f", pa.float64()), ("total", pa.int64())])
    other_nan = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0]
    sink = opened(tmp_path, context(schema=schema, keys=("f",)), mode="upsert")
    for number, keys in enumerate([[0.0, math.nan], [-0.0, other_nan, 0.0]]):
        table = pa.table([keys, [10 * number + n for n in range(len(keys))]], schema=schema)
        sink.deliver(EpochRows(epoch=number, table=table))
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert sorted(found.column("total").to_pylist()) == [11, 12]


# --- whose epochs they are ------------------------------------------------------------------


def up_to(sink: DeltaSink, last: int, history: str = "h", first: int = 0) -> None:
    for number in range(first, last + 1):
        sink.deliver(replace(rows(number, (f"{history}{number}", number)), history=history))


def planes(path: Path) -> list[str]:
    return sorted(plane for plane, _ in read(path))


def test_a_table_says_which_epoch_of_which_history_it_holds(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.last_delivered() is None
    up_to(sink, 3)
    sink.deliver(rows(4))
    deltalake.DeltaTable(tmp_path).optimize.compact()
    assert opened(tmp_path).last_delivered() == point(3)
    assert opened(tmp_path, context(query_id="other")).last_delivered() is None


def test_a_table_that_was_restored_gets_the_epochs_that_are_gone(tmp_path: Path) -> None:
    up_to(opened(tmp_path), 5)
    deltalake.DeltaTable(tmp_path).restore(3)
    restored = opened(tmp_path)
    assert restored.last_delivered() == point(2)
    up_to(restored, 4, "b", first=3)
    assert opened(tmp_path).last_delivered() == point(4, "b")
    up_to(opened(tmp_path), 6, "b", first=4)
    assert len(planes(tmp_path)) == 7
    deltalake.DeltaTable(tmp_path).restore(1)
    assert opened(tmp_path).last_delivered() == point(0)
    deltalake.DeltaTable(tmp_path).restore(0)
    nothing = opened(tmp_path)
    last = nothing.last_delivered()
    assert last is not None
    assert last.epoch == -1
    up_to(nothing, 1)
    assert planes(tmp_path) == ["h0", "h1"]


def log_files(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("year", [2001, 2100])
@pytest.mark.parametrize("version", [0, 1, 3, 5])
def test_a_restore_by_timestamp_is_understood_whatever_the_times_in_the_log(
    tmp_path: Path, year: int, version: int
) -> None:
    up_to(opened(tmp_path), 5)
    # The library goes by the times of log files: all before those in the log, or all after them.
    began_s = dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()
    for number, file in enumerate(log_files(tmp_path)):
        os.utime(file, (began_s + 60 * number,) * 2)
    table = deltalake.DeltaTable(tmp_path)
    table.restore(dt.datetime.fromtimestamp(began_s + 60 * version + 30, dt.UTC))
    expected = [f"h{epoch}" for epoch in range(version)]
    assert planes(tmp_path) == expected
    restored = opened(tmp_path)
    last = restored.last_delivered()
    assert last is not None
    assert last.epoch == version - 1
    up_to(restored, 6, "b")
    assert planes(tmp_path) == [*(f"b{epoch}" for epoch in range(version, 7)), *expected]


def test_of_a_restore_further_back_than_the_log_nothing_is_taken_for_delivered(
    tmp_path: Path,
) -> None:
    up_to(opened(tmp_path), 5)
    table = deltalake.DeltaTable(tmp_path)
    table.restore(3)
    table.create_checkpoint()
    for file in log_files(tmp_path)[:-1]:
        file.unlink()
    last = opened(tmp_path).last_delivered()
    assert last is not None
    assert last.epoch == -1


def test_epochs_before_the_log_begins_outlive_a_restore_within_it(tmp_path: Path) -> None:
    up_to(opened(tmp_path), 2)
    for number in range(3):
        table = rows(0, (f"theirs{number}", 1)).table
        deltalake.write_deltalake(tmp_path, table, mode="append")
    table = deltalake.DeltaTable(tmp_path)
    table.restore(5)
    table.create_checkpoint()
    for file in log_files(tmp_path)[:5]:
        file.unlink()
    last = opened(tmp_path).last_delivered()
    assert last is not None
    assert last.epoch == 2


def test_a_table_that_is_restored_during_a_run_is_noticed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    up_to(sink, 3)
    deltalake.DeltaTable(tmp_path).restore(3)
    with pytest.raises(SinkError, match="was restored to a version before the last epoch"):
        up_to(sink, 4)
    assert planes(tmp_path) == ["h0", "h1", "h2"]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_is_rolled_back_to_where_two_histories_parted(tmp_path: Path, mode: str) -> None:
    up_to(opened(tmp_path, mode=mode), 7)
    deltalake.DeltaTable(tmp_path).optimize.compact()
    sink = opened(tmp_path, mode=mode)
    sink.roll_back(Committed(latest_epoch=4, history="b", parted={"h": 2}), -1)
    assert sink.last_delivered() == point(2)
    up_to(sink, 4, "b", first=3)
    assert planes(tmp_path) == ["b3", "b4", "h0", "h1", "h2"]


def test_a_table_of_which_nothing_is_shared_is_rolled_back_to_before_its_first_epoch(
    tmp_path: Path,
) -> None:
    deltalake.write_deltalake(tmp_path, rows(0, ("before", 1)).table)
    up_to(opened(tmp_path), 3)
    sink = opened(tmp_path)
    sink.roll_back(Committed(latest_epoch=4, history="b"), -1)
    last = sink.last_delivered()
    assert last is not None
    assert last.epoch == -1
    assert planes(tmp_path) == ["before"]


def test_what_others_wrote_since_is_not_undone(tmp_path: Path) -> None:
    up_to(opened(tmp_path), 3)
    deltalake.write_deltalake(tmp_path, rows(0, ("theirs", 1)).table, mode="append")
    up_to(opened(tmp_path), 5, first=4)
    sink = opened(tmp_path)
    with pytest.raises(SinkError, match="was written by another writer, and would be undone too"):
        sink.roll_back(Committed(latest_epoch=2), -1)
    sink.roll_back(Committed(latest_epoch=4), -1)
    assert planes(tmp_path) == ["h0", "h1", "h2", "h3", "h4", "theirs"]


def test_epochs_that_an_earlier_version_committed_go_by_their_numbers(tmp_path: Path) -> None:
    opened(tmp_path)
    properties = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction("godwit-query-1-by_plane", 3)]
    )
    deltalake.write_deltalake(
        tmp_path, rows(3, ("old", 1)).table, mode="append", commit_properties=properties
    )
    sink = opened(tmp_path)
    last = sink.last_delivered()
    assert last is not None
    assert (last.epoch, last.digest) == (3, "")
    with pytest.raises(SinkError, match="does not show which versions this query wrote"):
        sink.roll_back(Committed(latest_epoch=2), -1)
    up_to(sink, 4)
    assert planes(tmp_path) == ["h4", "old"]


def test_a_new_writer_leaves_what_is_there_and_is_known_again(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    up_to(sink, 5)
    sink.continue_after(point(2, "b"))
    assert sink.last_delivered() == point(2, "b")
    up_to(opened(tmp_path), 4, "b", first=2)
    assert planes(tmp_path) == ["b3", "b4", "h0", "h1", "h2", "h3", "h4", "h5"]
    assert opened(tmp_path).last_delivered() == point(4, "b")


# --- crashes and rivals ---------------------------------------------------------------------


@pytest.mark.parametrize(("options", "complete", "expected"), MODES)
@pytest.mark.parametrize("after", [False, True], ids=["before commit", "after commit"])
def test_a_crash_around_the_commit_neither_loses_nor_doubles_rows(
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
    options: dict[str, str],
    complete: bool,
    expected: list[tuple[Any, ...]],
) -> None:
    from godwit.connect.delta.sink import DeltaSink

    ctx = context(complete=complete)
    sink = opened(tmp_path, ctx, **options)
    sink.deliver(EPOCHS[0])
    before = read(tmp_path)
    commit = DeltaSink._commit_rows

    def crash(self: DeltaSink, *args: Any, **options: Any) -> None:
        if after:
            commit(self, *args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_commit_rows", crash)
        with pytest.raises(KeyboardInterrupt):
            sink.deliver(EPOCHS[1])
    assert read(tmp_path) == (expected if after else before)
    opened(tmp_path, ctx, **options).deliver(EPOCHS[1])
    assert read(tmp_path) == expected


@pytest.mark.parametrize(("options", "complete", "expected"), MODES)
def test_a_rival_that_delivers_the_epoch_while_it_is_written_makes_no_second_copy(
    tmp_path: Path, options: dict[str, str], complete: bool, expected: list[tuple[Any, ...]]
) -> None:
    ctx = context(complete=complete)
    sink, rival = (opened(tmp_path, ctx, **options) for _ in range(2))
    sink.deliver(EPOCHS[0])

    def overtake(_: int) -> None:
        thread = threading.Thread(target=rival.deliver, args=(EPOCHS[1],))
        thread.start()
        thread.join(60)

    overtaken = EpochRows(epoch=1, table=EPOCHS[1].table, on_batch=overtake)
    sink.deliver(overtaken)
    assert read(tmp_path) == expected
    assert deltalake.DeltaTable(tmp_path).version() == 2


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_queries_that_write_to_one_table_at_once_lose_nothing(tmp_path: Path, mode: str) -> None:
    sinks = [opened(tmp_path, context(query_id=str(n)), mode=mode) for n in range(3)]

    def deliver(number: int, sink: DeltaSink) -> None:
        for epoch in range(3):
            sink.deliver(rows(epoch, (f"N{number}", epoch)))

    threads = [threading.Thread(target=deliver, args=pair) for pair in enumerate(sinks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    newest = [(f"N{number}", 2) for number in range(3)]
    every = [(f"N{number}", epoch) for number in range(3) for epoch in range(3)]
    assert read(tmp_path) == (every if mode == "append" else newest)


# --- what open refuses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("plane", pa.string())], r"total \(long in the rows, absent in the table\)"),
        (
            [("plane", pa.string()), ("total", pa.int32())],
            r"total \(long in the rows, integer in the table\)",
        ),
        (
            [*context().schema, pa.field("day", pa.date32(), nullable=False)],
            r"day \(absent in the rows, date in the table\)",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused(
    tmp_path: Path, columns: list[Any], message: str
) -> None:
    deltalake.DeltaTable.create(tmp_path, schema=pa.schema(columns))
    with pytest.raises(SinkError, match=message):
        opened(tmp_path)


def test_an_upsert_starts_again_beside_a_column_that_others_added(tmp_path: Path) -> None:
    opened(tmp_path, mode="upsert").deliver(rows(0, ("N1", 1)))
    note = deltalake.Field("note", deltalake.schema.PrimitiveType("string"))
    deltalake.DeltaTable(tmp_path).alter.add_columns([note])
    deltalake.DeltaTable(tmp_path).update(updates={"note": "'theirs'"})
    sink = opened(tmp_path, mode="upsert")
    sink.deliver(rows(1, ("N1", 2), ("N2", 5)))
    sink.continue_after(point(3))
    sink.deliver(rows(4, ("N2", 6)))
    table = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert table.sort_by("plane").to_pylist() == [
        {"plane": "N1", "total": 2, "note": "theirs"},
        {"plane": "N2", "total": 6, "note": None},
    ]


@pytest.mark.parametrize("columns", [{"plane": ["N1"]}, {"plane": ["N1"], "total": ["1"]}])
def test_an_upsert_loses_no_values_where_others_take_a_column_away(
    tmp_path: Path, columns: dict[str, list[str]]
) -> None:
    sink = opened(tmp_path, mode="upsert")
    sink.deliver(rows(0, ("N1", 1)))
    theirs = pa.table(columns)
    deltalake.write_deltalake(tmp_path, theirs, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkError, match=r"other columns: total \(long in the rows"):
        sink.deliver(rows(1, ("N1", 2)))
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table() == theirs


def test_types_that_delta_lacks_are_widened_and_accepted_again(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            *[("a", pa.uint8()), ("b", pa.uint16()), ("c", pa.uint32()), ("d", pa.uint64())],
            *[("e", pa.large_string()), ("f", pa.timestamp("ns")), ("g", pa.float16())],
            *[("h", pa.dictionary(pa.int8(), pa.string())), ("i", pa.timestamp("us", "UTC"))],
            *[("j", pa.list_(pa.struct([("k", pa.decimal128(9, 2))]))), ("l", pa.binary())],
        ]
    )
    largest: list[list[Any]] = [
        [2**8 - 1],
        [2**16 - 1],
        [2**32 - 1],
        [2**64 - 1],
        ["x"],
        [1_000],
        [0.5],
        ["y"],
    ]
    arrays = [
        pa.array(values, schema.field(n).type)
        for n, values in enumerate([*largest, [7], [[{"k": None}]], [b"\0"]])
    ]
    table = pa.table(arrays, schema=schema)
    for number in range(2):
        opened(tmp_path, context(schema=schema, keys=())).deliver(
            EpochRows(epoch=number, table=table)
        )
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    assert found.num_rows == 2
    assert [int(found.column(n)[1].as_py()) for n in "abcd"] == [v[0] for v in largest[:4]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pa.struct([("x", pa.uint64())]), {"x": 2**64 - 1}),
        (pa.list_(pa.uint16()), [2**16 - 1]),
        (pa.map_(pa.string(), pa.uint32()), [("x", 2**32 - 1)]),
        (pa.list_(pa.struct([("x", pa.list_(pa.uint8()))])), [{"x": [255]}]),
    ],
    ids=str,
)
@pytest.mark.parametrize("lanes", [False, True])
def test_types_that_delta_lacks_are_widened_however_deep(
    tmp_path: Path, dtype: pa.DataType, value: Any, lanes: bool
) -> None:
    schema = pa.schema([("plane", pa.string()), ("value", dtype)])
    table = pa.table([["N1"], pa.array([value], dtype)], schema=schema)
    sink = opened(tmp_path, context(schema=schema), lane_bytes=0)
    writer = sink.lane_writer()
    assert writer is not None
    files = writer.write(table, epoch=0, place=0) if lanes else None
    rest = schema.empty_table() if lanes else table
    sink.deliver(EpochRows(epoch=0, table=rest, written=files or ()))
    (found,) = deltalake.DeltaTable(tmp_path).to_pyarrow_table().column("value").to_pylist()
    assert found == value


def test_a_type_that_delta_cannot_hold_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("plane", pa.string()), ("at", pa.time64("us"))])
    with pytest.raises(SinkError, match=r"of type time64.* cannot be a column of a Delta table"):
        opened(tmp_path / "out", context(schema=schema))


def test_keys_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("planes", pa.list_(pa.string())), ("total", pa.int64())])
    with pytest.raises(SinkError, match=r"column 'planes' of type list.* cannot be a key"):
        opened(tmp_path / "out", context(schema=schema, keys=("planes",)), mode="upsert")
    assert not (tmp_path / "out").exists()


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="cannot open"):
        opened(tmp_path / "file" / "out")


def test_a_commit_that_fails_is_an_error_that_names_the_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    log = tmp_path / "_delta_log"
    for file in log.iterdir():
        file.unlink()
    log.rmdir()
    log.touch()
    with pytest.raises(SinkError, match="epoch 4 cannot be committed") as caught:
        sink.deliver(rows(4, ("N1", 1)))
    assert caught.value.context["epoch"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "replace"}, "mode 'replace'"), ({"keys": ["plane"]}, "keys mean nothing")],
)
def test_options_that_are_never_right_are_refused_at_once(
    options: dict[str, Any], message: str
) -> None:

    with pytest.raises(SinkError, match=message):
        gw.sinks.delta("out", **options)


def test_a_key_that_the_merge_cannot_read_is_refused_at_open(tmp_path: Path) -> None:
    schema = pa.schema([("pla`ne", pa.string()), ("total", pa.int64())])
    ctx = context(schema=schema, keys=("pla`ne",))
    with pytest.raises(SinkError, match="backtick"):
        opened(tmp_path, ctx, mode="upsert")
    sink = opened(tmp_path, ctx)
    sink.deliver(EpochRows(epoch=0, table=pa.table([["a"], [1]], schema=schema)))
    assert deltalake.DeltaTable(tmp_path).count() == 1


def test_a_table_with_constraints_is_refused_at_open(tmp_path: Path) -> None:
    opened(tmp_path)
    deltalake.DeltaTable(tmp_path).alter.add_constraint({"positive": "total > 0"})
    with pytest.raises(SinkError, match=r"has constraints \(positive\)"):
        opened(tmp_path)


def test_rows_that_the_table_cannot_take_are_found_before_they_are_committed(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("plane", pa.string()), ("day", pa.date32())])
    deltalake.DeltaTable.create(
        tmp_path,
        schema=pa.schema([pa.field("plane", pa.string()), pa.field("day", pa.date32(), False)]),
        partition_by=["plane"],
    )
    sink = opened(tmp_path, context(schema=schema))
    rows = pa.record_batch(
        {"plane": ["a", "b" * 300, "c", "d"], "day": pa.array([0, 0, 10**7, None], pa.date32())}
    )
    found = sink.row_check()(rows)
    assert found is not None
    assert found.rows.tolist() == [1, 2, 3]


def test_secrets_in_options_and_uris_are_not_shown(tmp_path: Path) -> None:

    options = {"aws_secret_access_key": "hunter2", "conditional_put": "hunter2"}
    for path in ("abfss://container:hunter2@account/x", f"{tmp_path}/hunter2"):
        sink = gw.sinks.delta(path, storage_options=options)
        assert "container:hunter2" not in repr(sink)
        (tmp_path / "hunter2").write_text("no directory")
        with pytest.raises(SinkError) as caught:
            sink.open(context())
        assert "hunter2@" not in f"{caught.value!r} {vars(caught.value)}"
        assert caught.value.__cause__ is None

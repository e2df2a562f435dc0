"""Partition values of Delta tables: read back as they were by every reader, or never written."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from tests.support.delta_logs import add_file, field, make_table, read_by_log
from tests.support.epoch_rows import EpochRows, context
from tests.support.number_source import Numbers

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.outputs import OpenSinks, staged_sinks
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from godwit.checkpoint.records import CommitRecord, SinkRecord
    from godwit.connect.delta.sink import DeltaSink
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.staging import StagedSink

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

Row = tuple[Any, int]
TIMES = [
    dt.datetime.fromisoformat(text)
    for text in (
        *("0001-01-01", "1969-12-31 23:59:59.999999", "2024-01-01 00:00:00.100000"),
        *("2024-02-29", "9999-12-31 23:59:59.999999"),
    )
]
TEXTS = [
    *["a", "A", "a b", " a", "a ", "a%20b", "50%", "#", "+", "/", "a/b", "=", "k=a", ".", ".."],
    *[
        "'",
        '"',
        "`",
        "\\",
        "{x}",
        "[1]",
        "ä",
        "ä",
        "日本",
        "😀",
        "null",
        "NULL",
        "NaN",
        "\t",
        "\r\n",
    ],
    *["\0", "\x7f", "\u2028", "?", "*", ":", "a:b", "&", "<", "|", "$", "@", "^", "%2F", ";", ","],
    *["!", "(", "\ufeff", "true", "1", "01", "2024-01-01", "-", "x" * 250, "ä" * 41],
]
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.decimal128(10, 0), [Decimal(1), Decimal(-1), Decimal(0), Decimal(10**10 - 1)]),
    (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float64(), [math.nan, 0.0, math.inf, -math.inf, 1e21, -1e-7, 0.1, 2.0**-140, 1e240]),
    (pa.float32(), [math.nan, 0.0, math.inf, -math.inf, 0.5, 2.0**-149, -(2.0**127)]),
    (pa.date32(), [time.date() for time in TIMES]),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "UTC"), [time.replace(tzinfo=dt.UTC) for time in TIMES]),
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(2**15), 2**15 - 1]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.string(), TEXTS),
]


def schema_of(dtype: pa.DataType) -> pa.Schema:
    return pa.schema([("k", dtype), ("n", pa.int64())])


def opened(path: Path, dtype: pa.DataType, **options: Any) -> DeltaSink:
    sink = gw.sinks.delta(path, **{"partition_by": "k", "lane_bytes": 0, **options})
    sink.open(context(schema=schema_of(dtype), keys=("k",)))
    return sink


def by_sql(path: Path) -> list[dict[str, Any]]:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return list(pa.table(table.execute("SELECT * FROM t")).to_pylist())


def by_arrow(path: Path) -> list[dict[str, Any]]:
    return list(deltalake.DeltaTable(path).to_pyarrow_table().to_pylist())


def comparable(rows: Sequence[Row]) -> list[tuple[str, int]]:
    def text(value: Any) -> str:
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return str(value.astimezone(dt.UTC).replace(tzinfo=None))
        return str(int(value)) if isinstance(value, Decimal) else repr(value)

    return sorted((text(value), number) for value, number in rows)


def readers(dtype: pa.DataType) -> list[Callable[[Path], list[dict[str, Any]]]]:
    return [by_sql, by_arrow, lambda path: read_by_log(path, schema_of(dtype))]


def check(path: Path, dtype: pa.DataType, expected: Sequence[Row]) -> None:
    for read in readers(dtype):
        assert comparable([(row["k"], row["n"]) for row in read(path)]) == comparable(expected)


@pytest.mark.parametrize(
    ("dtype", "values", "mode", "lanes"),
    [
        (*case, *way)
        for number, case in enumerate(TYPES)
        # What the driver appends is written as an upsert is.
        for way in [("append", True), (("upsert", "append")[number % 2], False)]
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_are_read_back_by_every_reader_over_epochs_and_compactions(
    tmp_path: Path, dtype: pa.DataType, values: list[Any], mode: Any, lanes: bool
) -> None:
    path = tmp_path / "t"
    sink = opened(path, dtype, mode=mode)
    writer = sink.lane_writer()
    appended: list[Row] = []
    newest: dict[str, Row] = {}
    for epoch, keys in enumerate([[*values, None], [*values[::2], None], [*values, None]]):
        rows = [(key, 100 * epoch + place) for place, key in enumerate(keys)]
        appended += rows
        newest |= {repr(key): (key, number) for key, number in rows}
        table = pa.table(
            [pa.array(keys, dtype), [number for _, number in rows]], schema=schema_of(dtype)
        )
        assert sink.row_check()(table.combine_chunks().to_batches()[0]) is None
        if lanes and writer is not None:
            files = writer.write(table, epoch=epoch, place=0) or ()
            sink.deliver(EpochRows(epoch=epoch, table=table.slice(0, 0), written=files))
        else:
            sink.deliver(EpochRows(epoch=epoch, table=table))
        deltalake.DeltaTable(path).optimize.compact()
    check(path, dtype, list(newest.values()) if mode == "upsert" else appended)
    deltalake.DeltaTable(path).create_checkpoint()
    assert len(by_sql(path)) == len(newest if mode == "upsert" else appended)


@pytest.mark.parametrize(
    "dtype",
    [
        *[pa.decimal128(10, 2), pa.decimal128(38, 38), pa.binary(), pa.large_binary()],
        *[pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.map_(pa.string(), pa.int64())],
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_type_that_is_not_read_back_is_refused_before_there_is_a_table(
    tmp_path: Path, dtype: pa.DataType, mode: Any
) -> None:
    sink = gw.sinks.delta(
        tmp_path / "t", mode=mode, partition_by="k", keys=["n"] * (mode == "upsert") or None
    )
    with pytest.raises(SinkError, match=r"'k' of type .* cannot partition the table"):
        sink.open(context(schema=schema_of(dtype), keys=()))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", ["x" * 229, "é" * 115, "a:b", " a"])
def test_a_name_that_no_directory_can_have_is_refused(tmp_path: Path, name: str) -> None:
    sink = gw.sinks.delta(tmp_path / "t", partition_by=name)
    with pytest.raises(SinkError, match=r"cannot partition the table, since deltalake cannot use"):
        sink.open(context(schema=pa.schema([(name, pa.int8()), ("n", pa.int64())]), keys=()))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("partition_by", [["k", "k"], ["k", "n"]])
def test_columns_that_leave_none_for_files_are_refused(
    tmp_path: Path, partition_by: list[str]
) -> None:
    with pytest.raises(SinkError, match=r"cannot partition the table: list each column once"):
        opened(tmp_path / "t", pa.string(), partition_by=partition_by)
    assert not (tmp_path / "t").exists()


def test_an_existing_table_is_refused_for_its_partition_column_too(tmp_path: Path) -> None:
    columns = [field("k", "decimal(10,2)"), field("n", "long")]
    path = make_table(tmp_path / "t", columns, partition_by=["k"])
    with pytest.raises(SinkError, match=r"'k' of type decimal\(10,2\) cannot partition the table"):
        opened(path, pa.decimal128(10, 2))


@pytest.mark.parametrize(
    ("dtype", "values", "rejected"),
    [
        (
            pa.string(),
            ["a", "", None, "__HIVE_DEFAULT_PARTITION__", "x" * 253, "x" * 254, "ä" * 42, "ä" * 43],
            [1, 3, 5, 7],
        ),
        (pa.large_string(), ["", " " * 84, " " * 85], [0, 2]),
        (pa.dictionary(pa.int8(), pa.string()), ["", "a"], [0]),
        (
            pa.float64(),
            [
                1e252,
                1e253,
                -1e251,
                -1e252,
                5e-324,
                1.7976931348623157e308,
                math.inf,
                math.nan,
                None,
            ],
            [1, 3, 4, 5],
        ),
    ],
    ids=str,
)
def test_a_value_that_partitions_cannot_keep_is_found_before_the_commit(
    tmp_path: Path, dtype: pa.DataType, values: list[Any], rejected: list[int]
) -> None:
    sink = opened(tmp_path / "t", dtype)
    rows = pa.record_batch([pa.array(values, dtype), [0] * len(values)], schema=schema_of(dtype))
    found = sink.row_check()(rows)
    assert found is not None
    assert found.rows.tolist() == rejected
    kept = [place for place in range(len(values)) if place not in rejected]
    table = pa.Table.from_batches([rows]).take(kept)
    sink.deliver(EpochRows(epoch=0, table=table))
    assert len(by_sql(tmp_path / "t")) == len(kept)


@pytest.mark.parametrize(
    ("dtype", "delta_type", "texts", "value"),
    [
        (
            pa.timestamp("us", "UTC"),
            "timestamp",
            ["2024-02-29 00:00:00", "2024-02-29 00:00:00.000000", "2024-02-29T00:00:00.000000Z"],
            dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
        ),
        (pa.float64(), "double", ["Infinity", "inf"], math.inf),
        (pa.float64(), "double", ["1.0E10", "10000000000"], 1e10),
        (pa.decimal128(10, 0), "decimal(10,0)", ["7"], Decimal(7)),
        (pa.bool_(), "boolean", ["true"], True),
    ],
    ids=str,
)
def test_an_upsert_finds_keys_in_partitions_that_others_wrote(
    tmp_path: Path, dtype: pa.DataType, delta_type: str, texts: list[str], value: Any
) -> None:
    columns = [field("k", delta_type), field("n", "long")]
    path = make_table(tmp_path / "t", columns, partition_by=["k"])
    for text in texts:
        add_file(path, pa.table({"n": [1]}), {"k": text})
    add_file(path, pa.table({"n": [2]}), {"k": None})
    sink = opened(path, dtype, mode="upsert")
    sink.deliver(
        EpochRows(epoch=0, table=pa.table([pa.array([value], dtype), [9]], schema=schema_of(dtype)))
    )
    assert comparable([(row["k"], row["n"]) for row in by_sql(path)]) == comparable(
        [*[(value, 9) for _ in texts], (None, 2)]
    )


class Run(LocalRun):
    """A run of a flow whose sinks are open."""

    def open_sinks(self, flow: CompiledFlow) -> list[StagedSink]:
        self.opened = OpenSinks(flow, self.log, cast("Any", None), renamed={})
        return staged_sinks(flow)

    def deliver(self, record: CommitRecord, *, again: bool = False) -> None:
        self.opened.deliver(record, again=again)

    def sink_records(self) -> dict[str, SinkRecord]:
        return self.opened.records()


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_with_an_empty_partition_go_to_the_sink_of_rejected_rows(
    tmp_path: Path, mode: Any
) -> None:
    def name(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = ["" if key == "b" else key for key in rows.column("key").to_pylist()]
        return rows.set_column(rows.schema.get_field_index("key"), "key", pa.array(texts))

    flow = gw.Flow("totals", num_key_groups=4)
    numbers = flow.source("numbers", Numbers(9, most=3)).map(
        name, schema="key string, number bigint, ts timestamp"
    )
    totals = numbers.key_by("key").compute(name="totals", total=gw.sum("number"))
    rejected = gw.sinks.memory()
    sink = gw.sinks.delta(tmp_path / "t", mode=mode, partition_by="key", rejects=rejected)
    flow.sink("out", totals, sink)
    run = Run(
        flow.compiled(),
        CheckpointStorage.open(str(tmp_path / "checkpoint")),
        executors={"a": 2},
        settings=Lanes(local_dir=str(tmp_path / "local")),
    )
    run.sources.open()
    while run.read_epoch() is not None:
        pass
    run.loop.finish_delivery()
    run.sources.close()
    run.opened.close()
    assert {row["key"] for row in by_sql(tmp_path / "t")} == {"a", "c"}
    found = rejected.table().to_pylist()
    assert len(found) == 3
    assert all("stands for null in a partition column" in row["reason"] for row in found)

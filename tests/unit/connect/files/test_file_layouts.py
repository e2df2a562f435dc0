"""Files as other programs write them: layouts of Arrow, old timestamps and calendars of Parquet."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

UTC = dt.UTC
SPARK = b"org.apache.spark."
ID = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


def rows_of(kind: str, path: Path, schema: Any = None) -> list[dict[str, Any]]:
    source = getattr(gw.sources, kind)(path, schema=schema)
    source.open(None)
    begin = source.start()
    splits = source.splits(begin, source.latest(begin), 1)
    batches = [b for split in splits for b in source.read(split, source.schema.names)]
    return [row for batch in batches for row in batch.to_pylist()]


def write_arrow(rows: pa.Table, path: Path, name: str = "a.arrow") -> None:
    with pa.ipc.new_file(path / name, rows.schema) as writer:
        writer.write_table(rows)


def test_views_of_lists_and_runs_of_views_are_read_also_without_a_schema(tmp_path: Path) -> None:
    values = [["a"], None, ["b", "c"], []]
    views = pa.array(values, pa.list_view(pa.string_view()))
    ends = pa.array([1, 3, 4], pa.int32())
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(["x", None, "y"], pa.string_view()))
    numbers = pa.array([0, None, 1, 0], pa.int8())
    dictionary = pa.DictionaryArray.from_arrays(numbers, pa.array([b"u", b"v"], pa.binary_view()))
    write_arrow(pa.table({"l": views, "r": runs, "d": dictionary}), tmp_path)
    right = [
        {"l": element, "r": run, "d": item}
        for element, run, item in zip(
            values, ["x", None, None, "y"], [b"u", None, b"v", b"u"], strict=True
        )
    ]
    declared = {"l": "array<string>", "r": "string", "d": "binary"}
    views_declared = {"l": views.type, "r": runs.type, "d": dictionary.type}
    for schema in (None, declared, views_declared):
        assert rows_of("arrow", tmp_path, schema) == right
        source = gw.sources.arrow(tmp_path, schema=schema)
        assert source.schema.types == [pa.list_(pa.string()), pa.string(), pa.binary()]


def extensions() -> pa.Table:
    ids = pa.array([ID.bytes, None], pa.uuid())
    of_ids = pa.ListArray.from_arrays(pa.array([0, 1, 2]), ids)
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2, 0], pa.int8()))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None]))
    return pa.table({"u": ids, "l": of_ids, "b": flags, "j": texts})


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_extension_types_are_read_as_their_values(kind: str, tmp_path: Path) -> None:
    if kind == "arrow":
        write_arrow(extensions(), tmp_path)
    else:
        pq.write_table(extensions(), tmp_path / "a.parquet")
    as_text = "u string, l array<string>, b boolean, j string"
    for schema in (None, as_text):
        assert rows_of(kind, tmp_path, schema) == [
            {"u": str(ID), "l": [str(ID)], "b": True, "j": '{"a":1}'},
            {"u": None, "l": [None], "b": False, "j": None},
        ]
    got = rows_of(kind, tmp_path, "u binary, l array<binary>, b boolean")[0]
    assert got == {"u": ID.bytes, "l": [ID.bytes], "b": True}


@pytest.mark.parametrize("type_", ["bigint", "array<string>"])
def test_a_type_that_does_not_fit_is_refused_by_the_true_reason(type_: str, tmp_path: Path) -> None:
    write_arrow(extensions(), tmp_path)
    with pytest.raises(SourceError, match="is not converted to"):
        rows_of("arrow", tmp_path, {"u": type_})


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_file_of_another_format_is_called_so(kind: str, tmp_path: Path) -> None:
    rows, stream = pa.table({"n": [1]}), io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    (tmp_path / "a").write_bytes(stream.getvalue())
    with pytest.raises(SourceError, match="It is an Arrow stream; write it as an Arrow file"):
        rows_of(kind, tmp_path, "n bigint")
    if kind == "arrow":
        pq.write_table(rows, tmp_path / "a")
    else:
        write_arrow(rows, tmp_path, "a")
    with pytest.raises(SourceError, match=r"It is an? (Arrow|Parquet) file, which gw\.sources"):
        rows_of(kind, tmp_path)


@pytest.mark.parametrize("kind", ["arrow", "parquet", "json", "csv"])
def test_a_column_without_values_has_the_type_of_a_later_file(kind: str, tmp_path: Path) -> None:
    empty, full = pa.table({"n": [1], "v": pa.nulls(1)}), pa.table({"n": [2], "v": [0.5]})
    for name, rows in (("a", empty), ("b", empty), ("c", full)):
        if kind == "parquet":
            pq.write_table(rows, tmp_path / f"{name}.parquet")
        elif kind == "arrow":
            write_arrow(rows, tmp_path, f"{name}.arrow")
        else:
            value = "null" if name < "c" else "0.5"
            text = f'{{"n":{rows["n"][0]},"v":{value}}}\n'
            if kind == "csv":
                text = f"n,v\n{rows['n'][0]},{value.replace('null', '')}\n"
            (tmp_path / f"{name}.{kind}").write_text(text)
    assert sorted(str(row["v"]) for row in rows_of(kind, tmp_path)) == ["0.5", "None", "None"]


def nested(times: list[dt.datetime], zone: str | None = None) -> pa.Table:
    dtype = pa.timestamp("us", zone)
    struct = pa.struct([("d", pa.string()), ("t", dtype), ("m", pa.map_(pa.string(), dtype))])
    return pa.table(
        {
            "n": range(len(times)),
            "t": pa.array(times, dtype),
            "l": pa.array([[[time], None] for time in times], pa.list_(pa.list_(dtype))),
            "s": pa.array([{"d": "x", "t": t, "m": [("k", t)]} for t in times], struct),
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_times_and_intervals_without_a_schema_are_in_microseconds(
    kind: str, tmp_path: Path
) -> None:
    times = {
        "t": pa.array([[86_399_999_999_999]], pa.list_(pa.time64("ns"))),
        "s": pa.array([1000], pa.time32("ms")),
        "d": pa.array([-1001], pa.duration("ns")),
    }
    rows = pa.table(times)
    if kind == "arrow":
        write_arrow(rows, tmp_path)
    else:
        pq.write_table(rows, tmp_path / "a.parquet")
    (row,) = rows_of(kind, tmp_path)
    assert row["t"] == [dt.time(23, 59, 59, 999999)]
    assert (row["s"], row["d"]) == (dt.time(0, 0, 1), dt.timedelta(microseconds=-1))
    source = getattr(gw.sources, kind)(tmp_path)
    assert source.schema.types == [pa.list_(pa.time64("us")), pa.time64("us"), pa.duration("us")]


def test_nested_dictionaries_are_read_from_several_row_groups(tmp_path: Path) -> None:
    values = ["a", None, "b", "c", "a", "d"]
    text = pa.array(values).dictionary_encode()
    rows = pa.table({"v": pa.StructArray.from_arrays([text], ["x"])})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=4)
    for schema in (None, "v struct<x string>"):
        assert rows_of("parquet", tmp_path, schema) == [{"v": {"x": value}} for value in values]


def test_timestamps_of_96_bits_are_instants_at_any_depth(tmp_path: Path) -> None:
    times = [dt.datetime(y, 1, 1, 2) for y in (2024, 1, 9999, 1582)]  # noqa: DTZ001
    rows = nested(times)
    pq.write_table(
        rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, row_group_size=3
    )
    moments = [time.replace(tzinfo=UTC) for time in times]
    schema = (
        "n bigint, t timestamp, l array<array<timestamp>>, "
        "s struct<d string, t timestamp, m map<string, timestamp>>"
    )
    for declared in (None, schema):
        got = rows_of("parquet", tmp_path, declared)
        assert got == nested(moments, "UTC").to_pylist()


def write_old(path: Path, footer: dict[bytes, bytes], rows: pa.Table, **options: Any) -> None:
    footer = {SPARK + key if b"." not in key else key: value for key, value in footer.items()}
    with pq.ParquetWriter(path / "a.parquet", rows.schema, store_schema=False, **options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(footer)


# Days since 1970 of dates of the hybrid calendar, as Spark 2 and LEGACY write them.
JULIAN = {-354_280: dt.date(1000, 1, 1), -719_164: dt.date(1, 1, 1), -141_428: dt.date(1582, 10, 4)}
JULIAN |= {-141_427: dt.date(1582, 10, 15), -354_221: dt.date(1000, 3, 1), 0: dt.date(1970, 1, 1)}


@pytest.mark.parametrize(
    ("footer", "is_old"),
    [
        ({b"version": b"2.4.8"}, True),
        ({b"version": b"4.3.0", b"legacyDateTime": b""}, True),
        ({b"version": b"3.0.0"}, False),
        ({b"version": b"4.3.0", b"legacyINT96": b""}, False),
        ({}, False),
        ({b"writer.date.proleptic": b"false"}, True),
        ({b"writer.date.proleptic": b"true"}, False),
    ],
)
def test_dates_of_the_old_calendar_are_those_dates_of_today(
    footer: dict[bytes, bytes], is_old: bool, tmp_path: Path
) -> None:
    days = pa.array([*JULIAN, None], pa.int32()).cast(pa.date32())
    lists = pa.ListArray.from_arrays(pa.array(range(len(days) + 1)), days)
    write_old(tmp_path, footer, pa.table({"d": days, "l": lists}))
    for schema in (None, "d date, l array<date>"):
        source = gw.sources.parquet(tmp_path, schema=schema)
        source.open(None)
        begin = source.start()
        (split,) = source.splits(begin, source.latest(begin), 1)
        (batch,) = source.read(split, ["d", "l"])
        right = pa.array([*JULIAN.values(), None], pa.date32()) if is_old else days
        assert batch["d"].equals(right)
        assert batch["l"].flatten().equals(right)


@pytest.mark.parametrize(
    ("is_96_bits", "unit", "per_second"),
    [(True, "us", 1_000_000), (False, "us", 1_000_000), (False, "ms", 1000)],
)
def test_instants_of_the_old_calendar_are_read_if_they_were_written_in_utc(
    is_96_bits: bool, unit: str, per_second: int, tmp_path: Path
) -> None:
    day = 86_400 * per_second
    stored = pa.array([-354_280 * day + 1, -30_000 * day, 0, None], pa.timestamp(unit, "UTC"))
    rows = pa.table({"t": stored, "l": pa.ListArray.from_arrays(pa.array(range(5)), stored)})
    key = b"legacyINT96" if is_96_bits else b"legacyDateTime"
    footer = {b"version": b"4.3.0", key: b""}
    options = {"use_deprecated_int96_timestamps": is_96_bits}
    write_old(tmp_path, {**footer, b"timeZone": b"UTC"}, rows, **options)
    right = [
        dt.datetime(1000, 1, 1, 0, 0, 0, 1_000_000 // per_second, UTC),
        dt.datetime(1970, 1, 1, tzinfo=UTC) - dt.timedelta(days=30_000),
        *(dt.datetime(1970, 1, 1, tzinfo=UTC), None),
    ]
    assert rows_of("parquet", tmp_path) == [{"t": time, "l": [time]} for time in right]
    for zone in ({}, {b"timeZone": b"Europe/Paris"}):
        write_old(tmp_path, {**footer, **zone}, rows, **options)
        with pytest.raises(SourceError, match="timestamp before 1900 by Spark's old calendar"):
            rows_of("parquet", tmp_path)
    write_old(tmp_path, footer, rows.slice(2), **options)  # none is so early
    assert [row["t"] for row in rows_of("parquet", tmp_path)] == right[2:]
    write_old(tmp_path, {b"version": b"4.3.0"}, rows.slice(1), **options)
    assert [row["t"] for row in rows_of("parquet", tmp_path)] == right[1:]

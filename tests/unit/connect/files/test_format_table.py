"""The table of formats: each type, at each depth, as each writer writes it, is read or refused.

A cell is a writer, a type, a depth, and whether the type is declared. Its value is what was
written; `REFUSED` has the cells that are refused, each with its reason, and `INFERRED` the values
of text formats whose types are taken from the file. A writer of another format is one more entry
of `WRITERS`.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.columns.arrays import convert_leaves, with_leaves
from godwit.columns.types import to_schema
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)  # noqa: DTZ001
EARLY = dt.datetime(1, 1, 1)  # noqa: DTZ001
LATE = dt.datetime(2200, 12, 31, 1, 2, 3)  # noqa: DTZ001
TYPES: dict[str, tuple[str, list[Any]]] = {  # name → declared type, values
    "boolean": ("boolean", [True, False]),
    "tinyint": ("tinyint", [-128, 127]),
    "int": ("int", [-(2**31), 1]),
    "bigint": ("bigint", [2**63 - 1, -(2**63)]),
    "float": ("float", [0.5, -1024.25]),
    "double": ("double", [0.1, 1e300]),
    "string": ("string", ['é"', ""]),
    "binary": ("binary", [b"\x00\xff", b"b"]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": ("timestamp", [MOMENT.replace(tzinfo=UTC), EARLY.replace(tzinfo=UTC)]),
    "timestamp of seconds": ("timestamp", [LATE.replace(tzinfo=UTC)]),
    "timestamp_ntz": ("timestamp_ntz", [MOMENT, EARLY]),
    "timestamp_ntz of seconds": ("timestamp_ntz", [LATE]),
    "time": ("time", [dt.time(23, 59, 59, 999999), dt.time(0)]),
    "decimal": ("decimal(20, 2)", [Decimal("123456789012345678.25"), Decimal("-0.01")]),
    "interval": (
        "interval day to second",
        [dt.timedelta(days=1, microseconds=1), -dt.timedelta(seconds=1)],
    ),
}
DEPTHS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # declared type, and a value in it
    "top": ("{}", lambda value: value),
    "list": ("array<{}>", lambda value: [value, None]),
    "struct": ("struct<a {}>", lambda value: {"a": value}),
    "map": ("map<string, {}>", lambda value: [("k", value), ("l", None)]),
}


@dataclass(frozen=True)
class Writer:
    """A program or library that writes a file, or messages."""

    format: str
    write: Callable[[pa.Table, Path], None]
    nested: bool = True
    infers: bool = True  # a reader may ask for no type
    first_year: int = 1

    def read(self, path: Path, schema: pa.Schema | None) -> list[Any]:
        if self.format == "messages":
            assert schema is not None
            lines = (path / "a.messages").read_bytes().splitlines()
            decoded = gw.formats.json(schema).decode(lines, ["v"])
            if decoded.bad:
                raise ValueError(decoded.bad)
            return list(decoded.rows["v"].to_pylist())
        source = getattr(gw.sources, self.format)(path, schema=schema)
        source.open(None)
        begin = source.start()
        splits = source.splits(begin, source.latest(begin), 2)
        batches = [b for split in splits for b in source.read(split, ["v"])]
        return [value for batch in batches for value in batch["v"].to_pylist()]


def write_ipc(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path / "a.arrow", rows.schema) as writer:
        writer.write_table(rows)


def in_layout(layout: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Table, Path], None]:
    """Writer of Arrow files whose leaves are in a layout."""

    def write(rows: pa.Table, path: Path) -> None:
        column = rows["v"].combine_chunks()
        samples: dict[pa.DataType, pa.DataType] = {}

        def leaf(dtype: pa.DataType) -> pa.DataType:
            samples[dtype] = layout(pa.array([], dtype)).type
            return samples[dtype]

        target = with_leaves(column.type, leaf)
        laid = convert_leaves(column, target, lambda array, _: layout(array))
        write_ipc(pa.table({"v": laid, "n": rows["n"]}), path)

    return write


def in_views(array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type):
        return array.cast(pa.string_view())
    return array.cast(pa.binary_view()) if pa.types.is_binary(array.type) else array


def in_runs(array: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(array) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


def in_dictionaries(array: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int16()), array)


def in_nanoseconds(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("ns", array.type.tz))
    return array.cast(pa.duration("ns")) if pa.types.is_duration(array.type) else array


def as_json(value: Any, dtype: pa.DataType) -> Any:
    """Value as a program in Python writes it to JSON."""
    if value is None:
        return None
    if isinstance(value, dt.timedelta):
        seconds = value // dt.timedelta(microseconds=1)
        return f"{'-' * (seconds < 0)}PT{abs(seconds) // 10**6}.{abs(seconds) % 10**6:06}S"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if pa.types.is_map(dtype):
        return {key: as_json(item, dtype.item_type) for key, item in value}
    if isinstance(value, dict):
        return {dtype.field(0).name: as_json(value["a"], dtype.field(0).type)}
    if isinstance(value, list):
        return [as_json(element, dtype.value_type) for element in value]
    return value


def write_json(name: str) -> Callable[[pa.Table, Path], None]:
    def write(rows: pa.Table, path: Path) -> None:
        dtype = rows.schema.field("v").type
        lines = [json.dumps({"v": as_json(v, dtype)}) + "\n" for v in rows["v"].to_pylist()]
        (path / name).write_text("".join(lines))

    return write


def by_duckdb(kind: str) -> Callable[[pa.Table, Path], None]:
    def write(rows: pa.Table, path: Path) -> None:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("written", rows)
            connection.execute(f"COPY written TO '{path}/a.{kind}' (FORMAT {kind})")

    return write


def by_polars(kind: str) -> Callable[[pa.Table, Path], None]:
    def write(rows: pa.Table, path: Path) -> None:
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        if kind == "parquet":
            frame.write_parquet(path / "a.parquet")
        elif kind == "arrow":
            frame.write_ipc(path / "a.arrow")
        elif kind == "json":
            frame.write_ndjson(path / "a.json")
        else:
            frame.write_csv(path / "a.csv")

    return write


WRITERS = {
    "Parquet by pyarrow": Writer("parquet", lambda t, p: pq.write_table(t, p / "a.parquet")),
    "Parquet of format 1, 96 bits, no Arrow schema": Writer(
        "parquet",
        lambda t, p: pq.write_table(
            t,
            p / "a.parquet",
            version="1.0",
            use_deprecated_int96_timestamps=True,
            store_schema=False,
        ),
    ),
    "Parquet by polars": Writer("parquet", by_polars("parquet")),
    "Parquet by DuckDB": Writer("parquet", by_duckdb("parquet")),
    "Arrow by pyarrow": Writer("arrow", write_ipc),
    "Arrow of views": Writer("arrow", in_layout(in_views)),
    "Arrow of runs": Writer("arrow", in_layout(in_runs)),
    "Arrow of dictionaries": Writer("arrow", in_layout(in_dictionaries)),
    "Arrow of nanoseconds": Writer("arrow", in_layout(in_nanoseconds), first_year=1678),
    "Arrow by polars": Writer("arrow", by_polars("arrow")),
    "JSON by Python": Writer("json", write_json("a.json")),
    "JSON by polars": Writer("json", by_polars("json")),
    "JSON by DuckDB": Writer("json", by_duckdb("json")),
    "JSON messages": Writer("messages", write_json("a.messages"), infers=False),
    "CSV by pyarrow": Writer("csv", lambda t, p: pacsv.write_csv(t, p / "a.csv"), nested=False),
    "CSV by polars": Writer("csv", by_polars("csv"), nested=False),
    "CSV by DuckDB": Writer("csv", by_duckdb("csv"), nested=False),
}

# What a writer itself refuses.
NOT_WRITTEN = {
    ("Parquet by DuckDB", "interval"),
    ("JSON by polars", "binary"),
    ("CSV by polars", "binary"),
    ("CSV by polars", "interval"),
    ("CSV by pyarrow", "binary"),
}
_OLD = "Parquet of format 1, 96 bits, no Arrow schema"
# Writer, type → reason why it is not read as the type that was written.
REFUSED = {
    (_OLD, "timestamp_ntz"): "its timestamps have a time zone, so declare it as timestamp",
    (_OLD, "timestamp_ntz of seconds"): "have a time zone, so declare it as timestamp",
    (_OLD, "interval"): r"int64 is not converted to duration\[us\]",
    ("JSON by DuckDB", "binary"): "is not Base64",
    ("JSON by DuckDB", "interval"): "is not a duration",
    ("CSV by DuckDB", "interval"): "is not a duration",
    ("CSV by pyarrow", "interval"): "is not a duration",
}
# CSV has no form of its own for bytes, so a column has those of the text.
AS_TEXT = {("CSV by DuckDB", "binary"): [rb"\x00\xFF", b"b", None]}


def without_schema(writer: Writer, name: str, path: Path, right: list[Any]) -> list[Any]:
    """Values of a file whose types are taken from it."""
    if writer.format == "json":  # Python's reader of JSON is the oracle
        lines = (path / "a.json").read_text().splitlines()
        values = [json.loads(line)["v"] for line in lines]
        if name == "date":
            return [mapped(value, dt.datetime.fromisoformat) for value in values]
        if name.endswith("of seconds"):
            return [mapped(value, parse_seconds) for value in values]
        return values
    if writer.format == "csv":
        with (path / "a.csv").open(newline="") as file:
            texts = [row[0] or None for row in csv.reader(file)][1:]
        if name in {"binary", "time", "timestamp", "timestamp_ntz"}:
            return texts  # of a year that Arrow does not look for
        if name == "interval":
            return [int(t) if t and t.lstrip("-").isdigit() else t for t in texts]
        return [float(t) if t else None for t in texts] if name == "decimal" else right
    if writer is WRITERS[_OLD] and name.startswith("timestamp_ntz"):
        return [mapped(value, lambda local: local.replace(tzinfo=UTC)) for value in right]
    if writer is WRITERS[_OLD] and name == "interval":
        return [mapped(value, lambda span: span // dt.timedelta(microseconds=1)) for value in right]
    return right


def parse_seconds(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text + ":00" * (text[-3] == "+"))


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Value with a function applied to what is in it."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(element, function) for element in value]
    if isinstance(value, tuple):  # of a map
        return value[0], mapped(value[1], function)
    return function(value)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("writer_name", WRITERS)
def test_every_cell_is_right_or_refused_by_its_reason(
    writer_name: str, depth: str, tmp_path: Path
) -> None:
    writer = WRITERS[writer_name]
    cells, wrong = 0, []
    for name, (ddl, values) in TYPES.items():
        if (writer_name, name) in NOT_WRITTEN or (depth != "top" and not writer.nested):
            continue
        declared, wrap = DEPTHS[depth]
        schema = to_schema(f"v {declared.format(ddl)}", where="The table")
        moved = [
            v.replace(year=1700)
            if name.startswith("timestamp") and v.year < writer.first_year
            else v
            for v in values
        ]
        right = [*[wrap(value) for value in moved], None]
        path = tmp_path / name.replace(" ", "_")
        path.mkdir()
        column = pa.array(right, schema.field("v").type)
        writer.write(pa.table({"v": column, "n": pa.array(range(len(column)))}), path)
        for types in (schema, None) if writer.infers else (schema,):
            cells += 1
            try:
                got: Any = writer.read(path, types)
            except (SourceError, ValueError) as error:
                got = str(error)
            expected: Any = right
            if types is None:
                expected = without_schema(writer, name, path, right)
            elif (reason := REFUSED.get((writer_name, name))) is not None:
                expected = re.search(reason, str(got)) and got
            elif (texts := AS_TEXT.get((writer_name, name))) is not None:
                expected = texts
            if got != expected:
                wrong.append(f"{name}, {'declared' if types else 'inferred'}: {got} != {expected}")
    assert not wrong, "\n".join(wrong)
    assert cells or not writer.nested


def test_the_table_has_every_format() -> None:
    formats = {writer.format for writer in WRITERS.values()}
    assert formats == {"parquet", "arrow", "json", "csv", "messages"}
    assert not (REFUSED.keys() | NOT_WRITTEN) - {(w, name) for w in WRITERS for name in TYPES}

"""Sources whose rows are computed where they are read."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.adopt.csv_scans import SparkCsv
from godwit.adopt.json_scans import SparkJson
from godwit.adopt.own_sources import ComputedSource
from godwit.adopt.parquet_scans import SparkParquet
from godwit.adopt.scanned_files import ScannedFiles
from godwit.adopt.stateless import ComputedColumn, Projection, Selection, StatelessPart
from godwit.adopt.text_scans import SparkText
from godwit.connect.files.file_formats import ParquetFormat
from godwit.library.aggregates.expressions import Column, IsNull, Not

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.connect.files.file_formats import FileFormat

INPUTS = (("#1", pa.int64()), ("#2", pa.string()))
OUTPUTS = (("#1", "n", pa.int64()), ("#3", "name", pa.string()))
CHOICE = Projection(
    columns=(
        ComputedColumn(key="#1", expression=Column("#1"), text="n"),
        ComputedColumn(key="#3", expression=Column("#2"), text="s"),
    )
)
NAMED = Selection(condition=Not(IsNull(Column("#2"))), text="s IS NOT NULL")
ROWS = [(1, "a"), (2, None), (3, "c"), (4, None), (5, "e")]


def part(*steps: Any) -> StatelessPart:
    return StatelessPart(inputs=INPUTS, steps=steps, outputs=OUTPUTS)


def source(*parts: StatelessPart) -> tuple[gw.sources.MemorySource, ComputedSource]:
    """Source in memory, and the one that is computed from it."""
    memory = gw.sources.memory("s string, n bigint, more double")
    return memory, ComputedSource(memory, ["n", "s"], parts)


@pytest.mark.parametrize(
    ("parts", "numbers"),
    [
        ([part(CHOICE)], [1, 2, 3, 4, 5]),
        ([part(NAMED, CHOICE)], [1, 3, 5]),
        ([part(NAMED, CHOICE), part(CHOICE)], [1, 3, 5, 1, 2, 3, 4, 5]),
    ],
)
def test_rows_are_those_of_all_parts_of_the_rows_that_are_read(
    parts: list[StatelessPart], numbers: list[int]
) -> None:
    memory, computed = source(*parts)
    memory.add([{"n": n, "s": s, "more": 0.5} for n, s in ROWS])
    assert computed.schema.names == ["n", "name"]
    assert computed.identity == memory.identity
    computed.open(None)
    end = computed.latest(computed.start())
    (split,) = computed.splits(computed.start(), end, 1)
    assert split.rows is not None
    assert split.rows == len(numbers) if split.exact else split.rows >= len(numbers)
    copy = pickle.loads(pickle.dumps(computed))  # as another process reads it
    got = pa.Table.from_batches(copy.read(split, ["name", "n"]))
    assert got.schema.names == ["name", "n"]
    assert sorted(got["n"].to_pylist()) == sorted(numbers)


def test_a_computed_source_keeps_the_contract_of_sources() -> None:
    memory, computed = source(part(NAMED, CHOICE))

    def add() -> None:
        memory.add([{"n": n, "s": s, "more": 0.5} for n, s in ROWS])

    add()
    gw.testing.check_source(computed, add=add, exact_limits=False, max_rows=50)


def test_a_file_that_an_epoch_cut_goes_on_before_newer_ones(tmp_path: Path) -> None:
    def write(number: int) -> None:
        path = tmp_path / f"{number}.parquet"
        rows = pa.table({"n": pa.array(range(10 * number, 10 * number + 10), pa.int64())})
        pq.write_table(rows, path, row_group_size=5)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    schema = pa.schema([("n", pa.int64())])
    newest = ScannedFiles(
        ParquetFormat(),
        str(tmp_path),
        schema=schema,
        partitions=pa.schema([]),
        pattern=None,
        is_pattern=False,
        max_files_per_epoch=None,
        max_bytes_per_epoch=None,
        newest_first=True,
    )
    write(0)
    write(1)
    newest.open(None)
    position, epochs = newest.start(), []
    for number in range(8):
        if number == 1:
            write(2)
        end = newest.latest(position, limit=5)
        splits = newest.splits(position, end, 1)
        tables = [pa.Table.from_batches(newest.read(split, ["n"])) for split in splits]
        rows = [n for table in tables for n in table["n"].to_pylist()]
        position = end
        epochs.append(rows)
    firsts = [rows[0] if rows else None for rows in epochs]
    assert sorted(n for rows in epochs for n in rows) == list(range(30))
    assert firsts == [10, 15, 20, 25, 0, 5, None, None]


@pytest.mark.parametrize(
    ("file_format", "content"),
    [
        (SparkText(), b"x\ny"),
        (
            SparkCsv(
                pa.schema([("v", pa.int64())]),
                separator=",",
                header=True,
                null_text="",
                doubled=False,
                fails=False,
                zone="UTC",
            ),
            b"v\nx\n2\n",
        ),
        (SparkJson(mode="permissive", zone="UTC"), b'{"v": 1}\n{"": {}}\n'),
        (SparkParquet(), None),
    ],
)
def test_rows_of_files_are_read_though_only_columns_of_their_directories_are(
    tmp_path: Path, file_format: FileFormat, content: bytes | None
) -> None:
    directory = tmp_path / "day=3"
    directory.mkdir()
    if content is None:
        pq.write_table(pa.table({"v": [1, 2]}), directory / "0")
    else:
        (directory / "0").write_bytes(content)
    days = pa.schema([("day", pa.int32())])
    files = ScannedFiles(
        file_format,
        str(tmp_path),
        schema=days,
        partitions=days,
        pattern=None,
        is_pattern=False,
        max_files_per_epoch=None,
        max_bytes_per_epoch=None,
        newest_first=False,
    )
    (split,) = files.splits(files.start(), files.latest(files.start()), 1)
    rows = pa.Table.from_batches(files.read(split, ["day"]))
    assert rows["day"].to_pylist() == [3, 3]

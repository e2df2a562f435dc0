"""Names of partition directories, and files that take turns being open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import SCHEMA

from godwit.connect.files import parquet_files
from godwit.connect.files.parquet_files import EpochFiles, partition_directories

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_with_the_same_values_share_a_directory_and_keep_their_order() -> None:
    keys = pa.record_batch({"a": ["x", "y", "x", "x"], "b": [1, 1, 2, 1]})
    found = {name: rows.tolist() for name, rows in partition_directories(keys)}
    assert found == {"a=x/b=1": [0, 3], "a=y/b=1": [1], "a=x/b=2": [2]}


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ("plain", "k=plain"),
        ("a b.c-d_e", "k=a b.c-d_e"),
        ("żółw", "k=żółw"),
        ("1:2/3=4", "k=1%3A2%2F3%3D4"),
        ("50%", "k=50%25"),
        ("\n", "k=%0A"),
        ("", "k=__HIVE_DEFAULT_PARTITION__"),
        (None, "k=__HIVE_DEFAULT_PARTITION__"),
        (False, "k=false"),
        (-3, "k=-3"),
    ],
)
def test_values_are_written_as_spark_writes_them(value: object, directory: str) -> None:
    ((found, _),) = partition_directories(pa.record_batch({"k": [value]}))
    assert found == directory


def test_many_columns_of_many_values_do_not_run_out_of_numbers() -> None:
    values = [str(i) for i in range(2_000)]
    keys = pa.record_batch({f"c{n}": values for n in range(8)})
    assert len(list(partition_directories(keys))) == 2_000


def test_more_partitions_than_may_be_open_are_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "_OPEN_FILES", 2)
    files = EpochFiles(
        filesystem=pafs.LocalFileSystem(),
        directory=str(tmp_path),
        schema=SCHEMA,
        partition_by=("plane",),
        compression="snappy",
    )
    with files:
        for total in range(2):
            planes = ["N1", "N2", "N3"]
            files.write(pa.record_batch([planes, [total] * 3], schema=SCHEMA))
    parts = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet"))
    assert parts == [f"plane=N{n}/part-{part:05d}.parquet" for n in (1, 2, 3) for part in (0, 1)]
    assert pq.read_table(tmp_path).column("total").to_pylist() == [0, 1] * 3

"""Partition columns: a directory's name has an end, and so has the number of directories."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context

from godwit.connect.files.parquet_files import directory_name, file_row_check
from godwit.model.errors import SinkError


def rejected(planes: list[str | None], limit: int = 100) -> list[int]:
    rows = pa.record_batch({"plane": planes, "total": pa.nulls(len(planes), pa.int64())})
    found = file_row_check(context(), ("plane",), limit)(rows)
    return [] if found is None else found.rows.tolist()


def test_a_value_whose_directory_no_file_system_takes_is_found() -> None:
    room = 255 - len("plane=")
    planes = ["x" * room, "x" * (room + 1), "ż" * 124, "ż" * 125, "/" * 83, "/" * 84, None, ""]
    assert [len(directory_name("plane", p).encode()) > 255 for p in planes] == [
        *(False, True, False, True, False, True, False, False)
    ]
    assert rejected(planes) == [1, 3, 5]


def test_a_text_that_stands_for_null_in_directories_is_found() -> None:
    assert rejected(["a", "__HIVE_DEFAULT_PARTITION__", None, ""]) == [1]


def test_more_partitions_than_allowed_refuse_the_epoch() -> None:
    assert rejected(["a", "b", "b", None], limit=3) == []
    with pytest.raises(SinkError, match="of 4 partitions by 'plane'") as caught:
        rejected(["a", "b", "c", None], limit=3)
    assert "max_partitions=4" in caught.value.remedy


def test_only_partition_columns_name_directories() -> None:
    rows = EpochRows(epoch=0, table=pa.table({"plane": ["x" * 300], "total": [1]}))
    check = file_row_check(context(), (), 1)
    assert check(next(rows.batches())) is None

"""Own sources read the files of each batch that Spark reads: the newest ones first, or by size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.support.native import settings

import godwit as gw
from godwit.model.errors import UnsupportedQueryError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def _batches(writer: Any, checkpoint: Path) -> list[tuple[int, str]]:
    """Run a query over all its files; return the number of the batch of each row, and the row."""
    rows: list[tuple[int, str]] = []

    def collect(batch: DataFrame, number: int) -> None:
        rows.extend((number, row.k) for row in batch.collect())

    query = writer.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return sorted(rows)


def test_newest_files_come_first_and_batches_have_a_size_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for number, size in enumerate((90, 10, 20, 30, 40, 10)):
        file = place / f"{number}.json"
        file.write_text(f'{{"k": "{number}"}}'.ljust(size))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def stream(**options: int) -> DataFrame:
        return spark.readStream.schema("k string").options(**options).json(str(place))

    options: list[dict[str, int]] = [
        {"latestFirst": True, "maxFilesPerTrigger": 2},
        {"maxBytesPerTrigger": 60},
        {"latestFirst": True, "maxBytesPerTrigger": 60},
    ]
    batches = []
    with settings(spark):
        for number, case in enumerate(options):
            own = gw.write_stream(stream(**case)).own_sources()
            batches.append(_batches(own, tmp_path / f"own-{number}"))
            native = _batches(stream(**case).writeStream, tmp_path / f"native-{number}")
            assert batches[-1] == native, case
    assert batches[0] == [(0, "4"), (0, "5"), (1, "2"), (1, "3"), (2, "0"), (2, "1")]
    assert [batch for batch, _ in batches[1]] == [0, 1, 1, 1, 2, 2]
    both = stream(maxBytesPerTrigger=60, maxFilesPerTrigger=1)
    with pytest.raises(StreamingQueryException):
        _batches(both.writeStream, tmp_path / "both natively")
    with pytest.raises(UnsupportedQueryError, match="maxFilesPerTrigger"):
        gw.write_stream(both).own_sources().format("noop").start()

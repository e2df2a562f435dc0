"""Rows of large epochs reach lanes of the sender's executor by files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import godwit as gw
from godwit.engine.cluster import ROWS_HERE
from godwit.spark.stages import stages
from godwit.spark.stages.local_parcels import STORED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_ROWS, _EPOCHS = ROWS_HERE + 1, 3


def counted(spark: SparkSession, directory: Path) -> tuple[pa.Table, gw.types.Query]:
    """Count keys that hardly repeat, in a few large epochs."""
    keys = np.random.default_rng(5).integers(0, 4 * _ROWS, _ROWS * _EPOCHS)
    table = pa.table({"key": keys, "value": keys})
    source = gw.sources.memory(table.schema, table, max_rows_per_epoch=_ROWS)
    flow, sink = gw.Flow("files", num_key_groups=16), gw.sinks.memory()
    by_key = flow.source("rows", source).key_by("key")
    flow.sink("out", by_key.compute(n=gw.count(), total=gw.sum("value")), sink)
    query = flow.start(
        checkpoint=directory / "ck",
        trigger={"availableNow": True},
        lanes=gw.Lanes(local_dir=directory / "local"),
        session=spark,
    )
    query.awaitTermination()
    expected = table.group_by("key").aggregate([([], "count_all"), ("value", "sum")])
    got = sink.table("key").select(["key", "n", "total"]).sort_by("key")
    assert got.to_pylist() == (
        expected.rename_columns({"count_all": "n", "value_sum": "total"})
        .select(["key", "n", "total"])
        .sort_by("key")
        .to_pylist()
    )
    assert pc.sum(got["n"]).as_py() == _ROWS * _EPOCHS
    return got, query


def test_files_of_the_last_epoch_alone_are_left(spark: SparkSession, tmp_path: Path) -> None:
    counted(spark, tmp_path)
    files = [path.name for path in (tmp_path / "local").rglob("exchange/*")]
    assert files
    assert {name.partition("-")[0] for name in files} == {f"{_EPOCHS - 1:012d}"}


def test_a_lane_that_does_not_find_its_files_has_the_epoch_sent_by_the_shuffle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(blobs: Iterable[Any], _instruction: Any) -> Iterator[Any]:
        for place, payload in blobs:
            yield place, bytes([STORED, payload[1]]) + b"/nowhere"

    monkeypatch.setattr(stages, "store_local", lost)
    _, query = counted(spark, tmp_path)
    assert [entry["epoch"] for entry in query.recentProgress] == list(range(_EPOCHS))
    cluster: Any = query._run.cluster
    assert not cluster._by_files

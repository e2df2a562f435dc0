"""Lanes write the targets' own files: what is read there is what a batch query gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

KEYS = 10_000
LANE_BYTES = 10_000  # lanes have several times as much
deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(directory))


def put(directory: Path, number: int, add: int) -> None:
    directory.mkdir(exist_ok=True)
    keys = pa.array(range(KEYS), pa.int64())
    values = pa.array([key + add for key in range(KEYS)], pa.int64())
    pq.write_table(pa.table({"k": keys, "v": values}), directory / f"{number}.parquet")


def run(frame: DataFrame, checkpoint: Path, sinks: dict[str, Any]) -> None:
    flow = gw.Flow("totals")
    totals = flow.source("rows", frame).key_by("k").compute(total=gw.sum("v"), rows=gw.count())
    for name, sink in sinks.items():
        flow.sink(name, totals, sink)
    query = flow.start(checkpoint=checkpoint, trigger={"availableNow": True})
    query.awaitTermination()


def test_lanes_write_the_files_and_the_checkpoint_holds_their_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, table, checkpoint = tmp_path / "out", tmp_path / "table", tmp_path / "checkpoint"

    def files(directory: Path) -> Any:
        return gw.sinks.parquet(directory, lane_bytes=LANE_BYTES)

    def delta() -> Any:
        return gw.sinks.delta(table, lane_bytes=LANE_BYTES)

    inbox = tmp_path / "in"
    put(inbox, 0, 0)
    frame = stream(spark, inbox)
    run(frame, checkpoint, {"files": files(out), "table": delta()})
    put(inbox, 1, 1)
    run(frame, checkpoint, {"files": files(out), "table": delta()})

    log = CommitLog.open_read_only(CheckpointStorage.open(str(checkpoint)))
    assert {ref.kind for epoch in (0, 1) for ref in log.record(epoch).outputs} == {"files"}
    found = spark.read.parquet(str(out)).where("epoch = 1").drop("epoch")
    assert found.count() == KEYS
    assert found.where("total = 2 * k + 1 and rows = 2").count() == KEYS
    assert list((out / "_staging").iterdir()) == []
    assert deltalake.DeltaTable(table).version() == 2
    assert deltalake.DeltaTable(table).count() == 2 * KEYS

    # The last epoch is delivered again, to targets that its files were not written for.
    results = gw.sinks.memory()
    run(frame, checkpoint, {"files": files(tmp_path / "new"), "table": results})
    assert spark.read.parquet(str(tmp_path / "new/epoch=1")).count() == KEYS
    assert results.table().num_rows == KEYS
    assert deltalake.DeltaTable(table).count() == 2 * KEYS

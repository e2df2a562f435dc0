"""Queries that start from a kept epoch, and in another number of key groups, lose no row."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, drain

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import CheckpointMismatchError, SinkError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_query_over_dataframes_goes_back_to_a_kept_epoch_and_changes_its_key_groups(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "files"

    def flow(groups: int = 8) -> gw.Flow:
        flow = gw.Flow("totals", num_key_groups=groups)
        keyed = flow.source("rows", inbox.stream()).key_by("k")
        totals = keyed.compute(name="totals", total=gw.sum("v"), n=gw.count())
        flow.sink("files", totals, gw.sinks.parquet(files))
        return flow

    def results() -> list[tuple[str, int, int]]:
        rows = spark.read.parquet(str(files)).toArrow().to_pylist()
        return sorted((row["k"], row["total"], row["n"]) for row in rows)

    inbox.put([("a", 1), ("b", 1)], [("a", 1), ("c", 1)])
    drain(flow(), checkpoint)
    at_first = results()
    assert main(["checkpoint", "keep", str(checkpoint), "first"]) == 0
    noted = dt.datetime.now(dt.UTC)
    inbox.put([("a", 1)], [("b", 1), ("c", 1)], [("d", 1)])
    drain(flow(), checkpoint)
    expected = results()
    assert expected != at_first

    with pytest.raises(SinkError, match="'files' does not continue from this checkpoint"):
        drain(flow(), checkpoint, from_epoch="first")
    assert results() == expected
    query = drain(flow(), checkpoint, from_epoch="first", on_divergence="roll_back")
    assert results() == expected
    assert any(isinstance(event, gw.events.StartedFromEpoch) for event in query.events)

    inbox.put([("e", 1)])
    with pytest.raises(CheckpointMismatchError, match="it has 8 key groups, not 20"):
        drain(flow(20), checkpoint)
    rewrite = gw.Checkpointing(repartition=True)
    query = drain(flow(20), checkpoint, checkpointing=rewrite)
    (event,) = (e for e in query.events if isinstance(e, gw.events.KeyGroupsChanged))
    assert (event.before, event.after, event.entries) == (8, 20, 4)
    expected = [*expected, ("e", 1, 1)]
    assert results() == expected
    inbox.put([("a", 5)])
    drain(flow(20), checkpoint)
    expected = sorted([*expected, ("a", 8, 4)])
    assert results() == expected
    drain(flow(8), checkpoint, as_of=noted, on_divergence="roll_back")
    assert results() == expected
    assert not verify(CheckpointStorage.open(checkpoint)).findings

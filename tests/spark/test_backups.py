"""A backup that is started after its original continued: no row is lost and none is doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox, drain

import godwit as gw
from godwit.cli.main import main
from godwit.model import events
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")


def test_a_backup_goes_on_once_its_targets_are_rolled_back(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    files, table = tmp_path / "files", tmp_path / "table"

    def flow() -> gw.Flow:
        flow = gw.Flow("totals", num_key_groups=8)
        totals = flow.source("rows", inbox.stream()).key_by("k").compute(total=gw.sum("v"))
        flow.sink("files", totals, gw.sinks.parquet(files))
        flow.sink("table", totals, gw.sinks.delta(table))
        return flow

    def results() -> list[list[tuple[str, int]]]:
        read = (
            spark.read.parquet(str(files)).toArrow(),
            deltalake.DeltaTable(table).to_pyarrow_table(),
        )
        return [sorted((row["k"], row["total"]) for row in rows.to_pylist()) for rows in read]

    inbox.put([("a", 1), ("b", 1)], [("a", 1), ("c", 1)])
    drain(flow(), checkpoint)
    assert main(["checkpoint", "copy", "--same-query", str(checkpoint), str(backup)]) == 0
    capsys.readouterr()
    inbox.put([("a", 1)], [("b", 1), ("c", 1)], [("d", 1)])
    drain(flow(), checkpoint)
    expected = results()

    with pytest.raises(SinkError, match="'files' does not continue from this checkpoint") as caught:
        drain(flow(), backup)
    assert 'start(on_divergence="roll_back")' in caught.value.remedy
    assert results() == expected
    query = drain(flow(), backup, on_divergence="roll_back")
    assert results() == expected
    (changed,) = (event for event in query.events if isinstance(event, events.FlowChanged))
    assert [text.split(":")[0] for text in changed.results] == ["sink files", "sink table"]
    assert all("rolled back to epoch 1" in text for text in changed.results)

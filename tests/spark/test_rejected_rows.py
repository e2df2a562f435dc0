"""A row that a target cannot take refuses its epoch, or goes where the user said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.spark.streams import Inbox, drain, rows_of

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

POISON = "x" * 300


def flow(inbox: Inbox, out: Path, **options: Any) -> gw.Flow:
    built = gw.Flow("totals")
    totals = built.source("rows", inbox.stream()).key_by("k").compute(total=gw.sum("v"))
    built.sink("out", totals, gw.sinks.parquet(out, partition_by="k", **options))
    return built


def test_a_poison_row_refuses_its_epoch_by_key_and_is_diverted_once_there_is_a_place_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")
    inbox.put([("a", 1)], [("b", 2), (POISON, 3), ("a", 4)])
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for _ in range(2):
        with pytest.raises(SinkError, match=r"cannot take a row of epoch 1 of operator") as caught:
            drain(flow(inbox, out), checkpoint)
        assert json.loads(caught.value.context["key"]) == {"k": POISON}
        assert "of which nothing is committed" in caught.value.message
    assert gw.sinks.latest_epoch(out) == 0

    inbox.put([("c", 5)])
    query = drain(flow(inbox, out, rejects=gw.sinks.parquet(tmp_path / "rejected")), checkpoint)
    counted = [progress["sinkRows"] for progress in query.recentProgress]
    assert counted == [{"out": 2, "out_rejects": 1}, {"out": 1}]
    written = spark.read.parquet(str(out)).orderBy("epoch", "k").select("k", "total", "epoch")
    assert rows_of(written) == [("a", 1, 0), ("a", 5, 1), ("b", 2, 1), ("c", 5, 2)]
    (rejected,) = pq.read_table(tmp_path / "rejected").to_pylist()
    assert (rejected["sink"], rejected["epoch"]) == ("out", 1)
    assert "more than 255 bytes" in rejected["reason"]
    assert json.loads(rejected["row"]) == {"k": POISON, "total": 3}

"""Calls of `scale` that are refused, on a running query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.spark.streams import Inbox

import godwit as gw
from godwit.model.errors import InvalidProblemError, ScalingError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_what_cannot_be_scaled_says_so_and_the_stream_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k int, number long")
    inbox.put([(1, 1)])
    flow, sink = gw.Flow("flow", num_key_groups=4), gw.sinks.memory()
    totals = flow.source("rows", inbox.stream()).key_by("k").compute(n=gw.count())
    flow.sink("out", totals, sink)
    query = flow.start(checkpoint=tmp_path / "ck")
    for wrong, text in (
        (0, "asked for 0 executors"),
        (-3, "asked for -3 executors"),
        (True, "asked for True executors"),
        ("4", "asked for '4' executors, of type str"),
        (1.5, "asked for 1.5 executors, of type float"),
    ):
        with pytest.raises(ScalingError, match=text):
            query.scale(wrong)  # type: ignore[arg-type]
    with pytest.raises(ScalingError, match="timeout_s of scale"):
        query.scale(2, timeout_s=-1)
    with pytest.raises(ScalingError, match=r"local\[2\] is one process, .*LocalCluster"):
        query.scale(4)
    with pytest.raises(InvalidProblemError, match="'milk' is not a planner"):
        query.scale(4, planner="milk")
    inbox.put([(1, 1)])
    query.processAllAvailable()
    assert sink.table().to_pylist() == [{"k": 1, "n": 2}]
    assert query.scaling.latest is None
    query.stop()
    with pytest.raises(ScalingError, match="query has stopped"):
        query.scale(4)

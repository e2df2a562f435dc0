"""What a running query tells of itself: in its journal, in Spark's progress and to Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox

import godwit as gw
from godwit.state.journal import read_tail
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")


def totals(inbox: Inbox) -> gw.Flow:
    flow = gw.Flow("seen", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k").compute(name="t", total=gw.sum("v"))
    flow.sink("out", stream, gw.sinks.memory())
    return flow


def entries(checkpoint: Path, kind: str) -> list[dict[str, Any]]:
    tail = read_tail(CheckpointStorage.open(checkpoint), 1000)
    return [entry[kind] for entry in tail if kind in entry]


def test_the_journal_has_every_epoch_s_figures_and_how_far_behind_the_sources_it_was(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1), ("b", 2)], [("a", 3)])
    query = totals(inbox).start(checkpoint=tmp_path / "ck")
    query.processAllAvailable()
    query.stop()
    told = entries(tmp_path / "ck", "progress")
    recent = [{k: v for k, v in p.items() if k != "sources"} for p in query.recentProgress]
    assert told == recent
    assert [p["numInputRows"] for p in told] == [2, 1]
    for progress in told:
        executors = progress["executors"]
        assert executors.keys() == {"local-0", "local-1"}
        assert sum(e["cpuMs"] for e in executors.values()) > 0
        assert all(e["lanes"] == 1 and not e["draining"] for e in executors.values())
    outcomes = entries(tmp_path / "ck", "outcome")
    spent = sum(outcomes[0]["executor_cpu_ms"].values())
    assert spent == pytest.approx(outcomes[0]["loads"]["t"]["cpu_ms"], abs=0.01)
    last = entries(tmp_path / "ck", "sources")[-1]
    (source,) = last["sources"]
    assert source["description"].startswith("FileStreamSource")
    assert source["inputRowsPerSecond"] is not None

"""The handle of a running flow behaves as a StreamingQuery does, and says more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain, rows_of, totals

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import EpochFailedError, SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long")


def test_a_query_tells_what_it_does_while_it_runs_and_after_it_has_stopped(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1), ("b", 2)])
    heard: list[events.Event] = []
    flow = totals(inbox, gw.sinks.memory())
    query = flow.start(checkpoint=tmp_path / "ck", name="told")
    query.add_listener(heard.append)
    assert query.awaitTermination(1) is False
    query.processAllAvailable()
    inbox.put([("a", 10)])
    query.processAllAvailable()

    assert (query.name, query.isActive, query.exception()) == ("told", True, None)
    assert query.executors == ("local-0", "local-1")
    assert query.placement.assignments["t"].key_groups("local-1").tolist() == [1, 3, 5, 7]
    status = query.status
    assert (status["committedEpoch"], status["held"]) == (1, [])
    assert (status["keyGroupsInFlight"], status["keyGroupsSuspended"]) == (0, 0)
    first, second = query.recentProgress
    assert (first["batchId"], first["numInputRows"], first["numOutputRows"]) == (0, 2, 2)
    assert (second["batchId"], second["numInputRows"], second["numOutputRows"]) == (1, 1, 1)
    assert second["keyGroups"] == {"t": {"local-0": 4, "local-1": 4}}
    assert second["durationMs"]["epoch"] >= second["durationMs"]["stages"] > 0
    assert second["changelogBytes"] > 0
    assert second["timestamp"].endswith("Z")
    assert (second["numKeys"], second["stateBytes"] > 0) == (1, True)
    assert query.lastProgress is not None
    assert query.lastProgress["epoch"] == 1
    assert repr(query).startswith("<Query 'query': ")

    query.stop()
    query.stop()
    assert (query.isActive, query.exception()) == (False, None)
    assert query.awaitTermination(1) is True
    assert query.awaitTermination() is None
    kinds = [type(e).__name__ for e in query.events]
    assert kinds == ["QueryStarted", "EpochCommitted", "EpochCommitted", "QueryStopped"]
    assert [e.rows_in for e in query.events if isinstance(e, events.EpochCommitted)] == [2, 1]
    assert [type(e).__name__ for e in heard][-2:] == kinds[-2:]

    (source,) = query.recentProgress[0]["sources"]
    assert "logOffset" in str(source["endOffset"])
    assert "latestOffset" in source
    journal = read_tail(CheckpointStorage.open(tmp_path / "ck"), 100)
    assert [e["event"]["kind"] for e in journal if "event" in e] == kinds
    assert [e["progress"]["numInputRows"] for e in journal if "progress" in e] == [2, 1]

    again = drain(totals(inbox, gw.sinks.memory()), tmp_path / "ck")
    assert again.id == query.id
    identity = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "ck")).identity
    assert query.id.replace("-", "") == identity.query_id
    assert again.runId != query.runId


def test_as_much_progress_is_kept_as_sparks_setting_says(
    spark: SparkSession, inbox: Inbox, tmp_path: Path
) -> None:
    setting = "spark.sql.streaming.numRecentProgressUpdates"
    spark.conf.set(setting, "2")
    try:
        inbox.put([("a", 1)], [("a", 2)], [("a", 3)])
        query = drain(totals(inbox, gw.sinks.memory()), tmp_path / "ck")
    finally:
        spark.conf.unset(setting)
    assert [(p["epoch"], p["numInputRows"]) for p in query.recentProgress] == [(1, 1), (2, 1)]


def test_two_queries_run_side_by_side_in_one_session(
    spark: SparkSession, inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)], [("a", 2)])
    sinks = [gw.sinks.memory(), gw.sinks.memory()]
    queries = [
        totals(inbox, sink, name).start(checkpoint=tmp_path / name)
        for sink, name in zip(sinks, ("one", "two"), strict=True)
    ]
    inbox.put([("b", 3)])
    for query in queries:
        query.processAllAvailable()
        query.stop()
    for sink in sinks:
        assert sorted(rows_of(sink.table())) == [("a", 3), ("b", 3)]


class Cupboard(gw.sinks.Sink):
    """Keeps rows by epoch; refuses epoch 1 while it is full."""

    def __init__(self) -> None:
        self.full = True
        self.delivered: list[tuple[int, list[tuple[Any, ...]]]] = []

    def open(self, context: gw.sinks.SinkContext) -> None:
        assert context.keys == ("k",)

    def deliver(self, output: gw.sinks.EpochOutput) -> None:
        if output.epoch == 1 and self.full:
            msg = "no room in the cupboard"
            raise OSError(msg)
        self.delivered.append((output.epoch, rows_of(output.dataframe())))


def test_a_sink_that_fails_fails_the_query_after_the_commit_and_gets_the_epoch_again(
    inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)], [("a", 2)], [("a", 4)])
    sink = Cupboard()
    query = totals(inbox, sink).start(checkpoint=tmp_path / "ck")
    with pytest.raises(
        SinkError, match="Sink 'out' failed on epoch 1: OSError: no room in the cupboard"
    ) as caught:
        query.processAllAvailable()
    assert query.exception() is caught.value
    assert not query.isActive
    assert isinstance(query.events[-1], events.QueryFailed)
    assert sink.delivered == [(0, [("a", 1)])]
    sink.full = False
    drain(totals(inbox, sink), tmp_path / "ck")
    assert dict(sink.delivered) == {0: [("a", 1)], 1: [("a", 3)], 2: [("a", 7)]}


def test_an_error_of_spark_is_told_as_a_failed_epoch(
    spark: SparkSession, inbox: Inbox, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812  the name that PySpark's users know

    inbox.put([("a", 1)], [("a", 0)])
    flow = gw.Flow("division", num_key_groups=4)
    ratio = flow.source("rows", inbox.stream()).map(
        lambda frame: frame.withColumn("v", F.expr("1 div v"))
    )
    sink = gw.sinks.memory()
    flow.sink("out", ratio.key_by("k").compute(total=gw.sum("v")), sink)
    with pytest.raises(
        EpochFailedError, match=r"Flow 'division' failed:.*DIVIDE_BY_ZERO"
    ) as caught:
        drain(flow, tmp_path / "ck")
    assert "Nothing of the unfinished epoch was committed" in str(caught.value)
    assert sorted(sink.epochs) == [0]


def test_the_same_text_explains_a_flow_before_it_runs(
    inbox: Inbox, capsys: pytest.CaptureFixture[str]
) -> None:
    totals(inbox, gw.sinks.memory()).explain()
    text = capsys.readouterr().out
    assert text.startswith("Flow 'query': 1 source, 1 keyed operator on 1 level, 1 sink\n")
    for told in (
        "8 key groups",
        "compute total = sum(v)",
        "source 'rows'",
        "k string",
        "MemorySink",
    ):
        assert told in text


def test_the_stages_of_an_epoch_are_called_by_name_in_sparks_ui(
    spark: SparkSession, inbox: Inbox, tmp_path: Path
) -> None:
    inbox.put([("a", 1)])
    query = drain(totals(inbox, gw.sinks.memory()), tmp_path / "ck")
    tracker = spark.sparkContext.statusTracker()
    driver: Any = query._driver
    jobs = [
        tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(driver.spark_query.runId))
    ]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    names = {stage.name for stage in stages if stage}
    assert {"godwit: source side of epoch 0", "godwit: lanes of epoch 0, level 1"} <= names

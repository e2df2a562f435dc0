"""Journal, progress and metrics of a running query."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import _OLDEST_S, Inbox
from tests.support.receiver import Receiver

import godwit as gw
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.storage import CheckpointStorage

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
        assert sum(e["busyMs"] for e in executors.values()) > 0
        assert all(e["lanes"] == 1 and not e["draining"] for e in executors.values())
    # Files count from when they were written, also while they wait for an epoch of their own.
    now_s = time.time()
    for number, progress in enumerate(told):
        of_rows = progress["latencyMs"]["sources"]["rows"]
        assert (of_rows["arrival"], of_rows["rows"]) == ("source", progress["numInputRows"])
        waited_s = now_s - (_OLDEST_S + number)
        assert progress["latencyMs"]["max"] == pytest.approx(1e3 * waited_s, abs=300e3)
    merged = entries(tmp_path / "ck", "latency")[0]["sources"]["rows"]
    assert sum(merged["counts"]) == 2
    spent = sum(executor["cpuMs"] for executor in told[0]["executors"].values())
    assert spent == pytest.approx(told[0]["loads"]["t"]["cpuMs"], abs=0.01)
    last = entries(tmp_path / "ck", "sources")[-1]
    (source,) = last["sources"]
    assert source["description"].startswith("FileStreamSource")
    assert source["inputRowsPerSecond"] is not None


def test_spark_s_own_progress_has_the_phases_of_every_micro_batch(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.put([("a", 1), ("b", 2)], [("a", 3)])
    with caplog.at_level("INFO", logger="godwit"):
        query = totals(inbox).start(checkpoint=tmp_path / "ck")
        query.processAllAvailable()
        driver: Any = query._driver
        noted = {p["batchId"]: p for p in driver.spark_query.recentProgress}
        ours = {p["batchId"]: p for p in query.recentProgress}
        query.stop()
    assert "takes no durations" not in caplog.text
    for batch in (0, 1):
        for phase in ("plan", "stages", "commit", "deliver"):
            theirs = noted[batch]["durationMs"][f"godwit.{phase}"]
            assert theirs == round(ours[batch]["durationMs"][phase])
        assert noted[batch]["durationMs"]["addBatch"] >= theirs


def test_metrics_are_served_while_the_query_runs_and_no_longer(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox.put([("a", 1), ("b", 2)], [("a", 3)])
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        _check_what_is_served(inbox, tmp_path)
    assert len(receiver.bodies("/v1/traces")) >= 1
    assert len(receiver.bodies("/v1/metrics")) >= 1
    lineage = [json.loads(body) for body in receiver.bodies("/api/v1/lineage")]
    assert [event["eventType"] for event in lineage] == ["START", "COMPLETE"]


def _check_what_is_served(inbox: Inbox, tmp_path: Path) -> None:
    everything = gw.Observability(metrics_port=0, ui_port=0, opentelemetry=True, openlineage=True)
    query = totals(inbox).start(checkpoint=tmp_path / "ck", observability=everything)
    query.processAllAvailable()
    assert query.metrics_url is not None
    assert query.metrics_url.startswith("http://127.0.0.1:")
    assert query.ui_url is not None
    assert query._dispatcher.flush(60.0)
    with urllib.request.urlopen(query.metrics_url, timeout=30) as answer:
        shown = answer.read().decode()
    for line in (
        "godwit_rows_in_total 3.0",
        "godwit_epochs_total 2.0",
        "godwit_last_epoch 1.0",
        'godwit_executor_lanes{executor="local-0"} 1.0',
        'godwit_query_info{flow="seen"} 1.0',
    ):
        assert line in shown.splitlines()
    with urllib.request.urlopen(f"{query.ui_url}frame?epoch=1", timeout=30) as answer:
        frame = json.load(answer)
    assert (frame["now"]["epoch"], frame["now"]["rowsIn"]) == (1, 1)
    assert sum(row["keyGroups"] for row in frame["heat"]["components"][0]["rows"]) == 4
    with urllib.request.urlopen(f"{query.ui_url}state/t", timeout=30) as answer:
        state = json.load(answer)
    assert state["epoch"] == 1
    assert state["rows"] == query.state("t").scan().to_pylist()
    shown_in_a_notebook = query._repr_html_()
    for part in (
        "of flow &#x27;seen&#x27;",
        "local-0",
        f'href="{query.ui_url}"',
        f'href="{query.metrics_url}"',
    ):
        assert part in shown_in_a_notebook
    query.stop()
    for url in (query.metrics_url, query.ui_url):
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=30)
    (flow,) = entries(tmp_path / "ck", "flow")
    assert [node["name"] for node in flow["operators"]] == ["t"]
    assert [edge["from"] for edge in flow["edges"]] == [["source", "rows"], ["operator", "t"]]


def test_a_taken_port_refuses_the_start_before_anything_is_claimed(
    inbox: Inbox, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(gw.errors.InvalidFlowError, match="the port is in use"):
            totals(inbox).start(
                checkpoint=tmp_path / "ck", observability=gw.Observability(metrics_port=port)
            )
    assert not (tmp_path / "ck").exists()
    query = totals(inbox).start(
        checkpoint=tmp_path / "ck", observability=gw.Observability(metrics_port=port)
    )
    query.stop()


def test_a_start_that_fails_gives_the_port_back(inbox: Inbox, tmp_path: Path) -> None:
    inbox.put([("a", 1)])
    query = totals(inbox).start(
        checkpoint=tmp_path / "ck", observability=gw.Observability(metrics_port=0)
    )
    query.processAllAvailable()
    query.stop()
    assert query.metrics_url is not None
    port = int(query.metrics_url.split(":")[2].split("/")[0])
    other = gw.Flow("other", num_key_groups=4)
    stream = other.source("rows", inbox.stream()).key_by("k").compute(n=gw.count())
    other.sink("out", stream, gw.sinks.memory())
    for _ in range(2):
        with pytest.raises(gw.errors.CheckpointMismatchError):
            other.start(
                checkpoint=tmp_path / "ck", observability=gw.Observability(metrics_port=port)
            )

"""OpenLineage gets one run for each start, with the data that the query reads and writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.receiver import Receiver

import godwit as gw
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.ops.lineage import Lineage
from godwit.ops.observers import open_openlineage
from godwit.runtime.settings import Observability, Options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from godwit.model.event import Event
    from godwit.plan.compiled import CompiledFlow

NAMED = (
    events.QueryStarted(at_s=10.0, epoch=-1, name="delays"),
    events.FlowChanged(at_s=11.0, epoch=4, added=("more",)),
)


def compiled(tmp_path: Path) -> CompiledFlow:
    flow = gw.Flow("delays")
    orders = flow.source("orders", gw.sources.json(tmp_path / "in", schema="plane string, n long"))
    clicks = flow.source("clicks", gw.sources.memory("plane string, n long", name="clicks"))
    totals = orders.union(clicks).key_by("plane").compute(total=gw.sum("n"))
    flow.sink("lake", totals, gw.sinks.parquet("s3://bucket/totals"))
    flow.sink("files", totals, gw.sinks.parquet(tmp_path / "out"))
    flow.sink("topic", totals, gw.sinks.kafka("broker:9092", "totals"))
    flow.sink("table", totals, gw.sinks.postgres("postgresql://me:secret@db/shop", "totals"))
    flow.sink("unknown", totals, gw.sinks.memory())
    return flow.compiled()


def sent(
    flow: CompiledFlow, happened: Sequence[Event], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    with Receiver() as receiver:
        monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
        lineage = Lineage(flow, "delays of planes")
        for event in happened:
            lineage.recorder.add("event", event.to_dict())
        lineage.recorder.add("progress", {})
        lineage.close()
        lineage.close()
    return [json.loads(body) for body in receiver.bodies("/api/v1/lineage")]


def test_a_query_that_ends_is_one_run_that_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    stopped = events.QueryStopped(at_s=12.0, epoch=7, name="delays")
    posted = sent(compiled(tmp_path), (*NAMED, stopped), monkeypatch)
    assert [event["eventType"] for event in posted] == ["START", "RUNNING", "COMPLETE"]
    assert [event["eventTime"] for event in posted[1:]] == [
        "1970-01-01T00:00:11+00:00",
        "1970-01-01T00:00:12+00:00",
    ]
    assert len({event["run"]["runId"] for event in posted}) == 1
    for event in posted:
        assert event["job"]["name"] == "delays of planes"
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert event["run"]["facets"]["processing_engine"]["version"] == gw.__version__
        read = [(each["namespace"], each["name"]) for each in event["inputs"]]
        assert read == [("file", str(tmp_path / "in")), ("godwit", "memory clicks")]
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
            ("s3://bucket", "totals"),
            ("file", str(tmp_path / "out")),
            ("kafka://broker:9092", "totals"),
            ("postgres://db:5432", "shop.public.totals"),
            ("godwit", "delays.unknown"),
        ]
        columns = event["outputs"][0]["facets"]["schema"]["fields"]
        assert [(field["name"], field["type"]) for field in columns] == [
            ("plane", "string"),
            ("total", "int64"),
        ]
    assert "secret" not in json.dumps(posted)


def test_a_query_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    failed = events.QueryFailed(at_s=12.0, epoch=7, name="delays", error="ZeroDivisionError: n")
    *_, last = sent(compiled(tmp_path), (failed,), monkeypatch)
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "ZeroDivisionError: n"


def test_a_configuration_that_the_client_does_not_understand_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "carrier pigeon")
    options = Options(checkpoint="ck", observability=Observability(openlineage=True))
    with pytest.raises(InvalidFlowError, match="OpenLineage client cannot be configured"):
        open_openlineage(compiled(tmp_path), options)


@pytest.mark.parametrize("setting", ["opentelemetry", "openlineage"])
def test_a_setting_that_is_no_boolean_is_refused(setting: str) -> None:
    with pytest.raises(InvalidFlowError, match=setting):
        Observability(**{setting: "yes"})  # type: ignore[arg-type]

"""OpenLineage gets one run for each start, with the data that the query reads and writes."""

from __future__ import annotations

import copy
import json
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import attr
import pytest
from openlineage.client import facet_v2
from openlineage.client.event_v2 import RunEvent
from openlineage.client.naming import dataset as naming
from tests.support.receiver import Receiver

import godwit as gw
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.ops.lineage import Lineage, _openlineage_name
from godwit.ops.observers import open_openlineage
from godwit.runtime.settings import Observability, Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


def problems(values: Any, kind: Any, where: str) -> Iterator[str]:
    """Yield where plain values are not what a class of OpenLineage's client declares.

    The client's classes are generated from the JSON schemas of the specification.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in {Union, UnionType}:
        if values is None and type(None) in arguments:
            return
        (kind,) = [each for each in arguments if each is not type(None)]
        yield from problems(values, kind, where)
    elif origin is list:
        for number, value in enumerate(values):
            yield from problems(value, arguments[0], f"{where}[{number}]")
    elif origin is dict:
        for name, value in values.items():
            facet = FACETS.get(name)
            if not where.lower().endswith("facets"):
                yield from problems(value, arguments[1], f"{where}.{name}")
            elif facet is None:
                yield f"{where} has the facet {name}, which the specification does not know"
            else:
                yield from problems(value, facet, f"{where}.{name}")
    elif attr.has(kind):
        declared = {field.name: field for field in attr.fields(kind)}
        required = {n for n, f in declared.items() if f.default is attr.NOTHING}
        if unknown := values.keys() - declared.keys():
            yield f"{where} has {sorted(unknown)}, which {kind.__name__} does not"
        if missing := required - values.keys():
            yield f"{where} lacks {sorted(missing)} of {kind.__name__}"
        for name in {"schemaURL", "_schemaURL"} & declared.keys():
            schema = getattr(kind, "_get_schema")()  # noqa: B009  of all classes with that field
            if values[name] != schema:
                yield f"{where} has the schema {values[name]}, not {schema}"
        for producer in {"producer", "_producer"} & declared.keys():
            ours = values[producer].startswith("https://github.com/godwit-streams/")
            if not ours and not where.endswith(".tags"):
                yield f"{where} has the producer {values[producer]}"
        hints = get_type_hints(kind)
        for name in values.keys() & declared.keys():
            yield from problems(values[name], hints[name], f"{where}.{name}")
    elif issubclass(kind, Enum):
        if values not in {each.value for each in kind}:
            yield f"{where} is {values!r}"
    elif not isinstance(values, kind) or (isinstance(values, bool) and kind is int):
        yield f"{where} is {values!r}, which is not of type {kind.__name__}"


FACETS = {
    "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
    "jobType": facet_v2.job_type_job.JobTypeJobFacet,
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "tags": facet_v2.tags_run.TagsRunFacet,  # the client's own
}


def named(naming: Any) -> tuple[str, str]:
    """Return namespace and name of a dataset by the rules of the specification."""
    return naming.get_namespace(), naming.get_name()


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (lambda: gw.sinks.parquet("s3://b/t/x/"), naming.S3("b", "t/x")),
        (lambda: gw.sinks.parquet("s3a://b/t"), naming.S3("b", "t")),
        (lambda: gw.sinks.parquet("gs://b/t"), naming.GCS("b", "t")),
        (lambda: gw.sinks.parquet("hdfs://n:8020/a/t"), naming.HDFS("n", "8020", "/a/t")),
        (
            lambda: gw.sinks.parquet("abfss://c@s.dfs.core.windows.net/t"),
            naming.ABFSS("c", "s", "t"),
        ),
        (lambda: gw.sinks.parquet("/data/t"), naming.LocalFileSystem("/data/t")),
        (lambda: gw.sinks.parquet("file:///data/t/"), naming.LocalFileSystem("/data/t")),
        (lambda: gw.sinks.delta("/data/t"), naming.LocalFileSystem("/data/t")),
        (lambda: gw.sources.delta("s3://b/t"), naming.S3("b", "t")),
        (lambda: gw.sinks.kafka("one:9092,two:9093", "t"), naming.Kafka("one", "9092", "t")),
        (
            lambda: gw.sources.kafka(["one:9092", "two:9092"], "t", group="g"),
            naming.Kafka("one", "9092", "t"),
        ),
        (
            lambda: gw.sinks.postgres("postgresql://me@one,two:5433/d", "t"),
            naming.Postgres("one", "5432", "d", "public", "t"),
        ),
        (
            lambda: gw.sources.postgres("host=h dbname=d", "s.t", slot="x"),
            naming.Postgres("h", "5432", "d", "s", "t"),
        ),
        (
            lambda: gw.sinks.sql("postgresql+psycopg://me:x@h/d", "s.t"),
            naming.Postgres("h", "5432", "d", "s", "t"),
        ),
        (
            lambda: gw.sinks.sql("mariadb+pymysql://me:x@h:3307/d", "t"),
            naming.MySQL("h", "3307", "d", "t"),
        ),
        (
            lambda: gw.sources.mariadb("mariadb://me:x@h/d", "t"),
            naming.MySQL("h", "3306", "d", "t"),
        ),
    ],
)
def test_datasets_have_the_names_of_the_specification(ours: Any, expected: Any) -> None:
    (uri,) = ours().datasets
    assert _openlineage_name(uri) == named(expected)


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
        assert [*problems(event, RunEvent, "event")] == []
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
        assert [field["ordinal_position"] for field in columns] == [1, 2]
    assert "secret" not in json.dumps(posted)


def test_a_query_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    failed = events.QueryFailed(at_s=12.0, epoch=7, name="delays", error="ZeroDivisionError: n")
    *_, last = sent(compiled(tmp_path), (failed,), monkeypatch)
    assert last["eventType"] == "FAIL"
    assert [*problems(last, RunEvent, "event")] == []
    assert last["run"]["facets"]["errorMessage"]["message"] == "ZeroDivisionError: n"


def test_nested_columns_are_described_by_fields_and_another_namespace_is_that_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "production")
    flow = gw.Flow("nested")
    columns = "k string, s struct<a: int, b: array<double>>, m map<string, date>"
    rows = flow.source("rows", gw.sources.memory(columns)).key_by("k")
    flow.sink("out", rows.compute(n=gw.count()), gw.sinks.noop())
    (started,) = sent(flow.compiled(), (), monkeypatch)
    assert started["job"]["namespace"] == "production"
    assert [*problems(started, RunEvent, "event")] == []

    def shape(fields: Any) -> Any:
        return {f["name"]: shape(f["fields"]) if f.get("fields") else f["type"] for f in fields}

    described = started["inputs"][0]["facets"]["schema"]["fields"]
    assert shape(described) == {
        "k": "string",
        "s": {"a": "int32", "b": {"_element": "double"}},
        "m": {"key": "string", "value": "date32[day]"},
    }
    assert [field["type"] for field in described] == ["string", "struct", "map"]


def test_an_event_that_is_not_of_the_specification_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (posted,) = sent(compiled(tmp_path), (), monkeypatch)
    assert [*problems(posted, RunEvent, "event")] == []
    changes: list[tuple[Any, str]] = [
        (lambda e: e["job"].update(owner="me"), "has ['owner']"),
        (lambda e: e["run"].pop("runId"), "lacks ['runId']"),
        (lambda e: e["job"]["facets"]["jobType"].pop("integration"), "lacks ['integration']"),
        (lambda e: e["job"]["facets"]["jobType"].update(_schemaURL="x"), "has the schema x"),
        (lambda e: e["job"]["facets"]["jobType"].update(_producer="x"), "has the producer x"),
        (lambda e: e["inputs"][0]["facets"].update(columns={}), "has the facet columns"),
        (lambda e: e.update(eventType="BEGIN"), "is 'BEGIN'"),
        (
            lambda e: e["inputs"][0]["facets"]["schema"]["fields"][0].update(name=1),
            "is 1, which is not of type str",
        ),
    ]
    for change, problem in changes:
        event = copy.deepcopy(posted)
        change(event)
        (noticed,) = problems(event, RunEvent, "event")
        assert problem in noticed


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

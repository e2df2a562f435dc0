"""Places of a flow that overlap are refused by names alone, before anything is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.connect.delta.read import SCHEMES
from godwit.model.errors import (
    CheckpointError,
    GodwitError,
    InvalidFlowError,
    SinkError,
    SourceError,
)
from godwit.model.locations import spelled_location
from godwit.sinks import checks
from godwit.sinks.checks import check_places
from godwit.spark.stages.source_plans import FilesOfStream

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.plan.compiled import CompiledFlow


def flow_of(source: Any, *sinks: Any, complete: bool = False) -> gw.Flow:
    flow = gw.Flow("f", num_key_groups=2)
    rows = flow.source("s", source).key_by("k")
    for number, sink in enumerate(sinks):
        counts = rows.compute(
            name=f"n{number}", n=gw.count(), output="complete" if complete else "update"
        )
        flow.sink(f"o{number}", counts, sink)
    return flow


def compiled(*sinks: Any, source: Any = None, complete: bool = False) -> CompiledFlow:
    given = gw.sources.memory("k string") if source is None else source
    return flow_of(given, *sinks, complete=complete).compiled()


def files(path: Any, **options: Any) -> Any:
    return gw.sources.json(path, schema="k string", **options)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    return tmp_path


INSIDE = ["in", "in/", "in/out", "in/a/b/", "link/out", "./in/../in/out", "file://{}/in/out"]


@pytest.mark.parametrize("path", INSIDE)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_sink_in_the_directory_of_a_source(place: Path, path: str, kind: str) -> None:
    text = path.format(place) if path.startswith("file:") else f"{place}/{path}"
    flow = compiled(getattr(gw.sinks, kind)(text), source=files(place / "in"))
    with pytest.raises(InvalidFlowError, match="the source would read the results"):
        check_places(flow)


def test_a_sink_on_the_table_of_a_source_or_in_the_directory_of_history(place: Path) -> None:
    rows = pa.table({"k": ["a"]})
    pytest.importorskip("deltalake").write_deltalake(place / "t", rows)
    catalog = {"type": "sql", "uri": f"sqlite:///{place}/c.db", "warehouse": f"file://{place}"}
    opened = pytest.importorskip("pyiceberg.catalog").load_catalog("default", **catalog)
    opened.create_namespace("a")
    opened.create_table("a.t", rows.schema)
    opened.close()
    table = gw.sources.delta(place / "t")
    live = gw.sources.memory("k string")
    history, sequence = (gw.sources.sequence(old, live) for old in (files(place / "in"), table))
    pairs = [
        (table, gw.sinks.delta(place / "t")),
        (sequence, gw.sinks.delta(place / "t")),
        (table, gw.sinks.parquet(place / "t/out")),
        (gw.sources.iceberg("a.t", catalog=catalog), gw.sinks.iceberg("a.t", catalog=catalog)),
        (history, gw.sinks.parquet(place / "in/out")),
    ]
    for source, sink in pairs:
        with pytest.raises(InvalidFlowError, match="the source would read the results"):
            check_places(compiled(sink, source=source))
    check_places(compiled(gw.sinks.delta(place / "u"), source=sequence))


def test_a_sink_beside_a_source_or_where_it_reads_nothing(place: Path) -> None:
    for path in ("out", "in2", "in.out", "in/_out", "in/.out/deep"):
        check_places(compiled(gw.sinks.parquet(place / path), source=files(place / "in")))
    names = compiled(
        gw.sinks.parquet(place / "in/out"), source=files(place / "in", pattern="*.json")
    )
    check_places(names)


@pytest.mark.parametrize("path", ["out", "out/epoch=0", "out/x/y"])
def test_a_source_in_the_directory_of_a_sink(place: Path, path: str) -> None:
    flow = compiled(gw.sinks.parquet(place / "out"), source=files(place / path))
    with pytest.raises(InvalidFlowError, match="the source would read the results"):
        check_places(flow)


@pytest.mark.parametrize(
    ("sink", "checkpoint", "text"),
    [
        ("ck/out", "ck", "do not belong there"),
        ("ck", "ck", "is that of sink 'o0', too"),
        ("out", "out/ck", "readers of the results would read the checkpoint"),
        ("out", "in/ck", "the source would read the checkpoint"),
        ("out", "link/ck", "the source would read the checkpoint"),
    ],
)
def test_a_checkpoint_and(place: Path, sink: str, checkpoint: str, text: str) -> None:
    flow = compiled(gw.sinks.parquet(place / sink), source=files(place / "in"))
    with pytest.raises(InvalidFlowError, match=text):
        check_places(flow, place / checkpoint)
    check_places(compiled(gw.sinks.parquet(place / "o")), place / checkpoint)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_checkpoint_where_readers_of_a_sink_do_not_look(place: Path, kind: str) -> None:
    flow = compiled(getattr(gw.sinks, kind)(place / "out"))
    for name in ("_checkpoint", ".ck", "_ck/deep"):
        check_places(flow, place / "out" / name)
    reserved = ["_delta_log/ck"] if kind == "delta" else []
    for name in (*reserved, "_staging", "ck/_ck"):
        with pytest.raises(InvalidFlowError, match="would read the checkpoint"):
            check_places(flow, place / "out" / name)
    played = gw.testing.run(
        flow_of(gw.sources.memory("k string"), getattr(gw.sinks, kind)(place / "out")),
        {"s": [{"k": "a"}]},
        checkpoint=place / "out/_checkpoint",
    )
    assert played.rows("o0").num_rows == 1


@pytest.mark.parametrize("other", ["out", "out/", "file://{}/out", "./x/../out", "out/sub", "."])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_two_sinks(place: Path, other: str, kind: str) -> None:
    text = other.format(place) if other.startswith("file:") else f"{place}/{other}"
    flow = compiled(gw.sinks.parquet(place / "out"), getattr(gw.sinks, kind)(text))
    with pytest.raises(InvalidFlowError, match=r"one place|one would take the files of the other"):
        check_places(flow)


CATALOG = {"type": "sql", "uri": "sqlite:///c.db"}


@pytest.mark.parametrize(
    "pair",
    [
        (lambda: gw.sinks.delta("/t"), lambda: gw.sinks.delta("file:///t/", mode="upsert")),
        (
            lambda: gw.sinks.iceberg("a.b", catalog=CATALOG),
            lambda: gw.sinks.iceberg("a.b", catalog={**CATALOG, "name": "other"}),
        ),
        (
            lambda: gw.sinks.postgres("dbname=d", "t"),
            lambda: gw.sinks.postgres("dbname=d", "public.t", mode="upsert"),
        ),
    ],
    ids=["delta", "iceberg", "postgres"],
)
def test_one_table_is_for_several_sinks_unless_results_are_complete(pair: Any) -> None:
    one, other = pair
    check_places(compiled(one(), other()))
    with pytest.raises(InvalidFlowError, match="write to one place"):
        check_places(compiled(one(), other(), complete=True))


def test_remote_places() -> None:
    flow = compiled(gw.sinks.parquet("s3a://b/in/out?region=eu"), gw.sinks.delta("s3://b/in/"))
    with pytest.raises(InvalidFlowError, match="is inside that of sink 'o1'"):
        check_places(flow)
    twice = compiled(gw.sinks.parquet("s3://b/a b"), gw.sinks.parquet("s3a://b/a%20b/"))
    with pytest.raises(InvalidFlowError, match="write to one place"):
        check_places(twice)
    check_places(compiled(gw.sinks.parquet("s3://b/in/out"), gw.sinks.delta("s3://c/in/")))
    with pytest.raises(InvalidFlowError, match="checkpoint"):
        check_places(compiled(gw.sinks.delta("s3://b/ck/out")), "s3a://b/ck")


LAKE = {"account_name": "lake"}
SERVER = {"AWS_ENDPOINT_URL": "http://store:9000/"}
ONE_PLACE: list[tuple[str, str, dict[str, str]]] = [
    ("abfss://out@lake.dfs.core.windows.net/a", "az://out/a", LAKE),
    ("abfs://out@lake.dfs.core.windows.net/a/", "azure://out/a/b", LAKE),
    (
        "abfss://lake.blob.core.windows.net/out/a",
        "adl://out/a",
        {"AZURE_STORAGE_ACCOUNT_NAME": "lake"},
    ),
    ("abfs://lake@out/a/b", "abfss://out@lake.dfs.core.windows.net/a", {}),
    ("abfss://out:key@lake.dfs.core.windows.net/a", "abfs://out/a", LAKE),
    ("s3://out/a?endpoint_override=store:9000&scheme=http", "s3://out/a", SERVER),
    ("s3a://out/a?endpoint_override=http%3A%2F%2Fstore%3A9000", "s3a://out/a", SERVER),
    ("s3://out/a", "s3://out/a", {"endpoint": "https://s3.eu-west-1.amazonaws.com"}),
]
TWO_PLACES: list[tuple[str, str, dict[str, str]]] = [
    ("abfss://out@lake.dfs.core.windows.net/a", "az://out/a", {"account_name": "pond"}),
    ("abfss://out@lake.dfs.core.windows.net/a", "az://in/a", LAKE),
    ("abfss://out@lake.dfs.core.windows.net/a", "az://out/ab", LAKE),
    ("s3://out/a", "s3://out/a", SERVER),
    ("s3://out/a?endpoint_override=store:9001", "s3://out/a", SERVER),
]


@pytest.mark.parametrize(("path", "table", "options"), [*ONE_PLACE, *TWO_PLACES])
def test_stores_whose_uris_leave_the_server_to_options(
    path: str, table: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    flow = compiled(gw.sinks.parquet(path), gw.sinks.delta(table, storage_options=options))
    by_environment = compiled(gw.sinks.parquet(path), gw.sinks.delta(table))
    if (path, table, options) in TWO_PLACES:
        check_places(flow)
        return
    with pytest.raises(InvalidFlowError, match=r"to one place|would take the files of the other"):
        check_places(flow)
    if not path.startswith("s3"):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lake")
        with pytest.raises(InvalidFlowError, match=r"to one place|take the files of the other"):
            check_places(by_environment)


def test_checkpoints_and_sources_in_azure() -> None:
    table = gw.sinks.delta("az://out/t", storage_options=LAKE)
    with pytest.raises(InvalidFlowError, match="checkpoint"):
        check_places(compiled(table), "abfss://out@lake.dfs.core.windows.net/t/ck")
    location = "wasbs://out@lake.blob.core.windows.net/"
    read = FilesOfStream(location=location, pattern="*", recursive=True)
    with pytest.raises(InvalidFlowError, match="the source would read the results"):
        check_places(compiled(table), read={"s": [read]})


@pytest.mark.parametrize(
    ("sink", "is_read"),
    [
        (gw.sinks.delta, False),
        (lambda path: gw.sinks.delta(path, mode="upsert"), False),
        (lambda path: gw.sinks.delta(path, partition_by="k"), True),
        (gw.sinks.parquet, True),
    ],
)
@pytest.mark.parametrize("recursive", [False, True])
def test_a_table_in_the_directory_of_a_dataframe(
    place: Path, sink: Any, is_read: bool, recursive: bool
) -> None:
    read = FilesOfStream(location=str(place / "in"), pattern="*.parquet", recursive=recursive)
    flow = compiled(sink(place / "in/table"))
    if is_read or recursive:
        with pytest.raises(InvalidFlowError, match="the source would read the results"):
            check_places(flow, read={"s": [read]})
    else:
        check_places(flow, read={"s": [read]})


def test_names_that_differ_by_case_where_the_file_system_ignores_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = compiled(gw.sinks.parquet(place / "Out"), gw.sinks.parquet(place / "oUT/x"))
    check_places(flow)
    monkeypatch.setattr(checks, "_ignores_case", lambda _: True)
    with pytest.raises(InvalidFlowError, match="inside"):
        check_places(flow)


def test_explain_start_and_tests_see_it_and_nothing_is_created(place: Path) -> None:
    flow = flow_of(files(place / "in"), gw.sinks.parquet(place / "in/out"))
    with pytest.raises(InvalidFlowError, match="would read the results"):
        flow.explain()
    with pytest.raises(InvalidFlowError, match="would read the results"):
        flow.start(checkpoint=place / "ck")
    with pytest.raises(InvalidFlowError, match="would read the results"):
        gw.testing.run(flow, {"s": [{"k": "a"}]}, checkpoint=place / "ck")
    good = flow_of(files(place / "in"), gw.sinks.parquet(place / "out"))
    with pytest.raises(InvalidFlowError, match="would read the checkpoint"):
        good.start(checkpoint=place / "in/ck")
    with pytest.raises(InvalidFlowError, match="would read the checkpoint"):
        gw.testing.run(good, {"s": [{"k": "a"}]}, checkpoint=place / "in/ck")
    assert sorted(path.name for path in place.iterdir()) == ["in", "link"]
    assert not list((place / "in").iterdir())


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("out/x:y", "out/x:y"),
        ("s3a://b/x", "s3://b/x"),
        ("s3n://b/x", "s3://b/x"),
        ("S3://b/x", "s3://b/x"),
        ("gcs://b/x", "gs://b/x"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("hdfs://h:1/x", "hdfs://h:1/x"),
        ("s3a://b/a b/é[1]%20?region=eu", "s3://b/a%20b/%C3%A9%5B1%5D%20?region=eu"),
    ],
)
def test_schemes_are_spelled_as_the_library_knows_them(path: str, spelled: str) -> None:
    assert spelled_location(path, error=SinkError) == spelled


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("dbfs:/x/y", r"write /dbfs/x/y\."),
        ("dbfs:///x", r"write /dbfs/x\."),
        ("wasbs://c@a.blob.core.windows.net/x", r"abfss://CONTAINER@a\.dfs\.core\.windows\.net/x"),
        ("wasb://c@a.blob.core.windows.net/x", r"abfss://CONTAINER@a\.dfs\.core\.windows\.net/x"),
        ("ftp://h/x", "Supported are local paths"),
        ("https://h/x", "Supported are local paths"),
    ],
)
def test_schemes_that_nobody_knows_are_refused_at_once(
    path: str, text: str, tmp_path: Path
) -> None:
    calls: list[tuple[type[GodwitError], Any]] = [
        (SinkError, lambda: gw.sinks.parquet(path)),
        (SinkError, lambda: gw.sinks.delta(path)),
        (SourceError, lambda: files(path)),
        (CheckpointError, lambda: check_places(compiled(gw.sinks.noop()), path)),
        (
            CheckpointError,
            lambda: flow_of(gw.sources.memory("k string"), gw.sinks.noop()).start(checkpoint=path),
        ),
    ]
    for error, call in calls:
        with pytest.raises(error, match=text):
            call()


def test_tables_of_delta_may_lie_where_its_library_writes() -> None:
    for path in ("az://c/x", "abfss://c@a.dfs.core.windows.net/x", "s3a://b/x", "gs://b/x"):
        assert spelled_location(path, error=SinkError, schemes=SCHEMES) == path


def test_a_flow_without_places_is_taken() -> None:
    flow = compiled(gw.sinks.memory(), gw.sinks.noop(), gw.sinks.console())
    check_places(flow)
    assert (
        gw.testing.run(
            flow_of(gw.sources.memory("k string"), gw.sinks.memory()), {"s": pa.table({"k": ["a"]})}
        )
        .rows("o0")
        .num_rows
        == 1
    )

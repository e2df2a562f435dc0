"""What `gw.testing` sees of sinks: their configuration always, their targets if it is asked to."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import context, rows
from tests.support.postgres_sinks import execute, opened

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import GodwitError, InvalidFlowError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

ORDERS = "symbol string, price double, note string"
ROWS = {"orders": [("A", 2.0, "\0"), ("B", 1.0, None)]}
TOTALS = [{"symbol": "A", "total": 2.0}, {"symbol": "B", "total": 1.0}]


def market(sink: Any, *, raw: bool = False) -> gw.Flow:
    flow = gw.Flow("market", num_key_groups=4)
    orders = flow.source("orders", gw.testing.stream(ORDERS))
    totals = orders.key_by("symbol").compute(name="totals", total=gw.sum("price"))
    flow.sink("out", orders if raw else totals, sink)
    if raw:
        flow.sink("totals", totals, gw.sinks.noop())
    return flow


def checked(sink: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a run that checks the sink's target."""
    played = gw.testing.run(market(sink, **options), ROWS, check_sinks=True)
    return sorted(played.rows("out").to_pylist(), key=lambda row: str(row["symbol"]))


def tree(path: Path) -> set[str]:
    return {str(entry) for entry in path.rglob("*")}


UPSERTS: list[Callable[[], Any]] = [
    lambda: gw.sinks.delta("/nowhere/at/all", mode="upsert"),
    lambda: gw.sinks.iceberg("a.b", catalog={"type": "nothing"}, mode="upsert"),
    lambda: gw.sinks.postgres("host=127.0.0.1 port=1", "t", mode="upsert"),
]
UNFIT: list[Callable[[], Any]] = [
    lambda: gw.sinks.parquet("/nowhere/at/all", partition_by="nothing"),
    lambda: gw.sinks.parquet("/nowhere/at/all", keep=3),
    lambda: gw.sinks.delta("/nowhere/at/all", partition_by="nothing"),
    lambda: gw.sinks.postgres("host=127.0.0.1 port=1", "t", epoch_column="symbol"),
    lambda: gw.sinks.postgres("host=127.0.0.1 port=1", "t", mode="upsert", keys=["nothing"]),
    lambda: gw.sinks.kafka("127.0.0.1:1", "t", key="nothing"),
]


@pytest.mark.parametrize("sink", UPSERTS + UNFIT)
def test_configurations_that_do_not_fit_are_seen_without_targets(sink: Callable[[], Any]) -> None:
    for played in (gw.testing.run, gw.testing.cluster):
        with pytest.raises(
            SinkError, match=r"no columns identify|nothing|keep|epoch_column|column 'symbol'"
        ):
            played(market(sink(), raw=True))
    with pytest.raises(SinkError):
        market(sink(), raw=True).explain()


def test_changed_flows_are_checked_at_a_restart() -> None:
    with gw.testing.cluster(market(gw.sinks.noop())) as played, pytest.raises(SinkError):
        played.restart(market(gw.sinks.parquet("/nowhere/at/all", partition_by="nothing")))


DIRECTORIES: list[Callable[[Any], Any]] = [
    gw.sinks.parquet,
    gw.sinks.delta,
    lambda path: gw.sinks.iceberg(
        "a.b", catalog={"type": "sql", "uri": "sqlite:///c.db", "warehouse": f"{path}"}
    ),
]


@pytest.mark.parametrize("sink", DIRECTORIES)
def test_directories_are_tried_and_not_made(
    sink: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for path in ("new/deep", "empty"):
        assert checked(sink(tmp_path / path)) == TOTALS
    for unfit in ("/proc/out", tmp_path / "file", tmp_path / "file/below", "/dev/null"):
        with pytest.raises(SinkError, match=r"no directory can be made here|not a directory"):
            checked(sink(unfit))
    assert tree(tmp_path) == before


def test_directories_of_others_are_refused(tmp_path: Path) -> None:
    sink = gw.sinks.parquet(tmp_path / "out")
    sink.open(context(name="out"))
    sink.deliver(rows(0, ("N1", 1)))
    before = tree(tmp_path)
    with pytest.raises(SinkError, match="belongs to sink 'out' of query query-1"):
        checked(gw.sinks.parquet(tmp_path / "out"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/theirs.csv").touch()
    with pytest.raises(SinkError, match="already holds theirs"):
        checked(gw.sinks.parquet(tmp_path / "foreign"))
    assert tree(tmp_path) == before | {str(tmp_path / "foreign"), f"{tmp_path}/foreign/theirs.csv"}
    sink.deliver(rows(1, ("N2", 2)))  # what is open stays open
    sink.close()
    assert gw.sinks.latest_epoch(tmp_path / "out") == 1


def test_tables_of_delta_with_other_columns_are_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"symbol": ["A"], "total": ["text"]}))
    deltalake.write_deltalake(tmp_path / "fits", pa.table({"symbol": ["A"], "total": [1.0]}))
    before = tree(tmp_path)
    with pytest.raises(SinkError, match="the table has other columns"):
        checked(gw.sinks.delta(tmp_path / "t"))
    assert checked(gw.sinks.delta(tmp_path / "fits", mode="upsert")) == TOTALS
    assert tree(tmp_path) == before


def test_tables_of_iceberg_with_other_columns_are_refused(tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="Iceberg tests need pyiceberg.")
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}",
    }
    loaded = catalogs.load_catalog("default", **catalog)
    loaded.create_namespace("a")
    loaded.create_table("a.t", pa.schema([("symbol", pa.string()), ("total", pa.string())]))
    loaded.create_table("a.fits", pa.schema([("symbol", pa.string()), ("total", pa.float64())]))
    with pytest.raises(SinkError, match="the table has other columns"):
        checked(gw.sinks.iceberg("a.t", catalog=catalog))
    assert checked(gw.sinks.iceberg("a.fits", catalog=catalog)) == TOTALS
    assert checked(gw.sinks.iceberg("b.new", catalog=catalog)) == TOTALS
    assert loaded.load_table("a.fits").current_snapshot() is None
    assert loaded.list_namespaces() == [("a",)]
    loaded.close()


def test_tables_of_postgres_are_prepared_and_undone(postgres: str) -> None:
    checks = "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    assert checked(gw.sinks.postgres(postgres, "new")) == TOTALS
    with pytest.raises(SinkError, match="does not exist"):
        checked(gw.sinks.postgres(postgres, "new", create=False))
    assert execute(postgres, checks) == []
    execute(postgres, "CREATE TABLE t (symbol text, total text)")
    with pytest.raises(SinkError, match="total"):
        checked(gw.sinks.postgres(postgres, "t"))
    execute(postgres, "ALTER TABLE t ALTER total TYPE double precision USING 0")
    with pytest.raises(SinkError, match="UNIQUE"):
        checked(gw.sinks.postgres(postgres, "t", mode="upsert"))
    assert execute(postgres, checks) == [("t",)]


def test_rows_that_a_target_refuses_are_named(postgres: str) -> None:
    with pytest.raises(GodwitError, match="zero byte") as refused:
        checked(gw.sinks.postgres(postgres, "t"), raw=True)
    assert "'out'" in str(refused.value)
    sink = gw.sinks.postgres(postgres, "t", rejects=gw.sinks.memory())
    played = gw.testing.run(market(sink, raw=True), ROWS, check_sinks=True)
    assert played.rows("out")["symbol"].to_pylist() == ["B"]
    [rejected] = played.rows("out_rejects").to_pylist()
    assert rejected["sink"] == "out"
    assert "zero byte" in rejected["reason"]


def test_an_open_sink_is_not_disturbed_by_a_check(postgres: str) -> None:
    with opened(postgres, context(name="out")) as sink:
        with pytest.raises(SinkError, match="no column 'symbol'"):
            checked(sink)
        sink.deliver(rows(0, ("N1", 1)))
    assert execute(postgres, "SELECT plane, total FROM target") == [("N1", 1)]


def test_servers_that_do_not_answer_are_seen() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(SinkError, match="cannot be opened"):
            checked(gw.sinks.postgres(f"host=127.0.0.1 port={port} dbname=x", "t"))


@pytest.mark.kafka
def test_topics_of_kafka_are_looked_up_only(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    sink = gw.sinks.kafka(kafka.servers, topic)
    sink.open(context(name="out"))
    assert checked(gw.sinks.kafka(kafka.servers, topic)) == TOTALS
    assert checked(sink) == TOTALS
    with pytest.raises(SinkError, match="cannot find topic"):
        checked(gw.sinks.kafka(kafka.servers, f"{topic}-not"))
    sink.open(context(name="out"))
    sink.deliver(rows(0, ("N1", 1)))  # no other producer has fenced it
    sink.close()
    assert len(kafka.values(topic)) == 1


class Own(gw.sinks.Sink):
    """Sink of a user, with checks."""

    asked: int = 0
    fails: Exception | None = None
    answer: Any = None

    def check(self, context: gw.sinks.SinkContext) -> Any:
        self.asked += 1
        assert context.schema.names == ["symbol", "total"]
        if self.fails is not None:
            raise self.fails
        return self.answer

    def open(self, context: gw.sinks.SinkContext) -> None:
        raise AssertionError

    def deliver(self, output: gw.sinks.EpochOutput) -> None:
        raise AssertionError


def test_sinks_of_users_are_asked() -> None:
    sink = Own()
    gw.testing.run(market(sink), ROWS)
    assert sink.asked == 0
    assert checked(sink) == TOTALS
    with gw.testing.cluster(market(sink), check_sinks=True):
        assert sink.asked == 2
    sink.answer = True
    with pytest.raises(SinkError, match=r"check of sink 'out' returned .* bool"):
        checked(sink)
    sink.fails = OSError("no route")
    with pytest.raises(SinkError, match="Sink 'out' cannot be checked: OSError: no route"):
        checked(sink)


@pytest.mark.parametrize("sink", [gw.sinks.memory, gw.sinks.console, gw.sinks.noop])
def test_sinks_without_targets_take_all(sink: Callable[[], Any]) -> None:
    assert checked(sink()) == TOTALS


def test_one_target_of_two_sinks_is_seen_without_asking_it(tmp_path: Path) -> None:
    flow = market(gw.sinks.parquet(tmp_path / "out"), raw=True)
    flow.sink(
        "again",
        flow.source("more", gw.testing.stream(ORDERS))
        .key_by("symbol")
        .compute(name="more", n=gw.count()),
        gw.sinks.parquet(f"{tmp_path}/x/../out/"),
    )
    with pytest.raises(InvalidFlowError, match="write to one place"):
        gw.testing.run(flow)


def test_the_checkpoint_of_a_query_is_compared_with_its_targets(tmp_path: Path) -> None:
    checkpoint = CheckpointStorage.open(tmp_path / "ck")
    with gw.testing.cluster(market(gw.sinks.noop()), checkpoint=tmp_path / "ck") as played:
        played.epoch(ROWS)
    query = CommitLog.open_read_only(checkpoint).identity.query_id
    ours = gw.sinks.parquet(tmp_path / "out")
    ours.open(context(name="out", query_id=query))
    ours.close()
    again = market(gw.sinks.parquet(tmp_path / "out"))
    with gw.testing.cluster(again, checkpoint=tmp_path / "ck", check_sinks=True) as played:
        assert played.epoch(ROWS)["out"].num_rows == 2
    with pytest.raises(SinkError, match=f"of query {query}"):
        gw.testing.run(again, ROWS, check_sinks=True)

"""Sinks that write by key mirror a changing table: the target has its live rows, after each epoch.

Changes are drawn, go through operators in this process, and are delivered to real targets.  The
oracle is a dict of live rows.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import EpochRows, context
from tests.support.postgres_sinks import execute, opened
from tests.support.rounds import rounds

import godwit as gw
from godwit.columns.signed import CHANGE
from godwit.model.errors import SinkError
from godwit.sinks.checks import context_of
from godwit.sinks.rows import rows_to_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

    from godwit.plan.staging import Rejections
    from godwit.sinks.sink import Sink

pytest.importorskip("psycopg", reason="one of the targets")

COLUMNS = "k string, n long, v double, change byte"
Table = dict[Any, tuple[Any, ...]]
SIGNED = pa.schema([("plane", pa.string()), ("total", pa.int64()), CHANGE])
CHANGES = context(schema=SIGNED, kind="changes", table_keys=("plane",), unique_keys=())


@dataclass(frozen=True, slots=True)
class Target:
    """A place: how a sink on it is made, and how the rows by key are read."""

    sink: Callable[[], Sink]
    read: Callable[[], Table]


def _postgres(dsn: str, _: Path) -> Target:
    def read() -> Table:
        return {row[0]: tuple(row[1:]) for row in execute(dsn, "SELECT k, n, v FROM mirror")}

    return Target(lambda: gw.sinks.postgres(dsn, "mirror", mode="upsert", keys="k"), read)


def _delta(_: Any, path: Path) -> Target:
    deltalake = pytest.importorskip("deltalake", reason="one of the targets")

    def read() -> Table:
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path / "t"))
        rows = pa.table(query.execute("SELECT k, n, v FROM t")).to_pylist()
        assert len({row["k"] for row in rows}) == len(rows)
        return {row["k"]: (row["n"], row["v"]) for row in rows}

    return Target(lambda: gw.sinks.delta(path / "t", mode="upsert", keys="k"), read)


def _iceberg(_: Any, path: Path) -> Target:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="one of the targets")
    catalog = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}"}

    def read() -> Table:
        opened = catalogs.load_catalog("default", **catalog)
        rows = opened.load_table("a.mirror").scan().to_arrow().to_pylist()
        opened.close()
        assert len({row["k"] for row in rows}) == len(rows)
        return {row["k"]: (row["n"], row["v"]) for row in rows}

    def make() -> Sink:
        return gw.sinks.iceberg("a.mirror", catalog=catalog, mode="upsert", keys="k")

    return Target(make, read)


def _kafka(broker: KafkaBroker, _: Path) -> Target:
    topic = broker.topic(2)

    def read() -> Table:
        table: Table = {}
        for message in broker.read(topic):
            key = message.key() and message.key().decode()
            if message.value() is None:
                table.pop(key, None)
            else:
                row = json.loads(message.value())
                assert (row.pop("k"), set(row)) == (key, {"n", "v"})
                table[key] = (row["n"], row["v"])
        return table

    return Target(lambda: gw.sinks.kafka(broker.servers, topic, key="k"), read)


def _events(broker: KafkaBroker, _: Path) -> Target:
    """Read events of Debezium as its documentation says, and by the format that wrote them."""
    topic = broker.topic(2)
    columns = "k string, n long, v double"
    written = gw.formats.debezium(columns, key="k", before=True)

    def read() -> Table:
        table: Table = {}
        messages = broker.read(topic)
        for message in messages:
            key = json.loads(message.key())["k"]
            if message.value() is None:
                assert key not in table
                continue
            event = json.loads(message.value())
            former = event["before"] or {}
            assert tuple(former.values()) == (key, *table.get(key, ()))[: len(former)]
            if event["op"] == "d":
                assert event["after"] is None
                table.pop(key, None)
            else:
                assert (event["op"] == "u") or (event["op"] == "c" and key not in table)
                table[key] = tuple(event["after"].values())[1:]
        keys, values = zip(*((m.key(), m.value()) for m in messages), strict=True)
        mirror: Table = {}
        read_as = gw.formats.debezium(columns, key="k")
        decoded = read_as.decode(values, read_as.schema.names, keys)
        assert not decoded.bad
        for row in decoded.rows.to_pylist():
            mirror.pop(row["k"], None)
            if row["change"] == 1:
                mirror[row["k"]] = (row["n"], row["v"])
        assert mirror == table
        return table

    return Target(lambda: gw.sinks.kafka(broker.servers, topic, value=written), read)


def _sql(url: str | None, path: Path) -> Target:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="one of the targets")
    place = url or f"sqlite:///{path}/t.db"

    def read() -> Table:
        engine = sqlalchemy.create_engine(place)
        with engine.connect() as connection:
            rows = connection.execute(sqlalchemy.text("SELECT k, n, v FROM mirror")).all()
        engine.dispose()
        return {row[0]: tuple(row[1:]) for row in rows}

    return Target(lambda: gw.sinks.sql(place, "mirror", mode="upsert", keys="k"), read)


def _redis(url: str, _: Path) -> Target:
    from redis import Redis

    def number(text: bytes | None) -> Any:
        return None if text is None else json.loads(text)

    def read() -> Table:
        with Redis.from_url(url) as client:
            rows = [client.hgetall(name) for name in client.scan_iter("mirror:?")]
        return {row[b"k"].decode(): (number(row.get(b"n")), number(row.get(b"v"))) for row in rows}

    return Target(lambda: gw.sinks.redis(url, "mirror", keys="k"), read)


TARGETS: dict[str, tuple[Callable[[Any, Path], Target], str | None]] = {
    "postgres": (_postgres, "postgres"),
    "delta": (_delta, None),
    "iceberg": (_iceberg, None),
    "kafka": (_kafka, "kafka"),
    "events": (_events, "kafka"),
    "sqlite": (_sql, None),
    "mariadb": (_sql, "mariadb"),
    "redis": (_redis, "redis"),
}
NEEDS_KEY = {"kafka", "sqlite", "mariadb", "redis"}


def _drawn(
    rng: random.Random, live: Table, keys: list[str | None], *, before: bool
) -> list[tuple[Any, ...]]:
    """Insert, update and delete rows, with keys used again; return the epoch's changes.

    `before`: changes, and in any order; else upserts.
    """
    rows: list[tuple[Any, ...]] = []
    for _ in range(rng.choice([0, 1, 4, 12])):
        key = rng.choice(keys)
        if key in live and (before or rng.random() < 0.4):
            former = live.pop(key)
            rows.append((key, *(former if before else (None, None)), -1))
        if rng.random() < 0.6:
            live[key] = (rng.choice([1, 2, None]), rng.choice([0.5, 1.5, None]))
            rows.append((key, *live[key], 1))
    if before:
        rng.shuffle(rows)
    return rows


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.redis
@pytest.mark.kafka
@pytest.mark.parametrize(
    ("name", "way"),
    # Newest rows are changes to any target.
    [*itertools.product(TARGETS, ["changes", "upserts"]), ("postgres", "latest")],
)
def test_a_target_has_the_live_rows_of_the_table(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, way: str
) -> None:
    make, server = TARGETS[name]
    target = make(request.getfixturevalue(server) if server else None, tmp_path)
    rng = random.Random(f"{name} {way}")
    keys = ["a", "b", "c", "d", "e", "f" if name in NEEDS_KEY else None]
    flow = gw.Flow("mirror", num_key_groups=4)
    rows = flow.source("rows", gw.testing.stream(COLUMNS))
    sink, live = target.sink(), Table()
    if way == "latest":
        flow.sink("mirror", rows.as_upserts().key_by("k").latest(), sink)
    else:
        flow.sink("mirror", rows.as_changes() if way == "changes" else rows.as_upserts(), sink)
    with gw.testing.cluster(flow, executors=2) as run:
        (output,) = run.flow.outputs
        ctx = context_of(output, run.flow, query_id="query-1")
        sink.open(ctx)
        for epoch in range(rounds(5, 6 if name in {"delta", "iceberg"} else 12)):
            out = run.epoch({"rows": _drawn(rng, live, keys, before=way == "changes")})
            staged = EpochRows(epoch=epoch, table=out["mirror"])
            sink.deliver(staged)
            if epoch % 3 == 1:  # a restart delivers the last epoch again
                sink.close()
                sink = target.sink()
                sink.open(ctx)
                sink.deliver(staged)
            assert target.read() == live
        sink.close()


@pytest.mark.parametrize("seed", range(40))
def test_one_row_is_left_of_each_key_and_deletes_come_first(seed: int) -> None:
    rng = random.Random(seed)
    schema = pa.schema([("k", pa.float64()), ("l", pa.list_(pa.int64())), CHANGE])
    live: Table = {k: ([1],) for k in (0.0, 1.0, None) if rng.random() < 0.5}
    mirror = dict(live)
    for epoch in range(4):
        rows = []
        for _ in range(rng.randrange(10)):
            key = rng.choice([0.0, 1.0, None])
            if key in live:
                rows.append((-0.0 if key == 0 and rng.random() < 0.5 else key, *live.pop(key), -1))
            if rng.random() < 0.7:
                live[key] = (rng.choice([None, [1], [2, None]]),)
                rows.append((key, *live[key], 1))
        rng.shuffle(rows)
        table = pa.Table.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
        )
        output = EpochRows(epoch=epoch, table=table)
        netted = pa.Table.from_batches(rows_to_write(output, schema, ["k"], "s", "changes"), schema)
        keys, signs = netted.column("k").to_pylist(), netted.column(CHANGE.name).to_pylist()
        assert len(set(keys)) == len(keys)
        assert signs == sorted(signs)
        for key, values, sign in zip(keys, netted.column("l").to_pylist(), signs, strict=True):
            if sign == 1:
                mirror[key] = (values,)
            else:
                assert values is None
                mirror.pop(key, None)
        assert mirror == live


def _epoch(number: int, *rows: tuple[Any, ...], **fields: Any) -> EpochRows:
    named = [dict(zip(SIGNED.names, row, strict=True)) for row in rows]
    return EpochRows(epoch=number, table=pa.Table.from_pylist(named, schema=SIGNED), **fields)


@pytest.mark.postgres
def test_others_rows_stay_and_rows_that_the_server_refuses_are_diverted(postgres: str) -> None:
    execute(
        postgres,
        "CREATE TABLE target (plane text UNIQUE NULLS NOT DISTINCT, total bigint UNIQUE NOT NULL "
        "CHECK (total < 100), note text)",
        "INSERT INTO target VALUES ('theirs', 7, 'n'), ('N1', 5, 'ours')",
    )
    diverted: list[Any] = []

    def divert(rows: pa.RecordBatch, rejections: Rejections) -> None:
        diverted[:] = rows.take(pa.array(rejections.rows)).to_pylist()

    rejects = gw.sinks.memory()
    with opened(postgres, CHANGES, mode="upsert", rejects=rejects) as sink:
        rows = _epoch(0, ("N2", 9, 1), ("N1", 5, -1), (None, 5, 1), ("no", None, -1)).table
        check = sink.row_check()
        assert check(rows.to_batches()[0]) is None  # a delete may be null where the table is not
        wrong = [("y", 1, sign) for sign in (0, None, 2)]
        bad = check(_epoch(0, wrong[0], ("x", 1, -1), ("\0", 1, 1), *wrong).table.to_batches()[0])
        assert bad is not None
        assert bad.rows.tolist() == [0, 2, 3, 4, 5]
        assert "zero byte" in bad.reasons[1]
        assert {*bad.reasons[:1], *bad.reasons[2:]} == {"column 'change' is neither 1 nor -1"}
        sink.deliver(EpochRows(epoch=0, table=rows, on_divert=divert))
        assert execute(postgres, "SELECT plane, total, note FROM target ORDER BY total") == [
            (None, 5, None),  # has the number of the row that was deleted in the same epoch
            ("theirs", 7, "n"),
            ("N2", 9, None),
        ]
        assert diverted == []
        sink.deliver(
            _epoch(1, ("N3", 500, 1), (None, 5, -1), ("N4", 5, 1), ("N2", 9, -1), on_divert=divert)
        )
        assert [row["plane"] for row in diverted] == ["N3"]
        table = "SELECT plane, total, note FROM target ORDER BY total"
        assert execute(postgres, table) == [("N4", 5, None), ("theirs", 7, "n")]
        execute(
            postgres,
            "CREATE TABLE legs (plane text REFERENCES target (plane))",
            "INSERT INTO legs VALUES ('N4')",
        )
        sink.deliver(_epoch(2, ("N5", 8, 1), ("N4", 5, -1), on_divert=divert))
        assert [(row["plane"], row["change"]) for row in diverted] == [("N4", -1)]
    assert execute(postgres, table) == [("N4", 5, None), ("theirs", 7, "n"), ("N5", 8, None)]


@pytest.mark.postgres
def test_tables_in_which_deletes_may_do_something_else_are_refused(postgres: str) -> None:
    execute(
        postgres,
        "CREATE TABLE target (plane text PRIMARY KEY, total bigint)",
        "CREATE RULE stay AS ON DELETE TO target DO INSTEAD NOTHING",
    )
    with opened(postgres, mode="upsert"):
        pass
    with pytest.raises(SinkError, match="rule ON INSERT or UPDATE or DELETE"):
        opened(postgres, CHANGES, mode="upsert").__enter__()
    execute(
        postgres,
        "DROP RULE stay ON target",
        "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
        "CREATE ROLE writer LOGIN",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON target TO writer",
        f"GRANT USAGE, CREATE ON SCHEMA {postgres.rpartition('=')[2]} TO writer",
    )
    as_writer = postgres.replace("user=postgres", "user=writer")
    try:
        with pytest.raises(SinkError, match="under which deletes may miss rows"):
            opened(as_writer, CHANGES, mode="upsert").__enter__()
    finally:
        execute(postgres, "DROP OWNED BY writer", "DROP ROLE writer")


CONTEXTS: Mapping[str, dict[str, Any]] = {
    "no columns identify": {"table_keys": ()},
    "column 'unchanged' names": {
        "kind": "upserts",
        "schema": pa.schema([*SIGNED, ("unchanged", pa.string())]),
    },
    "a complete result as changes": {"complete": True},
}


@pytest.mark.parametrize("message", list(CONTEXTS))
def test_changes_that_do_not_say_what_a_table_has_are_refused(message: str) -> None:
    fields = {"schema": SIGNED, "kind": "changes", "unique_keys": (), "table_keys": ("plane",)}
    ctx = context(**(fields | CONTEXTS[message]))
    for sink in (
        gw.sinks.delta("/nowhere/at/all", mode="upsert"),
        gw.sinks.postgres("host=127.0.0.1 port=1", "t", mode="upsert"),
    ):
        with pytest.raises(SinkError, match=message):
            sink.check_columns(ctx)


def test_keys_of_messages_are_those_of_the_table_and_name_one_partition() -> None:
    sink = gw.sinks.kafka("127.0.0.1:1", "t", key="total")
    with pytest.raises(SinkError, match="would replace one another"):
        sink.check_columns(CHANGES)
    sink = gw.sinks.kafka("127.0.0.1:1", "t", key="plane", partition_column="total")
    with pytest.raises(SinkError, match="not part of the key"):
        sink.check_columns(CHANGES)
    gw.sinks.kafka("127.0.0.1:1", "t", partition_column="total").check_columns(CHANGES)
    events = gw.formats.debezium("plane string, total long", key="plane")
    gw.sinks.kafka("127.0.0.1:1", "t", value=events).check_columns(CHANGES)
    with pytest.raises(SinkError, match="an update as a delete and an insert"):
        gw.sinks.kafka("127.0.0.1:1", "t", value=events, mode="changes").check_columns(CHANGES)


@pytest.mark.kafka
def test_rows_without_a_key_or_a_sign_cannot_be_messages(kafka: KafkaBroker) -> None:
    sink = gw.sinks.kafka(kafka.servers, kafka.topic(), key="plane")
    sink.open(CHANGES)
    rows = _epoch(0, ("x", 1, 1), (None, 1, 1), ("x", 1, None), ("x", 1, -1), ("x", 1, 0))
    bad = sink.row_check()(rows.table.to_batches(max_chunksize=9)[0])
    sink.close()
    assert bad is not None
    assert (bad.rows.tolist(), "key is null" in bad.reasons[0]) == ([1, 2, 4], True)
    assert "neither 1 nor -1" in bad.reasons[1]


def test_appended_changes_have_their_sign_and_sinks_that_cannot_delete_say_so() -> None:
    from examples.sqlite.godwit_sqlite import to_table

    from godwit.sinks.rows import upsert_keys

    flow = gw.Flow("changes")
    rows = flow.source("rows", gw.testing.stream(COLUMNS)).as_changes()
    for number, sink in enumerate((to_table("x.db", "t"), gw.sinks.parquet("/nowhere/at/all"))):
        flow.sink(f"log{number}", rows, sink)
    played = gw.testing.run(flow, {"rows": [("a", 1, 0.5, 1), ("a", 1, 0.5, -1)]})
    assert played.rows("log0").column("change").to_pylist() == [1, -1]
    with pytest.raises(SinkError, match="cannot delete rows"):
        upsert_keys(CHANGES, "plane")

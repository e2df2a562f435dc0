"""Sinks with ``order_by=``: no older row replaces a newer one, and a history has every version.

Rows are drawn with versions in any order, and delivered to real targets in epochs of any size, some
of them twice.  The oracles are a dict of newest rows, and the sorted log of each key.
"""

from __future__ import annotations

import json
import pickle
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import EpochRows, context
from tests.support.postgres_sinks import execute
from tests.support.rounds import rounds

import godwit as gw
from godwit.columns.signed import CHANGE
from godwit.connect.sink_contract import _CrashError, _Steps
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

    from godwit.columns.signed import Kind
    from godwit.sinks.sink import Sink, SinkContext

pytest.importorskip("psycopg", reason="one of the targets")

SEEDS = range(rounds(1, 200))
Event = tuple[Any, Any, Any, int]  # key, version, value, sign
TABLE = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.float64())])
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Target:
    """A place: how a sink on it is made, and how columns of its rows are read, sorted."""

    sink: Callable[..., Sink]
    read: Callable[[str], Rows]


def _sorted(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))


def _postgres(dsn: str, _: Path) -> Target:
    def read(columns: str) -> Rows:
        return _sorted(execute(dsn, f"SELECT {columns} FROM versions"))

    return Target(lambda **options: gw.sinks.postgres(dsn, "versions", **options), read)


def _delta(_: Any, path: Path) -> Target:
    deltalake = pytest.importorskip("deltalake", reason="one of the targets")

    def read(columns: str) -> Rows:
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path / "t"))
        rows = pa.table(query.execute(f"SELECT {columns} FROM t"))
        return _sorted([tuple(row.values()) for row in rows.to_pylist()])

    return Target(lambda **options: gw.sinks.delta(path / "t", **options), read)


def _iceberg(_: Any, path: Path) -> Target:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="one of the targets")
    catalog = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}"}

    def read(columns: str) -> Rows:
        opened = catalogs.load_catalog("default", **catalog)
        rows = opened.load_table("a.t").scan(selected_fields=tuple(columns.split(", "))).to_arrow()
        opened.close()
        return _sorted(
            [tuple(row.values()) for row in rows.select(columns.split(", ")).to_pylist()]
        )

    return Target(lambda **options: gw.sinks.iceberg("a.t", catalog=catalog, **options), read)


def _sql(url: str | None, path: Path) -> Target:
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="one of the targets")
    place = url or f"sqlite:///{path}/t.db"

    def read(columns: str) -> Rows:
        engine = sqlalchemy.create_engine(place)
        table = sqlalchemy.Table("versions", sqlalchemy.MetaData(), autoload_with=engine)
        with engine.connect() as connection:
            query = sqlalchemy.select(*(table.c[name] for name in columns.split(", ")))
            rows = [tuple(row) for row in connection.execute(query)]
        engine.dispose()
        return _sorted(rows)

    return Target(lambda **options: gw.sinks.sql(place, "versions", **options), read)


TARGETS: dict[str, tuple[Callable[[Any, Path], Target], str | None]] = {
    "postgres": (_postgres, "postgres"),
    "delta": (_delta, None),
    "iceberg": (_iceberg, None),
    "sqlite": (_sql, None),
    "mariadb": (_sql, "mariadb"),
}
NULL_KEYS = {"postgres", "delta", "iceberg"}


def target_of(request: pytest.FixtureRequest, name: str, path: Path) -> Target:
    make, server = TARGETS[name]
    return make(request.getfixturevalue(server) if server else None, path)


def context_for(kind: Kind) -> SinkContext:
    schema = TABLE if kind == "rows" else TABLE.append(CHANGE)
    fields: dict[str, Any] = {"keys": ("k",), "unique_keys": (("k",),) if kind == "rows" else ()}
    return context(schema=schema, kind=kind, table_keys=("k",), **fields)


def epoch_of(number: int, events: list[Event], kind: Kind) -> EpochRows:
    schema = context_for(kind).schema
    rows = [dict(zip(schema.names, event, strict=False)) for event in events]
    return EpochRows(epoch=number, table=pa.Table.from_pylist(rows, schema=schema), batch_rows=3)


def drawn(
    rng: random.Random, kind: Kind, num: int, *, keys: Sequence[str | None], versions: int = 9
) -> list[Event]:
    """Events in any order; deletes of upserts have no values, and those of changes any."""
    events: list[Event] = []
    for _ in range(num):
        sign = 1 if kind == "rows" else rng.choice([1, 1, -1])
        bare = sign < 0 and kind == "upserts"
        value = None if bare else rng.choice([None, 0.5, 1.5])
        events.append((rng.choice(keys), rng.randrange(versions), value, sign))
    return events


def delivered(
    target: Target, rng: random.Random, kind: Kind, epochs: list[list[Event]], **options: Any
) -> None:
    """Deliver epochs, some of them again, also by another sink, as after a crash at any line."""

    def opened() -> Sink:
        sink = target.sink(**options)
        sink.open(context_for(kind))
        return sink

    sink = opened()
    lines: Counter[tuple[str, int]] = Counter()
    for number, events in enumerate(epochs):
        epoch, died = epoch_of(number, events, kind), False
        if lines and rng.random() < 0.8:
            sink.deliver(epoch)
        else:
            line = rng.choice(sorted(lines)) if lines else None
            try:
                with _Steps(type(sink), line) as steps:
                    sink.deliver(epoch)
            except _CrashError:
                died = True
            lines |= steps.counts
        again = rng.random()
        if died or again < 0.2:
            sink.close()
            sink = opened()
        if died or again < 0.4:
            sink.deliver(epoch)
    sink.close()


def cut(rng: random.Random, events: list[Event], sizes: list[int]) -> list[list[Event]]:
    epochs = []
    while events:
        size = rng.choice(sizes)
        epochs.append(events[:size])
        events = events[size:]
    return epochs


def newest(epochs: list[list[Event]], kind: Kind) -> dict[Any, Event]:
    """Brute force: the newest event of each key; of equal versions the last one.

    In an epoch of changes equal rows with 1 and -1 cancel out, and of those left one with 1 counts.
    """
    table: dict[Any, Event] = {}
    for events in epochs:
        left = list(events)
        if kind == "changes":
            net: dict[tuple[Any, ...], int] = {}
            for *row, sign in events:
                net[tuple(row)] = net.pop(tuple(row), 0) + sign  # in order of their last change
            rows = [(*row, 1 if sign > 0 else -1) for row, sign in net.items() if sign]
            left = sorted(rows, key=lambda event: event[3])
        for event in left:
            before = table.get(event[0])
            if before is None or event[1] >= before[1]:
                table[event[0]] = event
    return table


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("kind", ["rows", "changes", "upserts"])
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("seed", SEEDS)
def test_the_newest_row_of_each_key_stays_whatever_comes_late(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, kind: Kind, seed: int
) -> None:
    rng = random.Random(f"{name} {kind} {seed}")
    target = target_of(request, name, tmp_path)
    num, sizes = rounds(24, 50), [0, 2, 5, 9]
    if name in {"delta", "iceberg"}:
        num, sizes = rounds(15, 24), [1, 4, 9]
    keys = ["a", "b", "c", None if name in NULL_KEYS else "B"]
    epochs = cut(rng, drawn(rng, kind, num, keys=keys), sizes)
    delivered(target, rng, kind, epochs, mode="upsert", keys="k", order_by="at")
    table = newest(epochs, kind)
    expected = [
        (k, at, v if sign > 0 else None, *([] if kind == "rows" else [sign < 0]))
        for k, at, v, sign in table.values()
    ]
    assert target.read("k, at, v" + ("" if kind == "rows" else ", deleted")) == _sorted(expected)


def history_of(events: list[Event]) -> Rows:
    """Brute force: sort the log of each key; each row is valid until the next event."""
    log: dict[Any, dict[int, Event]] = {}
    for event in events:
        log.setdefault(event[0], {})[event[1]] = event
    rows: Rows = []
    for key, versions in log.items():
        ordered = [versions[version] for version in sorted(versions)]
        for number, (_, at, value, sign) in enumerate(ordered):
            if sign > 0:
                end = ordered[number + 1][1] if number + 1 < len(ordered) else None
                rows.append((key, at, end, end is None, value))
            elif number == 0 or ordered[number - 1][3] < 0:
                rows.append((key, at, at, False, None))
    return _sorted(rows)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["rows", "upserts"])
@pytest.mark.parametrize("name", ["postgres", "delta"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_is_that_of_the_sorted_log(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, kind: Kind, seed: int
) -> None:
    rng = random.Random(f"history {name} {kind} {seed}")
    target = target_of(request, name, tmp_path)
    num, sizes = (60, [0, 2, 5, 9]) if name == "postgres" else (30, [1, 4, 9])
    epochs = cut(rng, drawn(rng, kind, num, keys=["a", "b", None], versions=14), sizes)
    rename = {"valid_to": "until"}
    delivered(target, rng, kind, epochs, mode="history", keys="k", order_by="at", rename=rename)
    events = [event for epoch in epochs for event in epoch]
    assert target.read("k, valid_from, until, current, v") == history_of(events)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a history needs a column": ({"mode": "history"}, {}),
    "order_by means nothing": ({"mode": "append", "order_by": "at"}, {}),
    "rename names 'valid_to'": (
        {"mode": "upsert", "order_by": "at", "rename": {"valid_to": "x"}},
        {},
    ),
    "order_by names 'when'": ({"mode": "upsert", "order_by": "when"}, {}),
    "order_by is 5, and not the name": ({"mode": "upsert", "order_by": 5}, {}),
    "rename 'deleted' is '', and not": (
        {"mode": "upsert", "order_by": "at", "rename": {"deleted": ""}},
        {},
    ),
    "no columns identify its rows": ({"mode": "upsert", "keys": []}, {}),
    "which is one of its keys": ({"mode": "upsert", "keys": ["k", "at"], "order_by": "at"}, {}),
    "type double, whose order": ({"mode": "upsert", "order_by": "v"}, {}),
    "do not say when a row was deleted": (
        {"mode": "history", "order_by": "at"},
        {"kind": "changes"},
    ),
    "would have column 'v' twice": (
        {"mode": "upsert", "order_by": "at", "rename": {"deleted": "v"}},
        {"kind": "upserts"},
    ),
    "a complete result, which replaces": (
        {"mode": "upsert", "order_by": "at"},
        {"kind": "rows", "complete": True},
    ),
    "changes of a table, and gets rows that": ({"mode": "changes"}, {"kind": "rows"}),
    "changes of a table, and gets a complete": ({"mode": "changes"}, {"complete": True}),
}


@pytest.mark.parametrize("message", list(REFUSED))
def test_versions_that_could_not_be_right_are_refused(message: str, tmp_path: Path) -> None:
    options, fields = REFUSED[message]
    ctx = replace(context_for(fields.get("kind", "upserts")), **fields)
    for make in (
        partial(gw.sinks.delta, tmp_path / "t"),
        partial(gw.sinks.postgres, "host=127.0.0.1 port=1", "t"),
    ):
        with pytest.raises(SinkError, match=re.escape(message)):
            make(**options).check_columns(ctx)


def test_every_row_has_a_version_and_deletes_need_no_values(tmp_path: Path) -> None:
    schema = pa.schema([TABLE.field("k"), TABLE.field("at"), pa.field("v", pa.float64(), False)])
    ctx = replace(context_for("upserts"), schema=schema.append(CHANGE))
    sink = gw.sinks.delta(tmp_path / "t", mode="history", order_by="at")
    sink.open(ctx)
    check = pickle.loads(pickle.dumps(sink.row_check()))
    rows = epoch_of(
        0,
        [
            ("a", 1, 1.0, 1),
            ("a", None, 1.0, 1),
            ("b", None, None, -1),
            ("c", 1, None, -1),
            ("d", 1, 1.0, 0),
        ],
        "upserts",
    )
    bad = check(pa.concat_batches(rows.batches()))
    assert (bad.rows.tolist(), bad.reasons[0]) == (
        [1, 2, 4],
        "column 'at' is null, by which rows are ordered",
    )


@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["changes", "upserts"])
def test_a_table_of_changes_has_every_change(
    kind: Kind, postgres: str, mariadb: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(1)

    def of_topic(columns: str) -> Rows:
        values = (json.loads(message.value()) for message in kafka.read(topic))
        return _sorted([tuple(value[name] for name in columns.split(", ")) for value in values])

    def of_files(columns: str) -> Rows:
        files = (pq.ParquetFile(path).read() for path in tmp_path.glob("p/epoch=*/*.parquet"))
        rows = pa.concat_tables(files).select(columns.split(", ")).to_pylist()
        return _sorted([tuple(row.values()) for row in rows])

    targets = [
        *(TARGETS[name][0](postgres, tmp_path) for name in ("postgres", "delta", "iceberg")),
        _sql(None, tmp_path),
        _sql(mariadb, tmp_path),
        Target(partial(gw.sinks.parquet, tmp_path / "p"), of_files),
        Target(partial(gw.sinks.kafka, kafka.servers, topic, key="k"), of_topic),
    ]
    rng = random.Random(kind)
    epochs = cut(rng, drawn(rng, kind, 20, keys=["a", "b", "c"]), [3, 9])
    for target in targets:
        delivered(target, rng, kind, epochs, mode="changes")
        expected = _sorted([event for events in epochs for event in events])
        assert target.read("k, at, v, change") == expected

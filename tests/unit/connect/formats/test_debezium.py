"""Change events of Debezium and compacted topics: which rows and signs they become.

The events are written by a small writer of Connect's JSON, as the documentation of the connectors
gives them: with a schema and without, decimals as bytes, times in their units.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError

UTC = dt.UTC
EXACT = Context(prec=60)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = (
    "id long, name string, price decimal(10, 2), born date, seen timestamp, raw binary, r double"
)
TYPES = {
    "id": ("int64", None, {}),
    "name": ("string", None, {}),
    "price": ("bytes", "org.apache.kafka.connect.data.Decimal", {"scale": "2"}),
    "born": ("int32", "io.debezium.time.Date", {}),
    "seen": ("int64", "io.debezium.time.MicroTimestamp", {}),
    "raw": ("bytes", None, {}),
    "r": ("double", None, {}),
}
SOURCE = {"ts_ms": 1_700_000_000_123, "lsn": 42, "snapshot": "false", "txId": 7, "table": "t"}


def unscaled(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale, EXACT))
    size = max(1, (number.bit_length() + 8) // 8)
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def row(**values: Any) -> dict[str, Any]:
    """Return a row as Debezium writes it."""
    return {
        "id": 1,
        "name": "a",
        "price": unscaled(Decimal("-12.34"), 2),
        "born": 18_262,
        "seen": 1_577_836_800_000_001,
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "r": 0.5,
        **values,
    }


READ = {
    "id": 1,
    "name": "a",
    "price": Decimal("-12.34"),
    "born": dt.date(2020, 1, 1),
    "seen": dt.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "raw": b"\x00\xff",
    "r": 0.5,
}
NULLS = dict.fromkeys(READ)


def event(op: str, before: Any = None, after: Any = None, **more: Any) -> bytes:
    payload = {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1, **more}
    return json.dumps(payload).encode()


def with_schema(message: bytes, types: dict[str, Any] = TYPES) -> bytes:
    fields = [
        {"type": kind, "optional": True, "field": name}
        | ({} if semantic is None else {"name": semantic, "version": 1, "parameters": parameters})
        for name, (kind, semantic, parameters) in types.items()
    ]
    parts = [{"type": "struct", "fields": fields, "field": part} for part in ("before", "after")]
    schema = {"type": "struct", "fields": parts, "name": "server.public.t.Envelope"}
    return json.dumps({"schema": schema, "payload": json.loads(message)}).encode()


def decoded(
    *messages: bytes | None, keys: Any = None, columns: str = COLUMNS, **options: Any
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    chosen = gw.formats.debezium(columns, key="id", **options)
    names = chosen.schema.names
    result = chosen.decode(messages, names, keys or [None] * len(messages))
    assert result.rows.schema.names == names
    assert result.messages is not None
    assert len(result.messages) == result.rows.num_rows
    return result.rows.to_pylist(), list(result.bad)


@pytest.mark.parametrize("framed", [False, True], ids=["plain", "with schema"])
def test_events_become_upserts_and_deletes_by_key(framed: bool) -> None:
    messages = [
        event("r", after=row()),
        event("c", after=row(id=2)),
        event("u", after=row(name=None)),
        event("d", before=row(name="", price="AA==")),
    ]
    rows, bad = decoded(*map(with_schema, messages) if framed else messages, None)
    assert not bad
    assert rows == [
        {**READ, "change": 1, "unchanged": None},
        {**READ, "id": 2, "change": 1, "unchanged": None},
        {**READ, "name": None, "change": 1, "unchanged": None},
        {**NULLS, "id": 1, "change": -1, "unchanged": None},  # others may be defaults
    ]


def test_with_rows_before_events_become_changes() -> None:
    messages = [
        event("c", after=row()),
        event("u", before=row(), after=row(id=3, r=1.5)),
        event("d", before=row(id=3, r=1.5)),
        event("m"),
        None,
    ]
    rows, bad = decoded(*messages, before=True)
    assert not bad
    third = {**READ, "id": 3, "r": 1.5}
    assert rows == [
        {**READ, "change": 1},
        {**READ, "change": -1},
        {**third, "change": 1},
        {**third, "change": -1},
    ]


def test_a_delete_without_a_row_is_of_the_key_of_its_message() -> None:
    plain = json.dumps({"id": 5}).encode()
    framed = json.dumps({"schema": {"fields": [{"field": "id"}]}, "payload": {"id": 6}}).encode()
    rows, bad = decoded(event("d"), with_schema(event("d")), event("d"), keys=[plain, framed, None])
    assert [(r["id"], r["change"], r["price"]) for r in rows] == [(5, -1, None), (6, -1, None)]
    assert bad == [(2, "ValueError: a delete has neither a row in 'before' nor a key")]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (event("t"), "the table was truncated"),
        (event("x"), "its op is 'x'"),
        (b'{"status": "BEGIN", "id": "7"}', "its op is None"),
        (event("c"), "has no row in 'after'"),
        (b"{", "truncated"),
        (b"\xff", "JSON"),
        (b"[]", "object"),
        (event("c", after=row(price="!")), "column 'price'"),
        (event("c", after=row(id="x")), "int"),
        (event("c", after=row(born=2**40)), "column 'born'"),
        (event("c", after=row(seen="late")), "column 'seen'"),
    ],
)
def test_events_that_cannot_be_read_are_bad_alone(message: bytes, reason: str) -> None:
    good = event("c", after=row())
    rows, bad = decoded(good, message, good)
    assert len(rows) == 2
    [(place, text)] = bad
    assert place == 1
    assert reason in text


def test_an_event_without_the_column_of_the_key_is_bad() -> None:
    renamed = event("c", after={"number": 1, "name": "a"})
    messages = [renamed, with_schema(renamed, {"number": ("int64", None, None)}), event("d")]
    keys = ["no JSON", None, '{"number": 1}']
    rows, bad = decoded(*messages, keys=[key and key.encode() for key in keys])
    assert not rows
    assert [number for number, _ in bad] == [0, 1, 2]
    assert all("no column 'id', which is part of the key" in reason for _, reason in bad)
    rows, bad = decoded(event("c", after={"id": None}), columns="id long")
    assert (len(rows), bad) == (1, [])


def test_numbers_in_columns_of_text_are_as_in_the_event() -> None:
    values = [1.5, 7, {"x": 0.5, "y": [1, 2.25]}, "1.50"]
    messages = [event("c", after={"id": 1, "v": value}) for value in values]
    rows, bad = decoded(*messages, columns="id long, v string")
    assert not bad
    assert [row["v"] for row in rows] == ["1.5", "7", '{"x":0.5,"y":[1,2.25]}', "1.50"]


@pytest.mark.parametrize("value", ["1_000", " 1 ", "\u0661", True])
@pytest.mark.parametrize("dtype", ["decimal(10, 2)", "double"])
def test_what_is_no_number_is_bad(value: Any, dtype: str) -> None:
    message = event("c", after={"id": 1, "v": value})
    rows, bad = decoded(message, columns=f"id long, v {dtype}", types={"v": "string"})
    assert (rows, len(bad)) == ([], 1)


def test_updates_need_their_rows_before_only_where_these_are_asked_for() -> None:
    rows, bad = decoded(event("u", after=row()), before=True)
    assert not rows
    assert "REPLICA IDENTITY FULL" in bad[0][1]


def test_columns_that_an_update_leaves_out_stay_as_they_were() -> None:
    left_out = "__debezium_unavailable_value"
    raw = base64.b64encode(left_out.encode()).decode()
    messages = [
        event("c", after=row(name="long")),
        event("u", after=row(name=left_out, raw=raw, r=7.0)),
        event("u", after=row(name="new", r=8.0)),
    ]
    rows, _ = decoded(*messages)
    assert [r["unchanged"] for r in rows] == [None, "name\nraw", None]
    flow = gw.Flow("toast")
    source = flow.source("rows", gw.testing.stream(f"{COLUMNS}, change byte, unchanged string"))
    flow.sink("out", source.as_upserts().key_by("id").latest(), gw.sinks.noop())
    run = gw.testing.run(flow, {"rows": [[r] for r in rows]})
    got = [(r["name"], r["raw"], r["r"], r["change"]) for r in run.rows("out").to_pylist()]
    assert got == [
        ("long", b"\x00\xff", 0.5, 1),
        ("long", b"\x00\xff", 0.5, -1),
        ("long", b"\x00\xff", 7.0, 1),
        ("long", b"\x00\xff", 7.0, -1),
        ("new", b"\x00\xff", 8.0, 1),
    ]
    changes, _ = decoded(event("u", before=row(), after=row(name=left_out)), before=True)
    assert [r["name"] for r in changes] == ["a", "a"]


MICROSECOND = dt.timedelta(microseconds=1)
MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("semantic", "dtype", "value", "result"),
    [
        ("io.debezium.time.Timestamp", "timestamp", -1, EPOCH - dt.timedelta(milliseconds=1)),
        (
            "org.apache.kafka.connect.data.Timestamp",
            "timestamp",
            1000,
            EPOCH + dt.timedelta(seconds=1),
        ),
        ("io.debezium.time.MicroTimestamp", "timestamp", -1, MOMENT),
        ("io.debezium.time.NanoTimestamp", "timestamp", -1, MOMENT),
        (
            "io.debezium.time.ZonedTimestamp",
            "timestamp",
            "1970-01-01T01:00:00.000001+01:00",
            EPOCH + dt.timedelta(microseconds=1),
        ),
        ("io.debezium.time.IsoTimestamp", "timestamp", "1970-01-01T00:00:00Z", EPOCH),
        ("io.debezium.time.Date", "date", -1, dt.date(1969, 12, 31)),
        ("org.apache.kafka.connect.data.Date", "date", 1, dt.date(1970, 1, 2)),
        ("io.debezium.time.IsoDate", "date", "1969-12-31", dt.date(1969, 12, 31)),
        ("io.debezium.time.Timestamp", "date", -1, dt.date(1969, 12, 31)),
        ("io.debezium.time.MicroTime", "long", 86_399_999_999, 86_399_999_999),
        ("io.debezium.time.ZonedTime", "string", "10:00:00Z", "10:00:00Z"),
        (
            "io.debezium.data.VariableScaleDecimal",
            "decimal(10, 3)",
            {"scale": 3, "value": "AeI="},
            Decimal("0.482"),
        ),
        ("org.apache.kafka.connect.data.Decimal", "decimal(10, 2)", 1.5, Decimal("1.50")),
        (None, "decimal(10, 2)", "1.50", Decimal("1.50")),
        ("io.debezium.time.Time", "int", 86_399_999, 86_399_999),
        ("io.debezium.time.NanoTime", "long", 86_399_999_999_999, 86_399_999_999_999),
        ("io.debezium.time.IsoTime", "string", "10:00:00Z", "10:00:00Z"),
        ("io.debezium.time.Year", "int", 2024, 2024),
        ("io.debezium.time.Interval", "string", "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
        ("io.debezium.time.MicroDuration", "long", 5, 5),
        ("io.debezium.time.MicroDuration", "interval day to second", -1, -MICROSECOND),
        ("io.debezium.data.Bits", "binary", "gAE=", b"\x80\x01"),
        ("io.debezium.data.Enum", "string", "large", "large"),
        ("io.debezium.data.EnumSet", "string", "a,b", "a,b"),
        ("io.debezium.data.Xml", "string", "<a/>", "<a/>"),
        ("io.debezium.data.Ltree", "string", "a.b", "a.b"),
        (
            "io.debezium.data.geometry.Geometry",
            "string",
            {"wkb": "AQ==", "srid": None},
            '{"wkb":"AQ==","srid":null}',
        ),
        ("io.debezium.data.geometry.Point", "binary", {"x": 1.0, "y": 2.0, "wkb": "AQ=="}, b"\1"),
        (None, "binary", "+/8=", b"\xfb\xff"),
        (None, "decimal(9, 2)", 0.1, Decimal("0.10")),
        (None, "array<string>", ["a", None], ["a", None]),
        ("io.debezium.data.Json", "string", '{"a": 1}', '{"a": 1}'),
        ("io.debezium.data.Uuid", "string", "x", "x"),
        (None, "array<int>", [1, None], [1, None]),
        (None, "boolean", True, True),
        (None, "double", 3, 3.0),
    ],
)
def test_semantic_types_are_those_of_the_schema(
    semantic: str | None, dtype: str, value: Any, result: Any
) -> None:
    types: dict[str, Any] = {"id": ("int64", None, {}), "v": ("any", semantic, {})}
    messages = [with_schema(event("c", after={"id": 1, "v": v}), types) for v in (value, None)]
    rows, bad = decoded(*messages, columns=f"id long, v {dtype}")
    assert not bad
    assert [r["v"] for r in rows] == [result, None]


@pytest.mark.parametrize(
    ("mode", "text"),
    [("base64", "+/8="), ("base64-url-safe", "-_8="), ("hex", "fbff"), ("hex", "FBFF")],
)
def test_the_encoding_of_bytes_as_text_is_named(mode: str, text: str) -> None:
    plain = event("c", after={"id": 1, "v": text})
    types: dict[str, Any] = {"id": ("int64", None, {}), "v": ("string", None, {})}
    for message in (plain, with_schema(plain, types)):
        rows, bad = decoded(message, columns="id long, v binary", types={"v": mode})
        assert not bad
        assert rows[0]["v"] == b"\xfb\xff"
    _, [(_, reason)] = decoded(with_schema(plain, types), columns="id long, v binary")
    assert "in an unknown encoding" in reason
    left_out = "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565"
    rows, _ = decoded(event("u", after={"id": 1, "v": left_out}), columns="id long, v binary")
    assert rows[0]["unchanged"] == "v"


def test_items_of_lists_have_semantic_types() -> None:
    fields = [
        {"type": "array", "field": name, "items": {"type": kind, "name": semantic} | more}
        for name, kind, semantic, more in (
            ("days", "int32", "io.debezium.time.Date", {}),
            ("sums", "bytes", "org.apache.kafka.connect.data.Decimal", {"parameters": SCALE}),
        )
    ]
    schema = {"fields": [{"field": "after", "fields": [{"field": "id", "type": "int64"}, *fields]}]}
    payload = {"op": "c", "after": {"id": 1, "days": [1, None], "sums": ["AeI=", None]}}
    message = json.dumps({"schema": schema, "payload": payload}).encode()
    rows, bad = decoded(message, columns="id long, days array<date>, sums array<decimal(9, 3)>")
    assert not bad
    assert rows[0]["days"] == [dt.date(1970, 1, 2), None]
    assert rows[0]["sums"] == [Decimal("0.482"), None]


SCALE = {"scale": "3"}


@pytest.mark.parametrize("precision", [5, 18, 19, 38])
@pytest.mark.parametrize("places", [0, 2])
def test_decimals_of_any_size_are_exact(precision: int, places: int) -> None:
    rng = random.Random(precision)
    numbers = [0, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 2**63, 10**precision - 1]
    numbers += [rng.randrange(-(10**precision), 10**precision) for _ in range(40)]
    values = [Decimal(n).scaleb(-places, EXACT) for n in numbers if abs(n) < 10**precision]
    messages = [
        event("c", after={"id": n, "v": None if v is None else unscaled(v, places)})
        for n, v in enumerate([*values, None])
    ]
    rows, bad = decoded(*messages, columns=f"id long, v decimal({precision}, {places})")
    assert not bad
    assert [r["v"] for r in rows] == [*values, None]
    large = unscaled(Decimal(10**precision).scaleb(-places, EXACT), places)
    _, bad = decoded(
        event("c", after={"id": 1, "v": large}),
        columns=f"id long, v decimal({precision}, {places})",
    )
    assert "column 'v'" in bad[0][1]


@pytest.mark.parametrize("scale", [4, 39, -39])
def test_decimals_of_other_scales_are_refused(scale: int) -> None:
    variable = {"scale": scale, "value": "AeI="}
    numbers = [variable, 1e-300, 1e300, {"scale": 3}, "12"]
    messages = [event("c", after={"id": 1, "v": v}) for v in [*numbers, {**variable, "scale": 1}]]
    rows, bad = decoded(*messages, columns="id long, v decimal(10, 3)")
    assert [row["v"] for row in rows] == [Decimal("48.200")]
    assert [place for place, _ in bad] == [0, 1, 2, 3, 4]
    assert all("column 'v'" in reason for _, reason in bad)


def test_a_tombstone_deletes_its_key_since_compaction_may_have_taken_the_delete() -> None:
    keys = [json.dumps({"id": n}).encode() for n in (1, 1, 2, 3)]
    framed = json.dumps({"schema": {"fields": [{"field": "id"}]}, "payload": {"id": 4}}).encode()
    messages = [event("d", before=row()), None, None, event("c", after=row(id=3)), None, None, None]
    rows, bad = decoded(*messages, keys=[*keys, framed, b"Struct{id=5}", b'{"other": 6}'])
    assert not bad
    assert [(r["id"], r["change"]) for r in rows] == [(1, -1), (2, -1), (3, 1), (4, -1)]
    chosen = gw.formats.debezium("a int, b int", key=["a", "b"])
    result = chosen.decode([None, None], ["a", "b"], [b'{"a": 1}', b'{"a": 1, "b": 2}'])
    assert result.rows.to_pylist() == [{"a": 1, "b": 2}]
    rows, _ = decoded(event("d", before=row()), None, keys=[keys[2], keys[3]], before=True)
    assert [r["change"] for r in rows] == [-1]


def test_heartbeats_are_no_events() -> None:
    beat = b'{"ts_ms": 1}'
    framed = b'{"schema": {"name": "io.debezium.connector.common.Heartbeat"}, "payload": %s}' % beat
    rows, bad = decoded(beat, framed, event("c", after=row()), b'{"ts_ms": 1, "id": 2}')
    assert len(rows) == 1
    assert [place for place, _ in bad] == [3]


def test_a_schema_may_change_between_two_events() -> None:
    micro: dict[str, Any] = {
        "id": ("int64", None, {}),
        "v": ("int64", "io.debezium.time.MicroTimestamp", {}),
    }
    milli = {**micro, "v": ("int64", "io.debezium.time.Timestamp", {})}
    messages = [
        with_schema(event("c", after={"id": n, "v": 1000}), types)
        for n, types in enumerate([micro, milli, micro])
    ]
    rows, _ = decoded(*messages, columns="id long, v timestamp")
    assert [r["v"].microsecond for r in rows] == [1000, 0, 1000]


def test_without_a_schema_types_may_be_given() -> None:
    message = event("c", after={"id": 1, "v": 1000, "p": "12.5"})
    types = {"v": "io.debezium.time.Timestamp", "p": "string"}
    rows, _ = decoded(message, columns="id long, v timestamp, p decimal(9, 2)", types=types)
    assert (rows[0]["v"], rows[0]["p"]) == (EPOCH + dt.timedelta(seconds=1), Decimal("12.50"))


def test_positions_times_and_transactions_are_further_columns() -> None:
    include = {n: f"x_{n}" for n in ("op", "time", "snapshot", "position", "transaction", "order")}
    mysql = {"ts_ms": 5, "file": "mysql-bin.000003", "pos": 154, "snapshot": "last"}
    rows, _ = decoded(
        event("u", after=row(), transaction={"id": "t1", "total_order": 3}),
        event("c", after=row(), source=mysql),
        event("r", after=row(), source={"ts_us": 7}),
        include=include,
    )
    got = [[r[name] for name in include.values()] for r in rows]
    seen = EPOCH + dt.timedelta(milliseconds=1_700_000_000_123)
    assert got == [
        ["u", seen, False, 42, "t1", 3],
        ["c", EPOCH + dt.timedelta(milliseconds=5), True, (3 << 40) + 154, None, None],
        ["r", EPOCH + dt.timedelta(microseconds=7), True, None, None, None],
    ]


def test_fields_of_events_are_columns_by_name() -> None:
    include = ["source.table", "source.ts_ns", "source.sequence", "source.txId", "source.snapshot"]
    include += ["transaction.total_order", "transaction.data_collection_order"]
    block = {"id": "t1", "total_order": 3, "data_collection_order": 2}
    rows, _ = decoded(
        event("u", after=row(), transaction=block),
        event("r", after=row(), source={"ts_ns": 9, "sequence": ["1", None], "snapshot": "first"}),
        include=include,
    )
    got = [[r[name.replace(".", "_")] for name in include] for r in rows]
    assert got == [
        ["t", None, None, "7", "false", 3, 2],
        [None, 9, '["1",null]', None, "first", None, None],
    ]
    renamed, _ = decoded(event("c", after=row()), include={"source.lsn": "lsn"})
    assert renamed[0]["lsn"] == 42


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("id long", {"key": "x"}, "the key has 'x'"),
        ("id long", {"key": ()}, "the key has none"),
        ("id long, change int", {"key": "id"}, "two columns would have the name 'change'"),
        ("id long", {"key": "id", "include": {"op": "id"}}, "two columns would have the name 'id'"),
        ("id long", {"key": "id", "include": ["when"]}, "include= has 'when'"),
        ("id long", {"key": "id", "include": ["source."]}, "include= has 'source.'"),
        ("id long", {"key": "id", "types": {"x": "y"}}, "types= has 'x'"),
        (
            "id long, t timestamp",
            {"key": "id", "types": {"t": "io.debezium.time.Timestmap"}},
            "has 'io.debezium.time.Timestmap', which is not",
        ),
        ("id long, v struct<a: int>", {"key": "id"}, "column 'v' has type struct"),
    ],
)
def test_mistakes_are_found_at_once(columns: str, options: Any, problem: str) -> None:
    with pytest.raises(InvalidFlowError, match=problem):
        gw.formats.debezium(columns, **options)


@pytest.mark.parametrize("seed", range(5))
def test_bad_events_take_no_others_with_them(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(["c", "u", "d", "tombstone", "bad"]) for _ in range(60)]
    messages: list[bytes | None] = []
    for n, kind in enumerate(kinds):
        body = {"before": row(id=n), "after": None if kind == "d" else row(id=n)}
        messages.append(
            None if kind == "tombstone" else b"{" if kind == "bad" else event(kind, **body)
        )
    rows, bad = decoded(*messages)
    assert [n for n, _ in bad] == [n for n, kind in enumerate(kinds) if kind == "bad"]
    assert [(r["id"], r["change"]) for r in rows] == [
        (n, -1 if kind == "d" else 1) for n, kind in enumerate(kinds) if kind in "cud"
    ]


# -- compacted topics ------------------------------------------------------------------------------


def upserts(
    messages: list[tuple[Any, Any]], key: Any = "sku string"
) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    chosen = gw.formats.upsert(gw.formats.json("price double, sku string"), key=key)
    keys, values = zip(*messages, strict=True)
    result = chosen.decode(values, chosen.schema.names, keys)
    return [tuple(r.values()) for r in result.rows.to_pylist()], list(result.bad)


def test_a_message_replaces_the_row_of_its_key_and_a_tombstone_deletes_it() -> None:
    messages = [
        (b"a", b'{"price": 1.5, "sku": "other"}'),
        (b'"b"', b'{"price": 2}'),
        (b'{"sku": "c"}', b"{"),
        (None, b'{"price": 2}'),
        (b'{"sku": "a"}', None),
        (b"{", None),
        (b"a", b"{}"),
    ]
    rows, bad = upserts(messages)
    assert rows == [("a", 1.5, 1), ("b", 2.0, 1), ("a", None, -1), ("a", None, 1)]
    assert [place for place, _ in bad] == [2, 3, 5]
    assert bad[1][1] == "ValueError: it has no key"


def test_keys_may_be_numbers_or_have_several_columns() -> None:
    assert upserts([(b"7", b"{}")], "n long")[0] == [(7, None, None, 1)]
    several = upserts([(b'{"n": 1, "m": "x"}', None)], "n long, m string")[0]
    assert several == [(1, "x", None, None, -1)]
    with pytest.raises(InvalidFlowError, match="are unknown"):
        gw.formats.upsert(gw.formats.json(), key="n long")


def test_upserts_are_only_read() -> None:
    chosen = gw.formats.upsert(gw.formats.json("a int"), key="b int")
    with pytest.raises(InvalidFlowError, match="can only read"):
        chosen.check_columns(pa.schema([]), "A sink")
    with pytest.raises(InvalidFlowError, match="cannot write"):
        chosen.encode(pa.record_batch({"a": [1]}))


WRITTEN = (
    "id long, t string, p decimal(20, 2), q decimal(9, 1), d date, s timestamp, b binary, "
    "h binary, r double, f boolean, i interval day to second, l array<date>, m array<string>"
)


@pytest.mark.parametrize("seed", range(4))
def test_written_events_are_read_as_they_were(seed: int) -> None:
    rng = random.Random(seed)
    types = {"q": "string", "h": "hex", "b": "base64-url-safe"}
    chosen = gw.formats.debezium(WRITTEN, key="id", types=types, include={"position": "lsn"})
    schema = pa.schema([f for f in chosen.schema if f.name not in ("unchanged", "lsn")])
    chosen.check_columns(schema, "A sink")
    drawn: dict[str, Any] = {
        "t": lambda: "".join(rng.choices('aé"\\\n😀', k=4)),
        "p": lambda: Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-2),
        "q": lambda: Decimal(rng.randrange(-999, 999)).scaleb(-1),
        "d": lambda: dt.date(1960 + rng.randrange(80), 2, 3),
        "s": lambda: EPOCH + dt.timedelta(microseconds=rng.randrange(-(10**15), 10**15)),
        "b": lambda: rng.randbytes(3),
        "h": lambda: rng.randbytes(3),
        "r": lambda: rng.choice([rng.random(), float("inf"), -float("inf"), -0.0, 1e300]),
        "f": lambda: rng.random() < 0.5,
        "i": lambda: dt.timedelta(microseconds=rng.randrange(-(10**12), 10**12)),
        "l": lambda: [None, dt.date(2020, 1, 1)][: rng.randrange(3)],
        "m": lambda: ["x", None][: rng.randrange(3)],
    }
    rows = []
    for n in range(30):
        sign = rng.choice([1, 1, -1])
        values = {
            name: draw() if sign == 1 and rng.random() < 0.8 else None
            for name, draw in drawn.items()
        }
        rows.append({"id": n, **values, "change": sign})
    messages = chosen.encode(pa.RecordBatch.from_pylist(rows, schema=schema))
    decoded = chosen.decode(messages, schema.names, [None] * len(messages))
    assert not decoded.bad
    assert decoded.rows.to_pylist() == rows


def test_what_events_cannot_have_is_refused_before_it_is_written() -> None:
    def refuses(problem: str, columns: str, **options: Any) -> None:
        chosen = gw.formats.debezium("id long, s timestamp", key="id", **options)
        schema = gw.formats.json(columns).schema
        assert schema is not None
        with pytest.raises(InvalidFlowError, match=problem):
            chosen.check_columns(schema, "Sink 's'")

    refuses("has column 'x'", "id long, x long")
    refuses("'s' as io.debezium.time.Timestamp", "id long", types={"s": f"{TIME}.Timestamp"})
    refuses("in Avro, which Godwit can only read", "id long", registry={})


TIME = "io.debezium.time"

"""Change events in Avro: the bytes of another library, by schemas as Connect makes them."""

from __future__ import annotations

import datetime as dt
import io
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
CONNECT = "org.apache.kafka.connect.data"


def optional(kind: Any, name: str = "", **more: Any) -> Any:
    named = {"connect.version": 1, "connect.name": name} if name else {}
    inner = {"type": kind, **named, **more} if named or more else kind
    return ["null", inner]


def decimal(precision: int, scale: int) -> Any:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    more = {"scale": scale, "precision": precision, "connect.parameters": parameters}
    return optional("bytes", f"{CONNECT}.Decimal", logicalType="decimal", **more)


VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
GEOMETRY = {
    "type": "record",
    "name": "Geometry",
    "namespace": "io.debezium.data.geometry",
    "fields": [
        {"name": "wkb", "type": "bytes"},
        {"name": "srid", "type": ["null", "int"], "default": None},
    ],
    "connect.name": "io.debezium.data.geometry.Geometry",
}
SOURCE = [
    {"name": "version", "type": "string"},
    {"name": "connector", "type": "string"},
    {"name": "ts_ms", "type": "long"},
    {
        "name": "snapshot",
        "type": [
            {"type": "string", "connect.default": "false", "connect.name": "io.debezium.data.Enum"},
            "null",
        ],
        "default": "false",
    },
    {"name": "table", "type": "string"},
    {"name": "txId", "type": ["null", "long"], "default": None},
    {"name": "lsn", "type": ["null", "long"], "default": None},
]


def envelope(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table's events."""
    fields = [
        {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for name, kind in columns.items()
    ]
    block = [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ]
    value = {"type": "record", "name": "Value", "fields": fields, "connect.name": "s.t.Value"}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "server.public.t",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "namespace": "io.debezium.connector.postgresql",
                    "fields": SOURCE,
                },
            },
            {
                "name": "transaction",
                "type": [
                    "null",
                    {"type": "record", "name": "block", "namespace": "event", "fields": block},
                ],
                "default": None,
            },
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "server.public.t.Envelope",
    }


KEY = {
    "type": "record",
    "name": "Key",
    "namespace": "server.public.t",
    "fields": [{"name": "id", "type": "long"}],
    "connect.name": "server.public.t.Key",
}
POSITION = {
    "version": "2.7.0.Final",
    "connector": "postgresql",
    "ts_ms": 5,
    "snapshot": "false",
    "table": "t",
    "txId": 7,
    "lsn": 42,
}


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def event(op: str, *, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": POSITION, **more}


def decoded(
    columns: str,
    schemas: dict[int, Any],
    messages: Sequence[tuple[Any, bytes | None]],
    **options: Any,
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    chosen = gw.formats.debezium(columns, key="id", registry=schemas, **options)
    keys, values = zip(*messages, strict=True)
    result = chosen.decode(values, chosen.schema.names, keys)
    return result.rows.to_pylist(), list(result.bad)


def test_events_become_upserts_and_tombstones_delete_their_key() -> None:
    schema = envelope({"id": "long", "name": optional("string"), "price": decimal(10, 2)})
    schemas = {3: schema, 4: KEY}
    key = framed(4, KEY, {"id": 1})
    row = {"id": 1, "name": "a", "price": Decimal("-12.34")}
    events = [event("r", after=row), event("u", after={**row, "name": None}), event("d")]
    messages = [(key, framed(3, schema, each)) for each in events]
    rows, bad = decoded(
        "id long, name string, price decimal(10, 2)",
        schemas,
        [*messages, (key, None), (framed(4, KEY, {"id": 2}), None), (b"text", None)],
        include=["position", "source.table"],
    )
    assert not bad
    nulls = {"name": None, "price": None, "unchanged": None}
    seen = {"position": 42, "source_table": "t"}
    assert rows == [
        {**row, **seen, "change": 1, "unchanged": None},
        {**row, **seen, "name": None, "change": 1, "unchanged": None},
        {"id": 1, **nulls, **seen, "change": -1},
        {"id": 2, **nulls, "position": None, "source_table": None, "change": -1},
    ]


def test_a_topic_has_events_from_before_and_after_a_change_of_its_table() -> None:
    old = envelope({"id": "long", "gone": optional("string"), "v": optional("int")})
    new = envelope({"id": "long", "v": optional("long"), "fresh": optional("double")})
    messages = [
        framed(1, old, event("c", after={"id": 1, "gone": "x", "v": 5})),
        framed(2, new, event("c", after={"id": 2, "v": 2**40, "fresh": 0.5})),
        framed(1, old, event("d", before={"id": 1, "gone": "x", "v": 5})),
        b'{"op": "c", "after": {"id": 3, "v": 7}}',  # of another converter
    ]
    rows, bad = decoded(
        "id long, v long, fresh double, gone string",
        {1: old, 2: new},
        [(None, message) for message in messages],
    )
    assert not bad
    assert [(r["id"], r["v"], r["fresh"], r["gone"], r["change"]) for r in rows] == [
        (1, 5, None, "x", 1),
        (2, 2**40, 0.5, None, 1),
        (1, None, None, None, -1),
        (3, 7, None, None, 1),
    ]


@pytest.mark.parametrize(
    ("kind", "dtype", "value", "result"),
    [
        (optional("int", "io.debezium.time.Date"), "date", -1, dt.date(1969, 12, 31)),
        (
            optional("int", f"{CONNECT}.Date", logicalType="date"),
            "date",
            dt.date(2020, 1, 1),
            dt.date(2020, 1, 1),
        ),
        (
            optional("long", "io.debezium.time.Timestamp"),
            "timestamp",
            -1,
            EPOCH - dt.timedelta(milliseconds=1),
        ),
        (
            optional("long", "io.debezium.time.MicroTimestamp"),
            "timestamp",
            3,
            EPOCH + dt.timedelta(microseconds=3),
        ),
        (
            optional("long", "io.debezium.time.NanoTimestamp"),
            "timestamp",
            -1,
            EPOCH - dt.timedelta(microseconds=1),
        ),
        (
            optional("long", f"{CONNECT}.Timestamp", logicalType="timestamp-millis"),
            "timestamp",
            EPOCH + dt.timedelta(seconds=1),
            EPOCH + dt.timedelta(seconds=1),
        ),
        (
            optional("long", logicalType="timestamp-millis"),  # a converter without Connect's names
            "timestamp",
            EPOCH + dt.timedelta(seconds=1),
            EPOCH + dt.timedelta(seconds=1),
        ),
        (
            optional("string", "io.debezium.time.ZonedTimestamp"),
            "timestamp",
            "1970-01-01T00:00:00Z",
            EPOCH,
        ),
        (optional("long", "io.debezium.time.MicroTime"), "long", 86_399_999_999, 86_399_999_999),
        (
            optional("long", "io.debezium.time.MicroDuration"),
            "interval day to second",
            5,
            dt.timedelta(microseconds=5),
        ),
        (optional("int", "io.debezium.time.Year"), "int", 2024, 2024),
        (optional("string", "io.debezium.data.Enum"), "string", "a", "a"),
        (optional("string", "io.debezium.data.Json"), "string", '{"a": 1}', '{"a": 1}'),
        (optional("bytes", "io.debezium.data.Bits"), "binary", b"\x05", b"\x05"),
        (decimal(30, 5), "decimal(30, 5)", Decimal("1" * 25), Decimal("1" * 25)),
        (decimal(10, 2), "decimal(12, 4)", Decimal("1.25"), Decimal("1.2500")),
        (["null", VARIABLE], "decimal(10, 3)", {"scale": 3, "value": b"\x01\xe2"}, Decimal(".482")),
        (["null", VARIABLE], "string", {"scale": 0, "value": b"\1"}, '{"scale":0,"value":"AQ=="}'),
        (["null", GEOMETRY], "string", {"wkb": b"\1", "srid": None}, '{"wkb":"AQ==","srid":null}'),
        (["null", GEOMETRY], "binary", {"wkb": b"\1", "srid": 4326}, b"\1"),
        (optional("string"), "decimal(9, 2)", "1.5", Decimal("1.50")),
        (optional("double"), "decimal(9, 2)", 1.5, Decimal("1.50")),
        (optional("float"), "double", 0.5, 0.5),
        (["null", {"type": "map", "values": "string"}], "string", {"a": "b"}, '{"a":"b"}'),
        (
            ["null", {"type": "array", "items": optional("int", "io.debezium.time.Date")}],
            "array<date>",
            [1, None],
            [dt.date(1970, 1, 2), None],
        ),
        (
            ["null", {"type": "array", "items": decimal(9, 1)}],
            "array<decimal(9, 1)>",
            [Decimal("0.5"), None],
            [Decimal("0.5"), None],
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_semantic_types_are_those_of_the_schema(
    kind: Any, dtype: str, value: Any, result: Any
) -> None:
    schema = envelope({"id": "long", "v": kind})
    messages = [
        (None, framed(1, schema, event("c", after={"id": 1, "v": v}))) for v in (value, None)
    ]
    rows, bad = decoded(f"id long, v {dtype}", {1: schema}, messages)
    assert not bad
    assert [r["v"] for r in rows] == [result, None]


LEFT_OUT = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("kind", "dtype", "value"),
    [
        ("string", "string", LEFT_OUT),
        ("bytes", "binary", LEFT_OUT.encode()),
        ({"type": "array", "items": "string"}, "array<string>", [LEFT_OUT]),
        ({"type": "array", "items": "bytes"}, "array<binary>", [LEFT_OUT.encode()]),
        ({"type": "array", "items": "int"}, "array<int>", [*LEFT_OUT.encode()]),
        ({"type": "array", "items": "double"}, "array<double>", [*map(float, LEFT_OUT.encode())]),
        ({"type": "map", "values": "string"}, "string", {LEFT_OUT: LEFT_OUT}),
        (
            {"type": "array", "items": {"type": "string", "connect.name": "io.debezium.data.Uuid"}},
            "array<string>",
            ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_column_that_an_update_leaves_out_is_named(kind: Any, dtype: str, value: Any) -> None:
    schema = envelope({"id": "long", "v": ["null", kind]})
    message = framed(1, schema, event("u", after={"id": 1, "v": value}))
    rows, bad = decoded(f"id long, v {dtype}", {1: schema}, [(None, message)])
    assert not bad
    assert rows[0]["unchanged"] == "v"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\0\0\0\0\1\2", "the message ends within a value"),
        (b"\0\0\0\0\7\2", "its schema has id 7"),
        (b"\0\0\0\0\2\2", "it is not a change event: record server.public.t.Key has no field 'op'"),
        (b"\0", "the framing of a schema registry"),
        (b"{", "truncated"),
    ],
)
def test_messages_that_cannot_be_read_are_bad_alone(message: bytes, reason: str) -> None:
    schema = envelope({"id": "long"})
    good = framed(1, schema, event("c", after={"id": 1}))
    messages = [(None, each) for each in (good, message, good + b"\0", good)]
    rows, bad = decoded("id long", {1: schema, 2: KEY}, messages)
    assert len(rows) == 2
    assert [place for place, _ in bad] == [1, 2]
    assert reason in bad[0][1]
    assert "bytes after the record" in bad[1][1]


def test_events_of_documents_are_bad() -> None:
    fields = [{"name": "after", "type": ["null", "string"]}, {"name": "op", "type": "string"}]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    message = framed(1, schema, {"after": "{}", "op": "c"})
    rows, [(_, reason)] = decoded("id long", {1: schema}, [(None, message)])
    assert not rows
    assert "'after' is [null, string], not a record" in reason


def test_heartbeats_and_logged_texts_are_no_events() -> None:
    schema = envelope({"id": "long"})
    heartbeat = {"type": "record", "name": "H", "fields": [{"name": "ts_ms", "type": "long"}]}
    messages = [framed(2, heartbeat, {"ts_ms": 1}), framed(1, schema, event("m"))]
    rows, bad = decoded("id long", {1: schema, 2: heartbeat}, [(None, m) for m in messages])
    assert (rows, bad) == ([], [])


def test_rows_before_and_transactions_are_read() -> None:
    schema = envelope({"id": "long", "v": optional("int")})
    block = {"id": "571:53195829", "total_order": 3, "data_collection_order": 2}
    change = event("u", before={"id": 1, "v": 1}, after={"id": 1, "v": 2}, transaction=block)
    include = ["transaction", "order", "transaction.data_collection_order", "source.snapshot"]
    messages = [(None, framed(1, schema, change))]
    rows, bad = decoded("id long, v int", {1: schema}, messages, before=True, include=include)
    assert not bad
    seen = {
        "transaction": "571:53195829",
        "order": 3,
        "transaction_data_collection_order": 2,
        "source_snapshot": "false",
    }
    assert rows == [
        {"id": 1, "v": 1, **seen, "change": -1},
        {"id": 1, "v": 2, **seen, "change": 1},
    ]


def test_a_registry_is_a_url_or_schemas() -> None:
    for registry, problem in (("registry:8081", "not a URL"), ({1: "{"}, "cannot be parsed")):
        with pytest.raises(InvalidFlowError, match=problem):
            gw.formats.debezium("id long", key="id", registry=registry)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_events_are_read_as_another_library_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    kinds: dict[str, tuple[Any, str, Any]] = {
        "n": (optional("long"), "long", lambda: rng.randrange(-(2**62), 2**62)),
        "s": (optional("string"), "string", lambda: "".join(rng.choices("aé\0😀", k=5))),
        "b": (optional("bytes"), "binary", lambda: rng.randbytes(rng.randrange(9))),
        "d": (optional("double"), "double", rng.random),
        "p": (
            decimal(20, 3),
            "decimal(20, 3)",
            lambda: Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-3),
        ),
        "q": (decimal(9, 2), "decimal(9, 2)", lambda: Decimal(rng.randrange(-999, 999)) / 100),
        "t": (optional("boolean"), "boolean", lambda: rng.random() < 0.5),
    }
    schemas, messages, wanted = {}, [], []
    for schema_id in range(1, 4):  # each with some of the columns, in another order
        names = rng.sample(list(kinds), rng.randint(1, len(kinds)))
        schemas[schema_id] = envelope({"id": "long", **{n: kinds[n][0] for n in names}})
        for _ in range(20):
            row = {n: kinds[n][2]() if rng.random() < 0.8 else None for n in names}
            row["id"] = rng.randrange(100)
            message = framed(schema_id, schemas[schema_id], event("c", after=row))
            parsed = fastavro.parse_schema(schemas[schema_id])
            library: Any = fastavro
            read = library.schemaless_reader(io.BytesIO(message[5:]), parsed, None)
            assert read["after"] == row
            messages.append((None, message))
            wanted.append({"id": row["id"], **{n: row.get(n) for n in kinds}})
    order = list(range(len(messages)))
    rng.shuffle(order)
    columns = ", ".join(f"{name} {dtype}" for name, (_, dtype, _) in kinds.items())
    rows, bad = decoded(f"id long, {columns}", schemas, [messages[n] for n in order])
    assert not bad
    assert [{n: r[n] for n in ("id", *kinds)} for r in rows] == [wanted[n] for n in order]

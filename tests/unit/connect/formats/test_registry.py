"""Avro and Protobuf messages, bare and framed: what is read is what was written."""

from __future__ import annotations

import datetime as dt
import http.server
import io
import json
import pickle
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.connect.formats.message_formats import UnwritableError
from godwit.model.errors import InvalidFlowError, SourceError

pytest.importorskip("fastavro", reason="Avro needs fastavro.")
pytest.importorskip("google.protobuf", reason="Protobuf needs protobuf.")

import fastavro
from google.protobuf import descriptor_pb2

from godwit.connect.formats.registry import frame_header

if TYPE_CHECKING:
    from collections.abc import Iterator

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "plane", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["JET", "PROP"]}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "crew",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Crew",
                    "fields": [{"name": "pilots", "type": "int"}, {"name": "also", "type": "Kind"}],
                },
            ],
            "default": None,
        },
    ],
}
OLDER = {**FLIGHT, "fields": [f for f in FLIGHT["fields"] if f["name"] not in {"delay", "crew"}]}
ROW = {
    "plane": "N1",
    "delay": 2.5,
    "at": dt.datetime(2013, 1, 1, tzinfo=dt.UTC),
    "price": Decimal("12.50"),
    "kind": "JET",
    "stops": ["JFK", "LAX"],
    "counts": [("bags", 3)],
    "crew": {"pilots": 2, "also": "PROP"},
}
OTHER = {**ROW, "delay": None, "crew": None, "counts": [], "stops": []}


def test_avro_is_read_as_it_was_written() -> None:
    avro = gw.formats.avro(FLIGHT)
    rows = pa.RecordBatch.from_pylist([ROW, OTHER], avro.schema)
    messages = pickle.loads(pickle.dumps(avro)).encode(rows)
    decoded = avro.decode([messages[0], None, messages[1]], avro.schema.names)
    assert decoded.rows.to_pylist() == [ROW, dict.fromkeys(ROW), OTHER]
    assert (
        avro.decode(messages, ["price", "plane"]).rows["price"].to_pylist()
        == [Decimal("12.50")] * 2
    )
    bad = avro.decode(
        [messages[0], b"", messages[0][:-1], messages[0] + b"x", messages[1]], ["plane"]
    )
    assert [position for position, _ in bad.bad] == [1, 2, 3]
    assert bad.rows["plane"].to_pylist() == ["N1", "N1"]


def test_avro_of_an_older_schema_is_read_by_its_id() -> None:
    registry = {1: OLDER, 2: FLIGHT}
    avro = gw.formats.avro(json.dumps(FLIGHT), registry=registry)
    stream = io.BytesIO()
    old = {name: ROW[name] for name in ROW if name not in {"delay", "crew"}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(OLDER), {**old, "counts": {"bags": 3}})
    new = avro.encode(pa.RecordBatch.from_pylist([ROW], avro.schema))
    assert (new[0] or b"")[:5] == frame_header(2)
    messages = [frame_header(1) + stream.getvalue(), *new, frame_header(9) + b"x", b"{}"]
    decoded = avro.decode(messages, avro.schema.names)
    assert decoded.rows.to_pylist() == [{**ROW, "delay": None, "crew": None}, ROW]
    assert [position for position, _ in decoded.bad] == [2, 3]
    assert "its schema has id 9, but registry= has only [1, 2]" in decoded.bad[0][1]


def test_avro_is_what_another_library_reads_and_writes() -> None:
    avro, parsed = gw.formats.avro(FLIGHT), fastavro.parse_schema(FLIGHT)
    rows = pa.RecordBatch.from_pylist([ROW, OTHER], avro.schema)
    messages = [message or b"" for message in avro.encode(rows)]
    read: Any = [fastavro.schemaless_reader(io.BytesIO(m), parsed, None) for m in messages]
    assert read == [{**ROW, "counts": {"bags": 3}}, {**OTHER, "counts": {}}]
    written = []
    for row in read:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        written.append(stream.getvalue())
    assert written == messages


def refers(*subjects: str) -> list[dict[str, Any]]:
    return [{"name": "any", "subject": subject, "version": 3} for subject in subjects]


PLANE = {"type": "record", "name": "x.Plane", "fields": [{"name": "kind", "type": "y.Kind"}]}
KIND = {"type": "enum", "name": "y.Kind", "symbols": ["JET", "PROP"]}
TRIP = {
    "type": "record",
    "name": "x.Trip",
    "fields": [{"name": "plane", "type": "Plane"}, {"name": "was", "type": "y.Kind"}],
}
ANSWERS: dict[str, Any] = {
    "/r/schemas/ids/7": {"schema": json.dumps(FLIGHT)},
    "/r/schemas/ids/20": {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    "/r/schemas/ids/21": {"schema": "{"},
    "/r/schemas/ids/22": {"schema": json.dumps(TRIP), "references": refers("plane", "a/kind")},
    "/r/subjects/plane/versions/3": {
        "schema": json.dumps(PLANE),
        "references": refers("a/kind"),
    },
    "/r/subjects/a%2Fkind/versions/3": {"schema": json.dumps(KIND)},
    "/r/schemas/ids/23": {"what": "is this?"},
    "/r/schemas/ids/24": {"schema": "{}", "references": [{"subject": "no version"}]},
    "/r/schemas/ids/25": {"schema": "{}", "references": [7]},
}


class _Registry(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012  the server makes an instance for every request

    def do_GET(self) -> None:
        self._answer(ANSWERS.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"id": 7} if self.path == "/r/subjects/flights-value" else None)

    def _answer(self, answer: dict[str, Any] | None) -> None:
        self.asked.append(f"{self.path} {self.headers['Authorization']}")
        self.send_response(200 if answer else 404)
        self.end_headers()
        code = 40403 if self.path.startswith("/r/s") else 404  # no schema, or no such path
        self.wfile.write(json.dumps(answer or {"error_code": code, "message": "no"}).encode())

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://me:hunter4444@127.0.0.1:{server.server_address[1]}/r"
        server.shutdown()
        thread.join()


def test_a_registry_is_asked_once_for_each_schema_and_its_password_is_not_shown(
    registry: str,
) -> None:
    avro = gw.formats.avro(FLIGHT, registry=registry, subject="flights-value")
    rows = pa.RecordBatch.from_pylist([ROW, OTHER], avro.schema)
    assert avro.decode(avro.encode(rows), avro.schema.names).rows.equals(rows)
    assert [asked.split()[0] for asked in _Registry.asked] == [
        "/r/subjects/flights-value",
        "/r/schemas/ids/7",
    ]
    assert all(asked.endswith("Basic bWU6aHVudGVyNDQ0NA==") for asked in _Registry.asked)
    unknown = [frame_header(8) + b"x", *avro.encode(rows), frame_header(8) + b"y"]
    decoded = avro.decode(unknown, avro.schema.names)
    assert decoded.rows.equals(rows)
    assert [position for position, _ in decoded.bad] == [0, 3]
    assert "its schema has id 8, which the registry http://" in decoded.bad[0][1]
    assert [asked.split()[0] for asked in _Registry.asked][2:] == ["/r/schemas/ids/8"]
    assert "hunter4444" not in f"{decoded.bad}"
    elsewhere = gw.formats.avro(FLIGHT, registry=f"{registry}/v2")
    with pytest.raises(SourceError, match="does not answer for schemas/ids/8: 404") as refused:
        elsewhere.decode([frame_header(8) + b"x"], ["plane"])
    nobody = gw.formats.avro(FLIGHT, registry=registry, subject="nobody")
    with pytest.raises(SourceError, match="subjects/nobody"):
        nobody.encode(rows)
    assert "hunter4444" not in f"{refused.value} {refused.value.context} {avro!r}"


def test_a_schema_of_a_registry_comes_with_those_that_it_refers_to(registry: str) -> None:
    trip = {
        **TRIP,
        "fields": [
            {"name": "plane", "type": {**PLANE, "fields": [{"name": "kind", "type": KIND}]}},
            TRIP["fields"][1],
        ],
    }
    avro = gw.formats.avro(trip, registry=registry)
    decoded = avro.decode([frame_header(22) + b"\2\0"], avro.schema.names)
    assert decoded.rows.to_pylist() == [{"plane": {"kind": "PROP"}, "was": "JET"}]


def test_a_message_whose_schema_is_not_of_avro_is_bad(registry: str) -> None:
    avro = gw.formats.avro(FLIGHT, registry=registry)
    decoded = avro.decode([frame_header(20) + b"x", frame_header(21) + b"x"], ["plane"])
    assert "id 20, which is of type PROTOBUF" in decoded.bad[0][1]
    assert "its writer's schema is not valid" in decoded.bad[1][1]


def test_a_registry_that_cannot_be_reached_is_no_fault_of_a_message(registry: str) -> None:
    for url, schema_id in (
        ("http://127.0.0.1:1", 7),
        (registry, 23),
        (registry, 24),
        (registry, 25),
    ):
        avro = gw.formats.avro(FLIGHT, registry=url)
        with pytest.raises(SourceError, match=f"does not answer for schemas/ids/{schema_id}"):
            avro.decode([frame_header(schema_id) + b"x"], ["plane"])
    for wrong in (
        "http://127.0.0.1:99999",
        "http://[::1",
        "https://",
        "ftp://registry",
        "registry",
    ):
        with pytest.raises(InvalidFlowError, match="a registry= that is not a URL"):
            gw.formats.avro(FLIGHT, registry=wrong)


def test_what_avro_cannot_be_is_refused() -> None:
    for wrong in ("{", '"string"', {"type": "record", "name": "R", "fields": [{"name": "x"}]}):
        with pytest.raises(InvalidFlowError, match="Avro format"):
            gw.formats.avro(wrong)
    union = {**FLIGHT, "fields": [{"name": "u", "type": ["int", "string"]}]}
    with pytest.raises(InvalidFlowError, match=r"a union of 2 types at Flight\.u"):
        gw.formats.avro(union)
    tree = {**FLIGHT, "fields": [{"name": "next", "type": ["null", "Flight"]}]}
    with pytest.raises(InvalidFlowError, match=r"contains itself at Flight\.next"):
        gw.formats.avro(tree)
    avro = gw.formats.avro(FLIGHT)
    with pytest.raises(UnwritableError):
        avro.encode(pa.RecordBatch.from_pylist([{**ROW, "plane": None}], avro.schema))
    with pytest.raises(InvalidFlowError, match="no such field"):
        avro.check_columns(pa.schema([("colour", pa.string())]), "The sink")


def flight_descriptors() -> bytes:
    """What protoc writes for a small file."""
    from google.protobuf import timestamp_pb2

    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="f", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other")
    flight = file.message_type.add(name="Flight")
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="JET", number=0)
    kind.value.add(name="PROP", number=1)
    crew = flight.nested_type.add(name="Crew")
    crew.field.add(name="pilots", number=1, label=one, type=field.TYPE_INT32)
    counts = flight.nested_type.add(name="CountsEntry")
    counts.options.map_entry = True
    counts.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    counts.field.add(name="value", number=2, label=one, type=field.TYPE_INT64)
    named: list[tuple[str, int, int, str | None]] = [
        ("plane", field.TYPE_STRING, one, None),
        ("delay", field.TYPE_DOUBLE, one, None),
        ("raw", field.TYPE_BYTES, one, None),
        ("at", field.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("kind", field.TYPE_ENUM, one, ".f.Kind"),
        ("stops", field.TYPE_STRING, many, None),
        ("counts", field.TYPE_MESSAGE, many, ".f.Flight.CountsEntry"),
        ("crew", field.TYPE_MESSAGE, one, ".f.Flight.Crew"),
    ]
    for number, (name, type_, label, type_name) in enumerate(named, 1):
        flight.field.add(name=name, number=number, label=label, type=type_, type_name=type_name)
    timestamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[timestamps, file]).SerializeToString())


PROTO_ROW = {
    "plane": "N1",
    "delay": 2.5,
    "raw": b"\x00",
    "at": dt.datetime(2013, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC),
    "kind": "PROP",
    "stops": ["JFK"],
    "counts": [("bags", 3)],
    "crew": {"pilots": 2},
}


@pytest.mark.parametrize("framed", [False, True])
def test_protobuf_is_read_as_it_was_written(*, framed: bool) -> None:
    options: dict[str, Any] = {
        "descriptors": flight_descriptors(),
        "framed": framed,
        "schema_id": 5,
    }
    proto = gw.formats.protobuf("f.Flight", **options)
    empty = {**dict.fromkeys(PROTO_ROW), "plane": "", "delay": 0.0, "raw": b"", "kind": "JET"}
    empty |= {"stops": [], "counts": []}
    rows = pa.RecordBatch.from_pylist([PROTO_ROW, empty], proto.schema)
    messages = pickle.loads(pickle.dumps(proto)).encode(rows)
    decoded = proto.decode([messages[0], None, messages[1], b"\xff\xff"], proto.schema.names)
    assert decoded.rows.to_pylist() == [PROTO_ROW, dict.fromkeys(PROTO_ROW), empty]
    assert [position for position, _ in decoded.bad] == [3]
    if framed:
        assert (messages[0] or b"")[:7] == frame_header(
            5
        ) + b"\2\2"  # one number: the second message
        other = gw.formats.protobuf("f.Other", **options)
        (reason,) = [reason for _, reason in other.decode([messages[0]], []).bad]
        assert "a different message type of the schema" in reason


def test_a_generated_class_is_taken_with_all_that_it_needs() -> None:
    proto = gw.formats.protobuf(descriptor_pb2.UninterpretedOption.NamePart)
    assert proto.schema.names == ["name_part", "is_extension"]
    copy = pickle.loads(pickle.dumps(proto))
    rows = pa.RecordBatch.from_pylist([{"name_part": "x", "is_extension": True}], proto.schema)
    assert copy.decode(copy.encode(rows), proto.schema.names).rows.equals(rows)


def test_what_protobuf_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match="no descriptors"):
        gw.formats.protobuf("f.Flight")
    with pytest.raises(InvalidFlowError, match=r"cannot find message 'f\.Nobody'"):
        gw.formats.protobuf("f.Nobody", descriptors=flight_descriptors())
    with pytest.raises(InvalidFlowError, match="contains itself"):
        gw.formats.protobuf(descriptor_pb2.DescriptorProto)
    framed = gw.formats.protobuf("f.Flight", descriptors=flight_descriptors(), framed=True)
    with pytest.raises(InvalidFlowError, match="Give schema_id="):
        framed.check_columns(pa.schema([("plane", pa.string())]), "The sink")
    with pytest.raises(UnwritableError):
        framed.encode(pa.RecordBatch.from_pydict({"delay": ["late"]}))

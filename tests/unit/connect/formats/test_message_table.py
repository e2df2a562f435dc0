"""Values of every type, at every depth, by every way of getting there: as they were written.

Avro messages are made by the oracle (`tests/oracles/avro.py`) out of the values of the underlying
types, so what logical types mean is stated here.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from tests.oracles import avro as oracle

import godwit as gw
from godwit.connect.formats.message_formats import UnwritableError
from godwit.model.errors import InvalidFlowError

UUID = uuid.UUID("00010203-0405-0607-0809-0a0b0c0dffee")
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
MICROS = (NOON - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
MILLIS = MICROS // 1000
AT_MILLIS = NOON.replace(microsecond=123000)


def named(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": "n.Named", **more}


def logical(of: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(of if isinstance(of, dict) else {"type": of}), "logicalType": name, **more}


def fixed(size: int) -> dict[str, Any]:
    return named("fixed", size=size)


# name, type, value of the underlying type, value in a column
CASES: list[tuple[str, Any, Any, Any]] = [
    ("boolean", "boolean", True, True),
    ("int", "int", -(2**31), -(2**31)),
    ("long", "long", 2**63 - 1, 2**63 - 1),
    ("float", "float", 0.5, 0.5),
    ("double", "double", 0.1, 0.1),
    ("bytes", "bytes", b"\x00\xff\x80a", b"\x00\xff\x80a"),
    ("string", "string", 'ä"\u2028\U0001f600', 'ä"\u2028\U0001f600'),
    ("enum", named("enum", symbols=["A", "B", "C"]), "C", "C"),
    ("fixed", fixed(3), b"\xfe\xff\x00", b"\xfe\xff\x00"),
    ("decimal", logical("bytes", "decimal", precision=4, scale=2), b"\x7d", Decimal("1.25")),
    ("decimal of 0", logical("bytes", "decimal", precision=4, scale=2), b"", Decimal("0.00")),
    (
        "decimal below 0",
        logical("bytes", "decimal", precision=38, scale=38),
        b"\xff\xff\x80",
        Decimal(-128).scaleb(-38),
    ),
    ("decimal of integers", logical("bytes", "decimal", precision=9), b"\x80", Decimal(-128)),
    (
        "decimal in fixed",
        logical(fixed(16), "decimal", precision=38, scale=2),
        b"\xff" * 15 + b"\x85",
        Decimal("-1.23"),
    ),
    ("uuid", logical("string", "uuid"), str(UUID), str(UUID)),
    ("uuid in capitals", logical("string", "uuid"), str(UUID).upper(), str(UUID)),
    ("uuid in fixed", logical(fixed(16), "uuid"), UUID.bytes, str(UUID)),
    ("date", logical("int", "date"), -1, dt.date(1969, 12, 31)),
    ("time-millis", logical("int", "time-millis"), 86_399_999, dt.time(23, 59, 59, 999000)),
    ("time-micros", logical("long", "time-micros"), 1, dt.time(0, 0, 0, 1)),
    ("timestamp-millis", logical("long", "timestamp-millis"), MILLIS, AT_MILLIS),
    ("timestamp-micros", logical("long", "timestamp-micros"), MICROS, NOON),
    (
        "local-timestamp-millis",
        logical("long", "local-timestamp-millis"),
        MILLIS,
        AT_MILLIS.replace(tzinfo=None),
    ),
    (
        "local-timestamp-micros",
        logical("long", "local-timestamp-micros"),
        MICROS,
        NOON.replace(tzinfo=None),
    ),
    # Arrow has types for these, other parts of Godwit have not.
    ("timestamp-nanos", logical("long", "timestamp-nanos"), 2**62, 2**62),
    ("local-timestamp-nanos", logical("long", "local-timestamp-nanos"), -1, -1),
    ("duration", logical(fixed(12), "duration"), bytes(range(12)), bytes(range(12))),
    # Logical types that do not fit, or are not known, are ignored.
    ("decimal without digits", logical("bytes", "decimal"), b"\x05", b"\x05"),
    ("decimal of 0 digits", logical("bytes", "decimal", precision=0), b"\x05", b"\x05"),
    ("decimal of text", logical("bytes", "decimal", precision="4"), b"\x05", b"\x05"),
    ("scale too large", logical("bytes", "decimal", precision=2, scale=3), b"\x05", b"\x05"),
    ("scale below 0", logical("bytes", "decimal", precision=2, scale=-1), b"\x05", b"\x05"),
    ("too small a fixed", logical(fixed(1), "decimal", precision=3), b"\x05", b"\x05"),
    ("decimal of a string", logical("string", "decimal", precision=3), "5", "5"),
    ("uuid in 15 bytes", logical(fixed(15), "uuid"), bytes(15), bytes(15)),
    ("uuid in bytes", logical("bytes", "uuid"), b"x", b"x"),
    ("date of a long", logical("long", "date"), 2**40, 2**40),
    ("time-millis of a long", logical("long", "time-millis"), -5, -5),
    ("timestamp-millis of an int", logical("int", "timestamp-millis"), 5, 5),
    ("timestamp of text", logical("string", "timestamp-micros"), "x", "x"),
    ("unknown", logical("int", "temperature"), 5, 5),
    ("not a string", logical("int", 7), 5, 5),  # type: ignore[arg-type]
]


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, of: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": of, **more}


# name → type around a type, value around a value for the encoder, value around a value in a column,
# and default around a default
DEPTHS: dict[str, Any] = {
    "top": (lambda t: t, lambda v: v, lambda v: v, lambda v: v),
    "nullable": (lambda t: ["null", t], lambda v: (1, v), lambda v: v, None),
    "nullable last": (lambda t: [t, "null"], lambda v: (0, v), lambda v: v, lambda v: v),
    "array": (
        lambda t: {"type": "array", "items": t},
        lambda v: [v, v, v],
        lambda v: [v, v, v],
        lambda v: [v, v, v],
    ),
    "array of nullable": (
        lambda t: {"type": "array", "items": ["null", t]},
        lambda v: [(1, v), (0, None)],
        lambda v: [v, None],
        lambda v: [v, None],
    ),
    "map": (
        lambda t: {"type": "map", "values": t},
        lambda v: {"x": v, "": v},
        lambda v: [("x", v), ("", v)],
        lambda v: {"x": v, "": v},
    ),
    "record": (
        lambda t: record(field("f", t), field("g", "int"), name="Inner"),
        lambda v: {"f": v, "g": 1},
        lambda v: {"f": v, "g": 1},
        lambda v: {"f": v, "g": 1},
    ),
    "map of arrays of nullable records": (
        lambda t: {
            "type": "map",
            "values": {"type": "array", "items": ["null", record(field("f", t), name="Inner")]},
        },
        lambda v: {"x": [(1, {"f": v}), (0, None)]},
        lambda v: [("x", [{"f": v}, None])],
        lambda v: {"x": [{"f": v}, None]},
    ),
}


def as_json(value: Any) -> Any:
    """Write a value of an underlying type as defaults have it."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


def read(schema: Any, message: bytes, **options: Any) -> Any:
    avro = gw.formats.avro(schema, **options)
    decoded = avro.decode([message], avro.schema.names)
    assert not decoded.bad, decoded.bad
    return decoded.rows.to_pylist()[0]


FRAME = b"\0\0\0\0\7"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_avro_values_of_each_type_at_each_depth(case: tuple[Any, ...]) -> None:
    for depth in DEPTHS:
        assert_avro_is_read_and_written(case, depth)


def assert_avro_is_read_and_written(case: tuple[Any, ...], depth: str) -> None:
    _, of, raw, expected = case
    around_type, around_raw, around_value, around_default = DEPTHS[depth]
    schema = record(field("a", around_type(of)), field("z", "string"))
    row = {"a": around_value(expected), "z": "end"}
    message = oracle.encode(schema, {"a": around_raw(raw), "z": "end"})
    assert read(schema, message) == row
    assert read(schema, FRAME + message, registry={7: schema}) == row
    # A writer of before there were logical types.
    plain = json.loads(json.dumps(schema).replace("logicalType", "was"))
    assert read(schema, FRAME + message, registry={7: plain}) == row
    # A reader that has none, and one that has one field, of all that messages have.
    assert read(record(field("z", "string")), FRAME + message, registry={7: schema}) == {"z": "end"}
    bare = read(plain, FRAME + message, registry={7: schema})
    assert bare["a"] == around_value(raw)
    if around_default is not None:  # messages from before there was the field
        newer = record(field("a", around_type(of), default=around_default(as_json(raw))))
        older = record(field("y", "int"))
        assert read(newer, FRAME + b"\2", registry={7: older})["a"] == row["a"]
        # the same default, when rows without the column are written
        avro = gw.formats.avro(record(*newer["fields"], field("y", "int")))
        written = avro.encode(pa.RecordBatch.from_pydict({"y": pa.array([1], pa.int32())}))
        assert avro.decode(written, ["a"]).rows.to_pylist() == [{"a": row["a"]}]
    avro = gw.formats.avro(schema)
    rows = avro.decode([message, None], avro.schema.names).rows
    assert avro.decode(avro.encode(rows[:1]), avro.schema.names).rows.equals(rows[:1])


def read_as(written: Any, to: Any, value: Any) -> Any:
    """Read a field's value of one schema by another; the error, if it cannot be read."""
    older, newer = record(field("a", written)), record(field("a", to))
    avro = gw.formats.avro(newer, registry={7: older})
    decoded = avro.decode([FRAME + oracle.encode(older, {"a": value})], ["a"])
    return decoded.bad[0][1] if decoded.bad else decoded.rows["a"].to_pylist()[0]


def decimal(of: Any, precision: int, scale: int) -> dict[str, Any]:
    return logical(of, "decimal", precision=precision, scale=scale)


def in_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


NANOS = logical("long", "timestamp-nanos")


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


ONE = record(field("x", "int"), name="p.One")
RESOLVED: list[tuple[Any, Any, Any, Any]] = [
    ("int", "long", 5, 5),
    ("int", "float", 5, 5.0),
    ("int", "double", 5, 5.0),
    ("long", "float", 5, 5.0),
    ("long", "double", 2**62, float(2**62)),
    ("float", "double", 0.5, 0.5),
    ("string", "bytes", "ä", "ä".encode()),
    ("bytes", "string", "ä".encode(), "ä"),
    ("string", logical("bytes", "decimal", precision=3), "\x05", Decimal(5)),
    ("bytes", logical("string", "uuid"), str(UUID).encode(), str(UUID)),
    ("int", ["null", "double"], 5, 5.0),
    (["null", "int"], "long", (1, 5), 5),
    (["string", "int", "null"], ["null", "long"], (1, 5), 5),
    (["string", "int", "null"], ["null", "long"], (2, None), None),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1], [1.0]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"k": 1}, [("k", 1)]),
    (enum("A", "B"), enum("B", "A"), "B", "B"),
    (enum("A", "B"), enum("A", "X", default="X"), "B", "X"),
    # What the number of the writer's logical type means, counts.
    (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), MILLIS, AT_MILLIS),
    (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), MICROS, AT_MILLIS),
    (logical("int", "time-millis"), logical("long", "time-micros"), 5, dt.time(0, 0, 0, 5000)),
    (NANOS, logical("long", "timestamp-micros"), MICROS * 1000 + 999, NOON),
    (
        NANOS,
        logical("long", "local-timestamp-millis"),
        MILLIS * 10**6,
        AT_MILLIS.replace(tzinfo=None),
    ),
    (logical("long", "timestamp-micros"), NANOS, MICROS, MICROS * 1000),
    (NANOS, "long", MICROS * 1000, MICROS * 1000),
    (decimal("bytes", 500, 200), decimal("bytes", 4, 2), in_bytes(10**198), Decimal("0.01")),
    (
        decimal("bytes", 500, 200),
        decimal("bytes", 4, 2),
        in_bytes(-125 * 10**198),
        Decimal("-1.25"),
    ),
    (decimal("bytes", 10**7, 10**7), decimal("bytes", 4, 2), b"\0", Decimal("0.00")),
    (decimal("bytes", 4, 2), decimal("bytes", 9, 3), b"\x7d", Decimal("1.250")),
    (decimal("bytes", 9, 3), decimal("bytes", 4, 2), b"\x0a", Decimal("0.01")),
    (logical("int", "date"), logical("long", "unheard-of"), 5, 5),
    # Names: without namespaces they are the same, or an alias says so.
    (ONE, {**ONE, "name": "q.One"}, {"x": 1}, {"x": 1}),
    (ONE, {**ONE, "name": "q.Two", "aliases": ["p.One"]}, {"x": 1}, {"x": 1}),
    (ONE, {**ONE, "name": "p.Two", "aliases": ["One"]}, {"x": 1}, {"x": 1}),
    (enum("A", name="p.E"), enum("A", name="q.F", aliases=["p.E"]), "A", "A"),
    (
        ONE,
        record(field("y", "long", aliases=["z", "x"]), field("n", "int", default=2), name="One"),
        {"x": 1},
        {"y": 1, "n": 2},
    ),
    (
        record(field("x", "int"), field("y", "int"), name="One"),
        record(field("z", "int", aliases=["x"], default=7), field("x", "int"), name="One"),
        {"x": 1, "y": 2},
        {"z": 7, "x": 1},
    ),
    (
        ONE,
        record(
            field("y", "int", aliases=["x"]),
            field("z", "int", aliases=["x"], default=7),
            name="One",
        ),
        {"x": 1},
        {"y": 1, "z": 7},
    ),
    (["null", ONE, {**ONE, "name": "p.Other"}], ["null", ONE], (1, {"x": 1}), {"x": 1}),
]


@pytest.mark.parametrize(("written", "to", "value", "expected"), RESOLVED)
def test_avro_messages_of_another_schema(written: Any, to: Any, value: Any, expected: Any) -> None:
    assert read_as(written, to, value) == expected


UNRESOLVED: list[tuple[Any, Any, Any, str]] = [
    ("long", "int", 5, "long is not int"),
    ("string", "int", "5", "string is not int"),
    (["null", "string"], "string", (0, None), "null is not string"),
    (["null", "string", "int"], ["null", "string"], (2, 5), "int is not"),
    (enum("A", "B", "C"), enum("A", "B"), "C", "has no symbol 'C'"),
    (enum("A"), enum("A", name="F"), "A", "enum E is not enum F"),
    (fixed(3), fixed(4), b"abc", "fixed n.Named is not fixed n.Named"),
    (fixed(3), "bytes", b"abc", "is not bytes"),
    (ONE, {**ONE, "name": "Two"}, {"x": 1}, "record p.One is not record Two"),
    (ONE, {**ONE, "name": "q.Two", "aliases": ["r.One"]}, {"x": 1}, "is not record q.Two"),
    (["null", ONE, {**ONE, "name": "p.Two"}], ["null", ONE], (2, {"x": 1}), "record p.Two is not"),
    (
        ONE,
        record(field("y", "int"), name="One"),
        {"x": 1},
        "field 'y' is missing from record p.One",
    ),
    (logical("int", "date"), logical("long", "timestamp-millis"), 5, "int (date) is not long"),
    (decimal("bytes", 9, 3), decimal("bytes", 4, 2), b"\x7d", "more than 2 digits after"),  # 0.125
    (decimal("bytes", 9, 0), decimal("bytes", 2, 0), b"\x7d", "field 'a'"),
    (decimal("bytes", 500, 200), decimal("bytes", 4, 2), b"\x01", "more than 2 digits after"),
    (decimal("bytes", 10**7, 10**7), decimal("bytes", 4, 2), b"\xff", "more than 2 digits after"),
    (
        record(field("x", "int"), name="One"),
        record(field("y", "int", aliases=["x"]), field("z", "int", aliases=["x"]), name="One"),
        {"x": 1},
        "field 'z' is missing from record One",
    ),
    (logical("int", "time-millis"), logical("int", "time-millis"), -1, "not a time of day"),
    (logical("int", "time-millis"), logical("int", "time-millis"), 86_400_000, "not a time of day"),
    (logical("string", "uuid"), logical("string", "uuid"), "x", "UUID"),
]


@pytest.mark.parametrize(("written", "to", "value", "reason"), UNRESOLVED)
def test_avro_messages_that_a_schema_cannot_read(
    written: Any, to: Any, value: Any, reason: str
) -> None:
    assert reason in read_as(written, to, value)


def test_the_writer_may_have_several_records_in_a_union() -> None:
    one, two = record(field("x", "int"), field("y", "int"), name="One"), record(name="Two")
    avro = gw.formats.avro(one, registry={7: [two, one, "string"]})
    decoded = avro.decode([FRAME + b"\2\4\6", FRAME + b"\0", FRAME + b"\4\2a"], ["y"])
    assert decoded.rows.to_pylist() == [{"y": 3}]
    assert [position for position, _ in decoded.bad] == [1, 2]


def test_a_default_is_not_taken_where_the_message_has_the_field() -> None:
    older = record(field("a", "bytes"))
    newer = record(field("a", "bytes", default="\u00ff"))
    assert read(newer, FRAME + b"\2x", registry={7: older}) == {"a": b"x"}


def test_a_record_that_is_a_default_takes_what_it_lacks_from_its_fields() -> None:
    inner = record(
        field("x", "bytes", default="\u00fe"),
        field("y", ["int", "null"], default=3),
        field("z", decimal("bytes", 4, 2)),
        name="Inner",
    )
    newer = record(field("a", inner, default={"z": "\u007d", "y": None}))
    got = read(newer, FRAME, registry={7: record()})
    assert got == {"a": {"x": b"\xfe", "y": None, "z": Decimal("1.25")}}


@pytest.mark.parametrize(
    ("of", "default"),
    [
        ("int", "1"),
        ("int", 2**31),
        ("int", True),
        ("bytes", "\u0100"),
        ("string", "\ud800"),
        (fixed(2), "x"),
        (enum("A"), "B"),
        (["null", "int"], "x"),
        ({"type": "array", "items": "int"}, [1, None]),
        (record(field("x", "int"), name="Inner"), {}),
        (logical("string", "uuid"), "x"),
        (logical("int", "time-millis"), -1),
        pytest.param("double", 10**400, id="too large"),
    ],
)
def test_a_default_that_does_not_fit_is_refused_with_its_path(of: Any, default: Any) -> None:
    with pytest.raises(InvalidFlowError, match=r"R\.a"):
        gw.formats.avro(record(field("a", of, default=default)))


def test_types_that_no_column_has_are_refused_with_their_path() -> None:
    for of, what in (
        ("null", "the type null"),
        (["null"], "a union of 0 types"),
        (["int", "string"], "a union of 2 types"),
        (decimal("bytes", 39, 2), "a decimal of 39 digits, more than 38,"),
        (decimal(fixed(32), 70, 2), "a decimal of 70 digits, more than 38,"),
        ("R", "the record R, which contains itself"),
    ):
        for around, path in (
            (of if of != "R" else ["null", "R"], r"R\.a"),
            ({"type": "array", "items": of}, r"R\.a\[\]"),
            (record(field("b", {"type": "map", "values": of}), name="B"), r"R\.a\.b\[\]"),
        ):
            with pytest.raises(InvalidFlowError, match=f"{what} at {path}"):
                gw.formats.avro(record(field("a", around)))


@pytest.mark.parametrize(
    "wrong",
    [
        record(field("a", "nothing")),
        record(field("a", None)),
        record(field("a", {"type": "array"})),
        record(field("a", {"type": "enum", "symbols": ["A"]})),
        record(field("a", {"type": "enum", "name": "E", "symbols": ["A", "A"]})),
        record(field("a", {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"})),
        record(field("a", {"type": "fixed", "name": "F", "size": -1})),
        record(field("a", ["int", "int"])),
        record(field("a", [["int"]])),
        record(field("a", enum("A")), field("b", enum("B"))),
        record(field("a", "int"), field("a", "int")),
        record(field("a", "int", aliases="b")),
        record(field("a", "R")),
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        "[" * 3000,
    ],
)
def test_schemas_that_are_not_valid_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidFlowError, match="The schema of the Avro format cannot"):
        gw.formats.avro(wrong)


def test_a_schema_of_any_depth_is_read_or_refused() -> None:
    for depth in [50, *range(100, 1000, 60)]:
        of: Any = "int"
        for _ in range(depth):
            of = {"type": "array", "items": of}
        try:
            avro = gw.formats.avro(record(field("a", of, default=[])))
        except InvalidFlowError:
            assert depth > 100
            continue
        decoded = avro.decode([b"\2" * depth + b"\2" + b"\0" * depth], ["a"])
        assert decoded.rows.num_rows + len(decoded.bad) == 1
        assert depth > 100 or not decoded.bad


def test_avro_names_are_full_names() -> None:
    red = {"type": "enum", "name": "E", "namespace": "y", "symbols": ["A", "B"]}
    blue = {"type": "record", "name": "E", "namespace": "z", "fields": [field("n", "int")]}
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "x",
        "fields": [
            field("a", red),
            field("b", "y.E"),
            field("c", blue),
            field("d", ["null", "z.E"]),
            field("e", {"type": "fixed", "name": "E", "size": 1}),
            field("f", {"type": "array", "items": "E"}),
            field("g", "x.E"),
            field("h", {"type": {"type": "string"}}),
            field("i", record(field("j", {**red, "namespace": "w"}), field("k", "E"), name="w.I")),
        ],
    }
    message = b"\2\0" + b"\4" + b"\2\6" + b"x" + b"\2y\0" + b"z" + b"\2h" + b"\0\2"
    assert read(schema, message) == {
        "a": "B",
        "b": "A",
        "c": {"n": 2},
        "d": {"n": 3},
        "e": b"x",
        "f": [b"y"],
        "g": b"z",
        "h": "h",
        "i": {"j": "A", "k": "B"},
    }
    assert repr(gw.formats.avro(schema)) == "gw.formats.avro('x.R')"


def test_avro_times_of_any_year_are_read_and_written() -> None:
    of = logical("long", "timestamp-millis")
    days = {"type": "array", "items": logical("int", "date")}
    schema = record(field("a", of), field("d", logical("int", "date")), field("l", days))
    avro = gw.formats.avro(schema)
    message = oracle.encode(schema, {"a": 2 * 253402300800000, "d": 2**31 - 1, "l": []})
    decoded = avro.decode([message], avro.schema.names)
    assert decoded.rows["a"].cast(pa.int64()).to_pylist() == [2 * 253402300800000]
    assert decoded.rows["d"].cast(pa.int32()).to_pylist() == [2**31 - 1]
    assert avro.encode(decoded.rows) == [message]
    within = avro.decode([oracle.encode(schema, {"a": 0, "d": 0, "l": [2**30]})], ["a", "d", "l"])
    assert within.bad == ()
    with pytest.raises(UnwritableError):  # Python has no such date
        avro.encode(within.rows)


def test_avro_times_are_written_in_the_units_of_the_schema() -> None:
    fields = [
        field("ms", ["null", logical("long", "timestamp-millis")]),
        field("us", logical("long", "timestamp-micros")),
        field("t", logical("int", "time-millis")),
        field("l", {"type": "array", "items": logical("long", "timestamp-millis")}),
    ]
    avro = gw.formats.avro(record(*fields))
    before = NOON.replace(year=1960)  # the millisecond that it is in, also before 1970
    for unit, zone in (("us", "UTC"), ("us", None), ("us", "Asia/Tokyo"), ("ns", "UTC")):
        dtype = pa.timestamp(unit, zone)
        utc = [v if zone else v.replace(tzinfo=None) for v in (NOON, before)]
        columns = {
            "ms": pa.array([*utc, None], dtype),
            "us": pa.array([*utc, utc[0]], dtype),
            "t": pa.array([dt.time(1, 2, 3, 4999)] * 3, pa.time64("ns")),
            "l": pa.array([utc, [], []], pa.list_(dtype)),
        }
        written = avro.encode(pa.RecordBatch.from_pydict(columns))
        rows = avro.decode(written, avro.schema.names).rows.to_pydict()
        cut = [v.replace(microsecond=123000) for v in (NOON, before)]
        assert rows == {
            "ms": [*cut, None],
            "us": [NOON, before, NOON],
            "t": [dt.time(1, 2, 3, 4000)] * 3,
            "l": [cut, [], []],
        }


@pytest.mark.parametrize(
    ("of", "column"),
    [
        ("int", pa.array([2**31])),
        ("int", pa.array([None], pa.int32())),
        ("boolean", pa.array([1])),
        ("string", pa.array([b"x"])),
        ("bytes", pa.array(["x"])),
        ("double", pa.array(["x"])),
        (fixed(3), pa.array([b"xx"])),
        (enum("A"), pa.array(["B"])),
        (decimal("bytes", 3, 1), pa.array([Decimal("1.25")])),
        (decimal("bytes", 3, 1), pa.array([Decimal("100.0")])),
        (decimal(fixed(1), 2, 1), pa.array([1.5])),
        (logical("string", "uuid"), pa.array(["x"])),
        (logical(fixed(16), "uuid"), pa.array(["x"])),
        (logical("int", "time-millis"), pa.array([dt.timedelta(1)])),
        ({"type": "array", "items": "int"}, pa.array([[None]], pa.list_(pa.int32()))),
        ({"type": "array", "items": "int"}, pa.array([None], pa.list_(pa.int32()))),
        (ONE, pa.array([{"y": 1}])),
        (ONE, pa.array([None], pa.struct([("x", pa.int32())]))),
    ],
)
def test_values_that_an_avro_type_does_not_have_are_unwritable(of: Any, column: pa.Array) -> None:
    avro = gw.formats.avro(record(field("a", of)))
    with pytest.raises(UnwritableError):
        avro.encode(pa.RecordBatch.from_arrays([column], ["a"]))


WIDE = record(
    field("s", "string"),
    field("b", "boolean"),
    field("i", "int"),
    field("l", "long"),
    field("d", "double"),
    field("e", enum("A", "B")),
    field("u", ["null", "int"]),
    field("x", fixed(2)),
    field("r", {"type": "array", "items": "null"}),
)
GOOD = oracle.encode(
    WIDE,
    {"s": "s", "b": True, "i": 1, "l": 1, "d": 1.0, "e": "A", "u": (0, None), "x": b"xx", "r": []},
)


@pytest.mark.parametrize(
    "bad",
    [
        *(GOOD[:size] for size in range(len(GOOD))),
        GOOD + b"\0",
        b"\1" + GOOD[1:],  # a length below 0
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1" + GOOD[1:],  # of 11 bytes
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + GOOD[1:],  # of more than 64 bits
        b"\2\xff" + GOOD[2:],  # no UTF-8
        GOOD[:2] + b"\2" + GOOD[3:],  # neither true nor false
        GOOD[:3] + b"\x80\x80\x80\x80\x10" + GOOD[4:],  # 2^31, in an int
        GOOD[:13] + b"\4" + GOOD[14:],  # the third symbol of two
        GOOD[:13] + b"\1" + GOOD[14:],  # symbol -1
        GOOD[:14] + b"\1" + GOOD[15:],  # type -1 of a union
        GOOD[:14] + b"\4" + GOOD[15:],
        GOOD[:-1] + b"\x82\x80\x08\0",  # an array of more nulls than there may be
    ],
)
def test_damaged_avro_is_bad_and_takes_no_other_with_it(bad: bytes) -> None:
    to = {**WIDE, "fields": WIDE["fields"][:-1]}  # without the array of nulls
    avro = gw.formats.avro(to, registry={7: WIDE})
    decoded = avro.decode([FRAME + GOOD, FRAME + bad, FRAME + GOOD], avro.schema.names)
    assert [position for position, _ in decoded.bad] == [1]
    assert decoded.rows.num_rows == 2


def test_items_without_bytes_that_are_left_out_cost_nothing() -> None:
    nulls = {"type": "array", "items": "null"}
    part = record(field("n", "int"), field("nulls", nulls), name="Part")
    to = {**part, "fields": part["fields"][:1]}
    older = record(field("a", {"type": "array", "items": part}))
    block = oracle.encode(
        record(field("n", "int"), field("count", "long")), {"n": 1, "count": 1 << 16}
    )
    message = FRAME + b"\xc8\x01" + 100 * (block + b"\0") + b"\0"
    avro = gw.formats.avro(record(field("a", {"type": "array", "items": to})), registry={7: older})
    decoded = avro.decode([message], ["a"])
    assert decoded.rows.to_pylist() == [{"a": [{"n": 1}] * 100}]


def test_what_an_avro_reader_leaves_out_may_have_any_depth() -> None:
    node = record(
        field("next", ["null", "N"]),
        field("more", {"type": "map", "values": "N"}),
        field("all", {"type": "array", "items": ["N", "string"]}),
        name="N",
    )
    written = record(field("a", "int"), field("t", node), field("z", "int"))
    to = record(field("a", "int"), field("z", "int"))
    deep = b"\2" * 1500 + b"\0" + b"\0\0" * 1501  # more than Python's limit
    # a map of one tree, then an array in two blocks, the first with its size
    wide = b"\0" + b"\2\2k" + b"\0\0\0" + b"\0" + b"\1\x0a\2\6abc" + b"\2\2\4de" + b"\0"
    for tree in (deep, wide):
        assert read(to, FRAME + b"\2" + tree + b"\4", registry={7: written}) == {"a": 1, "z": 2}
    for damaged in (deep[:-1], b"\4" + deep[1:]):
        avro = gw.formats.avro(to, registry={7: written})
        assert avro.decode([FRAME + b"\2" + damaged + b"\4"], ["a", "z"]).bad


DIGITS = "123456789012345678901234567890123456.78"
# type, text in JSON, value in a column
JSON_CASES: list[tuple[str, str, Any]] = [
    ("boolean", "true", True),
    ("tinyint", "-128", -128),
    ("smallint", "32767", 32767),
    ("int", "-2147483648", -(2**31)),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("float", "0.5", 0.5),
    ("double", "0.1", 0.1),
    ("double", "3", 3.0),
    ("string", '"\\u00e4\\ud83d\\ude00\\""', 'ä\U0001f600"'),
    ("binary", '"AP+A"', b"\x00\xff\x80"),
    ("date", '"1969-12-31"', dt.date(1969, 12, 31)),
    ("timestamp", '"2024-02-29T13:00:00.123456+01:00"', NOON),
    ("timestamp_ntz", '"2024-02-29T12:00:00.123456"', NOON.replace(tzinfo=None)),
    ("decimal(38, 2)", DIGITS, Decimal(DIGITS)),
    ("decimal(4, 2)", '"-1.25"', Decimal("-1.25")),
]
JSON_DEPTHS: dict[str, Any] = {
    "top": ("{}", "{}", lambda v: v),
    "array": ("array<{}>", "[{0}, null, {0}]", lambda v: [v, None, v]),
    "map": ("map<string, {}>", '{{"x": {}, "": null}}', lambda v: [("x", v), ("", None)]),
    "struct": ("struct<f: {}, g: int>", '{{"h": [1], "f": {}}}', lambda v: {"f": v, "g": None}),
    "array of maps of structs": (
        "array<map<string, struct<f: array<{}>>>>",
        '[{{"k": {{"f": [{}]}}}}, null]',
        lambda v: [[("k", {"f": [v]})], None],
    ),
}


@pytest.mark.parametrize("depth", JSON_DEPTHS)
@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: str(case[0]))
def test_json_values_of_each_type_at_each_depth(case: tuple[str, str, Any], depth: str) -> None:
    of, text, expected = case
    around_type, around_text, around_value = JSON_DEPTHS[depth]
    json_format = gw.formats.json(f"a {around_type.format(of)}, z string")
    message = f'{{"a": {around_text.format(text)}, "z": "end"}}'.encode()
    wrong = f'{{"a": {around_text.format("[[]]")}, "z": "end"}}'.encode()
    decoded = json_format.decode([message, wrong, b'{"a": null}'], ["a", "z"])
    assert decoded.rows.to_pylist() == [
        {"a": around_value(expected), "z": "end"},
        {"a": None, "z": None},
    ]
    assert [position for position, _ in decoded.bad] == [1]
    again = json_format.decode(json_format.encode(decoded.rows), ["a", "z"])
    assert again.rows.equals(decoded.rows)


FIELD = descriptor_pb2.FieldDescriptorProto
_ZEROS: dict[str, Any] = {"STRING": "", "BYTES": b"", "ENUM": "NONE"}
# type of Protobuf, name of an own type, value for the library, value in a column
PROTO_CASES: list[tuple[str, str | None, Any, Any]] = [
    ("BOOL", None, True, True),
    *((kind, None, -(2**31), -(2**31)) for kind in ("INT32", "SINT32", "SFIXED32")),
    *((kind, None, -(2**63), -(2**63)) for kind in ("INT64", "SINT64", "SFIXED64")),
    *((kind, None, 2**32 - 1, 2**32 - 1) for kind in ("UINT32", "FIXED32")),
    *((kind, None, 2**64 - 1, 2**64 - 1) for kind in ("UINT64", "FIXED64")),
    ("FLOAT", None, 0.5, 0.5),
    ("DOUBLE", None, 0.1, 0.1),
    ("STRING", None, "ä\0", "ä\0"),
    ("BYTES", None, b"\xff\0", b"\xff\0"),
    ("ENUM", ".p.E", 1, "ONE"),
    ("ENUM", ".p.E", 7, "7"),
    (
        "MESSAGE",
        ".google.protobuf.Timestamp",
        {"seconds": MICROS // 10**6, "nanos": 123456999},
        NOON,
    ),
    ("MESSAGE", ".p.Inner", {"n": 5}, {"n": 5}),
]


def proto_file(kind: str, type_name: str | None) -> bytes:
    """Return descriptors of a message p.M with a field of a type by itself, in lists, in maps."""
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    symbols = file.enum_type.add(name="E")
    symbols.value.add(name="NONE", number=0)
    symbols.value.add(name="ONE", number=1)
    file.message_type.add(name="Inner").field.add(
        name="n", number=1, label=1, type=FIELD.TYPE_INT32
    )
    of: dict[str, Any] = {"type": getattr(FIELD, f"TYPE_{kind}"), "type_name": type_name}
    deep = file.message_type.add(name="Deep")
    for message in (file.message_type.add(name="M"), deep):
        entry = message.nested_type.add(name="MapEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=FIELD.TYPE_STRING)
        entry.field.add(name="value", number=2, label=1, **of)
        message.field.add(name="one", number=1, label=1, **of)
        message.field.add(name="many", number=2, label=3, **of)
        inside = f".p.{message.name}.MapEntry"
        kinds: dict[str, Any] = {"number": 3, "label": 3, "type": FIELD.TYPE_MESSAGE}
        message.field.add(name="map", type_name=inside, **kinds)
    kinds = {**kinds, "number": 4}
    file.message_type[-1].field.add(name="deep", type_name=".p.Deep", **kinds)
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString())


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("case", PROTO_CASES, ids=lambda case: str(case[0]))
def test_protobuf_values_of_each_type_at_each_depth(
    case: tuple[str, str | None, Any, Any], *, framed: bool
) -> None:
    kind, type_name, raw, expected = case
    files = proto_file(kind, type_name)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))
    inner = {"one": raw, "many": [raw, raw], "map": {"k": raw}}
    message = made(**inner, deep=[inner, {}]).SerializeToString()
    proto = gw.formats.protobuf("p.M", descriptors=files, framed=framed, schema_id=9)
    frame = b"\0\0\0\0\x09\2\4" if framed else b""  # the third message of the file
    names = ["one", "many", "map", "deep"]
    decoded = proto.decode([frame + message, frame + message[:-1], None], names)
    row = {"one": expected, "many": [expected] * 2, "map": [("k", expected)]}
    none: dict[str, Any] = {"one": None, "many": [], "map": []}
    first, tombstone = decoded.rows.to_pylist()
    if kind != "MESSAGE":  # which has no presence
        none["one"] = _ZEROS.get(kind, 0)
    assert first == {**row, "deep": [row, none]}
    assert tombstone == dict.fromkeys(names)
    assert [position for position, _ in decoded.bad] == [1]
    if raw != 7:  # the text of a number is no name of the enum
        (again,) = proto.encode(decoded.rows[:1])
        assert proto.decode([again], names).rows.equals(decoded.rows[:1])


LONG_DECIMAL = logical("bytes", "decimal", precision=9, scale=2)
# type of the field, bytes of it in a message, words of the error
BAD_FIELDS: list[tuple[Any, bytes, str]] = [
    (LONG_DECIMAL, b"\x84\x05" + b"\x7f" * 322, "more digits than its type"),
    (LONG_DECIMAL, b"\x10" + b"\x7f" * 8, "precision"),
    ("boolean", b"\x05", "not a boolean"),
    ("int", b"\xff\xff\xff\xff\x7f", "not an int"),
    ("long", b"\xff" * 12, "more than ten bytes"),
    ("string", b"\x02\xff", "not valid Unicode"),
    ("string", b"\x10a", "ends within a value"),
    ("double", b"\0", "ends within a value"),
    ("int", b"", "ends within a value"),
    (logical("string", "uuid"), b"\x02x", "UUID"),
    (logical("int", "time-millis"), b"\x01", "not a time of day"),
    (named("enum", symbols=["A"]), b"\x04", "symbol number 2, but there are only 1"),
    (["null", "int"], b"\x06\0", "type number 3, but there are only 2"),
]


@pytest.mark.parametrize(("of_type", "data", "words"), BAD_FIELDS)
@pytest.mark.parametrize("depth", ["top", "record", "array", "skipped"])
def test_an_error_of_an_avro_message_names_the_field(
    of_type: Any, data: bytes, words: str, depth: str
) -> None:
    written = record(field("first", "int"), field("bad", of_type), name="n.Inner")
    message, path = b"\x02" + data, "field 'bad': "
    if depth == "record":
        written, path = record(field("outer", written)), "field 'outer': field 'bad': "
    elif depth == "array":
        written = record(field("outer", {"type": "array", "items": written}))
        message, path = b"\x02" + message + b"\0", "field 'outer': "
    reader = written if depth != "skipped" else record(field("first", "int"), name="n.Inner")
    format_ = gw.formats.avro(reader, registry={1: written})
    decoded = format_.decode([b"\0\0\0\0\x01" + message], format_.schema.names)
    if depth == "skipped":  # such a field is passed over without a look at its value
        assert all(path in reason or "continues" in reason for _, reason in decoded.bad)
        return
    ((_, reason),) = decoded.bad
    assert words in reason
    assert (path if words != "precision" else path.split(":")[0]) in reason


@pytest.mark.parametrize(
    ("of_type", "value", "words"),
    [
        ("int", 2**40, "not of type int"),
        ("string", None, "not a string"),
        ("float", 1e300, "larger than the largest float"),
        (logical("string", "uuid"), "x", "UUID"),
        (logical(fixed(16), "uuid"), "x", "UUID"),
        (LONG_DECIMAL, Decimal(10**9), "not a decimal(9, 2)"),
        (LONG_DECIMAL, Decimal("0.001"), "not a decimal(9, 2)"),
        (named("enum", symbols=["A"]), "B", "not of type enum"),
    ],
)
def test_an_error_of_an_avro_row_names_the_field(of_type: Any, value: Any, words: str) -> None:
    inner = record(field("bad", of_type), name="Inner")
    column = pa.array([value], pa.decimal128(20, 3) if isinstance(value, Decimal) else None)
    with pytest.raises(UnwritableError, match=r"field 'bad': .*" + re.escape(words)):
        gw.formats.avro(inner).encode(pa.RecordBatch.from_arrays([column], ["bad"]))
    nested = pa.StructArray.from_arrays([column], ["bad"])
    outer = gw.formats.avro(record(field("outer", inner)))
    with pytest.raises(UnwritableError, match=r"field 'outer': field 'bad': .*" + re.escape(words)):
        outer.encode(pa.RecordBatch.from_arrays([nested], ["outer"]))

"""Values as text: CSV files, JSON files and JSON messages read a text alike, or refuse it alike."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import godwit as gw
from godwit.connect.formats.message_formats import JsonMessages
from godwit.connect.formats.text_values import from_text
from godwit.model.errors import InvalidFlowError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

READERS = ("csv", "json", "messages", "partition")
UTC = dt.UTC


def rows_of(source: gw.sources.Source, parallelism: int = 1) -> list[dict[str, Any]]:
    source.open(None)
    begin = source.start()
    splits = source.splits(begin, source.latest(begin), parallelism)
    batches = [b for split in splits for b in source.read(split, source.schema.names)]
    source.close()
    return [
        row for batch in batches if isinstance(batch, pa.RecordBatch) for row in batch.to_pylist()
    ]


def read_files(kind: str, data: bytes, path: Path, **options: Any) -> list[dict[str, Any]]:
    (path / f"a.{kind}").write_bytes(data)
    return rows_of(getattr(gw.sources, kind)(path, **options))


def read_text(reader: str, text: str, dtype: Any, path: Path) -> Any:
    """Value that a reader has for a text; raises ValueError if it refuses it."""
    schema = {"v": dtype}
    if reader == "messages":
        decoded = gw.formats.json(schema).decode([json.dumps({"v": text}).encode()], ["v"])
        if decoded.bad:
            raise ValueError(decoded.bad[0][1])
        return decoded.rows["v"][0].as_py()
    try:
        if reader == "partition":
            (path / f"v={text}").mkdir()
            (path / f"v={text}" / "a.csv").write_bytes(b"n\n1\n")
            return rows_of(gw.sources.csv(path, schema={**schema, "n": "int"}))[0]["v"]
        lines = f'v\n"{text}"\n' if reader == "csv" else json.dumps({"v": text}) + "\n"
        return read_files(reader, lines.encode(), path, schema=schema)[0]["v"]
    except SourceError as error:
        raise ValueError(str(error)) from error


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("dtype", "text", "right"),
    [
        ("timestamp", "2024-01-01T23:59:59.999999999Z", "2024-01-01T23:59:59.999999+00:00"),
        ("timestamp", "2024-01-01T00:00:00.1234560Z", "2024-01-01T00:00:00.123456+00:00"),
        ("timestamp", "2024-01-01T00:00Z", "2024-01-01T00:00:00+00:00"),
        ("timestamp", "2024-01-01 00:00:00+00", "2024-01-01T00:00:00+00:00"),
        ("timestamp", "2024-01-01 00:00:00", "2024-01-01T00:00:00+00:00"),
        ("timestamp", "2024-01-01", "2024-01-01T00:00:00+00:00"),
        ("timestamp_ntz", "2024-01-01 00:00:00.1234567", "2024-01-01T00:00:00.123456"),
        ("timestamp_ntz", "2024-01-01T00:00", "2024-01-01T00:00:00"),
        ("date", "0001-01-01", "0001-01-01"),
        ("time", "23:59:59.9", "23:59:59.900000"),
        ("interval day to second", "PT1.5S", "0:00:01.500000"),
        ("timestamp_ntz", "2024-01-01T00:00:00Z", "declare it as timestamp"),
        ("timestamp_ntz", "2024-01-01 00:00:00+02:00", "declare it as timestamp"),
        ("date", "2024-01-01T00:00:00", "declare it as timestamp"),
        ("timestamp", "2024-01-01T24:00:00Z", "hour above 23"),
        ("timestamp", "2024-01-01T00:00:60Z", "second above 59"),
        ("timestamp", "0000-01-01T00:00:00Z", "year 0"),
        ("date", "0000-01-01", "year 0"),
        ("timestamp", "1700000000", "not as in"),
        ("interval day to second", "5", "not as in"),
    ],
)
def test_a_time_is_read_alike_wherever_it_is_text(
    reader: str, dtype: str, text: str, right: str, tmp_path: Path
) -> None:
    if right[0].isdigit():
        value = read_text(reader, text, dtype, tmp_path)
        assert (str(value) if isinstance(value, dt.timedelta) else value.isoformat()) == right
    else:
        with pytest.raises(
            ValueError, match=rf"column 'v': '{text[:10]}.*{right}".replace("+", r"\+")
        ):
            read_text(reader, text, dtype, tmp_path)


@pytest.mark.parametrize("reader", ["json", "messages"])
def test_times_and_bytes_are_read_at_any_depth(reader: str, tmp_path: Path) -> None:
    schema = "l array<timestamp>, s struct<a date, b array<struct<c binary, d timestamp_ntz>>>"
    row = {
        "l": ["2024-01-01T00:00:00.1234567+02", None, "2024-01-01"],
        "s": {"a": "2024-02-29", "b": [{"c": "/wA=", "d": "2024-01-01 00:00"}, None, {"c": None}]},
    }
    right = {
        "l": [
            dt.datetime(2023, 12, 31, 22, 0, 0, 123456, UTC),
            *(None, dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ],
        "s": {
            "a": dt.date(2024, 2, 29),
            "b": [
                {"c": b"\xff\0", "d": dt.datetime(2024, 1, 1)},  # noqa: DTZ001
                *(None, {"c": None, "d": None}),
            ],
        },
    }
    lines = [row, {"l": None, "s": None}, {"l": [], "s": {"a": None, "b": []}}, {}, row]
    texts = [json.dumps(line).encode() for line in lines]
    if reader == "json":
        got = read_files("json", b"\n".join(texts), tmp_path, schema=schema)
    else:
        decoded = gw.formats.json(schema).decode(texts, ["l", "s"])
        assert not decoded.bad
        got = decoded.rows.to_pylist()
    nothing = {"l": None, "s": None}
    assert got == [right, nothing, {"l": [], "s": {"a": None, "b": []}}, nothing, right]


def test_json_files_have_maps(tmp_path: Path) -> None:
    data = b'{"m":{"a":"2024-01-01T00:00Z","b":null}}\n{"m":null}\n\n{"m":{}}\n'
    got = read_files("json", data, tmp_path, schema="m map<string, timestamp>")
    assert got == [
        {"m": [("a", dt.datetime(2024, 1, 1, tzinfo=UTC)), ("b", None)]},
        *({"m": None}, {"m": []}),
    ]


NUMBERS: list[tuple[str, bytes, Any]] = [
    ("bigint", b"1.0", 1),
    ("bigint", b"-1e2", -100),
    ("bigint", b"9007199254740993.0", 9007199254740993),
    ("bigint", b"9223372036854775807", 2**63 - 1),
    ("bigint", b"1.5", None),
    ("bigint", b'"1"', None),
    ("bigint", b"1e-120", None),
    ("bigint", b"1e19", None),
    ("array<int>", b"[1.0,null,2]", [1, None, 2]),
    ("struct<a smallint>", b'{"a":1E1}', {"a": 10}),
    ("decimal(10, 2)", b"1.50", Decimal("1.50")),
    ("decimal(10, 2)", b'"1.5"', Decimal("1.50")),
    ("decimal(10, 2)", b"1e2", Decimal("100.00")),
    ("decimal(10, 2)", b"1.500", Decimal("1.50")),
    ("decimal(10, 2)", b"0e-120", Decimal("0.00")),
    ("decimal(10, 2)", b"1.005", None),
    ("decimal(10, 2)", b"1e-120", None),
    ("decimal(10, 2)", b"1e-50", None),
    ("decimal(10, 2)", b"1e8", None),
    ("array<decimal(3, 1)>", b"[1e-99]", None),
]


@pytest.mark.parametrize(
    ("reader", "dtype", "number", "right"),
    [
        (reader, *number)
        for reader in ("csv", "json", "messages")
        for number in NUMBERS
        if reader != "csv" or number[0].startswith("decimal")  # the only ones with a point in CSV
    ],
)
def test_a_number_is_read_exactly_or_refused(
    reader: str, dtype: str, number: bytes, right: Any, tmp_path: Path
) -> None:
    schema = {"v": dtype, "u": "string"}
    line = b'{"v":%b,"u":"e-1234"}' % number
    if reader == "messages":
        decoded = gw.formats.json(schema).decode([line, b'{"v":null}'], ["v", "u"])
        got = decoded.rows["v"].to_pylist()
        assert all("$[" not in reason for _, reason in decoded.bad)
        assert got == ([None] if right is None else [right, None])
        return
    data = line + b"\n{}\n" if reader == "json" else b"v,u\n%b,e-1234\n,x\n" % number
    if right is None:
        with pytest.raises(SourceError, match="cannot be read"):
            read_files(reader, data, tmp_path, schema=schema)
        bad = getattr(gw.sources, reader)(tmp_path, schema=schema, on_bad="skip")
        assert [row["v"] for row in rows_of(bad)] == [None]
    else:
        assert [r["v"] for r in read_files(reader, data, tmp_path, schema=schema)] == [right, None]


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        ("json", r'{"v":"100000000000000\u0065-12"}', {}),
        ("json", r'{"v":"10000000000000\u0030e\u002d12"}', {}),
        ("csv", 'v\n"100000000000000"e-12', {}),
        ("csv", 'v\n"100000000000000e"-12', {}),
        ("csv", "v\n'100000000000000'e-12", {"quote": "'"}),
        ("csv", "v\n100000000000000e!-12", {"escape": "!"}),
    ],
)
def test_an_exponent_within_marks_is_one(
    kind: str, text: str, options: dict[str, Any], tmp_path: Path
) -> None:
    data = f"{text}\n".encode()
    got = read_files(kind, data, tmp_path, schema="v decimal(10, 2)", **options)
    assert got == [{"v": Decimal("100.00")}]


@pytest.mark.parametrize("key", ["1.5", "1.500", "15e-1", "0.15e1"])
def test_keys_of_maps_are_exact_numbers(key: str) -> None:
    format_ = gw.formats.json("m map<decimal(10, 2), int>")
    decoded = format_.decode([b'{"m":{"%b":1}}' % key.encode(), b'{"m":{"1.005":1}}'], ["m"])
    assert decoded.rows.to_pylist() == [{"m": [(Decimal("1.50"), 1)]}]
    assert "not a number of 10 digits" in decoded.bad[0][1]


def test_a_long_text_that_is_no_number_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="is not a number"):
        from_text(pa.array(["1" * 1_000_000 + "x"]), pa.field("v", pa.decimal128(10, 2)))


def test_a_decimal_of_a_thousand_zeros_is_itself() -> None:
    message = b'{"v":1.%b}' % (b"0" * 1000)
    decoded = gw.formats.json("v decimal(10, 2)").decode([message], ["v"])
    assert decoded.rows["v"].to_pylist() == [Decimal("1.00")]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("json", b'{"id":18446744073709551615}\n{"id":1}\n'),
        ("json", b'{"id":9007199254740993}\n{"id":0.5}\n'),
        ("json", b'{"id":{"a":[1,18446744073709551615]}}\n'),
        ("csv", b"id\n18446744073709551615\n18446744073709551614\n"),
        ("csv", b"id\n 9007199254740993\n0.5\n"),
    ],
)
def test_whole_numbers_that_no_type_holds_ask_for_a_schema(
    kind: str, data: bytes, tmp_path: Path
) -> None:
    with pytest.raises(
        SourceError, match=r"'id.*whole number (18446744073709551615|9007199254740993)"
    ):
        read_files(kind, data, tmp_path)
    if b"a" not in data:
        ids = [row["id"] for row in read_files(kind, data, tmp_path, schema="id decimal(21, 1)")]
        texts = data.replace(b'{"id":', b"").replace(b"}", b"").split()
        assert ids == [Decimal(text.decode()) for text in texts if text != b"id"]


def test_numbers_that_a_double_holds_are_doubles(tmp_path: Path) -> None:
    data = b'{"a":1,"b":[9007199254740992,0.5]}\n{"a":1e300,"b":[]}\n'
    assert [row["a"] for row in read_files("json", data, tmp_path)] == [1.0, 1e300]


def test_a_type_from_the_first_file_reads_the_file(tmp_path: Path) -> None:
    moment = dt.datetime(2024, 1, 1, tzinfo=UTC)
    for kind, text in (("json", b'{"v":"%b"}\n'), ("csv", b"v\n%b\n")):
        for zone in (b"Z", b"+00:00", b"+00", b""):
            right = moment if zone else moment.replace(tzinfo=None)
            data = text % (b"2024-01-01T00:00:00" + zone)
            assert read_files(kind, data, tmp_path) == [{"v": right}]
            (tmp_path / f"a.{kind}").unlink()
    data = b'{"v":["2024-01-01T00:00:00Z"]}\n{"v":["2024-01-01T00:00:00"]}\n'
    assert read_files("json", data, tmp_path)[1] == {"v": ["2024-01-01T00:00:00"]}


@pytest.mark.parametrize("newlines", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"a\r1\r2\r",
        b"a\r\n1\r2\n",
        b"a\n1\r2\r",
        b"a\n1\n2\r",
        b'a\n"x"\r"y"\n',
        b'a\n"x\ny"\r"z"\n',
        b"\xef\xbb\xbfa\r1\r",
    ],
)
def test_lines_that_end_with_a_carriage_return_alone_are_refused(
    data: bytes, newlines: bool, tmp_path: Path
) -> None:
    for schema in (None, "a string"):
        with pytest.raises(SourceError, match=r"carriage return|line break"):
            read_files("csv", data, tmp_path, schema=schema, newlines_in_values=newlines)
    assert "carriage" in read_error(data, tmp_path)


def read_error(data: bytes, path: Path) -> str:
    with pytest.raises(SourceError) as failed:
        read_files("csv", data, path, header=False, schema="a string", newlines_in_values=True)
    return str(failed.value)


def test_carriage_returns_elsewhere_are_read(tmp_path: Path) -> None:
    data = b'a,b\r\n1,"x\ry"\r\n2,"u\r\nv"\n'
    got = read_files("csv", data, tmp_path, schema="a int, b string", newlines_in_values=True)
    assert got == [{"a": 1, "b": "x\ry"}, {"a": 2, "b": "u\r\nv"}]


def test_no_row_of_any_mixture_of_line_ends_vanishes(tmp_path: Path) -> None:
    drawn = random.Random(11)
    refused = 0
    for number in range(300):
        path = tmp_path / str(number)
        path.mkdir()
        text, right = "a,b" + drawn.choice(["\n", "\r\n", "\r"]), []
        for row in range(drawn.randint(1, 5)):
            value = drawn.choice(["x", '"x"', '"q\ny"', '"q\ry"', '"q\r\ny"', '"q""y"', '"a,b"'])
            ends = ["\n", "\r\n", "\n\n"] + ["\r"] * (drawn.random() < 0.2)
            text += f"{row},{value}{drawn.choice(ends)}"
            right.append({"a": row, "b": value.strip('"').replace('""', '"')})
        (path / "a.csv").write_bytes(text.encode())
        breaks = drawn.random() < 0.5
        source = gw.sources.csv(path, schema="a int, b string", newlines_in_values=breaks)
        try:
            assert rows_of(source, 3) == right, repr(text)
        except SourceError:
            refused += 1
    assert 60 < refused < 240


def test_times_of_day_without_a_schema_keep_the_digits_of_later_files(tmp_path: Path) -> None:
    later = tmp_path / "b.csv"
    later.write_bytes(b"v\n12:00:00.123456789\n")
    os.utime(later, (4e9, 4e9))
    got = read_files("csv", b"v\n12:00\n", tmp_path)
    assert [row["v"] for row in got] == [dt.time(12), dt.time(12, 0, 0, 123456)]


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_first_file_that_is_nested_deeply_asks_for_a_schema(
    begin: bytes, end: bytes, tmp_path: Path
) -> None:
    flat = b'{"v":1,"x":[%b]}\n' % b",".join([b'{"a":"[["}'] * 200)
    assert len(read_files("json", flat, tmp_path)[0]["x"]) == 200
    deep = b'{"v":1,"x":%b1%b}\n' % (begin * 200, end * 200)
    with pytest.raises(SourceError, match="nested more than 100 levels"):
        read_files("json", deep, tmp_path)
    assert read_files("json", deep, tmp_path, schema="v int") == [{"v": 1}]


@pytest.mark.parametrize(
    ("kind", "data", "schema"),
    [
        ("json", b'{"v":1.7976931348623159e308}\n', "v double"),
        ("json", b'{"v":{"a":[1e308,2e308]}}\n', "v struct<a array<double>>"),
        ("json", b'{"v":3.5e38}\n', "v float"),
        ("json", b'{"v":NaN}\n', "v double"),
        ("json", b'{"v":[-Infinity]}\n', "v array<double>"),
        ("json", b'{"u": NaN,"v":1}\n', "v int"),
        ("csv", b"v\n1e400\n", "v double"),
        ("csv", b"v\nnan(1)\n", "v double"),
        ("csv", b"v\n0x1F\n", "v bigint"),
        ("csv", b'v\n"0"X1F\n', "v bigint"),
    ],
)
def test_a_number_of_a_library_alone_is_refused(
    kind: str, data: bytes, schema: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=rf"a\.{kind}' cannot be read"):
        read_files(kind, data, tmp_path, schema=schema)
    if kind == "json":
        assert gw.formats.json(schema).decode([data], ["v"]).bad


def test_csv_has_nan_and_infinities(tmp_path: Path) -> None:
    data = b"a,b,c\nNaN,-inf,1\n1e5,,2.0\n"
    got = read_files("csv", data, tmp_path, schema="a float, b double, c bigint")
    assert str(got) == str(
        [{"a": float("nan"), "b": -float("inf"), "c": 1}, {"a": 1e5, "b": None, "c": 2}]
    )


def test_a_column_of_hexadecimals_is_text_without_a_schema(tmp_path: Path) -> None:
    assert read_files("csv", b"a,b\n0x1F,1\n2,3\n", tmp_path)[0] == {"a": "0x1F", "b": 1}


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_thousands_of_digits_is_refused_in_our_words(
    digits: int, tmp_path: Path
) -> None:
    number = b"9" * digits
    reasons = []
    for dtype in ("bigint", "decimal(10, 2)", "double"):
        for kind, data in (("json", b'{"v":%b}\n' % number), ("csv", b"v\n%b\n" % number)):
            with pytest.raises(SourceError) as failed:
                read_files(kind, data, tmp_path, schema={"v": dtype})
            reasons.append(str(failed.value))
            (tmp_path / f"a.{kind}").unlink()
        messages = [b'{"v":%b}' % text for text in (number, b'"%b"' % number)]
        reasons += [bad for _, bad in gw.formats.json({"v": dtype}).decode(messages, ["v"]).bad]
    for kind, data in (("json", b'{"v":%b}\n{"v":1}\n' % number), ("csv", b"v\n%b\n1\n" % number)):
        with pytest.raises(
            SourceError, match=r"Column 'v' .*whole number 9{50}\.\.\., which"
        ) as failed:
            read_files(kind, data, tmp_path)
        reasons.append(str(failed.value))
    field = {"name": "v", "type": "long", "default": 0}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    with pytest.raises(gw.errors.GodwitError) as invalid:
        gw.formats.avro(schema.replace('"default": 0', f'"default": {"9" * digits}'))
    reasons.append(str(invalid.value))
    assert not [
        r for r in reasons if "Exceeds" in r or "Python" in r or "too big" in r or "int_info" in r
    ]
    assert all(len(reason) < 700 for reason in reasons)


@pytest.mark.parametrize("reader", ["json", "messages"])
def test_of_two_values_of_a_name_the_last_one_counts(reader: str, tmp_path: Path) -> None:
    schema = "a int, s struct<x int>, l array<struct<x int>>"
    line = b'{"a":1,"s":{"x":1,"x":2},"z":1,"z":2,"a":null,"a":3,"l":[{"x":4,"x":5}]}'
    right = {"a": 3, "s": {"x": 2}, "l": [{"x": 5}]}
    if reader == "messages":
        decoded = gw.formats.json(schema).decode([line], ["a", "s", "l"])
        assert decoded.rows.to_pylist() == [right]
        return
    assert read_files("json", line, tmp_path, schema=schema) == [right]
    inferred = read_files("json", line, tmp_path)
    assert [{name: row[name] for name in right} for row in inferred] == [right]


@pytest.mark.parametrize("reader", ["json", "messages"])
@pytest.mark.parametrize(
    ("dtype", "names", "right"),
    [
        ("int", ["1", "01", "1"], [(1, 3)]),
        ("int", ["1", "2", "01"], [(1, 3), (2, 2)]),
        ("double", ["1", "1e0", "1.0"], [(1.0, 3)]),
        ("float", ["1.00000001", "1", "2"], [(1.0, 2), (2.0, 3)]),
        ("decimal(5, 2)", ["1", "2", "1.0"], [(Decimal("1.00"), 3), (Decimal("2.00"), 2)]),
        ("boolean", ["true", "1", "FALSE"], [(True, 2), (False, 3)]),
        ("binary", ["YQ==", "YR==", "Yg=="], [(b"a", 2), (b"b", 3)]),
        ("date", ["2024-01-01", " 2024-01-01", "2024-01-02"], None),
        ("timestamp", ["2024-01-01", "2024-01-01T02:00+02:00", "2024-01-02"], None),
        ("time", ["10:00", "10:00:00", "11:00"], None),
        ("interval day to second", ["PT60S", "PT1M", "PT1H"], None),
    ],
)
def test_of_two_keys_of_equal_value_the_last_one_counts(
    reader: str, dtype: str, names: list[str], right: Any, tmp_path: Path
) -> None:
    schema = f"m map<{dtype}, int>, s struct<l array<map<{dtype}, int>>>"
    entries = ",".join(f'"{name}":{number}' for number, name in enumerate(names, 1))
    line = f'{{"m":{{{entries}}},"s":{{"l":[{{}},{{{entries}}}]}}}}\n'.encode()
    if reader == "messages":
        got = gw.formats.json(schema).decode([line], ["m", "s"]).rows.to_pylist()
    else:
        got = read_files("json", line, tmp_path, schema=schema)
    entries_of_map = got[0]["m"]
    assert got == [{"m": entries_of_map, "s": {"l": [[], entries_of_map]}}]
    if right is None:
        assert [number for _, number in entries_of_map] == [2, 3]
    else:
        assert entries_of_map == right


@pytest.mark.parametrize("reader", ["json", "messages"])
@pytest.mark.parametrize("dtype", ["double", "float"])
def test_a_zero_that_is_the_key_of_a_map_has_no_sign(
    reader: str, dtype: str, tmp_path: Path
) -> None:
    schema = f"m map<{dtype}, int>, l array<map<{dtype}, {dtype}>>"
    line = b'{"m":{"-0.0":1,"2":2},"l":[{"-0":-0.0,"0.0":-0.0,"-1":1}]}'
    if reader == "messages":
        got = gw.formats.json(schema).decode([line], ["m", "l"]).rows.to_pylist()
    else:
        got = read_files("json", line, tmp_path, schema=schema)
    right = {"m": [(0.0, 1), (2.0, 2)], "l": [[(0.0, -0.0), (-1.0, 1.0)]]}
    assert str(got) == str([right])


@pytest.mark.parametrize("reader", ["json", "messages"])
@pytest.mark.parametrize("dtype", ["double", "float"])
def test_the_whole_number_zero_has_no_sign_in_json(reader: str, dtype: str, tmp_path: Path) -> None:
    schema = f"v {dtype}, l array<{dtype}>, s struct<a {dtype}>, m map<string, {dtype}>"
    schema += f", w {dtype}"  # halfway between two floats, so texts are read again
    texts = ["-0", "-0.0", "-0e0", "-1e-400", "0"]
    for whole in (True, False):
        names = schema if whole else schema.replace(f"m map<string, {dtype}>, ", "")
        lines = [
            f'{{"v":{t},"l":[{t}],"s":{{"a":{t} }},"m":{{"k":{t}}},"w":16777217}}'.encode()
            for t in texts
        ]
        if reader == "messages":
            columns = ["v", "l", "s", "w", *["m"] * whole]
            got = gw.formats.json(names).decode(lines, columns).rows.to_pylist()
        else:
            got = read_files("json", b"\n".join(lines), tmp_path, schema=names)
        right = ["0.0", "-0.0", "-0.0", "-0.0", "0.0"]
        assert [str(row["v"]) for row in got] == right
        assert [str(row["l"][0]) for row in got] == right
        assert [str(row["s"]["a"]) for row in got] == right
        assert not whole or [str(row["m"][0][1]) for row in got] == right


def test_texts_of_floats_that_are_read_again_have_the_same_rules() -> None:
    format_ = gw.formats.json("v float, l array<float>, n bigint")
    messages = [
        b'{"v":1.000000059604644775390626,"l":[null,16777219],"n":1}',
        b'{"v":1e39}',
        b'{"v":"1"}',
        b'{"v":null,"l":null,"n":2.0}',
        b'{"v":340282356779733661637539395458142568447.9}',
        b'{"v":340282356779733661637539395458142568448}',
    ]
    decoded = format_.decode(messages, ["v", "l", "n"])
    assert decoded.rows.to_pylist() == [
        {"v": 1.00000011920928955078125, "l": [None, 16777220.0], "n": 1},
        {"v": None, "l": None, "n": 2},
        {"v": 340282346638528859811704183484516925440.0, "l": None, "n": None},
    ]
    reasons = dict(decoded.bad)
    assert sorted(reasons) == [1, 2, 5]
    assert "1e39 is larger" in reasons[1] or "1e+39 is larger" in reasons[1]
    assert "is larger than the largest number of type float" in reasons[5]


@pytest.mark.parametrize(("name", "other"), [("w", " w"), ("W", "w"), ("größe", "GRÖSSE ")])
def test_a_column_with_nearly_the_name_of_the_schema_is_reported(
    name: str, other: str, tmp_path: Path
) -> None:
    table = pa.table({"v": [1], other: [2]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "a.csv").write_text(f"v,{other}\n1,2\n")
    for kind in ("csv", "parquet", "arrow"):
        read = getattr(gw.sources, kind)
        with pytest.raises(
            SourceError, match=f"a.{kind}.* no column {name!r}, but it has {other!r}: use"
        ):
            rows_of(read(tmp_path, schema={"v": "bigint", name: "bigint"}, pattern=f"*.{kind}"))
        if name == other.swapcase():
            continue  # a schema cannot have both
        both = read(
            tmp_path, schema=dict.fromkeys(["v", name, other], "bigint"), pattern=f"*.{kind}"
        )
        assert rows_of(both) == [{"v": 1, name: None, other: 2}]


def test_a_column_that_a_file_lacks_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        got = read_files("csv", b"v\n1\n", tmp_path, schema="v int, w int, x int")
        assert got == [{"v": 1, "w": None, "x": None}]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "a.csv' has no 'w', 'x', which will be null in its rows" in message


@pytest.mark.parametrize("newlines", [False, True])
@pytest.mark.parametrize("schema", [None, {"v": "int"}])
def test_a_header_with_a_line_break_is_refused_by_its_reason(
    newlines: bool, schema: Any, tmp_path: Path
) -> None:
    for name in (b'"a\nb"', b'"a\r\nb"'):
        with pytest.raises(SourceError, match=r"a\.csv.* the first line ends within quotes"):
            read_files(
                "csv",
                b"v," + name + b"\n1,2\n",
                tmp_path,
                schema=schema,
                newlines_in_values=newlines,
            )


@pytest.mark.parametrize("columns", ["a int", "b int", "b int, a int"])
def test_delimiters_at_the_end_of_lines_are_columns_without_a_name(
    columns: str, tmp_path: Path
) -> None:
    data = b'a,b,,\n1,2,,\n3,"4",x,\n'
    rows = read_files("csv", data, tmp_path, schema=columns)
    both = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert rows == [{name: row[name] for name in "ab" if name in columns} for row in both]
    with pytest.raises(InvalidFlowError, match="has a column named ''"):
        gw.sources.csv(tmp_path).schema  # noqa: B018  the property raises


BAD_TEXTS = ("", "x", "N/A", "1.5", "0x1F", "1e2", " 7 ", "9" * 30, '"8"', '""', '"a,b"', "\u00fc")


def drawn_line(draw: random.Random) -> bytes:
    """Line of CSV for three columns that may have any fault."""
    cells = [str(draw.randrange(9)), f"n{draw.randrange(9)}", f"2026-01-0{draw.randrange(1, 9)}"]
    while draw.random() < 0.3:
        cells[draw.randrange(3)] = draw.choice(BAD_TEXTS)
    if draw.random() < 0.1:
        cells = cells[1:] if draw.random() < 0.5 else [*cells, "1"]
    line = ",".join(cells).encode()
    if draw.random() < 0.1:
        place = draw.randrange(len(line))
        line = line[:place] + draw.choice([b'"', b'""', b"\xff", b"\r", b"\\", b" "]) + line[place:]
    return line + draw.choice([b"", b"", b"\r"])


def read_and_refused(source: gw.sources.Source) -> tuple[list[Any], list[tuple[bytes, str]]]:
    source.open(None)
    batches = [
        batch
        for split in source.splits(source.start(), source.latest(source.start()), 1)
        for batch in source.read(split, source.schema.names)
    ]
    source.close()
    refused = [batch.rows for batch in batches if isinstance(batch, gw.sources.Unreadable)]
    return (
        [row for b in batches if isinstance(b, pa.RecordBatch) for row in b.to_pylist()],
        [(r["value"], r["error"]) for rows in refused for r in rows.to_pylist()],
    )


@pytest.mark.parametrize("schema", ["n bigint, s string, d date", "n string, s string, d date"])
@pytest.mark.parametrize("escape", [None, "\\"])
@pytest.mark.parametrize("seed", range(2))
def test_lines_of_a_block_are_read_or_refused_as_they_are_alone(
    schema: str, escape: str | None, seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    lines = [drawn_line(draw) for _ in range(120)]
    open_quotes = [
        (line.replace(b'\\"', b"") if escape else line).count(b'"') % 2 == 1 for line in lines
    ]
    options: dict[str, Any] = {"schema": schema, "on_bad": "skip", "escape": escape}
    for directory in ("alone", "together"):
        (tmp_path / directory).mkdir()
    for number, line in enumerate(lines):
        if not open_quotes[number]:
            (tmp_path / f"alone/{number:03}.csv").write_bytes(b"n,s,d\n" + line + b"\n")
    (tmp_path / "together/1.csv").write_bytes(b"n,s,d\n" + b"\n".join(lines) + b"\n")
    alone = read_and_refused(gw.sources.csv(tmp_path / "alone", **options))
    rows, refused = read_and_refused(gw.sources.csv(tmp_path / "together", **options))
    assert rows == alone[0]
    cut = {line.rstrip(b"\r") for line, is_open in zip(lines, open_quotes, strict=True) if is_open}
    assert [each for each in refused if each[0] not in cut] == alone[1]
    assert {value for value, _ in refused} >= cut
    assert 20 < len(rows) < len(lines) - 20


@pytest.mark.parametrize(("bad", "calls"), [("x", 8), ("3,4", 40)])
def test_a_bad_line_costs_few_passes(
    bad: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{n},{bad if n % 100 == 0 else n}" for n in range(2000)]
    (tmp_path / "1.csv").write_text("\n".join(["a,b", *lines]))
    parsed = []
    read_csv = pacsv.read_csv

    def count(*arguments: Any) -> pa.Table:
        parsed.append(arguments)
        return read_csv(*arguments)

    monkeypatch.setattr(pacsv, "read_csv", count)
    source = gw.sources.csv(tmp_path, schema="a bigint, b bigint", on_bad="skip")
    rows, refused = read_and_refused(source)
    assert (len(rows), len(refused)) == (1980, 20)
    assert len(parsed) <= calls


def test_bad_lines_of_json_are_left_out_before_the_others_are_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f'{{"a": {n}, "b": {"[]" if n % 100 == 0 else n}}}' for n in range(2000)]
    (tmp_path / "1.json").write_text("\n".join(lines))
    decoded = []
    columns = JsonMessages.columns

    def count(messages: JsonMessages, values: Any, schema: pa.Schema) -> list[pa.Array]:
        decoded.append(len(values))
        return columns(messages, values, schema)

    monkeypatch.setattr(JsonMessages, "columns", count)
    source = gw.sources.json(tmp_path, schema="a bigint, b bigint", on_bad="skip")
    rows, refused = read_and_refused(source)
    assert [row["a"] for row in rows] == [n for n in range(2000) if n % 100]
    assert [json.loads(line)["a"] for line, _ in refused] == [*range(0, 2000, 100)]
    assert sum(decoded) < 2300  # the whole block once, and then the bad ones alone


@pytest.mark.parametrize(
    ("ending", "codec"),
    [("gz", "gzip"), ("bz2", "bz2"), ("zst", "zstd"), ("lz4", "lz4"), ("br", "brotli")],
)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_compressed_files_of_text_are_read(
    kind: str, ending: str, codec: str, tmp_path: Path
) -> None:
    text = b"a\n1\n2\n" if kind == "csv" else b'{"a":1}\n{"a":2}\n'
    with pa.output_stream(str(tmp_path / f"1.{kind}.{ending}"), compression=codec) as stream:
        stream.write(text)
    assert rows_of(getattr(gw.sources, kind)(tmp_path)) == [{"a": 1}, {"a": 2}]

"""A text is the same value in every format, or every format refuses it; at every depth.

The oracle has the rule of the notes of `gw.sources.csv` ("Numbers as text") in exact fractions.
"""

from __future__ import annotations

import decimal
import json
import math
import random
import re
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = "refused"
BITS = {"tinyint": 8, "int": 32, "bigint": 64}
DECIMALS = {"decimal(10, 2)": (10, 2), "decimal(38, 0)": (38, 0)}
AVRO = {
    "tinyint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    **{
        name: {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": scale}
        for name, (digits, scale) in DECIMALS.items()
    },
}
FLOATS = {"halffloat": (11, -24, 16), "float": (24, -149, 128), "double": (53, -1074, 1024)}
TYPES = [*BITS, *DECIMALS, *FLOATS]
WRITTEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
DEPTHS: dict[str, Any] = {
    "{}": lambda value: value,
    "array<{}>": lambda value: [value],
    "struct<a array<{}>>": lambda value: {"a": [value]},
    "map<string, {}>": lambda value: {"k": value},
}


def schema_of(name: str, depth: str, dtype: str) -> dict[str, Any]:
    """Schema of one column; texts have no name for floats of 16 bits."""
    if dtype != "halffloat":
        return {name: depth.format(dtype)}
    half = pa.float16()
    return {
        name: {
            "{}": half,
            "array<{}>": pa.list_(half),
            "struct<a array<{}>>": pa.struct([("a", pa.list_(half))]),
            "map<string, {}>": pa.map_(pa.string(), half),
            "map<{}, int>": pa.map_(half, pa.int32()),
        }[depth]
    }


def nearest_float(exact: Fraction, dtype: str) -> Any:
    """Nearest float of a type, ties to even, or `REFUSED`; by whole numbers alone."""
    digits, lowest, highest = FLOATS[dtype]
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    exponent -= abs(exact) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - digits + 1, lowest)
    value = round(exact / unit) * unit
    return REFUSED if abs(value) >= Fraction(2) ** highest else float(value)


def value_of(text: str, dtype: str) -> Any:
    """Value of a text by the rule, or `REFUSED`."""
    text = text.strip(" \t")
    if dtype in FLOATS and re.fullmatch(r"(?i)[+-]?(nan|inf|infinity)", text):
        return float(text)
    if not WRITTEN.fullmatch(text):
        return REFUSED
    digits_of_text, exponent = re.split("[eE]", text + "e0")[:2]
    if abs(int(exponent)) > 5000:
        if dtype not in FLOATS:
            return REFUSED
        text = digits_of_text + ("e-5000" if exponent[0] == "-" else "e5000")
    exact = Fraction(text)
    if dtype in FLOATS:
        value = nearest_float(exact, dtype)
        return math.copysign(value, -1) if value == 0 and text[0] == "-" else value
    digits, scale = DECIMALS.get(dtype, (0, 0))
    if dtype in BITS:
        low = -(1 << BITS[dtype] - 1)
        return int(exact) if exact.denominator == 1 and low <= exact < -low else REFUSED
    scaled = exact * 10**scale
    if scaled.denominator > 1 or abs(scaled) >= 10**digits:
        return REFUSED
    return Decimal(int(scaled)).scaleb(-scale, decimal.Context(prec=digits))


def value_in_json(text: str, dtype: str) -> Any:
    """Value of a number of JSON by the rule, or `REFUSED`."""
    text = text.strip(" \t")
    if dtype in FLOATS and text == "-0":  # a whole number
        return 0.0
    return value_of(text, dtype) if JSON_NUMBER.fullmatch(text) else REFUSED


def text_near_halfway(draw: random.Random, dtype: str) -> str:
    """Text of a number next to the middle between two floats, or on it."""
    digits, lowest, highest = FLOATS[dtype]
    exponent = draw.choice(
        [lowest, lowest, highest - digits, draw.randint(lowest, highest - digits)]
    )
    whole = draw.choice([0, 1, (1 << digits) - 1, draw.randrange(1 << digits)])
    if exponent > lowest:
        whole |= 1 << digits - 1
    middle = Fraction(2 * whole + 1, 2) * Fraction(2) ** exponent
    exact = decimal.Context(prec=2000).divide(Decimal(middle.numerator), middle.denominator)
    text = draw.choice(["", "", "-"]) + f"{exact:{draw.choice('fE')}}"
    head, mark, tail = text.partition("E")
    if draw.random() < 0.4:  # a bit above
        head += ("" if "." in head else ".") + "0" * draw.choice([0, 10, 20]) + "1"
    elif draw.random() < 0.6 and head[-1] in "123456789":  # a bit below
        head = head[:-1] + str(int(head[-1]) - 1) + ("" if "." in head else ".") + "9" * 20
    return head + mark + tail


def drawn_text(draw: random.Random, dtype: str) -> str:
    """Text that is a number, or nearly one."""
    if dtype in FLOATS and draw.random() < 0.3:
        return text_near_halfway(draw, dtype)
    if draw.random() < 0.1:
        return draw.choice(["NaN", "nan", "Infinity", "-inf", "INF", "+Infinity", "nan(1)", "0x1F"])
    digits = "".join(
        draw.choices("0123456789", k=draw.choice([1, 1, 1, 2, 2, 3, 9, 10, 19, 20, 39]))
    )
    text = draw.choice(["", "", "", "-", "+", "--"]) + draw.choice(
        [digits, digits, "", "127", "128", "0"]
    )
    text += draw.choice(["", "", ".", ".0", ".00", ".5", ".25", ".125", "." + digits])
    exponents = ["0", "1", "2", "-1", "-2", "+3", "18", "38", "39", "-45", "-120", "308", "400"]
    exponents += ["9" * 20, "-" + "9" * 20]
    text += draw.choice(["", "", "", "e", "E"]) and "e" + draw.choice(exponents)
    if draw.random() < 0.2:
        text = draw.choice([" ", "\t", "  "]) + text + draw.choice(["", " "])
    if draw.random() < 0.2:
        place = draw.randint(0, len(text))
        text = (
            text[:place]
            + draw.choice(["_", "\uff11", "\u0663", "x", "d", " ", "\u00a0"])
            + text[place:]
        )
    return text


def rows_of(source: Any) -> list[dict[str, Any]]:
    source.open(None)
    begin = source.start()
    splits = source.splits(begin, source.latest(begin), 1)
    batches = [batch for split in splits for batch in source.read(split, source.schema.names)]
    return [row for batch in batches for row in batch.to_pylist()]


def read_file(kind: str, data: bytes, schema: dict[str, Any], path: Path) -> Any:
    (path / f"a.{kind}").write_bytes(data)
    try:
        return rows_of(getattr(gw.sources, kind)(path, schema=schema))[0]["v"]
    except SourceError:
        return REFUSED


def read_messages(line: bytes, schema: dict[str, Any]) -> Any:
    decoded = gw.formats.json(schema).decode([line], ["v"])
    return REFUSED if decoded.bad else decoded.rows["v"][0].as_py()


def same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and repr(value) == repr(other)  # NaN, and signs of zeros


@pytest.mark.parametrize("dtype", TYPES)
def test_a_text_is_one_value_in_csv_and_in_names_of_directories(dtype: str, tmp_path: Path) -> None:
    draw, counts = random.Random(f"csv {dtype}"), [0, 0]
    for number in range(rounds(100, 200)):
        text = drawn_text(draw, dtype)
        right, schema = value_of(text, dtype), schema_of("v", "{}", dtype)
        counts[right is REFUSED] += 1
        path = tmp_path / str(number)
        path.mkdir()
        mark = draw.choice(['"', ""]) if text.strip() else '"'
        got = read_file("csv", f"v,n\n{mark}{text}{mark},1\n".encode(), schema, path)
        assert same(got, right), (text, got, right)
        if len(text) > 250:
            continue  # names of directories are shorter
        (path / "a.csv").unlink()
        (path / f"v={text}").mkdir()
        (path / f"v={text}" / "b.csv").write_bytes(b"n\n1\n")
        try:
            got = rows_of(gw.sources.csv(path, schema={**schema, "n": "int"}))[0]["v"]
        except SourceError:
            got = REFUSED
        assert same(got, right), (text, got, right)
    assert min(counts) >= rounds(2, 5), counts


@pytest.mark.parametrize("dtype", TYPES)
def test_a_json_value_is_one_value_in_messages_and_files(dtype: str, tmp_path: Path) -> None:
    draw, counts = random.Random(f"json {dtype}"), [0, 0]
    for _ in range(rounds(100, 200)):
        text = drawn_text(draw, dtype)
        in_quotes = draw.random() < 0.3 or not text.strip()
        if in_quotes:
            right = value_of(text, dtype) if dtype in DECIMALS else REFUSED
        else:
            right = value_in_json(text, dtype)
        counts[right is REFUSED] += 1
        depth = draw.choice([*DEPTHS])
        wrap = DEPTHS[depth]
        line = json.dumps({"v": wrap("@")}).replace('"@"', json.dumps(text) if in_quotes else text)
        schema = schema_of("v", depth, dtype)
        expected = wrap(right) if depth != "map<string, {}>" else [("k", right)]
        got = read_messages(line.encode(), schema)
        from_file = read_file("json", line.encode() + b"\n", schema, tmp_path)
        if right is REFUSED:
            assert (got, from_file) == (REFUSED, REFUSED), (line, schema)
        else:
            assert same(got, expected), (line, schema, got)
            assert same(from_file, expected), (line, schema, from_file)
            if dtype == "halffloat":
                continue  # Avro has none
            name = {"type": "record", "name": "R", "fields": [{"name": "v", "type": AVRO[dtype]}]}
            avro = gw.formats.avro(name)
            rows = pa.RecordBatch.from_pylist([{"v": right}], avro.schema)
            assert same(avro.decode(avro.encode(rows), ["v"]).rows["v"][0].as_py(), right)
    assert min(counts) >= rounds(2, 5), counts


@pytest.mark.parametrize("dtype", TYPES)
def test_a_name_in_json_is_one_key_of_a_map(dtype: str, tmp_path: Path) -> None:
    draw = random.Random(f"keys {dtype}")
    for _ in range(rounds(25, 50)):
        text = drawn_text(draw, dtype)
        right = value_of(text, dtype)
        if isinstance(right, float) and not math.isfinite(right):
            right = REFUSED  # JSON has neither NaN nor infinities
        line = json.dumps({"v": {text: 1}}).encode()
        schema = schema_of("v", "map<{}, int>", dtype)
        expected = REFUSED if right is REFUSED else [(right, 1)]
        assert read_messages(line, schema) == expected, line
        assert read_file("json", line + b"\n", schema, tmp_path) == expected, line

"""Avro of drawn schemas: messages are read as the specification says, by the schema that reads."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from tests.oracles import avro as oracle
from tests.support.rounds import rounds

import godwit as gw

PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]
FRAME = b"\0\0\0\0\7"


class Drawing:
    """Draws schemas, their values, and what later versions of them may be."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return self.rng.choice(["", "a.", "a.b."]) + f"N{self.count}"

    def schema(self, depth: int, *, union: bool = True) -> Any:
        rng = self.rng
        kinds = ["primitive", "primitive", "enum", "fixed"]
        kinds += ["array", "map", "record"] * (depth > 0) + ["union"] * (union and depth > 0)
        kind = rng.choice(kinds)
        if kind == "primitive":
            return rng.choice(PRIMITIVES)
        if kind == "enum":
            symbols = rng.sample("ABCDEF", rng.randint(1, 4))
            return {"type": "enum", "name": self.name(), "symbols": symbols}
        if kind == "fixed":
            return {"type": "fixed", "name": self.name(), "size": rng.randint(0, 3)}
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1)}
        if kind == "record":
            return self.record(depth - 1)
        others = [self.schema(depth - 1, union=False) for _ in range(rng.randint(1, 3))]
        names = [part["name"] if "name" in part else oracle.kind_of(part) for part in others]
        branches = dict(zip(names, others, strict=True))
        union_of = [*branches.values(), "null"]
        rng.shuffle(union_of)
        return union_of

    def record(self, depth: int) -> dict[str, Any]:
        fields = [
            {"name": f"f{i}", "type": self.schema(depth)} for i in range(self.rng.randint(0, 4))
        ]
        return {"type": "record", "name": self.name(), "fields": fields}

    def value(self, schema: Any) -> Any:
        rng, kind = self.rng, oracle.kind_of(schema)
        if kind == "union":
            index = rng.randrange(len(schema))
            return index, self.value(schema[index])
        if kind == "enum":
            return rng.choice(schema["symbols"])
        if kind == "fixed":
            return rng.randbytes(schema["size"])
        if kind == "array":
            return [self.value(schema["items"]) for _ in range(rng.choice([0, 1, 2, 5]))]
        if kind == "map":
            return {str(i): self.value(schema["values"]) for i in range(rng.choice([0, 1, 3]))}
        if kind == "record":
            return {f["name"]: self.value(f["type"]) for f in schema["fields"]}
        bits = {"int": 31, "long": 63}.get(kind, 0)
        return {
            "null": None,
            "boolean": rng.random() < 0.5,
            "int": rng.choice([-1, 1]) * rng.getrandbits(rng.randint(0, bits)),
            "long": rng.choice([-1, 1]) * rng.getrandbits(rng.randint(0, bits)),
            "float": struct.unpack("<f", struct.pack("<f", rng.gauss(0, 1e3)))[0],
            "double": rng.gauss(0, 1e9),
            "bytes": rng.choice([rng.randbytes(3), b"text"]),
            "string": rng.choice(["", "ä\0", "text"]),
        }[kind]

    def later(self, schema: Any) -> Any:
        """Return a later version of a schema, as which it can often be read."""
        rng, kind = self.rng, oracle.kind_of(schema)
        if kind == "union":
            others = [part for part in schema if part != "null"]
            later = self.later(rng.choice(others))
            return later if isinstance(later, list) else ["null", later]
        if rng.random() < 0.2:
            later = self.later(schema)
            return later if isinstance(later, list) else ["null", later]
        if kind == "array":
            return {"type": "array", "items": self.later(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self.later(schema["values"])}
        if kind in ("enum", "fixed", "record") and rng.random() < 0.3:
            schema = {**schema, "name": self.name(), "aliases": [schema["name"]]}
        if kind == "enum":
            symbols = rng.sample(schema["symbols"], rng.randint(1, len(schema["symbols"])))
            default = {"default": symbols[0]} if rng.random() < 0.5 else {}
            return {**schema, "symbols": symbols, **default}
        if kind == "record":
            return self.later_record(schema)
        promoted = [to for of, to in sorted(oracle.PROMOTIONS) if of == kind]
        return rng.choice([schema, *promoted]) if rng.random() < 0.5 else schema

    def later_record(self, schema: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng
        fields = []
        for field in schema["fields"]:
            chance = rng.random()
            if chance < 0.7:
                fields.append({**field, "type": self.later(field["type"])})
            elif chance < 0.85:
                renamed = {"name": f"g{len(fields)}", "aliases": ["unheard", field["name"]]}
                fields.append({**renamed, "type": self.later(field["type"])})
        for of, default in rng.sample(
            [
                ("bytes", "\u00ff\0"),
                (["null", "int"], None),
                (["string", "null"], "x"),
                ({"type": "array", "items": "bytes"}, ["\u0080"]),
                ({"type": "map", "values": ["null", "double"]}, {"k": 0.5, "l": None}),
            ],
            rng.randint(0, 2),
        ):
            fields.append({"name": f"n{len(fields)}", "type": of, "default": default})
        rng.shuffle(fields)
        return {**schema, "fields": fields}


def as_columns(schema: Any, value: Any) -> Any:
    """Return a value as columns have it: pairs for maps, floats of 32 bits."""
    kind = oracle.kind_of(schema)
    if value is None:
        return None
    if kind == "union":
        return as_columns(next(part for part in schema if part != "null"), value)
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if kind == "array":
        return [as_columns(schema["items"], item) for item in value]
    if kind == "map":
        return [(key, as_columns(schema["values"], item)) for key, item in value.items()]
    if kind == "record":
        return {f["name"]: as_columns(f["type"], value[f["name"]]) for f in schema["fields"]}
    return value


@pytest.mark.parametrize("seed", range(rounds(8, 40)))
def test_drawn_messages_are_read_as_the_oracle_reads_them(seed: int) -> None:
    for round_ in range(12):
        draw = Drawing(seed * 1000 + round_)
        written = draw.record(3)
        to = draw.later_record(written)
        messages = [oracle.encode(written, draw.value(written)) for _ in range(6)]
        expected = []
        for message in messages:
            try:
                expected.append(as_columns(to, oracle.decode(written, to, message)))
            except (ValueError, OverflowError):
                expected.append(None)
        avro = gw.formats.avro(to, registry={7: written})
        decoded = avro.decode([FRAME + message for message in messages], avro.schema.names)
        bad = {position for position, _ in decoded.bad}
        assert bad == {i for i, row in enumerate(expected) if row is None}, decoded.bad
        assert decoded.rows.to_pylist() == [row for row in expected if row is not None]
        # What is written is what was read.
        bare = gw.formats.avro(to)
        again = bare.decode(bare.encode(decoded.rows), bare.schema.names)
        assert again.rows.equals(decoded.rows)


@pytest.mark.parametrize("seed", range(rounds(5, 20)))
def test_no_damage_to_a_message_stops_the_others(seed: int) -> None:
    for round_ in range(10):
        draw = Drawing(seed * 1000 + round_)
        written = draw.record(3)
        to = draw.later_record(written)
        avro = gw.formats.avro(to, registry={7: written})
        good = FRAME + oracle.encode(written, draw.value(written))
        readable = not avro.decode([good], avro.schema.names).bad
        damaged = []
        for _ in range(20):
            changed = bytearray(good)
            for _ in range(draw.rng.randint(1, 3)):
                if len(changed) > 5:
                    place = draw.rng.randrange(5, len(changed))
                    changed[place : place + draw.rng.randint(0, 2)] = draw.rng.randbytes(
                        draw.rng.randint(0, 2)
                    )
            damaged.append(bytes(changed))
        mixed = [value for one in damaged for value in (one, good)]
        decoded = avro.decode(mixed, avro.schema.names)
        assert decoded.rows.num_rows + len(decoded.bad) == len(mixed)
        if readable:
            assert all(position % 2 == 0 for position, _ in decoded.bad)

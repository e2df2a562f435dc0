"""Avro by its specification, read as plainly as it is written: what messages are and mean.

Schemas are JSON objects whose names are full; logical types do not count: values are those of the
underlying types.  A message is resolved while it is read, by the schema of its writer and that of
its reader; what cannot be resolved raises `ValueError`.
"""

from __future__ import annotations

import struct
from typing import Any

PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def kind_of(schema: Any) -> str:
    """Name of a type, such as "record"; "union" for a list."""
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, dict) else schema)


def encode(schema: Any, value: Any) -> bytes:
    """Encode a value; of a union, the pair of the type's index and its value."""
    kind = kind_of(schema)
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return _number(value)
    if kind == "float":
        return struct.pack("<f", value)
    if kind == "double":
        return struct.pack("<d", value)
    if kind in ("bytes", "string"):
        raw = value.encode() if kind == "string" else value
        return _number(len(raw)) + bytes(raw)
    if kind == "fixed":
        return bytes(value)
    if kind == "enum":
        return _number(schema["symbols"].index(value))
    if kind == "union":
        return _number(value[0]) + encode(schema[value[0]], value[1])
    if kind == "record":
        return b"".join(encode(f["type"], value[f["name"]]) for f in schema["fields"])
    if not value:
        return b"\0"
    if kind == "array":
        items = [encode(schema["items"], item) for item in value]
    else:
        items = [encode("string", k) + encode(schema["values"], v) for k, v in value.items()]
    half = len(items) // 2  # in two blocks, the first with its size
    first, second = b"".join(items[:half]), b"".join(items[half:])
    begin = _number(-half) + _number(len(first)) + first if half else b""
    return begin + _number(len(items) - half) + second + b"\0"


def _number(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = b""
    while left >= 128:
        out += bytes([left % 128 + 128])
        left //= 128
    return out + bytes([left])


class Reader:
    """Reads one message."""

    def __init__(self, message: bytes) -> None:
        self.rest = message

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.rest):
            raise ValueError("it ends too soon")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def number(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value += (byte % 128) << shift
            shift += 7
            if byte < 128:
                return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def read(self, written: Any, to: Any) -> Any:
        """Read a value of one schema as one of another."""
        if kind_of(written) == "union":
            part = written[self.number()]
            return self.read(part, part if to is written else to)
        if kind_of(to) == "union":
            fitting = [part for part in to if matches(written, part)]
            if not fitting:
                raise ValueError("no type of the union")
            to = fitting[0]
        if not matches(written, to):
            raise ValueError(f"{written} is not {to}")
        kind, wanted = kind_of(written), kind_of(to)
        if kind == "null":
            return None
        if kind == "boolean":
            return self.take(1) == b"\1"
        if kind in ("int", "long"):
            number = self.number()
            return float(number) if wanted in ("float", "double") else number
        if kind == "float":
            return struct.unpack("<f", self.take(4))[0]
        if kind == "double":
            return struct.unpack("<d", self.take(8))[0]
        if kind in ("bytes", "string"):
            raw = self.take(self.number())
            return raw.decode() if wanted == "string" else raw
        if kind == "fixed":
            return self.take(written["size"])
        if kind == "enum":
            symbol = written["symbols"][self.number()]
            if symbol not in to["symbols"] and "default" not in to:
                raise ValueError("symbol")
            return symbol if symbol in to["symbols"] else to["default"]
        if kind == "record":
            return self.record(written, to)
        items: list[Any] = []
        while count := self.number():
            if count < 0:
                self.number()
            for _ in range(abs(count)):
                if kind == "map":
                    key = self.take(self.number()).decode()
                    items.append((key, self.read(written["values"], to["values"])))
                else:
                    items.append(self.read(written["items"], to["items"]))
        return dict(items) if kind == "map" else items

    def record(self, written: Any, to: Any) -> dict[str, Any]:
        """Read a record: the writer's fields in their order, then defaults."""
        known = {field["name"]: field for field in to["fields"]}
        known |= {a: f for f in to["fields"] for a in f.get("aliases", []) if a not in known}
        values = {}
        for field in written["fields"]:
            if field["name"] in known:
                mine = known[field["name"]]
                values[mine["name"]] = self.read(field["type"], mine["type"])
            else:
                self.read(field["type"], field["type"])
        for field in to["fields"]:
            if field["name"] not in values:
                values[field["name"]] = default_value(field["type"], field["default"])
        return {field["name"]: values[field["name"]] for field in to["fields"]}


def matches(written: Any, to: Any) -> bool:
    """Whether the types, apart from what they are made of, may be resolved."""
    kind, wanted = kind_of(written), kind_of(to)
    if kind == wanted and kind in ("record", "enum", "fixed"):
        names = [written["name"], written["name"].split(".")[-1]]
        same = to["name"].split(".")[-1] == names[1] or any(
            a in names for a in to.get("aliases", [])
        )
        return same and written.get("size") == to.get("size")
    return kind == wanted or (kind, wanted) in PROMOTIONS


def default_value(schema: Any, default: Any) -> Any:
    """Value of a default in JSON."""
    kind = kind_of(schema)
    if kind == "union":
        return default_value(next(s for s in schema if _fits(s, default)), default)
    if kind in ("bytes", "fixed"):
        return bytes(map(ord, default))
    if kind == "array":
        return [default_value(schema["items"], item) for item in default]
    if kind == "map":
        return {key: default_value(schema["values"], item) for key, item in default.items()}
    if kind == "record":
        return {
            f["name"]: default_value(f["type"], default.get(f["name"], f.get("default")))
            for f in schema["fields"]
        }
    return default


def _fits(schema: Any, default: Any) -> bool:
    return (kind_of(schema) == "null") == (default is None)


def decode(written: Any, to: Any, message: bytes) -> Any:
    """Decode a message, all of it."""
    reader = Reader(message)
    value = reader.read(written, to)
    if reader.rest:
        raise ValueError("it continues")
    return value

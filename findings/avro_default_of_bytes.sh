#!/bin/sh
# Avro: a field that only the reader's schema has takes its default, which JSON holds as text.  For
# bytes and fixed, "Unicode code points 0-255 are mapped to unsigned 8-bit byte values 0-255"
# (specification 1.12, "Complex Types", "Records", table of default values).  Neither library for
# Python does that: fastavro hands the text on, and Apache's own encodes it as UTF-8, so that a
# fixed of two bytes has three.  A default of a decimal is no Decimal in either.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet fastavro==1.13.1 avro==1.12.2
"$folder/env/bin/python" - <<'PYTHON'
import io
import json
import sys

import avro.io
import avro.schema
import fastavro

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
CASES = [  # type, default, what it means, what fastavro makes of it, and what avro
    ("bytes", "\u00ff", b"\xff", "\u00ff", b"\xc3\xbf"),
    (
        {"type": "fixed", "name": "F", "size": 2},
        "\u0001\u00fe",
        b"\x01\xfe",
        "\u0001\u00fe",
        b"\x01\xc3\xbe",
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        "\u007d",
        "Decimal('1.25')",
        "}",
        b"}",
    ),
]
changed = False
for of, default, right, *seen in CASES:
    new = {**OLD, "fields": [*OLD["fields"], {"name": "f", "type": of, "default": default}]}
    old_parsed, new_parsed = (avro.schema.parse(json.dumps(schema)) for schema in (OLD, new))
    decoder = avro.io.BinaryDecoder(io.BytesIO(b"\2"))
    found = [
        fastavro.schemaless_reader(io.BytesIO(b"\2"), OLD, new)["f"],
        avro.io.DatumReader(old_parsed, new_parsed).read(decoder)["f"],
    ]
    print(f"{of} default {default!r}: right {right!r}, fastavro 1.13.1 {found[0]!r}, "
          f"avro 1.12.2 {found[1]!r}")
    changed |= found != seen
sys.exit(changed)
PYTHON
# Output seen:
# bytes default 'ÿ': right b'\xff', fastavro 1.13.1 'ÿ', avro 1.12.2 b'\xc3\xbf'
# {'type': 'fixed', 'name': 'F', 'size': 2} default '\x01þ': right b'\x01\xfe', fastavro 1.13.1 '\x01þ', avro 1.12.2 b'\x01\xc3\xbe'
# {'type': 'bytes', 'logicalType': 'decimal', 'precision': 4, 'scale': 2} default '}': right "Decimal('1.25')", fastavro 1.13.1 '}', avro 1.12.2 b'}'

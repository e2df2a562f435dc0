#!/bin/sh
# pyiceberg: in a table partitioned by a column of doubles, a filter "k = 0.1" finds no row, although
# the row is there: the compiled decoder of Avro reads a partition's double as a float of 32 bits.
# The decoder in Python reads it whole. What rewrites manifests, as a deletion, also writes the
# rounded values: bounds in the manifest list are of 32 bits after it.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyiceberg-core]==0.12.0" "pyiceberg-core==0.10.1" \
  "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import os
import struct

import pyarrow as pa
import pyiceberg
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import IdentityTransform

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
schema = pa.schema([("k", pa.float64()), ("n", pa.int64())])
table = catalog.create_table("db.t", schema)
with table.update_spec() as spec:
    spec.add_field("k", IdentityTransform(), "k_partition")
table.append(pa.table({"k": [0.5, 0.1], "n": [1, 2]}, schema=schema))
found = {k: table.scan(row_filter=EqualTo("k", k)).to_arrow()["n"].to_pylist() for k in (0.5, 0.1)}
stored = struct.pack("<d", 0.1)
fast, plain = (d(stored).read_double() for d in (CythonBinaryDecoder, StreamingBinaryDecoder))
print(f"pyiceberg {pyiceberg.__version__}; k = [0.5, 0.1], n = [1, 2]; rows where k is that: {found}")
print(f"0.1 by the compiled decoder: {fast}; by the plain one: {plain}")
raise SystemExit(0 if (found, fast == plain) == ({0.5: [1], 0.1: []}, False) else 1)
PYTHON

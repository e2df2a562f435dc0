#!/bin/sh
# pyiceberg: infinity in a filter on a column of 32-bit floats is taken for a number out of range:
# "k = inf" finds nothing, "k < inf" and "k != inf" hold for all rows, infinities and NaN included,
# and `delete` with "k < inf" empties the table. Columns of 64-bit floats answer right.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyiceberg-core]==0.12.0" "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import os

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, LessThan

here = os.getcwd()
infinity = float("inf")
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
answers = {}
for bits, kind in ((32, pa.float32()), (64, pa.float64())):
    schema = pa.schema([("k", kind), ("n", pa.int64())])
    table = catalog.create_table(f"db.t{bits}", schema)
    table.append(pa.table({"k": [1.0, infinity, -infinity], "n": [1, 2, 3]}, schema=schema))
    equal = table.scan(row_filter=EqualTo("k", infinity)).to_arrow()["n"].to_pylist()
    below = table.scan(row_filter=LessThan("k", infinity)).to_arrow()["n"].to_pylist()
    table.delete(LessThan("k", infinity))
    answers[bits] = equal, below, table.scan().to_arrow()["n"].to_pylist()
print(f"pyiceberg {pyiceberg.__version__}, pyarrow {pa.__version__}; k = [1, inf, -inf], n = [1, 2, 3]")
for bits, (equal, below, left) in answers.items():
    print(f"float{bits}: k = inf: {equal}; k < inf: {below}; left after a deletion of k < inf: {left}")
raise SystemExit(0 if answers == {32: ([], [1, 2, 3], []), 64: ([2], [1, 3], [2])} else 1)
PYTHON

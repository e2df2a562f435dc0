#!/bin/sh
# pyiceberg: rows whose value is NaN cannot be appended to a table that is partitioned by that column:
# a ZeroDivisionError. The partition's rows are chosen by "equal to NaN", which holds for none, and
# the size of a row is computed from none. Iceberg has partitions of NaN.
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

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import IdentityTransform

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
table = catalog.create_table("db.t", schema)
with table.update_spec() as spec:
    spec.add_field("x", IdentityTransform(), "x_partition")
try:
    table.append(pa.table({"x": [1.5, float("nan")], "n": [1, 2]}, schema=schema))
    answer = "appended"
except ZeroDivisionError as error:
    answer = f"ZeroDivisionError: {error}"
print(f"pyiceberg {pyiceberg.__version__}: x = [1.5, NaN] in a table partitioned by x: {answer}")
raise SystemExit(0 if answer == "ZeroDivisionError: division by zero" else 1)
PYTHON

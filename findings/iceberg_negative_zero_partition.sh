#!/bin/sh
# pyiceberg: appending 0.0 and -0.0 to a table that is partitioned by the column stores both rows
# twice, without an error: partitions are told apart by their bits, and rows are chosen for them by
# comparison. A table should have the rows that were appended, each once.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite]==0.12.0" "pyarrow==26.0.1"
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
table.append(pa.table({"x": [0.0, -0.0, 1.0], "n": [1, 2, 3]}, schema=schema))
found = sorted(table.scan().to_arrow()["n"].to_pylist())
print(f"pyiceberg {pyiceberg.__version__}, pyarrow {pa.__version__}")
print(f"appended n = [1, 2, 3]; the table has n = {found}")
raise SystemExit(0 if found == [1, 1, 2, 2, 3] else 1)
PYTHON

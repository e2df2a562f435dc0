#!/bin/sh
# pyiceberg: a null list (or map) of structs is stored as an empty one, without an error, so that
# nobody can tell the two afterwards; null lists of numbers stay null. The file itself has the empty
# list, so all readers see it. A table should have the values that were appended.
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
import pyarrow.parquet as pq
import pyiceberg
from pyiceberg.catalog import load_catalog

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
struct = pa.struct([("x", pa.int64())])
schema = pa.schema(
    [
        ("numbers", pa.list_(pa.int64())),
        ("structs", pa.list_(struct)),
        ("named", pa.map_(pa.string(), struct)),
    ]
)
table = catalog.create_table("db.t", schema)
table.append(pa.table({name: [None, []] for name in schema.names}, schema=schema))
[task] = table.scan().plan_files()
stored = pq.read_table(task.file.file_path.removeprefix("file://")).to_pydict()
print(f"pyiceberg {pyiceberg.__version__}, pyarrow {pa.__version__}")
print(f"appended [None, []] to each column; the file has {stored}")
same = stored == {"numbers": [None, []], "structs": [[], []], "named": [[], []]}
raise SystemExit(0 if same else 1)
PYTHON

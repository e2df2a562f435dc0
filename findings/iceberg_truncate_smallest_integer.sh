#!/bin/sh
# pyiceberg: in a table partitioned by truncate(10, k), rows whose k is the smallest integer are hidden
# from filters: the partition is computed with an overflow (-2147483648 goes to 2147483646), the
# filter without (-2147483650), so that "k = -2147483648" finds no row, and "k < 0" passes over it.
# Without a filter the row is read. A filter should find every row that it holds for.
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
from pyiceberg.expressions import EqualTo, LessThan
from pyiceberg.transforms import TruncateTransform

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
schema = pa.schema([("k", pa.int32()), ("n", pa.int64())])
table = catalog.create_table("db.t", schema)
with table.update_spec() as spec:
    spec.add_field("k", TruncateTransform(10), "k_partition")
smallest = -(2**31)
table.append(pa.table({"k": [smallest, -5, 5], "n": [1, 2, 3]}, schema=schema))


def rows_where(*condition):
    filters = {"row_filter": condition[0]} if condition else {}
    return sorted(table.scan(**filters).to_arrow()["n"].to_pylist())


found = rows_where(), rows_where(EqualTo("k", smallest)), rows_where(LessThan("k", 0))
print(f"pyiceberg {pyiceberg.__version__}, pyarrow {pa.__version__}; k = [{smallest}, -5, 5]")
print(f"all: {found[0]}; k = {smallest}: {found[1]}; k < 0: {found[2]}")
raise SystemExit(0 if found == ([1, 2, 3], [], [2]) else 1)
PYTHON

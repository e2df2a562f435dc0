#!/bin/sh
# deltalake: a filter "equal to" on a decimal of more than some 17 digits finds no row, although the
# row is there, through `to_pyarrow_dataset` and `to_pyarrow_table(filters=)`: the log holds a file's
# smallest and greatest decimal as a rounded float, between which the value itself may not lie. SQL
# over the same table finds it. A file's bounds should be rounded away from its values, or left out.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "deltalake==1.6.6" "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import json
from decimal import Decimal

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

amount = Decimal("123456789012345678.91")
kind = pa.decimal128(20, 2)
deltalake.write_deltalake("table", pa.table({"k": pa.array([amount], kind), "n": [1]}))
table = deltalake.DeltaTable("table")
with open("table/_delta_log/00000000000000000000.json") as log:
    [added] = [action["add"] for action in map(json.loads, log) if "add" in action]
dataset = table.to_pyarrow_dataset()
found = dataset.to_table(filter=pc.field("k") == pa.scalar(amount, kind))["n"].to_pylist()
by_filters = table.to_pyarrow_table(filters=[("k", "=", amount)])["n"].to_pylist()
sql = f"SELECT n FROM t WHERE k = CAST('{amount}' AS DECIMAL(20, 2))"
by_sql = pa.table(deltalake.QueryBuilder().register("t", table).execute(sql).read_all())
by_sql = by_sql["n"].to_pylist()
print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}; k = {amount}")
print(f"bounds in the log: {added['stats']}")
print(f"k = {amount} by the dataset: {found}; by filters: {by_filters}; by SQL: {by_sql}")
raise SystemExit(0 if (found, by_filters, by_sql) == ([], [], [1]) else 1)
PYTHON

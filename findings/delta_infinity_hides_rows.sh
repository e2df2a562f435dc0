#!/bin/sh
# deltalake: of a table's file with an infinity among the floats of a column, a filter on that column
# finds no row at all through `to_pyarrow_dataset` or `to_pyarrow_table(filters=)`. The log states
# null as the file's greatest value, and the dataset takes "k <= null" for a promise of the file.
# SQL over the same table finds the rows. A filter should find every row that it holds for.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "deltalake==1.6.6" "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import deltalake
import pyarrow as pa
import pyarrow.compute as pc

rows = pa.table({"k": [1.0, 2.0, float("inf")], "n": [1, 2, 3]})
deltalake.write_deltalake("table", rows)
table = deltalake.DeltaTable("table")
by_dataset = table.to_pyarrow_dataset().to_table(filter=pc.field("k") > 1.5)["n"].to_pylist()
by_filters = table.to_pyarrow_table(filters=[("k", "<", 10.0)])["n"].to_pylist()
by_sql = deltalake.QueryBuilder().register("t", table).execute("SELECT n FROM t WHERE k > 1.5")
by_sql = pa.table(by_sql.read_all())["n"].to_pylist()
print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}; k = [1.0, 2.0, inf]")
print(f"k > 1.5 by the dataset: {by_dataset}; k < 10 by filters: {by_filters}; k > 1.5 by SQL: {by_sql}")
raise SystemExit(0 if (by_dataset, by_filters, by_sql) == ([], [], [2, 3]) else 1)
PYTHON

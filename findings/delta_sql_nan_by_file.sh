#!/bin/sh
# deltalake: SQL takes NaN for greater than any number, so that "k > 1.5" finds a row whose k is NaN;
# "k > 5" does not find the same row, since the log's greatest value of its file, 2.0, passes over
# NaN. So whether a row with NaN is found depends on the numbers which lie in its file.
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

rows = pa.table({"k": [1.0, 2.0, float("nan")], "n": [1, 2, 3]})
deltalake.write_deltalake("table", rows)
table = deltalake.DeltaTable("table")


def rows_where(condition):
    query = deltalake.QueryBuilder().register("t", table)
    found = query.execute(f"SELECT n FROM t WHERE {condition}").read_all()
    return sorted(pa.table(found)["n"].to_pylist())


above, far_above, nan = rows_where("k > 1.5"), rows_where("k > 5"), rows_where("isnan(k)")
print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}; k = [1.0, 2.0, NaN]")
print(f"k > 1.5: {above}; k > 5: {far_above}; isnan(k): {nan}")
raise SystemExit(0 if (above, far_above, nan) == ([2, 3], [], [3]) else 1)
PYTHON

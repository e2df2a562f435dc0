#!/bin/sh
# deltalake: a column of binary values by which a table is partitioned comes back as other bytes: the
# letters of the escapes that the log has for each byte (b"\x01" as the six bytes of \u0001), without
# an error. The values should be those that were written; the protocol's escapes are to be undone.
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

rows = pa.table({"k": pa.array([b"\x01", b"ab"], pa.binary()), "n": [1, 2]})
deltalake.write_deltalake("table", rows, partition_by=["k"])
table = deltalake.DeltaTable("table").to_pyarrow_table().sort_by("n")
found = table["k"].to_pylist()
print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}")
print(f"written: {rows['k'].to_pylist()}; read: {found}")
raise SystemExit(0 if found == [rb"\u0001", rb"\u0061\u0062"] else 1)
PYTHON

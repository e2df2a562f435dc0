#!/bin/bash
# deltalake 1.6.6: a table that is partitioned by a text with "~" can be written and read, but
# optimize.compact() raises, since it looks for the files under another name.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q "deltalake==1.6.6" "pyarrow==26.0.1"
"$place/venv/bin/python" - "$place/table" <<'PY'
import sys

import deltalake
import pyarrow as pa

path = sys.argv[1]
print("deltalake", deltalake.__version__)
for number in range(2):
    rows = pa.table({"home": ["~user"], "n": [number]})
    deltalake.write_deltalake(path, rows, mode="append", partition_by=["home"])
table = deltalake.DeltaTable(path)
print("read:", table.to_pyarrow_table().to_pylist())
try:
    table.optimize.compact()
except Exception as error:
    print("compact raised:", type(error).__name__, str(error)[:160].replace("\n", " "))
    sys.exit(0 if "missing files" in str(error) else 2)
print("compact worked: the behaviour has changed")
sys.exit(1)
PY

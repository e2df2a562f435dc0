#!/bin/bash
# deltalake 1.6.6: load_cdf cannot read the inserts of a table that is partitioned by a text with a
# blank or a slash. It looks for the file under the path of the log, which is percent-encoded, and
# does not decode it; to_pyarrow_table reads the same file.
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
feed = {"delta.enableChangeDataFeed": "true"}
rows = pa.table({"city": ["New York"], "n": [1]})
deltalake.write_deltalake(path, rows, partition_by=["city"], configuration=feed)
table = deltalake.DeltaTable(path)
print("read:", table.to_pyarrow_table().to_pylist())
try:
    changes = pa.table(table.load_cdf(0))
except Exception as error:
    print("load_cdf raised:", type(error).__name__, str(error)[:300].replace("\n", " "))
    sys.exit(0 if "not found" in str(error) else 2)
print("load_cdf worked: the behaviour has changed:", changes.to_pylist())
sys.exit(1)
PY

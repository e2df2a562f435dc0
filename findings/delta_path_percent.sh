#!/bin/bash
# deltalake 1.6.6: a table at a local path with "%" and two hexadecimal digits is created there, but
# read elsewhere: "a%20b" is looked for in "a b". "a%b" works.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q "deltalake==1.6.6" "pyarrow==26.0.1"
"$place/venv/bin/python" - "$place/tables" <<'PY'
import os
import sys

import deltalake
import pyarrow as pa

print("deltalake", deltalake.__version__)
seen = {}
for name in ("a%b", "a%20b"):
    path = f"{sys.argv[1]}/{name}"
    try:
        deltalake.write_deltalake(path, pa.table({"n": [1]}))
        seen[name] = "written and read" if deltalake.DeltaTable(path).version() == 0 else "?"
    except Exception as error:
        seen[name] = "raised: " + str(error).replace(sys.argv[1], "...")[:100]
print(seen, "directories:", sorted(os.listdir(sys.argv[1])))
sys.exit(0 if seen["a%b"] == "written and read" and "a b" in seen["a%20b"] else 1)
PY

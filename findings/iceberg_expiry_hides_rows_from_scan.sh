#!/bin/bash
# pyiceberg: after a snapshot has expired, an incremental scan of all appends leaves out its rows,
# without an error. Expiry clears the parent of the next snapshot, which then looks like the first;
# the format says that the parent is the parent's id, which Java keeps. Valid input, no Godwit; a
# temporary environment with a pinned pyiceberg.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet 'pyiceberg[sql-sqlite,pyarrow]==0.12.0'
cat > "$work/look.py" <<'PYTHON'
import sys

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog

work = sys.argv[1]
uri, warehouse = f"sqlite:///{work}/catalog.db", f"file://{work}/warehouse"
catalog = load_catalog("c", type="sql", uri=uri, warehouse=warehouse)
catalog.create_namespace("n")
table = catalog.create_table("n.t", pa.schema([("id", pa.int64())]))
for number in range(3):
    table.append(pa.table({"id": pa.array([number], pa.int64())}))
first, second, _ = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)


def appended(since=None):
    scan = table.incremental_append_scan(from_snapshot_id_exclusive=since)
    return sorted(scan.to_arrow()["id"].to_pylist())


print("pyiceberg", pyiceberg.__version__)
print("all appends           :", appended())
table.maintenance.expire_snapshots().by_id(first).commit()
print("after the first expired:", appended(), "of the table's", len(table.scan().to_arrow()))
parent = table.metadata.snapshot_by_id(second).parent_snapshot_id
print("parent of the second  :", parent, "which was", first)
try:
    print("since the first       :", appended(first))
except ValueError as error:
    print("since the first       :", error)
wrong = appended() == [1, 2] and parent is None
print("rows are left out" if wrong else "complete, or refused: this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

#!/bin/sh
# pyiceberg: a scan with a filter on a column of UUIDs fails in Arrow, "is not null" included, for
# there is no comparison of extension types; so does appending to a table that is partitioned by the
# column. Without a filter its rows are read.
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
import uuid

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, NotNull

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
key = uuid.UUID(int=1)
schema = pa.schema([("k", pa.uuid()), ("n", pa.int64())])
table = catalog.create_table("db.t", schema)
table.append(pa.table({"k": pa.array([key, None], pa.uuid()), "n": [1, 2]}))
answers = [table.scan().to_arrow()["n"].to_pylist()]
for condition in (EqualTo("k", key), NotNull("k")):
    try:
        answers.append(table.scan(row_filter=condition).to_arrow()["n"].to_pylist())
    except pa.ArrowNotImplementedError as error:
        answers.append(type(error).__name__)
print(f"pyiceberg {pyiceberg.__version__}, pyarrow {pa.__version__}; k = [{key}, null]")
print(f"all: {answers[0]}; k = {key}: {answers[1]}; k is not null: {answers[2]}")
raise SystemExit(0 if answers == [[1, 2], "ArrowNotImplementedError", "ArrowNotImplementedError"] else 1)
PYTHON

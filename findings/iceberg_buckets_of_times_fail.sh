#!/bin/sh
# pyiceberg: a table that is partitioned by bucket(4, t) of a time of day takes no rows: appending
# raises an AttributeError, since the partition's values, numbers of the buckets, are converted as
# if they were times. Buckets of dates and timestamps work.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyiceberg-core]==0.12.0" "pyiceberg-core==0.10.1" \
  "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import datetime as dt
import os

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
moment = dt.datetime(2024, 5, 1, 12, 30)
columns = {
    "time": pa.array([moment.time()], pa.time64("us")),
    "date": pa.array([moment.date()]),
    "timestamp": pa.array([moment], pa.timestamp("us")),
}
answers = {}
for name, values in columns.items():
    rows = pa.table({"t": values})
    table = catalog.create_table(f"db.{name}", rows.schema)
    with table.update_spec() as spec:
        spec.add_field("t", BucketTransform(4), "bucket")
    try:
        table.append(rows)
        answers[name] = "appended"
    except AttributeError as error:
        answers[name] = f"AttributeError: {error}"
print(f"pyiceberg {pyiceberg.__version__}, in buckets of the column: {answers}")
fails = answers.pop("time")
raise SystemExit(0 if "has no attribute 'hour'" in fails and set(answers.values()) == {"appended"} else 1)
PYTHON

#!/bin/sh
# pyiceberg: the filter "is NaN" finds no row of a data file that has numbers beside NaN and no null;
# with a null in the file it finds them, and also where the file has nothing but NaN. "Is not NaN"
# leaves out rows whose value is null, although null is no NaN. The files are pyiceberg's own.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "pyiceberg[sql-sqlite,pyiceberg-core]==0.12.0" "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import os

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import IsNaN, NotNaN

here = os.getcwd()
nan = float("nan")
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
schema = pa.schema([("k", pa.float64()), ("n", pa.int64())])
answers = {}
for name, values in (("numbers", [1.0, nan]), ("null", [1.0, nan, None]), ("alone", [nan, nan])):
    table = catalog.create_table(f"db.{name}", schema)
    rows = {"k": values, "n": list(range(1, len(values) + 1))}
    table.append(pa.table(rows, schema=schema))
    is_nan = table.scan(row_filter=IsNaN("k")).to_arrow()["n"].to_pylist()
    not_nan = table.scan(row_filter=NotNaN("k")).to_arrow()["n"].to_pylist()
    print(f"pyiceberg {pyiceberg.__version__}: k = {values}: is NaN: {is_nan}, is not NaN: {not_nan}")
    answers[name] = is_nan, not_nan
expected = {"numbers": ([], [1]), "null": ([2], [1]), "alone": ([1, 2], [])}
raise SystemExit(0 if answers == expected else 1)
PYTHON

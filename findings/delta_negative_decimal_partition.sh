#!/bin/sh
# deltalake: one row with a negative decimal that is not whole, appended to a table partitioned by the
# column, leaves the table unreadable. The partition's text in the log is "-1.-5" for -1.05; the
# append raises, but its version is committed, and no later read or append gets past it.
# Exits 0 while that is so, and 1 if it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "deltalake==1.6.6" "pyarrow==26.0.1"
cd "$dir"
"$dir/venv/bin/python" - <<'PYTHON'
import os
from decimal import Decimal

import deltalake
import pyarrow as pa


def append(amount):
    rows = pa.table({"k": pa.array([Decimal(amount)], pa.decimal128(9, 2)), "n": [1]})
    deltalake.write_deltalake("table", rows, mode="append", partition_by=["k"])


def outcome(function, *arguments):
    try:
        function(*arguments)
    except deltalake.exceptions.DeltaError as error:
        return str(error)
    return "done"


answers = [outcome(append, amount) for amount in ("1.05", "-2.00", "-1.05", "3.00")]
answers.append(outcome(lambda: deltalake.DeltaTable("table").to_pyarrow_table()))
versions = len([name for name in os.listdir("table/_delta_log") if name.endswith(".json")])
print(f"deltalake {deltalake.__version__}; appended 1.05, -2.00, -1.05, 3.00; then read:")
print("\n".join(answers))
print(f"versions in the log: {versions}")
fails = ["-1.-5" in answer for answer in answers]
raise SystemExit(0 if (fails, versions) == ([False, False, True, True, True], 3) else 1)
PYTHON

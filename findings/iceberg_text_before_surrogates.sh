#!/bin/sh
# pyiceberg: a text with the character U+D7FF where the column's upper bound is cut (the 16th, by
# default) cannot be appended: the bound's last character is raised by one, which gives the first
# surrogate, and that cannot be encoded. The next character that a text can have is U+E000.
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

import pyarrow as pa
import pyiceberg
from pyiceberg.catalog import load_catalog

here = os.getcwd()
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{here}/c.db", warehouse=f"file://{here}")
catalog.create_namespace("db")
schema = pa.schema([("k", pa.string())])
answers = []
for place, characters in enumerate(("\ud7fe", "\ud7ff", "\ue000")):
    table = catalog.create_table(f"db.t{place}", schema)
    try:
        table.append(pa.table({"k": ["a" * 15 + characters * 2]}, schema=schema))
        answers.append("appended")
    except UnicodeEncodeError as error:
        answers.append(f"UnicodeEncodeError: {error.reason}")
    print(f"pyiceberg {pyiceberg.__version__}: 16th character U+{ord(characters):04X}: {answers[-1]}")
expected = ["appended", "UnicodeEncodeError: surrogates not allowed", "appended"]
raise SystemExit(0 if answers == expected else 1)
PYTHON

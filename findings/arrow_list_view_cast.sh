#!/bin/sh
# pyarrow 26.0.1: a list view that is cast to a list loses the elements of the last list, without an
# error: [["a"], ["b"], ["c"]] becomes [["a"], ["b"], []].  The array lacks its last offset, as
# validate(full=True) says; flatten() and list_value_length() of the view are right.  Arrow files
# may have such columns.
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet pyarrow==26.0.1
"$folder/env/bin/python" - <<'PYTHON'
import sys

import pyarrow as pa

values = [["a"], ["b"], ["c"]]
view = pa.array(values, pa.list_view(pa.string()))
view.validate(full=True)
lists = view.cast(pa.list_(pa.string()))
print("pyarrow", pa.__version__)
print("view:", view.to_pylist(), "elements:", view.flatten().to_pylist())
print("cast to a list:", lists.to_pylist())
try:
    lists.validate(full=True)
    reason = ""
except pa.ArrowInvalid as error:
    reason = str(error)
print("validate:", reason or "valid")
seen = lists.to_pylist() == [["a"], ["b"], []] and "Offsets buffer size" in reason
sys.exit(not seen)
PYTHON

#!/bin/bash
# Spark reads an unsigned integer of 32 bits in Parquet as a negative number if the schema says
# double, and as itself if it says bigint; neither is an error. Valid input, no Godwit; a temporary
# environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0 pyarrow==26.0.1
cat > "$work/look.py" <<'PYTHON'
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

work = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
pq.write_table(pa.table({"n": pa.array([2**32 - 1], pa.uint32())}), f"{work}/n.parquet")
read = {
    name: spark.read.schema(f"n {name}").parquet(f"{work}/n.parquet").first()[0]
    for name in ("bigint", "double")
}
print("Spark", pyspark.__version__)
print("4294967295 read as bigint:", read["bigint"])
print("4294967295 read as double:", read["double"])
wrong = read == {"bigint": 2**32 - 1, "double": -1.0}
print("the sign bit is taken for a sign" if wrong else "the same number: this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

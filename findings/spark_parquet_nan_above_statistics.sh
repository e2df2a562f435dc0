#!/bin/bash
# Spark loses rows with NaN from Parquet files by a filter that NaN meets: NaN is greater than any
# number in Spark, but the greatest value in a file's statistics leaves NaN out, so the filter skips
# the whole row group. In batches and in streams. Valid input, no Godwit; a temporary environment
# with a pinned PySpark (needs Java 17).
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

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
pq.write_table(pa.table({"v": [float("nan"), -1.0]}), sys.argv[1])
print("Spark", pyspark.__version__)
counts = {}
for pushed in ("false", "true"):
    spark.conf.set("spark.sql.parquet.filterPushdown", pushed)
    counts[pushed] = spark.read.parquet(sys.argv[1]).where("v > 0").count()
    print(f"rows with v > 0 of NaN and -1, filterPushdown {pushed}: {counts[pushed]}")
is_so = counts == {"false": 1, "true": 0}
print("a filter that is pushed down loses NaN" if is_so else "this has changed")
raise SystemExit(0 if is_so else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work/rows.parquet" 2>/dev/null

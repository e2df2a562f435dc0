#!/bin/bash
# Spark's state reader: value.* of a state of two sums gives the second sum twice, without an error.
# The struct itself is right. Valid input, no Godwit; a temporary environment with a pinned PySpark
# (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.sql import SparkSession, functions as sf

work = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sql("select 'a' as k, 1L as x, 10L as y").write.parquet(f"{work}/in")
rows = spark.readStream.schema("k string, x long, y long").parquet(f"{work}/in")
sums = rows.groupBy("k").agg(sf.sum("x"), sf.sum("y"))
query = sums.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
query.option("checkpointLocation", f"{work}/checkpoint").start().awaitTermination()
state = spark.read.format("statestore").load(f"{work}/checkpoint")
whole, fields = state.select("value").first()[0], state.select("value.*").first()
print("Spark", pyspark.__version__)
print("value  :", tuple(whole))
print("value.*:", tuple(fields))
wrong = tuple(whole) == (1, 10) and tuple(fields) == (10, 10)
print("a field is read for another of its name" if wrong else "the same: this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

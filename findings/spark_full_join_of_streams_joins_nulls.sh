#!/bin/bash
# Spark's full outer join of two streams joins rows whose keys are null, as if null were equal to
# null. The same join of the same rows as tables does not. Valid input, no Godwit; a temporary
# environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.sql import SparkSession, functions as sf

work = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
for side in ("a", "b"):
    text = f"select cast(null as string) as k, timestamp'2024-01-01 00:00:00' as ts, '{side}' as v"
    spark.sql(text).write.parquet(f"{work}/{side}")


def joined(reader):
    """Join the rows of both sides by key and event time."""
    a, b = (
        reader.schema("k string, ts timestamp, v string").parquet(f"{work}/{side}")
        for side in ("a", "b")
    )
    a, b = a.withWatermark("ts", "1 minute").alias("a"), b.withWatermark("ts", "1 minute").alias("b")
    both = sf.expr("a.k = b.k AND a.ts BETWEEN b.ts AND b.ts + interval 1 minute")
    return a.join(b, both, "full").select("a.v", sf.col("b.v").alias("w"))


seen = []
query = joined(spark.readStream).writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
query.trigger(availableNow=True).option("checkpointLocation", f"{work}/c").start().awaitTermination()
tables = sorted((tuple(row) for row in joined(spark.read).collect()), key=repr)
streams = sorted((tuple(row) for row in seen), key=repr)
print("Spark", pyspark.__version__)
print("tables :", tables)
print("streams:", streams)
differs = ("a", "b") in streams and ("a", "b") not in tables
print("null is joined with null in streams" if differs else "the same: this has changed")
raise SystemExit(0 if differs else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

#!/bin/bash
# Spark's left semi join of two streams leaves a row out that its inner join has: a right row which
# no later row can meet is not stored, and left rows of the same batch are only looked up there.
# Valid input, no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.sql import SparkSession, functions as sf

work = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def stream(side):
    # The first batch moves the watermark to 00:10. The rows of the second are not late: those are
    # the rows behind the watermark of the batch before.
    for key, time in (("first", "00:10:00"), ("second", "00:05:00")):
        rows = spark.sql(f"select '{key}' as k, timestamp'2024-01-01 {time}' as t")
        rows.coalesce(1).write.mode("append").parquet(f"{work}/{side}")
    rows = spark.readStream.schema("k string, t timestamp").option("maxFilesPerTrigger", 1)
    return rows.parquet(f"{work}/{side}").withWatermark("t", "0 seconds").alias(side)


def keys(how):
    condition = "l.k = r.k and r.t between l.t and l.t + interval 10 minutes"
    query = left.join(right, sf.expr(condition), how).select("l.k").writeStream.format("memory")
    query.queryName(how).trigger(availableNow=True).start().awaitTermination()
    return sorted(row.k for row in spark.table(how).collect())


left, right = stream("l"), stream("r")
inner, semi = keys("inner"), keys("leftsemi")
print("Spark", pyspark.__version__)
print("inner    :", inner)
print("left semi:", semi)
wrong = inner == ["first", "second"] and semi == ["first"]
print("the semi join has no row 'second'" if wrong else "this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

#!/bin/bash
# Two stateful operators of a stream that shuffle the same rows share one Exchange in Spark's plan.
# The simulation that gives every operator its watermark does not look below a ReusedExchange, so
# the second one has the watermark 0: in append mode its windows never come out, and its state
# grows. Valid input, no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.sql import SparkSession

work = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.sql("select timestamp'2024-01-01' + make_interval(0, 0, 0, 0, 0, s) as t from range(5) r(s)")
rows.coalesce(1).write.parquet(f"{work}/in")
stream = spark.readStream.schema("t timestamp").parquet(f"{work}/in")
stream.withWatermark("t", "0 seconds").createOrReplaceTempView("events")
counts = "select window.start, count(*) as n from events group by window(t, '1 minute')"
union = f"{counts} union all {counts}"


def emitted(name, reuse):
    """Number of rows that the union emits in append mode."""
    spark.conf.set("spark.sql.exchange.reuse", reuse)
    found = []
    query = spark.sql(union).writeStream.foreachBatch(lambda part, _: found.extend(part.collect()))
    query = query.option("checkpointLocation", f"{work}/{name}").trigger(availableNow=True).start()
    query.awaitTermination()
    return len(found)


print("Spark", pyspark.__version__)
shared, apart = emitted("shared", "true"), emitted("apart", "false")
print(f"rows of the union: {shared} with a reused exchange, {apart} without")
is_so = (shared, apart) == (4, 8)
print("the second aggregate has no watermark" if is_so else "this has changed")
raise SystemExit(0 if is_so else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

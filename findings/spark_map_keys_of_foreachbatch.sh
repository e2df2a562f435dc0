#!/bin/bash
# Spark: a stream grouped by a map runs into any sink but foreachBatch, whose DataFrame cannot be
# made: its order by the map, which the aggregate sorted by, is not one that SQL allows. Valid input,
# no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
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
spark.sql("select map('a', 1) as m, 'x' as s").write.parquet(f"{work}/in")
rows = spark.readStream.schema("m map<string,int>, s string").parquet(f"{work}/in")
largest = rows.groupBy("m").agg(sf.max("s"))


def outcome(name, writer):
    """Return whether a query ran, or its error."""
    writer = writer.outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{work}/{name}").start()
    try:
        query.awaitTermination()
    except Exception as error:
        return str(error).splitlines()[0].split("terminated with exception: ")[-1][:80]
    return "ran"


noop = outcome("noop", largest.writeStream.format("noop"))
batch = outcome("batch", largest.writeStream.foreachBatch(lambda frame, _: frame.collect()))
print("Spark", pyspark.__version__)
print("noop        :", noop)
print("foreachBatch:", batch)
raise SystemExit(0 if noop == "ran" and "INVALID_ORDERING_TYPE" in batch else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

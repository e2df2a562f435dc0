#!/bin/bash
# last() and collect_list() above another stateful operator, here an aggregate of an aggregate,
# depend on the state store and on the number of shuffle partitions: a state store passes the rows
# of closed windows in the order of its hash map, or of the keys' bytes in RocksDB.  Spark documents both
# functions as non-deterministic, so no order is right or wrong; the values and their number are.
# Valid input, no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.sql import SparkSession

work = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
provider = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
rows = [(f"2024-01-01 00:0{n // 2}:00", f"row {n}") for n in range(8)]
every = spark.createDataFrame([*rows, ("2024-01-01 02:00:00", "end")], "at string, s string")
every.selectExpr("timestamp(at) AS at", "s").coalesce(1).write.parquet(f"{work}/in")


def values(store, partitions):
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider.format(store))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    stream = spark.readStream.schema("at timestamp, s string").parquet(f"{work}/in")
    stream.withWatermark("at", "0 seconds").createOrReplaceTempView("e")
    query = spark.sql(
        "SELECT window(w, '1 hour') w2, last(s) f, collect_list(s) l FROM "
        "(SELECT window(at, '1 minute') w, s FROM e GROUP BY window(at, '1 minute'), s) "
        "GROUP BY window(w, '1 hour')"
    )
    name = f"{store}_{partitions}"
    writer = query.writeStream.format("memory").queryName(name).outputMode("append")
    writer.trigger(availableNow=True).start().awaitTermination()
    (row,) = spark.table(name).select("f", "l").collect()
    return row.f, [int(text[-1]) for text in row.l]


print("Spark", pyspark.__version__)
results = {}
for store in ("HDFSBacked", "RocksDB"):
    for partitions in ("1", "3"):
        results[store, partitions] = last, order = values(store, partitions)
        print(f"{store:10} {partitions} partitions: last = {last}, order of the list = {order}")
orders = {tuple(order) for _, order in results.values()}
lasts = {last for last, _ in results.values()}
open_order = len(lasts) > 1 and len({tuple(sorted(order)) for order in orders}) == 1
print("the order depends on the state store or partitions" if open_order else "this has changed")
raise SystemExit(0 if open_order else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

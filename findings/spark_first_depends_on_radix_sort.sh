#!/bin/bash
# first() and last() of texts, arrays or structs give the value of another row, though all rows are
# in one file and one partition: Spark sorts rows by the key before it aggregates such values, and
# its radix sort, which is the default, does not keep the order of rows if some keys are null.
# Without nulls, or with spark.sql.sort.enableRadixSort=false, the first row's value comes.
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
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
keys = [1, 1, None, 1]
rows = [(key, f"row {number}") for number, key in enumerate(keys)]
spark.createDataFrame(rows, "k int, s string").coalesce(1).write.parquet(f"{work}/in")


def first(radix, where):
    spark.conf.set("spark.sql.sort.enableRadixSort", radix)
    rows = spark.read.parquet(f"{work}/in").where(where)
    return dict(map(tuple, rows.groupBy("k").agg({"s": "first"}).collect()))[1]


sorted_by_radix = first("true", "true")
without_nulls = first("true", "k is not null")
without_radix = first("false", "true")
print("Spark", pyspark.__version__)
print("first(s) of k = 1     :", sorted_by_radix)
print("without the row of null:", without_nulls)
print("without radix sort     :", without_radix)
wrong = sorted_by_radix != "row 0" and without_nulls == without_radix == "row 0"
print("first() is not the value of the first row" if wrong else "this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

#!/bin/bash
# Spark makes true of a null bigint that is compared with a larger number than a bigint holds, though
# SQL's answer is null: null < 9223372036854775808 is true, and its negation is false.
# Valid input, no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.0.0
cat > "$work/look.py" <<'PYTHON'
from pyspark.sql import SparkSession
import pyspark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.sql("select * from values (1L), (cast(null as bigint)) as t(l)")
shown = {
    "small": "l < 9223372036854775807",
    "large": "l < 9223372036854775808",
    "not large": "not (l < 9223372036854775808)",
}
row = rows.selectExpr("l", *(f"{text} as `{name}`" for name, text in shown.items())).where("l is null").first()
kept = rows.where("l < 9223372036854775808").count()
print("Spark", pyspark.__version__)
for name, text in shown.items():
    print(f"{text:>32} of null = {row[name]}")
print("rows of (1, null) kept by where l < 9223372036854775808:", kept)
wrong = row["small"] is None and row["large"] is True
print("a null is below a large number" if wrong else "null remains null: this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" 2>/dev/null

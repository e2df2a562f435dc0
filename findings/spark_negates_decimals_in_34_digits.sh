#!/bin/bash
# Unary minus of a decimal in Spark rounds to 34 digits, though decimal(38, 0) has 38; 0 - d does not.
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
digits = "12345678901234567890123456789012345678"
row = spark.sql(
    f"select -d as negated, 0 - d as subtracted, d as d "
    f"from values (cast('{digits}' as decimal(38, 0))) as t(d)"
).first()
print("Spark", pyspark.__version__)
for name in ("d", "subtracted", "negated"):
    print(f"{name:>10} = {row[name]}")
wrong = str(row.negated) != f"-{digits}" and str(row.subtracted) == f"-{digits}"
print("-d is not 0 - d" if wrong else "-d is 0 - d: this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" 2>/dev/null

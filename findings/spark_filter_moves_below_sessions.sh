#!/bin/bash
# Spark moves a filter on a session window below the aggregate that merges the sessions. There it
# tests the window that every row opens by itself, so sessions are lost, or begin too late. In
# batches and in streams. Valid input, no Godwit; a temporary environment with a pinned PySpark
# (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0
cat > "$work/look.py" <<'PYTHON'
import pyspark
from pyspark.sql import SparkSession, functions as sf

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.sql(
    "select timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, s) as t "
    "from values (0), (8), (16), (100) as v(s)"
)
sessions = rows.groupBy(sf.session_window("t", "10 seconds").alias("w")).count()
sessions = sessions.selectExpr("timestampdiff(second, w.start, w.end) as seconds", "count", "w")
sessions.createOrReplaceTempView("sessions")


def lengths(condition, view):
    """Length and number of rows of the sessions that meet a condition."""
    sessions = spark.sql(f"select seconds, count from {view} where {condition}").collect()
    return sorted(map(tuple, sessions))


# The same sessions as rows of a table, through which no filter moves.
spark.createDataFrame(sessions.collect(), sessions.schema).createOrReplaceTempView("stored")
print("Spark", pyspark.__version__)
print("all sessions:", lengths("true", "sessions"))
conditions = ("seconds > 20", "w.start >= '2024-01-01 00:00:05'")
right = [lengths(condition, "stored") for condition in conditions]
moved = [lengths(condition, "sessions") for condition in conditions]
for condition, *rows in zip(conditions, right, moved):
    print(f"{condition}: of the table {rows[0]}, of the aggregate {rows[1]}")
is_so = right == [[(26, 3)], [(10, 1)]] and moved == [[], [(10, 1), (18, 2)]]
print("filters on session windows lose sessions, and cut them" if is_so else "this has changed")
raise SystemExit(0 if is_so else 1)
PYTHON
"$work/env/bin/python" "$work/look.py" 2>/dev/null

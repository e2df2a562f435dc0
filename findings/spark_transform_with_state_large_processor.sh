#!/bin/bash
# A query with transformWithState does not start if its processor has more than 1 MB, or refers to a
# broadcast variable: the driver runs the processor's init in a Python process of its own, which gets
# no broadcast variables (a function of more than 1 MB is sent as one). UDFs of that size run.
# Valid input, no Godwit; a temporary environment with a pinned PySpark (needs Java 17).
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1 protobuf==7.36.2
cat > "$work/look.py" <<'PYTHON'
import sys

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

work = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1")
rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
builder = builder.config("spark.sql.streaming.stateStore.providerClass", rocks)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def processor(size):
    class Counter(StatefulProcessor):
        table = bytes(size)

        def init(self, handle):
            self.count = handle.getValueState("count", "n int")

        def handleInputRows(self, key, rows, timerValues):
            yield Row(k=key[0], n=len(list(rows)) + 0 * len(self.table))

        def close(self):
            pass

    return Counter()


def rows_with(size):
    rows = spark.readStream.schema("k string").json(f"{work}/in").groupBy("k")
    out = rows.transformWithState(processor(size), "k string, n int", "Append", "None")
    query = out.writeStream.format("memory").queryName(f"q{size}").trigger(availableNow=True)
    try:
        query.start().awaitTermination()
    except StreamingQueryException as error:
        return "fails: BROADCAST_VARIABLE_NOT_LOADED" if "NOT_LOADED" in str(error) else "fails"
    return [tuple(row) for row in spark.table(f"q{size}").collect()]


spark.createDataFrame([("a",), ("a",)], "k string").coalesce(1).write.json(f"{work}/in")
small, large = rows_with(1000), rows_with(1 << 20)
print("Spark", pyspark.__version__)
print("a processor of 1 kB:", small)
print("one of 1 MB        :", large)
wrong = small == [("a", 2)] and large == "fails: BROADCAST_VARIABLE_NOT_LOADED"
print("a large processor does not start" if wrong else "this has changed")
raise SystemExit(0 if wrong else 1)
PYTHON
PYSPARK_PYTHON="$work/env/bin/python" "$work/env/bin/python" "$work/look.py" "$work" 2>/dev/null

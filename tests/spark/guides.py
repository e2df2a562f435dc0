"""The Python blocks of the guides, and what each page's reader is taken to have."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["PAGES", "PREPARED", "Block", "blocks_of", "prepare_inputs", "text_of"]

ROOT = Path(__file__).parents[2]
PAGES = {
    **{path.stem: path for path in sorted((ROOT / "docs" / "guide").glob("*.md"))},
    **{path.stem: path for path in sorted((ROOT / "lab" / "docs").glob("*.md"))},
    "README": ROOT / "README.md",
}

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

Namespace = dict[str, Any]

FLIGHTS = "tailnum string, year int, carrier string, origin string, dest string, arr_delay double"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of Python.

    Attributes
    ----------
    code
        Preceded by as many empty lines as make its lines have the numbers they have in the page.
    reason
        Why it is not run; empty if it is.
    """

    code: str
    reason: str


def text_of(page: str) -> str:
    """Text of a page."""
    return PAGES[page].read_text("utf-8")


def blocks_of(page: str) -> list[Block]:
    """Blocks of a page in their order."""
    text = text_of(page)
    return [
        Block(
            code="\n" * text.count("\n", 0, found.start("code")) + found["code"],
            reason=found["reason"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def prepare_inputs(directory: Path) -> None:
    """Write the files that the pages' sources read."""
    flights = [
        ("N1", 2013, "UA", "EWR", "IAH", 11.0),
        ("N1", 2013, "UA", "LGA", "IAH", -4.0),
        ("N2", 2013, "AA", "JFK", "MIA", None),
        ("N2", 2014, "AA", "JFK", "MIA", 90.0),
        (None, 2014, "B6", "JFK", "BQN", 61.0),
    ]
    names = [column.split()[0] for column in FLIGHTS.split(", ")]
    types = [pa.string(), pa.int32(), pa.string(), pa.string(), pa.string(), pa.float64()]
    rows = pa.table(
        [pa.array(values, t) for values, t in zip(zip(*flights, strict=True), types, strict=True)],
        names=names,
    )
    for place in ("in", "in/flights"):
        _write(directory / place, rows)
    rides = [
        ("t1", "north", 0, 7.5),
        ("t2", "north", 40, 12.0),
        ("t1", "south", 70, 3.0),
        ("t3", "north", 200, 9.0),
    ]
    start = dt.datetime(2024, 5, 1, 8, tzinfo=dt.UTC)
    waits = {
        "stop": ["Mitte", "Zoo"],
        "ts": pa.array([start, start], pa.timestamp("us", tz="UTC")),
        "passengers": pa.array([12, 3], pa.int64()),
    }
    _write(directory / "waits", pa.table(waits))
    for name, line in (("buses", "100"), ("trams", "M1")):
        moments = [start + dt.timedelta(minutes=after) for after in (3, 25, 25, 190)]
        departures = {
            "line": [line] * 4,
            "stop": ["Zoo", "Mitte", "Mitte", "Zoo"],
            "ts": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "delay": [1.5, 0.0, 0.0, 7.0],
        }
        _write(directory / name, pa.table(departures))
    _write(
        directory / "rides",
        pa.table(
            {
                "taxi": [taxi for taxi, *_ in rides],
                "zone": [zone for _, zone, *_ in rides],
                "ts": pa.array(
                    [start + dt.timedelta(minutes=after) for _, _, after, _ in rides],
                    pa.timestamp("us", tz="UTC"),
                ),
                "fare": [fare for *_, fare in rides],
            }
        ),
    )
    orders = {"symbol": ["A", "A"], "price": [9.0, 8.5], "size": [100, -100]}
    _write(directory / "in/orders", pa.table(orders))
    trips = {"area": ["Mitte", "Zoo"], "user": pa.array([1, 2], pa.int64()), "fare": [7.5, 3.0]}
    _write(directory / "in/trips", pa.table(trips))
    _write(
        directory / "airlines", pa.table({"carrier": ["UA", "AA"], "name": ["United", "American"]})
    )


def _write(directory: Path, rows: pa.Table) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, directory / "0.parquet")


def _flow(spark: SparkSession) -> Namespace:
    """Return a flow with a source of flights."""
    flow = gw.Flow("delays", num_key_groups=8)
    flights = flow.source("flights", spark.readStream.schema(FLIGHTS).parquet("in/flights"))
    return {"flow": flow, "flights": flights}


def _orders(spark: SparkSession) -> Namespace:
    """Return a flow with a source of orders."""
    flow = gw.Flow("market", num_key_groups=8)
    rows = spark.readStream.schema("symbol string, price double, size long").parquet("in/orders")
    return {"flow": flow, "orders": flow.source("orders", rows)}


def _delivered(spark: SparkSession) -> Namespace:
    """Return a flow, and what an earlier run of it has delivered."""
    for again in (False, True):
        made = _flow(spark)
        made["by_plane"] = made["flights"].key_by("tailnum").compute(total=gw.sum("arr_delay"))
        if not again:
            sink = gw.sinks.parquet("out/by_plane", manifest="1 minute")
            made["flow"].sink("by_plane", made["by_plane"], sink)
            query = made["flow"].start(checkpoint="end", trigger={"availableNow": True})
            query.awaitTermination()
    made["df"] = spark.read.parquet("out/by_plane")
    return {**made, "DataFrame": DataFrame, "pandas": import_module("pandas")}


def _ready(spark: SparkSession) -> Namespace:
    """Return a flow that can be started."""
    made = _flow(spark)
    stream = made["flights"].key_by("tailnum").compute(name="by_plane", n=gw.count())
    made["flow"].sink("out", stream, gw.sinks.noop())
    return made


def _running(spark: SparkSession) -> Namespace:
    """Return a query that runs, and has committed two epochs."""
    query = _ready(spark)["flow"].start(checkpoint="checkpoint/")
    query.processAllAvailable()
    _write(Path("in/flights/.later"), pq.read_table("in/flights/0.parquet"))
    Path("in/flights/.later/0.parquet").rename("in/flights/1.parquet")
    query.processAllAvailable()
    return {"query": query}


PREPARED: dict[str, Callable[[SparkSession], Namespace]] = {
    "aggregates": _flow,
    "control": _ready,
    "errors": _ready,
    "events": _running,
    "kafka": lambda _spark: {},  # its flow needs a broker
    "metrics": _ready,
    "running": _running,
    "sinks": _delivered,
    "state": _orders,
}

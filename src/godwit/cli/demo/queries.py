"""The demo's two queries: the stream, and a plain batch query that says what it should give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import godwit as gw
from godwit.cli.demo.comparison import Comparison, compare, newest_rows
from godwit.cli.demo.flights import SPARK_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from godwit.cli.demo.story import Settings
    from godwit.cluster.spark.query.query import Query

__all__ = ["compare_with_batch", "start_stream"]

_PLANE, _ROUTE = ("tailnum", "year"), ("origin", "dest")


def start_stream(settings: Settings, spark: SparkSession) -> tuple[Query, gw.sinks.MemorySink]:
    """Start the stream, on input that is still empty.

    Returns
    -------
    query
        Its key groups are on all executors but the last, which is still to come.
    routes_now
        The sink that keeps the delays by route in memory.
    """
    folder = settings.work_dir
    (folder / "in").mkdir()
    flow = gw.Flow("flight_delays", num_key_groups=settings.key_groups)
    flights = flow.source(
        "flights",
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", settings.days_per_epoch)
        .parquet(str(folder / "in")),
    )
    by_plane = flights.key_by(*_PLANE).compute(
        name="delay_by_plane",
        flights=gw.count(),
        arrived=gw.count("arr_delay"),
        total_delay=gw.sum("arr_delay"),
        mean_delay=gw.mean("arr_delay"),
    )
    by_route = flights.key_by(*_ROUTE).compute(
        name="delay_by_route",
        flights=gw.count(),
        mean_delay=gw.mean("arr_delay"),
        worst_delay=gw.max("arr_delay"),
    )
    routes_now = gw.sinks.memory()
    flow.sink("by_plane", by_plane, gw.sinks.parquet(folder / "out" / "by_plane"))
    flow.sink("by_route", by_route, gw.sinks.parquet(folder / "out" / "by_route"))
    flow.sink("routes_now", by_route, routes_now)
    return flow.start(
        checkpoint=folder / "checkpoint", executors=settings.executors - 1
    ), routes_now


def compare_with_batch(
    settings: Settings, spark: SparkSession, routes_now: gw.sinks.MemorySink
) -> tuple[Comparison, ...]:
    """Compare what the sinks hold with a batch query over the files that were streamed."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own habit

    folder = settings.work_dir
    rows = spark.read.schema(SPARK_SCHEMA).parquet(str(folder / "in"))
    by_plane = rows.groupBy(*_PLANE).agg(
        F.count("*").alias("flights"),
        F.count("arr_delay").alias("arrived"),
        F.sum("arr_delay").alias("total_delay"),
        F.avg("arr_delay").alias("mean_delay"),
    )
    by_route = rows.groupBy(*_ROUTE).agg(
        F.count("*").alias("flights"),
        F.avg("arr_delay").alias("mean_delay"),
        F.max("arr_delay").alias("worst_delay"),
    )
    planes, routes = by_plane.toArrow(), by_route.toArrow()
    return (
        _compare_files("delays by airplane and year", folder / "out/by_plane", planes, _PLANE),
        _compare_files("delays by route", folder / "out/by_route", routes, _ROUTE),
        compare("delays by route (in memory)", routes_now.table(), routes, _ROUTE),
    )


def _compare_files(what: str, directory: Path, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    import pyarrow.dataset as ds  # noqa: PLC0415  it brings pandas along, and the start is busy

    delivered = ds.dataset(directory, partitioning="hive", format="parquet").to_table()
    try:
        newest = newest_rows(delivered, keys)
    except ValueError as error:
        return Comparison(what=what, rows=batch.num_rows, differences=(str(error),))
    return compare(what, newest, batch, keys)

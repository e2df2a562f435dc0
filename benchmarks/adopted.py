"""Adopted queries beside native Spark and beside a flow by hand, over the same DataFrames.

Both are run once more over own sources: the adopted query by ``own_sources()``.

``python -m benchmarks.adopted [ROW ...] [--batches N] [--rows N] [--parties PARTY ...]``: each row
runs the parties in one process, one after the other, and prints the median time of a batch after
the first half, and ratios with their aims.  Native Spark gets the first four batches alone, so that
all rows take a few minutes.  Rows: ``uniform`` (1 M keys), ``zipf`` (100 k keys), ``windows`` (four
windows a row), ``sessions`` and ``processor`` (``transformWithState``, 20 k keys, which needs
``protobuf``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import DataFrame

ROWS = ("uniform", "zipf", "windows", "sessions", "processor")
PARTIES = ("native", "adopted", "by hand", "own", "own by hand")
RATIOS = (("adopted", "by hand"), ("own", "own by hand"))
AIMS = {"uniform": 7.0, "zipf": 3.5, "windows": 8.0, "sessions": 6.0, "processor": 25.0}
"""How many times as fast as native Spark a row is to be over own sources."""
MOST_OF_HAND = 1.1  # of the time of a flow by hand over own sources
NATIVE_BATCHES = 4
SCHEMA = "k string, ts timestamp, v double"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TOTALS = "k string, total double, n long"
_SECOND = 1_000_000


def write_input(directory: Path, row: str, batches: int, rows: int) -> None:
    """Write a file for each batch."""
    draw = np.random.default_rng(1)
    keys = {"uniform": 1_000_000, "zipf": 100_000}.get(row, 20_000)
    for number in range(batches):
        if row == "zipf":
            ids = np.minimum(draw.zipf(1.2, rows), keys)
        else:
            ids = draw.integers(0, keys, rows)
        times = 1_700_000_000 * _SECOND + (number * 60 + draw.uniform(0, 60, rows)) * _SECOND
        table = pa.table(
            {
                "k": pa.array([f"key-{i}" for i in ids.tolist()]),
                "ts": pa.array(times.astype(np.int64), pa.timestamp("us", tz="UTC")),
                "v": pa.array(draw.random(rows)),
            }
        )
        pq.write_table(table, directory / f"{number:04d}.parquet")
        time.sleep(0.01)  # files are read in the order of their times


def query_of(row: str, frame: DataFrame) -> tuple[DataFrame, str]:
    """Return a row's query, and its output mode."""
    results = (sf.sum("v").alias("total"), sf.count("*").alias("n"))
    if row in {"uniform", "zipf"}:
        return frame.groupBy("k").agg(*results), "update"
    if row == "processor":
        grouped = frame.groupBy("k")
        return grouped.transformWithState(totals_processor(), TOTALS, "Update", "None"), "update"
    timed = frame.withWatermark("ts", "30 seconds")
    if row == "windows":
        return timed.groupBy("k", sf.window("ts", "4 minutes", "1 minute")).agg(*results), "append"
    return timed.groupBy("k", sf.session_window("ts", "20 seconds")).agg(*results), "append"


def totals_processor() -> Any:
    """Return a processor that adds up rows per key, as users of Spark write it."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        """Sum and number of the rows of a key."""

        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("totals", "total double, n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: ARG002, N802, N803
            total, n = self.state.get() or (0.0, 0)
            for row in rows:
                total, n = total + row.v, n + 1
            self.state.update((total, n))
            yield Row(k=key[0], total=total, n=n)

        def close(self) -> None:
            pass

    return Totals()


def totals_by_hand(key: Any, rows: Any, state: Any) -> Any:
    """Do as the processor does, as a function of Godwit's."""
    total, n = state.value
    for row in rows:
        total, n = total + row.v, n + 1
    state.value = NoTotals(total, n)
    yield key[0], total, n


class NoTotals(NamedTuple):
    """State of a new key."""

    total: float = 0.0
    n: int = 0


def by_hand(row: str, frame: DataFrame | gw.sources.Source) -> gw.Flow:
    """Return a row's flow as a user of Godwit's would write it, over a source of either kind."""
    flow = gw.Flow("by-hand")
    rows = flow.source("rows", frame, event_time="ts", slack="30 seconds")
    keyed = rows.key_by("k")
    results: Any = {"total": gw.sum("v"), "n": gw.count()}
    if row == "processor":
        stream = keyed.process(totals_by_hand, state=NoTotals, output=TOTALS)
    elif row in {"uniform", "zipf"}:
        stream = keyed.compute(**results)
    else:
        window = gw.hopping("4 minutes", every="1 minute")
        stream = keyed.window(window if row == "windows" else gw.session("20 seconds")).compute(
            **results
        )
    flow.sink("results", stream, gw.sinks.noop())
    return flow


def measured(spark: SparkSession, start: Callable[[], Any]) -> list[float]:
    """Run a query to its end; return the seconds of each of its micro-batches."""
    ends: list[float] = []

    class Listener(gw_listener()):  # type: ignore[misc]
        """Records the duration of micro-batches."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            if event.progress.numInputRows:
                ends.append(event.progress.durationMs["triggerExecution"] / 1e3)

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        query = start()
        query.awaitTermination()
        time.sleep(1)
    finally:
        spark.streams.removeListener(listener)
    return ends


def measured_own(start: Callable[[], Any]) -> list[float]:
    """Run a query over own sources to its end; return the seconds of each of its epochs."""
    query = start()
    query.awaitTermination()
    return [
        epoch["durationMs"]["triggerExecution"] / 1e3
        for epoch in query.recentProgress
        if epoch["numInputRows"] and "triggerExecution" in epoch["durationMs"]
    ]


def gw_listener() -> Any:
    """Return PySpark's listener of queries, without methods that do nothing."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Quiet(StreamingQueryListener):
        """Listener to nothing."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

    return Quiet


def run_row(
    spark: SparkSession, row: str, batches: int, rows: int, chosen: Collection[str]
) -> None:
    """Measure a row with the chosen parties, and print it."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "in").mkdir()
        write_input(place / "in", row, batches, rows)
        (place / "first").mkdir()
        for file in sorted((place / "in").iterdir())[:NATIVE_BATCHES]:
            os.link(file, place / "first" / file.name)
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        frame, first = (reader.parquet(str(place / name)) for name in ("in", "first"))
        if row == "processor":  # which Spark's other state store cannot
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
        query, mode = query_of(row, frame)

        def start(writer: Any, party: str) -> Any:
            """Start a writer's query."""
            return (
                writer.outputMode(mode)
                .format("noop")
                .queryName(party)
                .option("checkpointLocation", str(place / party))
                .trigger(availableNow=True)
                .start()
            )

        parties: dict[str, Callable[[], Any]] = {
            "native": lambda: start(query_of(row, first)[0].writeStream, "native"),
            "adopted": lambda: start(gw.write_stream(query), "adopted"),
            "by hand": lambda: by_hand(row, frame).start(
                checkpoint=str(place / "hand"), trigger={"availableNow": True}
            ),
        }
        own: dict[str, Callable[[], Any]] = {
            "own": lambda: start(gw.write_stream(query).own_sources(), "own"),
            "own by hand": lambda: by_hand(
                row, gw.sources.parquet(place / "in", schema=SCHEMA, max_files_per_epoch=1)
            ).start(checkpoint=str(place / "own-hand"), trigger={"availableNow": True}),
        }
        medians = {}
        for party, run in {**parties, **own}.items():
            if party in chosen:
                seconds = measured_own(run) if party in own else measured(spark, run)
                medians[party] = statistics.median(seconds[len(seconds) // 2 :])
        print_figures(row, medians)


def print_figures(row: str, medians: Mapping[str, float]) -> None:
    """Print the medians of a row's parties in seconds, and the ratios that they have."""
    figures = [f"{party} {median:.3f} s" for party, median in medians.items()]
    figures += [
        f"{party} {medians['native'] / medians[party]:.1f}x as fast as native"
        + (f" (aim {AIMS[row]:g}x)" if party == "own" else "")
        for party in ("adopted", "own")
        if party in medians and "native" in medians
    ]
    figures += [
        f"{party} takes {medians[party] / medians[other]:.2f} of {other}"
        + (f" (aim {MOST_OF_HAND})" if party == "own" else "")
        for party, other in RATIOS
        if party in medians and other in medians
    ]
    print(f"{row}: {', '.join(figures)}", flush=True)


def main() -> None:
    """Run the rows that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="*", default=[], choices=[*ROWS, []])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parties", nargs="+", default=list(PARTIES), choices=PARTIES)
    options = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config(
        "spark.driver.memory", "4g"
    )
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for row in options.row or ROWS:
        run_row(spark, row, options.batches, options.rows, options.parties)


if __name__ == "__main__":
    main()

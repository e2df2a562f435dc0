"""Streams on a cluster of processes whose executors become more and fewer while they flow.

The first is scaled by hand, the second by its controller, and the third to numbers of executors
that its controller knows beforehand, and plans for at once.  Called with a directory, where it
works; prints what happened as JSON. What should have come out is for the test to say.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw
from godwit.ops.local_cluster import LocalCluster
from godwit.placement import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

COLUMNS = pa.schema([("k", pa.int32()), ("number", pa.int64())])
KEYS, ROWS = 60, 300
PATIENCE_S = 150.0


def rows_of(part: int) -> list[tuple[int, int]]:
    """Rows of a part: every one has a number of its own, and each key sees them ascending."""
    return [((part * 7 + i) % KEYS, part * ROWS + i) for i in range(ROWS)]


def in_order(
    row_s: float, key: tuple[int], rows: gw.types.KeyRows, seen: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Keep the last number of a key and how many there were; a row out of order is an error."""
    time.sleep(row_s * len(rows))
    for row in rows:
        if seen and row.number <= seen[0]:
            raise ValueError(f"{row.number} came after {seen[0]}")
        seen[:] = [row.number, (seen[1] if seen else 0) + 1]
    yield key[0], seen[1], seen[0]


class Feed:
    """Puts a file into a directory every so often, until it is told to end.

    Attributes
    ----------
    parts
        How many parts it has put.
    every_s, parts_at_once
        How often it puts a file, and how many parts that has.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.parts, self.every_s, self.parts_at_once = 0, 0.5, 1
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Put nothing more."""
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(self.every_s):
            parts = range(self.parts, self.parts + self.parts_at_once)
            rows = [row for part in parts for row in rows_of(part)]
            table = pa.table([[k for k, _ in rows], [n for _, n in rows]], schema=COLUMNS)
            hidden = self._directory / f"_{self.parts}"
            pq.write_table(table, hidden)
            os.utime(hidden, (1.6e9 + self.parts,) * 2)  # Spark orders files by their age
            hidden.rename(self._directory / f"{self.parts:05d}.parquet")
            self.parts += len(parts)


def flow_of(
    spark: SparkSession, directory: Path, sink: gw.sinks.Sink, row_s: float = 0.0
) -> gw.Flow:
    """Count the rows of every key, in order, and take some time for each."""
    flow = gw.Flow("scaled", num_key_groups=24)
    reader = spark.readStream.schema("k int, number long").option("maxFilesPerTrigger", 1)
    keyed = flow.source("rows", reader.parquet(str(directory / "in"))).key_by("k")
    counted = keyed.process(
        partial(in_order, row_s), state=list, output="k int, n long, last long", name="counted"
    )
    flow.sink("out", counted, sink)
    return flow


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def go_on(query: gw.types.Query) -> None:
    """Wait for some more epochs."""
    now = query.status["committedEpoch"]
    until(
        lambda: query.status["committedEpoch"] >= now + 3 or query.exception(),
        "more epochs",
    )
    if (failure := query.exception()) is not None:
        raise failure


def owners(query: gw.types.Query) -> dict[str, int]:
    """Executor → key groups it owns."""
    now = query.placement.assignments["counted"]
    return {name: len(now.key_groups(name)) for name in now.executors}


def by_hand(cluster: LocalCluster, spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Two executors, then three, then four of which only three can be had, two, three."""
    told: dict[str, Any] = {}
    (directory / "in").mkdir(parents=True)
    sink = gw.sinks.memory()
    query = flow_of(spark, directory, sink).start(
        checkpoint=directory / "ck", executors=2, sizing=gw.Sizing(executors_timeout_s=PATIENCE_S)
    )
    query.add_listener(lambda event: print(event.describe(), file=sys.stderr))  # noqa: T201
    feed = Feed(directory / "in")
    go_on(query)

    out = query.scale(3)
    cluster.add_worker()
    told["out"] = out.wait(PATIENCE_S)
    told["shared"] = owners(query)
    go_on(query)

    try:
        query.scale(4, timeout_s=1).wait(PATIENCE_S)
    except gw.errors.ScalingError as error:
        told["short"] = error.message
    told["executors"] = query.executors
    told["used"] = owners(query)

    told["in"] = query.scale(2).wait(PATIENCE_S)
    told["kept"] = owners(query)
    go_on(query)
    told["processes"] = list(cluster.executor_pids(spark.sparkContext.applicationId))
    told["again"] = query.scale(3).wait(PATIENCE_S)
    return told | end(query, feed, sink)


def by_itself(cluster: LocalCluster, spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Three executors with little to do, of which two stay, until there is too much for two."""
    told: dict[str, Any] = {}
    application = spark.sparkContext.applicationId
    (directory / "in").mkdir(parents=True)
    sink = gw.sinks.memory()
    query = flow_of(spark, directory, sink, row_s=1e-3).start(
        checkpoint=directory / "ck",
        executors=3,
        sizing=gw.Sizing(executors_timeout_s=PATIENCE_S),
        control=gw.Control(
            scaling=gw.control.utilisation(0.6),
            min_executors=2,
            max_executors=3,
            period="1 second",
            cadence=gw.control.Cadence(min_epochs=2),
        ),
    )
    query.add_listener(lambda event: print(event.describe(), file=sys.stderr))  # noqa: T201
    feed = Feed(directory / "in")  # 0.3 s of work twice a second

    def owning(number: int) -> bool:
        held = owners(query)
        used = len(query.executors) == number == len(held) and all(held.values())
        return used or query.exception() is not None

    until(lambda: owning(2), "two executors")
    told["in"] = owners(query)
    told["processes"] = list(cluster.executor_pids(application))
    feed.every_s, feed.parts_at_once = 1.2, 8  # 2 s of work a second
    until(lambda: owning(3), "three executors")
    told["out"] = owners(query)
    return told | end(query, feed, sink)


def by_sequence(cluster: LocalCluster, spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Two executors, then three, then two, planned together; each begins when the one before is."""
    told: dict[str, Any] = {"ranges": []}
    (directory / "in").mkdir(parents=True)
    sink, wanted = gw.sinks.memory(), [2]
    query = flow_of(spark, directory, sink).start(
        checkpoint=directory / "ck",
        executors=2,
        sizing=gw.Sizing(executors_timeout_s=PATIENCE_S),
        control=gw.Control(
            planner="oms",
            scaling=lambda _situation: wanted[0],
            max_executors=3,
            period="1 second",
            cadence=gw.control.Cadence(min_epochs=2),
            search=gw.control.Search(options={"targets": (3, 2)}, limits=Limits(tau=0.4)),
        ),
    )
    query.add_listener(lambda event: print(event.describe(), file=sys.stderr))  # noqa: T201
    feed = Feed(directory / "in")

    def in_ranges(number: int) -> bool:
        now, moving = query.placement.assignments["counted"], query.status["keyGroupsInFlight"]
        cuts = 1 + sum(now.executor_of[1:] != now.executor_of[:-1])
        return cuts == number == len(query.executors) and not moving

    for number in (2, 3, 2):
        wanted[0] = number
        until(lambda: in_ranges(wanted[0]) or query.exception(), f"{number} ranges")
        told["ranges"].append(query.placement.assignments["counted"].executor_of.tolist())
        go_on(query)
    planned = [e for e in query.events if isinstance(e, gw.events.MigrationsPlanned)]
    told["planned"] = [[list(event.executors), event.reason] for event in planned]
    return told | end(query, feed, sink)


def end(query: gw.types.Query, feed: Feed, sink: Any) -> dict[str, Any]:
    """End a stream; say what came in, what came out, and what happened."""
    feed.end()
    query.processAllAvailable()
    query.stop()
    return {
        "parts": feed.parts,
        "rows": sorted(tuple(row.values()) for row in sink.table("k").to_pylist()),
        "events": [type(event).__name__ for event in query.events],
    }


def play(directory: Path) -> dict[str, Any]:
    """Play them on one cluster."""
    with LocalCluster(workers=2, memory="512m", work_dir=directory / "cluster") as cluster:
        spark = cluster.session("scaled", {"spark.driver.memory": "512m"})
        return {
            "by_hand": by_hand(cluster, spark, directory / "by_hand"),
            "by_itself": by_itself(cluster, spark, directory / "by_itself"),
            "by_sequence": by_sequence(cluster, spark, directory / "by_sequence"),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(play(Path(sys.argv[1]))) + "\n")

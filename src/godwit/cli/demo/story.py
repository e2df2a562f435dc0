"""The plot of the demo: stream, move a third of the key groups, kill an executor, go on, compare.

The script reacts to events and never to the clock, so that a slow machine sees the same story:

1. every executor but one shares the key groups; the last one is idle;
2. after a quarter of the epochs, a third of the key groups of each operator move live to it;
3. when they have arrived, and over half of the epochs are done, one executor is killed;
4. its key groups are suspended, warmed elsewhere and resumed, while the others go on;
5. the last files are held back until nobody waits; then the stream ends, and a batch query over
   the same files says whether a single row was lost or counted twice.
"""

from __future__ import annotations

import math
import os
import queue
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import godwit as gw
import pyarrow.dataset as ds
from godwit.cli.demo.comparison import Comparison, compare, newest_rows
from godwit.cli.demo.flights import SPARK_SCHEMA, load_flights, write_days
from godwit.cli.demo.recording import EpochFigures, Recording
from godwit.model import events
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import EpochFailedError
from godwit.spark.executors import wait_for
from godwit.spark.local_cluster import LocalCluster
from godwit.state.storage import CheckpointStorage
from godwit.state.verification import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from godwit.spark.query import Migration, Query

__all__ = ["Audience", "Outcome", "Settings", "play"]

PLANE, ROUTE = ("tailnum", "year"), ("origin", "dest")
_IDLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the demo is asked for.

    Attributes
    ----------
    work_dir
        Everything is written here.
    executors
        Number of executor processes.
    days, days_per_epoch
        Days to stream, and how many of them make an epoch.
    key_groups
        Key groups of each operator.
    kill
        Whether an executor is killed.
    """

    work_dir: Path
    executors: int = 3
    days: int = 365
    days_per_epoch: int = 7
    key_groups: int = 96
    kill: bool = True


class Audience(Protocol):
    """Who is told what happens, as it happens."""

    def say(self, text: str) -> None:
        """Take a line for people."""

    def epoch(self, figures: EpochFigures, recording: Recording) -> None:
        """Take the figures of an epoch that was just committed."""

    def event(self, event: events.Event, recording: Recording) -> None:
        """Take anything else that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended.

    Attributes
    ----------
    recording
        What was measured.
    comparisons
        Each result against the batch query.
    checkpoint_problems
        What verification of the checkpoint found.
    stream_s
        Seconds from the start of the stream to its end.
    """

    recording: Recording
    comparisons: tuple[Comparison, ...]
    checkpoint_problems: tuple[str, ...]
    stream_s: float

    @property
    def ok(self) -> bool:
        """Whether every result is exact and the checkpoint is whole."""
        return not self.checkpoint_problems and all(c.equal for c in self.comparisons)


def play(settings: Settings, audience: Audience) -> Outcome:
    """Run the demo from start to end; whatever happens, no process is left behind."""
    folder = settings.work_dir
    flights = load_flights()
    files = write_days(flights, folder / "days", days=settings.days)
    audience.say(f"{len(files)} days of flights are in {folder / 'days'}")
    with LocalCluster(settings.executors, work_dir=folder / "cluster") as cluster:
        audience.say(
            f"Spark is starting: a master and {settings.executors} executors at "
            f"{cluster.master_url}"
        )
        spark = cluster.session("godwit-demo", {"spark.sql.shuffle.partitions": "2"})
        spark.sparkContext.setLogLevel("ERROR")
        query, streamed = _start(settings, spark)
        try:
            script = _Script(settings, query, cluster, spark, files, audience)
            script.play()
        finally:
            query.stop()
        recording = script.recording
        audience.say("the stream has ended; a batch query over the same files decides")
        comparisons = _compare(settings, spark, streamed)
    report = verify(CheckpointStorage.open(folder / "checkpoint"))
    return Outcome(
        recording=recording,
        comparisons=comparisons,
        checkpoint_problems=tuple(f"{f.file}: {f.problem}" for f in report.findings),
        stream_s=recording.epochs[-1].at_s,
    )


def _start(settings: Settings, spark: SparkSession) -> tuple[Query, gw.sinks.MemorySink]:
    folder = settings.work_dir
    (folder / "in").mkdir()
    flow = gw.Flow("flight_delays", num_key_groups=settings.key_groups)
    flights = flow.source(
        "flights",
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", settings.days_per_epoch)
        .parquet(str(folder / "in")),
    )
    by_plane = flights.key_by(*PLANE).compute(
        name="delay_by_plane",
        flights=gw.count(),
        arrived=gw.count("arr_delay"),
        total_delay=gw.sum("arr_delay"),
        mean_delay=gw.mean("arr_delay"),
    )
    by_route = flights.key_by(*ROUTE).compute(
        name="delay_by_route",
        flights=gw.count(),
        mean_delay=gw.mean("arr_delay"),
        worst_delay=gw.max("arr_delay"),
    )
    memory = gw.sinks.memory()
    flow.sink("by_plane", by_plane, gw.sinks.parquet(folder / "out" / "by_plane"))
    flow.sink("by_route", by_route, gw.sinks.parquet(folder / "out" / "by_route"))
    flow.sink("routes_now", by_route, memory)

    found = wait_for(spark.sparkContext, settings.executors)
    names, lanes = [e.name for e in found], [e.lanes for e in found]
    # Everything on all but the last executor; that one is there, and idle.
    first = even_assignment(settings.key_groups, names[:-1], lanes[:-1]).on(names, lanes)
    components = [component.name for component in flow.compile(_resolver(flow)).components]
    query: Query = flow.start(
        checkpoint=folder / "checkpoint",
        executors=settings.executors,
        assignments=dict.fromkeys(components, replace(first, version=0)),
    )
    return query, memory

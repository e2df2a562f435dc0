"""Script of the demo: stream, move a third of the key groups, kill an executor, continue, compare.

The script hears every event of the query and decides after each, never by the clock, so that a slow
machine shows the same steps; the clock serves only to notice that a stream has run dry:

1. every executor but one shares the key groups; the last one joins them while the stream flows;
2. then, after a quarter of the rows, a third of the key groups of each operator move live to it;
3. when they have arrived, and over half of the rows are in, one executor is killed;
4. its key groups are suspended, warmed elsewhere and resumed, while the others continue;
5. the last files wait until no key group does; then the stream ends, and a batch query over the
   same files says whether a single row was lost or counted twice.
"""

from __future__ import annotations

import os
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import EpochFailedError
from godwit.ops.demo.comparison import Comparison, compare
from godwit.ops.demo.flights import (
    COLUMNS,
    SPARK_COLUMNS,
    Days,
    days_of,
    find_flights,
    load_flights,
    write_days,
)
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.api.streams import Stream
    from godwit.model.assignment import Assignment
    from godwit.ops.demo.show import Show
    from godwit.ops.local_cluster import LocalCluster
    from godwit.runtime.query import Query
    from godwit.sources import Source

PLANE, ROUTE = ("tailnum", "year"), ("origin", "dest")
_IDLE_S = 2.0
_STALL_S = 60.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the demo."""

    work_dir: Path  # all files are written here
    executors: int = 3  # number of executor processes
    # days to stream, in all and per epoch
    days: int = 365
    days_per_epoch: int = 7
    key_groups: int = 96  # key groups of each operator
    kill: bool = True  # whether an executor is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Verdict on the demo."""

    comparisons: tuple[Comparison, ...]  # each result against the batch query
    checkpoint_problems: tuple[str, ...]  # problems that verification of the checkpoint found

    @property
    def ok(self) -> bool:
        """True if every result is exact and the checkpoint is undamaged."""
        return not self.checkpoint_problems and all(c.equal for c in self.comparisons)


def outcome_of(settings: Settings, comparisons: Sequence[Comparison]) -> Outcome:
    """Return the verdict of these comparisons, and of verification of the checkpoint."""
    report = verify(CheckpointStorage.open(settings.work_dir / "checkpoint"))
    problems = tuple(f"{f.file}: {f.problem}" for f in report.findings)
    return Outcome(comparisons=tuple(comparisons), checkpoint_problems=problems)


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """Run `work` on a new thread; return its future."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="godwit-demo-days")
    future = thread.submit(work)
    thread.shutdown(wait=False)
    return future


def load_days(days: int) -> Future[Days]:
    """Start loading the first `days` days of flights; raise if the archive is not installed."""
    archive = find_flights()
    return in_background(lambda: days_of(load_flights(archive), days))


def play(settings: Settings, show: Show, days: Future[Days], cluster: LocalCluster) -> Outcome:
    """Run the demo on a cluster of all executors except the last, which joins; return its verdict.

    `days`: the rows.
    """
    folder = settings.work_dir
    # Spark takes seconds to start: the days are written meanwhile.
    writing = in_background(lambda: write_days(days.result(), folder / "days"))
    show.say(f"Spark is starting: a master and {settings.executors - 1} executors")
    spark = cluster.session("godwit-demo")
    spark.sparkContext.setLogLevel("ERROR")
    files = writing.result()
    show.say(f"{len(files)} days of flights are in {folder / 'days'}")
    query, routes_now = _start_stream(settings, spark)
    try:
        _Script(
            settings,
            query=query,
            cluster=cluster,
            application=spark.sparkContext.applicationId,
            files=files,
            show=show,
        ).play()
    finally:
        query.stop()
    show.say("the stream has ended; comparing with a batch query over the same files")
    return outcome_of(settings, _compare_with_batch(settings, spark, routes_now))


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
    import pyarrow.dataset as ds  # noqa: PLC0415  it imports pandas, and the start is busy
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own habit

    folder = settings.work_dir
    rows = spark.read.schema(SPARK_COLUMNS).parquet(str(folder / "in"))
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

    def delivered(name: str) -> pa.Table:
        """Return all rows in the directory of a Parquet sink."""
        return ds.dataset(folder / "out" / name, partitioning="hive", format="parquet").to_table()

    return (
        compare("delays by airplane and year", delivered("by_plane"), planes, PLANE),
        compare("delays by route", delivered("by_route"), routes, ROUTE),
        compare("delays by route (in memory)", routes_now.table(), routes, ROUTE),
    )


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
        show: Show,
    ) -> None:
        self._settings, self._query, self._cluster = settings, query, cluster
        self._application, self._show = application, show
        step = settings.days_per_epoch
        self._unread_files = [files[i : i + step] for i in range(0, len(files), step)]
        self._num_steps = len(self._unread_files)
        self._rows_of = {path: pq.read_metadata(path).num_rows for path in files}
        self._rows_released = 0
        show.rows_in_all = sum(self._rows_of.values())
        show.stream_began()
        self._events: queue.Queue[events.Event] = queue.Queue()
        query.add_listener(self._events.put)
        self._quiet_since_s = time.monotonic()
        self._let_in_s = 0.0  # modification time of the last file
        self._joining = self._recovered = False
        self._unfinished_migrations: int | None = (
            None  # migrations under way; ``None`` before the first
        )
        self._killed: str | None = None

    def play(self) -> None:
        """Run until every row is committed and no key group is suspended."""
        self._release_all_but(2 / 3)  # the last executor should find rows that still come
        while self._unread_files or not self._is_dry():
            event = self._next_event()
            if event is not None:
                self._quiet_since_s = time.monotonic()
            if isinstance(event, events.MigrationFinished | events.MigrationCancelled):
                self._unfinished_migrations = (self._unfinished_migrations or 0) - 1
                if self._unfinished_migrations == 0:
                    self._show.mark("migration finished", event.at_s)
            if event is None or isinstance(event, events.EpochCommitted):
                self._mark_recovery(time.time() if event is None else event.at_s)
            self._join_when_due()
            self._migrate_when_due()
            self._kill_when_due()
            self._feed_held_back()

    def _next_event(self) -> events.Event | None:
        """Return and show the next event; ``None`` after a time-out.

        Raises if the query has ended.
        """
        try:
            event = self._events.get(timeout=0.25)
        except queue.Empty:
            if self._query.isActive:
                return None
            raise self._query.exception() or EpochFailedError(
                "The query of the demo ended before its input was read.",
                remedy=f"See the logs in {self._settings.work_dir / 'cluster'}.",
            ) from None
        self._show.add_event(event)
        if isinstance(event, events.EpochCommitted):
            figures = reversed(self._query.recentProgress)
            self._show.add_epoch(next(p for p in figures if p["epoch"] == event.epoch))
        return event

    def _release_all_but(self, share: float) -> None:
        """Move files to the source until at most `share` of all are left."""
        reserve = max(2, int(self._num_steps * share))
        while len(self._unread_files) > reserve:
            self._release_files()

    def _release_files(self) -> None:
        """Link the files of the next step into the source's directory, each younger than before."""
        for file in self._unread_files.pop(0):
            self._let_in_s = max(time.time(), self._let_in_s + 0.002)  # Spark knows milliseconds
            os.utime(file, (self._let_in_s, self._let_in_s))
            os.link(file, self._settings.work_dir / "in" / file.name)
            self._rows_released += self._rows_of[file]
        self._quiet_since_s = time.monotonic()

    def _feed_held_back(self) -> None:
        """Move held-back files to the source once all moved rows are processed.

        So rows arrive during the migration and the loss; waiting rows are processed without them.
        The last files wait for the end of both, so that the last epoch comes after them however
        long they took, unless rows are lost.
        """
        if not self._unread_files or not self._is_dry():
            return
        has_all = self._show.rows >= self._rows_released
        if len(self._unread_files) > 1 or self._is_finished() or not has_all:
            self._release_files()

    def _is_dry(self) -> bool:
        """Return whether all moved files are processed, or the stream stalls."""
        quiet_s = time.monotonic() - self._quiet_since_s
        if self._show.rows >= self._rows_released:
            return self._is_finished() or (bool(self._unread_files) and quiet_s > _IDLE_S)
        # Should rows be lost, the stream must still end, and the comparison say so.
        return quiet_s > _STALL_S and not self._query.status["isTriggerActive"]

    def _committed_share(self) -> float:
        """Return the share of all rows that are committed."""
        return self._show.rows / self._show.rows_in_all

    def _mark_recovery(self, at_s: float) -> None:
        """Add a label at the end of the recovery, which may be between two epochs."""
        if self._killed is None or self._recovered:
            return
        if self._is_calm() and self._killed not in self._query.executors:
            self._recovered = True
            self._show.mark("recovered", at_s)
            epoch = self._query.status["committedEpoch"]
            self._show.say(f"recovered: no key group waits (after epoch {epoch})")

    def _is_calm(self) -> bool:
        """Return whether no key group is suspended or has waiting rows."""
        status = self._query.status
        return not (status["keyGroupsWaiting"] or status["keyGroupsSuspended"])

    def _join_when_due(self) -> None:
        """Start the last executor, once the stream runs."""
        if self._joining or not self._show.run.points:
            return
        self._joining = True
        self._show.say("one more executor is starting")
        self._cluster.add_worker(wait=False)

    def _migrate_when_due(self) -> None:
        """Migrate key groups to the last executor after a quarter of the rows."""
        if self._unfinished_migrations is not None or self._committed_share() < 1 / 4:
            return
        idle = self._idle_executor()
        if idle is None:
            return
        self._release_all_but(1 / 8)
        self._show.say(
            f"moving a third of the key groups of each operator, live, to executor {idle}"
        )
        self._show.mark("migration started")
        plans = {
            name: third_to(assignment, idle)
            for name, assignment in self._query.placement.assignments.items()
        }
        self._unfinished_migrations = len(plans)
        for name, plan in plans.items():
            self._query.migrate(plan, component=name, strategy="live")

    def _idle_executor(self) -> str | None:
        """Return the name of an executor without key groups; ``None`` if there is none."""
        owners = {
            assignment.executor(key_group)
            for assignment in self._query.placement.assignments.values()
            for key_group in range(assignment.num_key_groups)
        }
        return next((name for name in self._query.executors if name not in owners), None)

    def _kill_when_due(self) -> None:
        """Kill an executor after the migration and half of the rows."""
        if not self._settings.kill or self._killed is not None or not self._has_moved():
            return
        if self._committed_share() < 0.55:
            return
        # The first one owns key groups from the beginning, so its loss is a loss of much state.
        victim = self._query.executors[0]
        pid = self._cluster.kill_executor(victim, self._application)
        self._killed = victim
        self._show.mark(f"executor {victim} killed")
        self._show.say(f"executor {victim} killed (SIGKILL to its process {pid})")

    def _has_moved(self) -> bool:
        """Return whether the migration has begun and ended."""
        return self._unfinished_migrations == 0

    def _is_finished(self) -> bool:
        """Return whether migration and recovery are over."""
        recovered = self._recovered or not self._settings.kill
        return self._has_moved() and recovered and self._is_calm()


def third_to(assignment: Assignment, executor: str) -> dict[int, str]:
    """Return moves of a third of all key groups to `executor`, taken evenly from the others."""
    count = assignment.num_key_groups // 3
    by_owner = sorted(
        (rank, key_group)
        for owner in assignment.executors
        if owner != executor
        for rank, key_group in enumerate(assignment.key_groups(owner).tolist())
    )
    return {key_group: executor for _, key_group in by_owner[:count]}

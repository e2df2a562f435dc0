"""A scenario on a real cluster: feed the stream by the clock, and write down what it did.

Without a controller and with one the same is done: the same cluster, flow, files and moments.
"""

from __future__ import annotations

import os
import queue
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

import godwit as gw
from godwit.cli.demo.comparison import Comparison, compare, newest_rows
from godwit.cli.demo.recording import Recording
from godwit.cli.demo.scenarios.workload import (
    COLUMNS,
    FILES_PER_S,
    KEY_GROUPS,
    ROW_MS,
    write_files,
)
from godwit.cluster.spark.platform.local_cluster import LocalCluster
from godwit.engine.lane.executor import current_executor
from godwit.model import events
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from godwit.cli.demo.scenarios.workload import Scenario
    from godwit.cli.demo.story import Audience
    from godwit.cluster.spark.query.query import Query
    from godwit.columns.python_values import KeyRows

__all__ = ["ScenarioRun", "ScenarioSettings", "play_scenario", "slow_rows"]

_SLOW = "slow-executor"
_STALL_S = 300.0
_FILES_PER_EPOCH = FILES_PER_S  # what comes in within a second, so that an epoch has a size


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSettings:
    """What is asked for.

    Attributes
    ----------
    work_dir
        Everything is written here.
    scenario
        What shifts.
    seconds
        For how long rows come in.
    seed
        Of the rows.
    """

    work_dir: Path
    scenario: Scenario
    seconds: float = 60.0
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class ScenarioRun:
    """What one run left behind; of each epoch one value in each list.

    Attributes
    ----------
    controlled
        Whether a controller was on.
    recording
        Its epochs, marks and events.
    imbalance
        The busiest executor's time per lane over the mean.
    executors
        How many there were.
    moved_bytes
        State that had been moved since the beginning.
    behind_rows
        Rows that had come in and were not committed.
    comparison
        Its results against a batch query over the same files.
    """

    controlled: bool
    recording: Recording
    imbalance: list[float] = field(default_factory=list)
    executors: list[int] = field(default_factory=list)
    moved_bytes: list[int] = field(default_factory=list)
    behind_rows: list[int] = field(default_factory=list)
    comparison: Comparison | None = None


def play_scenario(
    settings: ScenarioSettings, *, controlled: bool, audience: Audience
) -> ScenarioRun:
    """Run a scenario from start to end; whatever happens, no process is left behind."""
    scenario = settings.scenario
    folder = settings.work_dir / ("on" if controlled else "off")
    files = write_files(scenario, folder / "files", seconds=settings.seconds, seed=settings.seed)
    grows = controlled and scenario.most > scenario.executors
    workers = scenario.most if grows else scenario.executors
    audience.say(f"controller {'on' if controlled else 'off'}: Spark is starting")
    with LocalCluster(workers, work_dir=folder / "cluster", memory="512m") as cluster:
        spark = cluster.session("godwit-demo", {"spark.sql.shuffle.partitions": "2"})
        spark.sparkContext.setLogLevel("ERROR")
        query = _started(settings, spark, folder, workers, controlled=controlled)
        try:
            if grows:
                query.scale(scenario.executors).wait()
            feed = _Feed(settings, folder, query, files, controlled=controlled, audience=audience)
            feed.play()
        finally:
            query.stop()
        audience.say("the stream has ended; a batch query over the same files decides")
        feed.run.comparison = _compared(spark, folder)
    return feed.run


def _started(
    settings: ScenarioSettings, spark: SparkSession, folder: Path, workers: int, *, controlled: bool
) -> Query:
    (folder / "in").mkdir()
    flow = gw.Flow(settings.scenario.name, num_key_groups=KEY_GROUPS)
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", _FILES_PER_EPOCH)
    rows = flow.source("rows", reader.parquet(str(folder / "in")))
    totals = rows.key_by("k").process(
        partial(slow_rows, str(folder / _SLOW)),
        state=list,
        output="k int, n long, total long",
        name="totals",
    )
    flow.sink("totals", totals, gw.sinks.parquet(folder / "out"))
    return flow.start(
        checkpoint=folder / "checkpoint",
        executors=workers,
        executors_timeout_s=180.0,
        control=_control(settings.scenario) if controlled else None,
    )


def _control(scenario: Scenario) -> gw.Control:
    return gw.Control(
        period="3 seconds",
        respect="1 second",  # of the number of executors that the scenario begins with
        scaling=gw.utilisation(0.7, catch_up="20 seconds")
        if scenario.most > scenario.executors
        else None,
        least=scenario.executors,
        most=scenario.most,
    )


def slow_rows(
    slow_file: str, key: tuple[int], rows: KeyRows, state: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Count and sum up a key's rows, taking a set time for each.

    Parameters
    ----------
    slow_file
        Names the executor that is slow, if there is one, and how many times slower it is.
    key, rows, state
        As of any function for ``process``.
    """
    time.sleep(len(rows) * ROW_MS / 1e3 * _slowdown(slow_file))
    n, total = state or (0, 0)
    n, total = n + len(rows), total + sum(rows.column("v"))
    state[:] = [n, total]
    yield key[0], n, total


_looked: dict[str, tuple[float, float]] = {}
_LOOK_S = 0.2


def _slowdown(slow_file: str) -> float:
    """Say how many times slower this executor is, looking at the file now and then."""
    looked_s, factor = _looked.get(slow_file, (0.0, 1.0))
    now_s = time.monotonic()
    if now_s - looked_s >= _LOOK_S:
        try:
            name, told = Path(slow_file).read_text().split()
        except FileNotFoundError:
            name, told = "", "1"
        factor = float(told) if name == current_executor("") else 1.0
        _looked[slow_file] = (now_s, factor)
    return factor


class _Feed:
    """Lets the rows come in by the clock, and hears what becomes of them."""

    def __init__(
        self,
        settings: ScenarioSettings,
        folder: Path,
        query: Query,
        files: list[tuple[float, Path, int]],
        *,
        controlled: bool,
        audience: Audience,
    ) -> None:
        self._settings, self._folder, self._query = settings, folder, query
        self._audience = audience
        self._first, *self._files = files
        rows = sum(count for _, _, count in self._files)
        recording = Recording(started_s=time.time(), rows_in_all=rows)
        self.run = ScenarioRun(controlled=controlled, recording=recording)
        self._heard: queue.Queue[events.Event] = queue.Queue()
        self._released = self._moved_bytes = 0
        self._heard_s = time.monotonic()

    def play(self) -> None:
        """Return when every row is committed.

        Raises
        ------
        GodwitError
            If the query fails, or rows do not arrive.
        """
        self._query.add_listener(self._heard.put)
        self._warm_up()
        recording = self.run.recording
        marks = self._settings.scenario.marks(self._settings.seconds)
        coming = iter([*self._files, None])
        due = next(coming)
        recording.started_s = time.time()
        started_s = time.monotonic()
        while due is not None or recording.rows < recording.rows_in_all:
            passed_s = time.monotonic() - started_s
            while due is not None and due[0] <= passed_s:
                self._let_in(due[1])
                self._released += due[2]
                due = next(coming)
            while marks and marks[0][0] <= passed_s:
                self._shift(marks.pop(0)[1])
            try:
                self._hear(self._heard.get(timeout=0.05))
            except queue.Empty:
                self._check_alive()

    def _warm_up(self) -> None:
        """Have one epoch before the clock starts: Spark starts its Python processes in it."""
        self._let_in(self._first[1])
        while True:
            try:
                event = self._heard.get(timeout=0.05)
            except queue.Empty:
                self._check_alive()
                continue
            self._heard_s = time.monotonic()
            if isinstance(event, events.EpochCommitted) and event.rows_in:
                return

    def _let_in(self, file: Path) -> None:
        # Into place in one step: the source must not see half a file.
        os.link(file, self._folder / "in" / file.name)

    def _shift(self, what: str) -> None:
        self.run.recording.mark(what, time.time())
        self._audience.say(what)
        slowdown = self._settings.scenario.slowdown
        if slowdown > 1:
            file = self._folder / _SLOW
            hidden = file.with_suffix(".new")
            hidden.write_text(f"{self._query.executors[0]} {slowdown:g}")
            hidden.rename(file)

    def _hear(self, event: events.Event) -> None:
        self._heard_s = time.monotonic()
        recording = self.run.recording
        recording.told.append(event)
        if isinstance(event, events.KeyGroupsWarmed):
            self._moved_bytes += event.state_bytes
        if not isinstance(event, events.EpochCommitted):
            self._audience.event(event, recording)
            return
        made = next(p for p in reversed(self._query.recentProgress) if p["epoch"] == event.epoch)
        figures = recording.add_epoch(made, self._query.status, event.at_s)
        self.run.imbalance.append(imbalance(made["executors"]))
        self.run.executors.append(len(made["executors"]))
        self.run.moved_bytes.append(self._moved_bytes)
        self.run.behind_rows.append(self._released - recording.rows)
        self._audience.epoch(figures, recording)

    def _check_alive(self) -> None:
        stalled = time.monotonic() - self._heard_s > _STALL_S
        if self._query.isActive and not stalled:
            return
        raise self._query.exception() or EpochFailedError(
            "The stream of the scenario ended, or stood still, before its rows were in.",
            remedy=f"Look at the logs in {self._folder / 'cluster'}.",
        )


def imbalance(executors: Mapping[str, Mapping[str, Any]]) -> float:
    """Time of the busiest executor per lane over the mean; 1 where nobody was busy."""
    busy = [e["busyMs"] / max(e["lanes"], 1) for e in executors.values() if not e["draining"]]
    mean = sum(busy) / len(busy) if busy else 0.0
    return max(busy) / mean if mean > 0 else 1.0


def _compared(spark: SparkSession, folder: Path) -> Comparison:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own habit

    rows = spark.read.schema(COLUMNS).parquet(str(folder / "in"))
    batch = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total")).toArrow()
    delivered = ds.dataset(folder / "out", partitioning="hive", format="parquet").to_table()
    try:
        newest = newest_rows(delivered, ["k"])
    except ValueError as error:
        return Comparison(what="totals by key", rows=batch.num_rows, differences=(str(error),))
    return compare("totals by key", newest, batch, ["k"])

"""`godwit demo --scenario`: streams that shift, with the controller off and on.

*Workload*: how many rows of which keys come in, and which executor is slow, over time.  A row costs
a set time, in which its lane waits and computes nothing, so that more executors can be shown than
there are cores.  Everything is made from a seed: both runs get the same files at the same moments.

*Play*: feed the stream by the clock, and write down what it did.  Without a controller and with one
the same is done: the same cluster, flow, files and moments.
"""

from __future__ import annotations

import json
import os
import queue
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import godwit as gw
from godwit.cli.demo.display import LivePage, PlainLines
from godwit.cli.demo.figure import highest_shown, label_rows
from godwit.cli.demo.recording import Comparison, Recording, compare, newest_rows
from godwit.cluster.spark.platform.local_cluster import LocalCluster
from godwit.columns.hashing import hash_keys
from godwit.engine.lane.executor import current_executor
from godwit.model import events
from godwit.model.assignment import even_assignment
from godwit.model.errors import EpochFailedError
from godwit.model.events import DECISIONS
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from godwit.cli.demo.story import Audience
    from godwit.cluster.spark.query.query import Query
    from godwit.columns.python_values import KeyRows

__all__ = [
    "COLUMNS",
    "FILES_PER_S",
    "KEY_GROUPS",
    "ROW_MS",
    "SCENARIOS",
    "DemoScenario",
    "ScenarioRun",
    "ScenarioSettings",
    "figures_of",
    "play_both",
    "play_scenario",
    "scenario_figure",
    "slow_rows",
    "write_files",
]


COLUMNS: Final = "k int, v long"
KEY_GROUPS: Final = 64
FILES_PER_S: Final = 4
ROW_MS: Final = 1.0
"""Time that the function takes for a row, in milliseconds."""

_KEYS: Final = 2000
_HOT_KEYS: Final = 8
_HOT_SHARE: Final = 0.6
_OLDEST_S: Final = 1.6e9
_SCHEMA: Final = pa.schema([("k", pa.int32()), ("v", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScenario:
    """One way in which a stream shifts."""

    # what it is called, and what happens, in a sentence
    name: str
    story: str
    # executors at the beginning, and those that the controller may use at most
    executors: int
    most: int
    rows_per_s: int  # rows at rest; one executor can do 1,000 a second at most
    surge: float = 1.0  # factor of the rate in the middle third
    jumps: int = 0  # how often the hot keys jump; 0: there are none
    slowdown: float = 1.0  # how much slower the first executor becomes after a third of the time

    def rate(self, share: float) -> float:
        """Rows per second when `share` of the time is over."""
        return self.rows_per_s * (self.surge if 1 / 3 <= share < 2 / 3 else 1.0)

    def marks(self, seconds: float) -> list[tuple[float, str]]:
        """Give the moments at which something shifts, with what it is."""
        if self.surge > 1:
            return [
                (seconds / 3, f"{self.surge:g} times the rate"),
                (seconds * 2 / 3, "rate as before"),
            ]
        if self.jumps:
            every_s = seconds / self.jumps
            return [(n * every_s, "hot keys jump") for n in range(1, self.jumps)]
        return [(seconds / 3, f"one executor {self.slowdown:g} times slower")]


SCENARIOS: Final = {
    made.name: made
    for made in (
        DemoScenario(
            name="skew",
            story="Six rows of ten are of a few hot keys on one executor; every few seconds they "
            "become others, on another executor.",
            executors=4,
            most=4,
            rows_per_s=1400,
            jumps=3,
        ),
        DemoScenario(
            name="surge",
            story="The rate rises fourfold for a third of the time, and falls again.",
            executors=2,
            most=4,
            rows_per_s=600,
            surge=4.0,
        ),
        DemoScenario(
            name="straggler",
            story="After a third of the time one of the executors becomes three times slower.",
            executors=4,
            most=4,
            rows_per_s=1800,
            slowdown=3.0,
        ),
    )
}


def write_files(
    scenario: DemoScenario, directory: Path, *, seconds: float, seed: int
) -> list[tuple[float, Path, int]]:
    """Write everything that comes in.

    Returns for each file: when it comes in, in seconds from the start; its path; its rows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    keys = np.arange(_KEYS, dtype=np.int32)
    hot = _hot_keys(scenario, keys)
    files, number = [], 0
    for tick in range(round(seconds * FILES_PER_S)):
        at_s = tick / FILES_PER_S
        count = round(scenario.rate(at_s / seconds) / FILES_PER_S)
        chosen = rng.choice(keys, count)
        if hot:
            now = hot[min(int(at_s / seconds * scenario.jumps), scenario.jumps - 1)]
            is_hot = rng.random(count) < _HOT_SHARE
            chosen[is_hot] = rng.choice(now, int(is_hot.sum()))
        values = np.arange(number, number + count, dtype=np.int64)
        path = directory / f"{tick:06d}.parquet"
        pq.write_table(pa.table([chosen, values], schema=_SCHEMA), path)
        # Spark orders files by their time of modification.
        os.utime(path, (_OLDEST_S + tick, _OLDEST_S + tick))
        files.append((at_s, path, count))
        number += count
    return files


def _hot_keys(
    scenario: DemoScenario, keys: npt.NDArray[np.int32]
) -> Sequence[npt.NDArray[np.int32]]:
    """Choose for each jump keys of one executor, each in a key group of its own."""
    if not scenario.jumps:
        return ()
    names = [str(n) for n in range(scenario.executors)]
    first = even_assignment(KEY_GROUPS, names, [1] * len(names))
    key_group = hash_keys(pa.record_batch({"k": pa.array(keys)})) % KEY_GROUPS
    one_each = {int(g): key for key, g in zip(keys[::-1], key_group[::-1], strict=True)}
    return [
        np.array([one_each[g] for g in first.key_groups(names[n % len(names)])[:_HOT_KEYS]])
        for n in range(scenario.jumps)
    ]


_SLOW = "slow-executor"
_STALL_S = 300.0
_FILES_PER_EPOCH = FILES_PER_S  # what comes in within a second, so that an epoch has a size


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSettings:
    """Settings of a scenario's run."""

    work_dir: Path  # everything is written here
    scenario: DemoScenario  # what shifts
    seconds: float = 60.0  # for how long rows come in
    seed: int = 1  # of the rows


@dataclass(slots=True, kw_only=True)
class ScenarioRun:
    """Record of one run; of each epoch one value in each list."""

    controlled: bool  # whether a controller was on
    recording: Recording  # its epochs, marks and events
    # the busiest executor's time per lane over the mean
    imbalance: list[float] = field(default_factory=list)
    executors: list[int] = field(default_factory=list)  # how many there were
    # state that had been moved since the beginning
    moved_bytes: list[int] = field(default_factory=list)
    # rows that had come in and were not committed
    behind_rows: list[int] = field(default_factory=list)
    comparison: Comparison | None = None  # its results against a batch query over the same files


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
        sizing=gw.Sizing(executors_timeout_s=180.0),
        control=_control(settings.scenario) if controlled else None,
    )


def _control(scenario: DemoScenario) -> gw.Control:
    return gw.Control(
        period="3 seconds",
        cadence=gw.Cadence(
            respect="1 second"
        ),  # of the number of executors that the scenario begins with
        scaling=gw.utilisation(0.7, catch_up="20 seconds")
        if scenario.most > scenario.executors
        else None,
        min_executors=scenario.executors,
        max_executors=scenario.most,
    )


def slow_rows(
    slow_file: str, key: tuple[int], rows: KeyRows, state: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Count and sum up a key's rows, taking a set time for each.

    `slow_file`: names the executor that is slow, if there is one, and how many times slower it is.
    `key`, `rows`, `state`: as of any function for ``process``.
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
            name, slowdown = Path(slow_file).read_text().split()
        except FileNotFoundError:
            name, slowdown = "", "1"
        factor = float(slowdown) if name == current_executor("") else 1.0
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

        Raises `GodwitError` if the query fails, or rows do not arrive.
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
        progress = next(
            p for p in reversed(self._query.recentProgress) if p["epoch"] == event.epoch
        )
        figures = recording.add_epoch(progress, self._query.status, event.at_s)
        self.run.imbalance.append(imbalance(progress["executors"]))
        self.run.executors.append(len(progress["executors"]))
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


_RUNS = {"off": (False,), "on": (True,), "both": (False, True)}
_SHOWN = 10
_WIDE = 120


def play_both(args: argparse.Namespace, work_dir: Path, console: Console) -> int:
    """Play a scenario as it is asked for, tell what came of it, and return the exit status."""
    settings = ScenarioSettings(
        work_dir=work_dir, scenario=SCENARIOS[args.scenario], seconds=args.seconds
    )
    console.print(Text(f"{settings.scenario.name}: {settings.scenario.story}"), soft_wrap=True)
    runs = []
    for controlled in _RUNS[args.controller]:
        live = console.is_terminal and not args.plain
        with LivePage(console) if live else PlainLines(console) as audience:
            runs.append(play_scenario(settings, controlled=controlled, audience=audience))
    picture = work_dir / "scenario.png"
    scenario_figure(settings.scenario, runs).savefig(picture, dpi=150)
    if args.json is not None:
        args.json.write_text(json.dumps(_measured(settings, runs), indent=1) + "\n")
    _tell(console, runs)
    console.print(Text(f"picture: {picture}"), soft_wrap=True)
    return 0 if all(run.comparison and run.comparison.equal for run in runs) else 1


def figures_of(run: ScenarioRun) -> dict[str, float]:
    """Sum a run up: times in seconds."""
    epochs = run.recording.epochs
    took_s = [epoch.duration_ms / 1e3 for epoch in epochs] or [0.0]
    return {
        "rows_per_s": run.recording.rows / epochs[-1].at_s if epochs else 0.0,
        "epoch_s_median": float(np.median(took_s)),
        "epoch_s_99th": float(np.quantile(took_s, 0.99)),
        "rows_behind_at_most": max(run.behind_rows, default=0),
        "busiest_over_mean_median": float(np.median(run.imbalance or [1.0])),
        "executors_at_most": max(run.executors, default=0),
        "moved_bytes": run.moved_bytes[-1] if run.moved_bytes else 0,
        "decisions": sum(type(e).__name__ in DECISIONS for e in run.recording.told),
    }


def _measured(settings: ScenarioSettings, runs: Sequence[ScenarioRun]) -> dict[str, Any]:
    return {
        "scenario": asdict(settings.scenario),
        "seconds": settings.seconds,
        "runs": [
            {
                "controlled": run.controlled,
                "figures": figures_of(run),
                "equal": run.comparison is not None and run.comparison.equal,
                "imbalance": run.imbalance,
                "executors": run.executors,
                "moved_bytes": run.moved_bytes,
                "behind_rows": run.behind_rows,
                **run.recording.to_dict(),
            }
            for run in runs
        ],
    }


def _tell(console: Console, runs: Sequence[ScenarioRun]) -> None:
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("controller")
    for column in (
        "rows/s",
        "epoch: median",
        "99th percentile",
        "rows behind, at most",
        "busiest / mean",
        "executors",
        "state moved",
        "decisions",
    ):
        table.add_column(column, justify="right")
    for run in runs:
        figures = figures_of(run)
        table.add_row(
            "on" if run.controlled else "off",
            f"{figures['rows_per_s']:,.0f}",
            f"{figures['epoch_s_median']:.2f} s",
            f"{figures['epoch_s_99th']:.2f} s",
            f"{figures['rows_behind_at_most']:,.0f}",
            f"{figures['busiest_over_mean_median']:.2f}",
            f"{figures['executors_at_most']:.0f}",
            human_bytes(figures["moved_bytes"]),
            f"{figures['decisions']:.0f}",
        )
    console.print(table)
    for run in runs:
        name = f"controller {'on' if run.controlled else 'off'}"
        comparison = run.comparison
        if comparison is None or comparison.equal:
            rows = 0 if comparison is None else comparison.rows
            console.print(f"{name}: equal to the batch query, all {rows:,} rows", soft_wrap=True)
            continue
        differences = counted(len(comparison.differences), "difference")
        console.print(Text(f"{name}: {differences} from the batch query"), soft_wrap=True)
        for difference in comparison.differences[:_SHOWN]:
            console.print(Text(f"  {difference}"), soft_wrap=True)


_RUN_COLOURS = {False: "#e07a5f", True: "#2a6f97"}


def scenario_figure(scenario: DemoScenario, runs: Sequence[ScenarioRun]) -> Figure:
    """Draw epoch time, rows behind, imbalance, executors and bytes moved over time."""
    figure = Figure(figsize=(10, 11), layout="constrained")
    rows = figure.subplots(5, 1, sharex=True)
    for run in runs:
        epochs = run.recording.epochs
        at_s = [epoch.at_s for epoch in epochs]
        label = f"controller {'on' if run.controlled else 'off'}"
        for axes, values in zip(
            rows,
            (
                [epoch.duration_ms / 1e3 for epoch in epochs],
                run.behind_rows,
                run.imbalance,
                run.executors,
                [moved / 2**20 for moved in run.moved_bytes],
            ),
            strict=True,
        ):
            axes.plot(at_s, values, color=_RUN_COLOURS[run.controlled], label=label, linewidth=1.3,
                      marker=".", markersize=3)  # fmt: skip
    for axes, name in zip(
        rows,
        ("epoch time (s)", "rows behind", "busiest / mean", "executors", "MiB of state moved"),
        strict=True,
    ):
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        for mark in runs[0].recording.marks:
            axes.axvline(mark.at_s, color="#6c757d", linestyle="--", linewidth=0.8)
    times = [[epoch.duration_ms / 1e3 for epoch in run.recording.epochs] for run in runs]
    rows[0].set_ylim(0, max(map(highest_shown, times)) * 1.2)
    marks = runs[0].recording.marks
    end = max([*(epoch.at_s for run in runs for epoch in run.recording.epochs), 1e-3])
    for (row, is_left), mark in zip(
        label_rows([(mark.at_s / end, mark.label) for mark in marks]), marks, strict=True
    ):
        rows[0].annotate(mark.label, (mark.at_s, 0.97 - 0.12 * row),
                         xycoords=("data", "axes fraction"), textcoords="offset points",
                         xytext=(-3 if is_left else 3, 0), fontsize=8, color="#6c757d",
                         horizontalalignment="right" if is_left else "left",
                         verticalalignment="top")  # fmt: skip
    rows[0].set_title(f"{scenario.name}: {scenario.story}", fontsize=10, wrap=True)
    rows[0].legend(fontsize=8)
    rows[-1].set_xlabel("seconds since the stream began")
    return figure

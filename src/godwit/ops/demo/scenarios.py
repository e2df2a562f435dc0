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
import time
from collections import deque
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw
from godwit.cli.arguments import save_picture
from godwit.cli.console import figures_table, tell, wide_console
from godwit.columns.hashing import hash_keys
from godwit.engine.lane.executor import current_executor
from godwit.model import events
from godwit.model.assignment import even_assignment
from godwit.model.events import DECISIONS
from godwit.model.wording import human_bytes
from godwit.ops.demo.recording import (
    Audience,
    Comparison,
    QueryRecorder,
    ScenarioRun,
    audience_for,
    compare_files,
    tell_comparison,
)
from godwit.spark.platform.local_cluster import LocalCluster

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession
    from rich.console import Console

    from godwit.columns.python_values import KeyRows
    from godwit.runtime.query import Query

KEY_GROUPS: Final = 64
_COLUMNS: Final = "k int, v long"
_FILES_PER_S: Final = 4
_ROW_MS: Final = 1.0  # time that the function takes for a row
_KEYS: Final = 2000
_HOT_KEYS: Final = 8
_HOT_SHARE: Final = 0.6
_OLDEST_S: Final = 1.6e9
_SCHEMA: Final = pa.schema([("k", pa.int32()), ("v", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScenario:
    """A stream with one kind of shift."""

    # what it is called, and what happens, in a sentence
    name: str
    story: str
    # executors at the beginning, and those that the controller may use at most
    executors: int
    most: int
    rows_per_s: int  # rows at rest; one executor can do 1,000 a second at most
    surge: float = 1.0  # factor of the rate in the middle half
    jumps: int = 0  # how often the hot keys jump; 0: there are none
    slowdown: float = 1.0  # how much slower the first executor becomes after a third of the time

    def rate(self, share: float) -> float:
        """Return the arrival rate, in rows per second, after a share (0 to 1) of the run's time."""
        return self.rows_per_s * (self.surge if 1 / 4 <= share < 3 / 4 else 1.0)

    def marks(self, seconds: float) -> list[tuple[float, str]]:
        """Return the times at which the load shifts in a run of `seconds`, with labels."""
        if self.surge > 1:
            return [
                (seconds / 4, f"{self.surge:g} times the rate"),
                (seconds * 3 / 4, "rate as before"),
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
            rows_per_s=2000,
            jumps=3,
        ),
        DemoScenario(
            name="surge",
            story="The rate rises fourfold for half of the time, and falls again.",
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
    """Write the input files of a run.

    Returns for each file: its arrival, in seconds from the start; its path; its number of rows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    keys = np.arange(_KEYS, dtype=np.int32)
    hot = _hot_keys(scenario, keys)
    files, number = [], 0
    for tick in range(round(seconds * _FILES_PER_S)):
        at_s = tick / _FILES_PER_S
        count = round(scenario.rate(at_s / seconds) / _FILES_PER_S)
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
    """Return the hot keys after each shift: keys of one executor, no two of one key group."""
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


_SEED: Final = 1  # of the rows
_STALL_S: Final = 300.0
_SLOW: Final = "slow-executor"


def _play(
    scenario: DemoScenario, seconds: float, folder: Path, audience: Audience, *, controlled: bool
) -> ScenarioRun:
    """Run a scenario, with the controller if `controlled`; its processes end in any case."""
    files = write_files(scenario, folder / "files", seconds=seconds, seed=_SEED)
    grows = controlled and scenario.most > scenario.executors
    workers = scenario.most if grows else scenario.executors
    audience.say(f"controller {'on' if controlled else 'off'}: Spark is starting")
    with LocalCluster(workers, work_dir=folder / "cluster", memory="512m") as cluster:
        spark = cluster.session("godwit-demo", {"spark.sql.shuffle.partitions": "2"})
        spark.sparkContext.setLogLevel("ERROR")
        query = _start_query(scenario, spark, folder, workers, controlled=controlled)
        rows = sum(count for _, _, count in files[1:])
        recorder = QueryRecorder(query, folder, audience, rows, max_silence_s=_STALL_S)
        run = ScenarioRun(controlled=controlled, recording=recorder.recording)
        try:
            if grows:
                query.scale(scenario.executors).wait()
            _warm_up(recorder, files[0][1])
            shift = partial(_slow_down, query, scenario, folder)
            _feed(run, recorder, files[1:], scenario.marks(seconds), shift)
        finally:
            query.stop()
        audience.say("the stream has ended; a batch query over the same files decides")
        run.comparison = _compare_with_batch(spark, folder)
    return run


def _start_query(
    scenario: DemoScenario, spark: SparkSession, folder: Path, workers: int, *, controlled: bool
) -> Query:
    """Start the query of a scenario (see `_play`), with an empty input directory."""
    (folder / "in").mkdir()
    flow = gw.Flow(scenario.name, num_key_groups=KEY_GROUPS)
    reader = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", _FILES_PER_S)
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
        control=_control(scenario) if controlled else None,
    )


def _control(scenario: DemoScenario) -> gw.Control:
    """Return controller settings within the scenario's executors."""
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
    """Count and sum a key's rows, and spend a set time on each; a user's function of ``process``.

    `slow_file`: file that names the executor that is slow, if any, and its factor. `key`, `rows`,
    `state`: as of any function for ``process``.
    """
    time.sleep(len(rows) * _ROW_MS / 1e3 * _slowdown(slow_file))
    n, total = state or (0, 0)
    n, total = n + len(rows), total + sum(rows.column("v"))
    state[:] = [n, total]
    yield key[0], n, total


_looked: dict[str, tuple[float, float]] = {}
_LOOK_S = 0.2


def _slowdown(slow_file: str) -> float:
    """Return the slow-down factor of this executor, read from a file every now and then."""
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


def _warm_up(recorder: QueryRecorder, file: Path) -> None:
    """Run a first epoch before the clock starts, which starts Python workers."""
    recorder.let_in(file)
    while True:
        event = recorder.next_event(0.05, record=False)
        if isinstance(event, events.EpochCommitted) and event.rows_in:
            return


def _slow_down(query: Query, scenario: DemoScenario, folder: Path) -> None:
    """Write the name of the executor that is slow from now on, if the scenario has one."""
    if scenario.slowdown > 1:
        file = folder / _SLOW
        hidden = file.with_suffix(".new")
        hidden.write_text(f"{query.executors[0]} {scenario.slowdown:g}")
        hidden.rename(file)


def _feed(
    run: ScenarioRun,
    recorder: QueryRecorder,
    files: list[tuple[float, Path, int]],
    marks: list[tuple[float, str]],
    shift: Callable[[], None],
) -> None:
    """Feed rows by the clock, and record epochs until all rows are committed.

    `shift`: called at each of the times in `marks`.
    """
    recording = recorder.recording
    released = moved_bytes = 0
    waiting: deque[tuple[int, int, float]] = deque()  # rows up to a file's end, its rows, its time
    recording.started_s = time.time()
    started_s = time.monotonic()
    while files or recording.rows < recording.rows_in_all:
        passed_s = time.monotonic() - started_s
        while files and files[0][0] <= passed_s:
            _, file, rows = files.pop(0)
            recorder.let_in(file)
            released += rows
            waiting.append((released, rows, time.time()))
        while marks and marks[0][0] <= passed_s:
            recorder.mark_now(marks.pop(0)[1])
            shift()
        event = recorder.next_event(0.05)
        if isinstance(event, events.KeyGroupsWarmed):
            moved_bytes += event.state_bytes
        if isinstance(event, events.EpochCommitted):
            executors = recorder.progress["executors"]
            run.imbalance.append(imbalance(executors))
            run.executors.append(len(executors))
            run.moved_bytes.append(moved_bytes)
            run.behind_rows.append(released - recording.rows)
            # Files are taken whole, in their order.
            while waiting and waiting[0][0] <= recording.rows:
                _, rows, came_s = waiting.popleft()
                run.delays.append((rows, max(0.0, event.at_s - came_s)))


def imbalance(executors: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the busiest executor's time per lane over the mean; 1 if none was busy."""
    busy = [e["busyMs"] / max(e["lanes"], 1) for e in executors.values() if not e["draining"]]
    mean = sum(busy) / len(busy) if busy else 0.0
    return max(busy) / mean if mean > 0 else 1.0


def _compare_with_batch(spark: SparkSession, folder: Path) -> Comparison:
    """Compare the sink's rows with the result of a batch query over the same files."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own habit

    rows = spark.read.schema(_COLUMNS).parquet(str(folder / "in"))
    batch = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total")).toArrow()
    return compare_files("totals by key", folder / "out", batch, ["k"])


_RUNS = {"off": (False,), "on": (True,), "both": (False, True)}


def play_both(args: argparse.Namespace, work_dir: Path, console: Console) -> int:
    """Run a scenario with and without controller, and print figures; return the exit status."""
    scenario = SCENARIOS[args.scenario]
    tell(console, f"{scenario.name}: {scenario.story}")
    runs = []
    for controlled in _RUNS[args.controller]:
        folder = work_dir / ("on" if controlled else "off")
        with audience_for(console, plain=args.plain) as audience:
            runs.append(_play(scenario, args.seconds, folder, audience, controlled=controlled))
    picture = work_dir / "scenario.png"
    title = f"{scenario.name}: {scenario.story}"
    save_picture(
        lambda plots: plots.scenario_figure(runs, title=title), picture, "godwit.ops.plots"
    )
    if args.json is not None:
        measured = {
            "scenario": asdict(scenario),
            "seconds": args.seconds,
            "runs": [_measured(run) for run in runs],
        }
        args.json.write_text(json.dumps(measured, indent=1) + "\n")
    _tell(runs)
    tell(console, f"picture: {picture}")
    return 0 if all(run.comparison and run.comparison.equal for run in runs) else 1


def _figures(run: ScenarioRun) -> dict[str, float]:
    """Return the figures of a run by name, such as ``rows_per_s``; times in seconds."""
    epochs = run.recording.epochs
    took_s = [epoch.duration_ms / 1e3 for epoch in epochs] or [0.0]
    # From rows' arrival to their commit: all rows of a file came at once.
    rows, delay_s = np.array(sorted(run.delays or [(1, 0.0)], key=itemgetter(1))).T
    through = np.searchsorted(np.cumsum(rows), 0.99 * rows.sum() - 1e-9)
    return {
        "rows_per_s": run.recording.rows / epochs[-1].at_s if epochs else 0.0,
        "epoch_s_median": float(np.median(took_s)),
        "epoch_s_99th": float(np.quantile(took_s, 0.99)),
        "delay_s_mean": float(np.average(delay_s, weights=rows)),
        "delay_s_99th": float(delay_s[through]),
        "rows_behind_at_most": max(run.behind_rows, default=0),
        "busiest_over_mean_median": float(np.median(run.imbalance or [1.0])),
        "executors_at_most": max(run.executors, default=0),
        "moved_bytes": run.moved_bytes[-1] if run.moved_bytes else 0,
        "decisions": sum(type(e).__name__ in DECISIONS for e in run.recording.log),
    }


def _measured(run: ScenarioRun) -> dict[str, Any]:
    """Return all measurements as plain values for JSON."""
    return {
        "controlled": run.controlled,
        "figures": _figures(run),
        "equal": run.comparison is not None and run.comparison.equal,
        "imbalance": run.imbalance,
        "executors": run.executors,
        "moved_bytes": run.moved_bytes,
        "behind_rows": run.behind_rows,
        **run.recording.to_dict(),
    }


def _tell(runs: Sequence[ScenarioRun]) -> None:
    """Print a table of the runs' figures, with and without controller."""
    console = wide_console(140)
    head = (
        *("controller", "rows/s", "delay: mean", "99th percentile"),
        *("epoch: median", "99th percentile", "rows behind, at most"),
        *("busiest / mean", "executors", "state moved", "decisions"),
    )
    rows = []
    for run in runs:
        figures = _figures(run)
        rows.append(
            (
                "on" if run.controlled else "off",
                f"{figures['rows_per_s']:,.0f}",
                f"{figures['delay_s_mean']:.2f} s",
                f"{figures['delay_s_99th']:.2f} s",
                f"{figures['epoch_s_median']:.2f} s",
                f"{figures['epoch_s_99th']:.2f} s",
                f"{figures['rows_behind_at_most']:,.0f}",
                f"{figures['busiest_over_mean_median']:.2f}",
                f"{figures['executors_at_most']:.0f}",
                human_bytes(figures["moved_bytes"]),
                f"{figures['decisions']:.0f}",
            )
        )
    console.print(figures_table(head, rows))
    for run in runs:
        if run.comparison is not None:
            name = f"controller {'on' if run.controlled else 'off'}"
            tell_comparison(console, name, run.comparison)

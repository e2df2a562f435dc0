"""State that moves: two executors, four, and two again, under load; copies from either side.

A row that `scale` emits waits for 40 µs in its lane and computes nothing there, so that four
executors can be shown on two cores; state, its copies and executors that start are what they are.

Beside it what Spark offers: to stop the query, repartition its state (4 to 8 partitions, as in
`benchmarks.streaming.migration`) and start it again, once; scaling out and in again takes two.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.control.figure import Figure
from benchmarks.streaming import migration
from benchmarks.streaming.inputs import held_keys
from benchmarks.streaming.own_process import in_a_process_of_its_own, until_epoch
from benchmarks.streaming.programs import stream

import godwit as gw
from godwit.ops.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["copies", "scale"]

_TOUCHED, _EVERY, _STEADY = 100_000, "3 seconds", 12
_ROW_S = 40e-6


def scale(
    keys: int = 4_000_000, inputs: Path = Path("artifacts/inputs"), *, native: bool = True
) -> list[Figure]:
    """Measure the slowest epoch while executors come and go, and native Spark's silence."""
    source = held_keys(inputs, held=keys, touched=_TOUCHED, epochs=150).absolute()
    preload = -(-keys // 1_000_000)
    made = _live(source, preload)
    figures = [
        Figure(
            what=f"{name}: slowest epoch / median before",
            value=max(took) / made["before_s"],
            target=1.5,
            good="at most",
        )
        for name, took in (("2 to 4 executors", made["out"]), ("4 to 2 executors", made["in"]))
    ]
    figures += [
        Figure(what="median epoch before, ms", value=1e3 * made["before_s"]),
        Figure(what="2 to 4 executors: seconds", value=made["out_s"]),
        Figure(what="2 to 4 executors: median epoch / median before",
               value=median(made["out"]) / made["before_s"]),
        Figure(what="4 to 2 executors: seconds", value=made["in_s"]),
        Figure(what="4 to 2 executors: median epoch / median before",
               value=median(made["in"]) / made["before_s"]),
    ]  # fmt: skip
    if native:
        silent = in_a_process_of_its_own("migration", "offline", source, preload)
        figures += [
            Figure(what="native, stopped, repartitioned, restarted: seconds without output",
                   value=silent["silent_s"]),
            Figure(what="native: seconds without output / slowest epoch while scaling",
                   value=silent["silent_s"] / max(made["out"] + made["in"])),
        ]  # fmt: skip
    return figures


def copies(keys: int = 4_000_000, inputs: Path = Path("artifacts/inputs")) -> list[Figure]:
    """Move a third of the state to an idle executor, its copies from one side or the other."""
    source = held_keys(inputs, held=keys, touched=200_000, epochs=60).absolute()
    figures = []
    for setting in ("checkpoint", "peers", "quicker"):
        work = Path(tempfile.mkdtemp(prefix="godwit-copies-"))
        try:
            made = migration.live(source, -(-keys // 1_000_000), work, copies_from=setting)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(setting, json.dumps(made), flush=True)
        rate = made["warmed_bytes"] / max(made["warmed_ms"], 1) / 1e3
        sent = made["peer_bytes"] / max(made["warmed_bytes"], 1)
        figures += [
            Figure(what=f"{setting}: MB of state a second, from order to copy", value=rate),
            Figure(what=f"{setting}: share that peers sent", value=sent),
            Figure(what=f"{setting}: seconds in all", value=made["took_s"]),
            Figure(
                what=f"{setting}: median epoch meanwhile / before",
                value=made["ratio"],
                target=1.2,
                good="at most",
            ),
        ]
    return figures


def _taking_time() -> Callable[[Any], Any]:
    """Make a map that takes a set time for each row, and leaves none.

    The epochs that fill the state are spared.  A sink that wants no rows would spare them all.
    """

    def wait(rows: Any) -> Any:  # nested, so that executors get it by value
        time.sleep(_ROW_S * len(rows) if len(rows) <= _TOUCHED else 0.0)
        return rows.slice(0, 0)

    return wait


def _live(source: Path, preload: int) -> dict[str, Any]:
    work = Path(tempfile.mkdtemp(prefix="godwit-scale-"))
    try:
        with LocalCluster(workers=4, memory="1g", work_dir=work / "cluster") as cluster:
            spark = cluster.session("scale", {"spark.sql.files.maxPartitionBytes": "8m"})
            spark.sparkContext.setLogLevel("OFF")
            flow = gw.Flow("scale")
            rows = flow.source("rows", stream(spark, str(source)))
            sums = rows.key_by("key").compute(name="sums", n=gw.count(), s=gw.sum("v"))
            flow.sink("nothing", sums.map(_taking_time()), gw.sinks.memory())
            query = flow.start(
                checkpoint=work / "checkpoint",
                executors=4,
                sizing=gw.Sizing(executors_timeout_s=180),
                trigger=gw.types.Trigger(processingTime=_EVERY),
            )
            until_epoch(query, preload + 2)
            query.scale(2).wait(120)
            began = query.recentProgress[-1]["epoch"]
            until_epoch(query, began + _STEADY)
            took = {p["epoch"]: p["durationMs"]["epoch"] / 1e3 for p in query.recentProgress}
            made: dict[str, Any] = {
                "before_s": median(s for e, s in took.items() if e > began + _STEADY // 3)
            }
            for name, number in (("out", 4), ("in", 2)):
                first, began_s = query.recentProgress[-1]["epoch"], time.perf_counter()
                query.scale(number).wait(150)
                made[f"{name}_s"] = time.perf_counter() - began_s
                until_epoch(query, query.recentProgress[-1]["epoch"] + 3)
                made[name] = [
                    p["durationMs"]["epoch"] / 1e3
                    for p in query.recentProgress
                    if p["epoch"] > first
                ]
            query.stop()
            print(json.dumps(made))
            return made
    finally:
        shutil.rmtree(work, ignore_errors=True)

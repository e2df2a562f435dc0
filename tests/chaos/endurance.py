"""`python -m tests.chaos.endurance`: thousands of small epochs, and what every process holds then.

Windows, a function with timers and a join run over a source that never ends, on executors of a
local cluster; key groups migrate every hundred epochs.  At some epochs it prints the descriptors,
threads and memory of the driver, its JVM, the executors and their Python processes, and the files
of the checkpoint.  All of them should be the same at the end as in the middle.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

import godwit as gw
from godwit.ops.local_cluster import LocalCluster, children_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS, ROWS, NUM_KEY_GROUPS = 40, 60, 16
MIGRATE_EVERY = 100
Figures = dict[str, dict[str, float]]


def remember(key: tuple[int], rows: Any, seen: dict[str, int]) -> None:
    """Keep a bounded state, and set a timer for each row."""
    for row in rows:
        seen[str(row.v % 7)] = seen.get(str(row.v % 7), 0) + 1
        rows.timers.set(row.at + timedelta(seconds=5))


def tell(key: tuple[int], timer: Any, seen: dict[str, int]) -> Any:
    """Emit what is known when a timer is due."""
    yield key[0], sum(seen.values())


def endurance_flow(spark: SparkSession) -> gw.Flow:
    """Build the flow; a second of event time passes in every micro-batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    frame = source.option("numPartitions", 2).option("advanceMillisPerBatch", 1000).load()
    columns = frame.select(
        (F.col("value") % KEYS).cast("int").alias("k"),
        F.col("timestamp").alias("at"),
        F.col("value").alias("v"),
    )
    flow = gw.Flow("endurance", num_key_groups=NUM_KEY_GROUPS)
    rows = flow.source("rows", columns, event_time="at", slack="2 seconds", max_ahead="36500 days")
    keyed = rows.key_by("k")
    windows = keyed.window(gw.hopping("10 seconds", every="5 seconds"), name="windows")
    timers = keyed.process(
        remember,
        name="timers",
        state=dict,
        output="k int, n long",
        timers=gw.types.OnTimer(tell, clock="event"),
    )
    pairs = keyed.join(
        rows.key_by("k"), between=("0 seconds", "1 second"), suffix="_r", name="pairs"
    )
    flow.sink("windows", windows.compute(n=gw.count(), total=gw.sum("v")), gw.sinks.noop())
    flow.sink("timers", timers, gw.sinks.noop())
    flow.sink("pairs", pairs, gw.sinks.noop())
    return flow


def figures_of(pids: list[int]) -> dict[str, float]:
    """Descriptors, threads and resident megabytes of some processes together."""
    found = {"processes": 0.0, "descriptors": 0.0, "threads": 0.0, "rss_mb": 0.0}
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            descriptors = len([*Path(f"/proc/{pid}/fd").iterdir()])
        except OSError:  # it has just ended
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        found["processes"] += 1
        found["descriptors"] += descriptors
        found["threads"] += int(fields["Threads"])
        found["rss_mb"] += int(fields["VmRSS"].split()[0]) / 1024
    return {name: round(value, 1) for name, value in found.items()}


def below(pid: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    return [each for child in children_of(pid) for each in (child, *below(child))]


def sample(cluster: LocalCluster, spark: SparkSession, checkpoint: Path) -> Figures:
    """Look at every process, and at the checkpoint."""
    gc.collect()
    jvm: Any = spark.sparkContext._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    executors = [*cluster.executor_pids(spark.sparkContext.applicationId).values()]
    driver_jvm = figures_of([jvm.java.lang.ProcessHandle.current().pid()])
    driver_jvm["heap_mb"] = round((runtime.totalMemory() - runtime.freeMemory()) / 2**20, 1)
    sizes: dict[Path, int] = {}
    for path in checkpoint.rglob("*"):
        with suppress(FileNotFoundError):  # it has just been collected, or put in its place
            sizes |= {path: path.stat().st_size} if path.is_file() else {}
    of_spark = [path for path in sizes if "spark" in path.relative_to(checkpoint).parts[:1]]
    return {
        "driver": {**figures_of([os.getpid()]), "objects": len(gc.get_objects())},
        "driver_jvm": driver_jvm,
        "executors": figures_of(executors),
        "python": figures_of([pid for executor in executors for pid in below(executor)]),
        "checkpoint": {
            "files": len(sizes) - len(of_spark),
            "spark_files": len(of_spark),
            "mb": round(sum(sizes.values()) / 2**20, 2),
        },
    }


def say(text: str) -> None:
    """Print at once, for whoever follows a long run."""
    print(text, flush=True)  # noqa: T201  it is a command


def endure(epochs: int, seconds: float, directory: Path) -> list[tuple[int, Figures]]:
    """Let the flow run for so many epochs, or so long; return what was seen at which epoch."""
    deadline, seen = time.monotonic() + seconds, []
    marks = [epochs * tenth // 10 for tenth in range(1, 11)]
    with LocalCluster(workers=2, memory="512m", work_dir=directory / "cluster") as cluster:
        spark = cluster.session("endurance", {"spark.driver.memory": "768m"})
        spark.sparkContext.setLogLevel("ERROR")
        query = endurance_flow(spark).start(checkpoint=directory / "ck", executors=2, name="long")
        began, asked, migration = time.monotonic(), 0, None
        while marks and time.monotonic() < deadline and query.isActive:
            time.sleep(0.05)
            epoch = query._run.log.latest_epoch
            if epoch >= asked + MIGRATE_EVERY and (migration is None or migration.done):
                asked = epoch
                here = query.executors
                turn = asked // MIGRATE_EVERY
                plan = {g: here[(g + turn) % len(here)] for g in range(NUM_KEY_GROUPS)}
                component = ("windows", "timers", "pairs")[turn % 3]
                migration = query.migrate(plan, component=component)
            if epoch >= marks[0]:
                marks.pop(0)
                seen.append((epoch, sample(cluster, spark, directory / "ck")))
                per_epoch_ms = (time.monotonic() - began) / max(epoch, 1) * 1000
                line = {"epoch": epoch, "epoch_ms": round(per_epoch_ms), **seen[-1][1]}
                say(json.dumps(line))
        error = query.exception()
        if marks:
            epoch = query._run.log.latest_epoch
            seen.append((epoch, sample(cluster, spark, directory / "ck")))
            say(json.dumps({"epoch": epoch, **seen[-1][1]}))
        query.stop()
        if error is not None:
            raise error
    return seen


def growth(seen: list[tuple[int, Figures]]) -> list[str]:
    """Return what there was more of at the end than in the middle, but for what varies anyway."""
    if len(seen) < 2:
        return ["too few epochs to tell"]
    (_, middle), (_, last) = seen[(len(seen) - 1) // 2], seen[-1]
    slack = {"descriptors": 8, "threads": 6, "rss_mb": 0.15, "heap_mb": 0.25, "objects": 0.1}
    grown = []
    for whose, figures in last.items():
        for what, value in figures.items():
            before = middle[whose][what]
            more = slack.get(what, 0.25)
            if value > (before * (1 + more) + 2 if more < 1 else before + more):
                grown.append(f"{whose}: {what} {before} -> {value}")
    return grown


def main() -> int:
    """Run it, and tell what grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.endurance", description=__doc__)
    parser.add_argument("--epochs", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=1_800.0, help="at most")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        grown = growth(endure(args.epochs, args.seconds, Path(directory)))
    say("\n".join(grown or ["nothing grew"]))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())

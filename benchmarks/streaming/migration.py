"""Moving a third of the state: with Godwit by strategy, offline with Spark's own repartition.

``python -m benchmarks.streaming.migration [--keys 4000000] [--rounds 3] [--only live on_demand]``

Godwit: three executors of one core, the third of them idle; a stream of epochs; a third of the key
groups moves to the idle one: live, on demand, or disruptively.  Measured: epoch time before, during
and after; for how long, and the slowest epoch from the request on.  ``--only overloaded``: one
executor has all key groups, and rows that take long; the system chooses the strategy (beside it
``overloaded_live``, ``overloaded_on_demand``).

Spark: a stateful aggregation over the same keys (RocksDB) is stopped, its state is repartitioned
from 4 to 8 partitions by ``_streamingCheckpointManager.repartition``, and it is started again.
Measured: the time in which the stream gives no output.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.options import append_json, read_options
from benchmarks.streaming.inputs import held_keys
from benchmarks.streaming.own_process import in_a_process_of_its_own, until_epoch
from benchmarks.streaming.programs import STORES, session, stream

EPOCH_ROWS = 200_000
EPOCHS = 60
STEADY = 12


def on_demand(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Move a third of the key groups on demand."""
    return live(source, preload, work, strategy="on_demand")


def disruptive(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Move a third of the key groups disruptively."""
    return live(source, preload, work, strategy="disruptive")


def live(
    source: Path,
    preload: int,
    work: Path,
    copies_from: str = "quicker",
    strategy: Literal["live", "on_demand", "disruptive"] = "live",
) -> dict[str, Any]:
    """Move a third of the key groups to an idle executor while the stream flows."""
    import godwit as gw
    from godwit.ops.local_cluster import LocalCluster

    with LocalCluster(workers=3, cores=1, memory="1g", work_dir=work / "cluster") as cluster:
        spark = cluster.session("migration", {"spark.sql.files.maxPartitionBytes": "8m"})
        spark.sparkContext.setLogLevel("ERROR")
        flow = gw.Flow("migration")
        rows = flow.source("rows", stream(spark, str(source)))
        sums = rows.key_by("key").compute(name="sums", n=gw.count(), s=gw.sum("v"))
        flow.sink("nothing", sums, gw.sinks.noop())
        busy = gw.migration.even_assignment(flow.num_key_groups, ["0", "1"], [1, 1])
        query = flow.start(
            checkpoint=work / "checkpoint",
            executors=3,
            policy=gw.migration.Policy(copies_from=gw.migration.CopiesFrom(copies_from)),
            sizing=gw.Sizing(assignments={"sums": busy.on(["0", "1", "2"], [1, 1, 1])}),
        )
        until_epoch(query, preload + STEADY)
        state = query.recentProgress[-1]
        moves = dict.fromkeys(range(0, flow.num_key_groups, 3), "2")
        started = query.recentProgress[-1]["epoch"]
        began = time.perf_counter()
        migration = query.migrate(
            moves, component="sums", strategy=strategy, bounds=gw.migration.Bounds(max_moves=8)
        )
        ended = migration.wait(300)
        took_s = time.perf_counter() - began
        finished = query.recentProgress[-1]["epoch"]
        until_epoch(query, finished + STEADY)
        progress = {p["epoch"]: p for p in query.recentProgress}
        warmed = [e for e in query.events if isinstance(e, gw.events.KeyGroupsWarmed)]
        query.stop()
        ms = {e: p["durationMs"]["epoch"] for e, p in progress.items()}
        before = median(ms[e] for e in range(started - STEADY + 1, started + 1))
        during = [ms[e] for e in range(started + 1, finished + 1)] or [ms[finished]]
        after = median(ms[e] for e in range(finished + 1, finished + STEADY))
        return {
            "moved": ended.moved,
            "took_s": took_s,
            "epochs_during": len(during),
            "before_ms": before,
            "during_ms": median(during),
            "during_max_ms": max(during),
            "slowest_ms": max(ms[e] for e in ms if e > started),
            "slowest_ratio": max(ms[e] for e in ms if e > started) / before,
            "unread_epochs": sum(p["unreadStateBytes"] > 0 for p in progress.values()),
            "epochs_ms": [round(ms[e]) for e in sorted(ms) if e > started - 3],
            "after_ms": after,
            "ratio": median(during) / before,
            "key_groups": state["keyGroups"],
            "warmed_bytes": sum(e.state_bytes for e in warmed),
            "peer_bytes": sum(e.peer_bytes for e in warmed),
            "warmed_ms": sum(e.duration_ms for e in warmed),
        }


def overloaded(
    source: Path, preload: int, work: Path, strategy: Literal["live", "on_demand"] | None = None
) -> dict[str, Any]:
    """Move two thirds of the key groups off an executor that has all, to two idle ones.

    Without a strategy the system chooses one. A row takes 10 µs of CPU, unless its key is new.
    """
    import godwit as gw
    from godwit.ops.local_cluster import LocalCluster

    def busy(key: tuple[str], rows: Any, state: dict[str, float]) -> Any:
        for row in rows:
            until_s = time.perf_counter() + 1e-5
            while "s" in state and time.perf_counter() < until_s:
                pass
            state["s"] = state.get("s", 0.0) + row.v
        yield key[0], state["s"]

    with LocalCluster(workers=3, cores=1, memory="1g", work_dir=work / "cluster") as cluster:
        spark = cluster.session("overload", {"spark.sql.files.maxPartitionBytes": "8m"})
        spark.sparkContext.setLogLevel("ERROR")
        flow = gw.Flow("overload")
        rows = flow.source("rows", stream(spark, str(source)))
        sums = rows.key_by("key").process(
            busy, state=dict[str, float], output="key string, s double", name="sums"
        )
        flow.sink("nothing", sums, gw.sinks.noop())
        all_there = gw.migration.even_assignment(flow.num_key_groups, ["0"], [1])
        query = flow.start(
            checkpoint=work / "checkpoint",
            executors=3,
            sizing=gw.Sizing(assignments={"sums": all_there.on(["0", "1", "2"], [1, 1, 1])}),
        )
        until_epoch(query, preload + STEADY)
        started = query.recentProgress[-1]["epoch"]
        began = time.perf_counter()
        moves = {g: str(g % 3) for g in range(flow.num_key_groups) if g % 3}
        migration = query.migrate(moves, component="sums", strategy=strategy)
        ended = migration.wait(300)
        took_s = time.perf_counter() - began
        until_epoch(query, started + 2 * STEADY)
        ms = {p["epoch"]: p["durationMs"]["epoch"] for p in query.recentProgress}
        begun = [e for e in query.events if isinstance(e, gw.events.MigrationStarted)]
        query.stop()
        before = median(ms[e] for e in range(started - STEADY // 2, started + 1))
        after = [ms[e] for e in range(started + 1, started + 2 * STEADY)]
        return {
            "moved": ended.moved,
            "strategy": begun[-1].strategy,
            "reason": begun[-1].reason,
            "took_s": took_s,
            "before_ms": before,
            "slowest_ratio": max(after) / before,
            "all_ratio": sum(after) / (before * len(after)),
            "epochs_ms": [round(ms[e]) for e in sorted(ms) if e > started - 3],
        }


def overloaded_live(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Do as `overloaded` does, live."""
    return overloaded(source, preload, work, strategy="live")


def overloaded_on_demand(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Do as `overloaded` does, on demand."""
    return overloaded(source, preload, work, strategy="on_demand")


def offline(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Stop, repartition, start: Spark's own way."""
    from pyspark.sql import functions as sf

    spark = session(**STORES["rocksdb"])
    checkpoint = str(work / "checkpoint")
    files = sorted(source.glob("*.parquet"))
    arriving = work / "in"
    arriving.mkdir()

    def arrive(some: list[Path]) -> None:
        for file in some:
            shutil.copy(file, arriving / file.name)

    def start() -> Any:
        frame = stream(spark, str(arriving)).groupBy("key")
        return (
            frame.agg(sf.count("*").alias("n"), sf.sum("v").alias("s"))
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", checkpoint)
            .start()
        )

    arrive(files[: preload + 4])
    query = start()
    query.processAllAvailable()  # it refuses a checkpoint whose last batch was cut off
    arrive(files[preload + 4 : preload + 5])
    began = time.perf_counter()
    query.stop()
    repartitioning = time.perf_counter()
    spark._streamingCheckpointManager.repartition(checkpoint, 8)  # noqa: SLF001  there is no other
    repartitioned_s = time.perf_counter() - repartitioning
    query = start()
    query.processAllAvailable()
    silent_s = time.perf_counter() - began
    query.stop()
    return {"silent_s": silent_s, "repartition_s": repartitioned_s}


def main() -> None:
    given = read_options(
        __doc__,
        keys=4_000_000,
        rounds=1,
        inputs=Path("artifacts/inputs"),
        json=Path("artifacts/migration.jsonl"),
        only=["live", "offline"],
    )
    source = held_keys(given.inputs, held=given.keys, touched=EPOCH_ROWS, epochs=EPOCHS).absolute()
    preload = -(-given.keys // 1_000_000)
    for _ in range(given.rounds):
        for name in given.only:
            result = in_a_process_of_its_own("migration", name, source, preload)
            print(name, json.dumps(result), flush=True)
            append_json(given.json, {"keys": given.keys, name: result})


if __name__ == "__main__":
    main()

"""Two executors, four, two again, under load: live with Godwit, by stopping with Spark.

``python -m benchmarks.streaming.scaling [--keys 4000000] [--rounds 3]``

Godwit: two executors of one core hold all keys; the query is scaled to four and back to two while
epochs go on.  Measured: epoch time before, while each scaling goes on, and after it; the slowest
epoch of each against the median before.

Spark: a stateful aggregation over the same keys is stopped, its state repartitioned, and it is
started again (`benchmarks.streaming.migration.offline`), which it would be twice for the same.
Measured: the time in which the stream gives no output.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.streaming.inputs import held_keys
from benchmarks.streaming.migration import offline
from benchmarks.streaming.own_process import in_a_process_of_its_own, until_epoch
from benchmarks.streaming.programs import stream

__all__ = ["live", "offline"]

EPOCH_ROWS = 200_000
EPOCHS = 200
STEADY = 10
PATIENCE_S = 300.0


def live(source: Path, preload: int, work: Path) -> dict[str, Any]:
    """Scale a query out and in while it goes on."""
    import godwit as gw
    from godwit.spark.local_cluster import LocalCluster
    from godwit.spark.scheduler import SparkScheduler

    with LocalCluster(workers=2, cores=1, memory="1g", work_dir=work / "cluster") as cluster:
        spark = cluster.session("scaling", {"spark.sql.files.maxPartitionBytes": "8m"})
        spark.sparkContext.setLogLevel("ERROR")
        flow = gw.Flow("scaling")
        rows = flow.source("rows", stream(spark, str(source)))
        sums = rows.key_by("key").compute(name="sums", n=gw.count(), s=gw.sum("v"))
        flow.sink("nothing", sums, gw.sinks.noop())
        query = flow.start(checkpoint=work / "checkpoint", executors=2)
        SparkScheduler(spark.sparkContext).request(2)  # else the new workers start them at once
        for _ in range(2):
            cluster.add_worker()
        until_epoch(query, preload + STEADY)

        told: dict[str, Any] = {"state_bytes": query.lastProgress["stateBytes"]}
        before = _epochs(query)[-STEADY:]
        told["before_ms"] = median(before)
        for name, wanted in (("out", 4), ("in", 2)):
            first = query.lastProgress["epoch"] + 1
            began = time.perf_counter()
            query.scale(wanted, bounds=gw.Bounds(max_moves=8)).wait(PATIENCE_S)
            took_s = time.perf_counter() - began
            last = max(query.lastProgress["epoch"], first)
            until_epoch(query, last + STEADY)
            during = _epochs(query, first, last)
            after = _epochs(query, last + 1, last + STEADY)
            told[name] = {
                "took_s": took_s,
                "epochs": len(during),
                "median_ms": median(during),
                "slowest_ms": max(during),
                "slowest_ratio": max(during) / told["before_ms"],
                "after_ms": median(after),
                "slowest_after_ratio": max(after) / told["before_ms"],
            }
        told["moved"] = [e.moved for e in query.events if isinstance(e, gw.events.ScalingFinished)]
        query.stop()
        return told


def _epochs(query: Any, first: int = 0, last: int | None = None) -> list[float]:
    """Return times of epochs, in milliseconds."""
    return [
        made["durationMs"]["epoch"]
        for made in query.recentProgress
        if made["epoch"] >= first and (last is None or made["epoch"] <= last)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--inputs", type=Path, default=Path("artifacts/inputs"))
    parser.add_argument("--json", type=Path, default=Path("artifacts/scaling.jsonl"))
    parser.add_argument("--only", choices=["live", "offline"])
    given = parser.parse_args()
    source = held_keys(given.inputs, held=given.keys, touched=EPOCH_ROWS, epochs=EPOCHS).absolute()
    preload = -(-given.keys // 1_000_000)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(given.rounds):
        for name in [given.only] if given.only else ["live", "offline"]:
            result = in_a_process_of_its_own("scaling", name, source, preload)
            print(name, json.dumps(result), flush=True)
            with given.json.open("a") as out:
                out.write(json.dumps({"keys": given.keys, name: result}) + "\n")


if __name__ == "__main__":
    main()

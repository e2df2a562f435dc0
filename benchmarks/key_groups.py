"""Another number of key groups at a start, beside Spark's offline repartitioning of the same state.

``python -m benchmarks.key_groups [--keys N] [--before N] [--after N] [--spark 1] [--json FILE]``

Sums of `keys` keys begin as state from a Parquet file, without Spark; then the flow starts with
another number of key groups.  Each step runs in a process of its own, for its peak of memory.  With
``--spark 1``, Spark sums one row of each key with RocksDB, in as many partitions as there are
cores, and rewrites its state to twice as many.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import append_json, read_options

BATCH = 1_000_000


def flow_of(num_key_groups: int) -> Any:
    """Return the flow with its sums."""
    import godwit as gw

    flow = gw.Flow("sums", num_key_groups=num_key_groups)
    rows = flow.source("rows", gw.testing.stream("k long, v long"))
    sums = rows.key_by("k").compute(name="sums", total=gw.sum("v"), n=gw.count())
    flow.sink("out", sums, gw.sinks.noop())
    return flow


def write_rows(path: Path, keys: int, names: tuple[str, ...]) -> None:
    """Write a Parquet file with a row for each key, in an order that is not that of key groups."""
    writer = None
    for first in range(0, keys, BATCH):
        number = np.arange(first, min(first + BATCH, keys), dtype=np.int64)
        columns = [pa.array(number * 7919 % keys), *(pa.array(number) for _ in names[1:])]
        table = pa.table(columns, names=list(names))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None, "there are keys"
    writer.close()


def begin(work: Path, before: int) -> dict[str, Any]:
    """Start with the rows as initial state."""
    import godwit as gw

    with gw.testing.cluster(
        flow_of(before),
        checkpoint=work / "checkpoint",
        initial={"sums": str(work / "rows.parquet")},
    ) as played:
        (event,) = [e for e in played.events if isinstance(e, gw.events.InitialStateWritten)]
        return {"entries": event.entries, "bytes": event.size_bytes, "event_s": event.duration_s}


def regroup(work: Path, before: int, after: int) -> dict[str, Any]:
    """Start again with another number of key groups, and look at some keys."""
    import godwit as gw

    with gw.testing.cluster(flow_of(before), checkpoint=work / "checkpoint") as played:
        began_s = time.perf_counter()
        played.restart(flow_of(after), repartition=True)
        took_s = time.perf_counter() - began_s
        (event,) = [e for e in played.events if isinstance(e, gw.events.KeyGroupsChanged)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        keys = [0, 7919, 1]
        out = played.epoch({"rows": [{"k": k, "v": 1} for k in keys]})["out"]
        assert sorted(out.column("k").to_pylist()) == sorted(keys)
        return {
            "entries": event.entries,
            "bytes": event.size_bytes,
            "event_s": event.duration_s,
            "start_s": took_s,
            "peak_bytes": peak,
        }


def spark_sums(work: Path, partitions: int) -> dict[str, Any]:
    """Let Spark sum the rows, and rewrite its state to twice as many partitions."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812  as everywhere

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{partitions}]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", partitions)
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    (work / "in").mkdir(exist_ok=True)
    shutil.copy(work / "rows.parquet", work / "in" / "rows.parquet")
    frame = spark.readStream.schema("k long, total long, n long").parquet(str(work / "in"))
    sums = frame.groupBy("k").agg(F.sum("total").alias("total"), F.count("*").alias("n"))
    checkpoint = str(work / "spark")
    began_s = time.perf_counter()
    query = (
        sums.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    summed_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    spark._streamingCheckpointManager.repartition(checkpoint, 2 * partitions)  # noqa: SLF001  no other
    return {"summed_s": summed_s, "start_s": time.perf_counter() - began_s}


def in_a_process(step: str, *arguments: Any) -> dict[str, Any]:
    """Run a step in a process of its own; return its figures, seconds, and peak of memory."""
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.key_groups", "--step", step]
    given = [str(argument) for argument in arguments]
    output = subprocess.run([*command, *given], check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return figures | {"process_s": time.perf_counter() - began_s}


def run_step(step: str, arguments: list[str]) -> None:
    """Run one step, and print its figures as JSON."""
    work, *numbers = arguments
    steps: dict[str, Any] = {"begin": begin, "regroup": regroup, "spark": spark_sums}
    figures = steps[step](Path(work), *map(int, numbers))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak_bytes": peak} | figures))


def main() -> None:
    if sys.argv[1:2] == ["--step"]:
        run_step(sys.argv[2], sys.argv[3:])
        return
    given = read_options(
        __doc__,
        keys=10_000_000,
        before=256,
        after=4096,
        spark=0,
        json=Path("artifacts/key_groups.jsonl"),
    )
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        write_rows(work / "rows.parquet", given.keys, ("k", "total", "n"))
        steps = {
            "begin": in_a_process("begin", work, given.before),
            "regroup": in_a_process("regroup", work, given.before, given.after),
        }
        if given.spark:
            steps["spark"] = in_a_process("spark", work, os.cpu_count() or 2)
    for step, figures in steps.items():
        told = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        print(f"{step}: {told}; load {os.getloadavg()[0]:.1f}", flush=True)
    append_json(given.json, {"key_groups": vars(given) | {"steps": steps}})


if __name__ == "__main__":
    main()

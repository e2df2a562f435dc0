"""The programs that are measured: each runs one input to its end and prints one JSON line.

Run in a process of their own, so that every measurement starts with a fresh JVM::

    python -m benchmarks.streaming.programs godwit INPUT WORK_DIR

Every epoch's time is Spark's own ``triggerExecution`` (offset log, planning, processing, commit),
for native queries and for Godwit alike; over sources of Godwit's own, the same from asking the
sources for rows to telling them of the commit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.streaming.inputs import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYSPARK_PYTHON"] = sys.executable

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES = {
    "memory": {},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
PARTITIONS = 4


def session(**conf: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.sql.files.maxPartitionBytes": "8m",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: Any, source: str, schema: str = SCHEMA) -> Any:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(source)


def run_native(frame: Any, work: Path, mode: str = "update") -> list[dict[str, Any]]:
    query = (
        frame.writeStream.outputMode(mode)
        .format("noop")
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    progress = query.recentProgress
    query.stop()
    return epochs_of(progress)


def epochs_of(progress: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "epoch": p["batchId"],
            "rows": p["numInputRows"],
            "ms": p["durationMs"]["triggerExecution"],
        }
        for p in progress
        if p["numInputRows"]
    ]


def native_aggregate(store: str) -> Callable[[str, Path], list[dict[str, Any]]]:
    def run(source: str, work: Path) -> list[dict[str, Any]]:
        from pyspark.sql import functions as sf

        frame = stream(session(**STORES[store]), source).groupBy("key")
        return run_native(frame.agg(sf.count("*").alias("n"), sf.sum("v").alias("s")), work)

    return run


def run_godwit(
    source: str,
    work: Path,
    *,
    build: Callable[[Any, Any], Any],
    sink: str = "noop",
    schema: str = SCHEMA,
    num_key_groups: int = 256,
    lanes: int | None = None,
    own: bool = False,
    **timed: str,
) -> list[dict[str, Any]]:
    """Run a flow over the files as a DataFrame, or as a source of Godwit's own.

    `sink`: the name of one; `timed`: options of the source about its event time.
    """
    import godwit as gw

    spark = session(**({} if lanes is None else {"spark.default.parallelism": str(lanes)}))
    flow = gw.Flow("benchmark", num_key_groups=num_key_groups)
    files = gw.sources.parquet(source, schema=schema, max_files_per_epoch=1) if own else None
    rows = stream(spark, source, schema) if files is None else files
    result = build(gw, flow.source("rows", rows, **timed).key_by("key"))
    return measured_flow(flow, result, work, sink=sink, own=own)


def measured_flow(
    flow: Any, result: Any, work: Path, *, sink: str = "noop", own: bool = False
) -> list[dict[str, Any]]:
    """Run a flow over all its input, into a sink of that name."""
    import godwit as gw

    target = gw.sinks.noop() if sink == "noop" else getattr(gw.sinks, sink)(work / "out")
    flow.sink("out", result, target)
    query = flow.start(checkpoint=work / "checkpoint")
    query.processAllAvailable()
    noted = query.recentProgress if own else query._driver.spark_query.recentProgress  # noqa: SLF001  the same clock
    measured = epochs_of(noted)
    detail = {p["batchId"]: p for p in query.recentProgress}
    query.stop()
    for epoch in measured:
        of = detail.get(epoch["epoch"], {})
        epoch["phases_ms"], epoch["lane_ms"] = of.get("durationMs"), of.get("laneMs")
    return measured


def sums(gw: Any, keyed: Any) -> Any:
    return keyed.compute(name="sums", n=gw.count(), s=gw.sum("v"))


def tallied(_: Any, keyed: Any) -> Any:
    def tally(key: Any, rows: Any, state: dict[str, Any]) -> list[tuple[Any, ...]]:
        state["n"] = state.get("n", 0) + len(rows)
        state["s"] = state.get("s", 0.0) + sum(rows.column("v"))
        return [(key[0], state["n"], state["s"])]

    return keyed.process(tally, name="tally", state=dict, output="key string, n long, s double")


def transform_with_state(source: str, work: Path) -> list[dict[str, Any]]:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Tally(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("tally", "n long, s double")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002,N802,N803
            held = self.state.get()
            n, s = held or (0, 0.0)
            for row in rows:
                n += 1
                s += row["v"]
            self.state.update((n, s))
            yield Row(key=key[0], n=n, s=s)

        def close(self) -> None:
            pass

    spark = session(**{"spark.sql.streaming.stateStore.providerClass": ROCKSDB})
    frame = (
        stream(spark, source)
        .groupBy("key")
        .transformWithState(Tally(), "key string, n long, s double", "update", "None")
    )
    return run_native(frame, work)


def apply_in_pandas_with_state(source: str, work: Path) -> list[dict[str, Any]]:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def tally(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        import pandas as pd

        n, s = state.get if state.exists else (0, 0.0)
        for frame in frames:
            n += len(frame)
            s += float(frame["v"].sum())
        state.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})

    spark = session(**{"spark.sql.streaming.stateStore.providerClass": ROCKSDB})
    frame = (
        stream(spark, source)
        .groupBy("key")
        .applyInPandasWithState(
            tally,
            "key string, n long, s double",
            "n long, s double",
            "update",
            GroupStateTimeout.NoTimeout,
        )
    )
    return run_native(frame, work)


PROGRAMS: dict[str, Callable[[str, Path], list[dict[str, Any]]]] = {
    "native-memory": native_aggregate("memory"),
    "native-rocksdb": native_aggregate("rocksdb"),
    "godwit": partial(run_godwit, build=sums),
    "godwit-own": partial(run_godwit, build=sums, own=True),
    "godwit-own-process": partial(run_godwit, build=tallied, own=True),
    **{
        f"godwit-{n}-key-groups": partial(run_godwit, build=sums, num_key_groups=n)
        for n in (256, 4096, 32768)
    },
    **{f"godwit-{n}-lanes": partial(run_godwit, build=sums, lanes=n) for n in (2, 8, 32, 128, 256)},
    "godwit-parquet": partial(run_godwit, build=sums, sink="parquet"),
    "godwit-delta": partial(run_godwit, build=sums, sink="delta"),
    "transform-with-state": transform_with_state,
    "apply-in-pandas": apply_in_pandas_with_state,
    "godwit-process": partial(run_godwit, build=tallied),
}


def run_one_of(programs: Mapping[str, Callable[[str, Path], list[dict[str, Any]]]]) -> None:
    """Run the program that the command line names, and print what it measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=sorted(programs))
    parser.add_argument("input")
    parser.add_argument("work", type=Path)
    given = parser.parse_args()
    measured = programs[given.program](given.input, given.work)
    print("MEASURED " + json.dumps(measured), flush=True)


if __name__ == "__main__":
    run_one_of(PROGRAMS)

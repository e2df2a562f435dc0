"""The state of a Spark query, taken over: time, and rows lost or doubled.

``python -m benchmarks.adopt_state [--keys N] [--store hdfs|rocksdb] [--query sums|duplicates]``

A query of Spark's sums and counts by key, or drops duplicates, and stops.  Then the same query
begins here with its state: the time from the call of ``start`` until its first batch is committed,
how much of it the writing of the state takes, and how many keys then have another sum or count than
all rows give, or are missing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import append_json, read_options, temporary_directory
from benchmarks.streaming.programs import session

PROVIDER = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
STORES = {"hdfs": PROVIDER.format("HDFSBacked"), "rocksdb": PROVIDER.format("RocksDB")}


def write_rows(directory: Path, number: int, keys: pa.Array) -> None:
    """Add a file with a row of value 1 for every key."""
    directory.mkdir(exist_ok=True)
    table = pa.table({"k": keys, "v": pa.array(np.ones(len(keys), np.int64))})
    pq.write_table(table, directory.parent / "part")
    (directory.parent / "part").rename(directory / f"{number}.parquet")


def measured(spark: Any, keys: int, store: str, kind: str, work: Path) -> dict[str, float]:
    """Run the query in Spark, then here; return seconds, and the number of wrong keys."""
    from pyspark.sql import functions as sf

    import godwit as gw

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES[store])
    write_rows(work / "in", 0, pa.array(np.arange(keys)))
    rows = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    rows, mode = rows.parquet(str(work / "in")), "update" if kind == "sums" else "append"
    query = rows.groupBy("k").agg(sf.sum("v"), sf.count("*"))
    query = query if kind == "sums" else rows.dropDuplicates(["k"])
    began = time.monotonic()
    native = query.writeStream.format("noop").outputMode(mode)
    native = native.option("checkpointLocation", str(work / "old")).trigger(availableNow=True)
    native.start().awaitTermination()
    in_spark = time.monotonic() - began
    some = np.arange(0, keys, max(keys // 1000, 1))
    write_rows(work / "in", 1, pa.array(some))
    began = time.monotonic()
    writer = gw.write_stream(query).from_spark_checkpoint(str(work / "old"))
    writer = writer.format("noop").outputMode(mode).trigger(availableNow=True)
    adopted = writer.option("checkpointLocation", str(work / "new")).start()
    started = time.monotonic() - began
    adopted.awaitTermination()
    first_batch = time.monotonic() - began
    written = [e for e in adopted.events if isinstance(e, gw.events.InitialStateWritten)]
    operator = "aggregate" if kind == "sums" else "drop_duplicates"
    state = gw.read_state(spark, work / "new", operator).toArrow()
    names = [name for name in state.column_names if name not in {"key_group", "k", "expires"}]
    expected = np.ones(keys, np.int64)
    expected[some] += 1
    actual = np.zeros((len(names), keys), np.int64)
    for number, name in enumerate(names):
        np.add.at(actual[number], state["k"].to_numpy(), state[name].to_numpy())
    wrong = int(np.count_nonzero((actual != expected).any(axis=0)))
    return {
        "keys": keys,
        "spark_s": round(in_spark, 2),
        "until_started_s": round(started, 2),
        "until_first_batch_s": round(first_batch, 2),
        "writing_s": round(sum(event.duration_s for event in written), 2),
        "wrong_keys": wrong + abs(state.num_rows - keys),
    }


def main() -> None:
    given = read_options(
        __doc__,
        keys=4_000_000,
        store=("rocksdb", "hdfs"),
        query=("sums", "duplicates"),
        json=Path("artifacts/adopt_state.jsonl"),
    )
    spark = session()
    with temporary_directory() as work:
        figures = measured(spark, given.keys, given.store, given.query, work)
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    append_json(given.json, {"adopt_state": vars(given) | figures})


if __name__ == "__main__":
    main()

"""How fast a Parquet file is read on one core: Godwit's own source against Spark's scan of it.

Both read the same file, in turns, on one core. Spark once to rows that nobody takes (``noop``),
and once to Arrow batches in Python (``mapInArrow``), which is where Godwit's source ends.

    python -m benchmarks.file_source [--rows 2000000] [--rounds 5] [--without-spark]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import read_options

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = "id bigint, key bigint, name string, price double, ts timestamp"


def write(path: Path, rows: int) -> None:
    generator = np.random.default_rng(7)
    keys = generator.integers(0, rows // 10 + 1, rows)
    table = pa.table(
        {
            "id": np.arange(rows),
            "key": keys,
            "name": pa.array(keys % 1000).cast(pa.string()),
            "price": generator.random(rows),
            "ts": pa.array(1_700_000_000_000_000 + np.arange(rows) * 10).cast(
                pa.timestamp("us", tz="UTC")
            ),
        }
    )
    pq.write_table(table, path, row_group_size=max(1, rows // 16))


def own_source(path: Path) -> Callable[[], int]:
    source = gw.sources.parquet(path, schema=SCHEMA)
    source.open(None)
    start = source.start()
    splits = source.splits(start, source.latest(start), 2)
    names = source.schema.names
    return lambda: sum(b.num_rows for split in splits for b in source.read(split, names))


def sparks_scan(path: Path) -> dict[str, Callable[[], int]]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    spark = builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.read.schema(SCHEMA).parquet(str(path))

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [sum(b.num_rows for b in batches)]})

    def to_rows() -> int:
        rows.write.format("noop").mode("overwrite").save()
        return -1

    def to_arrow() -> int:
        counts = rows.mapInArrow(counted, "n bigint").collect()
        return sum(row["n"] for row in counts)

    return {"Spark, rows that nobody takes": to_rows, "Spark, Arrow in Python": to_arrow}


def main() -> None:
    options = read_options(__doc__, rows=2_000_000, rounds=5, without_spark=False)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.parquet"
        write(path, options.rows)
        subjects = {"Godwit's source, one core": own_source(path)}
        if not options.without_spark:
            subjects |= sparks_scan(path)
        took_s: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(options.rounds + 1):
            for name, read in subjects.items():
                began = time.perf_counter()
                count = read()
                assert count in (-1, options.rows), count
                if turn:  # the first is to warm up
                    took_s[name].append(time.perf_counter() - began)
    base = statistics.median(took_s["Godwit's source, one core"])
    for name, times in took_s.items():
        median = statistics.median(times)
        print(f"{name:32} {options.rows / median:12,.0f} rows/s  {median / base:5.1f}x as long")


if __name__ == "__main__":
    main()

"""The programs that are measured; see `benchmarks.windows.programs`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.streaming.programs import STORES, measured_flow, run_native, run_one_of, session
from benchmarks.windows.programs import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WITHIN_S = 10
DUPLICATES = "10 minutes"


def native_pairs(source: str, work: Path, *, store: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as sf

    spark = session(**STORES[store])
    left = rows_of(spark, source).withWatermark("ts", "0 seconds")
    right = rows_of(spark, source).toDF("other", "at", "w").withWatermark("at", "0 seconds")
    after = sf.expr(f"at BETWEEN ts AND ts + INTERVAL {WITHIN_S} SECONDS")
    joined = left.join(right, (left["key"] == right["other"]) & after)
    return run_native(joined.select("key", "ts", "v", "at", "w"), work, "append")


def native_duplicates(source: str, work: Path, *, store: str) -> list[dict[str, Any]]:
    rows = rows_of(session(**STORES[store]), source).withWatermark("ts", DUPLICATES)
    return run_native(rows.dropDuplicatesWithinWatermark(["key"]), work, "append")


def godwit_pairs(source: str, work: Path) -> list[dict[str, Any]]:
    import godwit as gw

    spark = session()
    flow = gw.Flow("benchmark", num_key_groups=256)
    left = flow.source("left", rows_of(spark, source), event_time="ts")
    others = rows_of(spark, source).toDF("other", "at", "w")
    right = flow.source("right", others, event_time="at")
    between = ("0 seconds", f"{WITHIN_S} seconds")
    pairs = left.key_by("key").join(right.key_by("other"), between=between)
    return measured_flow(flow, pairs, work)


def godwit_duplicates(source: str, work: Path) -> list[dict[str, Any]]:
    import godwit as gw

    flow = gw.Flow("benchmark", num_key_groups=256)
    rows = flow.source("rows", rows_of(session(), source), event_time="ts", slack=DUPLICATES)
    return measured_flow(flow, rows.drop_duplicates("key", within=DUPLICATES), work)


PROGRAMS: dict[str, Callable[[str, Path], list[dict[str, Any]]]] = {
    "godwit-pairs": godwit_pairs,
    "godwit-duplicates": godwit_duplicates,
    "native-pairs-memory": partial(native_pairs, store="memory"),
    "native-pairs-rocksdb": partial(native_pairs, store="rocksdb"),
    "native-duplicates-memory": partial(native_duplicates, store="memory"),
    "native-duplicates-rocksdb": partial(native_duplicates, store="rocksdb"),
}


if __name__ == "__main__":
    run_one_of(PROGRAMS)

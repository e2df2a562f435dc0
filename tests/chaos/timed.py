"""Windows, timers and named states under a killed executor, and what should come out of them."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = [
    "FAR",
    "Row",
    "expected_timers",
    "expected_windows",
    "put_timed",
    "timed_flow",
    "timed_rows",
]

Row = tuple[int, int, int]
"""Key, second of event time, value."""

START = datetime(2020, 1, 1, tzinfo=UTC)
FAR = (999, 10_000, 0)
WINDOW_S, LATER_S = 10, 7
_SCHEMA = pa.schema([("k", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])


def timed_rows(seed: int, count: int) -> list[list[Row]]:
    """Generate epochs of rows that are never late."""
    rng = random.Random(seed)
    return [
        [(rng.randrange(30), 5 * epoch + rng.randrange(5), rng.randrange(100)) for _ in range(80)]
        for epoch in range(count)
    ]


def put_timed(directory: Path, number: int, rows: Sequence[Row]) -> None:
    """Write one epoch's file; files are read in order of their numbers."""
    moments = [START + timedelta(seconds=second) for _, second, _ in rows]
    columns = [[k for k, *_ in rows], moments, [v for *_, v in rows]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
    hidden = directory / f"_{number:06d}"
    pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), hidden)
    os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
    hidden.rename(directory / f"{number:06d}.parquet")


def note(key: Any, rows: Any, states: Any) -> None:
    """Count values, and set a timer for each row."""
    for row in rows:
        states.seen.value += 1
        states.per_value[row.v] = states.per_value.get(row.v, 0) + 1
        rows.timers.set(row.at.replace(tzinfo=UTC) + timedelta(seconds=LATER_S))


def fired(key: Any, timer: Any, states: Any) -> Any:
    """Tell of a timer; counts of values and rows must agree."""
    assert sum(states.per_value.values()) == states.seen.value
    yield key[0], int((timer.time - START).total_seconds())


def timed_flow(spark: SparkSession, directory: Path) -> gw.Flow:
    """Build the flow over ``directory/in``; its sinks are in ``directory/out``."""
    flow = gw.Flow("timed", num_key_groups=8)
    frame = (
        spark.readStream.schema("k int, at timestamp, v long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "in"))
    )
    rows = flow.source("rows", frame, event_time="at", slack="5 seconds").key_by("k")
    windows = rows.window(gw.tumbling(f"{WINDOW_S} seconds"), name="windows").compute(
        n=gw.count(), total=gw.sum("v")
    )
    timers = rows.process(
        note,
        name="timers",
        state={"seen": gw.ValueState(int), "per_value": gw.MapState(int, int)},
        output="k int, second long",
        timers=gw.types.OnTimer(fired, clock="event"),
    )
    flow.sink("windows", windows, gw.sinks.parquet(directory / "out/windows"))
    flow.sink("timers", timers, gw.sinks.parquet(directory / "out/timers"))
    return flow


def expected_windows(
    epochs: Sequence[Sequence[Row]],
) -> dict[tuple[int, datetime], tuple[int, int]]:
    """Key and start of a window → its count and sum, of a plain loop."""
    found: dict[tuple[int, datetime], list[int]] = defaultdict(lambda: [0, 0])
    for key, second, value in (row for rows in epochs for row in rows):
        of = found[key, START + timedelta(seconds=second // WINDOW_S * WINDOW_S)]
        of[0] += 1
        of[1] += value
    return {window: (n, total) for window, (n, total) in found.items()}


def expected_timers(epochs: Sequence[Sequence[Row]]) -> Counter[tuple[int, int]]:
    """Key and second of every timer, each once."""
    return Counter({(k, second + LATER_S) for rows in epochs for k, second, _ in rows})

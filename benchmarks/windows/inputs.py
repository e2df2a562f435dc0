"""Inputs: Parquet files of five minutes of event time each, one an epoch, made once (seeded)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from benchmarks.streaming.inputs import made_once, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = "key string, ts timestamp, v double"
EPOCH_US = 300_000_000
_BEGIN_US = 1_700_000_400_000_000  # a full hour
_TIME = pa.timestamp("us", tz="UTC")


def timed_rows(directory: Path, *, epochs: int, rows: int, keys: int) -> Path:
    """Files of `rows` rows each; keys are drawn evenly, or each comes once if there are as many."""

    def tables() -> Iterator[pa.Table]:
        rng, names = np.random.default_rng(1), names_of(np.arange(keys))
        for epoch in range(epochs):
            yield pa.Table.from_batches([timed_batch(rng, names, epoch, rows)])

    return made_once(directory / f"timed-{keys}-{rows}x{epochs}", tables())


def timed_batch(
    rng: np.random.Generator,
    names: pa.Array,
    epoch: int,
    rows: int,
    *,
    span_us: int = EPOCH_US,
) -> pa.RecordBatch:
    """Rows of one epoch of so much event time, in no order."""
    keys = len(names)
    drawn = rng.permutation(keys) if rows == keys else rng.integers(0, keys, rows)
    moments = _BEGIN_US + epoch * span_us + rng.integers(0, span_us, rows)
    return pa.record_batch(
        {
            "key": names.take(pa.array(drawn)),
            "ts": pa.array(moments, _TIME),
            "v": pa.array(rng.random(rows)),
        }
    )

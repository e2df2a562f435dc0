"""Inputs: Parquet files, one an epoch, made once and kept (seeded)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SCHEMA", "held_keys", "keyed_rows"]

SCHEMA = "key string, v double"


def keyed_rows(
    directory: Path, *, epochs: int, rows: int, keys: int, zipf: float | None = None
) -> Path:
    """Files of `rows` rows each, keys drawn uniformly or by Zipf's law."""
    target = directory / f"{'zipf' if zipf else 'uniform'}-{keys}-{rows}x{epochs}"
    if target.exists():
        return target
    rng = np.random.default_rng(1)
    names = _names(keys)
    weights = None
    if zipf:
        weights = np.arange(1, keys + 1, dtype=np.float64) ** -zipf
        weights = np.cumsum(weights / weights.sum())
    staging = target.with_suffix(".making")
    staging.mkdir(parents=True)
    for epoch in range(epochs):
        drawn = (
            rng.integers(0, keys, rows)
            if weights is None
            else np.searchsorted(weights, rng.random(rows))
        )
        _write(staging, epoch, names.take(pa.array(drawn)), rng.random(rows))
    staging.rename(target)
    return target


def held_keys(directory: Path, *, held: int, touched: int, epochs: int) -> Path:
    """Every one of `held` keys once (1 M a file), then `epochs` files that touch `touched` keys."""
    target = directory / f"held-{held}-{touched}x{epochs}"
    if target.exists():
        return target
    rng = np.random.default_rng(2)
    staging = target.with_suffix(".making")
    staging.mkdir(parents=True)
    number = 0
    for first in range(0, held, 1_000_000):
        ids = np.arange(first, min(held, first + 1_000_000))
        _write(staging, number, _names_of(ids), rng.random(len(ids)))
        number += 1
    for _ in range(epochs):
        ids = rng.integers(0, held, touched)
        _write(staging, number, _names_of(ids), rng.random(touched))
        number += 1
    staging.rename(target)
    return target


def _names(keys: int) -> pa.Array:
    return _names_of(np.arange(keys))


def _names_of(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array(np.char.add("user", np.char.zfill(ids.astype(str), 8)))


def _write(
    directory: Path,
    epoch: int,
    keys: pa.Array,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> None:
    table = pa.table({"key": keys, "v": values})
    # Two row groups: one for each core.
    pq.write_table(
        table, directory / f"part-{epoch:05d}.parquet", row_group_size=-(-table.num_rows // 2)
    )

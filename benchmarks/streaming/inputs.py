"""Inputs: Parquet files, one an epoch, made once and kept (seeded)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCHEMA = "key string, v double"


def keyed_rows(
    directory: Path, *, epochs: int, rows: int, keys: int, zipf: float | None = None
) -> Path:
    """Files of `rows` rows each, keys drawn uniformly or by Zipf's law."""

    def tables() -> Iterator[pa.Table]:
        rng, names = np.random.default_rng(1), names_of(np.arange(keys))
        weights = np.arange(1, keys + 1, dtype=np.float64) ** -(zipf or 0.0)
        weights = np.cumsum(weights / weights.sum())
        for _ in range(epochs):
            drawn = (
                np.searchsorted(weights, rng.random(rows)) if zipf else rng.integers(0, keys, rows)
            )
            yield pa.table({"key": names.take(pa.array(drawn)), "v": rng.random(rows)})

    name = f"{'zipf' if zipf else 'uniform'}-{keys}-{rows}x{epochs}"
    return made_once(directory / name, tables())


def held_keys(directory: Path, *, held: int, touched: int, epochs: int) -> Path:
    """Every one of `held` keys once (1 M a file), then `epochs` files that touch `touched` keys."""

    def tables() -> Iterator[pa.Table]:
        rng = np.random.default_rng(2)
        for first in range(0, held, 1_000_000):
            ids = np.arange(first, min(held, first + 1_000_000))
            yield pa.table({"key": names_of(ids), "v": rng.random(len(ids))})
        for _ in range(epochs):
            ids = rng.integers(0, held, touched)
            yield pa.table({"key": names_of(ids), "v": rng.random(touched)})

    return made_once(directory / f"held-{held}-{touched}x{epochs}", tables())


def made_once(target: Path, tables: Iterable[pa.Table]) -> Path:
    """Write a file for each table, unless the directory is there already; return it."""
    if target.exists():
        return target
    staging = target.with_suffix(".making")
    staging.mkdir(parents=True)
    for number, table in enumerate(tables):
        # Two row groups: one for each core.
        path = staging / f"part-{number:05d}.parquet"
        pq.write_table(table, path, row_group_size=-(-table.num_rows // 2))
    return staging.rename(target)


def names_of(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Keys of text, all of one length."""
    return pa.array(np.char.add("user", np.char.zfill(ids.astype(str), 8)))

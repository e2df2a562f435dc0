"""Results of `benchmarks.soak` held against DuckDB, and its samples against straight lines."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
from benchmarks.soak_query import IDLE_S, PAIR_S

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

OF_ONE_PROCESS: Final = (
    "driver_mib",
    "driver_used_mib",
    "jvm_mib",
    "jvm_used_mib",
    "threads",
    "descriptors",
)
"""Columns that begin again with every driver."""
_BLOCKS: Final = 12
_DRIVER_WARM_UP: Final = 1 / 12
"""Share of the run that is left out after the start of each driver, of figures of one process: ten
minutes of two hours."""


def differences(directory: Path, session: Any) -> dict[str, int]:
    """Return result → rows that the query has and DuckDB has not, or the reverse."""
    read = duckdb.connect()
    read.execute("set timezone = 'UTC'")
    for name in ("clicks", "buys"):
        read.execute(f"create view {name} as select * from '{directory / 'in' / name}/*.parquet'")
    oracle = {
        "minutes": f"""
            select c.page, time_bucket(interval 1 minute, c.ts) as at, count(*), sum(b.cents)
            from clicks c join buys b on b.user = c.user
                and b.ts between c.ts and c.ts + interval {PAIR_S} seconds
            group by all""",
        "visits": f"""
            with marked as (select user, ts, coalesce(
                ts - lag(ts) over (partition by user order by ts) >= interval {IDLE_S} seconds,
                true)::int as begins from clicks),
            numbered as (select *, sum(begins) over (partition by user order by ts
                rows unbounded preceding) as visit from marked)
            select user, max(ts) + interval {IDLE_S} seconds, count(*) from numbered
            group by user, visit""",
        "totals": "select user, count(*), sum(n), max(ts) from clicks group by user",
        "pages": "select user, page, sum(n) from clicks group by all",
    }
    rows: dict[str, Iterable[tuple[Any, ...]]] = {
        "minutes": read.execute(
            "select page, window_start, pairs, cents from "
            f"read_parquet('{directory}/out/minutes/**/*.parquet', hive_partitioning=false)"
        ).fetchall(),
        "visits": read.execute(
            'select user, "until", clicks from '
            f"read_parquet('{directory}/out/visits/**/*.parquet', hive_partitioning=false)"
        ).fetchall(),
        "totals": _state(session, directory, "totals", "user", "clicks", "n", "last"),
        "pages": _state(session, directory, "pages", "user", "item", "state"),
    }
    return {
        name: _num_different(read.execute(text).fetchall(), rows[name])
        for name, text in oracle.items()
    }


def _state(session: Any, directory: Path, operator: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return rows of an operator's state."""
    frame = gw.read_state(session, directory / "checkpoint", operator).select(*columns)
    return [tuple(row) for row in frame.collect()]


def _num_different(one: Iterable[tuple[Any, ...]], other: Iterable[tuple[Any, ...]]) -> int:
    """Return the number of rows that only one side has, each as often as it has it more."""
    counts: dict[tuple[str, ...], int] = {}
    for rows, sign in ((one, 1), (other, -1)):
        for row in rows:
            texts = tuple(_text(value) for value in row)
            counts[texts] = counts.get(texts, 0) + sign
    return sum(abs(count) for count in counts.values())


def _text(value: Any) -> str:
    """Return a value as text, a time in UTC without its zone."""
    if hasattr(value, "replace") and hasattr(value, "isoformat"):
        return str(value.replace(tzinfo=None).isoformat())
    return str(value)


def growth(csv_file: Path, *, warm_up: float) -> list[tuple[str, float, float, float]]:
    """Return column, mean, growth an hour, and its standard error, for each sampled figure.

    `warm_up`: share of the run that is left out at its beginning.

    A line is fitted to means of blocks, since samples that follow each other are alike. Figures of
    one process have an intercept for every driver, and no samples of its first minutes, in which
    the JVM loads and compiles code, and histories of a fixed length fill up.
    """
    with csv_file.open() as file:
        rows = list(csv.DictReader(file))
    hours = np.array([float(row["seconds"]) / 3600 for row in rows])
    late = hours >= warm_up * hours.max() if len(hours) else np.array([], dtype=bool)
    lines = []
    for name in rows[0] if rows else ():
        if name in {"seconds", "driver"}:
            continue
        values = np.array([float(row[name] or "nan") for row in rows])
        counted = late & ~np.isnan(values)
        drivers = np.array([row["driver"] for row in rows])
        groups = np.zeros(len(rows))
        if name in OF_ONE_PROCESS:
            groups, began = drivers, dict(zip(drivers[::-1], hours[::-1], strict=True))
            counted &= (
                hours >= np.array([began[d] for d in drivers]) + _DRIVER_WARM_UP * hours.max()
            )
        lines.append((name, *_line(hours[counted], values[counted], groups[counted])))
    return lines


def _line(
    hours: np.ndarray[Any, Any], values: np.ndarray[Any, Any], groups: Sequence[Any]
) -> tuple[float, float, float]:
    """Return mean, slope and standard error of the slope, with an intercept for each group."""
    blocks = []
    if len(hours):
        edges = np.linspace(hours.min(), hours.max() + 1e-9, _BLOCKS + 1)
        numbers = np.digitize(hours, edges)
        for group, number in sorted({*zip(groups, numbers, strict=True)}, key=str):
            inside = (np.asarray(groups) == group) & (numbers == number)
            blocks.append((group, hours[inside].mean(), values[inside].mean()))
    x, y = np.array([b[1] for b in blocks]), np.array([b[2] for b in blocks])
    names = [b[0] for b in blocks]
    for group in {*names}:
        inside = np.array([name == group for name in names])
        x[inside] -= x[inside].mean()
        y[inside] -= y[inside].mean()
    free, spread = len(blocks) - len({*names}) - 1, float((x**2).sum()) if blocks else 0.0
    mean = float(values.mean()) if len(values) else math.nan
    if free < 1 or spread == 0.0:
        return mean, math.nan, math.nan
    slope = float((x * y).sum() / spread)
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / free / spread)
    return mean, slope, error


def table(lines: Iterable[tuple[str, float, float, float]]) -> str:
    """Return a table of figures with their growth beside its error."""
    head = f"{'figure':<22}{'mean':>12}{'growth/h':>12}{'± error':>12}  "
    body = [
        f"{name:<22}{mean:>12,.1f}{slope:>12,.1f}{error:>12,.1f}"
        f"  {'grows' if slope > 3 * error else ''}"
        for name, mean, slope, error in lines
    ]
    return "\n".join([head, *body])


def write_results(path: Path, values: dict[str, Any]) -> None:
    """Write the results of a run as JSON."""
    path.write_text(json.dumps(values, indent=1, default=str) + "\n")

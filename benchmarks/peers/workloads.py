"""Rows that all peers read, as CSV files without a header, and what keys come to by DuckDB."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from benchmarks.streaming.inputs import keyed_rows

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CHECK", "Workload", "difference", "first_files", "workloads"]

_TOLERANCE = 1e-9  # of a sum, relative: rows are added up in any order


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Files of equal numbers of rows, of which a job reads the first ones.

    Attributes
    ----------
    function
        Whether a Python function with state per key computes the results.
    fast, slow
        Numbers of files of the small and the large job, for peers of either kind.
    """

    name: str
    about: str
    rows: int  # of a file
    keys: int
    zipf: float | None = None
    function: bool = False
    fast: tuple[int, int] = (2, 10)
    slow: tuple[int, int] = (2, 4)

    def files(self, directory: Path) -> Path:
        """Make the files, or find them."""
        number = max(*self.fast, *self.slow)
        source = keyed_rows(
            directory, epochs=number, rows=self.rows, keys=self.keys, zipf=self.zipf
        )
        target = directory / f"csv-{source.name}"
        if not target.exists():
            staging = target.with_suffix(".making")
            staging.mkdir(exist_ok=True)
            for path in sorted(source.iterdir()):
                rows = pq.read_table(path)
                cents = np.round(rows["v"].to_numpy() * 10_000) / 100
                rows = pa.table({"key": rows["key"], "v": cents})
                options = pc.WriteOptions(include_header=False, quoting_style="none")
                pc.write_csv(rows, staging / f"{path.stem}.csv", options)
            staging.rename(target)
        return target


CHECK = Workload(name="check", about="", rows=25_000, keys=5_000, fast=(2, 4))
"""The rows by which results are checked, in a run of their own."""


def workloads(rows: int) -> dict[str, Workload]:
    """Return the workloads, of files of `rows` rows, and of a tenth of them for the function."""
    listed = (
        Workload(name="uniform", about="1 M uniform keys", rows=rows, keys=1_000_000),
        Workload(name="zipf", about="100 k Zipf(1) keys", rows=rows, keys=100_000, zipf=1.0),
        Workload(
            name="function",
            about="a Python function with state per key, 10 k uniform keys",
            rows=rows // 10,
            keys=10_000,
            function=True,
            fast=(4, 40),
            slow=(4, 20),
        ),
    )
    return {workload.name: workload for workload in listed}


def first_files(files: Path, number: int, target: Path, *, header: bool) -> None:
    """Make a directory of the first files; `header`: of copies that begin with a line of names."""
    target.mkdir(parents=True)
    for path in sorted(files.iterdir())[:number]:
        if header:
            (target / path.name).write_bytes(b"key,v\n" + path.read_bytes())
        else:
            os.link(path, target / path.name)


def difference(files: Path, results: Path) -> str | None:
    """Compare the last result of every key with DuckDB's; return what is wrong, if anything."""
    if not results.exists():
        return "there are no results"
    expected = {
        key: (n, s)
        for key, n, s in duckdb.connect()
        .execute(
            "SELECT key, count(*), sum(v) FROM read_csv(?, header = false, "
            "columns = {'key': 'VARCHAR', 'v': 'DOUBLE'}) GROUP BY key",
            [str(files / "*.csv")],
        )
        .fetchall()
    }
    last = {}
    for line in results.read_text().splitlines():
        key, n, s = line.split(",")
        last[key] = int(n), float(s)
    for key in sorted(expected.keys() | last.keys()):
        n, s = expected.get(key, (0, 0.0))
        n_last, s_last = last.get(key, (0, 0.0))
        if n != n_last or not math.isclose(s, s_last, rel_tol=_TOLERANCE):
            return f"{key}: {n_last} rows with sum {s_last}, and not {n} with {s}"
    return None

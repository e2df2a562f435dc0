"""Pathway with two threads and no persistence: a watched directory, committed once a second.

Variants: ``sums`` (its reducers), ``function`` (a Python function with state per key).  Its stream
has no end; the job ends when the results count all rows.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from benchmarks.peers.programs.job import PARALLELISM, Job

os.environ["PATHWAY_THREADS"] = str(PARALLELISM)  # before it is imported
import pathway as pw

COMMIT_MS = 1000


class Row(pw.Schema):  # type: ignore[misc]
    """A row of the input."""

    key: str
    v: float


@pw.reducers.stateful_many  # type: ignore[untyped-decorator]
def total(
    state: tuple[int, float] | None, changes: list[tuple[list[float], int]]
) -> tuple[int, float]:
    """Count and add up rows of a key, which are only ever added."""
    n, s = state or (0, 0.0)
    for (v,), count in changes:
        n, s = n + count, s + v * count
    return n, s


def results_of(rows: Any, variant: str) -> Any:
    """Return the table of results."""
    groups = rows.groupby(rows.key)
    if variant == "sums":
        return groups.reduce(rows.key, n=pw.reducers.count(), s=pw.reducers.sum(rows.v))
    totals = groups.reduce(rows.key, total=total(rows.v))
    return totals.select(
        totals.key,
        n=pw.declare_type(int, totals.total[0]),
        s=pw.declare_type(float, totals.total[1]),
    )


def main() -> None:
    """Run the job that the command line names."""
    job = Job.of_command_line()
    done = threading.Event()
    rows = pw.io.csv.read(
        str(job.input), schema=Row, mode="streaming", autocommit_duration_ms=COMMIT_MS
    )
    results = results_of(rows, job.variant)
    if job.results is None:
        pw.io.null.write(results)
    else:

        def collect(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
            if is_addition:
                job.write([(row["key"], row["n"], row["s"])])

        pw.io.subscribe(results, collect)

    def look(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
        if is_addition and row["n"] == job.rows:
            done.set()

    pw.io.subscribe(results.reduce(n=pw.reducers.sum(results.n)), look)
    job.begin()
    options = {"monitoring_level": pw.MonitoringLevel.NONE}
    threading.Thread(target=pw.run, kwargs=options, daemon=True).start()
    done.wait()
    job.end()
    os._exit(0)  # its threads do not end


if __name__ == "__main__":
    main()

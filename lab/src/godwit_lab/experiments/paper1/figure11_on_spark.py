"""Paper 1, figure 11 on Spark: response time around a migration, live and with everything stopped.

A query on three executors of one core each, which are processes of this machine, counts numbers by
key.  Live, ``query.scale(2)`` moves the key groups of one executor while rows continue, and gives
it back.  Stopped, it is done as without Godwit: the query and its application end, one with two
executors starts, and the query continues from its checkpoint.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import godwit as gw
from godwit.ops.local_cluster import LocalCluster
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    figure,
)
from godwit_lab.experiments.paper1.figure11 import live_or_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from godwit_lab.cli.reproduce.figure import Data


_ROWS_PER_S, _KEYS, _KEY_GROUPS = 400.0, 20_000, 48
_BEFORE, _AFTER = 3, 2
_SLICE_S = 2.0
_AROUND_S = 20.0  # after the migration, in which it may show


class _Measured:
    """Epochs of a query that was perhaps stopped, with the response time of their rows."""

    def __init__(self) -> None:
        self.epochs: list[tuple[float, int, float]] = []  # committed, rows, mean in milliseconds

    def hear(self, event: gw.events.Event) -> None:
        if isinstance(event, gw.events.EpochCommitted) and event.latency_ms:
            self.epochs.append((event.at_s, event.rows_in, event.latency_ms["mean"]))

    def slices(self, begin_s: float, seconds: float) -> list[tuple[float, float]]:
        """Mean response time of rows by the slice of time in which they came out."""
        at, rows, mean_ms = np.array(self.epochs).T
        number = np.floor((at - begin_s) / _SLICE_S).astype(int)
        return [
            (_SLICE_S * one, float(np.average(mean_ms[number == one], weights=rows[number == one])))
            for one in range(int(seconds / _SLICE_S))
            if (number == one).any()
        ]


def _start(
    cluster: LocalCluster, work: Path, executors: int, measured: _Measured
) -> tuple[SparkSession, gw.types.Query]:
    """Start an application with `executors` executors, and resume the query."""
    spark = cluster.session("figure11", {"spark.cores.max": str(executors)})
    spark.sparkContext.setLogLevel("OFF")
    flow = gw.Flow("counts", num_key_groups=_KEY_GROUPS)
    numbers = flow.source("numbers", gw.sources.rate(_ROWS_PER_S, num_keys=_KEYS))
    counts = numbers.key_by("key").compute(name="counts", n=gw.count(), last=gw.last("value"))
    flow.sink("counts", counts, gw.sinks.noop())
    query = flow.start(
        session=spark,
        checkpoint=work / "checkpoint",
        executors=executors,
        sizing=gw.Sizing(executors_timeout_s=180.0),
    )
    query.add_listener(measured.hear)
    return spark, query


def _play(run: FigureRun, *, live: bool) -> tuple[list[tuple[float, float]], float]:
    """Run the query; return the response times, and when the migration began, both in seconds."""
    before_s, measured = run.pick(30.0, 120.0), _Measured()
    with (
        tempfile.TemporaryDirectory(prefix="godwit-figure-") as directory,
        LocalCluster(_BEFORE, memory="512m", work_dir=Path(directory, "cluster")) as cluster,
    ):
        spark, query = _start(cluster, Path(directory), _BEFORE, measured)
        try:
            query.processAllAvailable()
            begin_s = time.time()
            time.sleep(before_s)
            moved_s = time.time() - begin_s
            if live:
                query.scale(_AFTER).wait(120)
            else:
                query.stop()
                spark.stop()
                spark, query = _start(cluster, Path(directory), _AFTER, measured)
                query.processAllAvailable()
            time.sleep(_AROUND_S)
            seconds = time.time() - begin_s
        finally:
            query.stop()
    return measured.slices(begin_s, seconds), moved_s


def _around(migration: str) -> Callable[[Data], float]:
    """Return a getter of the largest response time from the migration on."""

    def number(data: Data) -> float:
        at_s, ms = (data.column(name, migration=migration) for name in ("second", "response_ms"))
        return float(ms[at_s > -_SLICE_S].max())

    return number


def _usual(data: Data) -> float:
    """Return the median response time before the migration, live."""
    at_s, ms = (data.column(name, migration="live") for name in ("second", "response_ms"))
    return float(np.median(ms[at_s < -_SLICE_S]))


@figure(
    title="Response time around a migration, live and stopped, on Spark",
    clauses=live_or_stopped(_around, _usual, 3.0),
    workload=f"{_ROWS_PER_S:.0f} rows a second of {_KEYS:,} keys on {_BEFORE} executors of one "
    f"core, then on {_AFTER}, processes of one machine. Stopped: the query and its application "
    "end, and start again from the checkpoint.",
    place=RunsOn.SPARK,
    charts=(
        Chart(x="second", y="response_ms", by="migration",
              x_label="seconds after the migration began", y_label="mean response time (ms)",
              log_y=True),
    ),
    mechanism="live migration",
    reason="The state is small, so ending and starting an application takes the time; rows wait "
    "for the end of their epoch either way.",
)  # fmt: skip
def figure11_on_spark(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for name, live in (("live", not run.off), ("stop everything", False)):
        run.progress(name)
        told, moved_s = _play(run, live=live)
        rows += [
            {"migration": name, "second": at_s - moved_s, "response_ms": ms} for at_s, ms in told
        ]
    return FigureResult(rows=rows, notes=("times are of one run on the machine at hand",))

"""The fast job of paper 3 (§7.7, Figure 16): four operators in a row, none to all of them fused.

``python -m benchmarks.fusion [--rows N] [--keys N] [--epochs N] [--rounds N] [--sums] [--contained]
[--in-process] [--executors N]``

The paper's job: four operators in a row over one key sum values over windows of 1, 5, 10 and 20
minutes, and each sends every row on at once.  After a warm-up the plans take turns, round by round,
in one session, each on a new checkpoint; figures are medians over the second half of the epochs,
and ratios are within one round.  Besides the ratio of epochs there is that of exchanges alone: what
lanes take to pack rows for the next operator, and to unpack what arrives.

``--sums`` has four sums without windows, by as many keys as rows; every operator sends each key
that an epoch touched to the next.

``--contained`` compares a sum by (area, user) and one behind it by area, of 100 users each: placed
by all their columns, with an exchange between; and both by area, in one component.

``--in-process`` tells the CPU time of a row without Spark.

``--executors`` runs on a cluster of so many processes of this machine, so that an exchange crosses
their sockets; else all is in one process (``local[2]``).
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.options import append_json, read_options, temporary_directory
from benchmarks.streaming.inputs import keyed_rows
from benchmarks.streaming.programs import epochs_of, session, stream

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS = ("minute", "five", "ten", "twenty")
MINUTES = (1, 5, 10, 20)
ROWS = "key long, ts long, v double"
_EXCHANGE = ("decode", "pass_on")
"""Phases of a lane in which rows are unpacked, and packed for the next operator."""
FUSED = (0, 2, 3, 4)


@dataclass
class Window:
    """State of a key: the window of its last row, and the sum of that window's values."""

    number: int = -1
    total: float = 0.0


def timed_rows(directory: Path, *, epochs: int, rows: int, keys: int) -> Path:
    """Write files of `rows` rows of drawn keys; each file has half a minute of event time."""
    target = directory / f"timed-{keys}-{rows}x{epochs}"
    if target.exists():
        return target
    rng = np.random.default_rng(1)
    staging = target.with_suffix(".making")
    staging.mkdir(parents=True)
    for epoch in range(epochs):
        times = np.sort(rng.integers(epoch * 30_000_000, (epoch + 1) * 30_000_000, rows))
        table = pa.table({"key": rng.integers(0, keys, rows), "ts": times, "v": rng.random(rows)})
        pq.write_table(table, staging / f"part-{epoch:05d}.parquet", row_group_size=-(-rows // 2))
    staging.rename(target)
    return target


def add_up(minutes: int) -> Any:
    """Make a function that adds rows to their key's window, and passes them on."""

    def windowed(rows: pa.Table, states: pa.Table, key_of_row: np.ndarray) -> tuple[Any, Any]:
        window = rows["ts"].to_numpy() // (minutes * 60_000_000)
        values = rows["v"].to_numpy()
        before = states["number"].to_numpy()
        number = before.copy()
        number[key_of_row] = window  # the last row of a key has its last window
        last = window == number[key_of_row]
        if last.all():
            total = np.bincount(key_of_row, values, len(number))
        else:
            total = np.bincount(key_of_row[last], values[last], len(number))
        total += np.where(number == before, states["total"].to_numpy(), 0.0)
        return rows, pa.table({"number": number, "total": total})

    return windowed


def fast_flow(rows: Any, fused: int) -> tuple[Any, dict[str, Any]]:
    """Return the paper's job over a source, and components of its first `fused` operators."""
    import godwit as gw

    flow = gw.Flow("fast_job", num_key_groups=256)
    made = flow.source("rows", rows)
    for name, minutes in zip(OPERATORS, MINUTES, strict=True):
        keyed = made.key_by("key")
        made = keyed.process_batch(add_up(minutes), state=Window, output=ROWS, name=name)
    flow.sink("out", made, gw.sinks.noop())
    return flow, {"row": OPERATORS[:fused]} if fused else {}


def cpu_us(directory: Path, fused: int) -> float:
    """Return the CPU microseconds of a row in this process, without Spark."""
    import godwit as gw

    flow, components = fast_flow(gw.testing.stream(ROWS), fused)
    took = []
    with gw.testing.cluster(flow, executors=2, components=components or None) as played:
        for path in sorted(directory.glob("*.parquet")):
            rows = pq.read_table(path)
            gc.collect()
            began_s = time.process_time()
            played.epoch({"rows": rows})
            took.append((time.process_time() - began_s) * 1e6 / len(rows))
    return median(took[len(took) // 2 :])


def fast_job(spark: Any, source: Path, fused: int, work: Path) -> dict[str, float]:
    """Run all epochs of the paper's job with the first `fused` operators in one component.

    Returns median milliseconds of an epoch (Spark's ``triggerExecution``), of its stages, of what
    its lanes did and of their exchanges, the sum over lanes and levels.
    """
    flow, components = fast_flow(stream(spark, str(source), ROWS), fused)
    return _played(flow, work / f"fused-{fused}", components)


def sums_job(spark: Any, source: Path, fused: int, work: Path) -> dict[str, float]:
    """Run all epochs of sums without windows, the first `fused` of them in one component."""
    import godwit as gw

    flow = gw.Flow("sums", num_key_groups=256)
    keyed = flow.source("rows", stream(spark, str(source))).key_by("key")
    made = keyed.compute(name=OPERATORS[0], n=gw.count(), v=gw.sum("v"))
    for name in OPERATORS[1:]:
        made = made.key_by("key").compute(name=name, n=gw.sum("n"), v=gw.sum("v"))
    flow.sink("out", made, gw.sinks.noop())
    components = {"row": OPERATORS[:fused]} if fused else {}
    return _played(flow, work / f"fused-{fused}", components)


def contained_job(spark: Any, source: Path, together: int, work: Path) -> dict[str, float]:
    """Run all epochs of sums by area and user, and by area, apart or together."""
    import godwit as gw

    frame = stream(spark, str(source)).selectExpr("substring(key, 1, 10) AS area", "key", "v")
    flow = gw.Flow("contained", num_key_groups=256)
    rows = flow.source("rows", frame)
    users = rows.key_by("area", "key", partition_by="area" if together else None).compute(
        name="users", n=gw.count(), v=gw.sum("v")
    )
    areas = users.key_by("area").compute(name="areas", n=gw.count(), v=gw.max("v"))
    flow.sink("out", areas, gw.sinks.noop())
    return _played(flow, work / "contained", {"both": ["users", "areas"]} if together else {})


def _played(flow: Any, checkpoint: Path, components: dict[str, Any]) -> dict[str, float]:
    """Run a flow over all that there is; see `fast_job`."""
    query = flow.start(checkpoint=checkpoint, components=components)
    query.processAllAvailable()
    epochs = epochs_of(query._driver.spark_query.recentProgress)  # noqa: SLF001  the same clock
    own = [p for p in query.recentProgress if p["numInputRows"]]
    query.stop()
    steady = slice(len(epochs) // 2, None)
    return {
        "epoch_ms": median(e["ms"] for e in epochs[steady]),
        "stages_ms": median(p["durationMs"]["stages"] for p in own[steady]),
        "lanes_ms": median(p["laneMs"]["lane"] for p in own[steady]),
        "exchange_ms": median(
            sum(p["laneMs"].get(phase, 0.0) for phase in _EXCHANGE) for p in own[steady]
        ),
    }


def in_turns(plans: tuple[int, ...], rounds: int) -> list[tuple[int, int]]:
    """List rounds and their plans, after a round 0 of the first one for the JVM to compile."""
    return [(0, plans[0]), *product(range(1, rounds + 1), plans)]


def open_session(executors: int, stack: ExitStack) -> Any:
    """Start a session in this process, or one with executors of their own until `stack` ends."""
    if not executors:
        return session()
    from godwit.ops.local_cluster import LocalCluster

    settings = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    cluster = stack.enter_context(LocalCluster(executors, memory="2g"))
    return cluster.session("fusion", settings)


def main() -> None:
    given = read_options(
        __doc__,
        rows=1_000_000,
        keys=10_000,
        epochs=16,
        rounds=3,
        inputs=Path("artifacts/inputs"),
        json=Path("artifacts/fusion.jsonl"),
        sums=False,
        contained=False,
        in_process=False,
        executors=0,
    )
    job: Callable[..., dict[str, float]] = sums_job if given.sums else fast_job
    plans: tuple[int, ...] = FUSED
    if given.contained:
        plans, job = (0, 2), contained_job
    made = keyed_rows if given.sums or given.contained else timed_rows
    source = made(given.inputs, epochs=given.epochs, rows=given.rows, keys=given.keys)
    if given.in_process:
        for turn, fused in in_turns(plans, given.rounds):
            print(f"round {turn}  {fused} fused  {cpu_us(source, fused):.2f} µs of CPU a row")
        return
    found: dict[int, list[dict[str, float]]] = {fused: [] for fused in plans}
    with ExitStack() as stack:
        spark = open_session(given.executors, stack)
        for turn, fused in in_turns(plans, given.rounds):
            with temporary_directory() as work:
                took = job(spark, source, fused, work)
            if not turn:
                continue
            found[fused].append(took)
            print(
                f"round {turn}  {fused} fused  {took['epoch_ms']:7.0f} ms an epoch, "
                f"{took['stages_ms']:7.0f} its stages, {took['lanes_ms']:7.0f} its lanes, "
                f"{took['exchange_ms']:7.0f} their exchanges, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for fused in plans[1:]:
        for what in ("epoch_ms", "stages_ms", "exchange_ms"):
            ratios = [
                none[what] / some[what] for none, some in zip(found[0], found[fused], strict=True)
            ]
            print(
                f"none / {fused} fused, {what}: {median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
    append_json(given.json, {"fusion": vars(given) | {"found": found}})


if __name__ == "__main__":
    main()

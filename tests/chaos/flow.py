"""The flow that everything is killed under, and what it gives if nothing is.

Rows are numbered per key, so a function that meets a wrong number has proof of a row lost, doubled
or out of order.  A row may carry an act: the first lane to meet it does what it says, once, however
often its epoch is tried again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

__all__ = [
    "COLUMNS",
    "Row",
    "chaos_flow",
    "epochs_of",
    "expected_epochs",
    "expected_final",
    "is_alive",
]

COLUMNS = "k int, number long, act string"
KEYS, SHARDS = 40, 7

Row = tuple[int, int, str]
Epochs = list[Counter[tuple[int, ...]]]


def epochs_of(seed: int, count: int, rows: int = 60) -> list[list[Row]]:
    """Generate epochs of rows numbered per key; every key has a row in every epoch or so."""
    rng = random.Random(seed)
    number = dict.fromkeys(range(KEYS), 0)
    epochs = []
    for _ in range(count):
        made = []
        for key in [*range(KEYS), *(rng.randrange(KEYS) for _ in range(rows - KEYS))]:
            made.append((key, number[key], ""))
            number[key] += 1
        epochs.append(made)
    return epochs


def act(name: str, directory: str) -> None:
    """Do what a row says, unless it has been done."""
    try:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    kind, _, detail = name.partition(" ")
    if kind == "die":  # only this Python process
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "signal":  # another process, the pid of which stands in a file
        os.kill(int(Path(directory, detail).read_text()), signal.SIGKILL)
    if kind == "end":  # as above, and nothing comes of the lane that does it
        os.kill(int(Path(directory, detail).read_text()), signal.SIGKILL)
        time.sleep(120)
    if kind == "pause":  # the executor that this belongs to stands still, until someone wakes it
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(") ")[2].split()[1])
        pids = [executor, daemon, os.getpid()]
        Path(directory, f"{detail}.part").write_text(" ".join(map(str, pids)))
        Path(directory, f"{detail}.part").rename(Path(directory, detail))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    if kind == "wait":  # for the death of a process, which may be the one this belongs to
        while is_alive(int(Path(directory, "victim").read_text())):
            time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and not only waiting for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def chaos_flow(
    spark: SparkSession,
    directory: Path,
    *,
    dsn: str | None = None,
    num_key_groups: int = 8,
    mixed: bool = False,
) -> gw.Flow:
    """Build the flow over ``directory/in``; its sinks are in ``directory/out``.

    With `mixed`, rows come from ``directory/own`` too, by a source of Godwit's own, and the rows of
    both go to sinks as they are, too: to files, and to a database if there is one.

    Level 1: `order` (a function that insists on its order) and `totals`; level 2: `shards`, which
    counts what `order` emits.
    """
    acts = str(directory / "acts")
    Path(acts).mkdir(exist_ok=True)

    def order(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[Any, ...]]:
        for row in rows:
            if row.act.startswith("1 "):
                act(row.act[2:], acts)
            due = seen.get("next", 0)
            if row.number != due:
                msg = f"number {row.number} came where {due} was due"
                raise ValueError(msg)
            seen["next"] = due + 1
            later = row.act if row.act.startswith("2 ") else ""
            yield key[0], row.number, key[0] % SHARDS, later

    def shards(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[Any, ...]]:
        for row in rows:
            if row.act:
                act(row.act[2:], acts)
        seen["rows"] = seen.get("rows", 0) + len(rows)
        seen["sum"] = seen.get("sum", 0) + sum(rows.column("number"))
        return [(key[0], seen["rows"], seen["sum"])]

    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    flow = gw.Flow("chaos", num_key_groups=num_key_groups)
    came = flow.source("rows", rows.parquet(str(directory / "in")))
    if mixed:
        own = gw.sources.parquet(directory / "own", schema=COLUMNS, max_rows_per_epoch=40)
        came = came.union(flow.source("own", own))
    keyed = came.key_by("k")
    ordered = keyed.process(
        order, state=dict, output="k int, number long, shard int, act string", name="order"
    )
    totals = keyed.compute(name="totals", rows=gw.count(), total=gw.sum("number"))
    counted = ordered.key_by("shard").process(
        shards, state=dict, output="shard int, rows long, total long", name="shards"
    )
    shown = ordered.map(lambda table: table.select(["k", "number"]))
    for name, stream in (("order", shown), ("totals", totals), ("shards", counted)):
        lane_bytes = 0 if name == "totals" else 2**20  # one of them is written by lanes
        sink = gw.sinks.parquet(directory / "out" / name, lane_bytes=lane_bytes)
        flow.sink(name, stream, sink)
    if mixed:
        flow.sink("raw", came, gw.sinks.parquet(directory / "out/raw", lane_bytes=0))
        if dsn is not None:
            flow.sink("raw_table", came, gw.sinks.postgres(dsn, "raw"))
    if dsn is not None:
        flow.sink("table", shown, gw.sinks.postgres(dsn, "numbers"))
        flow.sink("newest", totals, gw.sinks.postgres(dsn, "newest", mode="upsert"))
    return flow


def expected_epochs(epochs: Sequence[Sequence[Row]]) -> dict[str, Epochs]:
    """Rows of every sink in every epoch of a run that nothing happens to."""
    rows_of: dict[int, int] = defaultdict(int)
    total_of: dict[int, int] = defaultdict(int)
    found: dict[str, Epochs] = {"order": [], "totals": [], "shards": []}
    shard_rows: dict[int, int] = defaultdict(int)
    shard_sum: dict[int, int] = defaultdict(int)
    for rows in epochs:
        for k, number, _ in rows:
            rows_of[k] += 1
            total_of[k] += number
            shard_rows[k % SHARDS] += 1
            shard_sum[k % SHARDS] += number
        touched = {k for k, _, _ in rows}
        found["order"].append(Counter((k, number) for k, number, _ in rows))
        found["totals"].append(Counter((k, rows_of[k], total_of[k]) for k in touched))
        found["shards"].append(
            Counter((s, shard_rows[s], shard_sum[s]) for s in {k % SHARDS for k in touched})
        )
    return found


def expected_final(epochs: Sequence[Sequence[Row]], sink: str) -> dict[int, tuple[int, ...]]:
    """Key → its newest row in a sink, after a run that nothing happens to."""
    newest: dict[int, tuple[int, ...]] = {}
    for counted in expected_epochs(epochs)[sink]:
        newest.update((row[0], row[1:]) for row in sorted(counted))
    return newest

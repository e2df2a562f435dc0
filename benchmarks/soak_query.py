"""The query of `benchmarks.soak`: six operators with joins, timers and a map, on a local cluster.

    godwit run benchmarks/soak_query.py DIR

Its directory has the rows (``in/``), the checkpoint, the targets of two sinks, and files by which
the soak program steers it: ``wanted.json`` (number of executors, version of the flow). It writes
``processes.json``: the processes that the soak program measures and kills, and how much memory the
driver uses of what it holds.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

CLICKS: Final = "user long, page string, n long, ts timestamp"
BUYS: Final = "user long, cents long, ts timestamp"
SLACK_S: Final = 10
PAIR_S: Final = 30
"""A buy belongs to a click at most this much earlier."""
IDLE_S: Final = 20
"""A visit ends with the last click before a pause of this length."""
WORKERS: Final = 3
COLLECT_S: Final = 60.0
"""Seconds between two full collections of the driver's JVM."""


def count_pages(key: Any, rows: Any, states: Any) -> Iterator[tuple[int, int]]:
    """Count clicks by page in a map; emit the number of pages of the user."""
    for row in rows:
        states.per_page[row.page] = states.per_page.get(row.page, 0) + row.n
    yield key[0], len(states.per_page)


def note_visit(_: Any, rows: Any, visit: dict[str, Any]) -> None:
    """Add clicks to the visit, in order of event time, and set the timer of its end."""
    for row in rows:
        visit["clicks"] = visit.get("clicks", 0) + 1
        for earlier in rows.timers.list():
            rows.timers.cancel(earlier)
        rows.timers.set(row.ts + timedelta(seconds=IDLE_S))


def end_visit(key: Any, timer: Any, visit: dict[str, Any]) -> Iterator[tuple[int, Any, int]]:
    """Emit the visit, and forget it."""
    yield key[0], timer.time, visit["clicks"]
    timer.drop_state()


def build(directory: Path, version: int) -> gw.Flow:
    """Draw the flow; odd versions have one more operator, which even ones leave out again."""
    flow = gw.Flow("soak", num_key_groups=32)
    slack = f"{SLACK_S} seconds"
    clicks = flow.source(
        "clicks",
        gw.sources.parquet(directory / "in/clicks", schema=CLICKS, pattern="*.parquet"),
        event_time="ts",
        slack=slack,
    )
    buys = flow.source(
        "buys",
        gw.sources.parquet(directory / "in/buys", schema=BUYS, pattern="*.parquet"),
        event_time="ts",
        slack=slack,
    )
    by_user = clicks.key_by("user")
    totals = by_user.compute(name="totals", clicks=gw.count(), n=gw.sum("n"), last=gw.max("ts"))
    flow.sink("totals", totals, gw.sinks.noop())
    pages = by_user.process(
        count_pages,
        name="pages",
        state={"per_page": gw.MapState(str, int)},
        output="user long, pages long",
    )
    flow.sink("pages", pages, gw.sinks.noop())
    pairs = by_user.join(
        buys.key_by("user"),
        between=("0 seconds", f"{PAIR_S} seconds"),
        suffix="_buy",
        name="pairs",
    )
    minutes = (
        pairs.key_by("page")
        .window(gw.tumbling("1 minute"), name="minutes")
        .compute(pairs=gw.count(), cents=gw.sum("cents"))
    )
    flow.sink("minutes", minutes, gw.sinks.parquet(directory / "out/minutes"))
    visits = by_user.process(
        note_visit,
        name="visits",
        state=dict,
        order="event_time",
        timers=gw.types.OnTimer(end_visit, clock="event"),
        output="user long, until timestamp, clicks long",
    )
    flow.sink("visits", visits, gw.sinks.parquet(directory / "out/visits"))
    lengths = visits.key_by("clicks").compute(name="lengths", visits=gw.count())
    flow.sink("lengths", lengths, gw.sinks.noop())
    if version % 2:
        name = gw.types.Identity(f"extra_{version}", starts_empty=True)
        flow.sink("extra", clicks.key_by("page").compute(name=name, n=gw.sum("n")), gw.sinks.noop())
    return flow


def read_wanted(directory: Path) -> dict[str, int]:
    """Return the number of executors and the version of the flow that are wanted."""
    wanted: dict[str, int] = json.loads((directory / "wanted.json").read_text())
    return wanted


def write_whole(path: Path, values: Any) -> None:
    """Write a JSON file at once."""
    hidden = path.with_name(f"_{path.name}")
    hidden.write_text(json.dumps(values))
    hidden.replace(path)


class _Mallinfo2(ctypes.Structure):
    """The C library's ``struct mallinfo2``; 4: bytes allocated by mmap, 7: others in use."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def malloc_used_mib() -> float | str:
    """Return what this process has allocated by ``malloc`` and not freed; empty without glibc.

    Resident memory also has what is free, and was not given back to the operating system.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return ""
    mallinfo2.restype = _Mallinfo2
    sizes = mallinfo2().sizes
    return float(round((sizes[4] + sizes[7]) / 2**20, 2))


def heap_used_mib(session: Any) -> float:
    """Return what is in use of the driver's JVM's heap after a full collection."""
    jvm = session.sparkContext._jvm  # noqa: SLF001  no public way to ask
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    return float(round(memory.getHeapMemoryUsage().getUsed() / 2**20, 2))


def steer(
    query: gw.types.Query, cluster: gw.testing.LocalCluster, session: Any, directory: Path
) -> None:
    """Scale as wanted, and write the processes and their memory, until the query ends."""
    asked, collected_s, heap_mib = 0, time.monotonic(), 0.0
    app = session.sparkContext.applicationId
    while query.isActive:
        if heap_mib == 0.0 or time.monotonic() - collected_s > COLLECT_S:
            collected_s, heap_mib = time.monotonic(), heap_used_mib(session)
        processes = {
            "driver": os.getpid(),
            "driver_used_mib": malloc_used_mib(),
            "jvm_used_mib": heap_mib,
            "executors": cluster.executor_pids(app),
        }
        write_whole(directory / "processes.json", processes)
        wanted = read_wanted(directory)["executors"]
        latest = query.scaling.latest
        if (latest is None or latest.done) and wanted not in {asked, len(query.executors)}:
            asked = wanted
            try:
                query.scale(wanted)
            except gw.errors.GodwitError as error:
                print(f"not scaled: {error}", flush=True)
        elif wanted == len(query.executors):
            asked = wanted
        time.sleep(1.0)


def main() -> None:
    """Run the query until it is stopped or drained."""
    directory = Path(sys.argv[1])
    wanted = read_wanted(directory)
    with gw.testing.LocalCluster(workers=WORKERS, memory="512m") as cluster:
        settings = {
            "spark.cores.max": str(wanted["executors"]),
            # Spark's own default: the driver's history of epochs is full after so many.
            "spark.sql.streaming.numRecentProgressUpdates": "100",
        }
        session = cluster.session("soak", settings)
        query = build(directory, wanted["version"]).start(
            checkpoint=directory / "checkpoint",
            session=session,
            executors=1,
            trigger={"processingTime": "2 seconds"},
            close_at_end=True,
            sizing=gw.Sizing(executors_timeout_s=30.0),
        )
        arguments = (query, cluster, session, directory)
        threading.Thread(target=steer, args=arguments, daemon=True).start()
        with query:
            query.awaitTermination()


if __name__ == "__main__":
    main()

"""The query of `benchmarks.soak`: six operators with joins, timers and a map, on a local cluster.

    godwit run benchmarks/soak_query.py DIR

Its directory has the rows (``in/``), the checkpoint, the targets of two sinks, and files by which
the soak program steers it: ``wanted.json`` (number of executors, version of the flow). It writes
``processes.json``: the processes that the soak program measures and kills.
"""

from __future__ import annotations

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


def steer(query: gw.types.Query, cluster: gw.LocalCluster, app: str, directory: Path) -> None:
    """Scale as wanted, and write the processes, until the query ends."""
    asked = 0
    while query.isActive:
        processes = {"driver": os.getpid(), "executors": cluster.executor_pids(app)}
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
    with gw.LocalCluster(workers=WORKERS, memory="512m") as cluster:
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
        app = session.sparkContext.applicationId
        threading.Thread(target=steer, args=(query, cluster, app, directory), daemon=True).start()
        with query:
            query.awaitTermination()


if __name__ == "__main__":
    main()

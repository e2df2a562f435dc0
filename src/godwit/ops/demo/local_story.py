"""The script of the demo in this process: the same flow, moves and loss, without Spark and JVMs.

Coordinator, lanes, local stores and checkpoint are the real ones (`gw.testing.cluster`); executors
are directories, so state really moves from one to another, and is lost with one that is killed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import godwit as gw
import godwit.testing
from godwit.ops.demo.comparison import Comparison, compare
from godwit.ops.demo.flights import COLUMNS, Days, write_days
from godwit.ops.demo.story import PLANE, ROUTE, Outcome, Settings, delays, outcome_of, third_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from godwit.ops.demo.show import Show


def play(settings: Settings, show: Show, loading: Future[Days]) -> Outcome:
    """Run the demo from start to end in this process, and return its verdict.

    `loading`: the rows.
    """
    folder, days = settings.work_dir, loading.result()
    (folder / "in").mkdir()
    show.rows_in_all = sum(rows.num_rows for _, rows in days)
    source = gw.sources.parquet(
        folder / "in", schema=COLUMNS, max_files_per_epoch=settings.days_per_epoch
    )
    flow, by_plane, by_route = delays(settings, source)
    flow.sink("by_plane", by_plane, gw.sinks.noop())
    flow.sink("by_route", by_route, gw.sinks.noop())
    names = [str(number) for number in range(settings.executors)]
    show.say(f"{len(days)} days of flights, {len(names) - 1} executors in this process")
    show.stream_began()
    checkpoint = folder / "checkpoint"
    with gw.testing.cluster(
        flow, executors=dict.fromkeys(names[:-1], 1), checkpoint=checkpoint
    ) as run:
        _run_days(settings, run, show, days, names)
        show.say("the stream has ended; comparing with a batch query over the same rows")
        compared = tuple(_compare_sinks(pa.concat_tables([rows for _, rows in days]), run))
    return outcome_of(settings, compared)


def _run_days(
    settings: Settings, run: gw.testing.Run, show: Show, days: Days, names: list[str]
) -> None:
    """Feed the days, one epoch after the other, with the steps of the demo between them."""
    step, moved, killed = settings.days_per_epoch, False, False
    for first in range(0, len(days), step):
        write_days(days[first : first + step], settings.work_dir / "in")
        share = first / len(days)
        if first == step:
            show.say(f"executor {names[-1]} joins")
            run.add(names[-1])
        if share >= 1 / 4 and not moved:
            moved = True
            show.say(
                f"moving a third of the key groups of each operator, live, to executor {names[-1]}"
            )
            show.mark("migration started")
            for name, assignment in run.placement.assignments.items():
                plan = third_to(assignment, names[-1])
                _act_and_show(run, show, partial(run.migrate, plan, component=name))
            show.mark("migration finished")
        is_killed_now = settings.kill and share >= 0.55 and not killed
        if is_killed_now:
            killed = True
            show.mark(f"executor {names[0]} killed")
            show.say(f"executor {names[0]} killed")
            run.kill(names[0])
        _act_and_show(run, show, run.epoch)
        if is_killed_now:
            show.mark("recovered")
            show.say("recovered: no key group waits")


def _act_and_show(run: gw.testing.Run, show: Show, act: Callable[[], object]) -> None:
    """Run an action with epochs; show them as one, with their events."""
    epochs = len(run.epochs)
    began_s = time.time()
    act()
    took_ms = (time.time() - began_s) * 1e3
    for event in run.events[len(show.events) :]:
        show.add_event(event)
    if run.epochs[epochs:]:
        assignments = run.placement.assignments
        show.add_epoch(
            {
                "epoch": run.epochs[-1].epoch,
                "timestamp": datetime.fromtimestamp(began_s, UTC).isoformat(),
                "durationMs": {"epoch": took_ms},
                "numInputRows": sum(outcome.rows_in for outcome in run.epochs[epochs:]),
                "executors": {name: {"lanes": lanes} for name, lanes in run.executors.items()},
                "keyGroups": {name: dict(a.num_owned) for name, a in assignments.items()},
            }
        )


def _compare_sinks(flights: pa.Table, run: gw.testing.Run) -> Iterator[Comparison]:
    """Yield comparisons of the sinks' rows with plain aggregates of the same input."""
    delay, every = "arr_delay", pc.CountOptions(mode="all")
    by_plane = flights.group_by(list(PLANE)).aggregate(
        [(delay, "count", every), (delay, "count"), (delay, "sum"), (delay, "mean")]
    )
    by_plane = by_plane.rename_columns([*PLANE, "flights", "arrived", "total_delay", "mean_delay"])
    by_route = flights.group_by(list(ROUTE)).aggregate(
        [(delay, "count", every), (delay, "mean"), (delay, "max")]
    )
    by_route = by_route.rename_columns([*ROUTE, "flights", "mean_delay", "worst_delay"])
    yield compare("delays by airplane and year", run.current("by_plane"), by_plane, PLANE)
    yield compare("delays by route", run.current("by_route"), by_route, ROUTE)

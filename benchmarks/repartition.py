"""Other columns place the state of a running query, against a stop and a start that do the same.

``python -m benchmarks.repartition [--areas N] [--users N] [--rounds N]``

Sums by (area, user) and, behind them, by area.  In the middle the state goes to the key groups of
its area, and both operators into one component: while the query runs, by a stop and a start, or,
for comparison, by a stop and a start that rewrite nothing.  The pause is the time between the
commit of the last epoch before and the beginning of the first after.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from benchmarks.options import append_json, read_options, temporary_directory
from benchmarks.streaming.programs import session

EPOCHS, ROWS = 8, 20_000
"""Epochs before and after, and rows of each; those of the first have every key."""
WAYS = ("live", "stop and start", "restart only")


def flow_over(source: Any, **placed: Any) -> Any:
    """Return the flow over a source of rows."""
    import godwit as gw

    flow = gw.Flow("repartition", num_key_groups=256)
    rows = flow.source("rows", source)
    users = rows.key_by("area", "user", **placed).compute(name="users", v=gw.sum("v"))
    areas = users.key_by("area").compute(name="areas", v=gw.max("v"))
    flow.sink("out", areas, gw.sinks.noop())
    return flow


def rows_of(areas: int, users: int, first: int, count: int) -> pa.Table:
    """Return `count` rows whose keys go round, from number `first` on."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "area": pa.array([n * 7919 % areas for n in numbers]),
            "user": pa.array([n // areas % users for n in numbers]),
            "v": pa.array(numbers),
        }
    )


def measured(spark: Any, way: str, areas: int, users: int, work: Path) -> dict[str, float]:
    """Change the columns; return milliseconds of the pause, and of epochs after and before."""
    import godwit as gw

    source = gw.sources.memory("area long, user long, v long", max_rows_per_epoch=areas * users)
    options = {"checkpoint": work / "checkpoint", "session": spark}
    query = flow_over(source).start(**options)
    source.add(rows_of(areas, users, 0, areas * users))
    query.processAllAvailable()
    number = areas * users

    def more() -> None:
        """Have epochs continue, one after the other."""
        nonlocal number
        for _ in range(EPOCHS):
            source.add(rows_of(areas, users, number, ROWS))
            number += ROWS
            query.processAllAvailable()

    more()
    before = epochs_of(query)
    source.add(rows_of(areas, users, number, ROWS))  # that wait for the change, or are read before
    number += ROWS
    query.processAllAvailable()
    last_s = epochs_of(query)[-1].at_s
    if way == "live":
        query.components.repartition({"users": "area"})
        query.components.regroup({"both": ["users", "areas"]}).wait(60)
    else:
        query.stop()
        rewrites = way == "stop and start"
        query = flow_over(source, **({"partition_by": "area"} if rewrites else {})).start(
            **options,
            components={"both": ["users", "areas"]} if rewrites else {},
            checkpointing=gw.Checkpointing(repartition=rewrites),
        )
    more()
    after = [epoch for epoch in epochs_of(query) if epoch.at_s > last_s]
    query.stop()
    first = next(epoch for epoch in after if epoch.rows_in)
    return {
        "pause_ms": (first.at_s - last_s) * 1e3 - first.duration_ms,
        "first_ms": first.duration_ms,
        "before_ms": median(epoch.duration_ms for epoch in before[-EPOCHS // 2 :]),
        "after_ms": median(epoch.duration_ms for epoch in after[-EPOCHS // 2 :]),
    }


def epochs_of(query: Any) -> list[Any]:
    """Return the events of committed epochs."""
    return [event for event in query.events if type(event).__name__ == "EpochCommitted"]


def main() -> None:
    given = read_options(
        __doc__, areas=10_000, users=20, rounds=3, json=Path("artifacts/repartition.jsonl")
    )
    spark = session()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(given.rounds + 1):  # the first warms the session up
        for way in WAYS:
            with temporary_directory() as work:
                took = measured(spark, way, given.areas, given.users, work)
            if turn:
                found[way].append(took)
                figures = ", ".join(f"{name} {value:.0f}" for name, value in took.items())
                print(f"round {turn}  {way}: {figures}; load {os.getloadavg()[0]:.1f}", flush=True)
    for way, rounds in found.items():
        pauses = [took["pause_ms"] for took in rounds]
        print(f"{way}: pause {median(pauses):.0f} ms ({min(pauses):.0f} to {max(pauses):.0f})")
    append_json(given.json, {"repartition": vars(given) | {"found": found}})


if __name__ == "__main__":
    main()

"""The programs that are measured: each runs one input to its end and prints one JSON line.

Run in a process of their own, as those of `benchmarks.streaming.programs`; an epoch's time is
Spark's own ``triggerExecution`` for native queries and for Godwit alike, and over own sources the
same from asking the sources for rows to telling them of the commit.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from benchmarks.streaming.programs import (
    STORES,
    run_godwit,
    run_native,
    run_one_of,
    session,
    stream,
)
from benchmarks.windows.inputs import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOUR = ("5 minutes", "10 minutes", "15 minutes", "20 minutes")
GAP = "30 seconds"


def rows_of(spark: Any, source: str) -> Any:
    return stream(spark, source, SCHEMA)


def _in_windows(rows: Any, window: Any) -> Any:
    from pyspark.sql import functions as sf

    grouped = rows.withWatermark("ts", "0 seconds").groupBy("key", window)
    return grouped.agg(sf.count("*").alias("n"), sf.sum("v").alias("s"))


def native_windows(
    source: str, work: Path, *, store: str, lengths: tuple[str, ...], one_stream: bool = True
) -> list[dict[str, Any]]:
    """Windows in one query, or a query each, one after the other: an epoch takes what all take."""
    from pyspark.sql import functions as sf

    spark = session(**STORES[store])
    every = [_in_windows(rows_of(spark, source), sf.window("ts", length)) for length in lengths]
    if one_stream:
        united = reduce(lambda a, b: a.unionByName(b), every)
        found = run_native(united, work, "append")
        # Every branch reads the source; the rows of an epoch are those of one.
        return [{**epoch, "rows": epoch["rows"] // len(lengths)} for epoch in found]
    runs = [run_native(frame, work / str(i), "append") for i, frame in enumerate(every)]
    return [{**of[0], "ms": sum(epoch["ms"] for epoch in of)} for of in zip(*runs, strict=True)]


def native_sessions(source: str, work: Path, *, store: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as sf

    rows = rows_of(session(**STORES[store]), source)
    return run_native(_in_windows(rows, sf.session_window("ts", GAP)), work, "append")


def native_timers(source: str, work: Path) -> list[dict[str, Any]]:
    """Set a timer per key and epoch, by the row-wise ``transformWithState``."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Remind(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.state = handle.getValueState("seen", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002,N802,N803
            held = self.state.get()
            n = held[0] if held else 0
            for row in rows:
                n += 1
                self.handle.registerTimer(int(row["ts"].timestamp() * 1000) + 240_000)
            self.state.update((n,))
            return iter(())

        def handleExpiredTimer(self, key: Any, *_: Any, **timer: Any) -> Iterator[Any]:  # noqa: ARG002,N802
            yield Row(key=key[0], n=self.state.get()[0])

        def close(self) -> None:
            pass

    rows = rows_of(session(**STORES["rocksdb"]), source).withWatermark("ts", "0 seconds")
    frame = rows.groupBy("key").transformWithState(
        Remind(), "key string, n long", "append", "EventTime"
    )
    return run_native(frame, work, "append")


def windows(gw: Any, keyed: Any, lengths: tuple[str, ...] = FOUR) -> Any:
    kinds = [gw.tumbling(length) for length in lengths]
    return keyed.window(*kinds, name="windows").compute(n=gw.count(), s=gw.sum("v"))


def sessions(gw: Any, keyed: Any) -> Any:
    return keyed.window(gw.session(GAP), name="sessions").compute(n=gw.count(), s=gw.sum("v"))


def timers(gw: Any, keyed: Any) -> Any:
    from datetime import timedelta

    after = timedelta(minutes=4)

    def note(key: Any, rows: Any, seen: dict[str, int]) -> None:  # noqa: ARG001
        seen["n"] = seen.get("n", 0) + len(rows)
        for row in rows:
            rows.timers.set(row.ts + after)

    def remind(key: Any, timer: Any, seen: dict[str, int]) -> Iterator[tuple[Any, ...]]:  # noqa: ARG001
        yield key[0], seen["n"]

    return keyed.process(
        note,
        name="timers",
        state=dict,
        timers=gw.types.OnTimer(remind, clock="event"),
        output="key string, n long",
    )


PROGRAMS: dict[str, Callable[[str, Path], list[dict[str, Any]]]] = {
    **{
        f"godwit-{own}{name}": partial(
            run_godwit, build=build, own=bool(own), schema=SCHEMA, event_time="ts"
        )
        for own in ("", "own-")
        for name, build in (
            ("four", windows),
            ("one", partial(windows, lengths=FOUR[:1])),
            ("sessions", sessions),
            ("timers", timers),
        )
    },
    "native-four-in-one": partial(native_windows, store="memory", lengths=FOUR),
    "native-four-queries": partial(native_windows, store="memory", lengths=FOUR, one_stream=False),
    "native-one-memory": partial(native_windows, store="memory", lengths=FOUR[:1]),
    "native-one-rocksdb": partial(native_windows, store="rocksdb", lengths=FOUR[:1]),
    "native-sessions-memory": partial(native_sessions, store="memory"),
    "native-sessions-rocksdb": partial(native_sessions, store="rocksdb"),
    "native-timers": native_timers,
}


if __name__ == "__main__":
    run_one_of(PROGRAMS)

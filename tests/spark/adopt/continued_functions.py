"""Queries with Python functions and state, which go on from Spark's checkpoints.

They have a file of their own, whose text is part of what `tests.adopted.agreed` notes of them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["aging", "processed", "waiting"]


def processed(s: DataFrame, *, mode: str) -> DataFrame:
    """A processor with states of every kind, and timers if it has times."""

    class Seen(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            parts = "times long, last timestamp, total decimal(10,2), parts array<struct<x: int>>"
            self.value = handle.getValueState("seenSoFar", parts)
            self.list = handle.getListState("list", "n int, day date, ok boolean, v double")
            self.map = handle.getMapState("map", "n int, id string", "d map<string, decimal(9,1)>")
            self.idle = handle.getValueState("idle", "raw binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            read = sorted(rows, key=repr)
            before = self.value.get() if self.value.exists() else (0, None, Decimal(0), [])
            for row in read:
                self.list.appendValue((row.n, row.ts.date(), row.v is None, row.v))
                if row.n is not None:
                    self.map.updateValue((row.n, row.id), ({row.id: Decimal(row.n)},))
                if row.n == 3 and mode == "EventTime":
                    self.handle.registerTimer(int(row.ts.timestamp() * 1000) + 200_000)
            total = before[2] + sum(row.d for row in read)
            self.value.update((before[0] + len(read), read[-1].ts, total, [{"x": 1}, None]))
            if key[0] == "a":
                self.idle.update((b"\x00\xff",))
            yield self._said(key, "rows")

        def _said(self, key: Any, what: str) -> Row:
            listed = list(map(str, self.list.get()))
            items = sorted(map(str, self.map.iterator()))
            timers = sorted(self.handle.listTimers()) if mode == "EventTime" else []
            said = f"{what} {self.value.get()} {listed} {items} {timers} {self.idle.get()}"
            return Row(k=key[0], said=said)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield self._said(key, f"timer {expiredTimerInfo.getExpiryTimeInMs()}")

        def close(self) -> None:
            pass

    rows = s.withWatermark("ts", "1 minute") if mode == "EventTime" else s
    return rows.groupBy("k").transformWithState(Seen(), "k string, said string", "Append", mode)


def aging(s: DataFrame) -> DataFrame:
    """A processor whose states have a time to live, with timers of the clock."""

    class Aging(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.short = handle.getValueState("short", "n long", 1)
            self.list = handle.getListState("list", "n int", 3_600_000)
            self.map = handle.getMapState("map", "n int", "times long", 3_600_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            yield self._said(key, "rows")
            read = sorted(rows, key=repr)
            for row in read:
                self.list.appendValue((row.n,))
                if row.n is not None:
                    self.map.updateValue((row.n,), (len(read),))
            self.short.update((len(read),))
            now = timerValues.getCurrentProcessingTimeInMs()
            for later in (1, 10**10) if key[0] == "b" else (1,):
                self.handle.registerTimer(now + later)

        def _said(self, key: Any, what: str) -> Row:
            listed, items = list(map(str, self.list.get())), sorted(map(str, self.map.iterator()))
            timers = len([*self.handle.listTimers()])
            said = f"{what} {self.short.exists()} {listed} {items} {timers}"
            return Row(k=key[0], said=said)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield self._said(key, "timer")

        def close(self) -> None:
            pass

    columns = "k string, said string"
    return s.groupBy("k").transformWithState(Aging(), columns, "Update", "ProcessingTime")


def waiting(s: DataFrame, *, timeout: str) -> DataFrame:
    """A function with a ``GroupState``."""

    def wait(key: Any, frames: Any, state: Any) -> Any:
        before, number = state.getOption, sum(len(frame) for frame in frames)
        if state.hasTimedOut:
            state.remove()
        else:
            state.update(((before[0] if before else 0) + number, str(key)))
            if timeout == "EventTimeTimeout":
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 400_000)
        said = f"{before} {number} {state.hasTimedOut}"
        yield pd.DataFrame({"k": [key[0]], "said": [said]})

    state = "times long, other string"
    return (
        s.withWatermark("ts", "1 minute")
        .groupBy("k")
        .applyInPandasWithState(wait, "k string, said string", state, "Update", timeout)
    )

"""Processors that written queries call, in rows and in DataFrames: states and timers of every kind.

What they emit does not depend on the clock: times of it are long ago, or far ahead.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONG_AGO, _FAR_AHEAD = 1_000, 10**14


class _Processor(StatefulProcessor):
    """A processor that is given rows, or DataFrames, and emits texts of its keys."""

    def __init__(self, *, pandas: bool = False) -> None:
        self.pandas = pandas

    def init(self, handle: Any) -> None:
        """Keep the handle, and declare states."""
        self.handle = handle
        self.declare(handle)

    def declare(self, handle: Any) -> None:
        """Declare states."""

    def read(self, rows: Any) -> list[tuple[int, int | None, str | None, int | None]]:
        """Return the number, another number, the text and the time of every row, in order."""
        read = []
        for part in rows:
            for row in part.to_dict("records") if self.pandas else [part.asDict()]:
                time = None if pd.isna(row["ts"]) else int(row["ts"].timestamp() * 1000)
                n = None if pd.isna(row["n"]) else int(row["n"])
                read.append((int(row["l"]), n, row["id"], time))
        return sorted(read, key=repr)

    def said(self, key: Any, *what: Any) -> Any:
        """Return a row of output."""
        text = " ".join(map(str, what))
        if self.pandas:
            return pd.DataFrame({"said": [text], "k": [key[0]]})
        return Row(k=key[0], said=text)

    def close(self) -> None:
        """End."""


class Timers(_Processor):
    """Sets several timers of event time at once, deletes some, and sets some again."""

    def declare(self, handle: Any) -> None:
        """Declare a count of fired timers."""
        self.fired = handle.getValueState("fired", "times int, last long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Set timers; say which there are, if rows have no number."""
        read = self.read(rows)
        for number, n, _, time in read:
            if time is not None and n is not None:
                self.handle.registerTimer(time + 20_000 * n)
            elif number % 2:
                for timer in sorted(self.handle.listTimers())[:2]:
                    self.handle.deleteTimer(timer)
        if any(n is None for _, n, _, _ in read):
            timers = sorted(self.handle.listTimers())
            yield self.said(key, timers, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        """Say so twice, and set every third timer again."""
        time = expiredTimerInfo.getExpiryTimeInMs()
        times = (self.fired.get() or (0, 0))[0] + 1
        self.fired.update((times, time))
        if times % 3 == 0:
            self.handle.registerTimer(time + 90_000)
        yield self.said(key, "fired", time, times)
        yield self.said(key, "again", timerValues.getCurrentWatermarkInMs())


class Clocked(_Processor):
    """Has timers of the clock, and states that are forgotten at once, or not for days."""

    def declare(self, handle: Any) -> None:
        """Declare states with times to live."""
        self.brief = handle.getListState("brief", "n int", 1)
        self.long = handle.getMapState("long", "id string", "c int", 10**9)
        self.briefMap = handle.getMapState("briefMap", "id string", "c int", 1)
        self.total = handle.getValueState("total", "c int", 10**9)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Say what states had and have."""
        before = [row[0] for row in self.brief.get()], self.briefMap.exists(), self.total.exists()
        read = self.read(rows)
        self.brief.appendList([(n,) for _, n, _, _ in read])
        for _, _, text, _ in read:
            word = (text or "",)
            count = self.long.getValue(word)
            self.long.updateValue(word, ((count[0] if count else 0) + 1,))
            self.briefMap.updateValue(word, (len(read),))
        self.total.update((len(read) + (self.total.get() or (0,))[0],))
        self.handle.registerTimer(_LONG_AGO + self.total.get()[0])
        self.handle.registerTimer(_FAR_AHEAD + len(read))
        words = sorted(word[0] for word in self.briefMap.keys())  # noqa: SIM118  not a dict
        counts = sorted((word[0], count[0]) for word, count in self.long.iterator())
        yield self.said(key, before, [row[0] for row in self.brief.get()], words, counts)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        """Say which timers are left."""
        left = sorted(self.handle.listTimers())
        yield self.said(key, expiredTimerInfo.getExpiryTimeInMs(), left, self.total.get())


class Started(_Processor):
    """Begins with sums that a table has."""

    def declare(self, handle: Any) -> None:
        """Declare the sums."""
        self.sums = handle.getMapState("sums", "id string", "total decimal(12,2), parts array<int>")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        """Take a row, or a DataFrame, of the table."""
        rows = initialState.to_dict("records") if self.pandas else [initialState.asDict()]
        for row in rows:
            n3 = row["n3"]
            self.sums.updateValue((str(row["side"]),), (Decimal(int(n3)), [int(n3), None]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Add to the sums."""
        for number, n, text, _ in self.read(rows):
            word = (text or "none",)
            total, parts = self.sums.getValue(word) or (Decimal(0), [])
            if number % 5 == 0:
                self.sums.removeKey(word)
            else:
                total += Decimal(number % 1000) / 100
                self.sums.updateValue(word, (total, [*parts, n][-3:]))
        sums = [(word[0], *sums) for word, sums in self.sums.iterator()]
        yield self.said(key, sorted(map(repr, sums)))
        if len(sums) > 4:
            self.sums.clear()


class Passing(StatefulProcessor):
    """Passes rows on, with how many its key had."""

    def init(self, handle: Any) -> None:
        """Declare the count."""
        self.count = handle.getValueState("count", "c int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Pass rows on."""
        for row in sorted(rows, key=lambda row: row.l):
            count = (self.count.get() or (0,))[0] + 1
            self.count.update((count,))
            yield Row(k=key[0], t=row.ts, c=count)

    def close(self) -> None:
        """End."""

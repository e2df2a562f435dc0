"""Functions with state that written queries call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.state import GroupState


class Idle(StatefulProcessor):
    """Reports a key that has no rows for a minute, by a timer of event time."""

    def init(self, handle: Any) -> None:
        """Make the state."""
        self.handle = handle
        self.seen = handle.getValueState("seen", "rows int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Count rows, and set the timer again."""
        times = [row.ts.timestamp() for row in rows if row.ts is not None]
        before = self.seen.get()
        self.seen.update(((before[0] if before else 0) + len(times),))
        if times:
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(int(max(times) * 1000) + 60_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        """Report the key."""
        rows = self.seen.get()[0]
        self.seen.clear()
        yield Row(k=key[0], rows=rows, idle=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """End."""


class Latest(StatefulProcessor):
    """Keeps the last three numbers of a key in a list, and counts by text in a map."""

    def init(self, handle: Any) -> None:
        """Make the state."""
        self.last = handle.getListState("last", "n int")
        self.counts = handle.getMapState("counts", "id string", "c long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Update both, and return them."""
        numbers = [row[0] for row in self.last.get()]
        for row in sorted(rows, key=lambda row: row.l):
            numbers.append(row.n)
            text = (row.id or "none",)
            before = self.counts.getValue(text)[0] if self.counts.containsKey(text) else 0
            self.counts.updateValue(text, (before + 1,))
        self.last.put([(n,) for n in numbers[-3:]])
        counts = sorted((text[0], count[0]) for text, count in self.counts.iterator())
        yield Row(k=key[0], last=str(numbers[-3:]), counts=str(counts))

    def close(self) -> None:
        """End."""


def counted(key: Any, parts: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, over batches; report it when its watermark has passed."""
    if state.hasTimedOut:
        (rows,) = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "rows": [rows]})
        return
    frames = list(parts)
    rows = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    latest = max((f["ts"].max() for f in frames), default=pd.NaT)
    state.update((rows,))
    until = 0 if pd.isna(latest) else int(latest.timestamp() * 1000)
    state.setTimeoutTimestamp(max(until, state.getCurrentWatermarkMs()) + 60_000)

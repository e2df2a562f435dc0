"""Processors and functions as a user of Spark writes them, and flows that call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

COLUMNS = "k string, op string, x long"
OUTPUT = "k string, said string"


class Written(StatefulProcessor):
    """A processor made of functions."""

    def __init__(
        self,
        declare: Callable[[Any, Any], None],
        body: Callable[..., Any],
        expired: Callable[..., Any] | None = None,
        initial: Callable[..., Any] | None = None,
    ) -> None:
        self.declare, self.body, self.expired, self.first = declare, body, expired, initial

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.declare(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self.body(self, key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        if self.expired is None:
            return iter(())
        return self.expired(self, key, timerValues, expiredTimerInfo)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert self.first is not None
        self.first(self, key, initialState, timerValues)

    def close(self) -> None:
        pass


class Obeying(StatefulProcessor):
    """Does to states of every kind what rows say, and says what is in them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("lastValue", "x long, text string")
        self.list = handle.getListState("list", "x long")
        self.map = handle.getMapState("map", "item string, n long", "x double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            said = self._obey(row.op, row.x, timerValues)
            yield Row(k=key[0], said=f"{row.op}: {said}")

    def _obey(self, op: str, x: int, times: Any) -> Any:
        if op == "update":
            self.value.update((x, str(x)))
        elif op == "append":
            self.list.appendValue((x,))
        elif op == "put":
            self.list.put([(x,), (x + 1,)])
        elif op == "extend":
            self.list.appendList([(i,) for i in range(x + 1)])
        elif op == "set":
            self.map.updateValue((f"i{x}", x), (x / 2,))
        elif op == "remove":
            self.map.removeKey((f"i{x}", x))
        elif op == "register":
            self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 1000 * (1 + x))
        elif op == "unregister":
            self.handle.deleteTimer(times.getCurrentProcessingTimeInMs() + 1000 * (1 + x))
        elif op == "clear":
            for state in (self.value, self.list, self.map)[: x + 1]:
                state.clear()
        return (
            self.value.get(),
            self.value.exists(),
            list(self.list.get()),
            self.list.exists(),
            [(tuple(item), tuple(value)) for item, value in self.map.iterator()],
            self.map.containsKey((f"i{x}", x)),
            list(self.handle.listTimers()),
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        time = expiredTimerInfo.getExpiryTimeInMs()
        if time % 2000:
            self.handle.registerTimer(time + 5000)
        self.list.appendValue((time,))
        yield Row(k=key[0], said=f"{time} of {list(self.handle.listTimers())}")

    def close(self) -> None:
        pass


class Processed:
    """A query over one processor, run epoch by epoch in this process."""

    def __init__(
        self,
        processor: Any,
        *,
        columns: Any = COLUMNS,
        output: Any = OUTPUT,
        run: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        call: str = "transform_with_state",
        **options: Any,
    ) -> None:
        flow = gw.Flow("adopted", num_key_groups=8)
        rows = flow.source("rows", gw.testing.stream(columns), **(source or {}))
        keyed: Any = rows.key_by("k")
        called = getattr(keyed, call)(processor, output=output, name="op", **options)
        flow.sink("out", called, gw.sinks.memory())
        self.run = gw.testing.cluster(flow, **{"now": "2024-01-01 00:00", **(run or {})})
        self._seen = 0

    def epoch(self, rows: Sequence[Any] = (), advance: str | None = None) -> list[tuple[Any, ...]]:
        """Advance the clock, run an epoch, and return the rows that it and timers emitted."""
        if advance is not None:
            self.run.advance(advance)
        if rows:
            self.run.epoch({"rows": list(rows)})
        table = self.run.rows("out")
        new = table.slice(self._seen)
        self._seen = table.num_rows
        return [tuple(row.values()) for row in new.to_pylist()]


def arrow(**columns: Any) -> pa.Table:
    """Return a table of the given columns."""
    return pa.table(columns)


class Remembering(StatefulProcessor):
    """Stores the rows of a key in states of every kind; sets timers, every fifth of which fails."""

    def __init__(self, emitted: Callable[[Any, Any], tuple[Any, ...]]) -> None:
        self.emitted = emitted  # of a key and a row; it may raise

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "id long")
        self.ids = handle.getListState("ids", "id long")
        self.by_n = handle.getMapState("by_n", "n long", "id long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self.last.update((row.id,))
            self.ids.appendValue((row.id,))
            self.by_n.updateValue((row.n % 3,), (row.id,))
            emitted = self.emitted(key, row)
            self.handle.registerTimer(1 + row.id)
            yield Row(k=emitted[0], id=emitted[1])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.last.update((-1,))
        if expiredTimerInfo.getExpiryTimeInMs() % 5 == 0:
            raise ValueError("a bad timer")
        self.last.update((self._newest(),))
        return iter(())

    def _newest(self) -> int:
        newest: int = max(number for (number,) in self.ids.get())
        return newest

    def close(self) -> None:
        pass

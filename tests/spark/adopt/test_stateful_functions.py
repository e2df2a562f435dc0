"""Processors and functions with state give the rows that Spark gives, batch by batch."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.native import Stream, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)  # in the session's zone
_COLUMNS = "k string, ts timestamp, n int, part struct<a: int, b: array<double>>"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(autouse=True)
def _rocks(spark: SparkSession) -> Iterator[None]:
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key, None)
    spark.conf.set(key, _ROCKS)
    yield
    if before is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, before)


def _input(batches: int = 3) -> dict[str, Stream]:
    draw = random.Random(1)

    def row(batch: int) -> tuple[Any, ...]:
        second = 100 * batch + draw.randint(0, 250)
        time = _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999))
        part = draw.choice([None, (draw.randint(0, 9), [0.5, None]), (None, None)])
        return (draw.choice(["a", "b", "c", None]), time, draw.choice([1, 2, 3, None]), part)

    rows = [[row(batch) for _ in range(30)] for batch in range(batches)]
    return {"s": Stream(schema=_COLUMNS, batches=rows)}


def _processor(*, pandas: bool) -> StatefulProcessor:
    """Return a processor that uses states of every kind, and timers of event time."""

    class Seen(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            value = "times long, last timestamp, total decimal(8,3), parts array<struct<x: int>>"
            self.value = handle.getValueState("seenSoFar", value)
            self.list = handle.getListState("list", "n int, ts timestamp")
            self.map = handle.getMapState("map", "n int", "times int, name string")

        def _said(self, key: Any, what: str) -> Any:
            items = sorted(map(repr, self.map.iterator()))
            value, listed = self.value.get(), list(self.list.get())
            said = f"{what} {value} {listed} {items} {sorted(self.handle.listTimers())}"
            if pandas:
                return pd.DataFrame({"said": [said], "k": [key[0]], "times": [len(listed)]})
            return Row(k=key[0], said=said, times=len(listed))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            from decimal import Decimal

            read: list[Any] = []
            for chunk in rows:
                if pandas:
                    for n, ts in zip(chunk["n"], chunk["ts"], strict=True):
                        read.append((None if pd.isna(n) else int(n), ts.to_pydatetime(), None))
                else:
                    part = None if chunk.part is None else dict(chunk.part)
                    read.append((chunk.n, chunk.ts.replace(tzinfo=None), part))
            for n, ts, _ in sorted(read, key=repr):
                self.list.appendValue((n, ts))
                if n is not None:
                    known = self.map.getValue((n,))
                    times = known.times if known is not None else 0
                    name = f"n{n}" if n < 3 else 2e7 / (times + 1)  # as text, as Java writes it
                    self.map.updateValue((n,), (times + 1, name))
                if n == 3:
                    self.handle.registerTimer(int(ts.timestamp() * 1000) + 60_000)
            if len(list(self.list.get())) > 12:
                self.list.put([(0, None)])
                self.map.removeKey((2,))
            before = self.value.get() if self.value.exists() else (0, None, Decimal(0), [])
            total = before[2] + Decimal("0.0015") * len(read)
            parts = [{"x": 2**40 + 1}, None]
            self.value.update((before[0] + len(read), _START, total, parts))
            watermark = timerValues.getCurrentWatermarkInMs()
            yield self._said(key, f"{sorted(map(repr, read))} at {watermark}")

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            time = expiredTimerInfo.getExpiryTimeInMs()
            yield self._said(key, f"timer {time}")
            if time % 2:
                self.handle.registerTimer(time + 30_000)
                self.value.clear()

        def close(self) -> None:
            pass

    return Seen()


def _transform(pandas: bool) -> Callable[[DataFrame], DataFrame]:
    def query_over(s: DataFrame) -> DataFrame:
        grouped = s.withWatermark("ts", "1 minute").where("n is null or n < 5").groupBy("k")
        call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        return call(
            _processor(pandas=pandas), "k string, said string, times int", "Append", "EventTime"
        )

    return query_over


def _with_initial_state(s: DataFrame) -> DataFrame:
    """Rows without timers, whose state begins as a table says."""

    class Total(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            before = self.total.get()
            total = (before[0] if before else 0) + sum(row.n or 0 for row in rows)
            self.total.update((total,))
            times = (
                timerValues.getCurrentWatermarkInMs(),
                timerValues.getCurrentProcessingTimeInMs(),
            )
            yield Row(k=key[0], total=total, at=str(times))

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.total.update((initialState.n + len(initialState.other),))

        def close(self) -> None:
            pass

    first = s.sparkSession.createDataFrame(
        [("a", "x", 100), ("z", "yy", 7)], "k string, other string, n long"
    )
    return (
        s.groupBy("k")
        .transformWithState(
            Total(), "k string, total long, at string", "Update", "None", first.groupBy("k")
        )
        .where("total > 3")
        .select("at", (sf.col("total") + 1).alias("more"), "k")
    )


def _group_state(s: DataFrame) -> DataFrame:
    """A function with a time-out of event time.

    It is so large that Spark broadcasts it, and refers to a broadcast variable.
    """
    names = s.sparkSession.sparkContext.broadcast({"a": "first", None: "none"})
    ballast = bytes(1 << 20)

    def wait(key: Any, frames: Any, state: Any) -> Any:
        before = state.getOption
        if state.hasTimedOut:
            (empty,) = list(frames)
            state.remove()
            said = f"out {before} {len(empty)} {list(empty.columns)}"
        else:
            frame = pd.concat(list(frames))
            state.update(((before[0] if before else 0) + len(frame), None))
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 70_000)
            types = [str(dtype) for dtype in frame.dtypes]
            name = names.value.get(key[0], len(ballast))
            said = f"{name} {before} {sorted(map(str, frame['ts']))} {types}"
        yield pd.DataFrame({"n": [len(said)], "k": [key[0]], "said": [said]})

    schema = "k string, n long, said string"
    rows = s.withWatermark("ts", "1 minute").drop("part").where("n is not null")
    return rows.groupBy("k").applyInPandasWithState(
        wait, schema, "times long, other string", "Update", "EventTimeTimeout"
    )


_QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "rows": (_transform(pandas=False), "append"),
    "pandas": (_transform(pandas=True), "append"),
    "initial state": (_with_initial_state, "update"),
    "group state": (_group_state, "update"),
}


@pytest.mark.parametrize("query", _QUERIES)
def test_an_adopted_function_gives_the_batches_that_spark_gives(
    spark: SparkSession, query: str
) -> None:
    query_over, mode = _QUERIES[query]
    compare(spark, query_over, _input(), mode=mode, parts=1 if query == "pandas" else 2)


class _Passing(StatefulProcessor):
    """Processor that passes rows on, with how many its key had."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for row in rows:
            number = (self.count.get() or (0,))[0] + 1
            self.count.update((number,))
            yield Row(k=key[0], t=row.ts, number=number)

    def close(self) -> None:
        pass


def test_windows_of_the_event_time_that_a_processor_gives(spark: SparkSession) -> None:
    def passed(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").transformWithState(
            _Passing(), "k string, t timestamp, number int", "append", "EventTime", None, "t"
        )

    def windows(s: DataFrame) -> DataFrame:
        timed = s.where("ts is not null").withWatermark("ts", "30 seconds")
        once = timed.dropDuplicates(["k", "ts"])  # an operator before it, too
        counted = passed(once).groupBy(sf.window("t", "1 minute"), "k")
        return counted.agg(sf.count("*"))

    compare(spark, windows, _input(), mode="append")

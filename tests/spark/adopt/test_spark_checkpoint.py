"""A query that Spark has run continues with its state, as if nothing had happened."""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
import os
import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf
from tests.adopted.agreed import agreed, comparison, remember
from tests.adopted.lanes_here import lanes_here
from tests.spark.adopt.continued_functions import aging, processed, waiting
from tests.support.long_tests import chosen
from tests.support.native import (
    Batches,
    Stream,
    assert_same,
    in_time,
    run,
    settings,
    write,
    written,
)

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.ops.export_state import export_states

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_START = dt.datetime(2024, 1, 1)
_COLUMNS = "k string, ts timestamp, v double, id string, n int, d decimal(10,2)"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def _rows(draw: random.Random, batch: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch, some of which are late."""
    seconds = (300 * batch + draw.randint(0, 600) for _ in range(20))
    return [
        (
            draw.choice(["a", "b", "c", None]),
            _START + dt.timedelta(seconds=second, microseconds=draw.randint(0, 999_999)),
            draw.choice([1.5, 2.0, None, -3.25]),
            draw.choice("xyz"),
            draw.choice([1, 2, 3, None]),
            Decimal(draw.randint(0, 10**6)).scaleb(-2),
        )
        for second in seconds
    ]


def _per_key(s: DataFrame) -> DataFrame:
    """Aggregates of every kind whose state can be imported."""
    return s.groupBy("k", (sf.col("n") % 2).alias("odd"), sf.col("v")).agg(
        sf.sum("n"),
        sf.sum("v"),
        sf.sum("d"),
        sf.count("n"),
        sf.avg("n"),
        sf.avg("d"),
        sf.min("id"),
        sf.max("ts"),
        sf.first("n"),
        sf.last("n", ignorenulls=True),
        sf.stddev("n"),
        sf.max_by("id", "n"),
        (sf.sum("n") * 2 + sf.count("*")).alias("both"),
        sf.expr("count(n) FILTER (WHERE n > 1)"),
    )


def _collections(s: DataFrame) -> DataFrame:
    """Aggregates that collect values, or count them."""
    return s.groupBy("k").agg(
        sf.collect_list("n"),
        sf.collect_list("id").alias("ids"),
        sf.sort_array(sf.collect_set("ts")),
        sf.collect_list("v").alias("v"),
        sf.collect_list(sf.col("n") > 1),
        sf.percentile("n", sf.array(sf.lit(0.25), sf.lit(0.5))),
        sf.median("v"),
        sf.expr("mode() WITHIN GROUP (ORDER BY id)"),
        sf.sum("n"),
    )


def _windows(s: DataFrame) -> DataFrame:
    """Windows that overlap."""
    window = sf.window("ts", "5 minutes", "150 seconds")
    return s.withWatermark("ts", "2 minutes").groupBy(window, "k").agg(sf.sum("v"), sf.count("*"))


def _sessions(s: DataFrame) -> DataFrame:
    """Sessions."""
    session = sf.session_window("ts", "30 seconds")
    return s.withWatermark("ts", "1 minutes").groupBy(session, "k").agg(sf.sum("n"), sf.avg("v"))


def _times(s: DataFrame) -> DataFrame:
    """Groups by event time."""
    return s.withWatermark("ts", "1 minutes").groupBy("ts", "k").count()


def _distinct(s: DataFrame) -> DataFrame:
    """Distinct rows, in SQL."""
    s.createOrReplaceTempView("rows_to_adopt")
    return s.sparkSession.sql("SELECT DISTINCT k, id FROM rows_to_adopt")


def _range_join(s: DataFrame, t: DataFrame, how: str) -> DataFrame:
    """A join of two streams with a range of time."""
    left, right = (stream.withWatermark("ts", "1 minute") for stream in (s, t))
    near = "l.k = r.k AND l.ts BETWEEN r.ts - interval 5 minutes AND r.ts + interval 7 minutes"
    if how == "full":  # Spark's state has the columns below the aliases
        right = right.select(*(sf.col(name).alias(name) for name in right.columns))
    columns = ["l.k", "l.ts", "l.n"] if how == "left_semi" else ["l.k", "l.n", "r.id", "r.ts"]
    return left.alias("l").join(right.alias("r"), sf.expr(near), how).select(*columns)


def _marked(s: DataFrame) -> DataFrame:
    """A stream with a watermark."""
    return s.withWatermark("ts", "1 minute")


def _after_duplicates(s: DataFrame) -> DataFrame:
    """Windows over the rows that are no duplicates."""
    own = _marked(s).dropDuplicates(["k", "ts"])
    return own.groupBy(sf.window("ts", "2 minutes"), "k").agg(sf.sum("n"), sf.count("*"))


def _after_windows(s: DataFrame) -> DataFrame:
    """Windows over the results of windows."""
    small = _marked(s).groupBy(sf.window("ts", "1 minute"), "k").agg(sf.count("*").alias("c"))
    return small.groupBy(sf.window(sf.window_time("window"), "5 minutes")).agg(sf.sum("c"))


def _after_join(s: DataFrame, t: DataFrame) -> DataFrame:
    """Windows over the rows of a join."""
    left, right = _marked(s).alias("l"), _marked(t).alias("r")
    near = sf.expr("l.k = r.k AND r.ts BETWEEN l.ts AND l.ts + interval 4 minutes")
    return left.join(right, near).groupBy(sf.window("l.ts", "3 minutes")).agg(sf.count("*"))


_JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A query to stop and adopt."""

    build: Callable[..., DataFrame]  # of one stream, or of two
    mode: str = "append"
    rocksdb: bool = False
    killed: bool = False  # while the last batch ran: it is planned, and not committed
    unplanned: bool = False  # the last batch, which has no rows, was not even planned
    conf: dict[str, str] = field(default_factory=dict)  # with which Spark runs it
    no_data_batches: bool = True


_CASES: dict[str, Stopped] = {
    "per key": Stopped(build=_per_key, mode="update"),
    "per key, complete": Stopped(build=_per_key, mode="complete", rocksdb=True, killed=True),
    "collections": Stopped(build=_collections, mode="update", rocksdb=True),
    "whole": Stopped(
        build=lambda s: s.groupBy().agg(sf.sum("v"), sf.count("*")), mode="update", rocksdb=True
    ),
    "distinct": Stopped(build=_distinct, mode="update", killed=True),
    "windows": Stopped(build=_windows, rocksdb=True, killed=True),
    "windows before their end": Stopped(build=_windows, unplanned=True),
    "windows, update": Stopped(build=_windows, mode="update"),
    "sessions": Stopped(build=_sessions),
    "event times": Stopped(build=_times, rocksdb=True),
    "no duplicates": Stopped(
        build=lambda s: s.dropDuplicates(["k", "n"]), conf={"spark.sql.shuffle.partitions": "3"}
    ),
    "no duplicates in time": Stopped(
        build=lambda s: _marked(s).dropDuplicates(["k", "ts"]), rocksdb=True, killed=True
    ),
    "no duplicates of a watermark": Stopped(
        build=lambda s: _marked(s).dropDuplicates(["n", "v", "k", "id"]), rocksdb=True
    ),
    "no duplicates within, and more": Stopped(
        build=lambda s: _marked(s).dropDuplicatesWithinWatermark(["k", "n"]), unplanned=True
    ),
    "no duplicates within": Stopped(
        build=lambda s: _marked(s).dropDuplicatesWithinWatermark(["k", "n"]), killed=True
    ),
    "join": Stopped(
        build=lambda s, t: s.alias("l").join(t.alias("r"), sf.expr("l.k = r.k AND l.n < r.n"))
    ),
    **{
        f"{how} join": Stopped(
            build=partial(_range_join, how=how), rocksdb=number % 2 == 0, killed=number < 2
        )
        for number, how in enumerate(("inner", "left", "right", "full", "left_semi"))
    },
    "join, column families": Stopped(
        build=partial(_range_join, how="full"), rocksdb=True, conf={_JOIN_FORMAT: "3"}
    ),
    "processor with timers": Stopped(
        build=partial(processed, mode="EventTime"), rocksdb=True, killed=True
    ),
    "processor": Stopped(build=partial(processed, mode="None"), rocksdb=True),
    "processor with times to live": Stopped(
        build=aging, mode="update", rocksdb=True, no_data_batches=False
    ),
    "function with time-outs": Stopped(
        build=partial(waiting, timeout="EventTimeTimeout"), mode="update"
    ),
    "function": Stopped(
        build=partial(waiting, timeout="NoTimeout"),
        mode="update",
        rocksdb=True,
        killed=True,
        conf={"spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1"},
    ),
    "after duplicates": Stopped(build=_after_duplicates, rocksdb=True),
    "after windows": Stopped(build=_after_windows, killed=True),
    "after a join": Stopped(build=_after_join, rocksdb=True),
}


_ONLY_LONG = (  # cases with another that reads the same kind of state
    "per key",
    "whole",
    "distinct",
    "windows",
    "windows, update",
    "event times",
    "no duplicates",
    "no duplicates of a watermark",
    "no duplicates within, and more",
    "left join",
    "right join",
    "full join",
    "left_semi join",
    "inner join",
    "processor",
    "after windows",
    "after duplicates",
)


def test_a_query_continues_from_the_state_that_spark_has_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    def failure(name: str) -> str:
        """Run a case in a session of its own; return why it failed, if it did."""
        try:
            _continue(spark.newSession(), _CASES[name], tmp_path / re.sub(r"\W+", "_", name))
        except Exception as error:  # noqa: BLE001  all are reported together
            return f"{name}: {type(error).__name__}: {error}"
        return ""

    names = chosen(_CASES, only_long=_ONLY_LONG)
    with lanes_here(), ThreadPoolExecutor(4) as pool:
        failures = [text for text in pool.map(failure, names) if text]
    assert not failures, "\n\n".join(failures)


def _continue(spark: SparkSession, case: Stopped, directory: Path) -> None:
    """Let Spark run a query, then Spark and Godwit continue it; compare their batches."""
    draws = [random.Random(seed) for seed in (3, 4)]
    batches = [[_rows(draw, batch) for batch in range(4)] for draw in draws]
    names = [*inspect.signature(case.build).parameters][:2]
    names = [name for name in names if name in ("s", "t")]
    before = {
        name: Stream(schema=_COLUMNS, batches=rows[:2])
        for name, rows in zip(names, batches, strict=False)
    }
    parts = ("old", "new", "copy", "again")
    old, new, copy, again = (str(directory / part) for part in parts)
    provider = {_PROVIDER: _ROCKSDB} if case.rocksdb else {}
    with settings(spark), written(spark, before) as frames:
        if not case.no_data_batches:
            spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        for key, value in {**provider, **case.conf}.items():
            spark.conf.set(key, value)
        if case.unplanned:
            # By the other one, the state of another batch of the same number would not be replaced.
            spark.conf.unset(_FILE_MANAGER)
        query = case.build(**frames)

        def begin() -> None:
            """Let Spark run the query over what there is at first."""
            shutil.rmtree(old, ignore_errors=True)
            run(query.writeStream, mode=case.mode, checkpoint=old)

        in_time(begin)
        last = max(int(path.name) for path in Path(old, "commits").glob("[0-9]*"))
        gone = ["commits"] * (case.killed or case.unplanned) + ["offsets"] * case.unplanned
        for log in gone:
            Path(old, log, f"{last}").unlink()
            Path(old, log, f".{last}.crc").unlink(missing_ok=True)
        shutil.copytree(old, copy)
        was = _digests(old)
        for key in case.conf:
            spark.conf.unset(key)
        # A second start continues from its own checkpoint.
        starts = [(2, 3), (3, 4)] if gone or "GODWIT_LONG" in os.environ else [(2, 4)]

        def continued(start: Callable[[], Any], checkpoint: str) -> Batches:
            """Put the further rows, and return the batches that the query gives for them."""
            came: Batches = {}
            for stream in before.values():
                for file in sorted(Path(stream.files).iterdir())[2:]:
                    file.unlink()
            for first, end in starts:
                for stream, rows in zip(before.values(), batches, strict=False):
                    write(stream, rows[first:end])
                came |= run(start(), mode=case.mode, checkpoint=checkpoint).batches
                if first == 2:
                    assert _digests(old) == was, "Spark's checkpoint is only read"
                    shutil.rmtree(Path(old, "commits"), ignore_errors=True)
                    was.clear()
                    was.update(_digests(old))
            return came

        def natively() -> Batches:
            """Let Spark continue."""
            shutil.rmtree(again, ignore_errors=True)
            shutil.copytree(copy, again)
            return continued(lambda: query.writeStream, again)

        compared = comparison(query, case.build, case.mode, case.conf, gone, starts, batches)
        adopted = continued(lambda: gw.write_stream(query).from_spark_checkpoint(old), new)
        if not agreed(compared, adopted):
            native = in_time(natively)
            assert native
            assert_same(adopted, native)
            remember(compared, adopted, f"continued {directory.name}")
        assert [*export_states(CheckpointStorage.open(new), directory / "tables")]


def _digests(directory: str) -> dict[str, str]:
    """Return the files of a directory with digests of their content."""
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_checkpoint_of_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(schema=_COLUMNS, batches=[_rows(random.Random(1), 0)])
    with settings(spark), written(spark, {"s": stream}) as frames:
        rows, old = frames["s"], str(tmp_path / "old")
        run(rows.groupBy("k").agg(sf.sum("n")).writeStream, mode="update", checkpoint=old)
        others = {
            "another Spark query: it groups by": rows.groupBy("n").agg(sf.sum("n")),
            "another Spark query: its aggregates": rows.groupBy("k").agg(sf.avg("n")),
            "another Spark query: it has the operators": (
                rows.withWatermark("ts", "1 minute")
                .groupBy(sf.session_window("ts", "1 minute"), "k")
                .agg(sf.sum("n"))
            ),
        }
        for message, query in others.items():
            mode = "append" if "operators" in message else "update"
            writer = gw.write_stream(query).from_spark_checkpoint(old)
            with pytest.raises(gw.errors.CheckpointError, match=message):
                run(writer, mode=mode, checkpoint=str(tmp_path / "new"))
        query = rows.groupBy("k").agg(sf.sum("n"))
        run(gw.write_stream(query), mode="update", checkpoint=str(tmp_path / "new"))
        writer = gw.write_stream(query).from_spark_checkpoint(old)
        with pytest.raises(gw.errors.CheckpointError, match="started without the state"):
            run(writer, mode="update", checkpoint=str(tmp_path / "new"))

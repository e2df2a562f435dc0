"""What an executor that has just joined does before it counts.

The problem: its JVM has compiled nothing and its Python has not started.  The first epoch that used
it would wait for both, five to ten seconds, however little it asked of it.

So every core of it plays an epoch without lanes first: the partitions of the last micro-batch are
read again and thrown away, through Python and an exchange.  Nothing is written and nothing is told,
so that is the same as Spark running a task twice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.stages.exchange import exchange, on_executors, paired, placed
from godwit.cluster.spark.stages.python_stage import PythonStage, fetch, python_rdd
from godwit.cluster.spark.stages.warming import POOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

    from godwit.engine.cluster import Executor
    from godwit.engine.lane.wire import Blob

__all__ = ["rehearse"]


def rehearse(executor: Executor, source: Any, spark: SparkContext) -> None:
    """Let an executor play an epoch that counts for nothing; blocks until it has.

    Parameters
    ----------
    executor
        Which.
    source
        RDD of the JVM whose partitions it reads; if ``None``, it only starts its Python.
    spark
        The context.
    """
    spark.setLocalProperty("spark.scheduler.pool", POOL)
    spark.setJobDescription(f"godwit: rehearsal of executor {executor.name}")
    locations = [executor.location] * executor.lanes
    of = 0 if source is None else source.getNumPartitions()
    if of == 0:
        read = on_executors(locations, lambda lane: _throw_away(lane, iter(())), spark)
    else:
        read = PythonStage(paired(source.toJavaRDD(), locations, spark, of=of), _throw_away)
    exchanged = exchange(read, executor.lanes, spark)
    fetch(python_rdd(placed(exchanged, locations, lambda _lane, _came: [b""], spark), spark), spark)


def _throw_away(lane: int, batches: Iterator[bytes]) -> Iterator[Blob]:
    import_module("godwit.cluster.spark.stages.stages")
    for _ in batches:
        pass
    yield lane, b""

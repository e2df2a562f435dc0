"""Moving blobs to lanes: Spark's own shuffle with exact routing, and tasks on chosen executors.

The exchange carries opaque blobs addressed to lanes.  It is built from the parts PySpark's own
``partitionBy`` is made of, so a lane number *is* the shuffle partition, and a blob crosses from
Python to the shuffle and back as bytes, without becoming a row or a pickle in between
(``docs/decisions/0001-exchange.md``).

A lane's task is placed by pairing its partition of the exchange with a partition of one element
that prefers an executor.  Placement is only ever speed: if the executor is gone, Spark runs the
task elsewhere, and the lane finds its state in the checkpoint.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from godwit.cluster.spark.platform.worker_socket import acknowledge_quickly
from godwit.cluster.spark.stages.jvm_classes import jvm_classes
from godwit.cluster.spark.stages.python_stage import PythonStage, python_rdd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext


__all__ = ["exchange", "on_executors", "paired", "placed", "streamed"]


def exchange(stage: PythonStage, lanes: int, spark: SparkContext) -> Any:
    """Run a stage that yields addressed blobs, and bring them to their lanes.

    Parameters
    ----------
    stage
        Turns partitions into blobs, ``0 <= lane < lanes``.
    lanes
        Number of lanes, that is of partitions after the exchange.
    spark
        The context.

    Returns
    -------
    JavaRDD
        One partition per lane, of the payloads as JVM byte arrays. Give it to `placed`.
    """
    run = stage.run

    def addressed(index: int, partition: Iterator[bytes]) -> Iterator[bytes]:
        acknowledge_quickly()
        for lane, payload in run(index, partition):
            yield lane.to_bytes(8, "big")
            yield payload

    jvm = jvm_classes(spark)
    # The JVM reads (key, value) pairs of framed bytes straight from Python, as in partitionBy.
    keyed = python_rdd(PythonStage(stage.partitions, addressed), spark)
    pairs = jvm.pairwise_rdd(keyed).asJavaPairRDD()
    # The second argument tells partitioners apart; equal ones would let Spark skip the shuffle.
    partitioner = jvm.python_partitioner(lanes, id(pairs))
    return jvm.value_of_pair(pairs.partitionBy(partitioner))


def placed(
    exchanged: Any,
    locations: Sequence[str | None],
    run: Callable[[int, list[bytes]], Iterable[Any]],
    spark: SparkContext,
) -> PythonStage:
    """Give each lane its payloads as one list, in a task that prefers the location given.

    Parameters
    ----------
    exchanged
        Result of `exchange` with ``len(locations)`` lanes.
    locations
        Location of each lane as Spark writes it (``executor_<host>_<id>``), or ``None``.
    run
        Called with the lane's number and its payloads, which come in no particular order.
    spark
        The context.
    """

    def one_lane(index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        acknowledge_quickly()
        payloads = list(islice(partition, 1, None, 2))  # each comes after its location's element
        yield from run(index, payloads)

    return PythonStage(paired(exchanged, locations, spark), one_lane)


def streamed(
    exchanged: Any,
    location: str | None,
    run: Callable[[Iterator[bytes]], bytes],
    spark: SparkContext,
) -> PythonStage:
    """Give a single lane its payloads one by one, so that they need not fit into memory together.

    Parameters
    ----------
    exchanged, location, spark
        As for `placed`, of one lane.
    run
        Called with the payloads, in the order of each sender; what it returns is all that comes of
        the stage.
    """

    def one(_index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        acknowledge_quickly()
        payloads = islice(partition, 1, None, 2)
        done = run(payloads)
        for _ in payloads:  # Spark ends a Python process that leaves input unread
            pass
        yield done

    return PythonStage(paired(exchanged, [location], spark), one)


def paired(
    partitions: Any, locations: Sequence[str | None], spark: SparkContext, *, of: int | None = None
) -> Any:
    """Pair partition *i* with an element that prefers location *i*, which comes before its items.

    Parameters
    ----------
    partitions
        RDD of the JVM, of byte arrays.
    locations, spark
        As for `placed`.
    of
        How many partitions there are, if there may be more or fewer than locations: they are
        taken from the first again, or left out.
    """
    jvm = jvm_classes(spark)
    # Partition (i, j) of the product pairs location i with partition j; of the one element of the
    # one and all items of the other only the diagonal is ever computed. Pairs of byte arrays go to
    # Python framed, where anything else would be pickled.
    product = located(tuple(locations), spark).toJavaRDD().cartesian(partitions)
    across = len(locations) if of is None else of
    return jvm.pruned(product.rdd(), _diagonal(len(locations), across, spark))


@lru_cache(maxsize=8)
def located(locations: tuple[str | None, ...], spark: SparkContext) -> Any:
    """RDD of one empty byte array per location, each in a partition that prefers it."""
    jvm = jvm_classes(spark)
    partitions = jvm.array_list()
    for location in locations:
        preferred = jvm.array_list()
        if location is not None:
            preferred.add(location)
        partitions.add(jvm.tuple2(b"", jvm.convert.asScala(preferred).toSeq()))
    elements = jvm.convert.asScala(partitions).toSeq()
    return spark._jsc.sc().makeRDD(elements, jvm.bytes_tag)  # noqa: SLF001


@lru_cache(maxsize=8)
def _diagonal(locations: int, partitions: int, spark: SparkContext) -> Any:
    """Numbers of the partitions (i, i) of a product of `locations` by `partitions` partitions.

    A Scala set is the function that says whether a number is in it.
    """
    jvm = jvm_classes(spark)
    numbers = jvm.array_list()
    for i in range(locations):
        numbers.add(i * partitions + i % partitions)
    return jvm.convert.asScala(numbers).toSet()


def on_executors(
    locations: Sequence[str | None], run: Callable[[int], Iterable[Any]], spark: SparkContext
) -> PythonStage:
    """Run `run` once per location, in a task that prefers it (no input, no shuffle)."""

    def one(index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        acknowledge_quickly()
        # Spark ends a Python process that leaves input unread, and starting one takes seconds.
        for _ in partition:
            pass
        yield from run(index)

    return PythonStage(located(tuple(locations), spark), one)

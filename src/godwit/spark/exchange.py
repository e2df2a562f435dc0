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

from pyspark import RDD
from pyspark.serializers import NoOpSerializer

from godwit.spark.jvm_classes import jvm_classes
from godwit.spark.worker_socket import acknowledge_quickly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext

    from godwit.lane.wire import Blob

__all__ = ["exchange", "on_executors", "placed"]


def exchange(
    blobs: RDD[Any],
    ship: Callable[[Iterator[Any]], Iterable[Blob]],
    lanes: int,
    spark: SparkContext,
) -> Any:
    """Run `ship` over every partition and bring its blobs to the lanes they are addressed to.

    Parameters
    ----------
    blobs
        What `ship` gets, partition by partition.
    ship
        Turns a partition into addressed blobs, ``0 <= lane < lanes``.
    lanes
        Number of lanes, that is of partitions after the exchange.
    spark
        The context.

    Returns
    -------
    JavaRDD
        One partition per lane, of the payloads as JVM byte arrays. Give it to `placed`.
    """

    def addressed(partition: Iterable[Any]) -> Iterable[bytes]:
        acknowledge_quickly()
        for lane, payload in ship(iter(partition)):
            yield lane.to_bytes(8, "big")
            yield payload

    keyed = blobs.mapPartitions(addressed, preservesPartitioning=True)
    # The JVM reads (key, value) pairs of framed bytes straight from Python, as in partitionBy.
    keyed._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001
    jvm = jvm_classes(spark)
    pairs = jvm.pairwise_rdd(keyed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    # The second argument tells partitioners apart; equal ones would let Spark skip the shuffle.
    partitioner = jvm.python_partitioner(lanes, id(pairs))
    return jvm.python_rdd.valueOfPair(pairs.partitionBy(partitioner))


def placed(
    exchanged: Any,
    locations: Sequence[str | None],
    run: Callable[[int, list[bytes]], Iterable[Any]],
    spark: SparkContext,
) -> RDD[Any]:
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
    jvm = jvm_classes(spark)
    lanes = len(locations)
    # Partition (i, j) of the product pairs location i with lane j; of the one element of the one
    # and all payloads of the other only the diagonal is ever computed. Pairs of byte arrays go to
    # Python framed, where anything else would be pickled.
    product = located(tuple(locations), spark).cartesian(exchanged)
    diagonal = jvm.partition_pruning_rdd.create(product.rdd(), _diagonal(lanes, spark))
    python: RDD[Any] = RDD(diagonal.toJavaRDD(), spark, NoOpSerializer())

    def one_lane(index: int, partition: Iterable[Any]) -> Iterable[Any]:
        acknowledge_quickly()
        payloads = list(islice(partition, 1, None, 2))  # each comes after its location's element
        yield from run(index, payloads)

    return python.mapPartitionsWithIndex(one_lane)


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
    return spark._jsc.sc().makeRDD(elements, jvm.bytes_tag).toJavaRDD()  # noqa: SLF001


@lru_cache(maxsize=8)
def _diagonal(lanes: int, spark: SparkContext) -> Any:
    """Numbers of the partitions (i, i) of a product of `lanes` by `lanes` partitions.

    A Scala set is the function that says whether a number is in it.
    """
    jvm = jvm_classes(spark)
    numbers = jvm.array_list()
    for lane in range(lanes):
        numbers.add(lane * lanes + lane)
    return jvm.convert.asScala(numbers).toSet()


def on_executors(
    locations: Sequence[str | None], run: Callable[[int], Iterable[Any]], spark: SparkContext
) -> RDD[Any]:
    """Run `run` once per location, in a task that prefers it (no input, no shuffle)."""
    numbers: RDD[Any] = RDD(located(tuple(locations), spark), spark, NoOpSerializer())

    def one(index: int, partition: Iterable[Any]) -> Iterable[Any]:
        acknowledge_quickly()
        # Spark ends a Python process that leaves input unread, and starting one takes seconds.
        for _ in partition:
            pass
        yield from run(index)

    return numbers.mapPartitionsWithIndex(one)

"""Moving blobs to lanes: Spark's own shuffle with exact routing, and tasks on chosen executors.

The exchange carries opaque blobs addressed to lanes.  It is built from the parts PySpark's own
``partitionBy`` is made of, so a lane number *is* the shuffle partition, and a blob crosses from
Python to the shuffle and back as bytes, without becoming a row in between
(``docs/decisions/0001-exchange.md``).

A lane's task is placed by zipping the exchanged partitions with a source whose partitions prefer
one executor each.  Placement is only ever speed: if the executor is gone, Spark runs the task
elsewhere, and the lane finds its state in the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import RDD
from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer, NoOpSerializer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

__all__ = ["Blob", "arrow_batches", "exchange", "placed"]

Blob = tuple[int, bytes]
"""Lane number and payload."""

_PICKLED: Any = AutoBatchedSerializer(CPickleSerializer())  # type: ignore[no-untyped-call]


def arrow_batches(dataframe: DataFrame) -> RDD[bytes]:
    """Rows of `dataframe` as encapsulated Arrow record batches (without their schema)."""
    java = dataframe._jdf.toArrowBatchRdd().toJavaRDD()  # noqa: SLF001  no public way gives bytes
    return RDD(java, dataframe.sparkSession.sparkContext, NoOpSerializer())


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
        for lane, payload in ship(iter(partition)):
            yield lane.to_bytes(8, "big")
            yield payload

    keyed = blobs.mapPartitions(addressed, preservesPartitioning=True)
    # The JVM reads (key, value) pairs of framed bytes straight from Python, as in partitionBy.
    keyed._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001
    jvm = _jvm(spark)
    pairs = jvm.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001
    # The second argument tells partitioners apart; equal ones would let Spark skip the shuffle.
    partitioner = jvm.PythonPartitioner(lanes, id(pairs))
    return jvm.PythonRDD.valueOfPair(pairs.partitionBy(partitioner))


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
    jvm = _jvm(spark)
    here = located(locations, spark)
    lists = here.toJavaRDD().zip(exchanged.glom()).values()
    python: RDD[Any] = RDD(
        jvm.org.apache.spark.api.python.SerDeUtil.javaToPython(lists),
        spark,
        _PICKLED,
    )

    def one_lane(index: int, partition: Iterable[Any]) -> Iterable[Any]:
        payloads = [bytes(payload) for part in partition for payload in part]
        yield from run(index, payloads)

    return python.mapPartitionsWithIndex(one_lane)


def located(locations: Sequence[str | None], spark: SparkContext) -> Any:
    """Scala RDD of the numbers 0, 1, ..., each in a partition that prefers its location."""
    jvm = _jvm(spark)
    convert = jvm.scala.jdk.javaapi.CollectionConverters
    partitions = jvm.java.util.ArrayList()
    for index, location in enumerate(locations):
        preferred = jvm.java.util.ArrayList()
        if location is not None:
            preferred.add(location)
        partitions.add(jvm.scala.Tuple2(index, convert.asScala(preferred).toSeq()))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Integer"))
    return spark._jsc.sc().makeRDD(convert.asScala(partitions).toSeq(), tag)  # noqa: SLF001


def on_executors(
    locations: Sequence[str | None], run: Callable[[int], Iterable[Any]], spark: SparkContext
) -> RDD[Any]:
    """Run `run` once per location, in a task that prefers it (no input, no shuffle)."""
    jvm = _jvm(spark)
    numbers: RDD[Any] = RDD(
        jvm.org.apache.spark.api.python.SerDeUtil.javaToPython(
            located(locations, spark).toJavaRDD()
        ),
        spark,
        _PICKLED,
    )

    def one(index: int, partition: Iterable[Any]) -> Iterable[Any]:
        # Spark ends a Python process that leaves input unread, and starting one takes seconds.
        for _ in partition:
            pass
        yield from run(index)

    return numbers.mapPartitionsWithIndex(one)


def _jvm(spark: SparkContext) -> Any:
    jvm = spark._jvm  # noqa: SLF001  the gateway has no public name
    assert jvm is not None
    return jvm

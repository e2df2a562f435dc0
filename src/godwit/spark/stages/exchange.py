"""Stages of Python tasks, and blobs on their way to lanes by Spark's own shuffle.

The exchange carries opaque blobs addressed to lanes.  It is built from the parts PySpark's own
``partitionBy`` is made of, so a lane number *is* the shuffle partition, and a blob crosses from
Python to the shuffle and back as bytes, without becoming a row or a pickle in between
(`docs/design/runtime-and-spark.md`).

A lane's task is placed by pairing its partition of the exchange with a partition of one element
that prefers an executor.  Placement is only ever speed: if the executor is gone, Spark runs the
task elsewhere, and the lane finds its state in the checkpoint.

To make one stage and to fetch what it yields, PySpark asks the JVM nearly forty times, a third of a
millisecond and more each; most of them repeat values that have not changed since the last epoch.
This module builds the same ``PythonRDD`` as PySpark, from parts that are looked up once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer, NoOpSerializer

from godwit.spark.platform.pyspark_versions import all_from_socket
from godwit.spark.platform.worker import acknowledge_quickly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext


@lru_cache(maxsize=1)
def jvm_classes(spark: SparkContext) -> SimpleNamespace:
    """Return handles of the Spark, Scala and Java classes that an epoch calls."""
    view: Any = spark._jvm  # noqa: SLF001  the gateway has no public name
    byte_array = view.java.lang.Class.forName("[B")
    return SimpleNamespace(
        array_list=view.java.util.ArrayList,
        asynchronous=view.org.apache.spark.rdd.RDD.rddToAsyncRDDActions,
        broadcast_threshold=view.PythonUtils.getBroadcastThreshold(spark._jsc),  # noqa: SLF001
        bytes_tag=view.scala.reflect.ClassTag.apply(byte_array),
        convert=view.scala.jdk.javaapi.CollectionConverters,
        forever=view.scala.concurrent.duration.Duration.Inf(),
        hash_map=view.java.util.HashMap,
        local_limit=view.org.apache.spark.sql.execution.LocalLimitExec,
        pairwise_rdd=view.PairwiseRDD,
        pruned=view.org.apache.spark.rdd.PartitionPruningRDD.create,
        python_partitioner=view.PythonPartitioner,
        python_rdd=view.PythonRDD,
        serve_iterator=view.PythonRDD.serveIterator,
        simple_python_function=view.SimplePythonFunction,
        tuple2=view.scala.Tuple2,
        uuid_of=view.java.util.UUID.fromString,
        value_of_pair=view.PythonRDD.valueOfPair,
    )


_PICKLER: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
_BYTES = NoOpSerializer()


@dataclass(frozen=True, slots=True)
class PythonStage:
    """Python tasks that are still to be made, one for each partition."""

    partitions: Any  # RDD of the JVM, of byte arrays or pairs of them; a pair comes as two items
    # called with a partition's number and its items
    run: Callable[[int, Iterator[bytes]], Iterable[Any]]


def python_rdd(stage: PythonStage, spark: SparkContext) -> Any:
    """Return a JVM RDD of byte arrays, whose Python tasks are those of `stage`."""
    jvm = jvm_classes(spark)
    command = _PICKLER.dumps((stage.run, None, _BYTES, _BYTES))
    if len(command) > jvm.broadcast_threshold:
        command = _PICKLER.dumps(spark.broadcast(command))
    # Pickling notes here which broadcast variables the function refers to.
    pickled: Any = spark._pickled_broadcast_vars  # noqa: SLF001  no public way, as below
    broadcasts = tuple(sorted(pickled, key=id))
    pickled.clear()
    includes = tuple(spark._python_includes or ())  # noqa: SLF001
    function = jvm.simple_python_function(
        bytearray(command),
        *_worker_environment(tuple(spark.environment.items()), includes, spark),
        spark.pythonExec,
        spark.pythonVer,
        _broadcast_list(broadcasts, spark),
        spark._javaAccumulator,  # noqa: SLF001
    )
    return jvm.python_rdd(stage.partitions, function, False, False)


def fetch(rdd: Any, spark: SparkContext) -> list[bytes]:
    """Return the byte arrays of a JVM RDD, computed by a Spark job."""
    jvm = jvm_classes(spark)
    # Spark's blocking `collect` has the byte code of its largest classes read for every job, to
    # clean two closures.
    job = jvm.asynchronous(rdd, jvm.bytes_tag).collectAsync()
    computed = job.result(jvm.forever, None)
    return all_from_socket(jvm.serve_iterator(computed.iterator(), "godwit"), _BYTES)


@lru_cache(maxsize=4)
def _worker_environment(
    environment: tuple[tuple[str, str], ...], includes: tuple[str, ...], spark: SparkContext
) -> tuple[Any, Any]:
    """Return environment variables and include files of Python workers, as Java collections."""
    variables = jvm_classes(spark).hash_map()
    for name, value in environment:
        variables.put(name, value)
    return variables, _java_list(includes, spark)


@lru_cache(maxsize=4)
def _broadcast_list(broadcasts: tuple[Any, ...], spark: SparkContext) -> Any:
    """Return broadcast variables as a Java list, for `PythonFunction`."""
    # By PySpark's own objects: two of the JVM's are compared by asking it.
    return _java_list([broadcast._jbroadcast for broadcast in broadcasts], spark)  # noqa: SLF001


def _java_list(items: Iterable[Any], spark: SparkContext) -> Any:
    """Return items as a Java list."""
    array = jvm_classes(spark).array_list()
    for item in items:
        array.add(item)
    return array


def exchange(stage: PythonStage, lanes: int, spark: SparkContext) -> Any:
    """Return a JavaRDD with the payloads that a stage yields, sent to their lanes.

    It has one partition per lane, of the payloads as JVM byte arrays, for `run_at_lanes`.
    """
    run = stage.run

    def addressed(index: int, partition: Iterator[bytes]) -> Iterator[bytes]:
        """Put the address of its lane before each payload."""
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


def run_at_lanes(
    exchanged: Any,  # result of `exchange` with ``len(locations)`` lanes
    # location of each lane as Spark writes it (``executor_<host>_<id>``), or ``None``
    locations: Sequence[str | None],
    # called with the lane's number and its payloads, which come in no particular order
    run: Callable[[int, list[bytes]], Iterable[Any]],
    spark: SparkContext,
) -> PythonStage:
    """Return the stage that runs a task per lane, on its executor, over all its payloads.

    `run`: called with lane number and payloads; returns the items of the task.
    """

    def one_lane(index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        """Run the task of one lane over its payloads."""
        acknowledge_quickly()
        payloads = list(islice(partition, 1, None, 2))  # each comes after its location's element
        yield from run(index, payloads)

    return PythonStage(pair_with_locations(exchanged, locations, spark), one_lane)


def run_streamed(
    exchanged: Any,
    location: str | None,
    # called with the payloads, in the order of each sender; its result is the stage's only item
    run: Callable[[Iterator[bytes]], bytes],
    spark: SparkContext,
) -> PythonStage:
    """Return the stage of one task, in which `run` gets an iterator over a lane's payloads."""

    def one(_index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        """Run the task of the lane over its payloads, and yield its result."""
        acknowledge_quickly()
        payloads = islice(partition, 1, None, 2)
        done = run(payloads)
        for _ in payloads:  # Spark ends a Python process that leaves input unread
            pass
        yield done

    return PythonStage(pair_with_locations(exchanged, [location], spark), one)


def pair_with_locations(
    partitions: Any,  # RDD of the JVM, of byte arrays
    locations: Sequence[str | None],
    spark: SparkContext,
    *,
    # how many partitions there are, if there may be more or fewer than locations: they are taken
    # from the first again, or left out
    count: int | None = None,
) -> Any:
    """Return an RDD whose partition i has partition i of `partitions`, and prefers location i.

    So its task runs there. `count`: number of partitions, if it is not that of locations.
    """
    jvm = jvm_classes(spark)
    # Partition (i, j) of the product pairs location i with partition j; of the one element of the
    # one and all items of the other only the diagonal is ever computed. Pairs of byte arrays go to
    # Python framed, where anything else would be pickled.
    product = empty_rdd_at(tuple(locations), spark).toJavaRDD().cartesian(partitions)
    across = len(locations) if count is None else count
    return jvm.pruned(product.rdd(), _paired_partitions(len(locations), across, spark))


@lru_cache(maxsize=8)
def empty_rdd_at(locations: tuple[str | None, ...], spark: SparkContext) -> Any:
    """Return an RDD of one empty byte array per location, in a partition that prefers it."""
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
def _paired_partitions(locations: int, partitions: int, spark: SparkContext) -> Any:
    """Return which partitions of a cartesian RDD pair location i with partition i mod `partitions`.

    Partition i · `partitions` + j is the pair (i, j). Returns a Scala set, which is the function
    that says whether a number is in it.
    """
    jvm = jvm_classes(spark)
    numbers = jvm.array_list()
    for i in range(locations):
        numbers.add(i * partitions + i % partitions)
    return jvm.convert.asScala(numbers).toSet()


def on_executors(
    locations: Sequence[str | None], run: Callable[[int], Iterable[Any]], spark: SparkContext
) -> PythonStage:
    """Return the stage that runs `run` once per location, without input or shuffle."""

    def one(index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        """Read the empty input, and run the task of location `index`."""
        acknowledge_quickly()
        # Spark ends a Python process that leaves input unread, and starting one takes seconds.
        for _ in partition:
            pass
        yield from run(index)

    return PythonStage(empty_rdd_at(tuple(locations), spark), one)


def run_beside(
    partitions: Any,  # RDD of the JVM, of byte arrays
    run: Callable[[int, Iterator[bytes]], Iterable[Any]],  # called with a partition and its items
    tasks: int,
    run_task: Callable[[int], Iterable[Any]],  # called with a task's number
    spark: SparkContext,
) -> PythonStage:
    """Return the stage of a task per partition of an RDD, and of `tasks` others without input.

    `run`: called with a partition's number and items. `run_task`: called with the number, from 0,
    of a task without input.
    """
    first: int = partitions.getNumPartitions()

    def one(index: int, partition: Iterator[bytes]) -> Iterator[Any]:
        """Run a task over a partition, or a further one without input."""
        if index < first:
            yield from run(index, partition)
            return
        acknowledge_quickly()
        for _ in partition:  # as in `on_executors`
            pass
        yield from run_task(index - first)

    # A union has the partitions of the one, then those of the other.
    return PythonStage(partitions.union(empty_rdd_at((None,) * tasks, spark)), one)

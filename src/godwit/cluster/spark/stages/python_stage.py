"""Stages of Python tasks over byte arrays, told to the JVM in few calls.

To make one such stage and to fetch what it yields, PySpark asks the JVM nearly forty times, a
third of a millisecond and more each; most of it says anew what has not changed since the last
epoch.  What is made here is what PySpark makes (a ``PythonRDD``), from parts looked up once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer, NoOpSerializer
from pyspark.util import _load_from_socket

from godwit.cluster.spark.stages.jvm_classes import jvm_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext

__all__ = ["PythonStage", "fetch", "python_rdd"]

_PICKLER: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
_BYTES = NoOpSerializer()


@dataclass(frozen=True, slots=True)
class PythonStage:
    """Python tasks that are still to be made, one for each partition.

    Attributes
    ----------
    partitions
        RDD of the JVM, of byte arrays or pairs of them; a pair comes as two items.
    run
        Called with a partition's number and its items.
    """

    partitions: Any
    run: Callable[[int, Iterator[bytes]], Iterable[Any]]


def python_rdd(stage: PythonStage, spark: SparkContext) -> Any:
    """Make the RDD of the JVM, of byte arrays, whose tasks are those of `stage`."""
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
        *_surroundings(tuple(spark.environment.items()), includes, spark),
        spark.pythonExec,
        spark.pythonVer,
        _broadcast_list(broadcasts, spark),
        spark._javaAccumulator,  # noqa: SLF001
    )
    return jvm.python_rdd(stage.partitions, function, False, False)


def fetch(rdd: Any, spark: SparkContext) -> list[bytes]:
    """Run a job over an RDD of the JVM, of byte arrays, and bring them here."""
    with _load_from_socket(jvm_classes(spark).collect_and_serve(rdd), _BYTES) as arrived:
        return list(arrived)


@lru_cache(maxsize=4)
def _surroundings(
    environment: tuple[tuple[str, str], ...], includes: tuple[str, ...], spark: SparkContext
) -> tuple[Any, Any]:
    """Environment of Python workers, and the files on their path, as the JVM has them."""
    variables = jvm_classes(spark).hash_map()
    for name, value in environment:
        variables.put(name, value)
    return variables, _java_list(includes, spark)


@lru_cache(maxsize=4)
def _broadcast_list(broadcasts: tuple[Any, ...], spark: SparkContext) -> Any:
    # By PySpark's own objects: two of the JVM's are compared by asking it.
    return _java_list([broadcast._jbroadcast for broadcast in broadcasts], spark)  # noqa: SLF001


def _java_list(items: Iterable[Any], spark: SparkContext) -> Any:
    made = jvm_classes(spark).array_list()
    for item in items:
        made.add(item)
    return made

"""Classes of the JVM that epochs use, looked up once.

Every dot of a dotted name is a round trip between Python and the JVM, and an epoch would pay for
some thirty of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["JvmClasses", "jvm_classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmClasses:
    """What an epoch needs of Spark, Scala and Java, by what it is called there."""

    array_list: Any
    broadcast_threshold: int
    bytes_tag: Any
    collect_and_serve: Any
    convert: Any
    hash_map: Any
    local_limit: Any
    pairwise_rdd: Any
    pruned: Any
    python_partitioner: Any
    python_rdd: Any
    simple_python_function: Any
    tuple2: Any
    uuid_of: Any
    value_of_pair: Any


@lru_cache(maxsize=1)
def jvm_classes(spark: SparkContext) -> JvmClasses:
    """Classes of the JVM that a context uses."""
    view: Any = spark._jvm  # noqa: SLF001  the gateway has no public name
    byte_array = view.java.lang.Class.forName("[B")
    return JvmClasses(
        array_list=view.java.util.ArrayList,
        broadcast_threshold=view.PythonUtils.getBroadcastThreshold(spark._jsc),  # noqa: SLF001
        bytes_tag=view.scala.reflect.ClassTag.apply(byte_array),
        collect_and_serve=view.PythonRDD.collectAndServe,
        convert=view.scala.jdk.javaapi.CollectionConverters,
        hash_map=view.java.util.HashMap,
        local_limit=view.org.apache.spark.sql.execution.LocalLimitExec,
        pairwise_rdd=view.PairwiseRDD,
        pruned=view.org.apache.spark.rdd.PartitionPruningRDD.create,
        python_partitioner=view.PythonPartitioner,
        python_rdd=view.PythonRDD,
        simple_python_function=view.SimplePythonFunction,
        tuple2=view.scala.Tuple2,
        uuid_of=view.java.util.UUID.fromString,
        value_of_pair=view.PythonRDD.valueOfPair,
    )

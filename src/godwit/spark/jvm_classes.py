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
    bytes_tag: Any
    convert: Any
    local_limit: Any
    pairwise_rdd: Any
    partition_pruning_rdd: Any
    python_partitioner: Any
    python_rdd: Any
    tuple2: Any
    uuid: Any


@lru_cache(maxsize=1)
def jvm_classes(spark: SparkContext) -> JvmClasses:
    """Classes of the JVM that a context uses."""
    view: Any = spark._jvm  # noqa: SLF001  the gateway has no public name
    byte_array = view.java.lang.Class.forName("[B")
    return JvmClasses(
        array_list=view.java.util.ArrayList,
        bytes_tag=view.scala.reflect.ClassTag.apply(byte_array),
        convert=view.scala.jdk.javaapi.CollectionConverters,
        local_limit=view.org.apache.spark.sql.execution.LocalLimitExec,
        pairwise_rdd=view.PairwiseRDD,
        partition_pruning_rdd=view.org.apache.spark.rdd.PartitionPruningRDD,
        python_partitioner=view.PythonPartitioner,
        python_rdd=view.PythonRDD,
        tuple2=view.scala.Tuple2,
        uuid=view.java.util.UUID,
    )

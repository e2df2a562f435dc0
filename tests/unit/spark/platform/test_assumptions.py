"""Godwit's assumptions on Spark's internals hold in the jars of the PySpark that is installed.

The rows are those of the table in ``docs/design/runtime-and-spark.md``, each with the classes and
members of Spark that grant it.  They are looked up in the jars, without a JVM.
"""

from __future__ import annotations

import re
import struct
import zipfile
from functools import cache, lru_cache
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/design/runtime-and-spark.md"

_FUNCTION = (
    "(Lscala/collection/immutable/Seq;Ljava/util/Map;Ljava/util/List;Ljava/lang/String;"
    "Ljava/lang/String;Ljava/util/List;Lorg/apache/spark/util/CollectionAccumulator;)V"
)

# row of the table → class → names, descriptors and texts in it; with "!" in front: not in it
GRANTED: dict[str, dict[str, list[str]]] = {
    "name on the command line": {
        "executor/CoarseGrainedExecutorBackend$": ["--executor-id"],
        "scheduler/cluster/StandaloneSchedulerBackend": ["--executor-id", "{{EXECUTOR_ID}}"],
        "deploy/yarn/ExecutorRunnable": ["--executor-id"],
        "scheduler/cluster/k8s/KubernetesExecutorBackend$": ["--executor-id"],
        "deploy/k8s/Constants$": ["SPARK_EXECUTOR_ID"],
        "scheduler/cluster/k8s/ExecutorPodsAllocator": ["!EXECID"],
    },
    "stand-in for a name": {
        "scheduler/cluster/k8s/StatefulSetPodsAllocator": ["EXECID"],
        "scheduler/cluster/k8s/DeploymentPodsAllocator": ["EXECID"],
        "scheduler/cluster/k8s/KubernetesExecutorBackend$": ["EXECID"],
        "deploy/k8s/Config$": ["spark.kubernetes.allocation.pods.allocator", "direct"],
    },
    "names are used once": {
        "deploy/master/ApplicationInfo": ["nextExecutorId"],
        "deploy/yarn/YarnAllocator": ["executorIdCounter"],
        "scheduler/cluster/CoarseGrainedClusterMessages$RetrieveLastAllocatedExecutorId$": [],
        "scheduler/cluster/k8s/ExecutorPodsAllocator": ["EXECUTOR_ID_COUNTER"],
    },
    "location of an executor": {
        "scheduler/TaskLocation$": ["executor_", "_", "split"],
        "scheduler/ExecutorCacheTaskLocation": ["executorId", "host"],
        "scheduler/TaskSetManager": ["addPendingTask", "isExecutorAlive"],
        "internal/config/package$": ["spark.locality.wait.process"],
    },
    "locality wait": {"scheduler/TaskSetManager": ["localityWaits", "LOCALITY_WAIT_PROCESS"]},
    "no dynamic allocation, no exclusion": {
        "internal/config/package$": [
            "spark.dynamicAllocation.enabled",
            "spark.excludeOnFailure.enabled",
        ],
    },
    "tasks are repeated": {
        "scheduler/TaskSetManager": ["handleFailedTask"],
        "scheduler/DAGScheduler": ["resubmitFailedStages"],
    },
    "executors reach each other": {"network/netty/NettyBlockTransferService": ["fetchBlocks"]},
    "list of executors": {
        "SparkContext": ["getExecutorIds", "statusStore", "isLocal"],
        "status/AppStatusStore": ["executorList"],
        "status/api/v1/ExecutorSummary": ["id", "hostPort", "totalCores"],
    },
    "adding and removing": {
        "SparkContext": ["requestTotalExecutors", "(IILscala/collection/immutable/Map;)Z"],
        "ExecutorAllocationClient": ["killExecutor", "requestTotalExecutors"],
        "scheduler/cluster/CoarseGrainedSchedulerBackend": ["killExecutors"],
        "deploy/yarn/YarnAllocator": [
            "killExecutor",
            "requestTotalExecutorsWithPreferredLocalities",
        ],
        "scheduler/cluster/k8s/KubernetesClusterSchedulerBackend": [
            "doKillExecutors",
            "doRequestTotalExecutors",
        ],
    },
    "local directories": {
        "api/python/BasePythonRunner": ["SPARK_LOCAL_DIRS"],
        "util/Utils$": ["LOCAL_DIRS", "CONTAINER_ID", "SPARK_LOCAL_DIRS"],
    },
    "stages of Python": {
        "api/python/PythonRDD": [
            "serveIterator",
            "valueOfPair",
            "(Lorg/apache/spark/rdd/RDD;Lorg/apache/spark/api/python/PythonFunction;ZZ)V",
        ],
        "api/python/PythonPartitioner": ["(IJ)V"],
        "api/python/PairwiseRDD": ["asJavaPairRDD"],
        "api/python/SimplePythonFunction": [_FUNCTION],
        "api/python/PythonUtils": ["getBroadcastThreshold", "toSeq", "toScalaMap"],
        "rdd/AsyncRDDActions": ["collectAsync"],
        "rdd/PartitionPruningRDD": ["create"],
        "rdd/RDD": ["rddToAsyncRDDActions"],
    },
    "workers of Python": {
        "api/python/PythonWorkerFactory": ["daemonModule"],
        "internal/config/Python$": ["spark.python.daemon.module", "spark.python.worker.reuse"],
    },
    "micro-batches": {
        "sql/execution/streaming/runtime/StreamExecution": [
            "noNewData",
            "getLatestExecutionContext",
        ],
        "sql/execution/streaming/runtime/ProgressContext": ["reportTimeTaken"],
    },
}


@lru_cache(maxsize=1)
def jars() -> list[zipfile.ZipFile]:
    """Return Spark's own jars."""
    directory = Path(pyspark.__file__).parent / "jars"
    return [zipfile.ZipFile(path) for path in sorted(directory.glob("spark-*.jar"))]


@cache
def texts_of(name: str) -> frozenset[str]:
    """Return the texts in the constant pool of a class: names, descriptors and literals."""
    for jar in jars():
        try:
            data = jar.read(f"org/apache/spark/{name}.class")
        except KeyError:
            continue
        return frozenset(_pool(data))
    raise AssertionError(f"PySpark {pyspark.__version__} has no class {name}")


def _pool(data: bytes) -> list[str]:
    """Return the texts of a class file's constant pool (Java's specification, section 4.4)."""
    (count,) = struct.unpack_from(">H", data, 8)
    sizes = {**dict.fromkeys((7, 8, 16, 19, 20), 3), 15: 4, 5: 9, 6: 9}
    place, number, texts = 10, 1, []
    while number < count:
        tag = data[place]
        if tag == 1:
            (length,) = struct.unpack_from(">H", data, place + 1)
            texts.append(data[place + 3 : place + 3 + length].decode("utf-8", "replace"))
            place += 3 + length
        else:
            place += sizes.get(tag, 5)
        number += 2 if tag in {5, 6} else 1
    return texts


@pytest.mark.parametrize("row", GRANTED)
def test_spark_has_what_grants_an_assumption(row: str) -> None:
    for name, wanted in GRANTED[row].items():
        texts = texts_of(name)
        for text in wanted:
            absent = text.startswith("!")
            assert (text.removeprefix("!") in texts) is not absent, (name, text)


def test_a_class_or_a_member_that_is_not_there_is_noticed() -> None:
    with pytest.raises(AssertionError, match="has no class scheduler/TaskPlace"):
        texts_of("scheduler/TaskPlace")
    assert "placeOf" not in texts_of("scheduler/TaskLocation$")


def table() -> dict[str, list[str]]:
    """Return the rows of the table of assumptions: name → its other cells."""
    section = PAGE.read_text().partition("## What Godwit assumes of Spark and of platforms")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]
    return {row[0].strip(): row[1:] for row in rows}


def test_the_table_has_every_row_and_names_tests_that_exist() -> None:
    rows = table()
    assert rows.keys() - GRANTED.keys() == {"lanes reach the driver", "a classic session"}
    assert not GRANTED.keys() - rows.keys()
    for name, cells in rows.items():
        assert len(cells) == 3, name
        tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", cells[1])
        assert tests or name in GRANTED, f"row {name!r} names no test"
        for path, function in tests:
            assert f"def {function}" in (ROOT / path).read_text(), (path, function)
        for path in re.findall(r"`((?:spark|engine)/[\w/]+\.py)`", cells[0]):
            assert (ROOT / "src/godwit" / path).exists(), path

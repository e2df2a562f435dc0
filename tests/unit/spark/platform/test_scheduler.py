"""Spark's settings for adding and removing executors, and requests to its scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from godwit.spark.platform.executor_pool import SparkScheduler


class FakeContext:
    """A SparkContext as far as the scheduler looks at it."""

    def __init__(self, master: str, **settings: str) -> None:
        self.master = master
        self.asked: list[tuple[Any, ...]] = []
        self._conf = {name.replace("_", "."): value for name, value in settings.items()}
        context = SimpleNamespace(
            isLocal=lambda: master.startswith("local"),
            requestTotalExecutors=self._request,
            killExecutor=self._end,
        )
        self._jsc = SimpleNamespace(sc=lambda: context)
        empty = SimpleNamespace(empty=dict)
        predef = SimpleNamespace(Map=lambda: empty)
        self._jvm = SimpleNamespace(scala=SimpleNamespace(Predef=predef))

    def _request(self, *asked: Any) -> bool:
        self.asked.append(asked)
        return True

    def _end(self, executor: str) -> bool:
        self.asked.append(("end", executor))
        return executor != "gone"


@pytest.mark.parametrize(
    ("context", "text"),
    [
        (FakeContext("local[4]"), "local[4] is one process"),
        (FakeContext("yarn", spark_dynamicAllocation_enabled="true"), "dynamic allocation"),
        (FakeContext("spark://h:7077", spark_dynamicAllocation_enabled="TRUE"), "=false"),
    ],
    ids=["local", "yarn", "standalone"],
)
def test_where_executors_cannot_be_scaled_it_says_why(context: Any, text: str) -> None:
    assert text in SparkScheduler(context).unsupported_reason


@pytest.mark.parametrize(
    "context",
    [
        FakeContext("spark://h:7077"),
        FakeContext("local-cluster[2,1,1024]"),
        FakeContext("yarn", spark_dynamicAllocation_enabled="false"),
        FakeContext("k8s://https://h"),
    ],
    ids=["standalone", "local-cluster", "yarn", "kubernetes"],
)
def test_everywhere_else_they_can(context: Any) -> None:
    assert SparkScheduler(context).unsupported_reason == ""


@pytest.mark.parametrize(
    ("context", "most"),
    [
        (FakeContext("spark://h:7077", spark_cores_max="9", spark_executor_cores="2"), 4),
        (FakeContext("spark://h:7077", spark_cores_max="9"), None),
        (FakeContext("yarn", spark_cores_max="9", spark_executor_cores="2"), None),
    ],
    ids=["bounded", "of any size", "not standalone"],
)
def test_the_most_there_can_be_follows_from_the_cores(context: Any, most: int | None) -> None:
    assert SparkScheduler(context).max_executors == most


def test_every_executor_is_ended_whatever_becomes_of_the_others() -> None:
    context: Any = FakeContext("spark://h:7077")
    scheduler = SparkScheduler(context)
    assert scheduler.request(3)
    assert not scheduler.give_back(["gone", "2"])
    assert context.asked == [(3, 0, {}), ("end", "gone"), ("end", "2")]

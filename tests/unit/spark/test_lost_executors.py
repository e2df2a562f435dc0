"""An epoch whose executor is lost is broken off, whenever the loss is seen."""

from __future__ import annotations

from typing import Any, cast

import pytest

from godwit.spark.cluster import LostExecutors


class Context:
    """A Spark context that counts."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.cancelled = 0

    def addJobTag(self, tag: str) -> None:  # noqa: N802  Spark's name
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802  Spark's name
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802  Spark's name
        assert tag == "run"
        self.cancelled += 1


@pytest.fixture
def context() -> Context:
    return Context()


@pytest.fixture
def lost(context: Context) -> LostExecutors:
    return LostExecutors("run", cast("Any", context))


def test_jobs_are_cancelled_again_until_the_epoch_is_over(
    lost: LostExecutors, context: Context
) -> None:
    with lost.cancel_if_lost(["a", "b"], {"a", "b"}), lost.spark_jobs():
        assert context.tags == ["run"]
        lost.cancel_jobs()
        assert context.cancelled == 0
        lost.record_loss("b")
        lost.cancel_jobs()
        assert context.cancelled == 2
    lost.cancel_jobs()
    assert (context.cancelled, context.tags) == (2, [])
    assert (lost.pop_lost(), lost.pop_lost()) == ("b", None)


def test_executors_that_the_epoch_does_not_use_break_nothing_off(
    lost: LostExecutors, context: Context
) -> None:
    with lost.cancel_if_lost(["a"], {"a", "c"}):
        lost.record_loss("c")
    lost.record_loss("a")
    assert (context.cancelled, lost.pop_lost()) == (0, None)


def test_an_executor_lost_since_the_plan_was_made_is_noticed_before_any_job(
    lost: LostExecutors, context: Context
) -> None:
    with pytest.raises(ConnectionError), lost.cancel_if_lost(["a", "b"], {"a"}):
        pytest.fail("nothing may run")
    assert (lost.pop_lost(), context.tags) == ("b", [])

"""Tasks of the session that wait for slots, as Spark's status shows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkConf

from godwit.spark.resident.job import SparkTasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Jobs = Mapping[str, Mapping[int, Sequence[int]]]  # group → job → its stages


class Status:
    """Spark's status: jobs of groups, their stages, and how many tasks of a stage run."""

    def __init__(self, jobs: Jobs, running: Mapping[int, int]) -> None:
        self._jobs, self._running = jobs, running

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802  Spark's names
        return list(self._jobs[group])

    def getJobInfo(self, job: int) -> SimpleNamespace | None:  # noqa: N802
        stages = next((jobs[job] for jobs in self._jobs.values() if job in jobs), None)
        return None if stages is None else SimpleNamespace(stageIds=stages)

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self._running)

    def getStageInfo(self, stage: int) -> SimpleNamespace:  # noqa: N802
        running = self._running[stage]
        return SimpleNamespace(numTasks=2, numActiveTasks=running, numCompletedTasks=0)


def waiting(jobs: Jobs, running: Mapping[int, int]) -> int:
    """Return the waiting tasks that the lanes of job 3 see, in the group `lanes-3`."""
    spark = SimpleNamespace(
        _conf=SparkConf(loadDefaults=False), statusTracker=lambda: Status(jobs, running)
    )
    tasks = SparkTasks(
        cast("Any", spark), group="lanes", description="", locate=lambda executor: executor
    )
    return tasks.of_job(3).waiting()


def test_tasks_of_other_jobs_that_have_no_slot_wait() -> None:
    jobs = {"lanes-3": {1: [10]}, "other": {2: [20, 21]}}
    assert waiting(jobs, {10: 2, 20: 1, 21: 0}) == 1 + 2


def test_the_lanes_own_tasks_do_not_wait_though_spark_s_status_has_not_seen_them_begin() -> None:
    assert waiting({"lanes-3": {1: [10]}, "other": {2: [20]}}, {10: 0, 20: 2}) == 0

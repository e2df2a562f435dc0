"""Events as Spark writes them, by the thousand and without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["application", "as_lines", "micro_batch", "query_started"]

QUERY = "e043072b-42ff-4ab6-84e5-32ceb7c4b462"


def application(*, cores: Sequence[int] = (2,), task_cpus: int = 1) -> list[dict[str, Any]]:
    """Begin an application with so many executors."""
    return [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
        *(
            {
                "Event": "SparkListenerExecutorAdded",
                "Executor ID": str(n),
                "Executor Info": {"Host": "h", "Total Cores": count},
            }
            for n, count in enumerate(cores)
        ),
        {
            "Event": "SparkListenerEnvironmentUpdate",
            "Spark Properties": {"spark.task.cpus": str(task_cpus)},
        },
        {"Event": "SparkListenerApplicationStart", "App Name": "skewed", "App ID": "app-1"},
    ]


def query_started(query: str = QUERY, name: str | None = "totals") -> dict[str, Any]:
    kind = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent"
    return {"Event": kind, "id": query, "runId": "r", "name": name}


def micro_batch(
    batch: int,
    tasks_ms: Sequence[int],
    *,
    stage: int | None = None,
    attempt: int = 0,
    slots: int = 2,
    query: str = QUERY,
    operators: Iterable[str] = ("StateStoreRestore", "StateStoreSave"),
    failure: str | None = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Run one stage: partitions in order, each on the first slot that is free, as Spark does."""
    stage = batch if stage is None else stage
    info: dict[str, Any] = {
        "Stage ID": stage,
        "Stage Attempt ID": attempt,
        "RDD Info": [
            {"Name": "StateStoreRDD", "Scope": json.dumps({"id": "1", "name": name})}
            for name in operators
        ],
    }
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    made: list[dict[str, Any]] = [
        {"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": properties}
    ]
    free = [batch * 1_000_000] * slots
    for partition, took_ms in enumerate(tasks_ms):
        slot = free.index(min(free))
        made.append(task_end(stage, attempt, partition, (free[slot], took_ms), str(slot)))
        free[slot] += took_ms
    ended = dict(info) if failure is None else {**info, "Failure Reason": failure}
    made.append({"Event": "SparkListenerStageCompleted", "Stage Info": ended})
    if progress:
        kind = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
        operator = {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 10,
            "memoryUsedBytes": 100,
            "commitTimeMs": 5,
        }
        figures = {
            "id": query,
            "name": "totals",
            "batchId": batch,
            "durationMs": {"triggerExecution": 2 * sum(tasks_ms)},
            "stateOperators": [operator],
        }
        made.append({"Event": kind, "progress": figures})
    return made


def task_end(
    stage: int, attempt: int, partition: int, ran: tuple[int, int], executor: str
) -> dict[str, Any]:
    launch_ms, took_ms = ran
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Stage Attempt ID": attempt,
        "Task End Reason": {"Reason": "Success"},
        "Task Info": {
            "Index": partition,
            "Partition ID": partition,
            "Launch Time": launch_ms,
            "Finish Time": launch_ms + took_ms,
            "Executor ID": executor,
            "Accumulables": [
                {"ID": 1, "Name": "number of total state rows", "Update": str(partition + 1)},
                {"ID": 2, "Name": "memory used by state", "Update": 100},
                {"ID": 3, "Name": None, "Update": [1, {"a": 2}]},
            ],
        },
        "Task Metrics": {
            "Executor CPU Time": took_ms * 500_000,
            "Shuffle Read Metrics": {
                "Remote Bytes Read": 10,
                "Local Bytes Read": took_ms,
                "Total Records Read": took_ms,
            },
        },
    }


def as_lines(events: Iterable[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(event, separators=(",", ":")).encode() for event in events]

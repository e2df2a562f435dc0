"""Lanes that stay, on a real cluster of processes: a lane's process and an executor are killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.chaos.flow import chaos_flow, epochs_of
from tests.chaos.programs.cluster import NUM_KEY_GROUPS, until
from tests.chaos.results import put
from tests.contract.on_cluster import OnCluster
from tests.contract.scenarios import scenario as contract
from tests.contract.verdict import play

import godwit as gw
from godwit.columns.hashing import hash_keys
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.ops.local_cluster import LocalCluster


def play_contract(cluster: LocalCluster, spark: SparkSession, directory: Path, name: str) -> None:
    """Play a scenario of `tests.contract`, which is judged here; its events are in a file."""
    scenario = contract(name)
    with pytest.MonkeyPatch.context() as patch:
        realization = OnCluster(
            cluster,
            spark,
            directory / "contract",
            patch,
            deep=scenario.deep,
            policy=scenario.policy,
            resident=True,
        )
        play(scenario, realization)
    events = [event.to_dict() for event in realization.events]
    (directory / "played.json").write_text(json.dumps(events))


def killed(cluster: LocalCluster, spark: SparkSession, directory: Path, seed: int) -> None:
    """Kill a lane's process, later an executor, each in the middle of an epoch.

    `directory` has ``in/``, ``out/``, ``ck/`` and, when it is done, ``events.json`` and
    ``told.json``.
    """
    (directory / "in").mkdir(parents=True)
    epochs = iter(epochs_of(seed, 24))
    number = 0
    query = chaos_flow(spark, directory, num_key_groups=NUM_KEY_GROUPS).start(
        checkpoint=directory / "ck",
        executors=2,
        name=directory.name,
        lanes=gw.Lanes(resident=True),
    )
    spark_cluster: Any = query._run.cluster
    resident = spark_cluster.resident
    assert resident is not None
    worked = []

    def process(count: int, act: str = "") -> None:
        nonlocal number
        for _ in range(count):
            (key, first, _), *others = next(epochs)
            put(directory / "in", number, [(key, first, act), *others])
            number += 1
            query.processAllAvailable()
        worked.append(resident.epochs)

    process(4)
    process(1, "1 die")  # the Python process that has the row
    until(lambda: resident._now_s() >= resident._not_before_s, "the end of the pause")
    process(3)
    application = spark.sparkContext.applicationId
    keys = pa.record_batch({"k": pa.array([0], pa.int32())})  # of the first row of every epoch
    (key_group,) = key_groups_of(hash_keys(keys), NUM_KEY_GROUPS)
    dying = query.placement.assignments["order"].executor(int(key_group))
    (directory / "acts/victim").write_text(str(cluster.executor_pids(application)[dying]))
    process(1, "1 end victim")
    until(lambda: dying not in query.executors, f"the loss of {dying}")
    until(lambda: query.status["keyGroupsSuspended"] == 0, "everything to run again")
    until(lambda: resident._now_s() >= resident._not_before_s, "the end of the pause")
    process(3)
    query.stop()
    told = {"epochs": number, "worked": worked, "lost": dying}
    (directory / "told.json").write_text(json.dumps(told))
    (directory / "events.json").write_text(json.dumps([e.to_dict() for e in query.events]))

"""Executors that are killed while key groups move, on a real cluster of processes.

Called with the path of a JSON file: ``directory``, ``seed``.  One cluster serves all scenarios;
each has a directory of its own, with ``in/``, ``out/``, ``ck/`` and, when it is done,
``events.json`` and ``told.json``.  What should have come out is for the tests to say.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.chaos.flow import SHARDS, Row, chaos_flow, epochs_of
from tests.chaos.results import put

from godwit.dataflow.hashing import hash_keys
from godwit.model import events
from godwit.model.key_groups import key_groups_of
from godwit.spark.errands import Errands
from godwit.spark.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    import godwit as gw

PATIENCE_S = 120.0
NUM_KEY_GROUPS = 8

warming_allowed = threading.Event()
warming_allowed.set()


def patient_warming() -> None:
    """Let warming wait for `warming_allowed`."""
    warm = Errands._warm

    def patient(self: Errands, command: Any) -> None:
        assert warming_allowed.wait(PATIENCE_S)
        warm(self, command)

    setattr(Errands, "_warm", patient)  # noqa: B010  mypy takes no assignment to a method


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


@dataclass(slots=True, kw_only=True)
class Scenario:
    """One flow on the cluster, and what may be done to it."""

    cluster: LocalCluster
    spark: SparkSession
    directory: Path
    epochs: list[list[Row]]
    query: gw.Query = field(init=False)
    put: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Wait for three executors, then start the flow."""
        (self.directory / "in").mkdir(parents=True)
        application = self.spark.sparkContext.applicationId
        until(lambda: len(self.cluster.executor_pids(application)) == 3, "three executors")
        flow = chaos_flow(self.spark, self.directory, num_key_groups=NUM_KEY_GROUPS)
        self.query = flow.start(
            checkpoint=self.directory / "ck",
            executors=3,
            name=self.directory.name,
        )

    def process(self, number: int = 1, *, acts: dict[int, str] | None = None) -> None:
        """Put epochs and wait until they are processed; `acts`: key → act of its first row."""
        for _ in range(number):
            self._put(acts or {})
            self.query.processAllAvailable()

    def take_in(self, number: int) -> None:
        """Put epochs and wait until their rows are committed, processed or waiting."""
        for _ in range(number):
            self._put({})
            until(lambda: self._taken_in() >= self.put, f"epoch {self.put}")

    def _put(self, acts: dict[int, str]) -> None:
        rows = [(k, n, acts.pop(k, "")) for k, n, _ in self.epochs[self.put]]
        put(self.directory / "in", self.put, rows)
        self.put += 1

    def _taken_in(self) -> int:
        """Count the epochs that had rows from the source."""
        told = self.query.events
        return sum(isinstance(e, events.EpochCommitted) and e.rows_in > 0 for e in told)

    def owners(self, component: str) -> list[str]:
        """Executors that own key groups of a component, as many times as they own some."""
        assignment = self.query.assignment[component]
        return [assignment.executor(g) for g in range(NUM_KEY_GROUPS)]

    def kill(self, executor: str) -> None:
        """Kill an executor and wait until the flow knows."""
        self.cluster.kill_executor(executor, self.spark.sparkContext.applicationId)
        self.wait_for_loss(executor)

    def wait_for_loss(self, executor: str) -> None:
        """Wait until the flow knows that an executor is gone."""
        until(lambda: executor not in self.query.executors, f"the loss of {executor}")

    def settle(self) -> None:
        """Go on until every key group runs and no row waits."""
        for _ in range(6):
            until(lambda: self.query.status["keyGroupsSuspended"] == 0, "everything to run again")
            self.process()
            view = self.query._run.view
            if not any(c.waiting or c.suspended for c in view.components.values()):
                return
        raise TimeoutError("rows still wait")

    def finish(self) -> None:
        """Process what is left, stop, and write down what happened."""
        self.settle()
        self.query.stop()
        self.told["epochs"] = self.put
        (self.directory / "told.json").write_text(json.dumps(self.told))
        told = [event.to_dict() for event in self.query.events]
        (self.directory / "events.json").write_text(json.dumps(told))


def suspended(scenario: Scenario) -> None:
    """An executor dies between epochs, and its key groups stay cold for three epochs."""
    scenario.process(3)
    warming_allowed.clear()
    dead = scenario.owners("order")[0]
    scenario.told["owned"] = {
        name: assignment.key_groups(dead).tolist()
        for name, assignment in scenario.query.assignment.items()
    }
    scenario.kill(dead)
    scenario.take_in(3)
    warming_allowed.set()
    scenario.finish()


def fetched(scenario: Scenario) -> None:
    """An executor dies after some lanes of the next level have fetched what it sent."""
    scenario.process(3)
    shards = pa.record_batch({"shard": pa.array(range(SHARDS), pa.int32())})
    key_groups = key_groups_of(hash_keys(shards), NUM_KEY_GROUPS)
    where = [scenario.query.assignment["shards"].executor(int(g)) for g in key_groups]
    dying = where[0]
    other = next(shard for shard, executor in enumerate(where) if executor != dying)
    application = scenario.spark.sparkContext.applicationId
    pid = scenario.cluster.executor_pids(application)[dying]
    (scenario.directory / "acts/victim").write_text(str(pid))
    scenario.told["dead"] = dying
    # Keys 0 and `other` belong to shards 0 and `other`.
    scenario.process(acts={0: "2 wait for death", other: "2 signal victim"})
    scenario.wait_for_loss(dying)
    scenario.finish()


def main(path: str) -> None:
    """Run all scenarios."""
    config = json.loads(Path(path).read_text())
    directory = Path(config["directory"])
    patient_warming()
    scenarios = {"suspended": suspended, "fetched": fetched}
    with LocalCluster(workers=3, memory="512m", work_dir=directory / "cluster") as cluster:
        settings = {
            "spark.driver.memory": "512m",
            # After a loss Spark goes on to wait for the dead executor as long as for a busy one.
            "spark.locality.wait.process": "2s",
            # As on several machines: what a dead executor wrote is out of reach.
            "spark.shuffle.readHostLocalDisk": "false",
        }
        spark = cluster.session("chaos", settings)
        spark.sparkContext.setLogLevel("OFF")
        for name in config["scenarios"]:
            print(time.strftime("%H:%M:%S"), name, flush=True)  # noqa: T201  the log of this program
            scenario = Scenario(
                cluster=cluster,
                spark=spark,
                directory=directory / name,
                epochs=epochs_of(config["seed"], 24),
            )
            scenario.start()
            scenarios[name](scenario)


if __name__ == "__main__":
    main(sys.argv[1])

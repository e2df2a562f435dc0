"""Executors that are killed while key groups move, on a real cluster of processes.

Called with the path of a JSON file: ``directory``, ``seed``, ``contract`` (names of scenarios of
`tests.contract`, which are judged here), ``own`` (those over a source of Godwit's own).  One
cluster serves everything.  What is not of the contract has a directory of its own, with ``in/``,
``out/``, ``ck/`` and, when it is done, ``events.json`` and ``told.json``; what should have come out
of it is for the tests to say.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.chaos.flow import SHARDS, Row, chaos_flow, epochs_of
from tests.chaos.results import put
from tests.chaos.timed import FAR, put_timed, timed_flow, timed_rows
from tests.chaos.timed import Row as Timed
from tests.contract.on_cluster import OnCluster
from tests.contract.scenarios import scenario as contract
from tests.contract.verdict import play

from godwit.columns.hashing import hash_keys
from godwit.engine import cluster as cluster_port
from godwit.model.events import KeyGroupsWarmed
from godwit.model.key_groups import key_groups_of
from godwit.ops.local_cluster import LocalCluster
from godwit.spark.platform.executors import live_executors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    import godwit as gw

PATIENCE_S = 120.0
NUM_KEY_GROUPS = 8


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def wait_for_loss(query: gw.types.Query, executor: str) -> None:
    """Wait until a query knows that an executor is gone."""
    until(lambda: executor not in query.executors, f"the loss of {executor}")


@dataclass(slots=True, kw_only=True)
class Scenario:
    """One flow on the cluster, and what may be done to it."""

    cluster: LocalCluster
    spark: SparkSession
    directory: Path
    epochs: list[list[Row]]
    query: gw.types.Query = field(init=False)
    put: int = 0
    told: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Wait for three executors, then start the flow."""
        (self.directory / "in").mkdir(parents=True)
        until(self.has_three_executors, "three executors")
        flow = chaos_flow(self.spark, self.directory, num_key_groups=NUM_KEY_GROUPS)
        self.query = flow.start(
            checkpoint=self.directory / "ck",
            executors=3,
            name=self.directory.name,
        )

    def has_three_executors(self) -> bool:
        """Say whether all executors are there, those included that replace dead ones."""
        pids = self.cluster.executor_pids(self.spark.sparkContext.applicationId)
        return len(pids) == 3 and len(live_executors(self.spark.sparkContext)) == 3

    def process(self, number: int = 1, *, acts: dict[int, str] | None = None) -> None:
        """Put epochs and wait until they are processed; `acts`: key → act of its first row."""
        for _ in range(number):
            self._put(acts or {})
            self.query.processAllAvailable()

    def _put(self, acts: dict[int, str]) -> None:
        rows = [(k, n, acts.pop(k, "")) for k, n, _ in self.epochs[self.put]]
        put(self.directory / "in", self.put, rows)
        self.put += 1

    def wait_for_loss(self, executor: str) -> None:
        """Wait until the flow knows that an executor is gone."""
        wait_for_loss(self.query, executor)

    def settle(self) -> None:
        """Continue until every key group runs and no row waits."""
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


def fetched(scenario: Scenario) -> None:
    """An executor dies after some lanes of the next level have fetched what it sent."""
    scenario.process(3)
    shards = pa.record_batch({"shard": pa.array(range(SHARDS), pa.int32())})
    key_groups = key_groups_of(hash_keys(shards), NUM_KEY_GROUPS)
    where = [scenario.query.placement.assignments["shards"].executor(int(g)) for g in key_groups]
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


def side_by_side(
    cluster: LocalCluster,
    spark: SparkSession,
    root: Path,
    timed_epochs: list[list[Timed]],
    mixed_epochs: list[list[Row]],
) -> None:
    """Two flows on the same executors, one of which dies under both; the streams continue.

    ``timed`` has windows, timers and named states, ``mixed`` both kinds of sources, and key groups
    that move.
    """
    timed, mixed = root / "timed", root / "mixed"
    for directory in (timed / "in", mixed / "in", mixed / "own"):
        directory.mkdir(parents=True)
    flows = {
        timed: timed_flow(spark, timed),
        mixed: chaos_flow(spark, mixed, num_key_groups=NUM_KEY_GROUPS, mixed=True),
    }
    queries = {
        directory: flow.start(checkpoint=directory / "ck", executors=3, name=directory.name)
        for directory, flow in flows.items()
    }
    placement, moved = queries[mixed].placement, None
    for number, (events, rows) in enumerate(zip(timed_epochs, mixed_epochs, strict=True)):
        dying = None
        if number == 1:
            to = placement.assignments["order"].executor(NUM_KEY_GROUPS - 1)
            moved = queries[mixed].migrate(
                dict.fromkeys(range(NUM_KEY_GROUPS // 2), to), component="order"
            )
        if number == len(mixed_epochs) // 2:
            assert moved is not None
            moved.wait(PATIENCE_S)
            dying = placement.assignments["order"].executor(0)
            os.kill(cluster.executor_pids(spark.sparkContext.applicationId)[dying], signal.SIGKILL)
        put_timed(timed / "in", number, events)
        put(mixed / "in", number, [row for row in rows if row[0] % 2])
        put(mixed / "own", number, [row for row in rows if not row[0] % 2])
        for query in queries.values():
            query.processAllAvailable()
            if dying is not None:
                wait_for_loss(query, dying)
    # Event time far on ends what is open; not while key groups are suspended.
    for number in range(len(timed_epochs), len(timed_epochs) + 4):
        run_again(queries[timed])
        put_timed(timed / "in", number, [FAR])
        queries[timed].processAllAvailable()
    run_again(queries[mixed])
    queries[mixed].processAllAvailable()
    for directory, query in queries.items():
        query.stop()
        told = [event.to_dict() for event in query.events]
        (directory / "events.json").write_text(json.dumps(told))


def run_again(query: gw.types.Query) -> None:
    """Wait until no key group waits for its state."""
    until(lambda: query.status["keyGroupsSuspended"] == 0, "everything to run again")


def main(path: str) -> None:
    """Run all scenarios."""
    config = json.loads(Path(path).read_text())
    directory = Path(config["directory"])
    with LocalCluster(workers=3, memory="512m", work_dir=directory / "cluster") as cluster:
        settings = {
            "spark.driver.memory": "512m",
            # After a loss Spark continues to wait for the dead executor as long as for a busy one.
            "spark.locality.wait.process": "2s",
            # As on several machines: what a dead executor wrote is out of reach.
            "spark.shuffle.readHostLocalDisk": "false",
        }
        spark = cluster.session("chaos", settings)
        spark.sparkContext.setLogLevel("OFF")
        scenario = Scenario(
            cluster=cluster,
            spark=spark,
            directory=directory / "fetched",
            epochs=epochs_of(config["seed"], 24),
        )
        scenario.start()
        fetched(scenario)
        until(scenario.has_three_executors, "three executors")
        seed = config["seed"]
        side_by_side(cluster, spark, directory, timed_rows(seed, 8), epochs_of(seed, 8))
        for number, name in enumerate(config["contract"]):
            sent = directory / f"sent-{number}.json"
            kept(cluster, spark, directory / f"contract-{number}", name, sent)
        for number, name in enumerate(config.get("own", ())):
            kept(cluster, spark, directory / f"own-{number}", name, own=True)


def kept(
    cluster: LocalCluster,
    spark: SparkSession,
    directory: Path,
    name: str,
    sent: Path | None = None,
    *,
    own: bool = False,
) -> None:
    """Play a scenario of the contract; `own`: rows are those of a source of Godwit's own.

    Those are read by tasks then, however few they are.
    """
    print(time.strftime("%H:%M:%S"), name, flush=True)  # noqa: T201  the log of this program

    def has_three_executors() -> bool:
        pids = cluster.executor_pids(spark.sparkContext.applicationId)
        return len(pids) == 3 and len(live_executors(spark.sparkContext)) == 3

    until(has_three_executors, "three executors")
    played = contract(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_port, "ROWS_HERE", -1)
        realization = OnCluster(
            cluster, spark, directory, patch, deep=played.deep, policy=played.policy, own=own
        )
        play(played, realization)
    if sent is not None:
        told = [e.peer_bytes for e in realization.events if isinstance(e, KeyGroupsWarmed)]
        sent.write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])

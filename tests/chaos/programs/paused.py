"""An executor that stands still for longer than Spark waits for its heartbeat, and then continues.

Called with the path of a JSON file: ``directory`` and ``seed``.  Leaves ``out/``, ``ck/``,
``events.json`` and ``told.json`` as `tests.chaos.programs.cluster` does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.chaos.flow import epochs_of, is_alive
from tests.chaos.programs.cluster import Scenario, until

from godwit.ops.local_cluster import LocalCluster


def paused(scenario: Scenario) -> None:
    """An executor stands still in the middle of a lane, and continues once another has its work."""
    scenario.process(3)
    application = scenario.spark.sparkContext.applicationId
    names = {pid: name for name, pid in scenario.cluster.executor_pids(application).items()}
    scenario._put({0: "1 pause stopped"})
    stopped = scenario.directory / "acts/stopped"
    until(stopped.exists, "an executor that stands still")
    pids = [int(pid) for pid in stopped.read_text().split()]
    scenario.told["dead"] = names[pids[0]]
    scenario.wait_for_loss(names[pids[0]])
    # It wakes up while, or after, others do its lanes anew.
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    scenario.query.processAllAvailable()
    scenario.process(3)
    until(lambda: not any(map(is_alive, pids)), "the end of what woke up")
    until(scenario.has_three_executors, "three executors")
    scenario.process(3)
    scenario.finish()


def main(path: str) -> None:
    """Run it on a cluster that soon misses an executor."""
    config = json.loads(Path(path).read_text())
    directory = Path(config["directory"])
    with LocalCluster(workers=3, memory="512m", work_dir=directory / "cluster") as cluster:
        settings = {
            "spark.driver.memory": "512m",
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "8s",
            "spark.network.timeoutInterval": "1s",
            "spark.locality.wait.process": "2s",
        }
        spark = cluster.session("paused", settings)
        spark.sparkContext.setLogLevel("OFF")
        scenario = Scenario(
            cluster=cluster,
            spark=spark,
            directory=directory / "paused",
            epochs=epochs_of(config["seed"], 24),
        )
        scenario.start()
        paused(scenario)


if __name__ == "__main__":
    main(sys.argv[1])

"""What is killed on a cluster of two executors, which serves all of it.

Called with the path of a JSON file: ``directory``, ``seeds``, ``contract`` (a scenario of
`tests.contract`), ``plays`` (of `tests.chaos.programs.repartitioned`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.chaos.programs import resident
from tests.chaos.programs.cluster import until
from tests.chaos.programs.repartitioned import Play

from godwit.ops.local_cluster import LocalCluster
from godwit.spark.platform.executors import live_executors
from godwit.spark.resident.lanes import ResidentLanes


def main(path: str) -> None:
    """Run everything, one after the other; events and what was killed are in JSON files."""
    config = json.loads(Path(path).read_text())
    directory, seeds = Path(config["directory"]), config["seeds"]
    with (
        LocalCluster(workers=2, cores=2, memory="512m", work_dir=directory / "cluster") as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        settings = {
            "spark.driver.memory": "512m",
            "spark.locality.wait.process": "2s",
            "spark.shuffle.readHostLocalDisk": "false",
        }
        spark = cluster.session("two executors", settings)
        spark.sparkContext.setLogLevel("OFF")
        resident.play_contract(cluster, spark, directory, config["contract"])
        until(lambda: len(live_executors(spark.sparkContext)) == 2, "two executors")
        patch.setattr(ResidentLanes, "waits_s", 60.0)
        resident.killed(cluster, spark, directory / "killed", seeds["killed"])
        for number, play in enumerate(config["plays"]):
            played = Play(cluster, spark, directory / f"play-{number}", play, seeds["plays"])
            found = played.judge(played.run())
            (directory / f"play-{number}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

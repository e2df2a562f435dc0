"""A driver on Spark: the program, and how the campaign starts and kills it.

A program lives rounds one after another until it is killed: starting Spark takes far longer than
starting a query.  Called with a directory, which has ``round-<n>.json`` for each round to live and
gets ``ended-<n>`` when it is lived.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.kafka.flow import NUM_KEY_GROUPS, die_at, kafka_flow
from tests.chaos.programs.driver import die, session

import godwit as gw
from godwit.ops.local_cluster import LocalCluster, arguments_of, children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["SparkDriver"]

_ROOT = Path(__file__).parents[3]
_START_S = 120.0


class SparkDriver:
    """A driver on Spark, in a program that lives until it is killed.

    Parameters
    ----------
    executors
        Whether executors are processes of their own, on a cluster, so that they can be killed.
    resident
        Whether lanes stay between epochs.
    """

    def __init__(self, *, executors: bool = False, resident: bool = False) -> None:
        self.parts: tuple[str, ...] = ("lane", "executor") if executors else ("lane",)
        self._executors, self._resident = executors, resident
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: Path | None = None

    def start(self, told: dict[str, Any]) -> None:
        """Have the round lived by the program, which is started unless it runs."""
        directory = Path(told["directory"])
        number = told["number"]
        self._ended = directory / f"ended-{number}"
        told = {**told, "on_cluster": self._executors, "resident": self._resident}
        part = directory / f"round-{number}.part"
        part.write_text(json.dumps(told))
        part.rename(directory / f"round-{number}.json")
        if self._process is None or self._process.poll() is not None:
            environment = os.environ | {
                # Functions are pickled by name; executors find them here too.
                "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")]),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            with (directory / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, str(directory), str(number)],
                    cwd=_ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        ready, deadline = directory / "ready", time.monotonic() + _START_S
        while not ready.exists() and self.status() is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def status(self) -> int | None:
        """See `Driver.status`: 0 once the round is lived."""
        assert self._process is not None
        assert self._ended is not None
        return 0 if self._ended.exists() else self._process.poll()

    def kill(self) -> None:
        """Let the JVM go first, so that nothing continues without its driver."""
        if self._process is None:
            return
        for pid in children_of(self._process.pid):
            if b"org.apache.spark.deploy.SparkSubmit" in arguments_of(pid):
                _kill(pid)
        self._process.kill()
        self._process.wait()

    def kill_part(self, part: str) -> bool:
        """Kill a Python worker, which has a lane, or the JVM of an executor."""
        assert self._process is not None
        below = [*_descendants(self._process.pid)]
        executors = [pid for pid, _ in below if b"--executor-id" in arguments_of(pid)]
        workers = [pid for pid, parent in below if _is_daemon(pid) and _is_daemon(parent)]
        found = executors if part == "executor" else workers
        if found:
            _kill(random.choice(found))
        return bool(found)


def _is_daemon(pid: int) -> bool:
    return any(b"daemon" in argument for argument in arguments_of(pid)[1:3])


def _descendants(pid: int) -> Iterator[tuple[int, int]]:
    for child in children_of(pid):
        yield child, pid
        yield from _descendants(child)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main(directory: Path, number: int) -> None:
    """Live rounds until this process is killed or nobody has another."""
    path = directory / f"round-{number}.json"
    first = json.loads(path.read_text())
    with ExitStack() as stack:
        if first["on_cluster"]:
            work = directory / f"cluster-{number}"
            cluster = stack.enter_context(
                LocalCluster(workers=2, cores=2, memory="512m", work_dir=work)
            )
            spark = cluster.session("kafka", {"spark.driver.memory": "512m"})
        else:
            spark = session(directory, cores=3)
        spark.sparkContext.setLogLevel("OFF")
        while True:
            told = json.loads(path.read_text())
            _live(spark, told)
            (directory / f"ended-{number}").touch()
            if told["end"]:
                break
            number += 1
            path = directory / f"round-{number}.json"
            while not path.exists():
                if os.getppid() == 1:  # nobody is there to write another
                    return
                time.sleep(0.02)
        spark.stop()


def _live(spark: SparkSession, told: dict[str, Any]) -> None:
    """Live one round."""
    directory = Path(told["directory"])
    if told["deed"] == "kill at":
        die_at(told, lambda: die(spark))
    flow = kafka_flow(told)
    query: gw.types.Query = flow.start(
        checkpoint=directory / "ck",
        session=spark,
        trigger={"availableNow": True} if told["end"] else None,
        close_at_end=told["end"],
        lanes=gw.Lanes(resident=told["resident"]),
    )
    (directory / "ready").touch()
    if told["end"]:
        query.awaitTermination()
        return
    rng = random.Random(told["number"])
    finish, migrations = directory / "finish", told["migrations"]
    while not finish.exists():
        time.sleep(0.05)
        if not query.isActive:
            query.awaitTermination()  # raises what it failed with
        if migrations and rng.random() < 0.2:
            migrations -= 1
            _migrate(query, rng)
    query.processAllAvailable()
    query.stop()


def _migrate(query: gw.types.Query, rng: random.Random) -> None:
    with suppress(gw.errors.GodwitError):  # one is under way, or the query ends
        component = rng.choice(sorted(query.placement.assignments))
        moving = rng.sample(range(NUM_KEY_GROUPS), rng.randint(1, NUM_KEY_GROUPS))
        query.migrate(
            dict.fromkeys(moving, rng.choice(sorted(query.executors))),
            component=component,
            strategy=rng.choice(["live", "disruptive", "stop_the_world"]),
            bounds=gw.migration.Bounds(max_moves=rng.randint(1, 4)),
        )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except BaseException:  # noqa: BLE001  whatever it is, the campaign has the log
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # whatever is left of Spark goes with this process

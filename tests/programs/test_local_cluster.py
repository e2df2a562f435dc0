"""A local cluster from start to end, in a process of its own: this one has a session already."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from godwit.model.errors import ClusterError
from godwit.ops.local_cluster import LocalCluster

SPARK_HOME = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent

_PROGRAM = """
import json, os, signal, sys, time
import godwit as gw
from tests.support.public_api import example_of, members_of, mistakes_of
from godwit.spark.platform.executors import live_executors, wait_for_executors
from godwit.model.errors import ClusterError
from godwit.ops.local_cluster import LocalCluster, arguments_of

report = {}
try:
    with LocalCluster(workers=1, memory="512m", work_dir=sys.argv[1]) as cluster:
        spark = cluster.session("test", {"spark.driver.memory": "512m"})
        report["master"] = cluster.master_url
        context = spark.sparkContext
        application = context.applicationId
        wait_for_executors(context, 1)
        report["python"] = context.parallelize([0], 1).map(lambda _: sys.executable).collect()[0]
        cluster.add_worker()
        report["executors"] = [e.name for e in wait_for_executors(context, 2)]
        report["pids"] = cluster.executor_pids(application)
        report["strangers"] = cluster.executor_pids("app-of-someone-else")
        report["killed"] = cluster.kill_executor("0", application)
        deadline = time.monotonic() + 60
        while {e.name for e in live_executors(context)} != {"1", "2"}:
            assert time.monotonic() < deadline, live_executors(context)
            time.sleep(0.1)
        report["replaced"] = cluster.executor_pids(application)
        try:
            cluster.kill_executor("0", application)
        except ClusterError as error:
            report["refusal"] = str(error)
        raise ZeroDivisionError
except ZeroDivisionError:
    report["left"] = [pid for pid in report["replaced"].values() if arguments_of(pid)]
print(json.dumps(report), flush=True)

named = members_of("godwit.testing.LocalCluster").items()
members = {name.rpartition(".")[2]: value for name, value in named}
in_order = ["session", "master_url", "executor_pids", "kill_executor"]
in_order += ["add_worker", "wait_for_workers", "close"]
assert sorted(in_order) == sorted(members), members
with gw.testing.LocalCluster(workers=1, memory="512m", work_dir=sys.argv[1] + "/again") as again:
    namespace = {"cluster": again, "gw": gw}
    for name in in_order:
        if name == "close":
            namespace["cluster"] = cluster  # which may be closed more than once
        assert not (said := mistakes_of(example_of(name, members[name]), namespace)), said
        if name == "session":
            wait_for_executors(namespace["session"].sparkContext, 1)
    print("its examples do as they say", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def mentioning(text: str) -> list[str]:
    """Command lines of the processes that name `text`, but this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and path.parent.name != str(os.getpid()):
            found.append(command)
    return found


def on_a_cluster(test: Any) -> Any:
    """Mark a test that starts processes of Spark."""
    missing = shutil.which("java") is None and "JAVA_HOME" not in os.environ
    test = pytest.mark.skipif(missing, reason="Spark needs Java 17 or newer")(test)
    return pytest.mark.spark(pytest.mark.campaign(test))


def run(program: str, work_dir: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a cluster in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, str(work_dir)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=work_dir,
        env=os.environ | environment,
    )


@on_a_cluster
def test_executors_come_die_by_name_are_replaced_and_survive_neither_an_exception_nor_a_kill(
    tmp_path: Path,
) -> None:
    """Of two clusters of one process, an exception ends the first, and SIGKILL the second.

    With the second, the examples of the methods are run.
    """
    done = run(_PROGRAM, tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    first, then = done.stdout.splitlines()
    assert then == "its examples do as they say"
    report = json.loads(first)
    assert report["master"].startswith("spark://127.0.0.1:")
    assert report["python"] == sys.executable
    assert report["executors"] == ["0", "1"]
    assert list(report["pids"]) == ["0", "1"]
    assert report["strangers"] == {}
    assert report["killed"] == report["pids"]["0"]
    assert list(report["replaced"]) == ["1", "2"]
    assert "has no executor '0'" in report["refusal"]
    assert "Its executors are 1, 2." in report["refusal"]
    assert "WARN" not in done.stderr, "Spark's own log belongs in the work directory"
    assert (tmp_path / "driver.log").stat().st_size > 0
    assert report["left"] == []
    deadline = time.monotonic() + 60
    while left := mentioning(str(tmp_path)):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def listening(pids: set[int]) -> list[int]:
    """Ports on which processes listen."""
    sockets = {
        str(fd.readlink())
        for pid in pids
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if fd.is_symlink()
    }
    ports = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.append(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


_GUARDED = """
import json, sys
from godwit.ops.local_cluster import LocalCluster

settings = {"spark.driver.memory": "512m"}
with LocalCluster(workers=1, memory="512m", work_dir=sys.argv[1], conf=settings) as cluster:
    cluster.wait_for_workers()
    pid = cluster._jvm.java.lang.ProcessHandle.current().pid()
    report = {"master": cluster.master_url, "jvm": pid, "secret": cluster._secret}
    print(json.dumps(report), flush=True)
    sys.stdin.read()
"""


@on_a_cluster
def test_strangers_can_neither_submit_programs_nor_join(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _GUARDED, str(tmp_path / "work")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        report = json.loads(owner.stdout.readline())
        assert len(report["secret"]) == 64
        assert mentioning(report["secret"]) == []
        for file in (tmp_path / "work").rglob("*"):
            assert not file.is_file() or report["secret"].encode() not in file.read_bytes(), file

        ports = listening({report["jvm"]})
        assert len(ports) >= 4, "master, worker and their pages"
        for port in ports:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with closing(connection), suppress(OSError, http.client.HTTPException):
                # What does not speak this protocol does not answer.
                connection.request("POST", "/v1/submissions/create", b"{}")
                with connection.getresponse() as answer:
                    assert answer.status in (403, 404, 405), (port, answer.status)

        log = tmp_path / "stranger.log"
        with log.open("wb") as output:
            stranger = subprocess.Popen(
                [
                    f"{SPARK_HOME}/bin/spark-class",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", "--webui-port", "0"),
                    *("--work-dir", str(tmp_path / "stranger")),
                    report["master"],
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            )
        try:
            deadline = time.monotonic() + 60
            while "Failed to connect to master" not in (told_of := log.read_text()):
                assert "Successfully registered" not in told_of
                assert time.monotonic() < deadline, told_of
                time.sleep(0.1)
        finally:
            stranger.kill()
            stranger.wait()
    finally:
        owner.communicate(timeout=60)  # its input ends, and so does it
    assert owner.returncode == 0


def test_a_cluster_without_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ClusterError, match="openjdk-17-jre-headless"), LocalCluster():
        pass


_BROKEN = """
import sys
from godwit.ops.local_cluster import LocalCluster

with LocalCluster(work_dir=sys.argv[1]) as cluster:
    cluster.master_url
"""


def test_a_jvm_that_ends_at_once_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "spark-submit"
    launcher.write_text("#!/bin/sh\necho UnsupportedClassVersionError >&2\nexit 7\n")
    launcher.chmod(0o755)
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    paths = f"{tmp_path}:{os.environ['PATH']}"
    done = run(_BROKEN, tmp_path, PATH=paths, SPARK_HOME=str(home))
    assert done.returncode == 1
    assert "ClusterError: Spark's JVM ended before it was ready" in done.stderr
    assert "UnsupportedClassVersionError" in done.stderr


@pytest.mark.parametrize(
    ("sizes", "named"),
    [({"workers": -1}, "-1 workers"), ({"cores": 0}, "0 cores"), ({"memory": "much"}, "'much'")],
)
def test_sizes_that_make_no_sense_are_refused(sizes: dict[str, int | str], named: str) -> None:
    with pytest.raises(ClusterError, match=named):
        LocalCluster(**sizes)  # type: ignore[arg-type]  # wrong on purpose

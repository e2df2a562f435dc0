"""The start of a local cluster in a JVM, which stands here for Spark's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from godwit.model.errors import ClusterError
from godwit.ops.local_cluster import (
    LocalCluster,
    arguments_of,
    undisturbed,
)

if TYPE_CHECKING:
    from pathlib import Path


def on_a_jvm(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, local_ip: str | None
) -> tuple[LocalCluster, Any]:
    gateway = MagicMock()
    gateway.jvm.java.lang.System.getenv.return_value = local_ip
    cluster = LocalCluster(workers=2)
    cluster.work_dir, cluster._entered = work_dir, True
    monkeypatch.setattr(cluster, "_start_driver", lambda _conf: gateway)
    return cluster, gateway.jvm.org.apache.spark.deploy


@pytest.mark.parametrize("local_ip", [None, "0.0.0.0", "192.0.2.7"])
def test_a_jvm_that_would_open_pages_to_the_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_ip: str | None
) -> None:
    cluster, deploy = on_a_jvm(tmp_path, monkeypatch, local_ip)
    with pytest.raises(ClusterError, match="could open the pages") as caught:
        _ = cluster.master_url
    assert "SPARK_LOCAL_IP=127.0.0.1" in caught.value.remedy
    deploy.master.Master.startRpcEnvAndEndpoint.assert_not_called()


@pytest.mark.parametrize("what", ["master", "worker"])
def test_a_start_that_failed_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cluster, deploy = on_a_jvm(tmp_path, monkeypatch, "localhost")
    master, worker = deploy.master.Master, deploy.worker.Worker
    rpc = master.startRpcEnvAndEndpoint.return_value.productElement.return_value
    rpc.address.return_value.port.return_value = 7
    failing = {"master": master, "worker": worker}[what].startRpcEnvAndEndpoint
    failing.side_effect = OSError("no port is free")
    with pytest.raises(OSError, match="no port"):
        _ = cluster.master_url
    assert rpc.shutdown.call_count == (what == "worker")
    failing.side_effect = None
    assert cluster.master_url == "spark://127.0.0.1:7"
    assert master.startRpcEnvAndEndpoint.call_count == 2
    assert worker.startRpcEnvAndEndpoint.call_count == 2 + (what == "worker")


def test_workers_of_a_start_that_failed_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, deploy = on_a_jvm(tmp_path, monkeypatch, "127.0.0.1")
    start = deploy.worker.Worker.startRpcEnvAndEndpoint
    start.side_effect = [start.return_value, OSError("no port is free")]
    with pytest.raises(OSError, match="no port"):
        _ = cluster.master_url
    start.side_effect = None
    monkeypatch.setattr(cluster, "_registered", lambda: 2)
    monkeypatch.setattr(cluster, "_timeout_s", 0.0)
    cluster.wait_for_workers()


def test_a_cluster_is_used_within_its_block_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, deploy = on_a_jvm(tmp_path, monkeypatch, "localhost")
    assert cluster.master_url
    cluster.close()
    for use in (lambda: cluster.master_url, cluster.add_worker, cluster.wait_for_workers):
        with pytest.raises(ClusterError, match="not running") as caught:
            use()
        assert "with LocalCluster()" in caught.value.remedy
    deploy.master.Master.startRpcEnvAndEndpoint.assert_called_once()


def test_a_worker_that_is_added_while_the_cluster_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, deploy = on_a_jvm(tmp_path, monkeypatch, "localhost")
    start = cluster._ensure_started

    def start_and_end() -> None:
        start()
        cluster.close()

    monkeypatch.setattr(cluster, "_ensure_started", start_and_end)
    with pytest.raises(ClusterError, match="not running"):
        cluster.add_worker()
    assert deploy.worker.Worker.startRpcEnvAndEndpoint.call_count == 2


def test_a_cluster_that_has_ended_starts_again_without_its_former_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = on_a_jvm(tmp_path, monkeypatch, "localhost")
    assert cluster.master_url
    cluster.close()
    cluster._entered = True
    monkeypatch.setattr(cluster, "_registered", lambda: 2)
    monkeypatch.setattr(cluster, "_timeout_s", 0.0)
    cluster.wait_for_workers()


def test_a_cluster_that_was_never_entered_has_nothing_to_close() -> None:
    LocalCluster().close()


def test_a_handler_of_ctrl_c_that_is_not_pythons_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda _number, handler: handlers.append(handler))
    with undisturbed():
        pass
    assert handlers[-1] is signal.SIG_DFL


def test_ctrl_c_waits_for_the_end_of_what_is_not_to_be_disturbed() -> None:
    before = signal.getsignal(signal.SIGINT)
    told = []

    def block() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            told.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert told == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_has_ended_has_no_command_line() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    command, pipe = [sys.executable, "-c", program, "of mine"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as ended:
        assert ended.stdout is not None
        assert ended.stdout.readline() == b"\n"
        assert arguments_of(ended.pid)[-2] == b"of mine"
        ended.kill()
        # Until it is waited for, the kernel keeps the process, but not its memory.
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert arguments_of(ended.pid) == []
    assert arguments_of(ended.pid) == []

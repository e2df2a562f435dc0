"""A driver under ``godwit run`` is killed: the time until the next process commits an epoch.

    python -m benchmarks.supervised_restart [--rounds 3] [--keys 1000000]

A real `gw.testing.LocalCluster`, a query with the state of ``--keys`` keys, and SIGKILL of the
driver's process amid its epochs. The stages of the time are printed: until the supervisor starts
the next process (with its pause), until that runs the program (interpreter), its imports, its JVM,
its session, the start of the query until Python has answered on all executors (check), the state is
recovered, and the rest of it is open, and its first committed epoch.  The CPU time is that of all
processes of the application: on a busy machine, it tells more than the clock.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.options import append_json, read_options, temporary_directory

_OWN_STAGES: Final = ("imports", "JVM", "session", "check", "recovery", "start", "first commit")
STAGES: Final = ("supervisor", "interpreter", *_OWN_STAGES)
_LIMIT_S: Final = 600.0

PROGRAM: Final = '''
import json, os, sys, time
began_s = time.time()
import godwit as gw
from pathlib import Path

directory, keys = Path(sys.argv[1]), int(sys.argv[2])
marks, used = {"began": began_s}, {}


def cpu_s():
    """Return the CPU time of all processes of this session: driver, JVM, executors, workers."""
    session, ticks = os.getsid(0), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def mark(name):
    """Note when a stage has ended for the first time, and the CPU time until then."""
    if name not in marks:
        marks[name], used[name] = time.time(), cpu_s()


def mark_after(owner, name, stage):
    """Have a stage end whenever a function has returned."""
    function = getattr(owner, name)

    def marked(*args, **kwargs):
        result = function(*args, **kwargs)
        mark(stage)
        return result

    setattr(owner, name, marked)


import pyspark
import pyspark.sql  # noqa: F401
mark("imports")
mark_after(pyspark.SparkContext, "_ensure_initialized", "JVM")
rows = gw.sources.rate(2_000.0, num_keys=keys)
flow = gw.Flow("restarted", num_key_groups=64)
totals = flow.source("rows", rows).key_by("key").compute(name="totals", n=gw.count())
flow.sink("out", totals, gw.sinks.noop())
with gw.testing.LocalCluster(workers=2, memory="512m") as cluster:
    session = cluster.session("restarted")
    mark("session")
    from godwit.spark import opening, start  # here: who starts a query imports them so late
    mark_after(start, "check_executors_python", "check")
    mark_after(opening, "recover_flow", "recovery")
    initial = {"totals": str(directory / "state.parquet")}
    query = flow.start(
        checkpoint=directory / "checkpoint", session=session, executors=2, initial=initial,
        checkpointing=gw.Checkpointing(single_driver=True),
    )
    mark("start")
    before = len(query.recentProgress)
    while len(query.recentProgress) <= before:
        time.sleep(0.02)
    mark("first commit")
    report = {"pid": os.getpid(), "marks": marks, "used": used}
    hidden = directory / "_report.json"
    hidden.write_text(json.dumps(report))
    hidden.replace(directory / f"report-{os.getpid()}.json")
    query.awaitTermination()
'''


def write_state(path: Path, keys: int) -> None:
    """Write the initial state: a count of each key."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"key": np.arange(keys), "n": np.ones(keys, np.int64)}), path)


def next_report(directory: Path, known: set[str]) -> dict[str, Any]:
    """Wait for the report of a process that has not reported before."""
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s:
        for path in directory.glob("report-*.json"):
            if path.name not in known:
                known.add(path.name)
                report: dict[str, Any] = json.loads(path.read_text())
                return report
        time.sleep(0.02)
    raise TimeoutError("no process has committed an epoch")


def started_s(pid: int) -> float:
    """Return the Unix time at which a process was started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def measured(directory: Path, options: Any) -> list[dict[str, float]]:
    """Run the program below ``godwit run``, kill it again and again; return stages of restarts."""
    program = directory / "app.py"
    program.write_text(PROGRAM)
    write_state(directory / "state.parquet", options.keys)
    command = [
        sys.executable,
        "-m",
        "godwit.cli.main",
        "run",
        "--restarts",
        "1000",
        "--max-pause",
        "1",
    ]
    supervisor = subprocess.Popen([*command, str(program), str(directory), str(options.keys)])
    results: list[dict[str, float]] = []
    known: set[str] = set()
    try:
        report = next_report(directory, known)
        for _ in range(options.rounds):
            time.sleep(options.settle)
            killed_s = time.time()
            os.kill(report["pid"], signal.SIGKILL)
            report = next_report(directory, known)
            marks = report["marks"]
            times = [killed_s, started_s(report["pid"]), marks["began"]]
            times += [marks[name] for name in _OWN_STAGES]
            stages = dict(zip(STAGES, map(float.__sub__, times[1:], times), strict=True))
            stages["all"] = times[-1] - killed_s
            used, before = report["used"], 0.0
            for name in _OWN_STAGES:
                stages[f"CPU {name}"], before = used[name] - before, used[name]
            results.append(stages)
            print(", ".join(f"{name} {s:.2f}" for name, s in stages.items()), flush=True)
    finally:
        supervisor.send_signal(signal.SIGTERM)
        try:
            supervisor.wait(60)
        except subprocess.TimeoutExpired:
            supervisor.kill()
    return results


def main() -> None:
    """Measure, and print medians."""
    options = read_options(__doc__, rounds=3, keys=1_000_000, settle=3.0, json=str)
    with temporary_directory() as directory:
        results = measured(directory, options)
    print("medians in s:")
    for name in results[0]:
        print(f"  {name:<18}{statistics.median(stages[name] for stages in results):7.2f}")
    if options.json:
        append_json(Path(options.json), {"keys": options.keys, "restarts": results})


if __name__ == "__main__":
    main()

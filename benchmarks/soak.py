"""A query that runs for hours while executors and drivers die, and its flow and size change.

    python -m benchmarks.soak --minutes 120 --out DIR [--one-driver]

The query (`benchmarks.soak_query`) runs below `godwit run`, over files that this program writes,
with a load that rises and falls and moves over the keys. In two hours it is rescaled every four
minutes; every quarter of an hour an executor, and each third time the driver, is killed by SIGKILL;
every half hour the query is stopped by `godwit stop` and continues with another flow. Shorter runs
have the same, closer together. Every few seconds memory, descriptors, files and epochs go into
``samples.csv``. At the end the query is drained, its results are held against DuckDB, and a line is
fitted to every figure.

Beside the resident memory of the driver's two processes stands what they use of it: of what
``malloc`` gave (``driver_used_mib``), and of the JVM's heap after a collection, one a minute
(``jvm_used_mib``). If only resident memory rises, it is memory that was freed, but not given back.

With ``--one-driver`` the driver is neither killed nor started again with another flow, and the
query is rescaled every minute. A driver's memory rises over its first fifteen rescales, so only a
driver that lives for many more shows whether it goes on rising.

Exit status: 0 the results agree; 1 they differ, or the query did not last.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import soak_query
from benchmarks.options import read_options
from benchmarks.soak_query import WORKERS, write_whole
from benchmarks.soak_results import differences, growth, table, write_results

from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS_PER_S: Final = 100.0
USERS, PAGES = 1000, 20
"""Their pairs, the keys of the map, are met within the share of the run that the fit leaves out."""
FILE_S: Final = 2.0
SAMPLE_S: Final = 5.0
RESCALE_S, DEATH_S, CHANGE_S = 240.0, 900.0, 1800.0
"""Of a run of two hours."""
MIN_EVERY_S: Final = {"rescale": 50.0, "death": 80.0, "change": 150.0}
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Feed:
    """Writes files of clicks and buys, whose event times follow the clock."""

    def __init__(self, directory: Path, seconds: float, seed: int) -> None:
        self._directory, self._seconds = directory, seconds
        self._random = np.random.default_rng(seed)
        self._began_s = self._next_s = time.time()
        self._number = 0
        self.rows = 0
        for name in ("clicks", "buys"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def write_due(self) -> None:
        """Write the files that are due, one for every two seconds."""
        while time.time() >= self._next_s:
            share = (self._next_s - self._began_s) / self._seconds
            load = 1.0 + 0.6 * math.sin(2 * math.pi * 3 * share)  # three waves in a run
            clicks = round(ROWS_PER_S * FILE_S * load)
            self._write("clicks", clicks, share)
            self._write("buys", clicks // 4, share)
            self._number += 1
            self._next_s += FILE_S

    def _write(self, name: str, rows: int, share: float) -> None:
        """Write a file whose users are around a place that moves with the run."""
        draw = self._random
        near = (draw.exponential(USERS / 20, rows) + share * USERS).astype(np.int64) % USERS
        users = np.where(draw.random(rows) < 0.5, near, draw.integers(0, USERS, rows))
        times = ((self._next_s - FILE_S * draw.random(rows)) * 1e6).astype(np.int64)
        columns: dict[str, Any] = {"user": pa.array(users)}
        if name == "clicks":
            pages = draw.integers(0, PAGES, rows)
            columns["page"] = pa.array([f"page {number}" for number in pages])
            columns["n"] = pa.array(draw.integers(1, 4, rows))
        else:
            columns["cents"] = pa.array(draw.integers(1, 100_000, rows))
        columns["ts"] = pa.array(times, pa.timestamp("us", tz="UTC"))
        path = self._directory / name / f"{self._number:06d}.parquet"
        hidden = path.with_name(f"_{path.name}")
        pq.write_table(pa.table(columns), hidden)
        hidden.replace(path)
        self.rows += rows


class Supervised:
    """The query below `godwit run`, started again with each version of its flow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checkpoint = directory / "checkpoint"
        self._log = (directory / "query.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.version, self.executors = 0, 2

    def want(self, *, executors: int | None = None, version: int | None = None) -> None:
        """Write the number of executors and the version of the flow that are wanted."""
        self.executors = self.executors if executors is None else executors
        self.version = self.version if version is None else version
        values = {"executors": self.executors, "version": self.version}
        write_whole(self._directory / "wanted.json", values)

    def start(self) -> None:
        """Start `godwit run`."""
        command = [*_GODWIT, "run", "--restarts", "1000", soak_query.__file__]
        self._process = subprocess.Popen(
            [*command, str(self._directory)],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def end(self, command: str, timeout_s: float) -> bool:
        """End the query by `godwit stop` or `godwit drain`; return whether it ended as asked."""
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            left_s = max(1.0, deadline_s - time.monotonic())
            arguments = [command, str(self._checkpoint), "--timeout", f"{left_s:.0f}"]
            status = subprocess.run(
                [*_GODWIT, *arguments], stdout=self._log, stderr=self._log, check=False
            ).returncode
            if status == 0:
                return self._process.wait(120) == 0
            time.sleep(2.0)  # it is being started again
        return False

    def kill(self) -> None:
        """End the supervisor and the query, whatever they do."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()

    @property
    def is_running(self) -> bool:
        """True while the supervisor runs."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> dict[str, Any]:
        """Return the processes of the query; empty before it has started."""
        try:
            values: dict[str, Any] = json.loads((self._directory / "processes.json").read_text())
        except (OSError, ValueError):
            return {}
        return values if Path(f"/proc/{values['driver']}").exists() else {}


_GODWIT: Final = (sys.executable, "-m", "godwit.cli.main")


@dataclass(slots=True)
class Sampler:
    """Writes a row of figures to a CSV every few seconds."""

    directory: Path
    began_s: float
    reader: JournalReader
    cpu_s: float = 0.0
    epochs: int = 0
    _ticks: dict[int, float] = field(default_factory=dict)  # process → CPU seconds at last sight
    _names: list[str] = field(default_factory=list)

    def sample(self, processes: dict[str, Any]) -> dict[str, Any]:
        """Take a sample; return it."""
        epochs = [
            float(entry["progress"]["durationMs"]["epoch"])
            for entries in self.reader.new_entries()
            for entry in entries
            if "progress" in entry
        ]
        self.epochs += len(epochs)
        driver = processes.get("driver")
        executors = [int(pid) for pid in processes.get("executors", {}).values()]
        of_driver = [] if driver is None else _descendants(driver)
        jvms = [pid for pid in of_driver if _is_jvm(pid) and pid not in executors]
        workers = [pid for executor in executors for pid in _descendants(executor)]
        everything = {*of_driver, *executors, *workers, *([driver] if driver else ())}
        for pid in everything:
            now_s = _cpu_s(pid)
            self.cpu_s += max(0.0, now_s - self._ticks.get(pid, 0.0))
            self._ticks[pid] = now_s
        checkpoint = _sizes(self.directory / "checkpoint")
        row: dict[str, Any] = {
            "seconds": round(time.time() - self.began_s, 1),
            "driver": driver or "",
            "driver_mib": _mib([driver] if driver else []),
            "driver_used_mib": processes.get("driver_used_mib", ""),
            "jvm_mib": _mib(jvms),
            "jvm_used_mib": processes.get("jvm_used_mib", ""),
            "executors_mib": _mib(executors),
            "workers_mib": _mib(workers),
            "threads": _num_entries([driver, *jvms] if driver else [], "task"),
            "descriptors": _num_entries([driver, *jvms] if driver else [], "fd"),
            "executors": len(executors),
            "checkpoint_mib": sum(checkpoint) / 2**20,
            "checkpoint_files": len(checkpoint),
            "epoch_ms": median(epochs) if epochs else "",
            "epoch_max_ms": max(epochs, default=""),
        }
        path = self.directory / "samples.csv"
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
        return row


def _descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    below: list[int] = []
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []
    for child in children:
        below += [child, *_descendants(child)]
    return below


def _is_jvm(pid: int) -> bool:
    """Return whether a process is a JVM."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except OSError:
        return False


def _mib(pids: list[int]) -> Any:
    """Return the resident memory of processes in MiB; empty if there are none."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return round(pages * _PAGE_BYTES / 2**20, 1) if pages else ""


def _num_entries(pids: list[int], directory: str) -> Any:
    """Return the number of threads or descriptors of processes."""
    number = 0
    for pid in pids:
        try:
            number += sum(1 for _ in Path(f"/proc/{pid}/{directory}").iterdir())
        except OSError:
            continue
    return number or ""


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _sizes(directory: Path) -> list[int]:
    """Return the sizes of the files of a directory, in bytes."""
    sizes = []
    for path in directory.rglob("*"):
        try:
            status = path.lstat()
        except OSError:  # collected meanwhile
            continue
        if path.is_file():
            sizes.append(status.st_size)
    return sizes


class Trouble:
    """Rescales, kills and changes, each at its times."""

    def __init__(
        self,
        query: Supervised,
        seconds: float,
        *,
        one_driver: bool,
        say: Callable[[str], None],
    ) -> None:
        scale = seconds / 7200.0
        every = {"rescale": RESCALE_S, "death": DEATH_S, "change": CHANGE_S}
        if one_driver:
            every = {"rescale": 60.0 / scale, "death": DEATH_S}
        self._one_driver = one_driver
        self._every_s = {
            what: max(every_s * scale, MIN_EVERY_S[what]) for what, every_s in every.items()
        }
        self._query, self._say = query, say
        self._random = random.Random(7)
        now_s = time.monotonic()
        self._due_s = {what: now_s + every_s for what, every_s in self._every_s.items()}
        self._sizes = self._next_size()
        self.counts = dict.fromkeys([*self._every_s, "driver killed", "executor killed"], 0)

    def _next_size(self) -> Iterator[int]:
        """Yield the numbers of executors, in turn."""
        while True:
            yield from (WORKERS, 1, 2)

    def step(self) -> bool:
        """Do what is due; return whether the query still runs."""
        for what, due_s in self._due_s.items():
            if time.monotonic() < due_s:
                continue
            done = {"rescale": self._rescale, "death": self._kill, "change": self._change}[what]()
            if done:
                self.counts[what] += 1
                self._due_s[what] = time.monotonic() + self._every_s[what]
            else:
                self._due_s[what] = time.monotonic() + 5.0
        return self._query.is_running

    def _rescale(self) -> bool:
        """Ask for another number of executors."""
        size = next(self._sizes)
        self._query.want(executors=size)
        self._say(f"{size} executors wanted")
        return True

    def _kill(self) -> bool:
        """Kill an executor, and each third time the driver."""
        processes = self._query.processes()
        executors = processes.get("executors", {})
        if not executors:
            return False
        if self.counts["death"] % 3 == 2 and not self._one_driver:
            os.kill(processes["driver"], signal.SIGKILL)
            self.counts["driver killed"] += 1
            self._say("the driver is killed")
        else:
            name = self._random.choice(sorted(executors))
            os.kill(executors[name], signal.SIGKILL)
            self.counts["executor killed"] += 1
            self._say(f"executor {name} is killed")
        return True

    def _change(self) -> bool:
        """Stop the query on request, and start it with another flow."""
        if not self._query.processes():
            return False
        if not self._query.end("stop", 180.0):
            self._say("the query could not be stopped")
            return False
        self._query.want(version=self._query.version + 1)
        self._query.start()
        self._say(f"version {self._query.version} of the flow starts")
        return True


def run(directory: Path, seconds: float, seed: int, *, one_driver: bool) -> dict[str, Any]:
    """Run the query for a time; return what happened, and how the results compare."""
    shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    began_s = time.time()

    def say(text: str) -> None:
        """Print a line with the time since the beginning."""
        print(f"{time.time() - began_s:7.0f} s  {text}", flush=True)

    feed, query = Feed(directory / "in", seconds, seed), Supervised(directory)
    query.want()
    feed.write_due()
    query.start()
    reader = JournalReader(CheckpointStorage.open(directory / "checkpoint"))
    sampler = Sampler(directory, began_s, reader)
    trouble = Trouble(query, seconds, one_driver=one_driver, say=say)
    sample_s = time.monotonic()
    lasted = True
    try:
        while time.time() - began_s < seconds and lasted:
            feed.write_due()
            lasted = trouble.step()
            if time.monotonic() >= sample_s:
                sample_s = time.monotonic() + SAMPLE_S
                sampler.sample(query.processes())
            time.sleep(0.25)
        took_s = time.time() - began_s
        say(f"{feed.rows:,} rows are written; the query is drained")
        drained = lasted and query.end("drain", 600.0)
        say("drained" if drained else "NOT drained: see query.log")
    finally:
        query.kill()
    return {
        "minutes": round(took_s / 60, 2),
        "rows": feed.rows,
        "epochs": sampler.epochs,
        "cores": round(sampler.cpu_s / took_s, 2),
        "happened": trouble.counts,
        "drained": drained,
        "different": _compare(directory) if drained else None,
    }


def _compare(directory: Path) -> dict[str, int]:
    """Hold the results against DuckDB."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        return differences(directory, session)
    finally:
        session.stop()


def main() -> int:
    """Run the soak test; print its results; return the exit status."""
    options = read_options(__doc__, minutes=120.0, out="artifacts/soak", seed=1, one_driver=False)
    directory = Path(options.out).resolve()
    if (directory / "checkpoint").exists() or (directory / "samples.csv").exists():
        print(f"{directory} has a run already: give another --out.", file=sys.stderr)
        return 2
    one_driver: bool = options.one_driver
    results = run(directory, options.minutes * 60.0, options.seed, one_driver=one_driver)
    lines = growth(directory / "samples.csv", warm_up=0.4 if one_driver else 0.2)
    print(f"\nended {datetime.now(UTC).isoformat(timespec='seconds')}")
    for name, value in results.items():
        print(f"{name:<12}{value}")
    print(table(lines))
    results["growth"] = [
        dict(zip(("figure", "mean", "per_hour", "error"), line, strict=True)) for line in lines
    ]
    write_results(directory / "results.json", results)
    agrees = bool(results["drained"]) and not any((results["different"] or {"none": 1}).values())
    print("The results agree with DuckDB." if agrees else "The results DIFFER, or are missing.")
    return 0 if agrees else 1


if __name__ == "__main__":
    raise SystemExit(main())

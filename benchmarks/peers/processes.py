"""A program's job in a process of its own: its time, CPU time and peak memory, or why it failed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.options import temporary_directory
from benchmarks.peers.environments import PeerFailedError
from benchmarks.peers.programs.job import BEGIN, END
from benchmarks.streaming.measure import Sampler, cpu_s, family_of, let_disk_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Usage", "run"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a job took."""

    seconds: float
    cpu_s: float
    peak_bytes: int  # of all processes together (proportional set size)


def run(command: Callable[[Path], Sequence[str | Path]], timeout_s: float = 300.0) -> Usage:
    """Run the command that a function makes for a directory of its own.

    Its processes find the command's Python first, and get no options of a JVM from this process.
    """
    let_disk_rest()
    with temporary_directory() as work, (work / "log.txt").open("w+") as log:
        program = command(work)
        process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment(Path(program[0]).parent),
        )
        deadline = threading.Timer(timeout_s, _kill, [process.pid])
        deadline.start()
        sampler = Sampler(process.pid)
        sampler.start()
        try:
            clocks = [_clocks_at(line, process) for line in (BEGIN, END)]
        except _EndedError:
            late = not deadline.is_alive()
            log.seek(0)
            raise PeerFailedError(
                f"no end after {timeout_s:.0f} s" if late else _reason(log.read())
            ) from None
        finally:
            deadline.cancel()
            sampler.stop()
            _kill(process.pid)
            process.communicate()
        (begin_s, before_s), (end_s, after_s) = clocks
        return Usage(
            seconds=end_s - begin_s, cpu_s=after_s - before_s, peak_bytes=sampler.peak_bytes
        )


def _environment(programs: Path) -> dict[str, str]:
    left_out = {"JDK_JAVA_OPTIONS", "VIRTUAL_ENV"}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return inherited | {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class _EndedError(Exception):
    """A process that has ended before its job."""


def _clocks_at(line: str, process: subprocess.Popen[str]) -> tuple[float, float]:
    """Wait for a line of a program; return the time and the CPU time, and let it go on."""
    assert process.stdout is not None
    assert process.stdin is not None
    for printed in process.stdout:
        if printed.strip() == line:
            clocks = time.perf_counter(), cpu_s(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            return clocks
    raise _EndedError


def _kill(pid: int) -> None:
    """Kill a process with all its descendants; the job's results are there, or never will be."""
    for member in family_of(pid):
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _reason(log: str) -> str:
    """Return the line of a log that says why a process has ended."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["it ended without a word"])[-1][:200]

"""Running a program in a process of its own, and how much memory all its processes take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.options import temporary_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Measurement", "Sampler", "cpu_s", "in_turns", "let_disk_rest", "measure"]

_T = TypeVar("_T")
_DIRTY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of one run of a program."""

    program: str  # its name
    epochs: list[dict[str, Any]]  # one entry an epoch: epoch, rows, ms and more
    peak_bytes: int  # memory of all its processes together (proportional set size)

    def epoch_ms(self, *, skip: int) -> float:
        """Median time of an epoch, without the first `skip`; of fewer epochs the last one's."""
        return float(median(e["ms"] for e in self.epochs[skip:] or self.epochs[-1:]))

    def tell(self, turn: int, ms: float) -> None:
        """Print a line about the run, of a round and with the time of an epoch."""
        print(
            f"  round {turn + 1}  {self.program:24s} {ms:9.0f} ms an epoch, "
            f"{self.epochs[-1]['rows'] / ms:8.0f} k rows/s, "
            f"peak {self.peak_bytes / 2**20:6.0f} MiB",
            flush=True,
        )


def in_turns(parties: Sequence[_T], turn: int) -> list[_T]:
    """Order programs for a round: every other round the other way round."""
    return list(parties) if turn % 2 == 0 else list(reversed(parties))


def measure(
    program: str,
    source: Path,
    *,
    module: str = "benchmarks.streaming.programs",
    timeout_s: float = 1200.0,
) -> Measurement:
    """Run a program of a module over an input, once the disk has nothing to do."""
    let_disk_rest()
    with temporary_directory() as work:
        log = work / "log.txt"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, program, source, work],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            sampler = Sampler(process.pid)
            sampler.start()
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
            finally:
                sampler.stop()
        for line in out.splitlines():
            if line.startswith("MEASURED "):
                return Measurement(
                    program=program,
                    epochs=json.loads(line.removeprefix("MEASURED ")),
                    peak_bytes=sampler.peak_bytes,
                )
        raise RuntimeError(f"{program} failed:\n{log.read_text(errors='replace')[-3000:]}")


def let_disk_rest(timeout_s: float = 60.0) -> None:
    """Wait until what the program before has written is on the disk: it would slow the next."""
    deadline = time.monotonic() + timeout_s
    os.sync()
    while _unwritten_bytes() > _DIRTY_BYTES and time.monotonic() < deadline:
        time.sleep(0.5)


def _unwritten_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return 0
    of_name = dict(line.split(":", 1) for line in lines)
    return sum(int(of_name[name].split()[0]) * 1024 for name in ("Dirty", "Writeback"))


class Sampler(threading.Thread):
    """Samples the memory of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._pid = pid
        self._done = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._done.wait(1.0):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, family_of(self._pid))))

    def stop(self) -> None:
        """End the samples."""
        self._done.set()
        self.join()


def family_of(pid: int) -> list[int]:
    """Return the numbers of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):  # it has ended
            parent = int(stat.read_text().rpartition(") ")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all its descendants, and those of them that have ended."""
    ticks = 0
    for member in family_of(pid):
        with suppress(OSError, IndexError):  # it has ended
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(") ")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0

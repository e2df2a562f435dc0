"""Many variants, each read in a process that may die of it.

A worker reads one variant after another and says which one it is at, so that a crash, a hang or a
lack of memory is known by its number; another worker continues behind it.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Campaign", "run_campaign", "work"]

_MEMORY_BYTES = 4 << 30
_PATIENCE_S = 120.0
"""Far above what a variant takes on a busy machine; CPU time is bounded by the readers."""


@dataclass(slots=True)
class Campaign:
    """Findings: number of a variant → violation by a reader."""

    variants: int = 0
    findings: dict[int, list[str]] = field(default_factory=dict)


def run_campaign(
    first: int, count: int, *, told: Callable[[int, list[str]], None] | None = None
) -> Campaign:
    """Read variants ``first:first + count``; `told` hears of each that is found out."""
    campaign = Campaign()
    at, end = first, first + count
    while at < end:
        at = _one_worker(campaign, at, end, told)
    return campaign


def _one_worker(
    campaign: Campaign, at: int, end: int, told: Callable[[int, list[str]], None] | None
) -> int:
    """Run a worker from variant `at`; give the variant that the next one begins with."""

    def found(number: int, what: list[str]) -> None:
        campaign.findings.setdefault(number, []).extend(what)
        if told is not None:
            told(number, what)

    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "tests.fuzz",
        "--work",
        str(at),
        str(end),
    ]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as worker,
    ):
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert worker.stdout is not None
        reader = threading.Thread(target=_pass_on, args=(worker.stdout, lines))
        reader.start()
        while True:
            try:
                line = lines.get(timeout=_PATIENCE_S)
            except queue.Empty:
                worker.kill()
                reader.join()
                found(at, [f"no end after {_PATIENCE_S:.0f} s"])
                return at + 1
            if not line:
                break
            number, what = json.loads(line)
            if what is None:
                at = number
                continue
            campaign.variants += 1
            if what:
                found(number, what)
            at = number + 1
        reader.join()
        if worker.wait() and at < end:
            errors.seek(0)
            found(at, [f"the process ended with {worker.returncode}: {errors.read()[-2000:]}"])
            at += 1
        return at


def _pass_on(output: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in output:
        lines.put(line)
    lines.put("")


def work(first: int, end: int) -> None:
    """Read variants, and write a line before and after each."""
    from tests.fuzz.readers import findings_in
    from tests.fuzz.variants import write_variant

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    place = Path(tempfile.mkdtemp(prefix="godwit-fuzz-"))
    out = sys.stdout
    try:
        for number in range(first, end):
            print(json.dumps((number, None)), file=out, flush=True)
            root = place / "ck"
            write_variant(number, root)
            what = findings_in(root, printed=number % 10 == 0)
            shutil.rmtree(root)
            print(json.dumps((number, what)), file=out, flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)

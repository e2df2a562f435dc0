"""What a program of an engine is asked to do, and how it says when its job begins and ends.

    python PROGRAM VARIANT INPUT WORK ROWS [--results FILE]

The program reads all CSV files of INPUT, columns ``key`` and ``v`` of ROWS rows, and may write to
the directory WORK.  It starts its engine, calls `begin`, runs the job to its end, and calls `end`;
the caller reads its clocks meanwhile.  Results are dropped, or, with ``--results``, written as
lines of ``key,n,s``, of which the last one of a key counts.

Only the standard library is imported here: every engine's environment can.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BEGIN", "END", "PARALLELISM", "Job"]

BEGIN, END = "JOB BEGINS", "JOB HAS ENDED"
PARALLELISM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of a program's command line."""

    variant: str
    input: Path
    work: Path
    rows: int
    results: Path | None

    @staticmethod
    def of_command_line() -> Job:
        """Read the job from the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("variant")
        parser.add_argument("input", type=Path)
        parser.add_argument("work", type=Path)
        parser.add_argument("rows", type=int)
        parser.add_argument("--results", type=Path)
        return Job(**vars(parser.parse_args()))

    def begin(self) -> None:
        """Say that the engine has started and the job begins; wait until the caller knows."""
        _say(BEGIN)

    def end(self) -> None:
        """Say that all results are there; wait until the caller knows."""
        _say(END)

    def write(self, results: Iterable[tuple[str, int, float]]) -> None:
        """Append results to the file that is asked for."""
        assert self.results is not None
        with self.results.open("a") as out:
            out.writelines(f"{key},{n},{s!r}\n" for key, n, s in results)


def _say(what: str) -> None:
    print(what, flush=True)
    sys.stdin.readline()

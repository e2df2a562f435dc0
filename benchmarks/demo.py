"""Time to the first picture of `godwit demo`, and the cost of an executor's death to its stream.

    python -m benchmarks.demo [--rounds 3] [demo's own options]
    python -m benchmarks.demo --local

Measured from the start of the command: the end of the first epoch.  In the same run, for the kill:
every epoch after it beside the median of those before it, and the time until no key group waited.
The epoch that was broken off and carried out again is told apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any


def measure(options: list[str]) -> dict[str, Any]:
    """Run the demo once and return its figures."""
    with tempfile.TemporaryDirectory(prefix="godwit-bench-") as directory:
        report = Path(directory) / "measured.json"
        began_s = time.time()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "godwit.cli.main",
                "demo",
                "--plain",
                "--json",
                report,
                *options,
            ],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return figures_of(json.loads(report.read_text()), began_s)


def figures_of(measured: dict[str, Any], began_s: float) -> dict[str, Any]:
    """Make figures of what ``--json`` wrote; `began_s`: when the command was started."""
    told = measured["events"]
    first_s = next(e["at_s"] for e in told if e["kind"] == "EpochCommitted")
    found: dict[str, Any] = {"first_epoch_s": first_s - began_s}
    marks = {mark["label"]: mark["at_s"] for mark in measured["marks"]}
    killed_s = next((at for label, at in marks.items() if label.endswith("killed")), None)
    if killed_s is None:
        return found
    aborted = {e["epoch"] for e in told if e["kind"] == "EpochAborted"}
    epochs = measured["epochs"][1:]  # the first one starts Python processes
    before = [e["duration_ms"] for e in epochs if e["at_s"] <= killed_s]
    after = [e for e in epochs if e["at_s"] > killed_s]
    usual = median(before)
    found["before_ms"] = usual
    found["retried"] = [e["duration_ms"] / usual for e in after if e["epoch"] in aborted]
    found["others"] = [e["duration_ms"] / usual for e in after if e["epoch"] not in aborted]
    found["recovered_s"] = marks["recovered"] - killed_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    given, options = parser.parse_known_args()
    for turn in range(given.rounds):
        found = measure(options)
        print(f"round {turn + 1}: first epoch after {found['first_epoch_s']:.1f} s", end="")
        if "before_ms" in found:
            retried = ", ".join(f"{ratio:.1f}x" for ratio in found["retried"]) or "none"
            print(
                f"; killed: {found['before_ms']:.0f} ms an epoch before; retried {retried}, "
                f"slowest other {max(found['others']):.1f}x; recovered after "
                f"{found['recovered_s']:.1f} s",
                end="",
            )
        print(flush=True)


if __name__ == "__main__":
    main()

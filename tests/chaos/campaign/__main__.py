"""The command: live histories one after another, and say which ended wrong."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.chaos.campaign import timed
from tests.chaos.campaign.histories import draw_history
from tests.chaos.campaign.oracle import problems

from godwit.cli.main import main as godwit

_ROOT = Path(__file__).parents[3]
_ROUND_LIMIT_S = 150.0
_KILLED = -9


def run_history(seed: int, rounds: int, directory: Path) -> list[str]:
    """Live one history in a directory of its own; return what went wrong.

    Parameters
    ----------
    seed
        What it is drawn from.
    rounds
        How many rounds it has.
    directory
        Empty; holds everything about it afterwards.
    """
    history = draw_history(seed, rounds)
    ended = _live("driver", {"history": msgspec.to_builtins(history)}, rounds, directory)
    if ended:
        return [ended]
    files = sum(told["files"] for told in history.rounds)
    wrong = list(problems(history, directory, files))
    return wrong + _verified(directory)


def run_timed(seed: int, rounds: int, directory: Path) -> list[str]:
    """Live a flow over event time, as `run_history` does."""
    drawn = timed.draw_rounds(seed, rounds)
    ended = _live("timed_driver", {"seed": seed, "rounds": drawn}, rounds, directory)
    if ended:
        return [ended]
    files = sum(told["files"] for told in drawn)
    return [*timed.problems(seed, directory, files), *_verified(directory)]


def _verified(directory: Path) -> list[str]:
    whole = godwit(["checkpoint", "verify", str(directory / "ck")]) == 0
    return [] if whole else ["the checkpoint is not whole"]


def _live(program: str, told: dict[str, Any], rounds: int, directory: Path) -> str | None:
    """Start the driver again and again, until it has lived all rounds; say why it could not."""
    path = directory / "config.json"
    path.write_text(json.dumps({"directory": str(directory), **told}))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    limit_s = _ROUND_LIMIT_S * rounds
    for _ in range(rounds):
        with (directory / "driver.log").open("ab") as log:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", f"tests.chaos.campaign.{program}", str(path)],
                    cwd=_ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"it hung: see {directory / 'driver.log'}"
        if done.returncode == 0:
            return None
        if done.returncode != _KILLED:
            return f"it ended with status {done.returncode}: see {directory / 'driver.log'}"
    return None if (directory / "next").read_text() == str(rounds) else "it never ends"


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.campaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds in all (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the first history (default 1)")
    parser.add_argument("--length", type=int, default=10, help="rounds of one history (default 10)")
    parser.add_argument("--keep", action="store_true", help="keep what good histories left, too")
    parser.add_argument(
        "--timed", action="store_true", help="flows over event time, backups, other writings-down"
    )
    args = parser.parse_args()
    live = run_timed if args.timed else run_history
    again = " --timed" if args.timed else ""
    base = Path(tempfile.mkdtemp(prefix="godwit-campaign-"))
    failed, lived, seed = 0, 0, args.seed
    while lived < args.rounds:
        directory = base / str(seed)
        directory.mkdir()
        started = time.monotonic()
        wrong = live(seed, args.length, directory)
        took = time.monotonic() - started
        lived += args.length
        verdict = "; ".join(wrong) or "as it should be"
        print(f"history {seed}: {verdict} ({took:.0f} s)", flush=True)
        if wrong:
            failed += 1
            print(f"  again: --rounds {args.length} --length {args.length} --seed {seed}{again}")
            print(f"  what it left: {directory}", flush=True)
        elif not args.keep:
            shutil.rmtree(directory)
        seed += 1
    print(f"{lived} rounds in {seed - args.seed} histories, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

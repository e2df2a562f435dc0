"""`python -m tests.streams --rounds N --seed S`: play N drawn flows, say where they differ."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.contract import drawn_flows
from tests.streams.cuts import play_in_cuts
from tests.streams.own_playing import play_own, play_own_on_spark
from tests.streams.playing import play, play_by_testing
from tests.support.files_in_memory import use_memory_for_files

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000, help="flows to play")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--conducted",
        action="store_true",
        help="under the real coordinator: migrations, regrouping, executors and drivers that die",
    )
    parser.add_argument("--testing", action="store_true", help="by godwit.testing, as users do")
    parser.add_argument("--cuts", action="store_true", help="the same rows in several cuts")
    parser.add_argument("--own", action="store_true", help="over sources of Godwit's own")
    parser.add_argument("--spark", action="store_true", help="these on Spark, by its loop of ours")
    args = parser.parse_args()
    use_memory_for_files()
    one: Callable[[int], list[str]] = play
    if args.conducted:
        one = _conducted
    elif args.spark:
        one = _on_spark()
    elif args.cuts:
        one = play_in_cuts
    elif args.own or args.testing:
        one = play_own if args.own else play_by_testing
    different = 0
    for seed in range(args.seed, args.seed + args.rounds):
        try:
            found = one(seed)
        except Exception:  # noqa: BLE001 - that is what is looked for
            found = [traceback.format_exc(limit=-6)]
        if found:
            different += 1
            print(f"seed {seed}:", *found, sep="\n  ", flush=True)
        played = seed - args.seed + 1
        if played % 100 == 0:  # for whoever ends it early
            print(f"{played} so far, {different} differ", file=sys.stderr, flush=True)
    print(f"{args.rounds} flows played, {different} differ")
    return 1 if different else 0


def _conducted(seed: int) -> list[str]:
    with tempfile.TemporaryDirectory() as root:
        return drawn_flows.play(seed, Path(root))


def _on_spark() -> Callable[[int], list[str]]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return partial(play_own_on_spark, spark=session)


if __name__ == "__main__":
    sys.exit(main())

"""Compare drawn queries with Spark: ``python -m tests.adopted --queries 1000 --seed 1``.

Prints each query that differs, and how many were refused, by reason.  ``--seconds 480`` begins no
further queries after that time.  Lanes run in this process; with ``--jobs``, as Spark jobs.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from pyspark.sql import SparkSession
from tests.adopted.drawn import Outcome, compare_cases, drawn_cases, written_cases
from tests.adopted.lanes_here import lanes_here
from tests.support.native import RAW_FILES

_AT_A_TIME = 24  # queries between two lines of progress


def main() -> int:
    """Run the queries; return the number that differ, at most 1 of which matters to a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopted", description=__doc__)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("--written", action="store_true", help="the queries that are written")
    options = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The default one starts a process (chmod) for every file that it makes, twice.
    builder = builder.config("spark.hadoop.fs.file.impl", RAW_FILES)
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    outcome, begin = Outcome(), time.monotonic()
    every = list(written_cases(options.seed).items()) if options.written else []
    count = len(every) or options.queries
    for first in range(0, count, _AT_A_TIME):
        seeds = range(options.seed + first, options.seed + min(first + _AT_A_TIME, count))
        cases = dict(every[first : first + _AT_A_TIME]) or drawn_cases(seeds)
        with nullcontext() if options.jobs else lanes_here():
            part = compare_cases(spark, cases, at_once=options.at_once)
        for name, text in part.different.items():
            print(f"\n{name}\n{text[:3000]}")
        outcome.add(part)
        print(f"{time.monotonic() - begin:.0f} s: {outcome}", flush=True)
        if time.monotonic() - begin > options.seconds:
            break
    for reason, count in outcome.refused.most_common():
        print(f"{count:5} refused: {reason}")
    return min(1, len(outcome.different))


if __name__ == "__main__":
    sys.exit(main())

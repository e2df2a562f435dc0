"""Compare drawn queries with Spark: ``python -m tests.adopted --queries 1000 --seed 1``.

Prints each query that differs, and how many were refused, by reason.  ``--seconds 480`` begins no
further queries after that time.  Lanes run in this process; with ``--jobs``, as Spark jobs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from unittest.mock import patch

from pyspark.sql import SparkSession
from tests.adopted.drawn import Outcome, drawn_cases, refusal_of, written_cases
from tests.adopted.lanes_here import lanes_here
from tests.support.native import RAW_FILES, failure_of, settings

_BETWEEN_LINES_S = 20.0


def main() -> int:
    """Run the queries; return the number that differ, at most 1 of which matters to a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopted", description=__doc__)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("--sql", action="store_true", help="queries in SQL, as jobs have them")
    parser.add_argument("--written", action="store_true", help="the queries that are written")
    parser.add_argument("--plan", action="store_true", help="plan them, and run none")
    parser.add_argument("--with", default="", dest="word", help="only queries that have this word")
    options = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The default one starts a process (chmod) for every file that it makes, twice.
    builder = builder.config("spark.hadoop.fs.file.impl", RAW_FILES)
    # Plans and metrics for the UI, which is off, are a part of the time.
    builder = builder.config("spark.ui.liveUpdate.period", "-1")
    builder = builder.config("spark.sql.ui.explainMode", "simple")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark's, of errors
    seeds = range(options.seed, options.seed + options.queries)
    cases = written_cases(options.seed) if options.written else drawn_cases(seeds, jobs=options.sql)
    cases = {name: case for name, case in cases.items() if options.word in name}
    outcome, begin, printed, left_out = Outcome(), time.monotonic(), 0.0, 0

    def run(name: str) -> tuple[str, str] | None:
        """Run a query, if there is time; return its name, and its failure as text."""
        if time.monotonic() - begin > options.seconds:
            return None
        case = cases[name]
        return name, refusal_of(spark, case) if options.plan else failure_of(spark, name, case)

    lanes = nullcontext() if options.jobs else lanes_here()
    patient = patch("godwit.runtime.query._JOURNAL_S", 60.0)  # many queries share the disk
    with lanes, patient, settings(spark), ThreadPoolExecutor(options.at_once) as pool:
        for future in as_completed(pool.submit(run, name) for name in cases):
            result = future.result()
            if result is None:
                left_out += 1
                continue
            outcome.add(*result)
            if result[0] in {*outcome.different, *outcome.failed}:
                print(f"\n{result[0]}\n{result[1][:3000]}", flush=True)
            if time.monotonic() - printed > _BETWEEN_LINES_S:
                printed = time.monotonic()
                print(f"{printed - begin:.0f} s: {outcome}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s: {outcome}, {left_out} not run for want of time")
    for reason, count in outcome.refused.most_common():
        print(f"{count:5} refused: {reason}")
    return min(1, len(outcome.different))


if __name__ == "__main__":
    sys.exit(main())

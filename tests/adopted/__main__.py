"""Compare drawn queries with Spark: ``python -m tests.adopted --queries 1000 --seed 1``.

Prints each query that differs, and how many were refused, by reason.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from tests.adopted.drawn import compare_drawn


def main() -> int:
    """Run the queries; return the number that differ, at most 1 of which matters to a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopted", description=__doc__)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    options = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    outcome = compare_drawn(
        spark, range(options.seed, options.seed + options.queries), at_once=options.at_once
    )
    for name, text in outcome.different.items():
        print(f"\n{name}\n{text[:3000]}")
    for reason, count in outcome.refused.most_common():
        print(f"{count:5} refused: {reason}")
    print(
        f"{outcome.same} same, {len(outcome.different)} different, "
        f"{outcome.refused.total()} refused, {outcome.by_spark} refused by Spark itself"
    )
    return min(1, len(outcome.different))


if __name__ == "__main__":
    sys.exit(main())

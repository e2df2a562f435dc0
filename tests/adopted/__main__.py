"""Compare drawn queries with Spark: ``python -m tests.adopted --seeds 0:5000 --results FILE``.

Prints each query that differs, and how many were refused, by reason.  With ``--results``, each
query is a line of a file, and those that it has are not run again.  ``--seconds 480`` begins no
further queries after that time.  ``--with`` a seed repeats one.

Lanes run in this process (``--jobs``: as Spark jobs).  Of four seeds, three read by own sources
where these can, and one by Spark's scans (``--scans``: all of them).
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from pyspark.sql import SparkSession
from tests.adopted.drawn import Outcome, drawn_cases, refusal_of, written_cases
from tests.adopted.lanes_here import lanes_here
from tests.adopted.quick import SETTINGS, quick_outcome
from tests.support.native import settings

if TYPE_CHECKING:
    from tests.adopted.quick import Compared

_BETWEEN_LINES_S = 20.0
_MEMORY = Path("/dev/shm")


def main() -> int:
    """Run the queries; return the number that differ, at most 1 of which matters to a shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopted", description=__doc__)
    parser.add_argument("--seeds", default="1:101", help="FIRST:END")
    parser.add_argument("--results", type=Path, help="file of lines, one for each query")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("--scans", action="store_true")
    parser.add_argument("--sql", action="store_true", help="queries in SQL, as jobs have them")
    parser.add_argument("--written", action="store_true", help="the queries that are written")
    parser.add_argument("--plan", action="store_true", help="plan them, and run none")
    parser.add_argument("--with", default="", dest="word", help="only queries that have this word")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    known = _lines(options.results)
    cases = (
        written_cases(first)
        if options.written
        else drawn_cases(range(first, end), jobs=options.sql, own_sources=not options.scans)
    )
    cases = {name: case for name, case in cases.items() if options.word in name}
    due = {name: case for name, case in cases.items() if name not in known}
    spark = _session()
    outcome, begin, printed, left_out = Outcome(), time.monotonic(), 0.0, 0
    for name in cases.keys() & known.keys():
        outcome.add(name, known[name]["failure"], rows=known[name]["rows"])

    def run(name: str) -> tuple[str, Compared] | None:
        """Run a query, if there is time; return its name, and what came of it."""
        if time.monotonic() - begin > options.seconds:
            return None
        case = due[name]
        if options.plan:
            return name, {"failure": refusal_of(spark, case), "rows": 0, "own": False}
        return name, quick_outcome(spark, name, case)

    if _MEMORY.is_dir():
        tempfile.tempdir = str(_MEMORY)
    lanes = nullcontext() if options.jobs else lanes_here()
    patient = patch("godwit.runtime.query._JOURNAL_S", 60.0)  # many queries share the disk
    with lanes, patient, settings(spark), ThreadPoolExecutor(options.at_once) as pool:
        for future in as_completed(pool.submit(run, name) for name in due):
            result = future.result()
            if result is None:
                left_out += 1
                continue
            name, compared = result
            if options.results is not None:
                with options.results.open("a") as file:
                    file.write(json.dumps({"name": name, **compared}) + "\n")
            outcome.add(name, compared["failure"], rows=compared["rows"])
            if name in {*outcome.different, *outcome.failed}:
                print(f"\n{name}\n{compared['failure'][:3000]}", flush=True)
            if time.monotonic() - printed > _BETWEEN_LINES_S:
                printed = time.monotonic()
                print(f"{printed - begin:.0f} s: {outcome}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s: {outcome}, {left_out} not run for want of time")
    for reason, count in outcome.refused.most_common():
        print(f"{count:5} refused: {reason}")
    texts = (re.sub(r"\[id = .*?\] ", "", text)[:240] for text in outcome.failed.values())
    for reason, count in Counter(texts).most_common():
        print(f"{count:5} fail in Spark itself: {reason}")
    return min(1, len(outcome.different))


def _session() -> SparkSession:
    """Return a session in which small queries cost little."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark's, of errors
    return spark


def _lines(results: Path | None) -> dict[str, Compared]:
    """Return the queries that a file of results has: name → what came of it."""
    if results is None or not results.exists():
        return {}
    lines = map(json.loads, results.read_text().splitlines())
    return {line.pop("name"): line for line in lines}


if __name__ == "__main__":
    sys.exit(main())

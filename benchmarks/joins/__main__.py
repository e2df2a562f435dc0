"""Compare joins within an interval and dropped duplicates with native Spark's.

    python -m benchmarks.joins ROW... [--rounds N] [--epochs N] [--rows N] [--keys N]

See `benchmarks.streaming.compare`; an epoch of five minutes of event time is one file, and both
sides of a join are the same rows.
"""

from __future__ import annotations

from benchmarks.streaming.compare import Comparison, compare, same
from benchmarks.windows.inputs import timed_rows

ROWS = {
    name: Comparison(
        about=about,
        parties=same(
            (f"godwit-{name}", f"native-{name}-memory", f"native-{name}-rocksdb"),
            epochs=12,
            rows=rows,
            keys=keys,
        ),
    )
    for name, about, rows, keys in (
        ("pairs", "pairs within 10 seconds, 2 x 250 k rows an epoch, 50 k keys", 250_000, 50_000),
        (
            "duplicates",
            "duplicates within 10 minutes, 1 M rows an epoch, 500 k keys",
            1_000_000,
            500_000,
        ),
    )
}

if __name__ == "__main__":
    compare(ROWS, "joins", timed_rows, __doc__, epochs=int, rows=int, keys=int)

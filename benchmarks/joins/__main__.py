"""Compare joins within an interval and dropped duplicates with native Spark's.

    python -m benchmarks.joins ROW... [--rounds N] [--epochs N] [--rows N] [--keys N]

As `benchmarks.windows`: programs take turns, each in a fresh process, an epoch is five minutes of
event time; both sides of a join are the same rows.
"""

from __future__ import annotations

from benchmarks.windows.__main__ import Row, compare

ROWS = {
    "pairs": Row(
        about="pairs within 10 seconds, 2 x 250 k rows an epoch, 50 k keys",
        subject="godwit-pairs",
        rivals=("native-pairs-memory", "native-pairs-rocksdb"),
        epochs=12,
        rows=250_000,
        keys=50_000,
    ),
    "duplicates": Row(
        about="duplicates within 10 minutes, 1 M rows an epoch, 500 k keys",
        subject="godwit-duplicates",
        rivals=("native-duplicates-memory", "native-duplicates-rocksdb"),
        epochs=12,
        rows=1_000_000,
        keys=500_000,
    ),
}


if __name__ == "__main__":
    compare(ROWS, "joins", __doc__)

"""Compare windows, sessions and timers with native Spark's.

    python -m benchmarks.windows ROW... [--rounds N] [--epochs N] [--rows N] [--keys N]

See `benchmarks.streaming.compare`; an epoch of five minutes of event time is one file.  Rows that
begin with ``own-`` are over sources of Godwit's own; ``own`` stands for all of them.
"""

from __future__ import annotations

from benchmarks.streaming.compare import Comparison, compare, same
from benchmarks.windows.inputs import timed_rows

MANY = {"rows": 1_000_000, "keys": 100_000}
RIVALS = {
    "four": ("native-four-in-one", "native-four-queries"),
    "one": ("native-one-memory", "native-one-rocksdb"),
    "sessions": ("native-sessions-memory", "native-sessions-rocksdb"),
}
FLOWS = {
    "four": ("windows of 5, 10, 15 and 20 minutes", 24),
    "one": ("one window of 5 minutes", 24),
    "sessions": ("sessions of a gap of 30 seconds", 16),
}
ROWS = {
    **{
        name: Comparison(
            about=f"{about}, 1 M rows an epoch, 100 k keys",
            parties=same((f"godwit-{name}", *RIVALS[name]), epochs=epochs, **MANY),
        )
        for name, (about, epochs) in FLOWS.items()
    },
    "timers": Comparison(
        about="a timer per key and epoch, 200 k keys",
        parties=(
            *same(("godwit-timers",), epochs=12, rows=200_000, keys=200_000),
            *same(("native-timers",), epochs=4, rows=200_000, keys=200_000),
        ),
    ),
    **{
        f"own-{row}": Comparison(
            about=f"{FLOWS[name][0]}, 1 M rows an epoch, 100 k keys; own sources",
            parties=same(
                (f"godwit-own-{name}", f"godwit-{name}", *RIVALS[name]),
                epochs=FLOWS[name][1],
                **MANY,
            ),
        )
        for row, name in (("window", "one"), ("four-windows", "four"), ("sessions", "sessions"))
    },
}

if __name__ == "__main__":
    compare(ROWS, "windows", timed_rows, __doc__, epochs=int, rows=int, keys=int)

"""Compare Godwit with native Spark: ``python -m benchmarks.streaming ROW [--rounds N]``.

See `benchmarks.streaming.compare`.  Rows that begin with ``own-`` are over sources of Godwit's own;
``own`` stands for all of them.  Windows over own sources are rows of
``python -m benchmarks.windows``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.streaming.compare import Comparison, compare, same
from benchmarks.streaming.inputs import held_keys, keyed_rows

if TYPE_CHECKING:
    from pathlib import Path

AGGREGATES = ("native-memory", "native-rocksdb")
PYTHON = ("transform-with-state", "apply-in-pandas")
UNIFORM = {"epochs": 20, "rows": 1_000_000, "keys": 1_000_000}
ZIPF = {"epochs": 30, "rows": 1_000_000, "keys": 100_000, "zipf": 1.0}
SMALL = {"epochs": 60, "rows": 1_000, "keys": 1_000_000}
LITTLE = {"rows": 20_000, "keys": 100_000}
PER_KEY = {
    "20k": ("20 k keys, 1 M rows an epoch", 3, {"rows": 1_000_000, "keys": 20_000}),
    "200k": ("200 k keys, 200 k rows an epoch", 2, {"rows": 200_000, "keys": 200_000}),
}
HELD = {"touched": 100_000, "epochs": 12}

ROWS = {
    "uniform": Comparison(
        about="sum and count, 1 M uniform string keys, 1 M rows an epoch",
        parties=same(("godwit", *AGGREGATES), **UNIFORM),
        skip=10,
    ),
    "zipf": Comparison(
        about="sum and count, 100 k Zipf(1) string keys, 1 M rows an epoch",
        parties=same(("godwit", *AGGREGATES), **ZIPF),
        skip=15,
    ),
    "small": Comparison(
        about="sum and count, 1,000 rows an epoch",
        parties=same(("godwit", *AGGREGATES), **SMALL),
        skip=30,
    ),
    **{
        f"python-{name}": Comparison(
            about=f"a Python function per key with state, {about}",
            parties=(
                *same(("godwit-process",), epochs=20, **source),
                *same(PYTHON, epochs=rival_epochs, **source),
            ),
            skip=1,
        )
        for name, (about, rival_epochs, source) in PER_KEY.items()
    },
    "sinks": Comparison(
        about="into Parquet and Delta, beside no sink: 1 M uniform keys, 1 M rows (630 k out) an "
        "epoch",
        parties=same(("godwit", "godwit-parquet", "godwit-delta"), **UNIFORM),
        skip=10,
    ),
    "key-groups": Comparison(
        about="20 k rows an epoch over 100 k keys, two lanes: 4,096 and 32,768 key groups beside "
        "256",
        parties=same([f"godwit-{n}-key-groups" for n in (256, 4096, 32768)], epochs=20, **LITTLE),
        skip=10,
    ),
    "lanes": Comparison(
        about="20 k rows an epoch over 100 k keys, two cores: many lanes beside two",
        parties=same([f"godwit-{n}-lanes" for n in (2, 8, 32, 128, 256)], epochs=16, **LITTLE),
        skip=8,
    ),
    **{
        f"own-{name}": Comparison(
            about=f"{about}; own sources",
            parties=same(("godwit-own", "godwit", *AGGREGATES), **source),
            skip=skip,
        )
        for name, about, skip, source in (
            ("uniform", "1 M uniform keys", 10, UNIFORM),
            ("zipf", "100 k Zipf(1) keys", 15, ZIPF),
            ("small", "1,000 rows an epoch", 30, SMALL),
        )
    },
    **{
        f"own-python-{name}": Comparison(
            about=f"a Python function per key with state, {about}; own sources",
            parties=(
                *same(("godwit-own-process", "godwit-process"), epochs=20, **source),
                *same(PYTHON, epochs=rival_epochs, **source),
            ),
            skip=5,
        )
        for name, (about, rival_epochs, source) in PER_KEY.items()
    },
    "held": Comparison(
        about="100 k keys touched an epoch, 10 M held against 1 M held (Godwit against itself)",
        parties=(
            *same(("godwit",), held=10_000_000, **HELD),
            *same(("godwit",), held=1_000_000, **HELD),
        ),
        skip=-10,
    ),
}


def _input(directory: Path, **source: Any) -> Path:
    """Make the input that a row's sizes describe."""
    return (held_keys if "held" in source else keyed_rows)(directory, **source)


if __name__ == "__main__":
    compare(ROWS, "streaming", _input, __doc__)

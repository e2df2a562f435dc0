"""Cost of a key in the local store: find, read, change; compared with a dictionary and LMDB.

A line is a lane's table of so many string keys with a count and a total, of which an epoch
touches some: find them and read their state, apply their changes.  Medians of epochs are printed.
A dictionary does the same in a Python loop, in one process and without versions; LMDB, where it is
installed, does it in one transaction an epoch that is not synced to disk.

    python -m benchmarks.state_table [--epochs 60] [--key-groups 1] [--root DIRECTORY]

The keys are spread over so many key groups.
"""

from __future__ import annotations

import importlib.util
import struct
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options

from godwit.store.changes import Changes, StateRows
from godwit.store.columns import StateSchema
from godwit.store.local_store import LocalState

SCHEMA = StateSchema(
    pa.schema([("key", pa.string())]),
    pa.schema([("count", pa.int64()), ("total", pa.float64())]),
)
SIZES = [(4_000, 4), (4_000, 250), (4_000, 2_500), (100_000, 4), (100_000, 2_500), (100_000, 5_000)]
STATE = struct.Struct("<qd")


def all_keys(count: int) -> StateRows:
    """Every key, with a hash that chooses its key group."""
    hashes = np.random.default_rng(0).integers(0, 2**63 - 1, count)
    keys = [f"customer-{i:08d}" for i in range(count)]
    counts, totals = pa.array(np.arange(count)), pa.array(np.ones(count))
    return StateRows(
        hashes=hashes,
        keys=pa.record_batch([keys], schema=SCHEMA.keys),
        values=pa.record_batch([counts, totals], schema=SCHEMA.values),
    )


def changes_of(touched: StateRows, epoch: int, key_groups: int) -> Changes:
    """Rows as one epoch's changes, in the order of their key groups."""
    groups = touched.hashes % key_groups
    ordered = touched.take(np.argsort(groups, kind="stable"))
    found, counts = np.unique(groups, return_counts=True)
    return Changes(
        key_groups=found,
        ends=np.cumsum(counts),
        epochs=np.full(len(found), epoch),
        rows=ordered,
    )


def time_table(root: Path, everything: StateRows, epochs: list[StateRows], key_groups: int) -> Any:
    """Median seconds of load, of find and read, and of apply."""
    state = LocalState(root, "benchmark", SCHEMA, key_groups)
    homes, all_groups = np.zeros(key_groups, np.int32), np.arange(key_groups)
    state.refresh(all_groups)
    start = perf_counter()
    state.replace(changes_of(everything, 0, key_groups), homes)
    load, times = perf_counter() - start, []
    for number, epoch in enumerate(epochs, start=1):
        changes = changes_of(epoch, number, key_groups)
        groups = np.repeat(changes.key_groups, np.diff(changes.ends, prepend=0))
        marks = [perf_counter()]
        state.look_up(changes.rows.keys, groups)
        marks.append(perf_counter())
        state.apply(changes, homes)
        marks.append(perf_counter())
        times.append(np.diff(marks))
    return [load, *np.median(times, axis=0)]


def time_dictionary(everything: StateRows, epochs: list[StateRows]) -> float:
    """Median seconds of an epoch of a Python loop over a dictionary."""
    states = {}
    for key, count, total in python_rows(everything):
        states[key] = (count, total)
    times = []
    for epoch in epochs:
        start = perf_counter()
        for key, count, total in python_rows(epoch):
            old_count, old_total = states[key]
            states[key] = (old_count + count, old_total + total)
        times.append(perf_counter() - start)
    return float(np.median(times))


def time_lmdb(root: Path, everything: StateRows, epochs: list[StateRows]) -> float:
    """Median seconds of an epoch of a Python loop over LMDB."""
    import lmdb

    environment = lmdb.open(str(root), map_size=1 << 30, sync=False, writemap=True)
    times = []
    with environment:
        with environment.begin(write=True) as transaction:
            for key, count, total in python_rows(everything):
                transaction.put(key.encode(), STATE.pack(count, total))
        for epoch in epochs:
            start = perf_counter()
            with environment.begin(write=True) as transaction:
                for key, count, total in python_rows(epoch):
                    name = key.encode()
                    old_count, old_total = STATE.unpack(transaction.get(name) or b"")
                    transaction.put(name, STATE.pack(old_count + count, old_total + total))
            times.append(perf_counter() - start)
    return float(np.median(times))


def python_rows(touched: StateRows) -> Any:
    """Key, count and total of each row as Python objects, whose making is part of a loop's cost."""
    counts, totals = touched.values.columns
    keys = touched.keys.column(0)
    return zip(keys.to_pylist(), counts.to_pylist(), totals.to_pylist(), strict=True)


def main() -> None:
    arguments = read_options(__doc__, epochs=60, key_groups=1, root=Path)
    has_lmdb = importlib.util.find_spec("lmdb") is not None
    print("us per key, and us per epoch where marked *")
    print(f"{'held':>8}{'touched':>9}", end="")
    for title in ("load", "find", "apply", "all", "all*", "dict", "LMDB"):
        print(f"{title:>9}", end="")
    print()
    for held, touched in SIZES:
        everything, rng = all_keys(held), np.random.default_rng(1)
        epochs = [
            everything.take(rng.choice(held, touched, replace=False))
            for _ in range(arguments.epochs)
        ]
        with tempfile.TemporaryDirectory(dir=arguments.root) as directory:
            root = Path(directory)
            load, *steps = time_table(root / "store", everything, epochs, arguments.key_groups)
            per_key = [load / held, *(s / touched for s in steps), sum(steps) / touched, sum(steps)]
            per_key.append(time_dictionary(everything, epochs) / touched)
            if has_lmdb:
                per_key.append(time_lmdb(root / "lmdb", everything, epochs) / touched)
        print(f"{held:>8}{touched:>9}" + "".join(f"{1e6 * seconds:>9.3f}" for seconds in per_key))


if __name__ == "__main__":
    main()

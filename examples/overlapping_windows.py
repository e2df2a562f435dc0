"""Sums over windows that overlap: the simple job and the fast job.

    python examples/overlapping_windows.py
    python examples/overlapping_windows.py --rows 2000000 --keys 50000

These are the jobs of "Enorm: Efficient Window-Based Computation in Large-Scale Distributed Stream
Processing Systems" (Madsen et al.). The simple job sums values of keys over windows of 5 to 30
minutes, from partial sums of a minute: in one operator, or in two, of which one keeps the partial
sums and the other consolidates them. The fast job hands the sums of a minute on to windows of 5, of
10 and of 20. Key groups move while they run, executors die, and sums are compared with those of
pandas. Keys are drawn evenly, as in the paper.
"""

import argparse
import random
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa

import godwit as gw

ROWS = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
SIMPLE, FAST = (5, 10, 15, 20, 25, 30), (1, 5, 10, 20)
NAMES = ["key", "window_start", "window_end", "value"]


def minutes(length: int) -> Any:
    """Return windows of so many minutes."""
    return gw.tumbling(f"{length} minutes")


def simple(source: Any, consolidate: Literal["together", "apart"]) -> gw.Flow:
    """Describe the simple job: all windows of one operator, which consists of one part or two."""
    flow = gw.Flow("simple", num_key_groups=32)
    keyed = flow.source("rows", source, event_time="at", max_ahead="36500 days").key_by("key")
    windows = keyed.window(*map(minutes, SIMPLE), name="simple", consolidate=consolidate)
    flow.sink("simple", windows.compute(value=gw.sum("value")), gw.sinks.noop())
    return flow


def fast(source: Any) -> gw.Flow:
    """Describe the fast job: four operators in a row, each over longer windows."""
    flow = gw.Flow("fast", num_key_groups=32)
    sums = flow.source("rows", source, event_time="at", max_ahead="36500 days")
    for length in FAST:
        windows = sums.key_by("key").window(minutes(length), name=f"of_{length}")
        sums = windows.compute(value=gw.sum("value"))
        flow.sink(f"of_{length}", sums, gw.sinks.noop())
    return flow


def expected(rows: pa.Table, lengths: tuple[int, ...]) -> pd.DataFrame:
    """Compute the sums of all windows in pandas."""
    table = rows.to_pandas()
    sums = []
    for length in lengths:
        start = table["at"].dt.floor(f"{length}min")
        windows = table.assign(window_start=start, window_end=start + pd.Timedelta(minutes=length))
        sums.append(windows.groupby(NAMES[:3], as_index=False).value.sum())
    return pd.concat(sums)


def invented(count: int, keys: int, hours: float = 1, seed: int = 1) -> pa.Table:
    """Make rows of some hours, of keys that are drawn evenly."""
    dice = np.random.default_rng(seed)
    micros = np.sort(dice.uniform(0, hours * 3600e6, count)).astype("timedelta64[us]")
    at = np.datetime64("2016-06-20", "us") + micros
    columns = [dice.integers(0, keys, count), at, dice.integers(0, 100, count)]
    return pa.table(columns, names=ROWS.names).cast(ROWS)


def play(flow: gw.Flow, rows: pa.Table, epochs: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Play a job while key groups move and executors die; return its results."""
    dice, share = random.Random(seed), -(-len(rows) // epochs)
    with gw.testing.cluster(flow, executors=2) as run:
        for number in range(epochs):
            run.epoch({"rows": rows.slice(number * share, share)})
            if number % 3 == 2:
                run.add(f"new-{number}")
                run.kill(dice.choice([name for name in run.executors if name != f"new-{number}"]))
            else:
                run.migrate(
                    dice.choice(list(run.executors)),
                    component=dice.choice(list(run.placement.assignments)),
                )
        run.end_input()
        assert not run.late
        return {sink.name: run.rows(sink.name).to_pandas() for sink in flow.sinks}


def check(found: pd.DataFrame, of_pandas: pd.DataFrame) -> int:
    """Compare sums with those of pandas; return their number."""
    ordered = [t[NAMES].sort_values(NAMES).reset_index(drop=True) for t in (found, of_pandas)]
    pd.testing.assert_frame_equal(*ordered, check_dtype=False)
    return len(found)


def main() -> None:
    """Read the command line, run both jobs, and compare."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rows", type=int, default=5000)
    options.add_argument("--keys", type=int, default=200)
    options.add_argument("--epochs", type=int, default=10)
    given = options.parse_args()
    rows, source = invented(given.rows, given.keys), gw.sources.memory(ROWS)
    for consolidate in ("together", "apart"):
        sums = play(simple(source, consolidate), rows, given.epochs)["simple"]
        print(f"simple job, {consolidate}: {check(sums, expected(rows, SIMPLE)):,} sums")
    for length, sums in zip(FAST, play(fast(source), rows, given.epochs).values(), strict=True):
        print(f"fast job, {length} minutes: {check(sums, expected(rows, (length,))):,} sums")


if __name__ == "__main__":
    main()

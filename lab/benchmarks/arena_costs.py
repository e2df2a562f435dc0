"""Cost of a row and size of state of the arena's queries: ``python lab/benchmarks/arena_costs.py``.

The queries are those of ``lab/examples/nexmark.py``, in one process, on one executor of a core. The
first epoch is not counted. It prints, for each operator, the rows that reach its lanes, the CPU
time of a lane for each, and the state at the end; `godwit_lab.arena.queries` has them for
each source row.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import godwit as gw
from godwit.migration.outcome import EpochOutcome

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import nexmark  # type: ignore[import-not-found]

QUERIES = ("q1", "q3", "q5", "q8", "q11")


def measure(name: str, events: int, epochs: int = 4) -> None:
    """Run a query, and print the figures of its operators."""
    house = nexmark.House(events=events, epochs=epochs, seed=7)
    flow = gw.Flow(name, num_key_groups=32)
    flow.sink("out", nexmark.QUERIES[name].build(nexmark.Streams(flow, house)), gw.sinks.noop())
    outcomes: dict[int, EpochOutcome] = {}
    init = EpochOutcome.__init__

    def record(self: EpochOutcome, **values: Any) -> None:
        init(self, **values)
        outcomes[self.epoch] = self

    now = dt.datetime.fromtimestamp(nexmark.NOW_S, dt.UTC)
    with (
        mock.patch.object(EpochOutcome, "__init__", record),
        gw.testing.cluster(flow, executors=1, now=now) as run,
    ):
        for _ in range(epochs):
            run.epoch()
            run.advance(f"{nexmark.TICK_S} seconds")
    later = [outcomes[epoch] for epoch in sorted(outcomes)[1:]]
    source_rows = sum(outcome.rows_in for outcome in later)
    sums: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    state: dict[str, int] = {}
    for outcome in later:
        for component, load in outcome.loads.items():
            sums[component] += (np.sum(load.rows), np.sum(load.cpu_ms))
            state[component] = int(np.sum(load.state_bytes))
    for component, (rows, cpu_ms) in sums.items():
        print(
            f"{name} {component}: {rows / source_rows:.2f} rows a source row, "
            f"{1000 * cpu_ms / rows:.2f} us each, {state[component]:,} B of state"
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("queries", nargs="*", default=QUERIES)
    options.add_argument("--events", type=int, default=200_000)
    chosen = options.parse_args()
    for query in chosen.queries:
        measure(query, chosen.events)

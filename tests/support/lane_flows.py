"""Flows of one operator for tests of lanes, and what they should come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.oracles.one_process import lane_operator

from godwit.engine.lane.lane_flow import LaneFlow
from godwit.operators import aggregates as gw
from godwit.operators.compute import ComputeOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from godwit.operators.operator import KeyedOperator

INPUTS = pa.schema({"v": pa.int64()})
KEYS = pa.schema({"k": pa.string()})


def sums(*, complete: bool = False) -> ComputeOperator:
    """Count and add up the values of each key."""
    return ComputeOperator(
        name="sums",
        keys=KEYS,
        inputs=INPUTS,
        aggregates={"n": gw.count(), "total": gw.sum("v")},
        mode="complete" if complete else "update",
    )


def flow_of(operator: KeyedOperator, num_key_groups: int) -> LaneFlow:
    """Make a flow of one operator."""
    return LaneFlow(num_key_groups=num_key_groups, operators=(lane_operator(operator),))


def rows_of(rng: np.random.Generator, rows: int, keys: int) -> list[pa.RecordBatch]:
    """Two source partitions of random rows."""
    parts = []
    for _ in range(2):
        names = [f"key {i}" for i in rng.integers(0, keys, rows // 2).tolist()]
        values = rng.integers(-9, 10, rows // 2)
        parts.append(pa.record_batch({"k": pa.array(names), "v": pa.array(values)}))
    return parts


class Model:
    """Expected state of `sums`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()

    def add(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            for row in batch.to_pylist():
                self.counts[row["k"]] += 1
                self.totals[row["k"]] += row["v"]

    def agrees_with(self, held: Mapping[tuple[Any, ...], tuple[Any, ...]]) -> bool:
        """True if the state agrees."""
        found = {key[0]: values[:2] for key, values in held.items()}
        return found == {key: (n, self.totals[key]) for key, n in self.counts.items()}

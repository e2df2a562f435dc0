"""Flows of one operator for tests of lanes, and what they should come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.library import aggregates as gw
from godwit.library.compute import ComputeOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from godwit.api.streams import KeyedStream, Stream
    from godwit.plan.compiled import CompiledFlow

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


def flow_of(
    build: Callable[[KeyedStream], Stream], num_key_groups: int, key: pa.DataType | None = None
) -> CompiledFlow:
    """Compile a flow over rows of a key, of text or another type, and a value."""
    flow = LogicalFlow("flow", num_key_groups)
    frame: Any = FakeDataFrame(pa.schema({"k": key or pa.string(), "v": pa.int64()}))
    flow.sink("out", build(flow.source("rows", frame).key_by("k")), FakeSink())
    return flow.compile(resolver(flow))


def summed(keyed: KeyedStream) -> Stream:
    """Give what `sums` does to a stream."""
    return keyed.compute(name="sums", n=gw.count(), total=gw.sum("v"))


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

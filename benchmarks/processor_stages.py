"""CPU of the stages of an epoch that calls a function per key with its rows, without Spark.

Two lanes take 1 M rows of 20 k keys an epoch, for the processor of `benchmarks.adopted`, adopted,
or for the same function by hand.  Figures are CPU milliseconds of steady epochs (medians); at last
the processor's own code alone, over tuples that are ready and a state that is an attribute.

    python -m benchmarks.processor_stages [--rows 1000000] [--keys 20000] [--epochs 9]
        [--parties adopted hand]
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from benchmarks.adopted import TOTALS, NoTotals, totals_by_hand, totals_processor
from benchmarks.options import read_options
from benchmarks.took import NoSinks, timed_epoch
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.adopt.row_forms import SparkRowForm
from godwit.adopt.spark_functions import KeyCalls
from godwit.api.flow import LogicalFlow
from godwit.columns.python_values import Columns
from godwit.engine.lane import lane
from godwit.engine.settings import Lanes
from godwit.operators.operator import OperatorInput
from godwit.operators.process import ProcessOperator
from godwit.operators.states.stored import Written
from godwit.operators.states.values import ValueCells

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.plan.compiled import CompiledFlow

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.float64())])
STAGES: tuple[tuple[str, tuple[tuple[Any, str], ...]], ...] = (
    ("unpack rows, hash keys", ((lane, "unpack_payloads"),)),
    ("group by key", ((OperatorInput, "grouped"),)),
    ("values of columns", ((SparkRowForm, "batches"), (Columns, "__missing__"))),
    (
        "calls, rows, state of keys",
        ((KeyCalls, "run_one_each"), (KeyCalls, "run"), (ProcessOperator, "_call_by_rows")),
    ),
    (
        "look up and decode states",
        ((ValueCells, "_look_up_with_prefetch"), (ProcessOperator, "_decode_states")),
    ),
    (
        "encode states",
        ((ValueCells, "written"), (Written, "entries"), (ProcessOperator, "_encode_states")),
    ),
    ("emitted rows to columns", ((KeyCalls, "to_batch"),)),
)


def flow_of(party: str) -> CompiledFlow:
    """Make the flow of a party."""
    flow = LogicalFlow("flow", 256)
    frame: Any = FakeDataFrame(SCHEMA)
    keyed: Any = flow.source("rows", frame).key_by("k")
    if party == "hand":
        stream = keyed.process(totals_by_hand, state=NoTotals, output=TOTALS, name="op")
    else:
        stream = keyed.transform_with_state(totals_processor(), output=TOTALS, name="op")
    flow.sink("out", stream, FakeSink())
    return flow.compile(resolver(flow))


def batches(draw: np.random.Generator, rows: int, keys: int) -> Sequence[pa.RecordBatch]:
    """Two source partitions."""
    parts = []
    for _ in range(2):
        names = [f"key-{key}" for key in draw.integers(0, keys, rows // 2).tolist()]
        times = 1_700_000_000_000_000 + draw.integers(0, 60_000_000, rows // 2)
        columns = [pa.array(names), pa.array(times, SCHEMA.field(1).type)]
        columns.append(pa.array(draw.random(rows // 2)))
        parts.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return parts


class ReadyRow(NamedTuple):
    """A row of `SCHEMA`."""

    k: str
    ts: Any
    v: float


class Stages:
    """CPU milliseconds of each stage, without those of stages that it calls."""

    def __init__(self) -> None:
        self.spent_ms: dict[str, float] = defaultdict(float)
        self._inner_ms: list[float] = []
        for label, places in STAGES:
            for owner, name in places:
                setattr(owner, name, self._timed(label, getattr(owner, name)))

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds up its time."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            """Call the function."""
            began = time.process_time()
            self._inner_ms.append(0.0)
            try:
                return function(*args, **options)
            finally:
                took_ms = (time.process_time() - began) * 1e3
                self.spent_ms[label] += took_ms - self._inner_ms.pop()
                if self._inner_ms:
                    self._inner_ms[-1] += took_ms

        return timed


def own_code_ms(rows: int, keys: int) -> float:
    """CPU milliseconds of the processor's own code for an epoch."""

    class OneState:
        """The state of every key."""

        value: Any = None

        def get(self) -> Any:
            """Return the value."""
            return self.value

        def update(self, value: Any) -> None:
            """Set the value."""
            self.value = value

    processor = totals_processor()
    processor.state = OneState()
    of_key = [ReadyRow("key-1", None, 0.5)] * (rows // keys)
    began = time.process_time()
    for _ in range(keys):
        list(processor.handleInputRows(("key-1",), iter(of_key), None))
    return (time.process_time() - began) * 1e3


def main() -> None:
    """Measure the parties."""
    options = read_options(
        __doc__, rows=1_000_000, keys=20_000, epochs=9, parties=["adopted", "hand"]
    )
    stages, draw = Stages(), np.random.default_rng(1)
    data = [batches(draw, options.rows, options.keys) for _ in range(3)]
    for party in options.parties:
        with tempfile.TemporaryDirectory() as directory:
            settings = Lanes(inline_bytes=32 * 1024, snapshot_growth=1.0, snapshot_budget_bytes=1)
            run = NoSinks(flow_of(party), Path(directory), {"e": 2}, settings=settings)
            run.snapshots = ()
            figures = []
            for number in range(options.epochs):
                stages.spent_ms.clear()
                took = timed_epoch(run, {0: data[number % len(data)]})
                rest = took.lanes - sum(stages.spent_ms.values())
                steps = {"hash, split": took.source, **stages.spent_ms, "rest of lanes": rest}
                figures.append(steps | {"all": took.source + took.lanes})
        steady = figures[len(figures) // 3 :]
        print(party)
        for label in ("hash, split", *(label for label, _ in STAGES), "rest of lanes", "all"):
            print(f"  {label:28s} {median(each.get(label, 0.0) for each in steady):7.1f} ms")
    alone = median(own_code_ms(options.rows, options.keys) for _ in range(5))
    print(f"the processor's own code       {alone:7.1f} ms")


if __name__ == "__main__":
    main()

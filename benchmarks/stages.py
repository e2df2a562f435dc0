"""CPU of the stages of an epoch without Spark, and of plain libraries that do the same alone.

Two lanes take 1 M rows an epoch.  ``adopted`` and ``hand`` call a function per key with its rows
(20 k keys), for the processor of `benchmarks.adopted`, adopted, or by hand; ``uniform`` and
``zipf`` count and sum rows of a Parquet file by 1 M uniform or 100 k Zipf(1) keys.  Figures are
CPU milliseconds of steady epochs (medians), with freed memory kept as in Spark's workers; for sums,
beside them what pyarrow and NumPy take on one core for the stage's essential work on the same rows.

    python -m benchmarks.stages [--parties adopted hand uniform zipf] [--rows 1000000]
        [--keys 20000] [--epochs 9]
"""

from __future__ import annotations

import functools
import inspect
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.adopted import TOTALS, NoTotals, totals_by_hand, totals_processor
from benchmarks.options import read_options
from benchmarks.streaming.inputs import SCHEMA as FILE_SCHEMA
from benchmarks.streaming.inputs import keyed_rows
from benchmarks.took import NoSinks, timed_epoch
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.adopt.row_forms import SparkRowForm
from godwit.adopt.spark_functions import KeyCalls
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.blocks import decode_batch, encode_batch
from godwit.columns.hashing import RowsDigest
from godwit.columns.python_values import Columns
from godwit.engine.lane import lane, packing, source_side, wire
from godwit.engine.lane.files import LaneFiles
from godwit.engine.settings import Lanes
from godwit.library.compute import ComputeOperator
from godwit.library.process import ProcessOperator
from godwit.library.states.stored import Written
from godwit.library.states.values import ValueCells
from godwit.operators.operator import KeyedOperator, OperatorInput
from godwit.spark.platform.worker import retain_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.plan.compiled import CompiledFlow

SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.float64())])
Places = tuple[tuple[str, tuple[tuple[Any, str], ...]], ...]
"""Stages, each with the functions whose time is its own."""
STAGES: Places = (
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

STAGES_OF_SUMS: Places = (
    ("read and decode", ((source_side, "read_split"),)),
    ("digest of the rows", ((RowsDigest, "update"),)),
    ("hash, at the source and in lanes", ((KeyedOperator, "hash_of"),)),
    (
        "group and combine at the source",
        (
            (packing, "group_repeating_rows"),
            (packing, "group_rows"),
            (packing, "_combining_pays"),
            (packing, "pre_aggregate"),
        ),
    ),
    ("split by lane, serialise", ((wire, "split_by_place"), (wire, "_ship_chunk"))),
    ("receive", ((lane, "unpack_payloads"),)),
    ("group in lanes", ((OperatorInput, "grouped"),)),
    ("find in the state table", ((lane.LaneView, "find"),)),
    ("change", ((ComputeOperator, "new_states"), (ComputeOperator, "finish"))),
    ("write changelog", ((LaneFiles, "write_changes"), (LaneFiles, "close"))),
    ("apply the last changelog", ((lane, "catch_up_copies"),)),
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

    def __init__(self, stages: Places) -> None:
        self.spent_ms: dict[str, float] = defaultdict(float)
        self._inner_ms: list[float] = []
        for label, places in stages:
            for owner, name in places:
                setattr(owner, name, self._timed(label, getattr(owner, name)))

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds up its time; of a generator, that until each value."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def timed_generator(*args: Any, **options: Any) -> Any:
                """Yield the values of the generator."""
                following = self._timed(label, functools.partial(next, function(*args, **options)))
                with suppress(StopIteration):
                    while True:
                        yield following()

            return timed_generator

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


def limits_of(path: Path) -> dict[str, float]:
    """CPU milliseconds of what pyarrow and NumPy take on one core for the rows of a file."""
    table = pq.read_table(path, use_threads=False).combine_chunks()
    sums = table.group_by("key", use_threads=False).aggregate([("v", "sum"), ("v", "count")])
    entries = sums.combine_chunks().to_batches()[0]
    block, draw = encode_batch(entries, "lz4"), np.random.default_rng(2)
    payload, values = table.combine_chunks().to_batches()[0], table.column("v").to_numpy()
    groups = draw.integers(0, len(sums), table.num_rows)
    slots, ends = np.zeros(2**21, np.uint64), draw.integers(0, 2**21, len(sums))
    by_lane = pa.array(np.argsort(draw.integers(0, 2, table.num_rows), kind="stable"))

    def change_table() -> None:
        """Decode a changelog, and write its two values of each key at random places."""
        decode_batch(block)
        for column in (1, 2):
            slots[ends] = entries.column(column).to_numpy().view(np.uint64)

    works: dict[str, Callable[[], object]] = {
        "read and decode": lambda: pq.read_table(path, use_threads=False),
        "split by lane, serialise": lambda: payload.take(by_lane).serialize(),
        "group in lanes": lambda: table.group_by("key", use_threads=False).aggregate([]),
        "find in the state table": lambda: slots.take(ends),
        "change": lambda: (np.bincount(groups), np.bincount(groups, values)),
        "write changelog": lambda: encode_batch(entries, "lz4"),
        "apply the last changelog": change_table,
    }
    limits = {}
    for label, work in works.items():
        took = []
        for _ in range(5):
            began = time.process_time()
            work()
            took.append((time.process_time() - began) * 1e3)
        limits[label] = median(took)
    return limits


def measure_sums(stages: Stages, party: str, rows: int, epochs: int) -> None:
    """Measure count and sum per key of Parquet files, and print the stages beside their limits."""
    with tempfile.TemporaryDirectory() as name:
        directory, zipf = Path(name), 1.0 if party == "zipf" else None
        keys = rows // 10 if zipf else rows
        files = keyed_rows(directory, epochs=epochs, rows=rows, keys=keys, zipf=zipf)
        source = gw.sources.parquet(str(files), schema=FILE_SCHEMA, max_files_per_epoch=1)
        flow = LogicalFlow("flow", 256)
        keyed: Any = flow.source("rows", source).key_by("key")
        flow.sink("out", keyed.compute(n=gw.count(), s=gw.sum("v")), FakeSink())
        run = NoSinks(flow.compile(resolver(flow)), directory / "run", {"e": 2}, settings=Lanes())
        run.sources.open()
        figures = []
        for _ in range(epochs):
            stages.spent_ms.clear()
            began = time.process_time()
            run.read_epoch()
            all_ms = (time.process_time() - began) * 1e3
            rest = all_ms - sum(stages.spent_ms.values())
            figures.append({**stages.spent_ms, "rest": rest, "all": all_ms})
        steady, limits = figures[len(figures) // 3 :], limits_of(min(files.iterdir()))
    print(f"{party:34s}    Godwit      limit")
    for label in (*(label for label, _ in STAGES_OF_SUMS), "rest", "all"):
        limit = f"{limits[label]:7.1f} ms" if label in limits else ""
        took_ms = median(each.get(label, 0.0) for each in steady)
        print(f"  {label:32s} {took_ms:7.1f} ms {limit}")


def main() -> None:
    """Measure the parties."""
    options = read_options(
        __doc__,
        rows=1_000_000,
        keys=20_000,
        epochs=9,
        parties=["adopted", "hand", "uniform", "zipf"],
    )
    retain_freed_memory()
    sums = [party for party in options.parties if party in ("uniform", "zipf")]
    functions = [party for party in options.parties if party not in sums]
    if functions:
        measure_functions(functions, options.rows, options.keys, options.epochs)
    if sums:
        stages = Stages(STAGES_OF_SUMS)
        for party in sums:
            measure_sums(stages, party, options.rows, options.epochs)


def measure_functions(parties: Sequence[str], rows: int, keys: int, epochs: int) -> None:
    """Measure functions that are called per key, and print their stages."""
    stages, draw = Stages(STAGES), np.random.default_rng(1)
    data = [batches(draw, rows, keys) for _ in range(3)]
    for party in parties:
        with tempfile.TemporaryDirectory() as directory:
            settings = Lanes(inline_bytes=32 * 1024, snapshot_growth=1.0, snapshot_budget_bytes=1)
            run = NoSinks(flow_of(party), Path(directory), {"e": 2}, settings=settings)
            run.snapshots = ()
            figures = []
            for number in range(epochs):
                stages.spent_ms.clear()
                took = timed_epoch(run, {0: data[number % len(data)]})
                rest = took.lanes - sum(stages.spent_ms.values())
                steps = {"hash, split": took.source, **stages.spent_ms, "rest of lanes": rest}
                figures.append(steps | {"all": took.source + took.lanes})
        steady = figures[len(figures) // 3 :]
        print(party)
        for label in ("hash, split", *(label for label, _ in STAGES), "rest of lanes", "all"):
            print(f"  {label:28s} {median(each.get(label, 0.0) for each in steady):7.1f} ms")
    alone = median(own_code_ms(rows, keys) for _ in range(5))
    print(f"the processor's own code       {alone:7.1f} ms")


if __name__ == "__main__":
    main()

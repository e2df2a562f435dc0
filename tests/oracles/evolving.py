"""Programs that follow one another on one checkpoint: through real lanes, and as dicts.

The runtime here is the real one without Spark: a flow is taken up from its checkpoint, lanes bring
state forward, process and write, and a record commits.  Every program starts with an empty local
store, so all state is read from what earlier programs wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.manual_run import ManualRun

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import read_chain
from godwit.columns.hashing import hash_keys
from godwit.engine.settings import Lanes
from godwit.library.compute import ComputeOperator
from godwit.migration import LossPolicy, Policy
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.plan.compiled import CompiledFlow

__all__ = ["COLUMNS", "NUM_KEY_GROUPS", "Program", "Runtime", "compiled", "key_group_of"]

NUM_KEY_GROUPS = 8
COLUMNS = pa.schema({"k": pa.string(), "v": pa.int64()})

Row = tuple[str, int]

AGGREGATES: dict[str, Callable[[], Any]] = {
    "total": lambda: gw.sum("v"),
    "rows": gw.count,
    "mean": lambda: gw.mean("v"),
    "high": lambda: gw.max("v"),
    "low": lambda: gw.min("v"),
}


def summed(key: tuple[str], rows: Any, state: dict[str, int]) -> Iterable[tuple[str, int]]:
    for row in rows:
        state["sum"] = state.get("sum", 0) * 3 + row.v
    yield key[0], state["sum"]


@dataclass(frozen=True)
class Program:
    """Operators: name → results, in the order they are written in; none for a function per key."""

    operators: Mapping[str, Sequence[str]]
    formerly: Mapping[str, str] = field(default_factory=dict)
    starts_empty: bool = False  # of every operator, whatever was removed with the same change


class _Rows:
    """As much of a streaming DataFrame as a flow looks at before it is resolved."""

    isStreaming = True  # noqa: N815 - PySpark's own spelling


class _Sink:
    wants_rows = True

    def open(self, context: object) -> None: ...
    def deliver(self, output: object) -> None: ...
    def close(self) -> None: ...


def compiled(program: Program) -> CompiledFlow:
    flow = LogicalFlow("evolving", num_key_groups=NUM_KEY_GROUPS)
    keyed = flow.source("rows", _Rows()).key_by("k")  # type: ignore[arg-type]  # resolved below
    for name, results in program.operators.items():
        if results:
            aggregates = {result: AGGREGATES[result]() for result in results}
            stream = keyed.compute(
                name=gw.types.Identity(
                    name, formerly=program.formerly.get(name), starts_empty=program.starts_empty
                ),
                **aggregates,
            )
        else:
            stream = keyed.process(
                summed,
                state=dict,
                output="k string, sum long",
                name=gw.types.Identity(
                    name, formerly=program.formerly.get(name), starts_empty=program.starts_empty
                ),
            )
        flow.sink(name, stream, _Sink())
    return flow.compile(lambda *_: COLUMNS)


def key_group_of(key: str) -> int:
    hashes = hash_keys(pa.record_batch({"k": pa.array([key], pa.string())}))
    return int(key_groups_of(hashes, NUM_KEY_GROUPS)[0])


class Runtime:
    """One run of one program."""

    def __init__(self, program: Program, storage: CheckpointStorage, local: Path) -> None:
        self.flow, self.storage = compiled(program), storage
        settings = Lanes(inline_bytes=4096)
        self.run = ManualRun(
            self.flow,
            local,
            {"local-0": 2},
            storage=storage,
            settings=settings,
            policy=Policy(on_loss=LossPolicy.LOAD),
            retain_epochs=3,
        )
        self.log, self.changes = self.run.log, self.run.changes

    def epoch(self, rows: Sequence[Row], suspended: frozenset[int]) -> None:
        """Carry out one epoch, whose rows reach every operator."""
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=COLUMNS)
        given = {
            index: [batch.select(list(self.flow.inputs_of(operator.name)[0].columns))]
            for index, operator in enumerate(self.flow.operators)
        }
        run = self.run
        run.suspended = suspended
        run.snapshots = tuple(range(0, NUM_KEY_GROUPS, 2)) if run.log.latest_epoch % 2 else ()
        run.play(given)

    def results(self) -> dict[str, dict[str, Any]]:
        """Operator → key → its results, or the state of a function, from the checkpoint alone."""
        log = CommitLog.open_read_only(self.storage)
        found: dict[str, dict[str, Any]] = {}
        for member in self.run.lane_flow.operators:
            operator: Any = member.operator
            layout = member.states[operator.states[0].state]
            of: dict[str, Any] = {}
            for key_group in range(NUM_KEY_GROUPS):
                rows = read_chain(
                    self.storage, log.chains.chain(operator.states[0], key_group), layout
                )
                if isinstance(operator, ComputeOperator):
                    table = operator.finish(rows.keys, rows.values).to_pylist()
                    of.update({row.pop("k"): row for row in table})
                else:
                    keys = rows.keys.column(0).to_pylist()
                    blobs = [memoryview(blob) for blob in rows.values.column(0).to_pylist()]
                    states = operator._codec.decode(blobs)
                    of.update(zip(keys, states, strict=True))
            found[operator.name] = of
        return found

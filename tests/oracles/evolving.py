"""Programs that follow one another on one checkpoint: through real lanes, and as dicts.

The runtime here is the real one without Spark: a flow is taken up from its checkpoint, lanes bring
state forward, process and write, and a record commits.  Every program starts with an empty local
store, so all state is read from what earlier programs wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from tests.oracles.one_process import run_stages

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.chains import choose_snapshots
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import read_chain
from godwit.checkpoint.records import CommitRecord
from godwit.columns.hashing import hash_keys
from godwit.engine.instructions import (
    operator_instruction,
    places_of,
    state_instruction,
)
from godwit.engine.lane.lane_flow import lane_flow
from godwit.engine.lane.messages import EpochInstruction
from godwit.engine.recovery import recover_flow
from godwit.migration import ComponentView, Copies
from godwit.model.assignment import even_assignment
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.operators.compute import ComputeOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import LaneReport
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
            stream = keyed.compute(name=name, formerly=program.formerly.get(name), **aggregates)
        else:
            stream = keyed.process(
                summed,
                state=dict,
                output="k string, sum long",
                name=name,
                formerly=program.formerly.get(name),
            )
        flow.sink(name, stream, _Sink())
    return flow.compile(lambda *_: COLUMNS)


def key_group_of(key: str) -> int:
    hashes = hash_keys(pa.record_batch({"k": pa.array([key], pa.string())}))
    return int(key_groups_of(hashes, NUM_KEY_GROUPS)[0])


class Runtime:
    """One run of one program."""

    def __init__(self, program: Program, storage: CheckpointStorage, local: Path) -> None:
        self.flow, self.storage, self.local = compiled(program), storage, local
        self.run_id = f"{uuid4().hex[:12]}-{uuid4().hex[:12]}"
        self.log, self.recovery = recover_flow(self.flow, storage, self.run_id, retain_epochs=3)
        self.copies = Copies()

    def epoch(self, rows: Sequence[Row], suspended: frozenset[int]) -> None:
        """Carry out one epoch, whose rows reach every operator."""
        told = self._instruction(suspended)
        lanes = lane_flow(self.flow, self.recovery.layouts, ())
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=COLUMNS)
        given = {
            member.index: [batch.select(list(self.flow.inputs_of(member.operator.name)[0].columns))]
            for member in lanes.operators
        }
        reports = run_stages(lanes, told, given)
        for report in reports:
            assert report.error is None, report.error
        self.log.commit(self._record(told.epoch, reports))

    def _instruction(self, suspended: frozenset[int]) -> EpochInstruction:
        assignment = even_assignment(NUM_KEY_GROUPS, ["local-0"], [2])
        chains, operators = self.log.chains, []
        for operator in self.flow.operators:
            waiting = set(chains.waiting_key_groups(operator.name))
            plan = ComponentView(
                assignment=assignment,
                suspended=suspended,
                waiting=frozenset(waiting),
            )
            places = places_of({operator.name: plan}, {})
            operators.append(
                operator_instruction(
                    operator=operator.name,
                    level=self.flow.component_of(operator.name).level,
                    plan=plan,
                    places=places,
                    chains=chains,
                    states=[
                        state_instruction(
                            state=state,
                            recorded_as=self.log.recorded_as(state),
                            chains=chains,
                            floor=self.copies.owners_versions(assignment, state),
                            needed=~key_group_mask(suspended, NUM_KEY_GROUPS),
                            to_snapshot=choose_snapshots(
                                chains,
                                state,
                                range(0, NUM_KEY_GROUPS, 2),
                                budget_bytes=10**6,
                                min_changelog_bytes=1,
                            ),
                        )
                        for state in operator.states
                    ],
                    always_load=True,
                )
            )
        return EpochInstruction(
            epoch=self.log.latest_epoch + 1,
            flow=self.log.flow,
            run_id=self.run_id,
            places=places,
            operators=tuple(operators),
            storage=self.storage,
            local_dir=str(self.local),
            inline_bytes=4096,
            compression=None,
        )

    def _record(self, epoch: int, reports: Sequence[LaneReport]) -> CommitRecord:
        consumed: dict[str, list[int]] = {}
        for report in reports:
            for done in report.operators:
                if done.consumed:
                    consumed.setdefault(done.operator, []).extend(done.consumed)
                for state, versions in done.versions.items():
                    self.copies.record_versions(report.executor, state, versions)
        return CommitRecord(
            epoch=epoch,
            run_id="",
            segments=tuple(s for report in reports for s in report.segments),
            snapshots=tuple(s for report in reports for s in report.snapshots),
            consumed=consumed,
        )

    def results(self) -> dict[str, dict[str, Any]]:
        """Operator → key → its results, or the state of a function, from the checkpoint alone."""
        log = CommitLog.open_read_only(self.storage)
        found: dict[str, dict[str, Any]] = {}
        for operator in self.flow.operators:
            layout = self.recovery.layouts[operator.name][0][operator.states[0].state]
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
                    states = operator._codec.decode(blobs)  # type: ignore[attr-defined]  # its own
                    of.update(zip(keys, states, strict=True))
            found[operator.name] = of
        return found

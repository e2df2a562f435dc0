"""What a lane task does: one epoch of every operator of its level, for the key groups it owns.

Operators run upstream before downstream.  Rows for an operator of the same level stay in the lane:
the two share a component, and hence the places of their key groups.  Other rows go through an
exchange, to the lanes of a later level.

A lane task is pure: it reads committed version *e-1* and what the exchange brought, writes
attempt-unique files, and reports them; it changes nothing else that outlives the epoch.  (The
local store it brings forward to *e-1* is a cache.)  So a retry, a zombie or a half-finished epoch
leaves only files that no commit record names.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.engine.lane.executor import claim_local_store, current_executor, local_store_root
from godwit.engine.lane.files import LaneFiles
from godwit.engine.lane.handing import hand_over, insist_on_staying
from godwit.engine.lane.messages import LaneReport, PassedOn, SentLoad
from godwit.engine.lane.operator_lane import run_operator
from godwit.engine.lane.outputs import stage_output
from godwit.engine.lane.pairs import pairs_sent
from godwit.engine.lane.wire import Header, Shipment, Tally, ship, unpack_rows
from godwit.model.errors import GodwitError
from godwit.plan.grouping import keeps_keys
from godwit.store.local_store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from godwit.checkpoint.entries import EntryLayout, WaitingLayout
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob, Payload
    from godwit.model.key_groups import KeyGroupPairs
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow, UpstreamInput
    from godwit.plan.lineage import Layouts
    from godwit.plan.maps import ArrowMap
    from godwit.plan.staging import StagedSink

__all__ = ["LaneFlow", "LaneOperator", "lane_flow", "local_store", "run_lane", "shipments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOperator:
    """An operator as a lane sees it."""

    # index, operator: its index in the flow, itself
    index: int
    operator: KeyedOperator
    # What takes its output: (index of the operator fed, maps on the way, its input).
    feeds: tuple[tuple[int, UpstreamInput], ...]
    # outputs, left_out: sinks that take its output and want rows, and the one of the rows that it
    # leaves out
    outputs: tuple[StagedSink, ...]
    # states, waiting: how its states, by name, and rows that wait for it are read from the
    # checkpoint
    states: Mapping[str, EntryLayout]
    waiting: WaitingLayout
    left_out: StagedSink | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFlow:
    """The part of a compiled flow that executors need; picklable, the same for every epoch.

    Which operators share a component is not part of it: each epoch says on which level they run.
    """

    num_key_groups: int
    operators: tuple[LaneOperator, ...]


def lane_flow(flow: CompiledFlow, layouts: Layouts, sinks: Iterable[StagedSink]) -> LaneFlow:
    """Take from a compiled flow what lanes need (sinks stay on the driver).

    Parameters
    ----------
    flow
        The flow.
    layouts
        Operator → how its states and the rows that wait for it are read.
    sinks
        What the sinks that want rows give to lanes, once they are open.
    """
    staged = {sink.name: sink for sink in sinks}
    names = [operator.name for operator in flow.operators]
    return LaneFlow(
        num_key_groups=flow.num_key_groups,
        operators=tuple(
            LaneOperator(
                index=index,
                operator=operator,
                feeds=tuple((names.index(i.operator), i) for i in flow.fed_by(operator.name)),
                outputs=tuple(
                    staged[o.name]
                    for o in flow.outputs_of(operator.name)
                    if o.name in staged and not o.left_out
                ),
                left_out=next(
                    (staged.get(o.name) for o in flow.outputs_of(operator.name) if o.left_out),
                    None,
                ),
                states=layouts[operator.name][0],
                waiting=layouts[operator.name][1],
            )
            for index, operator in enumerate(flow.operators)
        ),
    )


def shipments(flow: LaneFlow, instruction: EpochInstruction) -> tuple[Shipment, ...]:
    """How rows reach each operator in this epoch, in the flow's order."""
    alone = [
        Shipment(
            index=o.index,
            level=own.level,
            operator=o.operator,
            places=own.places,
            time=own.time,
            keeps_left_out=o.left_out is not None,
            hot_share=instruction.hot_keys / len(instruction.places),
        )
        for o, own in zip(flow.operators, instruction.operators, strict=True)
    ]
    second = {
        role.first: alone[o.index]
        for o in flow.operators
        if (role := o.operator.two_phase) is not None and role.slot == 1
    }
    return tuple(replace(s, second=second.get(s.operator.name)) for s in alone)


def run_lane(
    flow: LaneFlow, instruction: EpochInstruction, level: int, place: int, payloads: Iterable[bytes]
) -> Generator[Blob, None, LaneReport]:
    """Carry out one lane task.

    Parameters
    ----------
    flow, instruction
        The flow and the epoch.
    level
        Level of the components whose turn it is.
    place
        Index of this lane task's place.
    payloads
        What the exchange brought for operators of this level, in any order.

    Yields
    ------
    Blob
        Rows for the lanes of later levels.

    Returns
    -------
    LaneReport
        What the task did; only then is everything written.
    """
    by_operator: dict[int, list[tuple[Header, Payload]]] = {}
    for payload in payloads:
        header = Header.of(payload)
        by_operator.setdefault(header.operator, []).append((header, payload))
    lane = _Lane(flow, instruction, level, place)
    try:
        yield from lane.run(by_operator)
    except GodwitError as error:
        lane.report.error = error
    return lane.finish()


class _Lane:
    """One lane task under way."""

    def __init__(
        self, flow: LaneFlow, instruction: EpochInstruction, level: int, place: int
    ) -> None:
        self.flow, self.instruction, self.level, self.place = flow, instruction, level, place
        expected = instruction.places[place].executor
        self.report = LaneReport(level=level, place=place, executor=current_executor(expected))
        self.started = time.perf_counter()
        self.files = LaneFiles(
            storage=instruction.storage,
            epoch=instruction.epoch,
            flow=instruction.flow,
            name=f"{level}-{place}",
            inline_bytes=instruction.inline_bytes,
            compression=instruction.compression,
        )
        self.shipments = shipments(flow, instruction)
        self.handed: dict[int, list[tuple[Header, Payload]]] = {}

    def run(self, by_operator: Mapping[int, Sequence[tuple[Header, Payload]]]) -> Iterator[Blob]:
        epoch = self.instruction
        store = local_store(local_store_root(epoch.local_dir, epoch.run_id, self.report.executor))
        for member, own in zip(self.flow.operators, epoch.operators, strict=True):
            if own.level != self.level:
                continue
            arrived = [*by_operator.get(member.index, ()), *self.handed.pop(member.index, ())]
            arrived.sort(key=lambda item: item[0].arrival)
            self._take_left_out(member, arrived)
            output = run_operator(
                member,
                self.instruction,
                arrived,
                store=store,
                files=self.files,
                report=self.report,
            )
            if output is not None:
                yield from self._pass_on(member, output)

    def _take_left_out(
        self, member: LaneOperator, arrived: Sequence[tuple[Header, Payload]]
    ) -> None:
        """Stage the rows that an operator left out for the sink that gets them."""
        if member.left_out is None:
            return
        schema = member.operator.left_out
        assert schema is not None, "no other operator leaves rows out"
        batches = [
            unpack_rows(payload, schema) for header, payload in arrived if header.is_left_out
        ]
        if batches:
            stage_output(
                member.left_out,
                pa.Table.from_batches(batches),
                self.files,
                operator=member.operator.name,
                epoch=self.instruction.epoch,
                place=self.place,
            )

    def _pass_on(self, member: LaneOperator, output: pa.RecordBatch) -> Iterator[Blob]:
        """Send an operator's output to the operators it feeds and stage it for its sinks."""
        started = time.perf_counter()
        made: dict[tuple[ArrowMap, ...], pa.Table] = {(): pa.Table.from_batches([output])}

        def mapped(maps: tuple[ArrowMap, ...]) -> pa.Table:
            # A map on the way to several readers is one object and runs once.
            if maps not in made:
                made[maps] = maps[-1].apply(mapped(maps[:-1]))
            return made[maps]

        self.report.rows_out += output.num_rows
        for sink in member.outputs:
            stage_output(
                sink,
                mapped(sink.maps),
                self.files,
                operator=member.operator.name,
                epoch=self.instruction.epoch,
                place=self.place,
            )
        for index, given in member.feeds:
            sent = mapped(given.maps)
            if sent.num_rows == 0:
                continue
            table = sent.select(list(given.columns)).combine_chunks()
            columns = table.cast(given.schema).to_batches()[0]
            origin = (self.level, member.index, self.place)
            shipment = self.shipments[index]
            self.report.passed_on.append(
                PassedOn(
                    sender=member.operator.name,
                    operator=shipment.operator.name,
                    rows=columns.num_rows,
                    size_bytes=columns.nbytes,
                )
            )
            if shipment.level == self.level:
                if not keeps_keys(member.operator, given):
                    insist_on_staying(member.operator, given, columns, shipment, self.place)
                self.handed.setdefault(index, []).extend(
                    hand_over(shipment, columns, origin, given.number)
                )
                continue
            tally = Tally(self.flow.num_key_groups)
            cpu_ms = yield from _metered(ship(shipment, columns, origin, tally, given=given.number))
            receiver = self.flow.operators[index].operator
            own = self.instruction.operators[member.index].places == self.place
            pairs = pairs_sent(member.operator, given.key_columns, sent, own)
            self._sent(member.operator.name, receiver.name, tally, pairs, cpu_ms)
        self._took("pass_on", started)

    def _sent(
        self, sender: str, operator: str, tally: Tally, pairs: KeyGroupPairs, cpu_ms: float
    ) -> None:
        """Report what went to another operator, and how much of it to other executors."""
        key_groups = np.flatnonzero(tally.rows)
        places, here = self.instruction.places, self.instruction.places[self.place].executor
        self.report.sent.append(
            SentLoad(
                sender=sender,
                operator=operator,
                pairs=pairs,
                cpu_ms=cpu_ms,
                key_groups=key_groups.tolist(),
                rows=tally.rows[key_groups].tolist(),
                size_bytes=tally.size_bytes[key_groups].tolist(),
                crossed_bytes=sum(
                    size
                    for place, size in tally.place_bytes.items()
                    if places[place].executor != here
                ),
            )
        )

    def finish(self) -> LaneReport:
        """Write what is to be written and return the report."""
        started = time.perf_counter()
        if self.report.error is None:
            try:
                self.files.close(self.report)
            except GodwitError as error:
                self.report.error = error
        self._took("write", started)
        self._took("lane", self.started)
        return self.report

    def _took(self, phase: str, since: float) -> None:
        spent = (time.perf_counter() - since) * 1e3
        self.report.took_ms[phase] = self.report.took_ms.get(phase, 0.0) + spent


def _metered(blobs: Iterator[Blob]) -> Generator[Blob, None, float]:
    """Yield payloads; return the CPU time that making them took, in milliseconds."""
    spent = 0.0
    while True:
        cpu = time.process_time()
        blob = next(blobs, None)
        spent += time.process_time() - cpu
        if blob is None:
            return spent * 1e3
        yield blob


_stores: dict[Path, LocalStore] = {}


def local_store(root: Path) -> LocalStore:
    """Return the local store at `root`, one object for as long as this Python process lives."""
    store = _stores.get(root)
    if store is None:
        claim_local_store(root)
        for known in list(_stores):
            if known.parent != root.parent:
                del _stores[known]
        store = _stores[root] = LocalStore(root)
    return store

"""A lane task: one epoch of every operator of its level, for the key groups it owns.

Operators run upstream before downstream.  Rows for an operator of the same level stay in the lane:
the two share a component, and hence the places of their key groups.  Other rows go through an
exchange, to the lanes of a later level.

A lane task is pure: it reads committed version *e-1* and the payloads of the exchange, writes
attempt-unique files, and reports them; it changes nothing else that outlives the epoch.  (The
local store it brings forward to *e-1* is a cache.)  So a retry, a zombie or an unfinished epoch
leaves only unreferenced files.

*Apply on next*: changes of an epoch go into the changelog; a later epoch applies them to the local
store once they are committed.  So an attempt never sees unfinished work of another one.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import read_batch, read_segment
from godwit.checkpoint.entries import BatchCache, read_chain
from godwit.checkpoint.hydration import catch_up_copies, recover_chains
from godwit.checkpoint.object_store import RequestCounts, counting_requests
from godwit.checkpoint.partial_copies import Touched
from godwit.columns.failures import naming
from godwit.columns.hashing import RowsDigest
from godwit.columns.types import without_hidden_key
from godwit.engine.lane.executor import current_executor, local_state, local_store_root
from godwit.engine.lane.files import LaneFiles, stage_output
from godwit.engine.lane.lane_flow import shipments
from godwit.engine.lane.messages import FailedRows, LaneReport, OperatorReport, PassedOn
from godwit.engine.lane.packing import hot_schema, merge_hot_keys
from godwit.engine.lane.rows import buffer_suspended_rows, prepend_waiting_rows, unpack_payloads
from godwit.engine.lane.state_memory import StateMemory, is_partial_here, is_whole_here
from godwit.engine.lane.wire import (
    AGES,
    ARRIVALS,
    BROADCAST,
    DIGEST,
    EMITTED,
    FAILED,
    HOT,
    LEFT_OUT,
    PARTIAL,
    ROWS,
    UNREADABLE,
    Header,
    check_keys_stay_in_lane,
    count_key_group_pairs,
    pass_in_lane,
    read_ages,
    read_digests,
    read_unreadable,
    ship,
    ship_digest,
    unpack_arrivals,
    unpack_rows,
)
from godwit.model.errors import EpochFailedError, GodwitError
from godwit.model.key_groups import NO_LOAD, KeyGroupLoad, PerKeyGroup, key_group_mask
from godwit.model.log_lines import log_context
from godwit.operators.broadcast import BroadcastTable
from godwit.operators.hot_keys import work_by_time
from godwit.operators.operator import OperatorInput
from godwit.plan.grouping import keeps_keys
from godwit.store.changes import StateRows
from godwit.time.event_time import NO_ARRIVALS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.partial_copies import PartialCopies
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.lane_flow import LaneFlow, LaneOperator
    from godwit.engine.lane.messages import EpochInstruction, OperatorInstruction, StateInstruction
    from godwit.engine.lane.rows import LaneRows
    from godwit.engine.lane.wire import Blob, Payload
    from godwit.model.key_groups import OperatorWork
    from godwit.operators.broadcast import Broadcast
    from godwit.operators.operator import Choose, KeyedOperator, OperatorOutput
    from godwit.plan.maps import ArrowMap
    from godwit.plan.staging import StagedSink
    from godwit.store.changes import EntryRange
    from godwit.store.local_store import LocalState


_BEHIND: Final = 0.5
"""Time in which a lane completes partial copies, by the time that it worked in the epoch."""


def run_lane(
    flow: LaneFlow, instruction: EpochInstruction, level: int, place: int, payloads: Iterable[bytes]
) -> Generator[Blob, None, LaneReport]:
    """Run one lane task of an epoch: the operators of a level, in the lane number `place`.

    `payloads`: rows from the exchange for operators of this level, in any order. Yields rows for
    the lanes of later levels. Returns the report; all files are complete only then.
    """
    by_operator: dict[int, list[tuple[Header, Payload]]] = {}
    digests: list[tuple[Header, bytes]] = []
    unreadable: list[tuple[Header, bytes]] = []
    ages: list[tuple[Header, bytes]] = []
    for payload in payloads:
        header = Header.of(payload)
        if header.kind == DIGEST:
            digests.append((header, payload))
        elif header.kind in (UNREADABLE, FAILED):
            unreadable.append((header, payload))
        elif header.kind == AGES:
            ages.append((header, payload))
        else:
            by_operator.setdefault(header.operator, []).append((header, payload))
    lane_context = log_context(query=flow.query, epoch=instruction.epoch, phase="lane", lane=place)
    # The thread may go on after the lane: a resident lane's, or a user's who tests.
    with lane_context, counting_requests() as requests:
        lane = _Lane(flow, instruction, level, place, requests)
        lane.report.ages = read_ages(ages)
        try:
            lane.stage_unreadable(sorted(unreadable, key=lambda item: item[0].sort_key))
            yield from lane.run(by_operator)
            yield from lane.pass_digest_on(read_digests(digests))
        except GodwitError as error:
            lane.report.error = error
        return lane.finish()


class _Lane:
    """A lane task while it runs."""

    def __init__(
        self,
        flow: LaneFlow,
        instruction: EpochInstruction,
        level: int,
        place: int,
        requests: RequestCounts,
    ) -> None:
        self.flow, self.instruction, self.level, self.place = flow, instruction, level, place
        expected, _ = instruction.places[place]
        self.report = LaneReport(level=level, place=place, executor=current_executor(expected))
        self.started_s = time.perf_counter()
        self.requests = requests
        self.files = LaneFiles(
            storage=instruction.storage,
            epoch=instruction.epoch,
            flow=instruction.flow,
            name=f"{level}-{place}",
            inline_bytes=instruction.inline_bytes,
            compression=instruction.compression,
        )
        self.shipments = shipments(flow, instruction)
        # An operator may emit other rows when it runs again, so sent rows are digested.
        self.digests_output = any(
            own.level == level and not member.operator.repeatable
            for member, own in zip(flow.operators, instruction.operators, strict=True)
        )
        # sender, receiver and its input → digest of the rows sent
        self.emitted: dict[tuple[int, int, int], int] = {}
        self.memory: StateMemory | None = None  # if there is a bound
        self.partial: dict[StateId, PartialCopies] = {}  # of the states of the present operator
        # partial copies of each state, the lane's key groups, and the report of the operator
        self.copies: list[tuple[PartialCopies, npt.NDArray[np.bool_], OperatorReport]] = []
        # index of an operator of this level → its rows from other operators of this lane
        self.handed_over: dict[int, list[tuple[Header, Payload]]] = {}

    def stage_unreadable(self, payloads: Iterable[tuple[Header, bytes]]) -> None:
        """Count rows that sources could not read, and stage them for their sinks."""
        counts = self.report.unreadable
        staged: dict[str, list[pa.RecordBatch]] = {}
        for header, payload in payloads:
            source, rows = read_unreadable(header, payload)
            if header.kind == FAILED:
                assert rows is not None
                self._stage_failed(source, rows)
                continue
            counts[source] = counts.get(source, 0) + header.rows
            if rows is not None and source in self.flow.unreadable:
                staged.setdefault(source, []).append(rows)
        for source, batches in staged.items():
            stage_output(
                self.flow.unreadable[source],
                pa.Table.from_batches(batches),
                self.files,
                where=f"unreadable rows of source {source!r}",
                epoch=self.instruction.epoch,
                place=self.place,
            )

    def run(self, by_operator: Mapping[int, Sequence[tuple[Header, Payload]]]) -> Iterator[Blob]:
        """Run the operators of the level, and yield rows for lanes of later levels.

        `by_operator`: operator number → its payloads.
        """
        epoch = self.instruction
        root = local_store_root(epoch.local_dir, epoch.run_id, self.report.executor)
        self.memory = StateMemory.of_lane(self.flow, epoch, self.place, root)
        for member, own in zip(self.flow.operators, epoch.operators, strict=True):
            if own.level != self.level:
                continue
            arrived = [*by_operator.get(member.index, ()), *self.handed_over.pop(member.index, ())]
            arrived.sort(key=lambda item: item[0].sort_key)
            self._stage_left_out(member, arrived)
            output = self._process(member, own, arrived, root)
            if output is not None:
                yield from self._emit(member, output)
        self._complete_copies()

    def _complete_copies(self) -> None:
        """Complete partial copies, for a share of the time that the lane has worked."""
        now_s = time.perf_counter()
        used_bytes = 0 if self.memory is None else self.memory.used_bytes()
        for copies, owned, report in self.copies:
            report.fetched_keys += copies.num_fetched
            until_s = now_s + (now_s - self.started_s) * _BEHIND
            report.unread_bytes += copies.complete_some(owned, until_s, used_bytes)
        if self.memory is not None:
            self.report.table_bytes = self.memory.used_bytes()
            self.report.evicted = self.memory.evicted
        self.report.lap("apply", now_s)

    def _stage_left_out(
        self, member: LaneOperator, arrived: Sequence[tuple[Header, Payload]]
    ) -> None:
        """Stage the rows that an operator left out (late or invalid) for their sink."""
        if member.left_out is None:
            return
        schema = member.operator.left_out_schema
        assert schema is not None, "no other operator leaves rows out"
        batches = [unpack_rows(payload, schema) for h, payload in arrived if h.kind == LEFT_OUT]
        if batches:
            rows = without_hidden_key(pa.Table.from_batches(batches))
            self._stage_output(member, member.left_out, rows)

    def _stage_failed(self, sink: str, rows: pa.RecordBatch | None, rows_in: int = 0) -> None:
        """Count failed calls of an operator's or map's function, and stage their rows.

        `rows`: with the columns `failed_calls.FAILED`. `rows_in`: of a map, the rows that it got.
        """
        failed = FailedRows(rows_in=rows_in) if rows is None else FailedRows.of(rows, rows_in)
        self.report.failed.setdefault(sink, FailedRows()).add(failed)
        if rows is not None and sink in self.flow.errors:
            stage_output(
                self.flow.errors[sink],
                pa.Table.from_batches([rows]),
                self.files,
                where="failed calls",
                epoch=self.instruction.epoch,
                place=self.place,
            )

    def _stage_output(self, member: LaneOperator, sink: StagedSink, rows: pa.Table) -> None:
        """Stage rows of an operator for one of its sinks."""
        stage_output(
            sink,
            rows,
            self.files,
            where=f"operator {member.operator.name!r}",
            epoch=self.instruction.epoch,
            place=self.place,
        )

    # -- one operator -----------------------------------------------------------------------------

    def _process(
        self,
        member: LaneOperator,
        instruction: OperatorInstruction,
        arrived: Sequence[tuple[Header, Payload]],
        root: Path,  # of the local store
    ) -> pa.RecordBatch | None:
        """Bring an operator's state up to date, process its rows, and write the changes.

        `arrived`: payloads in order of origin. Returns the operator's output, or ``None``.
        """
        operator, lap = member.operator, self.report.lap
        report = OperatorReport(operator=operator.name)
        self.report.operators.append(report)
        at_s = time.perf_counter()
        rows = self._decode(report, operator, instruction, arrived)
        touched = key_group_mask(rows.key_groups, len(instruction.places))
        at_s = lap("decode", at_s)
        owned = (instruction.places == self.place) & ~instruction.suspended
        cpu = time.process_time()
        if self.memory is not None:
            self.memory.release()
        copies, cold = self._catch_up_copies(
            member, instruction, root, owned, touched=touched, hashes=rows.hashes
        )
        applying_ms = (time.process_time() - cpu) * 1e3
        at_s = lap("apply", at_s)
        self._write_snapshots(operator, instruction, copies, owned & ~cold)
        at_s = lap("snapshot", at_s)
        waits, resumes = instruction.suspended | cold, instruction.resumed & owned
        # A key group that could not resume still waits, even without rows in this epoch.
        report.waited = np.flatnonzero((touched | resumes) & waits).tolist()
        resuming = np.flatnonzero(resumes & ~waits)
        report.consumed = resuming.tolist()
        rows = buffer_suspended_rows(rows, waits, self.files)
        if resuming.size:
            rows = prepend_waiting_rows(
                rows,
                resuming,
                instruction.waiting,
                member.waiting,
                self.instruction.storage,
                since=instruction.waiting_from,
            )
        report.versions = {state: _held_versions(local, owned) for state, local in copies.items()}
        at_s = lap("wait", at_s)

        cpu = time.process_time()
        with naming(f"Operator {operator.name!r}", operator=operator.name):
            processed = operator.process(
                OperatorInput(
                    rows=rows.entries,
                    is_partial=rows.partial,
                    states={
                        state.state: LaneView(local, np.flatnonzero(owned & ~waits))
                        for state, local in copies.items()
                    },
                    time=instruction.time,
                    epoch=self.instruction.epoch,
                    num_key_groups=len(instruction.places),
                    tables=self._broadcast_tables(member, instruction, copies),
                    broadcast=broadcast_rows(operator, arrived),
                    writes_tables=bool(operator.broadcasts)
                    and bool(
                        instruction.places[operator.table_key_group(len(instruction.places))]
                        == self.place
                    ),
                    left_parts=self._read_parts_to_merge(member, instruction),
                    here=owned & ~waits,
                )
            )
        at_s = lap("process", at_s)
        processed_cpu = time.process_time()
        if processed.failed is not None:
            self._stage_failed(operator.failures_to, processed.failed)
        for state in copies:
            if state.state in processed.changed:
                self.files.write_changes(state, *processed.changed[state.state])
        now = time.process_time()
        report.load = _load_by_key_group(processed, (now - cpu) * 1e3 - processed.closing_ms)
        report.next_due = processed.next_due
        report.duplicate_partials = processed.duplicate_partials
        report.waiting_deletes = processed.waiting_deletes
        report.key_work = _work_by_key(operator, rows, processed, report.load)
        if processed.windows is not None:  # includes the lane's time to apply and write entries
            lane_ms = applying_ms + (now - processed_cpu) * 1e3
            report.windows = replace(
                processed.windows, write_ms=processed.windows.write_ms + lane_ms
            )
        lap("changes", at_s)
        return processed.output

    def _decode(
        self,
        report: OperatorReport,
        operator: KeyedOperator,
        instruction: OperatorInstruction,
        arrived: Sequence[tuple[Header, Payload]],
    ) -> LaneRows:
        """Decode an operator's payloads; return its rows, and add other contents to the report."""
        for header, _ in arrived:
            report.rows_in[header.number] = report.rows_in.get(header.number, 0) + header.rows
        report.arrivals = sum(
            (unpack_arrivals(p) for h, p in arrived if h.kind == ARRIVALS), NO_ARRIVALS
        )
        report.hot_keys = merge_hot_keys(
            unpack_rows(p, hot_schema(operator.keys)) for h, p in arrived if h.kind == HOT
        )
        return unpack_payloads(
            operator,
            len(instruction.places),
            [(header, p) for header, p in arrived if header.kind in (ROWS, PARTIAL)],
            partial=operator.mergeable
            and bool(instruction.suspended.any() or instruction.resumed.any()),
        )

    def _catch_up_copies(
        self,
        member: LaneOperator,
        instruction: OperatorInstruction,
        root: Path,
        owned: npt.NDArray[np.bool_],
        *,
        touched: npt.NDArray[np.bool_],
        hashes: npt.NDArray[np.int64],
    ) -> tuple[dict[StateId, LocalState], npt.NDArray[np.bool_]]:
        """Bring the states of touched key groups up to date.

        `root`: of the local store. `owned`: mask of the lane's key groups that are not suspended.
        `touched`, `hashes`: mask of key groups with rows, and the hashes of the rows' keys. Returns
        state → copies of it, and a mask of key groups that are not up to date. Invariant: a key
        group is processed only if all of the operator's states of it are up to date.
        """
        epoch, operator = self.instruction, member.operator
        num_key_groups, (_, lane) = len(instruction.places), epoch.places[self.place]
        gone = operator.expired_entries(instruction.time.closed)
        reads_all = operator.reads_all_keys(instruction.time)
        needed = touched & ~instruction.suspended
        # Key groups of which only the entries of the rows' keys are read.
        few = needed & ~(instruction.resumed | instruction.whole)
        needed |= instruction.resumed & owned
        if reads_all:
            needed = owned
        touches = epoch.restore == "touched" and operator.reads_touched and not reads_all
        memory, min_bytes = self.memory, epoch.fetch_from_bytes
        if memory is not None:
            min_bytes = min(min_bytes, memory.share_bytes // 4)
        self.partial.clear()
        copies: dict[StateId, LocalState] = {}
        cold = np.zeros(num_key_groups, np.bool_)
        for state in instruction.states:
            layout = member.states[state.state.state]
            local = local_state(root, str(state.state), layout.schema, num_key_groups)
            copies[state.state] = local
            to_snapshot = key_group_mask(state.to_snapshot, num_key_groups) & owned
            catch_up = partial(
                catch_up_copies,
                local,
                layout=layout,
                storage=epoch.storage,
                segments=state.segments,
                snapshots=state.snapshots,
                floor=state.floor,
                load=instruction.load,
                recover=partial(recover_chains, epoch.storage, state.recorded_as, epoch.epoch - 1),
                homes=np.full(num_key_groups, lane, np.int32),
                gone=gone,
                bound_bytes=0 if memory is None else memory.share_bytes,
            )
            if memory is not None:
                memory.make_room(str(state.state), len(hashes) if touches else 0)
            fits = False
            while not fits:
                due = to_snapshot
                if memory is not None:  # other snapshots are read from the checkpoint
                    due = to_snapshot & is_whole_here(local, to_snapshot)
                elif touches:  # others follow once their copies are whole
                    due = to_snapshot & ~is_partial_here(local, to_snapshot)
                few_now = Touched(hashes=hashes, key_groups=few & ~due, min_bytes=min_bytes)
                missing, partial_copies = catch_up(
                    needed | due, owned, touched=few_now if touches else None
                )
                fits = memory is None or memory.admit(str(state.state), needed | due)
            cold |= missing
            self.partial[state.state] = partial_copies
            self.copies.append((partial_copies, owned, self.report.operators[-1]))
        if cold.any() and operator.needs_state(instruction.time):
            raise EpochFailedError(
                f"Operator {operator.name!r} has windows or timers that are due, but the state of "
                f"{np.count_nonzero(cold)} key groups is missing.",
                remedy="The next attempt loads them.",
                operator=operator.name,
            )
        return copies, cold

    def _write_snapshots(
        self,
        operator: KeyedOperator,
        instruction: OperatorInstruction,
        copies: Mapping[StateId, LocalState],
        warm: npt.NDArray[np.bool_],
    ) -> None:
        """Write the requested snapshots of key groups, without entries of closed panes.

        `copies`: of the operator's states. `warm`: mask of the lane's key groups that are up to
        date.
        """
        expired = operator.expired_entries(instruction.time.closed)
        for state in instruction.states:
            local = copies[state.state]
            is_due = key_group_mask(state.to_snapshot, len(instruction.places)) & warm
            if self.memory is not None and is_due.any():
                is_whole = is_whole_here(local, is_due)
                partial_groups, partial_copies = (
                    np.flatnonzero(is_due & ~is_whole),
                    self.partial[state.state],
                )
                for contents in partial_copies.contents(
                    partial_groups, state.versions()[partial_groups]
                ):
                    self.files.write_snapshots(state.state, contents)
                is_due = is_whole
            key_groups = np.flatnonzero(is_due & (local.bases < 0))
            if key_groups.size:
                live = local.scan(key_groups, None if expired is None else expired.rest)
                self.files.write_snapshots(state.state, live)

    def _broadcast_tables(
        self,
        member: LaneOperator,
        instruction: OperatorInstruction,
        copies: Mapping[StateId, LocalState],  # of the operator's states
    ) -> dict[str, BroadcastTable]:
        """Return an operator's broadcast tables as of the last committed epoch."""
        by_state = {table.state.state: table for table in instruction.tables}
        return {
            broadcast.name: committed_table(
                broadcast,
                by_state[broadcast.state],
                member.states[broadcast.state],
                self.instruction.storage,
                copies[by_state[broadcast.state].state],
            )
            for broadcast in member.operator.broadcasts
        }

    def _read_parts_to_merge(
        self, member: LaneOperator, instruction: OperatorInstruction
    ) -> dict[str, StateRows]:
        """Return state → entries of the parts of hot keys that are merged in this epoch."""
        if not instruction.left_parts:
            return {}
        storage = self.instruction.storage
        cache, left = BatchCache(storage), dict[str, StateRows]()
        for chain in instruction.left_parts:
            state = chain.state.state
            rows = read_chain(storage, chain, member.states[state], cache=cache)
            left[state] = left[state].followed_by(rows) if state in left else rows
        return left

    # -- output ------------------------------------------------------------------------------------

    def _emit(self, member: LaneOperator, output: pa.RecordBatch) -> Iterator[Blob]:
        """Send an operator's output to downstream operators, and stage it for sinks.

        Yield payloads.
        """
        started_s = time.perf_counter()
        rows = pa.Table.from_batches([output])
        role = member.operator.two_phase
        if role is None or role.slot is None:  # slots emit states, for an operator of Godwit's
            rows = without_hidden_key(rows)
        after: dict[tuple[ArrowMap, ...], pa.Table] = {(): rows}

        def mapped(maps: tuple[ArrowMap, ...]) -> pa.Table:
            """Apply maps to the output; the result of each sequence of maps is computed once."""
            # A map before several readers is one object and runs once.
            if maps not in after:
                before, last = mapped(maps[:-1]), maps[-1]
                diverted: list[pa.RecordBatch] = []
                after[maps] = last.apply_or_divert(before, lambda _, rows: diverted.append(rows))
                if last.failures_to:
                    failed = diverted[0] if diverted else None
                    self._stage_failed(last.failures_to, failed, before.num_rows)
            return after[maps]

        self.report.rows_out += output.num_rows
        for sink in member.outputs:
            self._stage_output(member, sink, mapped(sink.maps))
        for index, upstream in member.feeds:
            sent = mapped(upstream.maps)
            if sent.num_rows == 0:
                continue
            table = sent.select(list(upstream.columns)).combine_chunks()
            columns = table.cast(upstream.schema).to_batches()[0]
            origin = (self.level, member.index, self.place)
            shipment = self.shipments[index]
            passed_on = PassedOn(
                sender=member.operator.name,
                operator=shipment.operator.name,
                rows=columns.num_rows,
                size_bytes=columns.nbytes,
            )
            self.report.passed_on.append(passed_on)
            if shipment.level == self.level:
                if not keeps_keys(member.operator, upstream):
                    check_keys_stay_in_lane(
                        member.operator, upstream, columns, shipment, self.place
                    )
                self.handed_over.setdefault(index, []).extend(
                    pass_in_lane(shipment, columns, origin, upstream.number)
                )
                continue
            if self.digests_output:
                digest = RowsDigest()
                digest.update(columns)
                self.emitted[member.index, index, upstream.number] = digest.value
            tally = np.zeros((2, self.flow.num_key_groups))
            blobs = ship(shipment, columns, origin, tally, number=upstream.number)
            yield from self._measure_sending(blobs, passed_on)
            own = self.instruction.operators[member.index].places == self.place
            # With divided hot keys, a row's key group does not follow from its key alone.
            if len(shipment.operator.hash_columns) == len(upstream.keys):
                names = shipment.operator.placed_in(upstream.keys)
                keys = pa.schema([upstream.schema.field(name) for name in names])
                passed_on.pairs = count_key_group_pairs(member.operator, keys, sent, own)
            key_groups = np.flatnonzero(tally[0])
            passed_on.sent = np.vstack((key_groups, tally[:, key_groups]))
        self.report.lap("pass_on", started_s)

    def _measure_sending(self, blobs: Iterator[Blob], passed_on: PassedOn) -> Iterator[Blob]:
        """Yield payloads for the exchange; add the CPU time and bytes of sending to `passed_on`."""
        passed_on.exchanged = True
        places = self.instruction.places
        own_executor, _ = places[self.place]
        while True:
            cpu = time.process_time()
            blob = next(blobs, None)
            passed_on.cpu_ms += (time.process_time() - cpu) * 1e3
            if blob is None:
                return
            place, payload = blob
            if payload[0] in (ROWS, PARTIAL) and places[place][0] != own_executor:
                passed_on.crossed_bytes += len(payload)
            yield blob

    def pass_digest_on(self, digests: Mapping[tuple[int, int], int]) -> Iterator[Blob]:
        """Report digests of the rows that senders have read, and send them to the next level.

        `digests`: result of `read_digests`.
        """
        self.report.digests.update(digests)
        if self.level == self.instruction.levels:
            return
        digests_by_number: tuple[tuple[int, Mapping[Any, int]], ...] = (
            (self.place, digests),
            (self.place + EMITTED, self.emitted),
        )
        for number, digests_ in digests_by_number:
            if digests_:
                joined = hash(tuple(sorted(digests_.items()))) % 2**64  # of integers: no seed
                yield from ship_digest(
                    joined,
                    (self.level, number),
                    level=self.level + 1,
                    places=len(self.instruction.places),
                )

    def finish(self) -> LaneReport:
        """Write the changelog and the staged output to files, and return the report."""
        started_s = time.perf_counter()
        if self.report.error is None:
            try:
                self.files.close(self.report)
            except GodwitError as error:
                self.report.error = error
        self.report.requests = self.requests.taken()
        self.report.lap("write", started_s)
        self.report.lap("lane", self.started_s)
        return self.report


@dataclass(frozen=True, slots=True)
class LaneView:
    """A `godwit.operators.operator.StateView` of some key groups of the local store."""

    local: LocalState
    key_groups: npt.NDArray[np.int64]

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up entries by key columns; return a mask of keys found, and their state columns."""
        return self.local.look_up(keys, key_groups)

    def scan(self, entry_range: EntryRange | None = None) -> StateRows:
        """Return a copy of all entries of the lane's key groups, or of those in a range."""
        return self.local.scan(self.key_groups, entry_range).rows

    def select(self, columns: Sequence[int], part: EntryRange, choose: Choose) -> StateRows:
        """Return a copy of the entries in a range that `choose` picks by the given columns."""
        return self.local.select(self.key_groups, columns, part, choose)

    def min_after(self, column: int, after: int) -> int:
        """Return the smallest value above `after` in a column of integers, given by position."""
        return self.local.min_after(self.key_groups, column, after=after)


def broadcast_rows(
    operator: KeyedOperator, arrived: Sequence[tuple[Header, Payload]]
) -> dict[int, pa.RecordBatch]:
    """Return input number → new rows of its broadcast table; `arrived` is in order of origin."""
    batches: dict[int, list[pa.RecordBatch]] = {}
    for header, payload in arrived:
        if header.kind == BROADCAST:
            table = next(b for b in operator.broadcasts if header.number in b.inputs)
            rows = unpack_rows(payload, table.input_schema)
            batches.setdefault(header.number, []).append(rows)
    return {number: pa.concat_batches(parts) for number, parts in batches.items()}


def _held_versions(local: LocalState, owned: npt.NDArray[np.bool_]) -> PerKeyGroup:
    """Return the versions of a lane's key groups with local state.

    `owned`: mask of the lane's key groups.
    """
    key_groups = np.flatnonzero(owned & (local.versions >= 0))
    return PerKeyGroup(key_groups, local.versions[key_groups])


def _work_by_key(
    operator: KeyedOperator, rows: LaneRows, processed: OperatorOutput, load: KeyGroupLoad
) -> OperatorWork | None:
    """Return the work per key: as measured by the operator, or from the time of its function.

    ``None`` if it was not measured.
    """
    groups = processed.groups
    if operator.function is None or groups is None or len(groups.of_row) != len(rows.hashes):
        return processed.key_work
    own = rows.batch.select(operator.hash_columns.names)
    if not operator.partition_by:
        return work_by_time(own, groups, load)
    hash_of = partial(operator.hash_of, num_key_groups=rows.num_key_groups)
    return work_by_time(own, groups, load, hash_of=hash_of)


def _load_by_key_group(processed: OperatorOutput, cpu_ms: float) -> KeyGroupLoad:
    """Return the load per key group: its measured time, and a share of the rest by rows.

    Of the rest (`cpu_ms`) only CPU time counts, since waiting for a core does not depend on the key
    group.
    """
    groups = processed.groups
    if groups is None:
        return NO_LOAD
    rows_of_key = np.diff(groups.starts)
    starts = np.flatnonzero(np.diff(groups.key_groups, prepend=-1))
    key_groups = groups.key_groups[starts]
    rows, keys = np.add.reduceat(rows_of_key, starts), np.diff(np.append(starts, groups.count))
    own_ms: npt.NDArray[np.float64] = (
        np.zeros(len(key_groups)) if processed.cpu_ms is None else processed.cpu_ms
    )
    shared_ms = rows * (max(cpu_ms - own_ms.sum(), 0.0) / max(rows.sum(), 1))
    return KeyGroupLoad(
        key_groups=key_groups.astype(np.int64),
        rows=rows,
        keys=keys,
        cpu_ms=own_ms + shared_ms,
        busy_ms=shared_ms + (own_ms if processed.busy_ms is None else processed.busy_ms),
    )


# copies of a table's state → version of the table, and contents
_broadcast_tables: weakref.WeakKeyDictionary[LocalState, tuple[int, BroadcastTable]]
_broadcast_tables = weakref.WeakKeyDictionary()


def committed_table(
    broadcast: Broadcast,
    instruction: StateInstruction,
    layout: EntryLayout,
    storage: CheckpointStorage,
    local: LocalState,  # its copies on the executor
) -> BroadcastTable:
    """Return a broadcast table as of the last committed epoch.

    A process remembers the table of a committed epoch, with the local copies of its state. A lane
    without it, in a new process or on a new executor, reads the last snapshot and all segments
    after it; others read the segments that they lack.
    """
    version, table = _broadcast_tables.get(local, (-1, BroadcastTable.empty(broadcast)))
    if table.declared != broadcast:  # cannot happen; the check is free
        version, table = -1, BroadcastTable.empty(broadcast)
    for snapshot in instruction.snapshots.values():
        if snapshot.version > version:
            entries = layout.read(read_batch(storage, snapshot.block), snapshot.flow)
            version, table = snapshot.version, BroadcastTable.empty(broadcast).updated_with(entries)
    for segment in sorted(instruction.segments, key=lambda segment: segment.epoch):
        if segment.epoch > version:
            entries = layout.read(read_segment(storage, segment), segment.flow)
            version, table = segment.epoch, table.updated_with(entries)
    _broadcast_tables[local] = version, table
    return table

"""One operator on one lane in one epoch: bring state forward, process, write what changed.

*Apply on next*: what an epoch changes goes into the changelog; it enters the local store only when
a later epoch finds it committed.  So an attempt never meets the half-done work of another one.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.dataflow.groups import Groups, group_rows
from godwit.dataflow.hashing import hash_keys
from godwit.dataflow.operator import Step
from godwit.lane.messages import KeyGroupLoad, OperatorReport
from godwit.lane.wire import partial_schema, raw_schema, unpack_rows
from godwit.model.key_groups import key_groups_of
from godwit.state.blocks import BlockWriter, encode_batch, read_batch
from godwit.state.entries import StateRows, pack_entries, ranges
from godwit.state.hydration import Hydration, recover_chains
from godwit.state.records import OutputRef, SegmentRef, SnapshotRef
from godwit.state.written_files import encode_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.lane.lane import LaneOperator
    from godwit.lane.messages import EpochInstruction, LaneReport, OperatorInstruction
    from godwit.lane.wire import Header
    from godwit.state.local_store import LocalStore
    from godwit.state.records import StateId
    from godwit.state.storage import CheckpointStorage
    from godwit.state.written_files import WrittenFiles

    _Segment = tuple[str, str, Literal["changes", "waiting"], list[int], list[int]]

__all__ = ["LaneFiles", "OperatorLane"]


class LaneFiles:
    """What one lane task writes: changelog, snapshots and staged output, a file each at most."""

    def __init__(
        self,
        *,
        storage: CheckpointStorage,
        epoch: int,
        flow: int,
        name: str,
        inline_bytes: int,
        compression: Literal["lz4", "zstd"] | None,
    ) -> None:
        self._epoch, self._flow, self._compression = epoch, flow, compression
        self._writers = {
            kind: BlockWriter(
                storage, epoch=epoch, name=f"{kind}-{name}", inline_limit_bytes=inline_bytes
            )
            for kind in ("changelog", "snapshots", "outputs")
        }
        self._segments: list[_Segment] = []
        self._snapshots: list[tuple[StateId, int, int, int]] = []
        self._outputs: list[tuple[str, int, Literal["rows", "files"]]] = []

    def changes(
        self, state: StateId, batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write changed entries, which are ordered by key group."""
        self._segment(state.operator, state.state, "changes", batch, key_groups)

    def waiting(
        self, operator: str, batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write rows that wait, which are ordered by key group."""
        self._segment(operator, "", "waiting", batch, key_groups)

    def _segment(
        self,
        operator: str,
        state: str,
        kind: Literal["changes", "waiting"],
        batch: pa.RecordBatch,
        key_groups: npt.NDArray[np.int32],
    ) -> None:
        found, starts = np.unique(key_groups, return_index=True)
        ends = np.append(starts[1:], len(key_groups))
        self._writers["changelog"].add(encode_batch(batch, self._compression))
        self._segments.append((operator, state, kind, found.tolist(), ends.tolist()))

    def snapshot(self, state: StateId, key_group: int, version: int, batch: pa.RecordBatch) -> None:
        """Write the whole state of one key group."""
        self._writers["snapshots"].add(encode_batch(batch, self._compression))
        self._snapshots.append((state, key_group, version, batch.num_rows))

    def stage(self, sink: str, table: pa.Table) -> None:
        """Stage rows for a sink."""
        for batch in table.combine_chunks().to_batches():
            self._writers["outputs"].add(encode_batch(batch, self._compression))
            self._outputs.append((sink, batch.num_rows, "rows"))

    def stage_files(self, sink: str, written: WrittenFiles) -> None:
        """Stage files that are at the sink's target already: their description only."""
        self._writers["outputs"].add(encode_files(written))
        self._outputs.append((sink, sum(file.rows for file in written.files), "files"))

    def close(self, report: LaneReport) -> None:
        """Finish the files and name what is in them."""
        for (operator, state, kind, key_groups, ends), block in zip(
            self._segments, self._writers["changelog"].close(), strict=True
        ):
            report.segments.append(
                SegmentRef(
                    operator=operator,
                    state=state,
                    flow=self._flow,
                    epoch=self._epoch,
                    lane=report.place,
                    kind=kind,
                    block=block,
                    key_groups=tuple(key_groups),
                    row_ends=tuple(ends),
                )
            )
        for (whose, key_group, version, rows), block in zip(
            self._snapshots, self._writers["snapshots"].close(), strict=True
        ):
            report.snapshots.append(
                SnapshotRef(
                    operator=whose.operator,
                    state=whose.state,
                    flow=self._flow,
                    key_group=key_group,
                    version=version,
                    rows=rows,
                    block=block,
                )
            )
        for (sink, rows, holding), block in zip(
            self._outputs, self._writers["outputs"].close(), strict=True
        ):
            report.outputs.append(
                OutputRef(
                    sink=sink,
                    flow=self._flow,
                    lane=report.place,
                    kind=holding,
                    rows=rows,
                    block=block,
                )
            )


class OperatorLane:
    """One operator's share of a lane task."""

    def __init__(
        self,
        member: LaneOperator,
        instruction: EpochInstruction,
        told: OperatorInstruction,
        place: int,
        *,
        store: LocalStore,
        files: LaneFiles,
        report: LaneReport,
    ) -> None:
        operator = self.operator = member.operator
        self.told, self.place, self.layout = told, place, member.waiting
        (self.state,) = told.states  # an operator of several would be processed in another way
        self.files, self.report, self.storage = files, report, instruction.storage
        self.num_key_groups = len(told.places)
        self.keys = operator.schema.keys.names
        self.hydration = Hydration(
            store=store,
            state=self.state.state,
            layout=member.state,
            storage=instruction.storage,
            segments=self.state.segments,
            snapshots=self.state.snapshots,
            floor=self.state.floor,
            load=told.load,
            recover=partial(
                recover_chains,
                instruction.storage,
                self.state.recorded_as,
                instruction.epoch - 1,
            ),
        )

    def process(self, arrived: Sequence[tuple[Header, bytes]]) -> pa.RecordBatch | None:
        """Process what arrived and return the output; ``None`` if there was nothing to do."""
        mine = self.told.places == self.place
        clock = _Clock(self.report.took_ms)
        batch = self._decode(arrived)
        hashes = self._hashes(batch)
        key_groups = key_groups_of(hashes, self.num_key_groups)
        clock.lap("decode")

        touched = np.unique(key_groups)
        suspended = self.told.suspended
        due = np.flatnonzero(self.told.resumed & mine & ~suspended)
        needed = np.union1d(touched[~suspended[touched]], due)
        if self.operator.complete:
            needed = np.union1d(needed, np.flatnonzero(mine & ~suspended))
        to_snapshot = np.array(
            [g for g in self.state.to_snapshot if mine[g] and not suspended[g]], np.int64
        )
        cold = self.hydration.bring_forward(np.union1d(needed, to_snapshot))
        clock.lap("apply")
        for key_group in to_snapshot.tolist():
            if key_group not in cold:
                self._snapshot(key_group)
        clock.lap("snapshot")

        waits = suspended.copy()
        waits[sorted(cold)] = True
        ready = np.array([g for g in due.tolist() if not waits[g]], np.int64)
        aside = waits[key_groups]
        # A key group that was to resume still waits, even if no row of this epoch is its own.
        waited = np.union1d(key_groups[aside], due[waits[due]])
        if aside.any():
            batch = self._set_aside(batch, key_groups, waits)
        if len(ready):
            batch = self._with_waiting(batch, ready)
        if len(waited) or len(ready):
            hashes = self._hashes(batch)
        clock.lap("wait")
        output = self._advance(batch, hashes, clock, ready, waited)
        if self.operator.complete:
            output = self._complete(np.flatnonzero(mine & ~waits))
            clock.lap("complete")
        return output

    # -- input --------------------------------------------------------------------------------

    def _decode(self, arrived: Sequence[tuple[Header, bytes]]) -> pa.RecordBatch:
        """Everything that arrived, in order of origin, all of it raw or all of it partial.

        If everything came raw, rows are combined once, together. As soon as something is, or has
        to be kept as, partial states, each payload is combined by itself, which keeps the order.
        """
        operator, told = self.operator, self.told
        self.partial = operator.mergeable and (
            any(header.is_partial for header, _ in arrived)
            or bool(told.suspended.any())
            or bool(told.resumed.any())
        )
        batches = []
        for header, payload in arrived:
            schema = partial_schema(operator) if header.is_partial else raw_schema(operator)
            batch = unpack_rows(payload, schema)
            batches.append(
                self._combined(batch) if self.partial and not header.is_partial else batch
            )
        self.source_rows = sum(header.rows for header, _ in arrived)
        return _concat(batches, self._schema)

    @property
    def _schema(self) -> pa.Schema:
        return partial_schema(self.operator) if self.partial else raw_schema(self.operator)

    def _combined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make partial states of raw rows."""
        keys, rows = self._raw(batch)
        groups = group_rows(hash_keys(keys), keys, self.num_key_groups)
        states = self.operator.combine(groups, rows)
        keys = keys.take(pa.array(groups.first_row))
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *states.columns], schema=partial_schema(self.operator)
        )

    def _hashes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return hash_keys(batch.select(self.keys))

    def _raw(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Key columns, and the columns the operator reads (a key column may be among them)."""
        return batch.select(self.keys), batch.select(self.operator.inputs.names)

    def _states(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Key columns and state columns."""
        return batch.select(self.keys), batch.select(self.operator.schema.values.names)

    # -- wait buffers -------------------------------------------------------------------------

    def _set_aside(
        self,
        batch: pa.RecordBatch,
        key_groups: npt.NDArray[np.int32],
        waits: npt.NDArray[np.bool_],
    ) -> pa.RecordBatch:
        """Put rows of key groups that wait into the wait buffer; return the others."""
        if self.operator.mergeable and not self.partial:
            # The wait buffer of a mergeable operator holds partial states: they are small.
            self.partial = True
            batch = self._combined(batch)
            key_groups = key_groups_of(self._hashes(batch), self.num_key_groups)
        aside = waits[key_groups]
        rows = np.flatnonzero(aside)
        rows = rows[np.argsort(key_groups[rows].astype(np.uint16), kind="stable")]
        self.files.waiting(self.operator.name, batch.take(pa.array(rows)), key_groups[rows])
        return batch.filter(pa.array(~aside))

    def _with_waiting(self, batch: pa.RecordBatch, ready: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Put the waiting rows of key groups that resume before the rows of this epoch."""
        wanted = np.zeros(self.num_key_groups, np.bool_)
        wanted[ready] = True
        earlier: list[pa.RecordBatch] = []
        for segment in sorted(self.told.waiting, key=lambda s: (s.epoch, s.lane)):
            held = self.layout.read(read_batch(self.storage, segment.block), segment.flow)
            earlier.extend(
                held.slice(start, end - start)
                for key_group, start, end in ranges(segment)
                if wanted[key_group]
            )
        return _concat([*earlier, batch], self._schema)

    # -- processing ---------------------------------------------------------------------------

    def _advance(
        self,
        batch: pa.RecordBatch,
        hashes: npt.NDArray[np.int64],
        clock: _Clock,
        consumed: npt.NDArray[np.int64],
        waited: npt.NDArray[np.int64],
    ) -> pa.RecordBatch | None:
        operator = self.operator
        cpu = time.process_time()
        output = None
        load = KeyGroupLoad(key_groups=[], rows=[], keys=[], state_bytes=[], cpu_ms=[])
        if batch.num_rows:
            keys, rows = self._states(batch) if self.partial else self._raw(batch)
            groups = group_rows(hashes, keys, self.num_key_groups)
            keys = keys.take(pa.array(groups.first_row))
            if self.partial:
                rows = operator.merge_partials(groups, rows)
            clock.lap("group")
            known, prior = self._prior(groups, keys)
            clock.lap("find")
            made = operator.advance(
                Step(
                    groups=groups,
                    keys=keys,
                    rows=rows,
                    partial=self.partial,
                    prior=prior,
                    known=known,
                )
            )
            clock.lap("advance")
            self._write_changes(groups, keys, made.state, made.removed)
            self._changed = (groups.hashes, keys, made.state)
            output = made.output
            load = self._load(groups, (time.process_time() - cpu) * 1e3, made.cpu_ms)
            clock.lap("changes")
        self.report.operators.append(
            OperatorReport(
                operator=operator.name,
                rows_in=self.source_rows,
                load=load,
                waited=waited.tolist(),
                consumed=consumed.tolist(),
                versions={self.state.state: self.hydration.versions},
            )
        )
        return output

    def _prior(
        self, groups: Groups, keys: pa.RecordBatch
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        known = np.zeros(groups.count, np.bool_)
        priors = []
        for key_group, start, end in _runs(groups.key_groups):
            table = self.hydration.table(key_group)
            rows = table.find(groups.hashes[start:end], keys.slice(start, end - start))
            known[start:end] = rows >= 0
            priors.append(table.read(rows))
        return known, _concat(priors, self.operator.schema.values)

    def _write_changes(
        self,
        groups: Groups,
        keys: pa.RecordBatch,
        state: pa.RecordBatch,
        removed: npt.NDArray[np.bool_] | None,
    ) -> None:
        rows = StateRows(hashes=groups.hashes, keys=keys, values=state, removed=removed)
        self.files.changes(self.state.state, pack_entries(rows), groups.key_groups)

    def _load(
        self, groups: Groups, cpu_ms: float, measured_ms: npt.NDArray[np.float64] | None
    ) -> KeyGroupLoad:
        """Load per key group: the CPU time measured for it, and its rows' share of the rest."""
        rows_of_key = np.diff(groups.starts)
        found, starts = np.unique(groups.key_groups, return_index=True)
        rows = np.add.reduceat(rows_of_key, starts)
        keys = np.diff(np.append(starts, groups.count))
        own_ms = np.zeros(len(found)) if measured_ms is None else measured_ms
        shared_ms = max(cpu_ms - own_ms.sum(), 0.0)
        return KeyGroupLoad(
            key_groups=found.tolist(),
            rows=rows.tolist(),
            keys=keys.tolist(),
            state_bytes=[self.hydration.table(g).state_bytes for g in found.tolist()],
            cpu_ms=(own_ms + rows * (shared_ms / rows.sum())).tolist(),
        )

    def _snapshot(self, key_group: int) -> None:
        table = self.hydration.table(key_group)
        hashes, keys, values = table.scan()
        batch = pack_entries(StateRows(hashes=hashes, keys=keys, values=values))
        self.files.snapshot(self.state.state, key_group, table.version, batch)

    def _complete(self, key_groups: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Output of every key of this lane, changed in this epoch or not."""
        parts = [self.hydration.table(g).scan() for g in key_groups.tolist()]
        if self._changed is not None:
            parts.append(self._changed)
        hashes = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
        keys = _concat([part[1] for part in parts], self.operator.schema.keys)
        values = _concat([part[2] for part in parts], self.operator.schema.values)
        groups = group_rows(hashes, keys, self.num_key_groups)
        newest = pa.array(groups.order[groups.starts[1:] - 1])
        return self.operator.finish(keys.take(newest), values.take(newest))

    _changed: tuple[npt.NDArray[np.int64], pa.RecordBatch, pa.RecordBatch] | None = None
    partial: bool = False
    source_rows: int = 0


class _Clock:
    """Adds up the time between laps, by phase."""

    def __init__(self, took_ms: dict[str, float]) -> None:
        self._took_ms, self._since = took_ms, time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._took_ms[phase] = self._took_ms.get(phase, 0.0) + (now - self._since) * 1e3
        self._since = now


def _concat(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return pa.concat_batches(batches)


def _runs(sorted_key_groups: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """(key group, start, end) of each run of equal values."""
    found, starts = np.unique(sorted_key_groups, return_index=True)
    ends = np.append(starts[1:], len(sorted_key_groups))
    return zip(found.tolist(), starts.tolist(), ends.tolist(), strict=True)

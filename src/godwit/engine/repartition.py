"""Repartitioning: rewriting state by other key columns, or by another number of key groups.

Problem: `partition_by` and the number of key groups decide the key group of every entry, so with
other columns or another number all state is in the wrong key groups, and later epochs read the
chains of these key groups.

A start with this option, or a running query between two epochs, rewrites the state in an epoch of
its own without input: the entries of every key group are read, hashed by the new columns, and
written as snapshots, under the flow version with the new columns.  A snapshot replaces the former
chain of its key group; a record with another number of key groups replaces all chains, also those
of operators that have left the flow.  Rows in the wait buffer go to their new key groups in the
same epoch.  Rows of one key stay in order, since they waited in one key group; the operator's
windows and timers are paused while any of its rows wait, so the other keys of the key group do not
matter.

*In one pass.*  A hash that has remainder r by n and s by m has one remainder by their greatest
common divisor.  So for another number of key groups the key groups of one such remainder go to
those of the same remainder, and nowhere else: with a multiple of the number, each is read, divided
and written by itself.  Where a part exceeds the limit, its entries go over files on the driver's
disk.

*Slots.*  Both slots of two-phase windows are rewritten as they are.  The first takes the rows from
then on; the second holds partials of windows up to those of its last pane, as after an instant
migration.

Invariant: the commit of the epoch makes the change.  Before it, there are only unreferenced files,
and the state is unchanged; after it, the state is in its new place.  Earlier epochs stay readable.

Source: ``Migrate(O, C, C')`` of an operator to a component of other partition attributes, Madsen et
al. (Enorm) §4.5.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.api.checks import check_partition_by
from godwit.checkpoint.blocks import BlockWriter, encode_batch, read_batch, read_segment
from godwit.checkpoint.entries import (
    BatchCache,
    EntryLayout,
    in_utc,
    key_group_ranges,
    latest_entries,
    pack_entries,
    read_chain,
)
from godwit.checkpoint.epochs import check_delivered, commit_edit
from godwit.checkpoint.records import BROADCAST, SegmentRef, SnapshotRef
from godwit.columns.hashing import hash_placed
from godwit.engine.initial_state import EntrySpool, by_key_group, slices_of
from godwit.model.errors import CheckpointError, InvalidPlanError
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import did_you_mean, type_name
from godwit.operators.hot_keys import PART
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema
from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, TypeAlias

    import numpy.typing as npt

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import CommitRecord, SlotValues, StateId
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.lineage import Layouts

    HashOf: TypeAlias = Callable[[StateRows], npt.NDArray[np.int64]]

MAX_BYTES: Final = 128 * 2**20
"""Bytes of a state's entries that the driver has in memory at a time, roughly."""
_REPORT_S: Final = 5.0
_logger = logging.getLogger("godwit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """State that a start has placed in another number of key groups."""

    before: int  # number of key groups
    after: int
    entries: int
    size_bytes: int
    duration_s: float


@dataclass(slots=True, kw_only=True)
class _Rewrite:
    """Writes states as snapshots of the next epoch, placed in `count` key groups."""

    log: CommitLog
    writer: BlockWriter
    count: int
    max_bytes: int
    # references to the written entries, in order of its blocks
    refs: list[partial[SnapshotRef] | partial[SegmentRef]] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0
    # operator with two-phase windows → its slots, as a commit record has them
    slots: dict[str, list[SlotValues]] = field(default_factory=dict)

    def write(self, reader: _Reader) -> None:
        """Write all key groups of a state."""
        for key_group, entries in _entries_by_key_group(
            reader, self.log, self.count, self.max_bytes
        ):
            block, rows = encode_batch(pack_entries(entries)), len(entries.hashes)
            self.writer.add(block)
            self.entries, self.size_bytes = self.entries + rows, self.size_bytes + block.size
            self.refs.append(
                partial(
                    SnapshotRef,
                    operator=reader.state.operator,
                    state=reader.state.state,
                    flow=self.log.flow,
                    key_group=key_group,
                    version=self.log.latest_epoch + 1,
                    rows=rows,
                )
            )
            if reader.slot is not None and rows:
                name, end_of = reader.slot
                over = key_group, 0, BEGINNING, end_of(entries)
                self.slots.setdefault(name, []).append(over)


def repartition(
    flow: CompiledFlow,
    log: CommitLog,
    layouts: Layouts,
    operators: Collection[str],
    *,
    delivered: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Rewritten | None:
    """Rewrite state by the present key columns and number of key groups, as an epoch of its own.

    `operators`: those whose key columns have changed since the last epoch. `log`: open under the
    present flow version. `delivered`: the last epoch's output is known to be at its targets.
    `max_bytes`: more entries of a part of the key groups go over files on the driver's disk.
    Returns the change of the number of key groups, if it has changed.

    Raises `CheckpointError` if key groups of an operator have migrated without their state, sinks
    may lack the last epoch, or state of an operator that has left the flow cannot be rewritten.
    """
    latest = log.latest
    assert latest is not None, "there is state"
    before, count = log.chains.num_key_groups, flow.num_key_groups
    began_s = time.monotonic()
    for name in operators:
        check_can_repartition(flow.operator(name), log)
    check_delivered(log, latest, delivered=delivered)
    readers = [
        _reader(flow, layouts, state, changed=state.operator in operators)
        for name in (
            [operator.name for operator in flow.operators] if count != before else operators
        )
        for state in flow.operator(name).states
        # A table is of one key, whose place does not depend on the columns.
        if count != before or not state.state.startswith(BROADCAST)
    ]
    if count != before:
        _check_slots(flow, log, latest)
        known = {reader.state for reader in readers}
        readers += [
            _reader_without_operator(flow, log, state)
            for state in log.chains.states
            if state not in known
        ]
    consumed: dict[str, list[int]] = {}
    with BlockWriter(log.storage, epoch=latest.epoch + 1, name="repartition") as writer:
        rewrite = _Rewrite(log=log, writer=writer, count=count, max_bytes=max_bytes)
        for reader in readers:
            rewrite.write(reader)
        for name in log.chains.waiting_operators if count != before else operators:
            if waiting := log.chains.waiting_key_groups(name):
                batch, key_groups = _read_waiting(flow, layouts, name, log)
                writer.add(encode_batch(in_utc(batch)))
                starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
                consumed[name] = waiting
                rewrite.refs.append(
                    partial(
                        SegmentRef,
                        operator=name,
                        state="",
                        kind="waiting",
                        flow=log.flow,
                        epoch=latest.epoch + 1,
                        lane=0,
                        key_groups=tuple(key_groups[starts].tolist()),
                        row_ends=tuple(np.append(starts[1:], len(key_groups)).tolist()),
                    )
                )
        blocks = writer.close()
    refs = [ref(block=block) for ref, block in zip(rewrite.refs, blocks, strict=True)]
    regrouped: dict[str, Any] = {}
    if count != before:  # the record replaces all chains, and the start places key groups evenly
        regrouped = {"num_key_groups": count, "assignments": {}, "slots": rewrite.slots}
    commit_edit(
        log,
        latest,
        latest.last_batch,
        segments=(ref for ref in refs if isinstance(ref, SegmentRef)),
        snapshots=(ref for ref in refs if isinstance(ref, SnapshotRef)),
        consumed={} if regrouped else consumed,
        delivered=delivered,
        **regrouped,
    )
    if not regrouped:
        return None
    return Rewritten(
        before=before,
        after=count,
        entries=rewrite.entries,
        size_bytes=rewrite.size_bytes,
        duration_s=time.monotonic() - began_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """How one state is read, and its entries are placed."""

    state: StateId
    layout: EntryLayout
    hash_of: HashOf
    moved: bool  # other columns place the entries: any key group may go to any other
    # of the second slot of two-phase windows: operator that has the slots, and the end of the last
    # window of given panes, by entries
    slot: tuple[str, Callable[[StateRows], int]] | None = None


def _reader(flow: CompiledFlow, layouts: Layouts, state: StateId, *, changed: bool) -> _Reader:
    """Return the reader of an operator's state; `changed`: it has other partitioning columns."""
    operator, count = flow.operator(state.operator), flow.num_key_groups
    role, slot = operator.two_phase, None
    if role is not None and role.slot == 1:
        position, grid = role.pane_position, role.grid

        def end_of(entries: StateRows) -> int:
            panes = entries.keys.column(position).cast(pa.int64())
            return grid.end_of(pc.max(panes).as_py())

        slot = role.first, end_of

    def hash_of(entries: StateRows) -> npt.NDArray[np.int64]:
        # Without other columns the hash is that of the whole key, whatever the number is.
        if state.state.startswith(BROADCAST) or not (operator.partition_by or changed):
            return entries.hashes
        return operator.hash_of(entries.keys, count)

    layout = layouts[state.operator][0][state.state]
    return _Reader(state=state, layout=layout, hash_of=hash_of, moved=changed, slot=slot)


def _reader_without_operator(flow: CompiledFlow, log: CommitLog, state: StateId) -> _Reader:
    """Return the reader of a state that no operator of the flow has; it may come back.

    Raises `CheckpointError` if its entries have columns of several versions, which only the
    operator can bring forward.
    """
    chains, count = log.chains, flow.num_key_groups
    refs: list[SegmentRef | SnapshotRef] = [*chains.segments(state), *chains.snapshots(state)]
    descriptions: list[tuple[Any, ...]] = []
    for operator, name, flow_version in sorted(
        {(ref.operator, ref.state, ref.flow) for ref in refs}
    ):
        operator_version = log.version(flow_version).operator(operator)
        assert operator_version is not None, "the version describes the state written under it"
        if (
            written := (
                operator_version.keys,
                operator_version.partition_by,
                operator_version.states[name],
            )
        ) not in descriptions:
            descriptions.append(written)
    if len(descriptions) > 1:
        raise CheckpointError(
            f"The state of operator {state.operator!r}, which has left the flow, was "
            "written with several sets of columns, so it cannot be placed in other key groups.",
            remedy="Drop it: godwit checkpoint drop CHECKPOINT "
            f"{state.operator}. Or put the operator back into the flow for this start.",
            operator=state.operator,
        )
    if not refs:
        no_columns = pa.schema([])
        layout = EntryLayout(name=str(state), schema=StateSchema(no_columns, no_columns))
        return _Reader(state=state, layout=layout, hash_of=lambda rows: rows.hashes, moved=False)
    ((keys, partition_by, columns),) = descriptions
    fields = list(read_batch(log.storage, refs[0].block).schema)[1:]
    num_entry_columns = len(keys) + len(columns.entries)
    schema = StateSchema(
        pa.schema(fields[:num_entry_columns]),
        pa.schema(fields[num_entry_columns : num_entry_columns + len(columns.columns)]),
    )

    def hash_of(entries: StateRows) -> npt.NDArray[np.int64]:
        if state.state.startswith(BROADCAST) or not partition_by:
            return entries.hashes
        return hash_placed(entries.keys.select(range(len(keys))), partition_by, count)

    layout = EntryLayout(name=str(state), schema=schema)
    return _Reader(state=state, layout=layout, hash_of=hash_of, moved=False)


def _check_slots(flow: CompiledFlow, log: CommitLog, latest: CommitRecord) -> None:
    """Raise if the time until which a second slot has partials cannot be known."""
    waiting = set(log.chains.waiting_operators)
    for name in latest.slots:
        role = next(
            (operator.two_phase for operator in flow.operators if operator.name == name), None
        )
        if role is None or role.second in waiting:
            raise CheckpointError(
                f"The number of key groups cannot change now: key groups of operator {name!r} have "
                "migrated without their state, "
                + ("and rows wait for it." if role else "and it is not in the flow."),
                remedy="Start with num_key_groups= and the operators as they were, let the flow "
                "run until open windows are closed, and then change the number.",
                operator=name,
            )


def _entries_by_key_group(
    reader: _Reader, log: CommitLog, count: int, max_bytes: int
) -> Iterator[tuple[int, StateRows]]:
    """Yield each key group of a state with its entries, as present columns and number place them.

    A key group that had entries, and now has none, is yielded empty, unless the record replaces all
    chains.
    """
    chains, state = log.chains, reader.state
    num_before = chains.num_key_groups
    all_chains = [chains.chain(state, g) for g in range(num_before)]
    stored = [chain for chain in all_chains if chain.snapshot is not None or chain.segments]
    sizes = chains.chains_of(state)
    size_bytes = sizes.snapshot_bytes + sizes.changelog_bytes
    remaining = {chain.key_group for chain in stored} if count == num_before else set[int]()
    parts = 1 if reader.moved else math.gcd(num_before, count)
    by_part: dict[int, list[KeyGroupChain]] = {}
    for chain in stored:
        by_part.setdefault(chain.key_group % parts, []).append(chain)
    cache = BatchCache(log.storage, max_bytes=max_bytes)
    reported_s, done_bytes, total_bytes = time.monotonic(), 0, int(size_bytes.sum())
    for chains_at_once in _together(by_part, size_bytes, max_bytes // 4):
        with EntrySpool(count, max_bytes) as spool:
            for chain in chains_at_once:
                rows = read_chain(log.storage, chain, reader.layout, cache=cache)
                hashes = reader.hash_of(rows)
                spool.add(StateRows(hashes=hashes, keys=rows.keys, values=rows.values))
                done_bytes += int(size_bytes[chain.key_group])
                if time.monotonic() - reported_s > _REPORT_S:
                    reported_s = time.monotonic()
                    _logger.info(
                        "state of %s: %d %% rewritten",
                        state,
                        100 * done_bytes // max(total_bytes, 1),
                    )
            for entries in spool.ranges():
                for key_group, key_group_entries in slices_of(*by_key_group(entries, count)):
                    remaining.discard(key_group)
                    yield key_group, key_group_entries
    if remaining:
        empty = latest_entries((), reader.layout.schema)
        yield from ((key_group, empty) for key_group in sorted(remaining))


def _together(
    by_part: Mapping[int, list[KeyGroupChain]], size_bytes: npt.NDArray[np.int64], max_bytes: int
) -> Iterator[list[KeyGroupChain]]:
    """Yield the chains of parts that are rewritten at a time: as many as `max_bytes` allow."""
    chosen: list[KeyGroupChain] = []
    chosen_bytes = 0
    for _, chains in sorted(by_part.items()):
        part_bytes = sum(int(size_bytes[chain.key_group]) for chain in chains)
        if chosen and chosen_bytes + part_bytes > max_bytes:
            yield chosen
            chosen, chosen_bytes = [], 0
        chosen, chosen_bytes = [*chosen, *chains], chosen_bytes + part_bytes
    if chosen:
        yield chosen


def _read_waiting(
    flow: CompiledFlow, layouts: Layouts, name: str, log: CommitLog
) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
    """Return an operator's waiting rows, ordered by their present key groups, and these.

    Rows of a key group are in order of arrival. Raises `CheckpointError` if the flow does not have
    the operator.
    """
    chains, storage = log.chains, log.storage
    if name not in layouts:
        raise CheckpointError(
            f"Rows wait for operator {name!r}, which has left the flow, so they cannot be "
            "placed in other key groups.",
            remedy=f"Drop its state: godwit checkpoint drop CHECKPOINT {name}. Or put the operator "
            "back into the flow for this start.",
            operator=name,
        )
    operator, layout = flow.operator(name), layouts[name][1]
    parts = []
    for segment in chains.waiting_segments(operator.name):
        batch = layout.read(read_segment(storage, segment), segment.flow)
        parts += [
            batch.slice(first, end - first)
            for key_group, first, end in key_group_ranges(segment)
            if segment in chains.waiting_rows_of(operator.name, key_group)
        ]
    all_rows = pa.concat_batches(parts)
    hashes = operator.hash_of(all_rows, flow.num_key_groups)
    key_groups = key_groups_of(hashes, flow.num_key_groups)
    order = np.argsort(key_groups, kind="stable")
    return all_rows.take(pa.array(order)), key_groups[order]


def checked_columns(flow: CompiledFlow, requested: Any) -> dict[str, tuple[str, ...]]:
    """Return operator → new partitioning columns, for operators that are partitioned otherwise.

    `requested`: name of an operator → a key column or several; ``None``: all. Parts of the operator
    get the same columns.

    Raises `InvalidPlanError` if an operator does not exist, `InvalidFlowError` if a column is not
    one of its key columns.
    """
    if not isinstance(requested, Mapping) or not requested:
        raise InvalidPlanError(
            f"repartition was given a value of type {type_name(requested)}."
            if requested
            else "repartition was given no operator.",
            remedy='Give operators with key columns, as in {"users": "area"}.',
        )
    key_columns = {
        operator_.name: tuple(operator_.user_keys.names)
        for operator_ in flow.operators
        if not operator_.part_of
    }
    columns: dict[str, tuple[str, ...]] = {}
    for name, given_columns in requested.items():
        if name not in key_columns:
            raise InvalidPlanError(
                f"repartition names {name!r}, which is not an operator of the flow.",
                remedy=f"{did_you_mean(str(name), [*key_columns])}Its operators are "
                f"{', '.join(key_columns)}.",
                operator=name,
            )
        partition_columns = (
            check_partition_by(
                given_columns, key_columns[name], f"repartition of operator {name!r}"
            )
            or ()
        )
        for operator in flow.operators:
            if (
                name in (operator.name, operator.part_of)
                and operator.partition_by != partition_columns
            ):
                columns[operator.name] = partition_columns
    return columns


def check_can_repartition(operator: KeyedOperator, log: CommitLog) -> None:
    """Raise if the operator has divided hot keys, or active slots of two-phase windows."""
    name, latest = operator.name, log.latest
    if PART in operator.hash_columns.names:
        raise CheckpointError(
            f"Operator {name!r} cannot be partitioned by other columns now: it has spread= or "
            "merge=, which send rows of one key to several lanes.",
            remedy="Start the flow once without it, partitioned by all key columns; then add it.",
            operator=name,
        )
    role = operator.two_phase
    if latest is not None and role is not None and latest.slots.get(role.first):
        raise CheckpointError(
            f"Operator {name!r} cannot be partitioned by other columns now: key groups of its "
            "windows have migrated without their state.",
            remedy="Let the flow run with partition_by= as it was, until open windows are "
            "closed; then repartition.",
            operator=name,
        )

"""Repartitioning: rewriting state by other key columns.

Problem: `partition_by` decides the key group of every entry, so with other columns all state of an
operator is in the wrong key groups, and later epochs read the chains of these key groups.

A start with this option, or a running query between two epochs, rewrites the state in an epoch of
its own without input: the entries of every key group are read, hashed by the new columns, and
written as snapshots, under the flow version with the new columns.  A snapshot replaces the former
chain of its key group.  Rows in the wait buffer go to their new key groups in the same epoch, which
records them as consumed in the former ones.  Rows of one key stay in order, since they waited in
one key group; the operator's windows and timers are paused while any of its rows wait, so the other
keys of the key group do not matter.

Invariant: the commit of the epoch makes the change.  Before it, there are only unreferenced files,
and the state is unchanged; after it, the state is in its new place.  Earlier epochs stay readable.

Source: ``Migrate(O, C, C')`` of an operator to a component of other partition attributes, Madsen et
al. (Enorm) §4.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.api.checks import check_partition_by
from godwit.checkpoint.blocks import BlockWriter, encode_batch, read_segment
from godwit.checkpoint.edits import commit_edit
from godwit.checkpoint.entries import BatchCache, in_utc, key_group_ranges, pack_entries, read_chain
from godwit.checkpoint.records import BROADCAST, SegmentRef, SnapshotRef
from godwit.model.errors import CheckpointError, InvalidPlanError
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import did_you_mean, type_name
from godwit.operators.hot_keys.grid import PART
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    import numpy.typing as npt

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.entries import EntryLayout, WaitingLayout
    from godwit.checkpoint.records import StateId
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow
    from godwit.plan.lineage import Layouts

MAX_BYTES: Final = 256 * 2**20
"""Bytes of a state in the checkpoint that the driver rewrites at a time."""


def repartition(
    flow: CompiledFlow,
    log: CommitLog,
    layouts: Layouts,
    operators: Collection[str],
    *,
    delivered: bool = False,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Rewrite the state of operators by their present key columns, as an epoch of its own.

    `operators`: those whose key columns have changed since the last epoch. `log`: open under the
    present flow version. `delivered`: the last epoch's output is known to be at its targets. A
    state larger than `max_bytes` is read in several passes, each for a part of its key groups.
    Raises `CheckpointError` if key groups of an operator have migrated without their state, or
    sinks may lack the last epoch.
    """
    latest = log.latest
    assert latest is not None, "there is state"
    for name in operators:
        check_can_repartition(flow.operator(name), log)
    refs: list[partial[SnapshotRef] | partial[SegmentRef]] = []
    consumed: dict[str, list[int]] = {}
    with BlockWriter(log.storage, epoch=latest.epoch + 1, name="repartition") as writer:
        for name in operators:
            operator = flow.operator(name)
            for state in operator.states:
                if state.state.startswith(BROADCAST):
                    continue  # of one key, whose place does not depend on the columns
                layout = layouts[name][0][state.state]
                for key_group, rows in _read_repartitioned(operator, state, layout, log, max_bytes):
                    writer.add(encode_batch(pack_entries(rows)))
                    refs.append(
                        partial(
                            SnapshotRef,
                            operator=state.operator,
                            state=state.state,
                            flow=log.flow,
                            key_group=key_group,
                            version=latest.epoch + 1,
                            rows=len(rows.hashes),
                        )
                    )
            if waiting := log.chains.waiting_key_groups(name):
                batch, key_groups = _read_waiting(operator, layouts[name][1], log)
                writer.add(encode_batch(in_utc(batch)))
                starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
                consumed[name] = waiting
                refs.append(
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
    written = [ref(block=block) for ref, block in zip(refs, blocks, strict=True)]
    commit_edit(
        log,
        latest,
        latest.last_batch,
        segments=(ref for ref in written if isinstance(ref, SegmentRef)),
        snapshots=(ref for ref in written if isinstance(ref, SnapshotRef)),
        consumed=consumed,
        delivered=delivered,
    )


def _read_waiting(
    operator: KeyedOperator, layout: WaitingLayout, log: CommitLog
) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
    """Return an operator's waiting rows, ordered by their present key groups, and these.

    Rows of a key group are in order of arrival.
    """
    chains, storage = log.chains, log.storage
    parts = []
    for segment in chains.waiting_segments(operator.name):
        batch = layout.read(read_segment(storage, segment), segment.flow)
        parts += [
            batch.slice(first, end - first)
            for key_group, first, end in key_group_ranges(segment)
            if segment in chains.waiting_rows_of(operator.name, key_group)
        ]
    together = pa.concat_batches(parts)
    hashes = operator.hash_of(together, chains.num_key_groups)
    key_groups = key_groups_of(hashes, chains.num_key_groups)
    order = np.argsort(key_groups, kind="stable")
    return together.take(pa.array(order)), key_groups[order]


def _read_repartitioned(
    operator: KeyedOperator, state: StateId, layout: EntryLayout, log: CommitLog, max_bytes: int
) -> Iterator[tuple[int, StateRows]]:
    """Yield each key group of a state with its entries, as present columns place them.

    A key group that had entries and now has none is yielded empty. State larger than `max_bytes` is
    read in several passes.
    """
    chains = log.chains
    every = [chains.chain(state, g) for g in range(chains.num_key_groups)]
    stored = [chain for chain in every if chain.snapshot is not None or chain.segments]
    if not stored:
        return
    stored_bytes = chains.chains_of(state)
    size = int(stored_bytes.snapshot_bytes.sum() + stored_bytes.changelog_bytes.sum())
    width = max(1, chains.num_key_groups // (1 + size // max_bytes))
    had = {chain.key_group for chain in stored}
    cache = BatchCache(log.storage)
    for first in range(0, chains.num_key_groups, width):
        part = range(first, min(first + width, chains.num_key_groups))
        pieces: list[StateRows] = []
        for chain in stored:
            rows = read_chain(log.storage, chain, layout, cache=cache)
            hashes = operator.hash_of(rows.keys, chains.num_key_groups)
            key_groups = key_groups_of(hashes, chains.num_key_groups)
            here = np.flatnonzero((key_groups >= part.start) & (key_groups < part.stop))
            pieces.append(StateRows(hashes=hashes, keys=rows.keys, values=rows.values).take(here))
        together = pieces[0]
        for rows in pieces[1:]:
            together = together.followed_by(rows)
        key_groups = key_groups_of(together.hashes, chains.num_key_groups)
        order = np.argsort(key_groups, kind="stable")
        bounds = np.searchsorted(key_groups[order], np.arange(part.start, part.stop + 1))
        for number, key_group in enumerate(part):
            which = order[bounds[number] : bounds[number + 1]]
            if len(which) or key_group in had:
                yield key_group, together.take(which)


def checked_columns(flow: CompiledFlow, asked: Any) -> dict[str, tuple[str, ...]]:
    """Return operator → new partitioning columns, for operators that are partitioned otherwise.

    `asked`: name of an operator → a key column or several; ``None``: all. Parts of the operator get
    the same columns.

    Raises `InvalidPlanError` if an operator does not exist, `InvalidFlowError` if a column is not
    one of its key columns.
    """
    if not isinstance(asked, Mapping) or not asked:
        raise InvalidPlanError(
            f"repartition was given a value of type {type_name(asked)}."
            if asked
            else "repartition was given no operator.",
            remedy='Give operators with key columns, as in {"users": "area"}.',
        )
    whole = {o.name: tuple(o.user_keys.names) for o in flow.operators if not o.part_of}
    columns: dict[str, tuple[str, ...]] = {}
    for name, named in asked.items():
        if name not in whole:
            raise InvalidPlanError(
                f"repartition names {name!r}, which is not an operator of the flow.",
                remedy=f"{did_you_mean(str(name), [*whole])}Its operators are {', '.join(whole)}.",
                operator=name,
            )
        placed = check_partition_by(named, whole[name], f"repartition of operator {name!r}") or ()
        for operator in flow.operators:
            if name in (operator.name, operator.part_of) and operator.partition_by != placed:
                columns[operator.name] = placed
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

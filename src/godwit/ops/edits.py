"""Edits of a stopped checkpoint: rename or drop operators, remove the state of single keys.

Committed data never change.  So renaming or dropping state from outside stores an *edit* for the
present flow version; the next run applies it to the flow version that it writes.  Until that run
commits an epoch, nothing has changed.  An edit of an operator applies to its parts too.

A state that the present program cannot read fails every epoch with a row of its key.  It is removed
as by a function: by changelog segments, in an epoch of its own without input, in the usual format.
The state of the key is valid until that epoch.

A source of Godwit's own can continue from its position in other data: an epoch of its own removes
the recorded identity of the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.chains import rows_of
from godwit.checkpoint.entries import BatchCache, in_utc, pack_entries
from godwit.checkpoint.epochs import commit_edit
from godwit.checkpoint.evolution import apply_edits
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.records import (
    ANY_IDENTITY,
    EditRecord,
    SegmentRef,
    StateId,
    edit_path,
)
from godwit.model.errors import CheckpointError, CheckpointMismatchError
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.evolution import Columns, FlowVersion


def rename_operator(log: CommitLog, old: str, new: str) -> None:
    """Rename an operator, and those that are parts of it, from the next epoch on.

    Raises `CheckpointError` if `new` is in use.
    """
    version = _current_version(log)
    _check_operator(log, version, old)
    renamed = {name: new + name.removeprefix(old) for name in (old, *version.parts_of(old))}
    existing = next((name for name in renamed.values() if version.operator(name) is not None), "")
    if existing or not new:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} already has an operator {existing!r}."
            if new
            else "The new name is empty.",
            remedy="Choose an unused name; drop that operator first if its state is no longer "
            "needed.",
            operator=existing,
        )
    _append_edit(log, EditRecord(flow=log.flow, renamed=renamed))


def drop_operator(log: CommitLog, operator: str, *, reset: bool = False) -> None:
    """Drop an operator's state and waiting rows from the next epoch on.

    `reset`: the operator may still be in the flow, and then starts with empty state. Without it,
    dropping such an operator raises.
    """
    version = _current_version(log)
    _check_operator(log, version, operator)
    if operator in version.operators and not reset:
        raise CheckpointError(
            f"Operator {operator!r} was part of the flow in its last run, and would start empty "
            "if it still is.",
            remedy="Use --reset to confirm.",
            operator=operator,
        )
    _append_edit(log, EditRecord(flow=log.flow, dropped=(operator, *version.parts_of(operator))))


def _current_version(log: CommitLog) -> FlowVersion:
    """Return the last epoch's flow version with pending edits applied; raise without an epoch."""
    if log.latest is None:
        raise CheckpointError(
            f"No epoch is committed yet in the checkpoint {log.storage.uri!r}, so it has no "
            "operators.",
            remedy="Change the flow instead; a run without a committed epoch has stored nothing.",
        )
    return apply_edits(log.version(log.flow), log.edits())


def _check_operator(log: CommitLog, version: FlowVersion, operator: str) -> None:
    """Raise if the checkpoint does not have the operator, or it is a part of another operator."""
    current = version.operator(operator)
    if current is not None and current.part_of:
        raise CheckpointError(
            f"Operator {operator!r} is a part of {current.part_of!r}.",
            remedy=f"Give {current.part_of!r}: its parts are edited together.",
            operator=operator,
        )
    if current is None:
        all_operators = {**version.operators, **version.retained}
        names = sorted(
            name for name, operator_version in all_operators.items() if not operator_version.part_of
        )
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join(names) or '(none)'}.",
            operator=operator,
        )


def _append_edit(log: CommitLog, edit: EditRecord) -> None:
    """Add an edit to the checkpoint, numbered after the edits before it."""
    edit = log.next_edit(edit)
    log.storage.create_exclusive(edit_path(edit.number), encode_record(edit))


def remove_key(
    log: CommitLog,
    operator: str,
    matches: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]],
    *,
    key: str,
    delivered: bool = False,
) -> dict[str, int]:
    """Commit an epoch that deletes the state of one key; raise if it has none.

    `matches`: returns a mask, shape ``(n,)``, of the rows with the key among n rows of key columns.
    `key`: the key as text, for messages. `delivered`: the user confirms that sinks have the last
    epoch.
    Returns state → number of entries deleted. Also raises if rows wait for its key group.
    """
    version = log.version(log.flow)
    target = version.operator(operator)
    latest = log.latest
    if target is None or latest is None:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join({**version.operators, **version.retained})}.",
            operator=operator,
        )
    cache, types = BatchCache(log.storage), dict[str, pa.DataType]()
    segments: list[SegmentRef] = []
    counts: dict[str, int] = {}
    num_key_groups = log.chains.num_key_groups
    for name in (operator, *version.parts_of(operator)):
        own = version.operator(name)
        for state, described in () if own is None else own.states.items():
            chains = (log.chains.chain(StateId(name, state), g) for g in range(num_key_groups))
            num_keys = len(target.keys), len(target.keys) + len(described.entries)
            entries = _entries_of_key(chains, cache, matches, num_keys, types)
            if not entries:
                continue
            counts[str(StateId(name, state))] = sum(len(keys) for _, _, keys in entries)
            epoch = latest.epoch + 1
            with BlockWriter(log.storage, epoch=epoch, name=f"{name}-removal") as writer:
                writer.add(encode_batch(_removal_entries(entries, described.columns, types)))
                (block,) = writer.close()
            segments.append(
                SegmentRef(
                    operator=name,
                    state=state,
                    flow=log.flow,
                    epoch=epoch,
                    lane=0,
                    kind="changes",
                    block=block,
                    key_groups=tuple(key_group for key_group, _, _ in entries),
                    row_ends=tuple(np.cumsum([len(keys) for _, _, keys in entries]).tolist()),
                )
            )
    if not segments:
        raise CheckpointError(
            f"Operator {operator!r} has no state of key {key} in the checkpoint "
            f"{log.storage.uri!r}.",
            remedy="Give the key as messages show it, such as \"('ABC', 1)\".",
            operator=operator,
        )
    for segment in segments:
        if {*segment.key_groups} & {*log.chains.waiting_key_groups(segment.operator)}:
            raise CheckpointError(
                f"Rows of key group {segment.key_groups[0]} wait for operator "
                f"{segment.operator!r}, so its state cannot change until they are processed.",
                remedy="Drop the state of the whole operator (without --key), or continue from a "
                "copy of the checkpoint of an earlier epoch.",
                operator=operator,
            )
    commit_edit(log, latest, latest.last_batch, segments=segments, delivered=delivered)
    return counts


_Entries = list[tuple[int, npt.NDArray[np.int64], pa.RecordBatch]]
"""Key group, hashes and key columns of the existing entries."""


def _entries_of_key(
    chains: Iterable[KeyGroupChain],
    cache: BatchCache,
    matches: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]],
    num_keys: tuple[int, int],
    types: dict[str, pa.DataType],
) -> _Entries:
    """Find the entries of one key in all key groups of a state, of any flow version.

    `num_keys`: number of key columns, without and with those that tell entries of a key apart.
    `types`: filled with text → type of all columns. Returns key group, hashes and key columns.
    """
    entries = []
    for chain in chains:
        parts = [] if chain.snapshot is None else [(chain.snapshot.block, 0, chain.snapshot.rows)]
        parts += [(segment.block, *rows_of(segment, chain.key_group)) for segment in chain.segments]
        latest: dict[tuple[Any, ...], tuple[int, pa.RecordBatch]] = {}
        for block, first, end in parts:
            # in UTC, as in descriptions; other runs may have written another zone
            batch = in_utc(cache.read(block).slice(first, end - first))
            types.update((str(field.type), field.type) for field in batch.schema)
            hashes, keys = batch.column(0).to_numpy(), batch.select(range(1, num_keys[1] + 1))
            last_column = batch.column(batch.num_columns - 1)
            removed = np.zeros(batch.num_rows, np.bool_)
            if batch.num_columns > num_keys[1] + 1 and pa.types.is_boolean(last_column.type):
                removed = last_column.to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(matches(keys.select(range(num_keys[0])))):
                entry = keys.slice(row, 1)
                identity = tuple(map(repr, entry.to_pylist()[0].values()))
                latest.pop(identity, None)
                if not removed[row]:
                    latest[identity] = int(hashes[row]), entry
        if latest:
            latest_hashes, rows = zip(*latest.values(), strict=True)
            hashes = np.array(latest_hashes, np.int64)
            entries.append((chain.key_group, hashes, pa.concat_batches(rows)))
    return entries


def _removal_entries(
    entries: _Entries, columns: Columns, types: Mapping[str, pa.DataType]
) -> pa.RecordBatch:
    """Build the record batch of a changelog segment that removes entries."""
    keys = pa.concat_batches([keys for _, _, keys in entries])
    values = [_placeholder_values(name, dtype, keys.num_rows, types) for name, dtype in columns]
    return pack_entries(
        StateRows(
            hashes=np.concatenate([hashes for _, hashes, _ in entries]),
            keys=keys,
            values=pa.RecordBatch.from_arrays(values, [name for name, _ in columns]),
            removed=np.ones(keys.num_rows, np.bool_),
        )
    )


def _placeholder_values(
    name: str, text: str, count: int, types: Mapping[str, pa.DataType]
) -> pa.Array:
    """Return `count` arbitrary values of a state column, for entries that are removals.

    `text`: the column's type as text. `types`: text → type, of columns found in the checkpoint;
    raises `CheckpointError` if it is not among them.
    """
    dtype = types.get(text)
    if dtype is None:
        raise CheckpointError(
            f"State column {name!r} got the type {text}, but has no epoch with it yet.",
            remedy="Run the program that wrote the last epochs, and then remove the key.",
            column=name,
        )
    if pa.types.is_large_binary(dtype):
        return pa.array([b""] * count, dtype)
    return pa.array([0] * count, dtype) if dtype == pa.int64() else pa.nulls(count, dtype)


def keep_position(log: CommitLog, source: str, *, delivered: bool = False) -> None:
    """Allow a source, read without Spark, to continue from its position in other data.

    `delivered`: as for `remove_key`.
    """
    latest = log.latest
    assert latest is not None
    assert latest.last_batch is not None
    known = latest.last_batch.identities
    if source not in known:
        raise CheckpointMismatchError(
            f"The checkpoint {log.storage.uri!r} has no source {source!r}.",
            remedy=f"Its sources are {', '.join(sorted(known))}.",
            uri=log.storage.uri,
        )
    identities = {**known, source: ANY_IDENTITY}
    before = msgspec.structs.replace(latest.last_batch, identities=identities)
    commit_edit(log, latest, before, delivered=delivered)

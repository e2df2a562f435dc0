"""Changes to a stopped checkpoint: operators renamed or dropped, the state of single keys removed.

What is committed never changes, and only an epoch's record can say that something is different.  So
renaming or dropping state from outside leaves an *edit* beside the flow version that it is about;
the next run puts it into the flow version that it writes.  Until that run commits an epoch,
nothing has changed, and whatever else was read before can still be read.  What becomes of an
operator becomes of its parts too.

A state that today's program cannot read ends every epoch that has a row of its key.  It is removed
as a function would remove it: by changelog segments, in an epoch of their own without input, which
everything that reads the checkpoint knows already.  What the key had counts until that epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.chains import rows_of
from godwit.checkpoint.entries import BatchCache, StateRows, in_utc, pack_entries
from godwit.checkpoint.evolution import edited
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.records import EditRecord, SegmentRef, StateId, edit_path
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.evolution import Columns, FlowVersion

__all__ = ["drop_operator", "remove_key", "rename_operator"]


def rename_operator(log: CommitLog, old: str, new: str) -> None:
    """Let the next epoch find the state of `old` under `new`."""
    version = _current(log)
    _check_operator(log, version, old)
    renamed = {name: new + name.removeprefix(old) for name in (old, *version.parts_of(old))}
    existing = next((name for name in renamed.values() if version.operator(name) is not None), "")
    if existing or not new:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has an operator {existing!r} already."
            if new
            else "The new name is empty.",
            remedy="Choose a name that it does not have; drop that operator first if its state is "
            "no longer needed.",
            operator=existing,
        )
    _write(log, EditRecord(flow=log.flow, renamed=renamed))


def drop_operator(log: CommitLog, operator: str, *, reset: bool = False) -> None:
    """Let the next epoch forget the state of an operator, and the rows that wait for it."""
    version = _current(log)
    _check_operator(log, version, operator)
    if operator in version.operators and not reset:
        raise CheckpointError(
            f"Operator {operator!r} was part of the flow when it ran last, and would start empty "
            "if it still is.",
            remedy="Give --reset if that is what you want.",
            operator=operator,
        )
    _write(log, EditRecord(flow=log.flow, dropped=(operator, *version.parts_of(operator))))


def _current(log: CommitLog) -> FlowVersion:
    if log.latest is None:
        raise CheckpointError(
            f"No epoch is committed yet in the checkpoint {log.storage.uri!r}, so it has no "
            "operators.",
            remedy="Change the flow; a start that committed nothing has claimed nothing.",
        )
    return edited(log.version(log.flow), log.edits())


def _check_operator(log: CommitLog, version: FlowVersion, operator: str) -> None:
    current = version.operator(operator)
    if current is not None and current.part_of:
        raise CheckpointError(
            f"Operator {operator!r} is a part of {current.part_of!r}.",
            remedy=f"Name {current.part_of!r}: its parts go the same way.",
            operator=operator,
        )
    if current is None:
        every = {**version.operators, **version.kept}
        names = sorted(name for name, of in every.items() if not of.part_of)
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join(names) or '(none)'}.",
            operator=operator,
        )


def _write(log: CommitLog, edit: EditRecord) -> None:
    edit = log.next_edit(edit)
    log.storage.create_exclusive(edit_path(edit.number), encode_record(edit))


def remove_key(
    log: CommitLog,
    operator: str,
    matches: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]],
    *,
    key: str,
) -> dict[str, int]:
    """Commit an epoch in which a key of an operator has no state.

    `matches`: says of n rows of key columns which are that key, shape ``(n,)``.
    """
    version = log.version(log.flow)
    target = version.operator(operator)
    latest = log.latest
    if target is None or latest is None:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join({**version.operators, **version.kept})}.",
            operator=operator,
        )
    removal = _Removal(log.chains, len(target.keys), matches, BatchCache(log.storage))
    segments: list[SegmentRef] = []
    counts: dict[str, int] = {}
    for name in (operator, *version.parts_of(operator)):
        of = version.operator(name)
        for state, described in () if of is None else of.states.items():
            entries = removal.entries(StateId(name, state), len(described.entries))
            if not entries:
                continue
            counts[str(StateId(name, state))] = sum(len(keys) for _, _, keys in entries)
            epoch = latest.epoch + 1
            with BlockWriter(log.storage, epoch=epoch, name=f"{name}-removal") as writer:
                writer.add(encode_batch(removal.batch(entries, described.columns)))
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
                f"{segment.operator!r}, so its state cannot change before they are processed.",
                remedy="Drop the state of the whole operator (without --key), or go on from a copy "
                "of the checkpoint of an earlier epoch.",
                operator=operator,
            )
    log.commit(
        msgspec.structs.replace(
            latest,
            epoch=latest.epoch + 1,
            batch=None,
            before=latest.last_batch,
            segments=tuple(segments),
            snapshots=(),
            outputs=(),
            consumed={},
        )
    )
    return counts


class _Removal:
    """Finds the entries of one key, wherever they are."""

    def __init__(
        self,
        chains: Chains,
        num_keys: int,
        matches: Callable[[pa.RecordBatch], npt.NDArray[np.bool_]],
        cache: BatchCache,
    ) -> None:
        self._chains, self._num_keys = chains, num_keys
        self._matches, self._cache = matches, cache
        self._types: dict[str, pa.DataType] = {}

    def entries(
        self, state: StateId, apart: int
    ) -> list[tuple[int, npt.NDArray[np.int64], pa.RecordBatch]]:
        """Key group, hashes and key columns of the entries of a state that are there."""
        entries = []
        for key_group in range(self._chains.num_key_groups):
            there: dict[tuple[Any, ...], tuple[int, pa.RecordBatch]] = {}
            for hashes, keys, removed in self._batches(state, key_group, self._num_keys + apart):
                for row in np.flatnonzero(self._matches(keys.select(range(self._num_keys)))):
                    entry = keys.slice(row, 1)
                    name = tuple(map(repr, entry.to_pylist()[0].values()))
                    there.pop(name, None)
                    if not removed[row]:
                        there[name] = int(hashes[row]), entry
            if there:
                numbers, rows = zip(*there.values(), strict=True)
                entries.append((key_group, np.array(numbers, np.int64), pa.concat_batches(rows)))
        return entries

    def _batches(
        self, state: StateId, key_group: int, num_keys: int
    ) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Hashes, key columns and removals, in the order in which they were written."""
        chain = self._chains.chain(state, key_group)
        if chain.snapshot is not None:
            yield self._taken_apart(self._cache.read(chain.snapshot.block), num_keys)
        for segment in chain.segments:
            first, end = rows_of(segment, key_group)
            batch = self._cache.read(segment.block)
            yield self._taken_apart(batch.slice(first, end - first), num_keys)

    def _taken_apart(
        self, batch: pa.RecordBatch, num_keys: int
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch, npt.NDArray[np.bool_]]:
        batch = in_utc(batch)  # as descriptions say; other runs may have written another zone
        self._types.update((str(field.type), field.type) for field in batch.schema)
        last = batch.column(batch.num_columns - 1)
        removed = np.zeros(batch.num_rows, np.bool_)
        if batch.num_columns > num_keys + 1 and pa.types.is_boolean(last.type):
            removed = last.to_numpy(zero_copy_only=False)
        return batch.column(0).to_numpy(), batch.select(range(1, num_keys + 1)), removed

    def batch(
        self, entries: list[tuple[int, npt.NDArray[np.int64], pa.RecordBatch]], columns: Columns
    ) -> pa.RecordBatch:
        """Entries that say that they are gone."""
        keys = pa.concat_batches([keys for _, _, keys in entries])
        values = [self._blank(name, dtype, keys.num_rows) for name, dtype in columns]
        return pack_entries(
            StateRows(
                hashes=np.concatenate([hashes for _, hashes, _ in entries]),
                keys=keys,
                values=pa.RecordBatch.from_arrays(values, [name for name, _ in columns]),
                removed=np.ones(keys.num_rows, np.bool_),
            )
        )

    def _blank(self, name: str, text: str, count: int) -> pa.Array:
        dtype = self._types.get(text)
        if dtype is None:
            raise CheckpointError(
                f"State column {name!r} has had the type {text} for no epoch yet.",
                remedy="Start the program that wrote the last epochs, and remove the key from "
                "what it leaves.",
                column=name,
            )
        if pa.types.is_large_binary(dtype):
            return pa.array([b""] * count, dtype)
        return pa.array([0] * count, dtype) if dtype == pa.int64() else pa.nulls(count, dtype)

"""Live rows of a table that changes, by key, as entries of state.

The rows of a key are numbered in order of arrival, in *slots*; an operator stores how many slots
each key has.  Rows are added without a look at others.  A row is deleted by its values: the rows of
its key are read, and of equal ones the oldest goes.  A delete whose row is not there stays, as a
row with sign -1.  When most slots of a key are empty, they are closed up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows, mix_rows
from godwit.columns.hashing import canonical_keys, hash_keys, is_hashable
from godwit.model.errors import EpochFailedError, InvalidFlowError
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import STATE, changed_by_key
from godwit.operators.ordering import expand_ranges, order_by, starts_of
from godwit.store.columns import StateSchema, can_be_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.columns.groups import Groups
    from godwit.operators.operator import Changed, StateView

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
WAIT: Final = ' If a delete can arrive before its row, use on_missing="wait".'
SLOT: Final = pa.field(f"{RESERVED_PREFIX}_slot", pa.int64())
SIGN: Final = pa.field(f"{RESERVED_PREFIX}_sign", pa.int8())
_BITS_PER_DELETE: Final = 32
_SPARE: Final = 16  # empty slots of a key below which they are not closed up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Applied:
    """Rows of keys with changes: the stored ones that were read, then the epoch's."""

    key: IntArray  # of each row, the number of its key
    rows: pa.RecordBatch
    was_live: BoolArray  # rows that were live before the epoch, of keys that are read
    is_live: BoolArray  # rows that are live after the epoch
    waiting: IntArray  # of each key, the number of deletes that wait for their rows
    slots: IntArray  # of each key, the number of its slots after the epoch
    changed: Changed | None  # entries to write and to remove


class LiveRows:
    """Layout of the live rows of one table, by key."""

    def __init__(self, operator: str, keys: pa.Schema, columns: Iterable[pa.Field]) -> None:
        columns = list(columns)
        _check_columns(operator, columns)
        self.columns = pa.schema(columns)
        self.schema = StateSchema(keys=pa.schema([*keys, SLOT]), values=pa.schema([*columns, SIGN]))

    def apply(
        self,
        view: StateView,
        groups: Groups,
        keys: pa.RecordBatch,
        *,
        key: IntArray,
        rows: pa.RecordBatch,
        signs: npt.NDArray[np.int8],
        slots: IntArray,
        read: BoolArray,
    ) -> Applied:
        """Apply an epoch's changes to the rows of keys.

        `key`, `rows`, `signs`: key number, columns and sign of each change. `slots`: number of
        slots of each key. `read`: mask of further keys to read; those with deletes are read anyway.
        """
        has_delete = np.zeros(groups.count, np.bool_)
        has_delete[key[signs < 0]] = True
        read = read | has_delete
        stored_key, stored_slot, stored = self._load_rows(
            view, groups, keys, np.where(read, slots, 0)
        )
        count = len(stored_key)
        key = np.concatenate([stored_key, key])
        batch = pa.concat_batches(
            [part.select(self.columns.names) for part in (stored, rows)]
        ).cast(self.columns)
        sign = np.concatenate([values_of(stored.column(SIGN.name)), signs])
        is_kept = rows_after_netting(key, batch, sign)
        # Slots: those of stored rows, then of new ones in order.
        new = count + np.flatnonzero(is_kept[count:])
        slot = np.concatenate([stored_slot, np.zeros(len(key) - count, np.int64)])
        slot[new] = slots[key[new]] + ranks_within(key[new], groups.count)
        num_kept = np.bincount(key[is_kept], minlength=groups.count)
        slots_after = slots + np.bincount(key[new], minlength=groups.count)
        is_compacted = read & (slots_after > 2 * num_kept + _SPARE)
        slots_after = np.where(is_compacted | (read & (num_kept == 0)), num_kept, slots_after)
        written, removed = new, np.flatnonzero(~is_kept[:count])
        if is_compacted.any():
            moved = np.flatnonzero(is_kept & is_compacted[key])
            moved = moved[np.lexsort((slot[moved], key[moved]))]
            slot[moved] = ranks_within(key[moved], groups.count)
            written = np.concatenate([new[~is_compacted[key[new]]], moved])
            key_is_compacted = is_compacted[stored_key]
            freed = np.flatnonzero(key_is_compacted & (stored_slot >= num_kept[stored_key]))
            removed = np.concatenate([removed[~key_is_compacted[removed]], freed])
        changed = None
        entries = np.concatenate([written, removed])
        if len(entries):
            columns = [*batch.columns, column_of(sign, None, pa.int8())]
            values = pa.RecordBatch.from_arrays(columns, schema=self.schema.values)
            places = np.concatenate([slot[written], stored_slot[removed]])
            changed = changed_by_key(
                groups,
                key[entries],
                self._entry_keys(keys, key[entries], places),
                values.take(pa.array(entries)),
                np.arange(len(entries)) >= len(written),
            )[STATE]
        inserts = sign > 0
        was_live = inserts.copy()
        was_live[count:] = False
        unmatched_deletes = np.flatnonzero(is_kept & ~inserts)
        return Applied(
            key=key,
            rows=batch,
            was_live=was_live,
            is_live=is_kept & inserts,
            waiting=np.bincount(key[unmatched_deletes], minlength=groups.count),
            slots=slots_after,
            changed=changed,
        )

    def _load_rows(
        self, view: StateView, groups: Groups, keys: pa.RecordBatch, slots: IntArray
    ) -> tuple[IntArray, IntArray, pa.RecordBatch]:
        """Return key number, slot and columns of the stored rows of keys, in order of slots.

        `slots`: number of slots of each key to read; 0 for others.
        """
        key, slot = expand_ranges(np.zeros(len(slots), np.int64), slots)
        known, values = view.find(self._entry_keys(keys, key, slot), groups.key_groups[key])
        if known.all():
            return key, slot, values
        return key[known], slot[known], values.filter(pa.array(known))

    def _entry_keys(self, keys: pa.RecordBatch, key: IntArray, slot: IntArray) -> pa.RecordBatch:
        """Return the key columns of entries."""
        columns = [*keys.take(pa.array(key)).columns, column_of(slot, None, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.keys)


def ranks_within(group: IntArray, count: int) -> IntArray:
    """Return the number, from 0, of each row within its group, in the order that rows have."""
    starts = starts_of(group, count)
    order = order_by(group)
    ranks = np.empty(len(group), np.int64)
    ranks[order] = np.arange(len(group)) - starts[group[order]]
    return ranks


def rows_after_netting(
    key: IntArray, rows: pa.RecordBatch, sign: npt.NDArray[np.int8]
) -> BoolArray:
    """Return a mask of the rows that remain after deletes cancel equal rows of their key.

    Of equal rows the oldest, which come first, go. Deletes that meet none stay.
    """
    is_kept, deletes = np.ones(len(sign), np.bool_), sign < 0
    num_deletes = int(np.count_nonzero(deletes))
    if not num_deletes or num_deletes == len(sign):
        return is_kept
    columns = canonical_keys(
        pa.RecordBatch.from_arrays(
            [column_of(key, None, pa.int64()), *rows.columns], names=["", *rows.schema.names]
        )
    )
    mixed_hashes, covers_all = mix_rows(columns.columns)
    may_meet = _may_meet(mixed_hashes, deletes, num_deletes)
    if not len(may_meet):
        return is_kept
    columns = columns.take(pa.array(may_meet))
    hashes = mixed_hashes[may_meet].view(np.int64) if covers_all else hash_keys(columns)
    equal_rows, deletes = group_rows(hashes, columns, 1), deletes[may_meet]
    counts = [
        np.bincount(equal_rows.of_row[mask], minlength=equal_rows.count)
        for mask in (~deletes, deletes)
    ]
    is_kept_here = np.zeros(len(may_meet), np.bool_)
    for mask, num_left in (
        (~deletes, counts[0] - counts[1]),
        (deletes, counts[1] - counts[0]),
    ):
        # The newest ones stay, as many as the others have not met.
        positions = np.flatnonzero(mask & (num_left > 0)[equal_rows.of_row])[::-1]
        if len(positions):
            group = equal_rows.of_row[positions]
            is_kept_here[positions[ranks_within(group, equal_rows.count) < num_left[group]]] = True
    is_kept[may_meet] = is_kept_here
    return is_kept


def _may_meet(mixed: npt.NDArray[np.uint64], deletes: BoolArray, num_deletes: int) -> IntArray:
    """Return the positions of rows that may equal a row of the opposite sign.

    Deletes are few beside the rows of their keys, so a bit for each hash rules out most rows.
    """
    bits = (_BITS_PER_DELETE * num_deletes).bit_length()
    place = (mixed >> np.uint64(64 - bits)).view(np.int64)
    is_deleted, is_inserted = np.zeros((2, 1 << bits), np.bool_)
    is_deleted[place[deletes]] = True
    may_meet = is_deleted[place]
    is_inserted[place[may_meet & ~deletes]] = True
    return np.flatnonzero(may_meet & (~deletes | is_inserted[place]))


def refuse_missing(operator: str, missing: BoolArray, keys: pa.RecordBatch, remedy: str) -> None:
    """Raise if a key had deletes of rows that do not exist; `missing`: mask of keys.

    `remedy`: a further one, of the operator.
    """
    if not missing.any():
        return
    first = int(np.flatnonzero(missing)[0])
    key = tuple(column[first].as_py() for column in keys.columns)
    raise EpochFailedError(
        f"Operator {operator!r} got a delete for key {key!r} of a row that is not in the table.",
        remedy=(
            "Read the changes from their beginning, or derive them by key_by(...).latest(), "
            f"which stores the rows.{remedy}"
        ),
        operator=operator,
        key=key,
    )


def _check_columns(operator: str, columns: list[pa.Field]) -> None:
    """Raise for columns of live rows that cannot be stored or compared."""
    for field in columns:
        if not (can_be_state(field.type) and is_hashable(field.type)):
            raise InvalidFlowError(
                f"Operator {operator!r} stores the rows of a table that changes, and column "
                f"{field.name!r} has type {field.type}, which state cannot hold.",
                remedy=f"Drop {field.name!r} in an earlier map, or convert it to numbers or text.",
                operator=operator,
                column=field.name,
            )

"""Join of two tables that change, by key: the changes of the joined table.

State is the live rows of both tables.  For changes dL and dR of a key, the joined rows change by
``dL * R + L' * dR``, where R is the right table before the epoch and L' the left one after it.  So
a new row reads the rows of its key in the other table, and a key without changes is not touched.
Rows of an outer join without a match come and go with the first and the last row of the other side.

A null key is a key like any other to the operator, but matches nothing, as in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.evolution import columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import column_of, values_of
from godwit.columns.signed import CHANGE
from godwit.library.joins.sides import LEFT, RIGHT, SIDE, without_null
from godwit.library.live_rows import WAIT, LiveRows, refuse_missing, rows_after_netting
from godwit.model.errors import EpochFailedError
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput, changed_by_key
from godwit.operators.ordering import expand_ranges, order_by, starts_of
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.library.live_rows import Applied
    from godwit.operators.operator import Changed, OperatorInput
    from godwit.plan.nodes import How, OnMissing

IntArray = npt.NDArray[np.int64]
_NAMES: Final = ("left", "right")
_SIGN: Final = pa.field(f"{RESERVED_PREFIX}_change", pa.int8())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSide:
    """One of the two tables."""

    keys: tuple[str, ...]  # names of its key columns
    columns: tuple[str, ...]  # its other columns, under the names that they have there
    named: pa.Schema  # the same columns, under the names that they have in the output
    inputs: frozenset[int]  # numbers of the operator's inputs that its changes come by


class ChangesJoin(KeyedOperator):
    """Operator that joins two tables that change."""

    kind = "join of tables"
    emits: ClassVar[str] = "the old and the new version of joined rows that changed in the epoch"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        left: TableSide,
        right: TableSide,
        how: How,
        on_missing: OnMissing = "refuse",
    ) -> None:
        self.on_missing = on_missing
        self.name, self.how, self.sides, self.changes = name, how, (left, right), True
        side = pa.field(SIDE, pa.int8())
        self.inputs = pa.schema([side, _SIGN, *left.named, *right.named])
        counts = [
            pa.field(f"{RESERVED_PREFIX}_{table}_{counted}", pa.int64())
            for table in _NAMES
            for counted in ("slots", "rows")
        ]
        self.schema = StateSchema(keys=keys, values=pa.schema(counts))
        self._live = tuple(LiveRows(name, keys, table_side.named) for table_side in self.sides)
        self._table = pa.schema([*keys, *left.named, *right.named])
        self.output = pa.schema([*self._table, CHANGE])

    @property
    def states(self) -> tuple[StateId, ...]:
        """The numbers of rows of each key, and the rows of each table."""
        return tuple(StateId(self.name, state) for state in (STATE, *_NAMES))

    def schema_of(self, state: str) -> StateSchema:
        return self.schema if state == STATE else self._live[_NAMES.index(state)].schema

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state for the checkpoint: its columns, and the kind of join."""
        schema = self.schema_of(state)
        return msgspec.structs.replace(
            super().describe_state(state),
            entries=columns_of(list(schema.keys)[len(self.keys) :]),
            means={"keys": {n: list(s.keys) for n, s in zip(_NAMES, self.sides, strict=True)}},
        )

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:
        """Convert changes of one table to the columns that both share; rows are inserts."""
        side_number = LEFT if input_number in self.sides[LEFT].inputs else RIGHT
        side, count = self.sides[side_number], rows.num_rows
        own_columns = [rows.column(name) for name in side.columns]
        null_columns = [pa.nulls(count, field.type) for field in self.sides[1 - side_number].named]
        signs = (
            rows.column(CHANGE.name)
            if CHANGE.name in rows.schema.names
            else column_of(np.ones(count, np.int8), None, pa.int8())
        )
        columns = [
            *(rows.column(key) for key in side.keys),
            column_of(np.full(count, side_number, np.int8), None, pa.int8()),
            signs,
            *(own_columns + null_columns if side_number == LEFT else null_columns + own_columns),
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*self.keys.names, *self.inputs.names])

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Apply the epoch's changes to both tables, and emit those of the joined rows."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        rows = data.rows.values
        groups, keys = data.grouped(len(self.keys))
        sides = values_of(rows.column(SIDE))
        signs = rows.column(_SIGN.name)
        if signs.null_count or (np.abs(values_of(signs)) != 1).any():
            raise EpochFailedError(
                f"Operator {self.name!r} got a change whose column {CHANGE.name!r} is neither 1 "
                "nor -1.",
                remedy=(
                    f"Set {CHANGE.name!r} to 1 or -1 in every row, in the map before as_changes()."
                ),
                operator=self.name,
            )
        known, prior = data.state.find(keys, groups.key_groups)
        before = [np.where(known, values_of(column), 0) for column in prior.columns]
        has = [np.bincount(groups.of_row[sides == s], minlength=groups.count) > 0 for s in (0, 1)]
        tables = []
        for side, live in enumerate(self._live):
            rows_of_side = np.flatnonzero(sides == side)
            named = self.sides[side].named.names
            read = has[1 - side]
            if self.on_missing == "wait":  # deletes may be in some of the other slots
                read = read | (before[2 * side] > before[2 * side + 1])
            tables.append(
                live.apply(
                    data.states[_NAMES[side]],
                    groups,
                    keys,
                    key=groups.of_row[rows_of_side],
                    rows=rows.select(named).take(pa.array(rows_of_side)),
                    signs=values_of(signs)[rows_of_side],
                    slots=before[2 * side],
                    read=read,
                )
            )
            if self.on_missing == "refuse":
                refuse_missing(self.name, tables[side].waiting > 0, keys, WAIT)
        numbers = [_num_rows(t, before[2 * s + 1]) for s, t in enumerate(tables)]
        state = pa.RecordBatch.from_arrays(
            [
                column_of(part, None, pa.int64())
                for table, number in zip(tables, numbers, strict=True)
                for part in (table.slots, number)
            ],
            schema=self.schema.values,
        )
        waiting = tables[LEFT].waiting + tables[RIGHT].waiting
        gone = (numbers[0] == 0) & (numbers[1] == 0) & (waiting == 0)
        written = np.flatnonzero(known | ~gone)
        where = pa.array(written)
        changed: dict[str, Changed] = changed_by_key(
            groups, written, keys.take(where), state.take(where), gone[written]
        )
        changed |= {
            name: table.changed
            for name, table in zip(_NAMES, tables, strict=True)
            if table.changed is not None
        }
        output = self._joined_changes(groups, keys, tables, (before[1], before[3]), numbers)
        return OperatorOutput(
            output=output,
            groups=groups,
            changed=changed,
            waiting_deletes=int(waiting.sum()),
        )

    def _joined_changes(
        self,
        groups: Groups,
        keys: pa.RecordBatch,
        tables: list[Applied],
        before: tuple[IntArray, IntArray],
        after: list[IntArray],
    ) -> pa.RecordBatch:
        """Return the net changes of the joined rows, deletes first.

        `before`, `after`: number of rows of each key in each table.
        """
        matches = without_null(keys)
        left, right = tables
        pairs = [
            _pairs_of_equal_keys(_changed_rows(left), _rows_before(right), matches, groups.count),
            _pairs_of_equal_keys(_rows_after(left), _changed_rows(right), matches, groups.count),
        ]
        signs = _change_signs(left)[pairs[0][0]], _change_signs(right)[pairs[1][1]]
        rows = [
            self._signed_joined_rows(keys, tables, *pair, sign)
            for pair, sign in zip(pairs, signs, strict=True)
        ]
        for side in (LEFT, RIGHT):
            if self.how in (("left", "full"), ("right", "full"))[side]:
                other = 1 - side
                was_unmatched = (before[other] == 0) | ~matches
                is_unmatched = (after[other] == 0) | ~matches
                position, sign = _unmatched_changes(tables[side], was_unmatched, is_unmatched)
                no_rows = np.full(len(position), -1)
                left_rows, right_rows = (position, no_rows) if side == LEFT else (no_rows, position)
                rows.append(self._signed_joined_rows(keys, tables, left_rows, right_rows, sign))
        table = pa.concat_batches([part for part, _, _ in rows])
        all_signs = np.concatenate([sign for _, sign, _ in rows])
        key = np.concatenate([part for _, _, part in rows])
        is_emitted = np.ones(len(all_signs), np.bool_)
        may_cancel = np.flatnonzero(self._may_cancel_out(tables, groups.count)[key])
        is_emitted[may_cancel] = rows_after_netting(
            key[may_cancel], table.take(pa.array(may_cancel)), all_signs[may_cancel]
        )
        removed, added = (np.flatnonzero(is_emitted & (all_signs == sign)) for sign in (-1, 1))
        order = np.concatenate([removed, added])
        columns = [
            *table.take(pa.array(order)).columns,
            column_of(all_signs[order], None, CHANGE.type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _may_cancel_out(self, tables: list[Applied], count: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the keys whose joined rows may be inserted and deleted in one epoch.

        Changes of one table differ, and so do the joined rows that have them. Rows without a match
        may be equal to those that are joined with nulls.
        """
        if self.how != "inner":
            return np.ones(count, np.bool_)
        left_changes, right_changes = (
            np.bincount(_changed_rows(table)[0], minlength=count) > 0 for table in tables
        )
        changes_on_both: npt.NDArray[np.bool_] = left_changes & right_changes
        return changes_on_both

    def _signed_joined_rows(
        self,
        keys: pa.RecordBatch,
        tables: list[Applied],
        left: IntArray,
        right: IntArray,
        signs: npt.NDArray[np.int8],
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int8], IntArray]:
        """Return joined rows, signs and key numbers; -1 in `left` or `right` means no row."""
        key = np.where(
            left < 0, _values_at(tables[RIGHT].key, right), _values_at(tables[LEFT].key, left)
        )
        columns = [
            *keys.take(pa.array(key)).columns,
            *tables[LEFT].rows.take(pa.array(left, mask=left < 0)).columns,
            *tables[RIGHT].rows.take(pa.array(right, mask=right < 0)).columns,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._table), signs, key


def _values_at(values: IntArray, positions: IntArray) -> IntArray:
    """Return values at positions; arbitrary ones for position -1."""
    return values[positions] if len(values) else np.zeros(len(positions), np.int64)


def _num_rows(table: Applied, before: IntArray) -> IntArray:
    """Return the number of rows of each key after the epoch."""
    count = len(before)
    return (
        before
        - np.bincount(table.key[table.was_live & ~table.is_live], minlength=count)
        + np.bincount(table.key[table.is_live & ~table.was_live], minlength=count)
    )


def _changed_rows(table: Applied) -> tuple[IntArray, IntArray]:
    """Return key and position of the rows deleted from a table, or inserted into it."""
    positions = np.flatnonzero(table.was_live != table.is_live)
    return table.key[positions], positions


def _change_signs(table: Applied) -> npt.NDArray[np.int8]:
    """Return the sign of each changed row: -1 for stored rows, which are deleted, else 1."""
    return np.where(table.was_live, -1, 1).astype(np.int8)


def _rows_before(table: Applied) -> tuple[IntArray, IntArray]:
    """Return key and position of a table's rows before the epoch, for the keys that were read."""
    positions = np.flatnonzero(table.was_live)
    return table.key[positions], positions


def _rows_after(table: Applied) -> tuple[IntArray, IntArray]:
    """Return key and position of a table's rows after the epoch, for the keys that were read."""
    positions = np.flatnonzero(table.is_live)
    return table.key[positions], positions


def _pairs_of_equal_keys(
    left: tuple[IntArray, IntArray],
    right: tuple[IntArray, IntArray],
    matches: npt.NDArray[np.bool_],
    count: int,
) -> tuple[IntArray, IntArray]:
    """Return the positions of all pairs of rows of equal keys; `matches`: mask of keys."""
    key, position = left
    other_key, other = right
    # Only keys of both sides matter, and one of the sides may have many others.
    is_left, is_both = np.zeros((2, count), np.bool_)
    is_left[key] = True
    is_both[other_key] = True
    is_both &= is_left & matches
    if not is_both.all():
        matching, other_matching = is_both[key], is_both[other_key]
        key, position, other_key, other = (
            *(key[matching], position[matching]),
            *(other_key[other_matching], other[other_matching]),
        )
    order = order_by(other_key)
    starts = starts_of(other_key, count)
    row, place = expand_ranges(starts[key], starts[key + 1] - starts[key])
    return position[row], other[order[place]]


def _unmatched_changes(
    table: Applied, was_unmatched: npt.NDArray[np.bool_], is_unmatched: npt.NDArray[np.bool_]
) -> tuple[IntArray, npt.NDArray[np.int8]]:
    """Return position and sign of unmatched rows that are deleted, or inserted.

    `was_unmatched`, `is_unmatched`: masks of the keys without rows in the other table, before and
    after the epoch.
    """
    existed, exists = (
        table.was_live & was_unmatched[table.key],
        table.is_live & is_unmatched[table.key],
    )
    is_removed, is_added = existed & ~exists, exists & ~existed
    positions = np.concatenate([np.flatnonzero(is_removed), np.flatnonzero(is_added)])
    signs = np.concatenate(
        [np.full(is_removed.sum(), -1, np.int8), np.full(is_added.sum(), 1, np.int8)]
    )
    return positions, signs

"""``latest``: the newest row of each key, as changes.

State is the row of each key.  So upserts, which know only the new row, and deletes, which know only
the key, become changes with the former row, and state is as large as the table.  If a column says
which row is newer, the version of a deleted row stays, since an older row may still come.

A row without a version is newer than those before it in order of arrival.  Any row may follow it;
but a delete without one leaves the version as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, mask_of, values_of
from godwit.columns.signed import CHANGE, UNCHANGED, signs_of, with_sign, without_sign
from godwit.library.compute import same_rows
from godwit.library.duplicates import merge_columns
from godwit.model.errors import EpochFailedError
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import KeyedOperator, OperatorOutput, changed_by_key
from godwit.operators.ordering import descending_ranks, order_by, starts_of
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from godwit.columns.groups import Groups
    from godwit.operators.operator import EntryColumns, OperatorInput

IntArray = npt.NDArray[np.int64]
_DELETED: Final = pa.field(f"{RESERVED_PREFIX}_deleted", pa.bool_())


def signs_or_fail(rows: pa.RecordBatch, operator: str) -> npt.NDArray[np.int8]:
    """Return the signs of changes; raise if a row has another sign than -1 and 1."""
    signs = signs_of(rows)
    if signs is None:
        raise EpochFailedError(
            f"Operator {operator!r} got a change whose column {CHANGE.name!r} is neither 1 nor -1.",
            remedy=(
                "In the map before as_changes() or as_upserts(), give every row a "
                f"{CHANGE.name!r}: 1 for an inserted row, -1 for a deleted one."
            ),
            operator=operator,
        )
    return signs


class LatestOperator(KeyedOperator):
    """Operator that stores the newest row of each key, and emits the changes."""

    kind = "latest"
    reads_touched = True
    emits: ClassVar[str] = "the old and the new row of keys that changed in the epoch"

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        columns: pa.Schema,  # of the stream
        order_by: str | None,
    ) -> None:
        self.name, self.order_by, self.changes = name, order_by, True
        self._table = without_sign(columns) if CHANGE.name in columns.names else columns
        self.inputs = pa.schema([field for field in columns if field.name not in keys])
        values = [field for field in self._table if field.name not in keys]
        self.schema = StateSchema(
            keys=pa.schema([columns.field(key) for key in keys]),
            values=pa.schema([*values, _DELETED]),
        )
        self.output = pa.schema([*self._table, CHANGE])

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for the rows of a table."""
        nulls: dict[str, Any] = {_DELETED.name: lambda count: pa.nulls(count, pa.bool_())}
        return self.entries_from(state, rows, nulls)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Store the newest row of each key; emit it, and the row that it replaces."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        rows = data.rows.values
        groups, keys = data.grouped(len(self.keys))
        known, prior = data.state.find(keys, groups.key_groups)
        is_change = CHANGE.name in rows.schema.names
        signs = signs_or_fail(rows, self.name) if is_change else np.ones(rows.num_rows, np.int8)
        order, starts = self._by_age(groups, rows, signs, known, prior)
        touched = np.flatnonzero(np.diff(starts))
        newest = order[starts[touched + 1] - 1]
        stored = prior.take(pa.array(touched))
        has_row = known[touched] & values_of(pc.is_null(stored.column(_DELETED.name)))
        is_insert = signs[newest] == 1
        values = self._newest_state_columns(
            rows,
            signs,
            by_age=(order, starts),
            touched=touched,
            newest=newest,
            stored=stored,
            known=known[touched],
            has_row=has_row,
        )
        is_same = has_row & is_insert & same_rows(stored, values)
        table_keys = keys.take(pa.array(touched))
        parts = [
            with_sign(
                merge_columns(
                    table_keys.filter(pa.array(mask)), part.filter(pa.array(mask)), self._table
                ),
                sign,
            )
            for part, mask, sign in (
                (stored, has_row & ~is_same, -1),
                (values, is_insert & ~is_same, 1),
            )
        ]
        is_kept = is_insert
        if self.order_by is not None:
            is_kept = is_insert | values_of(values.column(self.order_by).is_valid())
        written = np.flatnonzero(~is_same & (is_kept | known[touched]))
        written_indices = pa.array(written)
        return OperatorOutput(
            output=pa.concat_batches(parts),
            groups=groups,
            changed=changed_by_key(
                groups,
                touched[written],
                table_keys.take(written_indices),
                values.take(written_indices),
                ~is_kept[written],
            ),
        )

    def _by_age(
        self,
        groups: Groups,
        rows: pa.RecordBatch,
        signs: npt.NDArray[np.int8],
        known: npt.NDArray[np.bool_],
        prior: pa.RecordBatch,
    ) -> tuple[IntArray, IntArray]:
        """Order rows by key and age, without those older than the stored row.

        Returns positions of rows, and where each key's start; by default the order of arrival.
        """
        if self.order_by is None:
            return groups.order, groups.starts
        versions = rows.column(self.order_by)
        stored_versions = prior.column(self.order_by)
        ranks = descending_ranks(pa.concat_arrays([stored_versions, versions]))
        ranks = ranks.max(initial=0) - ranks + 1
        stored, new = ranks[: groups.count], ranks[groups.count :]
        mask = mask_of(stored_versions)
        stored = np.where(known if mask is None else known & mask, stored, 0)
        mask = mask_of(versions)
        if mask is None:
            applied = np.flatnonzero(new >= stored[groups.of_row])
            group_of_applied = groups.of_row[applied]
            return applied[order_by(group_of_applied, new[applied])], starts_of(
                group_of_applied, groups.count
            )
        return _by_age_with_nulls(groups, signs, stored, np.where(mask, new, 0))

    def _newest_state_columns(
        self,
        rows: pa.RecordBatch,
        signs: npt.NDArray[np.int8],
        *,
        by_age: tuple[IntArray, IntArray],
        touched: IntArray,
        newest: IntArray,
        stored: pa.RecordBatch,
        known: npt.NDArray[np.bool_],
        has_row: npt.NDArray[np.bool_],
    ) -> pa.RecordBatch:
        """Return the state columns of the newest rows; null but for the version if deleted.

        `touched`: keys of these rows. `stored`: their stored rows, which have the values of columns
        that no new row has. `known`: mask of the keys with a stored row; `has_row`: of those
        whose stored row is not deleted.
        """
        is_insert = signs[newest] == 1
        left_out = _left_out_masks(rows)
        columns = []
        for field in self.schema.values:
            if field.name == _DELETED.name:
                deleted = np.ones(len(is_insert), np.bool_)
                columns.append(column_of(deleted, ~is_insert, pa.bool_()))
                continue
            column = rows.column(field.name)
            is_left_out, has_stored = left_out.get(field.name), has_row
            if is_left_out is not None:
                is_left_out = is_left_out & (signs == 1)
                column = pc.if_else(pa.array(signs == 1), column, pa.scalar(None, column.type))
            elif field.name == self.order_by and column.null_count:
                is_left_out, has_stored = values_of(column.is_null()) & (signs == -1), known
            if is_left_out is None:
                column = column.take(pa.array(newest))
            else:
                row_of_value, is_own = _inherited_rows(by_age, touched, is_left_out, len(column))
                column = pa.concat_arrays([column, stored[field.name]])
                column = column.take(pa.array(row_of_value, mask=~(is_own | has_stored)))
            if field.name != self.order_by and not is_insert.all():
                column = pc.if_else(pa.array(is_insert), column, pa.scalar(None, column.type))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)


def _by_age_with_nulls(
    groups: Groups, signs: npt.NDArray[np.int8], stored: IntArray, new: IntArray
) -> tuple[IntArray, IntArray]:
    """Order rows by key and age, as `LatestOperator._by_age`, if some have no version.

    `stored`, `new`: ranks of the versions of keys and rows; 0 without one.
    """
    order = groups.order
    key, rank = groups.of_row[order], new[order]
    has_no_version = rank == 0
    resets = np.cumsum(has_no_version & (signs[order] == 1))  # any row may follow these
    part_of_row = resets - np.concatenate([[0], resets])[groups.starts[key]]
    stored_rank = np.where(part_of_row == 0, stored[key], 0)
    # The newest version so far, of the same key and since the last reset.
    run = np.cumsum(np.concatenate([[0], (np.diff(key) != 0) | (np.diff(part_of_row) != 0)]))
    span = int(max(rank.max(initial=0), stored.max(initial=0))) + 1
    newest = np.maximum.accumulate(run * span + np.maximum(rank, stored_rank)) - run * span
    rank = np.where(has_no_version & (signs[order] == -1), newest, rank)
    applied = np.flatnonzero(rank >= stored_rank)
    by_age = order_by(key[applied], part_of_row[applied], rank[applied])
    return order[applied[by_age]], starts_of(key[applied], groups.count)


def _inherited_rows(
    by_age: tuple[IntArray, IntArray],
    touched: IntArray,
    is_left_out: npt.NDArray[np.bool_],
    num_rows: int,
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Return the rows with a column's newest values, if some rows leave it unchanged.

    `is_left_out`: mask of these rows. Returns a position for each key, among the rows followed by
    the stored rows, and a mask of the positions that are of a new row.
    """
    order, starts = by_age
    rows_with_value = np.where(is_left_out[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(rows_with_value)[starts[touched + 1] - 1]
    is_own = last >= starts[touched]
    row_of_value = np.where(is_own, order[np.maximum(last, 0)], num_rows + np.arange(len(touched)))
    return row_of_value, is_own


def _left_out_masks(rows: pa.RecordBatch) -> dict[str, npt.NDArray[np.bool_]]:
    """Return name of a column → mask of the upserts that leave it unchanged, if any."""
    if UNCHANGED.name not in rows.schema.names:
        return {}
    texts = rows.column(UNCHANGED.name)
    if texts.null_count == len(texts):
        return {}
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    for text in texts.unique().drop_null().to_pylist():
        mask = values_of(pc.fill_null(pc.equal(texts, text), fill_value=False))
        for name in text.split("\n"):
            masks[name] = masks[name] | mask if name in masks else mask
    return masks

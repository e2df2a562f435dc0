"""Changes of a table on their way to a sink that writes by key: upserts and deletes.

An epoch is one step, in which a key may change often.  A target gets one row for each key: the row
that is in the table after the epoch, or a delete.  Deletes come first, since a new row may have a
value that only one row of the target may have.

In upserts the last row of a key counts.  In changes, rows with 1 and equal rows with -1 cancel
out, in any order; the row with 1 that is left is in the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import canonical_floats, canonical_keys, hash_keys, is_hashable
from godwit.columns.signed import CHANGE, FORMER, UNCHANGED, without_sign
from godwit.model.errors import SinkError
from godwit.plan.staging import Rejections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.columns.signed import Kind
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import SinkContext

    IntArray = npt.NDArray[np.int64]

NO_SIGN: Final = f"column {CHANGE.name!r} is neither 1 nor -1"
"""Reason why a row of changes is rejected."""


def context_of_table(context: SinkContext, *, by_key: bool) -> SinkContext:
    """Return the context for a sink that can delete: of changes, with the columns of the table.

    `by_key`: the sink writes by key; else its rows have the column ``change``, like any other. The
    kind of the context is ``"rows"`` then. Raises `SinkError` for changes that cannot be written.
    """
    if context.kind == "rows" or not by_key:
        return replace(context, kind="rows")
    names = context.schema.names
    if context.complete:
        raise SinkError(
            f"Sink {context.name!r} would write a complete result as changes of a table.",
            remedy='Leave out as_changes() or as_upserts(), or use output="changes".',
            sink=context.name,
        )
    if context.kind == "upserts" and UNCHANGED.name in names:
        raise SinkError(
            f"Sink {context.name!r} would write upserts without the values of columns that their "
            f"column {UNCHANGED.name!r} names.",
            remedy="Call key_by(...).latest() on the stream before the sink, by the key of the "
            "table, which fills them in.",
            sink=context.name,
            columns=[UNCHANGED.name],
        )
    return replace(
        context,
        schema=pa.schema([field for field in context.schema if field.name != CHANGE.name]),
        unique_keys=(context.table_keys,) if context.table_keys else (),
    )


def rows_schema(context: SinkContext, schema: pa.Schema) -> pa.Schema:
    """Return the columns of the rows to write: those of the target, and for changes the sign."""
    if context.kind == "rows":
        return schema
    return pa.schema([*(field.with_nullable(True) for field in schema), CHANGE])


def check_of_rows(check: RowCheck, context: SinkContext) -> RowCheck:
    """Return the check for a sink's rows; `check`: that for rows with the target's columns."""
    return check if context.kind == "rows" else _CheckOfUpserts(check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckOfUpserts:
    """Check of changes: that of a target, for the rows that may be written to it; picklable."""

    check: RowCheck

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        """Return rows with sign 1 that the target cannot take, and rows without a sign."""
        signs = rows.column(CHANGE.name).fill_null(0).to_numpy(zero_copy_only=False)
        reasons = dict.fromkeys(np.flatnonzero(np.abs(signs) != 1).tolist(), NO_SIGN)
        written = np.flatnonzero(signs == 1)
        names = [name for name in rows.schema.names if name != CHANGE.name]
        rejections = self.check(rows.select(names).take(pa.array(written)))
        if rejections is not None:
            rejected = written[rejections.rows].tolist()
            reasons |= dict(zip(rejected, rejections.reasons, strict=True))
        return rejections_of(reasons)


def rejections_of(reasons: Mapping[int, str]) -> Rejections | None:
    """Return rows and the reasons why they are rejected, in order of rows; ``None``: none is."""
    if not reasons:
        return None
    rows = sorted(reasons)
    return Rejections(rows=np.asarray(rows, np.int64), reasons=[reasons[row] for row in rows])


def netted_rows(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: Sequence[str],
    kind: Kind,
    *,
    version: str | None = None,
    are_few: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield one row for each key that an epoch's changes may have changed; deletes come first.

    Deletes are null outside the key columns and `version`; equal floats in keys get equal bits.
    `read`: yields the epoch's changes, whose column ``change`` is the last one, the same ones at
    every call; or plain rows, each of which replaces the row of its key. `version`: column by which
    rows of a key are ordered; ``None``: by their position. `are_few`: they are read once, and held
    in memory.
    """
    if are_few:
        rows = list(read())
        read = lambda: rows  # noqa: E731
    chosen_signs = _chosen_rows(read, list(keys), kind, version)
    written = [*keys, *([] if version is None else [version])]
    for sign in (-1, 1):
        start = 0
        for batch in read():
            is_written = chosen_signs[start : start + batch.num_rows] == sign
            start += batch.num_rows
            if is_written.any():
                yield _written(batch.filter(pa.array(is_written)), written, sign)


def paired_rows(rows: pa.RecordBatch, keys: Sequence[str], kind: Kind) -> pa.RecordBatch:
    """Return one row for each key that an epoch's changes may have changed; deletes come first.

    Of changes with a column `FORMER`: the row that a row with 1 replaces. `rows`: the whole epoch.
    """
    signs = values_of(rows.column(CHANGE.name))
    if kind == "upserts":
        chosen = _chosen_rows(lambda: [rows], list(keys), kind, None)
        written_rows = np.concatenate([np.flatnonzero(chosen == sign) for sign in (-1, 1)])
        return _written(rows.take(pa.array(written_rows)), keys, 1)
    key, count = numbers_of_rows(rows.select(keys))
    uncancelled = _left_of_sum(
        key, rows.select([column for column in rows.schema.names if column != CHANGE.name]), signs
    )
    last = np.full((2, count), -1)
    last[(signs[uncancelled] > 0).astype(np.int64), key[uncancelled]] = (
        uncancelled  # the last one counts
    )
    old_rows, new_rows = last
    written_rows = np.concatenate(
        [old_rows[(old_rows >= 0) & (new_rows < 0)], np.sort(new_rows[new_rows >= 0])]
    )
    old_of_written = np.where(signs[written_rows] > 0, old_rows[key[written_rows]], -1)
    written = _written(rows.take(pa.array(written_rows)), keys, 1)
    names = [name for name in rows.schema.names if name != CHANGE.name]
    parts = rows.select(names).take(pa.array(np.maximum(old_of_written, 0)))
    struct = pa.StructArray.from_arrays(
        parts.columns, fields=list(parts.schema), mask=pa.array(old_of_written < 0)
    )
    return written.append_column(FORMER, struct)


def _written(rows: pa.RecordBatch, keys: Sequence[str], sign: int) -> pa.RecordBatch:
    """Return rows of one sign as they are written: equal keys with equal bits, deletes bare."""
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name in keys and pa.types.is_floating(field.type):
            columns.append(canonical_floats(column))
        elif sign == 1 or field.name in keys or field.name == CHANGE.name:
            columns.append(column)
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _chosen_rows(
    read: Callable[[], Iterable[pa.RecordBatch]],
    keys: list[str],
    kind: Kind,
    version: str | None = None,
) -> npt.NDArray[np.int8]:
    """Return the signs of the rows to write, and 0 for the others."""
    names = [*keys, *([] if version is None else [version])]
    names += [] if kind == "rows" else [CHANGE.name]
    parts = [batch.select(names) for batch in read()]
    if not parts:
        return np.zeros(0, np.int8)
    rows = pa.concat_batches(parts)
    signs = np.ones(rows.num_rows, np.int8)
    if kind != "rows":
        signs = values_of(rows.column(CHANGE.name))
    age = np.zeros(rows.num_rows, np.int64)
    if version is not None:
        age = ranks_of(rows.column(version))
    key, count = numbers_of_rows(rows.select(keys))
    order = np.lexsort((age, key))  # which leaves rows of one age in their order
    last = order[np.flatnonzero(np.diff(key[order], append=-1))]
    chosen = np.zeros(len(key), np.int8)
    if kind != "changes":
        chosen[last] = signs[last]
        return chosen
    is_alone = np.bincount(key, minlength=count)[key] == 1
    chosen[is_alone] = signs[is_alone]
    contested = np.flatnonzero(~is_alone)
    if len(contested):
        contested_rows = _rows_at(read(), contested)
        last_uncancelled = contested[
            _last_of_sum(key[contested], contested_rows, signs[contested], age[contested])
        ]
        chosen[last_uncancelled] = signs[last_uncancelled]
    return chosen


def _last_of_sum(
    key: IntArray, rows: pa.RecordBatch, signs: npt.NDArray[np.int8], age: IntArray
) -> IntArray:
    """Return the position of the row of each key that is left when changes are added up.

    Of the rows that are left: the last one of the newest ones with 1, else of those with -1; none
    if nothing is left.
    """
    uncancelled = _left_of_sum(key, rows, signs)
    order = uncancelled[
        np.lexsort((uncancelled, signs[uncancelled], age[uncancelled], key[uncancelled]))
    ]
    ends = np.flatnonzero(np.diff(key[order], append=-1))
    last: IntArray = order[ends]
    return last


def rows_of_table(changes: pa.Table, keys: Sequence[str] | None) -> pa.Table:
    """Return the rows of a table after changes to it, in order of arrival, without their signs.

    `keys`: columns of the key, if the rows are upserts; ``None``: they are changes.
    """
    table_schema = without_sign(changes.schema)
    if not changes.num_rows:
        return table_schema.empty_table()
    batch = batch_of(changes)
    signs = values_of(batch.column(CHANGE.name))
    group, count = numbers_of_rows(batch.select(table_schema.names if keys is None else list(keys)))
    num_left = np.bincount(group, weights=signs, minlength=count).astype(np.int64)
    candidates = np.flatnonzero(signs > 0)
    if keys is not None:
        candidates = np.arange(len(group))
        num_left[:] = 1
    order = candidates[np.lexsort((-candidates, group[candidates]))]  # the last ones first
    starts = np.searchsorted(group[order], group[order])
    remaining = order[np.arange(len(order)) - starts < num_left[group[order]]]
    kept_inserts = pa.array(np.sort(remaining[signs[remaining] > 0]))
    return pa.Table.from_batches(
        [batch.select(table_schema.names).take(kept_inserts)], schema=table_schema
    )


def is_newest(rows: pa.Table, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the first `count` rows of which no other row of their key is newer.

    `rows`: key columns, and a last one with the version; a row without a version is the oldest.
    """
    batch = batch_of(rows)
    rank = ranks_of(batch.column(batch.num_columns - 1))
    key, num_keys = numbers_of_rows(batch.select(batch.schema.names[:-1]))
    newest = np.zeros(num_keys, np.int64)
    np.maximum.at(newest, key, rank)
    mask: npt.NDArray[np.bool_] = rank[:count] >= newest[key[:count]]
    return mask


def _left_of_sum(key: IntArray, rows: pa.RecordBatch, signs: npt.NDArray[np.int8]) -> IntArray:
    """Return the positions of rows of which equal ones do not cancel out."""
    numbered = rows.rename_columns([str(number) for number in range(rows.num_columns)])
    row_value, _ = numbers_of_rows(numbered.append_column("key", column_of(key, None, pa.int64())))
    net_sign = np.bincount(row_value, weights=signs)
    return np.flatnonzero(net_sign[row_value] * signs > 0)


def _rows_at(batches: Iterable[pa.RecordBatch], positions: IntArray) -> pa.RecordBatch:
    """Return rows by their positions, ascending, without their signs."""
    parts, start = [], 0
    for batch in batches:
        first, end = np.searchsorted(positions, [start, start + batch.num_rows])
        part = batch.take(pa.array(positions[first:end] - start))
        parts.append(part.select([n for n in batch.schema.names if n != CHANGE.name]))
        start += batch.num_rows
    return pa.concat_batches(parts)


def batch_of(rows: pa.Table) -> pa.RecordBatch:
    """Return rows as one batch."""
    none = pa.RecordBatch.from_pylist([], rows.schema)
    return next(iter(rows.combine_chunks().to_batches()), none)


def ranks_of(values: pa.Array) -> IntArray:
    """Return the ranks of values from 1 on, shape ``(n,)``; equal for equal ones, -1 for null."""
    ranks = values_of(pc.rank(values, "ascending", tiebreaker="dense")).astype(np.int64)
    return np.where(values_of(pc.is_valid(values)), ranks, -1)


def numbers_of_rows(rows: pa.RecordBatch) -> tuple[IntArray, int]:
    """Return a number for each row, the same for equal rows, and how many numbers there are."""
    columns = [
        column if is_hashable(column.type) else pa.array(map(repr, column.to_pylist()), pa.string())
        for column in rows.columns
    ]
    alike = canonical_keys(pa.RecordBatch.from_arrays(columns, names=rows.schema.names))
    groups = group_rows(hash_keys(alike), alike, 1)
    return groups.of_row, groups.count

"""History of a table: each version of a row, with the start and the end of its validity.

The versions of a key are events, ordered by a column of the rows: a row, or a delete.  A row is
valid from its version until the next one of its key (``valid_to``), or is current.  So a late row
ends the row before it, and ends where the row after it begins; a row of the same version replaces
the one that is there.  A delete only ends a row.  If no row is there to end, the delete stays as an
empty row (``valid_from`` = ``valid_to``), which no time is within: a row before it may come yet.

Invariant: the target is the same in whatever order versions come, but for equal ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.arrays import values_of
from godwit.columns.signed import CHANGE
from godwit.sinks.changes import batch_of, numbers_of_rows, ranks_of
from godwit.sinks.rows import has_key_among

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.sinks.writing import TargetLayout

_END, _FORMER, _NEW = 0, 1, 2
_NONE: Final = -1  # number of an absent row, and rank of an absent version


def rows_of_versions(
    batches: Iterable[pa.RecordBatch], versions: pa.Table, layout: TargetLayout, schema: pa.Schema
) -> pa.Table:
    """Return the rows of a history that an epoch's versions may change.

    `batches`: rows of the target, with columns `schema`. `versions`: the epoch's, with the key
    columns and the version.
    """
    keys = versions.select(list(layout.row_keys))
    first = pc.min(versions.column(layout.version))
    parts = []
    for read in batches:
        batch = pa.Table.from_batches([pa.record_batch(read)]).cast(schema)
        ends = batch.column(layout.valid_to)
        batch = batch.filter(pc.or_kleene(pc.is_null(ends), pc.greater_equal(ends, first)))
        parts.append(batch.filter(pa.array(has_key_among(batch.select(keys.column_names), keys))))
    return pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()


def changed_history(
    former: pa.Table, versions: pa.Table, layout: TargetLayout, schema: pa.Schema
) -> pa.Table:
    """Return the rows of a history to write (``change`` 1) and to delete (-1), each key once.

    `former`: result of `rows_of_versions`. `versions`: one row for each key and version, with the
    columns of the target but for those that a history computes; with ``change``, if rows are also
    deleted. `schema`: columns of the target.
    """
    version, valid_to = layout.version, layout.valid_to
    stored = [field for field in schema if field.name not in layout.added]
    columns = pa.schema([field.with_nullable(True) for field in stored])
    # Events: the former rows, their ends, and the new versions.
    position, num_former = schema.get_field_index(version), former.num_rows
    ends = former.set_column(position, schema.field(version), former.column(valid_to))
    parts = [part.select(columns.names).cast(columns) for part in (former, ends, versions)]
    rows = batch_of(pa.concat_tables(parts))
    origin = np.repeat([_FORMER, _END, _NEW], [num_former, num_former, versions.num_rows])
    key, _ = numbers_of_rows(rows.select(list(layout.row_keys)))
    version_rank = ranks_of(rows.column(version))
    end_ranks = np.full(rows.num_rows, _NONE)
    end_ranks[:num_former] = version_rank[num_former : 2 * num_former]
    is_empty = end_ranks[:num_former] == version_rank[:num_former]
    signs = np.ones(versions.num_rows, np.int8)
    if CHANGE.name in versions.schema.names:
        signs = values_of(batch_of(versions).column(CHANGE.name))
    is_row = np.concatenate([~is_empty, np.zeros(num_former, np.bool_), signs > 0])
    is_event = np.ones(rows.num_rows, np.bool_)
    is_event[num_former : 2 * num_former] = (end_ranks[:num_former] != _NONE) & ~is_empty

    # In order, one for each key and version: new ones replace former ones, and those ends.
    events = np.flatnonzero(is_event)
    events = events[np.lexsort((origin[events], version_rank[events], key[events]))]
    key_and_version = key * (version_rank.max(initial=0) + 2) + version_rank
    events = events[np.flatnonzero(np.diff(key_and_version[events], append=_NONE))]
    has_next = np.diff(key[events], append=_NONE) == 0
    end_position = np.where(is_row[events], np.where(has_next, np.roll(events, -1), _NONE), events)
    ends_row = np.roll(has_next & is_row[events], 1)
    is_kept = is_row[events] | ~ends_row
    is_same = (origin[events] == _FORMER) & (
        end_ranks[events] == np.where(end_position == _NONE, _NONE, version_rank[end_position])
    )
    removed = np.flatnonzero(
        ~np.isin(key_and_version[:num_former], key_and_version[events[is_kept]])
    )
    written = np.concatenate([removed, events[is_kept & ~is_same]])
    end_position = np.concatenate([removed, end_position[is_kept & ~is_same]])

    written_indices, values = pa.array(written), {}
    is_valid = pa.array(is_row[written])
    for field in columns:
        column = rows.column(field.name).take(written_indices)
        is_value = field.name not in layout.keys
        values[field.name] = pc.if_else(is_valid, column, None) if is_value else column
    has_no_end = end_position == _NONE
    values[valid_to] = rows.column(version).take(pa.array(end_position, mask=has_no_end))
    values[layout.current] = pa.array(has_no_end)
    sign = np.repeat(np.array([-1, 1], np.int8), [len(removed), len(written) - len(removed)])
    changed = pa.table({name: values[name] for name in schema.names})
    return changed.append_column(CHANGE, pa.array(sign))

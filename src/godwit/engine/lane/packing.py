"""The form in which rows are sent: as they are, or combined into one partial state per key.

Combining saves what is sent, and work in the lane, where keys repeat; where they do not, it only
costs.  So it is decided for each chunk by a sample, and for hot keys by themselves
(`godwit.engine.lane.hot_keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.groups import group_repeating_rows, group_rows
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.engine.lane.hot_keys import hot_hashes, hot_rows, rows_of, sampled
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from godwit.columns.groups import Groups
    from godwit.operators.operator import KeyedOperator, Partials

__all__ = ["combining_pays", "pack", "partial_schema", "raw_schema"]

_SAMPLE = 0xF  # one hash in sixteen


def raw_schema(operator: KeyedOperator) -> pa.Schema:
    """Columns of raw rows: the key columns, then the others that the operator reads."""
    keys = operator.schema.keys
    others = [field for field in operator.inputs if field.name not in keys.names]
    return pa.schema([*keys, *others])


def partial_schema(operator: KeyedOperator) -> pa.Schema:
    """Columns of partial states: the key columns, then the state columns."""
    return pa.schema([*operator.schema.keys, *operator.schema.values])


def pack(
    operator: KeyedOperator, columns: pa.RecordBatch, num_key_groups: int, hot_share: float
) -> tuple[list[tuple[bool, pa.RecordBatch, npt.NDArray[np.int32]]], pa.RecordBatch | None]:
    """Give rows the form in which they are sent: all combined per key, those of hot keys, or none.

    Parameters
    ----------
    operator, num_key_groups
        The operator that they are for, and the number of its key groups.
    columns
        N rows as it takes them up.
    hot_share
        A key that has at least this share of the rows is hot; 0: none is.

    Returns
    -------
    packed, hot
        Whether they are partial states, rows, and the key group of each; hot keys, and how many
        rows they have, if there are any.
    """
    own = len(operator.keys)
    # The hash does not travel: computing it again in the lane costs less than carrying it.
    keys = canonical_keys(columns.select(operator.schema.keys.names))
    raw = pa.RecordBatch.from_arrays(
        [*keys.columns, *columns.columns[len(keys.schema) :]], schema=raw_schema(operator)
    )
    if operator.partials is None:
        hashes = hash_keys(keys.select(list(range(own))))
        return [(False, raw, key_groups_of(hashes, num_key_groups))], None
    groups = group_repeating_rows(keys, num_key_groups, own)
    if groups is None:
        hashes = hash_keys(keys.select(list(range(own))))
        if combining_pays(hashes):
            groups = group_rows(hashes, keys, num_key_groups, own)
    if groups is not None:
        found = groups.hashes[groups.of_row[sampled(len(groups.of_row))]]
        combined = _combined(operator, operator.partials, groups, raw)
        return [(True, combined, groups.key_groups)], hot_rows(
            groups, combined, hot_hashes(found, hot_share), own
        )
    wanted = hot_hashes(hashes[sampled(len(hashes))], hot_share)
    if not len(wanted):
        return [(False, raw, key_groups_of(hashes, num_key_groups))], None
    of_hot = rows_of(hashes, wanted)
    which, others = np.flatnonzero(of_hot), np.flatnonzero(~of_hot)
    some, rest = raw.take(pa.array(which)), raw.take(pa.array(others))
    groups = group_rows(hashes[which], some.select(keys.schema.names), num_key_groups, own)
    combined = _combined(operator, operator.partials, groups, some)
    return [
        (False, rest, key_groups_of(hashes[others], num_key_groups)),
        (True, combined, groups.key_groups),
    ], hot_rows(groups, combined, wanted, own)


def _combined(
    operator: KeyedOperator, partials: Partials, groups: Groups, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """One partial state of each group."""
    keys = rows.select(operator.schema.keys.names).take(pa.array(groups.first_row))
    states = partials.combine(groups, keys, rows.select(operator.inputs.names))
    return pa.RecordBatch.from_arrays(
        [*keys.columns, *states.columns], schema=partial_schema(operator)
    )


def combining_pays(hashes: npt.NDArray[np.int64]) -> bool:
    """Whether keys repeat often enough that combining before the exchange saves work.

    Counts distinct hashes in a sixteenth of the hash space, which estimates without bias the
    ratio of keys to rows.
    """
    if len(hashes) < 1024:
        return True
    sample = hashes[(hashes >> 32) & _SAMPLE == 0]
    if len(sample) < 16:  # a few hot keys, none of them in the sample
        sample = hashes[:1024]
    distinct = 1 + np.count_nonzero(np.diff(np.sort(sample)))
    return bool(distinct < 0.7 * len(sample))

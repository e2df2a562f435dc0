"""Pre-aggregation before the exchange: raw rows, or one partial state per key.

If keys repeat, combining saves transfer and work in the lane; if not, it only costs.  So each chunk
decides by a sample, and separately for hot keys.

A *hot key* has too many rows for one lane, which gets all rows of a key.  Every sender detects such
keys among its rows, and sends one partial state of each: the work is split over the lanes and
source partitions with rows of the key, and its own lane merges one partial state per sender, for
any number of rows.  When a key is no longer hot, its rows are sent raw again.

Invariant: all rows of a key in one chunk are either raw or combined, in their order, so results do
not depend on combining.

Source: partial key grouping and key expansion, Madsen et al. (Enorm) §4.4.2, with the state of a
key in one place: the work of an epoch is split, not the state.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.failures import naming
from godwit.columns.groups import group_repeating_rows, group_rows
from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.model.key_groups import key_groups_of
from godwit.store.columns import take_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.columns.groups import Groups
    from godwit.operators.operator import KeyedOperator

HotRows = dict[str, int]
"""Key, as JSON, → rows."""

_SAMPLE = 8192
_MIN_SAMPLED = 1024  # for fewer rows, sampling does not pay
_STRIDE = 2_654_435_761  # between sampled rows: large, and unlike any period of the rows
_SAMPLED_HASHES = 0xF  # one hash in sixteen
_COUNT = pa.field("__godwit_rows", pa.int64())


def raw_schema(operator: KeyedOperator) -> pa.Schema:
    """Return the columns of raw rows: key columns, then others that the operator reads."""
    keys = operator.schema.keys
    others = [field for field in operator.inputs if field.name not in keys.names]
    return pa.schema([*keys, *others])


def partial_schema(operator: KeyedOperator) -> pa.Schema:
    """Return the columns of partial states: key columns, then state columns."""
    return pa.schema([*operator.schema.keys, *operator.schema.values])


def pack(
    operator: KeyedOperator, columns: pa.RecordBatch, num_key_groups: int, hot_share: float
) -> tuple[list[tuple[bool, pa.RecordBatch, npt.NDArray[np.int32]]], pa.RecordBatch | None]:
    """Prepare rows for sending: combine the rows of all keys, of hot keys, or of none.

    A key with at least `hot_share` of the rows is hot; with 0, no key is. Returns packs (true for
    partial states; their rows; key group of each row), and hot keys with their numbers of rows,
    if any.
    """
    num_hash_columns = len(operator.hash_columns)
    # The hash is not sent: the lane recomputes it at a lower cost.
    keys = canonical_keys(columns.select(operator.schema.keys.names))
    raw = pa.RecordBatch.from_arrays(
        [*keys.columns, *columns.columns[len(keys.schema) :]], schema=raw_schema(operator)
    )
    if not operator.mergeable:
        hashes = operator.hash_of(keys, num_key_groups)
        return [(False, raw, key_groups_of(hashes, num_key_groups))], None
    hash_of = partial(operator.hash_of, num_key_groups=num_key_groups)
    groups = group_repeating_rows(keys, num_key_groups, num_hash_columns, hash_of=hash_of)
    if groups is None:
        hashes = hash_of(keys)
        if _combining_pays(hashes, keys.select(list(range(num_hash_columns, keys.num_columns)))):
            groups = group_rows(hashes, keys, num_key_groups, num_hash_columns)
    if groups is not None:
        sample = groups.hashes[groups.of_row[sample_positions(len(groups.of_row))]]
        combined, groups = pre_aggregate(operator, groups, raw)
        hot_hashes_ = hot_hashes(sample, hot_share)
        return [(True, combined, groups.key_groups)], _hot_rows(
            groups, combined, hot_hashes_, num_hash_columns
        )
    hot_hashes_ = hot_hashes(hashes[sample_positions(len(hashes))], hot_share)
    if not len(hot_hashes_):
        return [(False, raw, key_groups_of(hashes, num_key_groups))], None
    is_hot = mask_of_hot_rows(hashes, hot_hashes_)
    hot_rows, other_rows = np.flatnonzero(is_hot), np.flatnonzero(~is_hot)
    hot_raw, other_raw = raw.take(pa.array(hot_rows)), raw.take(pa.array(other_rows))
    groups = group_rows(
        hashes[hot_rows], hot_raw.select(keys.schema.names), num_key_groups, num_hash_columns
    )
    combined, groups = pre_aggregate(operator, groups, hot_raw)
    return [
        (False, other_raw, key_groups_of(hashes[other_rows], num_key_groups)),
        (True, combined, groups.key_groups),
    ], _hot_rows(groups, combined, hot_hashes_, num_hash_columns)


def pre_aggregate(
    operator: KeyedOperator, groups: Groups, rows: pa.RecordBatch
) -> tuple[pa.RecordBatch, Groups]:
    """Compute one partial state per group of rows, and return the groups.

    If a partial state cannot hold all rows of its group, every row becomes a group.
    """
    while True:
        keys = take_rows(rows.select(operator.schema.keys.names), groups.first_row)
        with naming(f"Operator {operator.name!r}", operator=operator.name):
            states = operator.combine(groups, keys, rows.select(operator.inputs.names))
        if states is not None:
            break
        assert groups.count < rows.num_rows, "a partial state holds one row"
        groups = groups.apart()
    batch = pa.RecordBatch.from_arrays(
        [*keys.columns, *states.columns], schema=partial_schema(operator)
    )
    return batch, groups


def _combining_pays(hashes: npt.NDArray[np.int64], other_keys: pa.RecordBatch) -> bool:
    """Return true if entries repeat often enough for combining before the exchange to save work.

    Counts distinct entries in a sixteenth of the space of hashes of their keys, an
    unbiased estimate of the ratio of entries to rows; of few rows, all. `other_keys`: columns that
    distinguish entries of a key.
    """
    sampled = np.arange(min(len(hashes), 1024))
    if len(hashes) > 1024:
        by_hash = np.flatnonzero((hashes >> 32) & _SAMPLED_HASHES == 0)
        if len(by_hash) >= 16:  # else a few hot keys, none of them in the sample
            sampled = by_hash
    sample = hashes[sampled]
    if other_keys.num_columns:
        sample ^= hash_keys(other_keys.take(pa.array(sampled)))
    num_distinct = 1 + np.count_nonzero(np.diff(np.sort(sample)))
    return bool(num_distinct < 0.7 * len(sample))


def sample_positions(count: int) -> npt.NDArray[np.int64]:
    """Return the positions of a sample of `count` rows.

    Empty if rows are too few for a sample to pay; all if they fit in it.
    """
    if count < _MIN_SAMPLED:
        return np.empty(0, np.int64)
    if count <= _SAMPLE:
        return np.arange(count)
    return np.arange(_SAMPLE, dtype=np.int64) * _STRIDE % count


def hot_hashes(sample: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """Return the hashes of keys with about `share` (0 to 1) of a sample or more, ascending.

    `sample`: hash of the key of each sampled row. With share 0 there are none.
    """
    if share <= 0 or not len(sample):
        return np.empty(0, np.int64)
    hashes, counts = np.unique(sample, return_counts=True)
    return hashes[counts >= max(share * len(sample), 2)]


def mask_of_hot_rows(
    hashes: npt.NDArray[np.int64], hot: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return a mask of rows whose hash is among `hot`, which is sorted."""
    if len(hot) <= 8:
        mask = np.zeros(len(hashes), np.bool_)
        for hot_hash in hot:
            mask |= hashes == hot_hash
        return mask
    nearest = np.minimum(np.searchsorted(hot, hashes), len(hot) - 1)
    is_hot: npt.NDArray[np.bool_] = hot[nearest] == hashes
    return is_hot


def _hot_rows(
    groups: Groups, keys: pa.RecordBatch, hot: npt.NDArray[np.int64], num_keys: int
) -> pa.RecordBatch | None:
    """Return hot keys with their numbers of rows; ``None`` if there are none.

    `keys`: the key of each group, in `num_keys` columns. Groups may have the same key.
    """
    hot_groups = np.flatnonzero(mask_of_hot_rows(groups.hashes, hot)) if len(hot) else hot
    if not len(hot_groups):
        return None
    rows = np.bincount(groups.of_row, minlength=groups.count)[hot_groups]
    columns = keys.select(list(range(num_keys))).take(pa.array(hot_groups))
    return pa.RecordBatch.from_arrays(
        [*columns.columns, pa.array(rows, pa.int64())], schema=hot_schema(columns.schema)
    )


def hot_schema(keys: pa.Schema) -> pa.Schema:
    """Return the columns in which a sender reports hot keys: key columns, and a number of rows."""
    return pa.schema([*keys, _COUNT])


def merge_hot_keys(batches: Iterable[pa.RecordBatch]) -> HotRows:
    """Return the sums of the rows of hot keys that senders report."""
    rows_of_key: HotRows = {}
    for batch in batches:
        *keys, rows = (column.to_pylist() for column in batch.columns)
        for key, count in zip(zip(*keys, strict=True), rows, strict=True):
            text = json.dumps(key, default=str)
            rows_of_key[text] = rows_of_key.get(text, 0) + count
    return rows_of_key

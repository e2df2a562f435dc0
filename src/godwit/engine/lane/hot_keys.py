"""Hot keys: rows of a key that has too many for one lane are combined before they are sent.

A lane gets all rows of a key.  Where few keys repeat, rows are sent as they are, since combining
all of them would not pay; but of a key that has a good part of the rows, one lane would then get so
many more than others.  Every sender looks for such keys among its rows, and sends one partial state
of each: the key is split over the lanes and source partitions that have its rows, and its own lane
merges as many partial states as there are senders, however many rows there were.  A key that cools
is not found any more, and its rows are sent as they are again.

Invariant: all rows of a key in one chunk go the same way, in their order, so results are those of
rows that nobody combined.

Source: partial key grouping and key expansion, Madsen et al. (Enorm) §4.4.2, with the state of a
key in one place: what is split is the work of an epoch, not the state.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.columns.groups import Groups

__all__ = [
    "HotRows",
    "hot_hashes",
    "hot_keys_of",
    "hot_rows",
    "hot_schema",
    "rows_of",
    "sampled",
]

HotRows = dict[str, int]
"""Key, as JSON, → rows."""

_SAMPLE = 8192
_LEAST = 1024  # of fewer rows nothing is worth finding, and they are combined anyway
_STRIDE = 2_654_435_761  # rows of the sample, far apart and in no rhythm that rows may have
_COUNT = pa.field("__godwit_rows", pa.int64())


def sampled(count: int) -> npt.NDArray[np.int64]:
    """Numbers of some of `count` rows: all of few; none where nothing is worth finding."""
    if count < _LEAST:
        return np.empty(0, np.int64)
    if count <= _SAMPLE:
        return np.arange(count)
    return np.arange(_SAMPLE, dtype=np.int64) * _STRIDE % count


def hot_hashes(sample: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """Hashes of keys that seem to have at least a share of the rows, ascending.

    Parameters
    ----------
    sample
        Hashes of the keys of some rows.
    share
        Of the rows, from 0 to 1; 0: there is no such key.
    """
    if share <= 0 or not len(sample):
        return np.empty(0, np.int64)
    found, counts = np.unique(sample, return_counts=True)
    return found[counts >= max(share * len(sample), 2)]


def rows_of(hashes: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows are of one of some hashes, which ascend."""
    if len(wanted) <= 8:
        found = np.zeros(len(hashes), np.bool_)
        for one in wanted:
            found |= hashes == one
        return found
    at = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
    of: npt.NDArray[np.bool_] = wanted[at] == hashes
    return of


def hot_rows(
    groups: Groups, keys: pa.RecordBatch, wanted: npt.NDArray[np.int64], num_keys: int
) -> pa.RecordBatch | None:
    """How many rows the keys of some hashes have; ``None`` if there are none.

    Parameters
    ----------
    groups, keys
        The rows by key, and the key of each group.
    wanted
        Hashes, ascending.
    num_keys
        Number of key columns; a key of several groups is there several times.
    """
    which = np.flatnonzero(rows_of(groups.hashes, wanted)) if len(wanted) else wanted
    if not len(which):
        return None
    rows = np.bincount(groups.of_row, minlength=groups.count)[which]
    hot = keys.select(list(range(num_keys))).take(pa.array(which))
    return pa.RecordBatch.from_arrays(
        [*hot.columns, pa.array(rows, pa.int64())], schema=hot_schema(hot.schema)
    )


def hot_schema(keys: pa.Schema) -> pa.Schema:
    """Columns of `hot_rows`: those of the key, and a number of rows."""
    return pa.schema([*keys, _COUNT])


def hot_keys_of(batches: Iterable[pa.RecordBatch]) -> HotRows:
    """Add up what senders say of the same keys."""
    found: HotRows = {}
    for batch in batches:
        *keys, rows = (column.to_pylist() for column in batch.columns)
        for key, count in zip(zip(*keys, strict=True), rows, strict=True):
            text = json.dumps(key, default=str)
            found[text] = found.get(text, 0) + count
    return found

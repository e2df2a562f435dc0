"""Grouping rows by key, exactly, in arrival order, without a Python loop over rows.

Rows are sorted by the 64-bit hash of their key, then every row is compared with its group's first
row, column by column, so two keys that share a hash are still two groups.  Groups come out ordered
by key group, then hash: the state of one key group is one slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Groups", "group_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The rows of one batch, grouped by key.

    Attributes
    ----------
    count
        G, the number of groups.
    of_row
        Shape ``(N,)``: the group of each row.
    first_row
        Shape ``(G,)``: the first row (in arrival order) of each group.
    hashes
        Shape ``(G,)``, int64: the key's hash.
    key_groups
        Shape ``(G,)``, int32, ascending: ``pmod(hash, num_key_groups)``.
    order
        Shape ``(N,)``: rows ordered by group, and in arrival order within a group.
    starts
        Shape ``(G + 1,)``: rows of group g are ``order[starts[g]:starts[g + 1]]``.
    """

    count: int
    of_row: npt.NDArray[np.int64]
    first_row: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]
    key_groups: npt.NDArray[np.int32]
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


def group_rows(
    hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, num_key_groups: int
) -> Groups:
    """Group rows by key.

    Parameters
    ----------
    hashes
        Shape ``(N,)``: 64-bit hash of each row's key.
    keys
        N rows of key columns. Nulls are values like any other; floats are compared by bits
        (NaN and -0.0 are made canonical before they come here).
    num_key_groups
        Number of key groups.
    """
    raise NotImplementedError

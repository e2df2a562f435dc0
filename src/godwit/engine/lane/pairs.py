"""Counting, at the sender, which key groups of an operator send to which of the next one.

A row's own key group is known from its key columns.  If maps on the way have let one of them go, or
made another type of it, nothing is counted; if they have changed its values, the row most likely
belongs to a key group of another lane then, and is passed over.  Of many rows some are looked at,
evenly spread: these are figures for planners, and cost next to nothing beside the rows themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.columns.hashing import canonical_keys, hash_keys
from godwit.model.key_groups import NO_PAIRS, KeyGroupPairs, key_groups_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.operators.operator import KeyedOperator

__all__ = ["pairs_sent"]

_LOOKED_AT = 8192


def pairs_sent(
    sender: KeyedOperator,
    others: pa.Schema,
    rows: pa.Table,
    own: npt.NDArray[np.bool_],
) -> KeyGroupPairs:
    """Count the rows that go from one operator to another by pairs of key groups.

    Parameters
    ----------
    sender
        The operator that sends them.
    others
        Key columns of the one that they are sent to.
    rows
        What is sent, after the maps on the way.
    own
        Shape ``(num_key_groups,)``: key groups of the sender that this lane owns.
    """
    keys = sender.keys
    if any(name not in rows.schema.names for name in keys.names):
        return NO_PAIRS
    if any(rows.schema.field(field.name).type != field.type for field in keys):
        return NO_PAIRS
    step = -(-rows.num_rows // _LOOKED_AT)
    if step > 1:
        rows = rows.take(pa.array(np.arange(0, rows.num_rows, step)))
    source = _key_groups(rows, keys, len(own))
    target = source if keys.equals(others) else _key_groups(rows, others, len(own))
    known = own[source]
    return KeyGroupPairs.counted(source[known], target[known], float(step))


def _key_groups(rows: pa.Table, keys: pa.Schema, number: int) -> npt.NDArray[np.int32]:
    columns = rows.select(keys.names).cast(keys).combine_chunks().to_batches()
    return key_groups_of(hash_keys(canonical_keys(columns[0])), number)

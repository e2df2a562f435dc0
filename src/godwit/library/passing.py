"""Operator for rows that go to a sink directly, without an operator of the user's.

A row has no key, and goes to a key group by a hash of its values, so that a sender that runs again
sends it where it sent it before.  If the sink's target tells rows apart by some columns, the hash
is of those alone, so that rows which replace one another stay in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import STATELESS
from godwit.columns.hashing import canonical_keys, hash_keys, is_hashable
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import KeyedOperator, OperatorOutput
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from godwit.operators.operator import OperatorInput

_PLACE: Final = pa.field(f"{RESERVED_PREFIX}_place", pa.int16())
_NOTHING: Final = pa.field(f"{RESERVED_PREFIX}_nothing", pa.bool_())
_PLACES: Final = 4096  # so few that rows are grouped by them quickly


class PassRows(KeyedOperator):
    """Operator that emits its rows as they are, in all lanes alike; it has no state."""

    kind = STATELESS
    emits = "its rows, as they arrive"
    stateless = True

    def __init__(self, *, name: str, columns: pa.Schema, by: tuple[str, ...] = ()) -> None:
        self.name = name
        self.inputs = self.output = columns
        self.schema = StateSchema(keys=pa.schema([_PLACE]), values=pa.schema([_NOTHING]))
        key_names = by or columns.names
        self._hashed = [
            key_name for key_name in key_names if is_hashable(columns.field(key_name).type)
        ]

    @property
    def user_keys(self) -> pa.Schema:
        """No columns: rows have no key."""
        return pa.schema([])

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:  # noqa: ARG002
        """Add the column by which rows are divided among key groups."""
        hashes = hash_keys(canonical_keys(rows.select(self._hashed))).view(np.uint64)
        places = ((hashes >> np.uint64(20)) % np.uint64(_PLACES)).astype(np.int16)
        return pa.RecordBatch.from_arrays(
            [pa.array(places), *rows.columns], names=[_PLACE.name, *rows.schema.names]
        )

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit the rows, in order of arrival."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, _ = data.grouped(len(self.keys))
        return OperatorOutput(output=data.rows.values, groups=groups)

"""What arrives at a lane for one operator: rows with their hashes, raw or as partial states.

A row's hash is computed when the row arrives and stays beside it.  If everything came raw, rows are
combined once, together; as soon as something came, or has to be kept, as partial states, what came
raw in a row is combined by itself, which keeps the order of arrival where that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.engine.lane.packing import partial_schema, raw_schema
from godwit.engine.lane.wire import unpack_rows
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.engine.lane.wire import Header, Payload
    from godwit.operators.operator import KeyedOperator

__all__ = ["LaneRows", "arrived_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneRows:
    """Rows of one operator in one lane, in order of arrival."""

    operator: KeyedOperator  # the operator
    num_key_groups: int  # number of its key groups
    batch: pa.RecordBatch  # N rows of `raw_schema`, or, where `partial`, of `partial_schema`
    hashes: npt.NDArray[np.int64]  # shape ``(N,)``: hash of each row's key
    partial: bool  # whether the rows are partial states

    @classmethod
    def of(
        cls, operator: KeyedOperator, num_key_groups: int, batch: pa.RecordBatch, *, partial: bool
    ) -> LaneRows:
        """Take up rows whose hashes are not known."""
        return cls(
            operator=operator,
            num_key_groups=num_key_groups,
            batch=batch,
            hashes=hash_keys(batch.select(operator.keys.names)),
            partial=partial,
        )

    @property
    def key_groups(self) -> npt.NDArray[np.int32]:
        """Shape ``(N,)``: key group of each row."""
        return key_groups_of(self.hashes, self.num_key_groups)

    @property
    def entries(self) -> StateRows:
        """The rows as the operator takes them; a key column may be among those that it reads."""
        read = self.operator.schema.values if self.partial else self.operator.inputs
        return StateRows(
            hashes=self.hashes,
            keys=self.batch.select(self.operator.schema.keys.names),
            values=self.batch.select(read.names),
        )

    def take(self, rows: npt.NDArray[np.int64]) -> LaneRows:
        """Return some of the rows."""
        return LaneRows(
            operator=self.operator,
            num_key_groups=self.num_key_groups,
            batch=self.batch.take(pa.array(rows)),
            hashes=self.hashes[rows],
            partial=self.partial,
        )

    def combined(self) -> LaneRows:
        """Make partial states of raw rows, one per key."""
        if self.partial:
            return self
        operator, rows = self.operator, self.entries
        assert operator.partials is not None, "only partial states can be merged"
        groups = group_rows(self.hashes, rows.keys, self.num_key_groups, len(operator.keys))
        keys = rows.keys.take(pa.array(groups.first_row))
        states = operator.partials.combine(groups, keys, rows.values)
        return LaneRows(
            operator=self.operator,
            num_key_groups=self.num_key_groups,
            batch=pa.RecordBatch.from_arrays(
                [*keys.columns, *states.columns], schema=partial_schema(self.operator)
            ),
            hashes=groups.hashes,
            partial=True,
        )

    def before(self, later: LaneRows) -> LaneRows:
        """Return these rows, then those that came later, of the same kind."""
        if not len(later.hashes):
            return self
        return _joined([self, later])


def arrived_rows(
    operator: KeyedOperator,
    num_key_groups: int,
    arrived: Sequence[tuple[Header, Payload]],
    *,
    partial: bool,
) -> LaneRows:
    """Unpack what arrived, in order of origin.

    Parameters
    ----------
    operator, num_key_groups
        The operator and the number of its key groups.
    arrived
        Payloads in order of origin.
    partial
        Whether partial states are wanted even if everything came raw.
    """
    partial = partial or any(header.is_partial for header, _ in arrived)
    if partial and operator.partials is not None and operator.partials.commutative:
        # What came raw is combined once, together, where rows may be seen in any order.
        arrived = sorted(arrived, key=lambda item: item[0].is_partial)
    parts: list[LaneRows] = []
    for is_partial, of_kind in groupby(arrived, key=lambda item: item[0].is_partial):
        schema = partial_schema(operator) if is_partial else raw_schema(operator)
        rows = _joined(
            [
                LaneRows.of(
                    operator, num_key_groups, unpack_rows(payload, schema), partial=is_partial
                )
                for _, payload in of_kind
            ]
        )
        parts.append(rows.combined() if partial else rows)
    if parts:
        return _joined(parts)
    schema = partial_schema(operator) if partial else raw_schema(operator)
    none = pa.RecordBatch.from_pylist([], schema=schema)
    return LaneRows.of(operator, num_key_groups, none, partial=partial)


def _joined(parts: Sequence[LaneRows]) -> LaneRows:
    first = parts[0]
    if len(parts) == 1:
        return first
    return LaneRows(
        operator=first.operator,
        num_key_groups=first.num_key_groups,
        batch=pa.concat_batches([part.batch for part in parts]),
        hashes=np.concatenate([part.hashes for part in parts]),
        partial=first.partial,
    )

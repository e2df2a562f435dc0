"""Rows of one operator in a lane: raw or partial, new or from the wait buffer.

A row's hash is computed once, on arrival.  Raw rows alone are combined once, together; if some rows
arrive, or are buffered, as partial states, each run of consecutive raw rows is combined separately,
which preserves the order of arrival where it matters.

The *wait buffer*, in the changelog, has rows of key groups without local state.  Rows of a
mergeable operator wait as partial states, which are small.  When a key group resumes, its waiting
rows come before the rows of the epoch, in order of epochs and lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import read_segment
from godwit.checkpoint.entries import key_group_ranges
from godwit.columns.groups import group_rows
from godwit.engine.lane.packing import partial_schema, pre_aggregate, raw_schema
from godwit.engine.lane.wire import unpack_rows
from godwit.model.key_groups import key_group_mask, key_groups_of
from godwit.store.changes import StateRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.checkpoint.entries import WaitingLayout
    from godwit.checkpoint.records import SegmentRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.files import LaneFiles
    from godwit.engine.lane.wire import Header, Payload
    from godwit.operators.operator import KeyedOperator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneRows:
    """Rows of one operator in one lane, in order of arrival."""

    operator: KeyedOperator
    num_key_groups: int
    batch: pa.RecordBatch  # N rows of `raw_schema`, or, where `partial`, of `partial_schema`
    hashes: npt.NDArray[np.int64]  # shape ``(N,)``: hash of each row's key
    partial: bool  # the rows are partial states

    @classmethod
    def of(
        cls, operator: KeyedOperator, num_key_groups: int, batch: pa.RecordBatch, *, partial: bool
    ) -> LaneRows:
        """Return rows with the hashes of their keys; `partial`: they are partial states."""
        return cls(
            operator=operator,
            num_key_groups=num_key_groups,
            batch=batch,
            hashes=operator.hash_of(batch, num_key_groups),
            partial=partial,
        )

    @property
    def key_groups(self) -> npt.NDArray[np.int32]:
        """Shape ``(N,)``: key group of each row."""
        return key_groups_of(self.hashes, self.num_key_groups)

    @property
    def entries(self) -> StateRows:
        """Keys and values of the rows, as `KeyedOperator.process` takes them."""
        read = self.operator.schema.values if self.partial else self.operator.inputs
        return StateRows(
            hashes=self.hashes,
            keys=self.batch.select(self.operator.schema.keys.names),
            values=self.batch.select(read.names),
        )

    def take(self, rows: npt.NDArray[np.int64]) -> LaneRows:
        """Return the rows at the given positions."""
        return replace(self, batch=self.batch.take(pa.array(rows)), hashes=self.hashes[rows])

    def pre_aggregated(self) -> LaneRows:
        """Return raw rows combined to one partial state per key."""
        if self.partial:
            return self
        operator, keys = self.operator, self.entries.keys
        groups = group_rows(self.hashes, keys, self.num_key_groups, len(operator.hash_columns))
        batch, groups = pre_aggregate(operator, groups, self.batch)
        return replace(self, batch=batch, hashes=groups.hashes, partial=True)


def unpack_payloads(
    operator: KeyedOperator,
    num_key_groups: int,
    arrived: Sequence[tuple[Header, Payload]],
    *,
    partial: bool,
) -> LaneRows:
    """Return the rows in the payloads sent to an operator, in order of origin.

    `partial`: return partial states even if all rows are raw.
    """
    partial = partial or any(header.is_partial for header, _ in arrived)
    if partial and operator.commutative:
        # In any order, all raw rows are combined once, together.
        arrived = sorted(arrived, key=lambda item: item[0].is_partial)
    parts: list[LaneRows] = []
    for is_partial, of_kind in groupby(arrived, key=lambda item: item[0].is_partial):
        schema = partial_schema(operator) if is_partial else raw_schema(operator)
        rows = _concatenated(
            [
                LaneRows.of(
                    operator, num_key_groups, unpack_rows(payload, schema), partial=is_partial
                )
                for _, payload in of_kind
            ]
        )
        parts.append(rows.pre_aggregated() if partial else rows)
    if parts:
        return _concatenated(parts)
    schema = partial_schema(operator) if partial else raw_schema(operator)
    none = pa.RecordBatch.from_pylist([], schema=schema)
    return LaneRows.of(operator, num_key_groups, none, partial=partial)


def _concatenated(parts: Sequence[LaneRows]) -> LaneRows:
    """Concatenate lane rows that are all raw or all partial states."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        batch=pa.concat_batches([part.batch for part in parts]),
        hashes=np.concatenate([part.hashes for part in parts]),
    )


def buffer_suspended_rows(
    rows: LaneRows, waits: npt.NDArray[np.bool_], files: LaneFiles
) -> LaneRows:
    """Write rows of suspended key groups to the wait buffer; return the others.

    `waits`: mask of suspended key groups.
    """
    if not waits.any() or not waits[rows.key_groups].any():
        return rows
    if rows.operator.mergeable:
        rows = rows.pre_aggregated()
    key_groups = rows.key_groups
    is_waiting = waits[key_groups]
    which = np.flatnonzero(is_waiting)
    which = which[np.argsort(key_groups[which].astype(np.uint16), kind="stable")]
    batch = rows.batch.take(pa.array(which))
    files.write_waiting(rows.operator.name, batch, key_groups[which])
    return rows.take(np.flatnonzero(~is_waiting))


def prepend_waiting_rows(
    rows: LaneRows,
    resuming: npt.NDArray[np.int64],
    waiting: Iterable[SegmentRef],
    layout: WaitingLayout,
    storage: CheckpointStorage,
    *,
    since: Mapping[int, int],
) -> LaneRows:
    """Return rows with the waiting rows of resuming key groups before them.

    `rows` are partial states if the operator is mergeable, as waiting rows are. `since`: key group
    → epoch from which its waiting rows have not been processed; a segment may have earlier ones.
    """
    is_resuming = key_group_mask(resuming, rows.num_key_groups)
    earlier: list[pa.RecordBatch] = []
    for segment in sorted(waiting, key=lambda s: (s.epoch, s.lane)):
        batch = layout.read(read_segment(storage, segment), segment.flow)
        earlier.extend(
            batch.slice(start, end - start)
            for key_group, start, end in key_group_ranges(segment)
            if is_resuming[key_group] and segment.epoch >= since.get(key_group, 0)
        )
    if not earlier:
        return rows
    batch = pa.concat_batches(earlier)
    first = LaneRows.of(rows.operator, rows.num_key_groups, batch, partial=rows.partial)
    return _concatenated([first, rows]) if len(rows.hashes) else first

"""The wait buffer: rows of key groups whose state is not here, kept in the changelog for later.

Rows of a mergeable operator wait as partial states, which are small.  When a key group resumes,
what waited comes before the rows of the epoch, in order of epochs and lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import read_segment
from godwit.checkpoint.entries import ranges
from godwit.engine.lane.rows import LaneRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.checkpoint.entries import WaitingLayout
    from godwit.checkpoint.records import SegmentRef
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.files import LaneFiles

__all__ = ["set_aside", "with_waiting"]


def set_aside(rows: LaneRows, waits: npt.NDArray[np.bool_], files: LaneFiles) -> LaneRows:
    """Put rows of the key groups that wait into the wait buffer; return the others."""
    if not waits[rows.key_groups].any():
        return rows
    if rows.operator.partials is not None:
        rows = rows.combined()
    key_groups = rows.key_groups
    aside = waits[key_groups]
    which = np.flatnonzero(aside)
    which = which[np.argsort(key_groups[which].astype(np.uint16), kind="stable")]
    batch = rows.batch.take(pa.array(which))
    files.waiting(rows.operator.name, batch, key_groups[which])
    return rows.take(np.flatnonzero(~aside))


def with_waiting(
    rows: LaneRows,
    resuming: npt.NDArray[np.int64],
    waiting: Iterable[SegmentRef],
    layout: WaitingLayout,
    storage: CheckpointStorage,
    *,
    since: Mapping[int, int],
) -> LaneRows:
    """Put the waiting rows of key groups that resume before the rows of this epoch.

    `rows` are partial states if the operator is mergeable, as what waits is.  A segment may hold
    rows of a key group that were processed while others waited: those before its epoch in `since`.
    """
    wanted = np.zeros(rows.num_key_groups, np.bool_)
    wanted[resuming] = True
    earlier: list[pa.RecordBatch] = []
    for segment in sorted(waiting, key=lambda s: (s.epoch, s.lane)):
        held = layout.read(read_segment(storage, segment), segment.flow)
        earlier.extend(
            held.slice(start, end - start)
            for key_group, start, end in ranges(segment)
            if wanted[key_group] and segment.epoch >= since.get(key_group, 0)
        )
    if not earlier:
        return rows
    batch = pa.concat_batches(earlier)
    first = LaneRows.of(rows.operator, rows.num_key_groups, batch, partial=rows.partial)
    return first.before(rows)

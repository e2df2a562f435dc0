"""Windows that are over, made of the panes that there are of them.

What is scanned lies in no order.  It is ordered by pane and key once; where every window is one
pane, which is the whole work of windows that do not overlap, not even keys need be told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.dataflow.arrays import values_of
from godwit.dataflow.groups import group_rows
from godwit.dataflow.windows.consolidation import Partials, consolidate, plan_of

if TYPE_CHECKING:
    from godwit.dataflow.windows.compute import WindowedCompute
    from godwit.dataflow.windows.moments import OperatorTime
    from godwit.dataflow.windows.operator import Entries

__all__ = ["closed_windows"]

IntArray = npt.NDArray[np.int64]


def closed_windows(
    operator: WindowedCompute, held: Entries, changed: Entries | None, told: OperatorTime
) -> pa.RecordBatch:
    """Output of the windows that are over in an epoch; see `WindowedOperator.close`."""
    entries = held if changed is None else held.then(changed)
    position = operator.pane_position
    panes, pane_of = _numbered(values_of(entries.keys.column(position)), operator.grid.width_us)
    starts, ends = operator.grid.windows_over(panes, told.closed, told.until)
    firsts, lasts = np.searchsorted(panes, starts), np.searchsorted(panes, ends)
    own = entries.keys.select(list(range(position)))
    if changed is None and bool((lasts - firsts == 1).all()):
        order = np.argsort(pane_of, kind="stable")
        bounds = np.searchsorted(pane_of[order], np.arange(len(panes) + 1))
        parts = [order[bounds[pane] : bounds[pane + 1]] for pane in firsts.tolist()]
        rows = np.concatenate(parts) if parts else order[:0]
        sizes = [len(part) for part in parts]
        return operator.window_rows(
            own.take(pa.array(rows)),
            np.repeat(starts, sizes),
            np.repeat(ends, sizes),
            entries.values.take(pa.array(rows)),
        )
    groups = group_rows(entries.hashes, own, 1)
    order = groups.order[np.argsort(pane_of[groups.order], kind="stable")]
    pane, key = pane_of[order], groups.of_row[order]
    if changed is not None:  # of an entry that is there twice, the later one counts
        newest = np.ones(len(order), np.bool_)
        newest[:-1] = (pane[1:] != pane[:-1]) | (key[1:] != key[:-1])
        order, pane, key = order[newest], pane[newest], key[newest]
    states = entries.values.take(pa.array(order))
    bounds = np.searchsorted(pane, np.arange(len(panes) + 1))
    partials = [
        Partials(keys=key[first:end], states=states.slice(first, end - first))
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    spans = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
    if not spans:
        return operator.nothing()
    plan = plan_of(
        np.diff(bounds),
        groups.count,
        tuple(dict.fromkeys(spans)),
        overlapping=operator.idempotent,
    )
    built = consolidate(plan, partials, operator.merge)
    found = [built[span] for span in spans]
    sizes = [len(one.keys) for one in found]
    rows = groups.first_row[np.concatenate([one.keys for one in found])]
    return operator.window_rows(
        own.take(pa.array(rows)),
        np.repeat(starts, sizes),
        np.repeat(ends, sizes),
        pa.concat_batches([one.states for one in found]),
    )


def _numbered(panes: IntArray, width: int) -> tuple[IntArray, npt.NDArray[np.integer]]:
    """Different panes in order, and the number of each entry's among them."""
    if not len(panes):
        return panes, panes
    least = int(panes.min())
    at = (panes - least) // width
    count = int(at.max()) + 1
    if count > len(panes) + 1024:
        return np.unique(panes, return_inverse=True)
    there = np.bincount(at, minlength=count) > 0
    number = np.cumsum(there) - 1
    # Few panes are the rule, and NumPy orders short integers several times as fast as long ones.
    small = number.astype(np.uint16) if count < 1 << 16 else number
    return least + np.flatnonzero(there) * width, small[at]

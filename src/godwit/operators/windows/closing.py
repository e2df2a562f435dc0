"""Windows that are over, made of the panes that there are of them, and of what is theirs alone.

What is scanned lies in no order.  It is ordered by *piece* (a pane, or a window with a state of its
own) and key once; where every window is one piece, which is the whole work of windows that do not
overlap, not even keys need be told apart.
"""

from __future__ import annotations

import time as cpu_clock
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.groups import group_rows
from godwit.operators.windows.consolidation import Partials, consolidate, plan_of
from godwit.operators.windows.meter import Closed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.entries import StateRows
    from godwit.operators.windows.compute import WindowedCompute
    from godwit.operators.windows.event_time import EpochTime

__all__ = ["closed_windows", "of_closing_windows"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Window:
    """A window that is over."""

    # start, end: its bounds
    start: int
    end: int
    # Positions of its panes among the pieces; empty if there are none.
    panes: tuple[int, int] = (0, 0)
    own: int | None = None  # its own piece, if it has one

    @property
    def piece(self) -> int | None:
        """The piece that is all of it, if one is."""
        first, end = self.panes
        if first == end:
            return self.own
        return first if end - first == 1 and self.own is None else None


def closed_windows(
    operator: WindowedCompute, stored: StateRows, changed: StateRows | None, time: EpochTime
) -> Closed:
    """Output of the windows that are over in an epoch; entries as of `closing_entries`."""
    cpu = cpu_clock.process_time()
    entries = stored if changed is None else stored.then(changed)
    windows, piece_of, count = _pieces(operator, entries, time)
    if not windows:
        return Closed(output=operator.nothing())
    wanted = np.flatnonzero(piece_of < count)
    if len(wanted) < len(piece_of):  # states of windows that are not over yet, or were before
        entries, piece_of = entries.take(wanted), piece_of[wanted]
    own = entries.keys.select(list(range(operator.pane_position)))
    whole = [window.piece for window in windows if window.piece is not None]
    merged = 0
    if changed is None and len(whole) == len(windows):
        order = np.argsort(piece_of, kind="stable")
        bounds = np.searchsorted(piece_of[order], np.arange(count + 1))
        parts = [order[bounds[piece] : bounds[piece + 1]] for piece in whole]
        rows = np.concatenate(parts)
        sizes = [len(part) for part in parts]
        states = entries.values.take(pa.array(rows))
    else:
        groups = group_rows(entries.hashes, own, 1)
        order = groups.order[np.argsort(piece_of[groups.order], kind="stable")]
        piece, key = piece_of[order], groups.of_row[order]
        if changed is not None:  # of an entry that is there twice, the later one counts
            newest = np.ones(len(order), np.bool_)
            newest[:-1] = (piece[1:] != piece[:-1]) | (key[1:] != key[:-1])
            order, piece, key = order[newest], piece[newest], key[newest]
        ordered = entries.values.take(pa.array(order))
        bounds = np.searchsorted(piece, np.arange(count + 1))
        pieces = [
            Partials(keys=key[first:end], states=ordered.slice(first, end - first))
            for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ]
        found, merged = _merged(operator, windows, pieces, groups.count)
        sizes = [len(one.keys) for one in found]
        rows = groups.first_row[np.concatenate([one.keys for one in found])]
        states = pa.concat_batches([one.states for one in found])
    merge_ms = (cpu_clock.process_time() - cpu) * 1e3
    output = operator.window_rows(
        own.take(pa.array(rows)),
        np.repeat([window.start for window in windows], sizes),
        np.repeat([window.end for window in windows], sizes),
        states,
    )
    return Closed(output=output, keys=max(sizes), merged=merged, merge_ms=merge_ms)


def of_closing_windows(
    operator: WindowedCompute, entries: StateRows, time: EpochTime
) -> npt.NDArray[np.intp]:
    """Which entries are parts of windows that are over in an epoch."""
    _, piece_of, count = _pieces(operator, entries, time)
    return np.flatnonzero(piece_of < count)


def _merged(
    operator: WindowedCompute, windows: list[_Window], pieces: list[Partials], all_keys: int
) -> tuple[list[Partials], int]:
    """Build windows of pieces; give how many keys were in their parts, too."""
    spans = tuple(dict.fromkeys(w.panes for w in windows if w.panes[0] < w.panes[1]))
    built: dict[tuple[int, int], Partials] = {}
    merged = 0
    if spans:
        panes = pieces[: max(end for _, end in spans)]
        pane_keys = np.array([len(pane.keys) for pane in panes])
        plan = plan_of(pane_keys, all_keys, spans, overlapping=operator.idempotent)
        built, merged = consolidate(plan, panes, operator.merge)
    found = []
    for window in windows:
        of_panes = built.get(window.panes)
        if window.own is None:
            assert of_panes is not None, "a window is made of something"
            found.append(of_panes)
            continue
        one = pieces[window.own]
        if of_panes is not None:
            merged += len(one.keys)
            one = of_panes.then(one, operator.merge)
        found.append(one)
    return found, merged


def _pieces(
    operator: WindowedCompute, entries: StateRows, time: EpochTime
) -> tuple[list[_Window], npt.NDArray[np.integer], int]:
    """Windows that are over, which piece each entry is of, and how many pieces there are.

    Panes come first, in order of time; what is of no piece has their number.
    """
    grid, position = operator.grid, operator.pane_position
    starts = values_of(entries.keys.column(position))
    spans = np.zeros(len(starts), np.int64)
    if operator.may_duplicate:
        spans = values_of(entries.keys.column(position + 1))
    of_pane = spans == 0
    if of_pane.all():
        panes, piece_of = _numbered(starts, grid.width_us)
    else:
        panes, number = _numbered(starts[of_pane], grid.width_us)
        piece_of = np.full(len(starts), -1)
        piece_of[of_pane] = number
    count = len(panes)
    windows: dict[tuple[int, int], _Window] = {}
    bounds = grid.windows_over(panes, time.closed, time.until)
    firsts, lasts = (np.searchsorted(panes, bound).tolist() for bound in bounds)
    for start, end, *of in zip(*(b.tolist() for b in bounds), firsts, lasts, strict=True):
        windows[start, end] = _Window(start=start, end=end, panes=(of[0], of[1]))
    if not of_pane.all():
        for which, start, end in _own_windows(operator, starts, spans, time):
            panes_of = windows[start, end].panes if (start, end) in windows else (0, 0)
            windows[start, end] = _Window(start=start, end=end, panes=panes_of, own=count)
            piece_of[which] = count
            count += 1
        piece_of = np.where(piece_of < 0, count, piece_of)
    return list(windows.values()), piece_of, count


def _own_windows(
    operator: WindowedCompute, starts: IntArray, spans: IntArray, time: EpochTime
) -> Iterator[tuple[IntArray, int, int]]:
    """StateRows of each window with a state of its own that is over, and its bounds."""
    ends = starts + spans
    over = (spans > 0) & (ends > time.closed) & (ends <= time.until)
    for length in sorted({window.length_us for window in operator.grid.windows}):
        which = np.flatnonzero(over & (spans == length))
        different, number = _numbered(starts[which], operator.grid.width_us)
        order = which[np.argsort(number, kind="stable")]
        bounds = np.searchsorted(np.sort(number), np.arange(len(different) + 1))
        for i, start in enumerate(different.tolist()):
            yield order[bounds[i] : bounds[i + 1]], start, start + length


def _numbered(moments: IntArray, width: int) -> tuple[IntArray, npt.NDArray[np.integer]]:
    """Different moments in order, and the number of each among them."""
    if not len(moments):
        return moments, moments
    least = int(moments.min())
    at = (moments - least) // width
    count = int(at.max()) + 1
    if count > len(moments) + 1024:
        return np.unique(moments, return_inverse=True)
    there = np.bincount(at, minlength=count) > 0
    number = np.cumsum(there) - 1
    # Few moments are the rule, and NumPy orders short integers several times as fast as long ones.
    small = number.astype(np.uint16) if count < 1 << 16 else number
    return least + np.flatnonzero(there) * width, small[at]

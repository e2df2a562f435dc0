"""Building the windows that close from panes, and from windows with states of their own.

The states of a piece, or of a window that is built, lie in order of their keys, which are numbers
here.  Two that follow one another are merged by one call of the aggregates, row by row; where they
hold the same keys, as panes of a busy stream do, without moving anything.

Invariant: states are merged in order of event time, whatever the plan, so that only the last bits
of sums of floats tell one plan from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.planning.windows import ConsolidationProblem, plan_consolidation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from godwit.operators.windows.event_time import EpochTime
    from godwit.operators.windows.grid import PaneGrid
    from godwit.planning.windows import ConsolidationPlan

IntArray = npt.NDArray[np.int64]

SHARES = 32
_WORTH_A_SEARCH = 50_000  # merging as many keys takes about as long as the search


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingWindow:
    """A window that closes, and the pieces it is built from."""

    start: int
    end: int
    panes: tuple[int, int] = (0, 0)  # positions of its panes among the pieces; empty: none
    own: int | None = None  # the piece that is a state of its own, if it has one

    @property
    def piece(self) -> int | None:
        """The only piece of the window, if it has one alone."""
        first, end = self.panes
        if first == end:
            return self.own
        return first if end - first == 1 and self.own is None else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedStates:
    """Partial states of some keys."""

    keys: IntArray  # shape ``(n,)``: numbers of keys, ascending
    states: pa.RecordBatch  # n rows

    def then(
        self, later: KeyedStates, merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]
    ) -> KeyedStates:
        """Merge with later states."""
        count, at = len(self.keys), np.searchsorted(self.keys, later.keys)
        if np.array_equal(self.keys, later.keys):
            return KeyedStates(keys=self.keys, states=merge(self.states, later.states))
        both = np.zeros(len(at), np.bool_)
        inside = at < count
        both[inside] = self.keys[at[inside]] == later.keys[inside]
        here, there, new = at[both], np.flatnonzero(both), np.flatnonzero(~both)
        merged = merge(self.states.take(pa.array(here)), later.states.take(pa.array(there)))
        place = np.arange(count)
        place[here] = count + np.arange(len(here))
        place = np.insert(place, at[new], count + len(here) + new)
        every = pa.concat_batches([self.states, merged, later.states])
        return KeyedStates(
            keys=np.insert(self.keys, at[new], later.keys[new]),
            states=every.take(pa.array(place)),
        )


def pieces_over(
    grid: PaneGrid, starts: IntArray, spans: IntArray | None, time: EpochTime
) -> tuple[list[ClosingWindow], npt.NDArray[np.integer], int]:
    """Return the windows that close, the piece of each entry, and the number of pieces.

    Entries are of the pane that starts there, or, where they have a span, of a window of that
    length.  Panes are the first pieces, in order of time; entries of no piece have their number.
    """
    of_pane = np.ones(len(starts), np.bool_) if spans is None else spans == 0
    if spans is None or of_pane.all():
        spans = None
        panes, piece_of = _numbered(starts, grid.width_us)
    else:
        panes, number = _numbered(starts[of_pane], grid.width_us)
        piece_of = np.full(len(starts), -1)
        piece_of[of_pane] = number
    count = len(panes)
    windows: dict[tuple[int, int], ClosingWindow] = {}
    bounds = grid.windows_over(panes, time.closed, time.until)
    positions = (np.searchsorted(panes, bound) for bound in bounds)
    for start, end, first, last in zip(*(b.tolist() for b in (*bounds, *positions)), strict=True):
        windows[start, end] = ClosingWindow(start=start, end=end, panes=(first, last))
    if spans is not None:
        for which, start, end in _own_windows(grid, starts, spans, time):
            panes_of = windows[start, end].panes if (start, end) in windows else (0, 0)
            windows[start, end] = ClosingWindow(start=start, end=end, panes=panes_of, own=count)
            piece_of[which] = count
            count += 1
        piece_of = np.where(piece_of < 0, count, piece_of)
    return list(windows.values()), piece_of, count


def build_windows(
    windows: Sequence[ClosingWindow],
    pieces: Sequence[KeyedStates],
    all_keys: int,
    merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch],
    *,
    overlapping: bool,
) -> tuple[list[KeyedStates], int]:
    """Merge pieces into windows; also return the number of keys read.

    `merge` merges states row by row, the earlier ones first; parts of a window may overlap where
    aggregates are idempotent.
    """
    spans = tuple(dict.fromkeys(w.panes for w in windows if w.panes[0] < w.panes[1]))
    merged = 0
    built: dict[tuple[int, int], KeyedStates] = {}
    if spans:
        pane_keys = np.array([len(pane.keys) for pane in pieces[: max(end for _, end in spans)]])
        for step in plan_of(pane_keys, all_keys, spans, overlapping=overlapping).steps:
            parts = [built[part] if part in built else pieces[part[0]] for part in step.parts]
            merged += sum(len(part.keys) for part in parts)
            while len(parts) > 1:
                alone = parts[len(parts) & ~1 :]
                neighbours = zip(parts[::2], parts[1::2], strict=False)
                parts = [left.then(right, merge) for left, right in neighbours] + alone
            built[step.window] = parts[0]
    states = []
    for window in windows:
        if window.own is None:
            states.append(built[window.panes])
            continue
        own = pieces[window.own]
        if window.panes in built:
            merged += len(own.keys)
            own = built[window.panes].then(own, merge)
        states.append(own)
    return states, merged


def plan_of(
    pane_keys: IntArray, all_keys: int, windows: Sequence[tuple[int, int]], *, overlapping: bool
) -> ConsolidationPlan:
    """Plan the windows' parts, as positions of panes, by the keys counted per pane.

    Keys count in thirty-seconds of all, so that the plan of one epoch is found again in the next.
    What is planned by is the committed state and the epoch's rows, so another attempt of the epoch
    plans the same.
    """
    shares = np.ceil(pane_keys * (SHARES / max(all_keys, 1))).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(pane_keys)])
    keys = sum(int(before[end] - before[first]) for first, end in windows)
    return _planned(
        tuple(shares.tolist()), tuple(windows), overlapping, search=keys > _WORTH_A_SEARCH
    )


@lru_cache(maxsize=64)
def _planned(
    shares: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    overlapping: bool,
    *,
    search: bool,
) -> ConsolidationPlan:
    """Plan how the windows that close are built from panes and from one another."""
    problem = ConsolidationProblem(
        pane_keys=np.array(shares, np.float64),
        windows=windows,
        all_keys=float(SHARES),
        overlapping=overlapping,
    )
    return plan_consolidation(problem, auxiliary=search, most_nodes=16)


def _own_windows(
    grid: PaneGrid, starts: IntArray, spans: IntArray, time: EpochTime
) -> Iterator[tuple[IntArray, int, int]]:
    """Yield each closing window with a state of its own: its entries and bounds."""
    ends = starts + spans
    over = (spans > 0) & (ends > time.closed) & (ends <= time.until)
    for length in sorted({window.length_us for window in grid.windows}):
        which = np.flatnonzero(over & (spans == length))
        different, number = _numbered(starts[which], grid.width_us)
        order = which[np.argsort(number, kind="stable")]
        bounds = np.searchsorted(np.sort(number), np.arange(len(different) + 1))
        for i, start in enumerate(different.tolist()):
            yield order[bounds[i] : bounds[i + 1]], start, start + length


def _numbered(moments: IntArray, width: int) -> tuple[IntArray, npt.NDArray[np.integer]]:
    """Return the distinct event times, sorted, and the index of each."""
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

"""Building the windows that close from panes, and from windows with states of their own.

The states of a piece, or of a window that is built, are in order of their keys, which are numbers
here.  Two that follow one another are merged by one call of the aggregates, row by row; where they
hold the same keys, as panes of a busy stream do, without moving anything.

Invariant: states are merged in order of event time, regardless of the plan, so that only the last
bits of sums of floats tell one plan from another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.library.windows.consolidation import ConsolidationProblem, plan_consolidation
from godwit.store.columns import take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from godwit.library.windows.consolidation import ConsolidationPlan, ConsolidationStep
    from godwit.library.windows.kept import KeptSpans
    from godwit.time.event_time import EpochTime
    from godwit.time.grid import PaneGrid

IntArray = npt.NDArray[np.int64]

SHARES = 32
_NO_MOMENTS = np.zeros(0, np.int64)
_WORTH_A_SEARCH = 50_000  # merging as many keys takes about as long as the search


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingWindow:
    """A window that closes, and the pieces it is built from."""

    start: int
    end: int
    panes: tuple[int, int] = (0, 0)  # positions of its panes among the pieces; empty: none
    own: int | None = None  # the piece that is a state of its own, if it has one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedStates:
    """Partial states of some keys."""

    keys: IntArray  # shape ``(n,)``: numbers of keys, ascending
    states: pa.RecordBatch  # n rows

    def merged_with(
        self, later: KeyedStates, merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]
    ) -> KeyedStates:
        """Return these states merged with `later` ones; keys may be in either or both."""
        count, position = len(self.keys), np.searchsorted(self.keys, later.keys)
        if np.array_equal(self.keys, later.keys):
            return KeyedStates(keys=self.keys, states=merge(self.states, later.states))
        is_in_both = np.zeros(len(position), np.bool_)
        is_inside = position < count
        is_in_both[is_inside] = self.keys[position[is_inside]] == later.keys[is_inside]
        own_positions, later_positions, new_positions = (
            position[is_in_both],
            np.flatnonzero(is_in_both),
            np.flatnonzero(~is_in_both),
        )
        merged = merge(
            take_rows(self.states, own_positions), take_rows(later.states, later_positions)
        )
        source_positions = np.arange(count)
        source_positions[own_positions] = count + np.arange(len(own_positions))
        source_positions = np.insert(
            source_positions, position[new_positions], count + len(own_positions) + new_positions
        )
        all_states = pa.concat_batches([self.states, merged, later.states])
        return KeyedStates(
            keys=np.insert(self.keys, position[new_positions], later.keys[new_positions]),
            states=all_states.take(pa.array(source_positions)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """Panes, and windows with entries of their own, that the windows that close are built from.

    Panes are the first pieces, in order of time.
    """

    panes: IntArray  # start of each pane that has entries
    spans: Mapping[tuple[int, int], int]  # start and span of entries that are of no pane → piece
    windows: tuple[ClosingWindow, ...]  # that close
    staying: tuple[ClosingWindow, ...]  # that are built to stay
    ready: Mapping[tuple[int, int], int]  # positions of panes of a window that stayed → piece
    count: int  # number of pieces

    @classmethod
    def of(
        cls,
        grid: PaneGrid,
        starts: IntArray,
        spans: IntArray | None,
        time: EpochTime,
        kept_spans: KeptSpans | None = None,
    ) -> tuple[Pieces, npt.NDArray[np.integer]]:
        """Assign n entries to pieces (panes and ready-made windows) of the windows that close.

        Entry i is of the pane that starts at ``starts[i]``, or if it has a span, of a window of
        that length (negative: of a window that is retained). Returns the pieces, and the piece of
        each entry.
        """
        groups = list(_by_span(starts, spans, grid.width_us))
        panes = next((group.starts for group in groups if not group.span), _NO_MOMENTS)
        count, of_spans = len(panes), {}
        windows: dict[tuple[int, int], ClosingWindow] = {}
        bounds = grid.windows_over(panes, time.closed, time.until)
        positions = (np.searchsorted(panes, bound) for bound in bounds)
        rows = zip(*(b.tolist() for b in (*bounds, *positions)), strict=True)
        for start, end, first, last in rows:
            windows[start, end] = ClosingWindow(start=start, end=end, panes=(first, last))
        ready: dict[tuple[int, int], int] = {}
        lengths = {window.length_us for window in grid.windows}
        for group in groups:
            for start in group.starts.tolist() if group.span else ():
                end = start + abs(group.span)
                if group.span < 0:
                    if kept_spans is None or not kept_spans.is_retained(
                        start, end, time.kept_since, time.closed
                    ):
                        continue
                    first, last = np.searchsorted(panes, (start, end)).tolist()
                    if last - first < 2:
                        continue
                    ready[first, last] = count
                elif group.span in lengths and time.closed < end <= time.until:
                    panes_of = windows[start, end].panes if (start, end) in windows else (0, 0)
                    windows[start, end] = ClosingWindow(
                        start=start, end=end, panes=panes_of, own=count
                    )
                else:
                    continue
                of_spans[start, group.span] = count
                count += 1
        staying = () if kept_spans is None else kept_spans.to_retain(panes, time.closed, time.until)
        pieces = cls(
            panes=panes,
            spans=of_spans,
            windows=tuple(windows.values()),
            staying=tuple(_window_of_panes(panes, start, end) for start, end in staying),
            ready=ready,
            count=count,
        )
        return pieces, pieces._piece_numbers(groups, len(starts))

    @property
    def to_build(self) -> tuple[ClosingWindow, ...]:
        """Windows that close in the epoch, then windows that are built to be retained."""
        return self.windows + self.staying

    def only_piece(self, window: ClosingWindow) -> int | None:
        """Return the only piece (pane or retained window) of a window; ``None``: it has several."""
        first, end = window.panes
        if first == end or window.own is not None:
            return window.own if first == end else None
        return first if end - first == 1 else self.ready.get(window.panes)

    def _piece_numbers(self, groups: Sequence[_SpanGroup], count: int) -> npt.NDArray[np.integer]:
        """Return the piece of each of `count` entries; `self.count`: of none."""
        piece_of = np.full(count, self.count)
        for group in groups:
            numbers = group.number
            if group.span:
                numbers_by_start = [
                    self.spans.get((start, group.span), self.count)
                    for start in group.starts.tolist()
                ]
                numbers = np.array(numbers_by_start)[group.number]
            if group.rows is None:
                return numbers
            piece_of[group.rows] = numbers
        return piece_of

    def plan(
        self, sizes: IntArray, all_keys: int, *, overlapping: bool
    ) -> Mapping[tuple[int, int], ConsolidationStep]:
        """Return a plan, in order, for merging windows from pieces and other windows.

        `sizes`: number of keys of each piece. `all_keys`: number of distinct keys. `overlapping`:
        pieces of a window may overlap, since no aggregate changes if it sees a row twice.
        """
        wanted_spans = dict.fromkeys(
            window.panes for window in self.to_build if window.panes[0] < window.panes[1]
        )
        spans = tuple(span for span in wanted_spans if span not in self.ready)
        if not spans:
            return {}
        used = {
            (first, last): int(sizes[piece])
            for (first, last), piece in self.ready.items()
            if any(span_first <= first and last <= span_last for span_first, span_last in spans)
        }
        end = max(last for _, last in (*spans, *used))
        plan = plan_of(sizes[:end], all_keys, spans, overlapping=overlapping, ready=used)
        return {step.window: step for step in plan.steps}

    def pieces_read(self, steps: Mapping[tuple[int, int], ConsolidationStep]) -> set[int]:
        """Return the numbers of the pieces that windows are built from, with steps of `plan`."""
        parts = [part for step in steps.values() for part in step.parts]
        parts += [unbuilt.panes for unbuilt in self.to_build if unbuilt.panes not in steps]
        pieces = {window.own for window in self.windows if window.own is not None}
        for part in parts:
            if part in self.ready:
                pieces.add(self.ready[part])
            elif part[1] - part[0] == 1 and (part not in steps or steps[part].parts == (part,)):
                pieces.add(part[0])
        return pieces

    def build(
        self,
        states: Sequence[KeyedStates],
        steps: Mapping[tuple[int, int], ConsolidationStep],
        merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch],
    ) -> tuple[list[KeyedStates], int]:
        """Merge the `states` of pieces into the windows of `to_build`, in the order of `steps`.

        Returns the windows' states, and the number of keys read. `steps`: window → its merge, whose
        parts are pieces or windows of earlier steps. `merge` merges states row by row, the earlier
        ones first.
        """
        num_merged = 0
        built = {span: states[piece] for span, piece in self.ready.items()}
        for step in steps.values():
            parts = [built[part] if part in built else states[part[0]] for part in step.parts]
            num_merged += sum(len(part.keys) for part in parts)
            while len(parts) > 1:
                unpaired = parts[len(parts) & ~1 :]
                neighbours = zip(parts[::2], parts[1::2], strict=False)
                parts = [left.merged_with(right, merge) for left, right in neighbours] + unpaired
            built[step.window] = parts[0]
        window_states = []
        for window in self.to_build:
            if window.own is None:
                window_states.append(built[window.panes])
                continue
            own_state = states[window.own]
            if window.panes in built:
                num_merged += len(own_state.keys)
                own_state = built[window.panes].merged_with(own_state, merge)
            window_states.append(own_state)
        return window_states, num_merged


def plan_of(
    pane_keys: IntArray,
    all_keys: int,
    windows: Sequence[tuple[int, int]],
    *,
    overlapping: bool,
    ready: Mapping[tuple[int, int], int] | None = None,
) -> ConsolidationPlan:
    """Return a plan for merging windows from panes, by the number of keys of each pane.

    Keys count in thirty-seconds of all, so that the plan of one epoch is found again in the next.
    The plan depends on the committed state and the epoch's rows alone, so another attempt of the
    epoch has the same plan. `windows`: first pane and end of each. `ready`: window that exists
    already → its number of keys. `overlapping`: see `Pieces.plan`.
    """
    share = SHARES / max(all_keys, 1)
    shares = np.ceil(pane_keys * share).astype(np.int64)
    of_ready = tuple(
        (span, math.ceil(keys * share)) for span, keys in sorted((ready or {}).items())
    )
    before = np.concatenate([[0], np.cumsum(pane_keys)])
    keys = sum(int(before[end] - before[first]) for first, end in windows)
    return _cached_plan(
        tuple(shares.tolist()), tuple(windows), of_ready, overlapping, search=keys > _WORTH_A_SEARCH
    )


@lru_cache(maxsize=64)
def _cached_plan(
    shares: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    ready: tuple[tuple[tuple[int, int], int], ...],
    overlapping: bool,
    *,
    search: bool,
) -> ConsolidationPlan:
    """Return a plan for merging closing windows from panes and from one another; cached.

    `shares`: keys of each pane, in thirty-seconds of all, as in `ready`. `search`: also consider
    auxiliary windows. Other parameters: see `plan_of`.
    """
    problem = ConsolidationProblem(
        pane_keys=np.array(shares, np.float64),
        windows=windows,
        all_keys=float(SHARES),
        overlapping=overlapping,
        ready={span: float(keys) for span, keys in ready},
    )
    return plan_consolidation(problem, auxiliary=search, most_nodes=16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SpanGroup:
    """Entries of one span."""

    span: int  # 0: of panes
    rows: IntArray | None  # which entries; ``None``: all
    starts: IntArray  # distinct, ascending
    number: npt.NDArray[np.integer]  # of each of `rows`: which of `starts`


def _by_span(starts: IntArray, spans: IntArray | None, width_us: int) -> Iterator[_SpanGroup]:
    """Group entries by span (window length; 0: panes of `width_us`), starts numbered in each."""
    if spans is None or not spans.any():
        distinct_starts, start_numbers = _number_times(starts, width_us)
        yield _SpanGroup(span=0, rows=None, starts=distinct_starts, number=start_numbers)
        return
    remaining = np.flatnonzero(spans)
    rows_of_span = {0: np.flatnonzero(spans == 0)} if len(remaining) < len(spans) else {}
    while len(remaining):  # few are different, and comparing is faster than sorting
        span = int(spans[remaining[0]])
        has_span = spans[remaining] == span
        rows_of_span[span], remaining = remaining[has_span], remaining[~has_span]
    for span, rows in rows_of_span.items():
        distinct_starts, start_numbers = _number_times(starts[rows], width_us)
        yield _SpanGroup(span=span, rows=rows, starts=distinct_starts, number=start_numbers)


def _window_of_panes(panes: IntArray, start: int, end: int) -> ClosingWindow:
    """Return the window from `start` to `end`, with the positions of its panes."""
    first, last = np.searchsorted(panes, (start, end)).tolist()
    return ClosingWindow(start=start, end=end, panes=(first, last))


def _number_times(times: IntArray, width: int) -> tuple[IntArray, npt.NDArray[np.integer]]:
    """Return the distinct times (multiples of `width`), and the position of each time in them."""
    if not len(times):
        return times, times
    earliest = int(times.min())
    offset = (times - earliest) // width
    count = int(offset.max()) + 1
    if count > len(times) + 1024:
        return np.unique(times, return_inverse=True)
    is_present = np.bincount(offset, minlength=count) > 0
    number = np.cumsum(is_present) - 1
    # Few moments are the rule, and NumPy orders short integers several times as fast as long ones.
    compact_number = number.astype(np.uint16) if count < 1 << 16 else number
    return earliest + np.flatnonzero(is_present) * width, compact_number[offset]

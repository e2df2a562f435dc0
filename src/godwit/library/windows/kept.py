"""Closed windows that are retained, to build later windows from.

A window that closes may be a part of a window that closes in a later epoch.  So it is retained: as
an entry per key beside the panes, whose span is the window's length, negative.  A retained window
is *derived*: it can be built from panes at any time, and nothing else is made of it::

    panes           0   1   2   3   4   5   6   7        entries of the state
    closed before   ├───────────────────┤                retained: its panes were merged then
    closes now      ├───────────────────────────────┤    = the retained one, and three panes

Which windows are retained follows from the user's windows alone (`kept_spans`), and which of them
exist follows from the time up to which windows are closed.  So lanes, attempts and executors agree
without messages, and key groups take their retained windows along when they move.

- Parts of the cheapest plan over a common multiple of all frequencies, if later windows save enough
  by them: 86 partials, not 240, in the paper's example, however short epochs are.
- Of a window that overlaps many of its own kind: *blocks* of 4, 8, 16 … steps, up to half of it.
  Each is built of smaller ones, and a window is made of about twice the logarithm of its steps.

Writing an entry costs as much as merging several, so small windows are not retained: of 20 steps,
blocks of 4 and 8 take 6.9 parts a window and 0.4 entries a step; with those of 2, 6.4 and 0.9.

Invariant: a retained entry equals its panes merged.  A row that arrives later, but not too late for
a longer window, changes both (`KeptSpans.available`).

Source: efficient consolidation, Madsen et al. (Enorm) §6.1; blocks: Arasu and Widom, "Resource
Sharing in Continuous Sliding-Window Aggregates", VLDB 2004; Tangwongsan et al., "General
Incremental Sliding-Window Aggregation" (FlatFAT), PVLDB 8(7), 2015.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from godwit.library.windows.consolidation import ConsolidationProblem, plan_consolidation
from godwit.time.grid import PaneGrid, TimeWindow, WindowsOfPanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.time.grid import Moments

_MAX_PLANNED: Final = 200  # windows of a common multiple of all frequencies
_MAX_SEARCHED: Final = 24  # likewise, to look for auxiliary ones too
_MAX_CUTS: Final = 100_000
_MIN_STEPS: Final = 8  # of a window that is worth blocks of several
_MIN_SAVED: Final = 4  # parts that windows need not read, for an entry that is written


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSpans:
    """Windows that stay, by kind: of one length and distance each."""

    grid: PaneGrid  # the kinds, which have gaps
    # of each kind: how long after its beginning the last window that needs it is over
    needed_us: tuple[int, ...]

    @property
    def mark(self) -> int:
        """Fingerprint of retained windows' lengths and intervals; state of another is not used."""
        kinds = [(w.length_us, w.every_us, w.offset_us) for w in self.grid.windows]
        return zlib.crc32(repr((kinds, self.needed_us)).encode())

    def available(self, panes: Moments, since: int, closed: int) -> WindowsOfPanes:
        """Return the retained windows over each pane, once windows up to `closed` are emitted.

        These windows ended after `since`; those that no later window needs are left out.
        """
        return self._without_unneeded(self.grid.windows_of(panes, since, closed), closed)

    def entries(self, panes: Moments, since: int, closed: int) -> tuple[Moments, Moments]:
        """Return start and span of the entries of panes, and of retained windows over them.

        Span: 0 for a pane, else minus the window's length. `since`, `closed`: see `available`.
        """
        available = self.available(panes, since, closed)
        stayed = sorted(set(zip(available.start.tolist(), available.end.tolist(), strict=True)))
        spans = [0] * len(panes) + [start - end for start, end in stayed]
        starts = np.append(panes, np.array([start for start, _ in stayed], np.int64))
        return starts, np.array(spans, np.int64)

    def to_retain(self, panes: Moments, closed: int, until: int) -> list[tuple[int, int]]:
        """Return start and end of the windows over `panes` that later windows need.

        They end in ``(closed, until]``, and a window that ends after `until` needs them.
        """
        ending = self._without_unneeded(self.grid.windows_of(panes, closed, until), until)
        return sorted(set(zip(ending.start.tolist(), ending.end.tolist(), strict=True)))

    def is_retained(self, start: int, end: int, since: int, closed: int) -> bool:
        """Return whether a window ended in ``(since, closed]`` and a later window needs it."""
        if not since < end <= closed:
            return False
        needed = (  # a window of two kinds counts as of the first, as it does for panes
            needed_us
            for window, needed_us in zip(self.grid.windows, self.needed_us, strict=True)
            if end - start == window.length_us and not (start - window.offset_us) % window.every_us
        )
        return start + next(needed, 0) > closed

    def any_retained_from(self, first: int, since: int, closed: int) -> bool:
        """Return whether any retained window begins at `first` or later; see `is_retained`."""
        latest = [window.last_closing(closed) for window in self.grid.windows]
        return any(
            start >= first and start + window.length_us > since and start + needed_us > closed
            for start, window, needed_us in zip(
                latest, self.grid.windows, self.needed_us, strict=True
            )
        )

    def _without_unneeded(self, windows: WindowsOfPanes, closed: int) -> WindowsOfPanes:
        """Return the windows that later windows need once windows up to `closed` are emitted."""
        needed = windows.start + np.array(self.needed_us, np.int64)[windows.kind] > closed
        return WindowsOfPanes(
            pane=windows.pane[needed],
            kind=windows.kind[needed],
            start=windows.start[needed],
            end=windows.end[needed],
        )


@lru_cache(maxsize=64)
def kept_spans(grid: PaneGrid) -> KeptSpans | None:
    """Choose the kinds of closed windows to retain, to build later windows of a grid from them.

    A kind has one length and interval. ``None`` if none save work.

    Examples
    --------
    >>> minute = 60_000_000
    >>> windows = [TimeWindow(length_us=n * minute, every_us=n * minute) for n in (5, 10)]
    >>> kept = kept_spans(PaneGrid(windows=tuple(windows), width_us=minute))
    >>> [(w.length_us // minute, w.every_us // minute) for w in kept.grid.windows]
    [(5, 10)]
    """
    kinds: dict[TimeWindow, int] = {}
    for kind, needed_us in (*_aligned_blocks(grid), *_reused_parts(grid)):
        ends = kind.offset_us + kind.length_us
        if any(
            not (ends - window.offset_us - window.length_us) % window.every_us
            and not kind.every_us % window.every_us
            for window in grid.windows
        ):  # otherwise nothing closes when it ends
            kinds[kind] = max(needed_us, kinds.get(kind, 0))
    if not kinds:
        return None
    chosen: list[TimeWindow] = []
    for kind in sorted(kinds, key=lambda kind: (kind.length_us, kind.every_us, kind.offset_us)):
        containing = next(
            (retained_kind for retained_kind in chosen if _includes_kind(retained_kind, kind)), None
        )
        if containing is None:
            chosen.append(kind)
        else:
            kinds[containing] = max(kinds[containing], kinds[kind])
    return KeptSpans(
        grid=PaneGrid(windows=tuple(chosen), width_us=grid.width_us),
        needed_us=tuple(kinds[kind] for kind in chosen),
    )


def _includes_kind(kind: TimeWindow, other: TimeWindow) -> bool:
    """Return whether every window of kind `other` is also one of `kind`."""
    offset_us = other.offset_us - kind.offset_us
    has_same_windows = kind.length_us == other.length_us and not other.every_us % kind.every_us
    return has_same_windows and not offset_us % kind.every_us


def _aligned_blocks(grid: PaneGrid) -> Iterator[tuple[TimeWindow, int]]:
    """Yield blocks of steps of overlapping windows, as kinds, and the µs that each is needed."""
    for window in grid.windows:
        steps, rest = divmod(window.length_us, window.every_us)
        if rest or steps < 2:
            continue
        panes = window.every_us // grid.width_us
        sizes = [1] if (steps - 1) * (panes - 1) > _MIN_SAVED else []
        if steps >= _MIN_STEPS:
            sizes += [1 << level for level in range(2, (steps // 2).bit_length())]
        for size in sizes:
            length_us = size * window.every_us
            yield (
                TimeWindow(length_us=length_us, every_us=length_us, offset_us=window.offset_us),
                window.length_us,
            )


def _reused_parts(grid: PaneGrid) -> Iterator[tuple[TimeWindow, int]]:
    """Yield parts of the cheapest plan of later windows, as kinds, and the µs each is needed."""
    windows = [
        grid_window
        for grid_window in grid.windows
        if grid_window.length_us < _MIN_STEPS * grid_window.every_us
    ]
    if not windows:
        return
    period_us = math.lcm(*(window.every_us for window in windows))
    count = sum(period_us // window.every_us for window in windows)
    if count > _MAX_PLANNED or period_us // grid.width_us > _MAX_CUTS:
        return
    begin = min(window.offset_us for window in windows)
    spans = {
        ((start - begin) // grid.width_us, (start - begin + window.length_us) // grid.width_us)
        for window in windows
        for start in range(window.offset_us, window.offset_us + period_us, window.every_us)
    }
    problem = ConsolidationProblem(
        pane_keys=np.ones(max(end for _, end in spans)), windows=tuple(sorted(spans))
    )
    plan = plan_consolidation(problem, auxiliary=count <= _MAX_SEARCHED)
    users: dict[tuple[int, int], list[int]] = {}
    for step in plan.steps:
        for part in step.parts:
            users.setdefault(part, []).append(step.window[1])
    last_of: dict[tuple[int, int], int] = {}
    for step in plan.steps:  # shorter ones first
        first, end = step.window
        later = [user_end for user_end in users.get(step.window, ()) if user_end > end]
        # Without it, they would read its available parts, and panes.
        parts_without = sum(
            1 if last_of.get(part, 0) > end else part[1] - part[0] for part in step.parts
        )
        if (parts_without - 1) * len(later) >= _MIN_SAVED:
            last_of[step.window] = max(later)
    for (first, end), last in last_of.items():
        if last > end:
            start = begin + first * grid.width_us
            kind = TimeWindow(
                length_us=(end - first) * grid.width_us,
                every_us=period_us,
                offset_us=start % period_us,
            )
            yield kind, (last - first) * grid.width_us

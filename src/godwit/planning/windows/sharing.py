"""Sharing panes or duplicating state: which keeps windows that overlap for less CPU time.

A row belongs to several windows.  *Shared*, it changes one partial per key and pane, and a window
that is over is merged from its panes.  *Duplicated*, it changes one partial per key and window, and
a window that is over is there.  Few long windows of many small panes are cheaper duplicated, many
windows of few panes shared; in between it depends on what writing and merging cost, on how many
panes an epoch touches, and on how many keys panes have in common.

Source: the cost model of paper 3 §5.1.1, where a tuple costs E to process, once when shared and W
times when not, and results of partial windows cost K to bring together.  Here partials of an epoch
are made per pane first, so E is what an entry of state costs, and both costs are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WindowCosts", "WindowCounts", "is_duplicated_cheaper"]

_WORTH_CHANGING = 0.85
"""Share of today's cost that the other way must stay below; measured costs differ a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCosts:
    """CPU time in milliseconds."""

    write_ms: float  # of an entry of state that changes: to find, write and bring forward
    spread_ms: float  # of a partial of a pane that goes to one window
    scan_ms: float  # of an entry that is read when windows close
    merge_ms: float  # of a key in a part that is merged into a window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCounts:
    """What a stretch of epochs does, either way."""

    # keys and panes, and keys and windows, that change; once for every epoch that changes them
    pane_entries: float = 0.0
    window_entries: float = 0.0
    spread: float = 0.0  # windows of every key and pane that changes
    # entries that are read when windows close
    panes_scanned: float = 0.0
    windows_scanned: float = 0.0
    merged: float = 0.0  # keys in the parts of the windows that close

    def __add__(self, other: WindowCounts) -> WindowCounts:
        """Add up two stretches."""
        return WindowCounts(
            pane_entries=self.pane_entries + other.pane_entries,
            window_entries=self.window_entries + other.window_entries,
            spread=self.spread + other.spread,
            panes_scanned=self.panes_scanned + other.panes_scanned,
            windows_scanned=self.windows_scanned + other.windows_scanned,
            merged=self.merged + other.merged,
        )

    def shared_ms(self, costs: WindowCosts) -> float:
        """Price them if panes are shared."""
        written = self.pane_entries * costs.write_ms
        return written + self.panes_scanned * costs.scan_ms + self.merged * costs.merge_ms

    def duplicated_ms(self, costs: WindowCosts) -> float:
        """Price them if state is duplicated."""
        written = self.window_entries * costs.write_ms + self.spread * costs.spread_ms
        return written + self.windows_scanned * costs.scan_ms


def is_duplicated_cheaper(counts: WindowCounts, costs: WindowCosts, *, duplicated: bool) -> bool:
    """Say which way to go on: the cheaper one, if it is so by enough.

    `counts`, `costs`: what was done, and what it costs. `duplicated`: whether state is duplicated
    today.

    Examples
    --------
    Two windows of some sixty panes each: of 60 panes and of 2 windows, the windows are cheaper.

    >>> costs = WindowCosts(write_ms=5, spread_ms=1, scan_ms=1, merge_ms=1)
    >>> counts = WindowCounts(
    ...     pane_entries=60,
    ...     window_entries=2,
    ...     spread=120,
    ...     panes_scanned=60,
    ...     windows_scanned=2,
    ...     merged=120,
    ... )
    >>> counts.shared_ms(costs), counts.duplicated_ms(costs)
    (480, 132)
    >>> is_duplicated_cheaper(counts, costs, duplicated=False)
    True
    """
    shared_ms, duplicated_ms = counts.shared_ms(costs), counts.duplicated_ms(costs)
    if duplicated:
        return shared_ms >= _WORTH_CHANGING * duplicated_ms
    return duplicated_ms < _WORTH_CHANGING * shared_ms

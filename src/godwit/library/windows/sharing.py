"""Measured cost of overlapping windows, with shared panes or a state per window.

Lanes report the number of keys of each pane of an epoch, and the time of writing, reading and
merging.  The keys determine the work of the epoch in both layouts: changed entries, and entries
read and merged when windows close.  Once the longest window has passed, both layouts are priced by
the measured costs (`godwit.control.windows`); lanes use the layout that is set here
(`godwit.time.event_time.EpochTime.duplicated`).

Invariant: results do not depend on the layout (every row is in one pane or in all its windows), so
it is not recorded, and a new run shares panes until it has measured.

Source: paper 3 §5.1.2, which evaluates its cost model after every period of the longest window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.library.windows.closing import Pieces
from godwit.library.windows.consolidation import WindowCosts, WindowCounts
from godwit.library.windows.kept import kept_spans
from godwit.time.grid import BEGINNING, END

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.time.event_time import EpochTime, WindowWork
    from godwit.time.grid import PaneGrid

_MIN_EPOCHS = 4
_UNKNOWN = {"spread": 0.3, "scan": 0.2, "merge": 0.2}
"""Default costs before any measurement, relative to that of a changed entry."""


class PaneMeter:
    """Meter of one operator's windows, with shared panes or a state per window."""

    def __init__(
        self,
        grid: PaneGrid,
        share: bool | None = None,  # set by the user; ``None``: by measured costs
    ) -> None:
        # windows have states of their own from the next epoch on
        self.duplicated = share is False
        self._grid, self._share, self._kept = grid, share, kept_spans(grid)
        self._longest_us = max(window.length_us for window in grid.windows)
        self._missing: dict[int, float] = {}
        self._keys = 0.0
        self._measured = dict.fromkeys(("write", *_UNKNOWN), (0.0, 0.0))
        self._counts, self._epochs = WindowCounts(), 0
        self._since = self._until = BEGINNING

    @property
    def costs(self) -> WindowCosts:
        """Measured costs per entry, in milliseconds of CPU time."""
        ms = {kind: spent / max(count, 1.0) for kind, (count, spent) in self._measured.items()}
        for kind, share in _UNKNOWN.items():
            if not self._measured[kind][0]:
                ms[kind] = share * ms["write"]
        return WindowCosts(
            write_ms=ms["write"],
            spread_ms=ms["spread"],
            scan_ms=ms["scan"],
            merge_ms=ms["merge"],
        )

    @property
    def counts(self) -> WindowCounts:
        """Entries written, scanned and merged in this period."""
        return self._counts

    @property
    def is_over(self) -> bool:
        """True once the period is as long as the longest window."""
        long = self._until - self._since >= self._longest_us
        return self._since > BEGINNING and self._epochs >= _MIN_EPOCHS and long

    def begin(self) -> None:
        """Begin the next period; earlier measurements count half."""
        self._counts, self._epochs, self._since = WindowCounts(), 0, self._until
        self._measured = {k: (n / 2, ms / 2) for k, (n, ms) in self._measured.items()}

    def add_epoch(self, time: EpochTime, works: Sequence[WindowWork]) -> None:
        """Add the measured window work of one epoch."""
        if self._share is not None:
            return
        self._add_costs(works)
        self._counts += self._count_written(time, works)
        if self._grid.closes(time.closed, time.until):
            self._counts += self._count_closing(time)
            first_open = self._grid.first_open(time.until)
            self._missing = {
                pane: missing_ for pane, missing_ in self._missing.items() if pane >= first_open
            }
        self._epochs, self._until = self._epochs + 1, time.until
        if self._since == BEGINNING:
            self._since = time.until

    def _add_costs(self, works: Sequence[WindowWork]) -> None:
        """Add the CPU time of an epoch's window work, by kind of work."""
        for kind in self._measured:
            count, ms = self._measured[kind]
            name = {"write": "written", "scan": "scanned", "merge": "merged"}.get(kind, kind)
            count += sum(getattr(work, name) for work in works)
            ms += sum(getattr(work, f"{kind}_ms") for work in works if getattr(work, name))
            self._measured[kind] = count, ms

    def _count_written(self, time: EpochTime, works: Sequence[WindowWork]) -> WindowCounts:
        """Estimate the entries that an epoch writes: with shared panes, and with own states."""
        touched: dict[int, int] = {}
        for work in works:
            for pane, count in work.panes.items():
                touched[pane] = touched.get(pane, 0) + count
        self._keys = max(self._keys, sum(work.keys for work in works), 1.0)
        if not touched:
            return WindowCounts()
        panes = np.array(sorted(touched))
        keys = np.array([touched[pane] for pane in panes.tolist()], np.float64)
        missing = np.clip(1.0 - keys / self._keys, 0.0, 1.0)
        for pane, share in zip(panes.tolist(), missing.tolist(), strict=True):
            self._missing[pane] = self._missing.get(pane, 1.0) * share
        windows = self._grid.windows_of(panes, time.closed, END)
        _, window = np.unique(np.stack([windows.kind, windows.start]), axis=1, return_inverse=True)
        in_none = np.ones(int(window.max(initial=-1)) + 1)
        np.multiply.at(in_none, window, missing[windows.pane])
        return WindowCounts(
            pane_entries=float(keys.sum()),
            window_entries=float(self._keys * (1.0 - in_none).sum()),
            spread=float(keys[windows.pane].sum()),
        )

    def _count_closing(self, time: EpochTime) -> WindowCounts:
        """Return the numbers of entries read and merged for the windows that an epoch closes."""
        panes = np.array(sorted(self._missing), np.int64)
        missing = np.array([self._missing[pane] for pane in panes.tolist()])

        def keys_of(first: int, end: int) -> float:
            """Estimate the keys of a window of some panes."""
            return self._keys * (1.0 - float(np.prod(missing[first:end])))

        retained = None if time.kept_since == END else self._kept
        starts, spans = panes, None
        if retained is not None:
            starts, spans = retained.entries(panes, time.kept_since, time.closed)
        pieces, piece_of = Pieces.of(self._grid, starts, spans, time, retained)
        if not pieces.windows:
            return WindowCounts()
        keys = np.zeros(pieces.count + 1)
        keys[: len(panes)] = self._keys * (1.0 - missing)
        for span, piece in pieces.ready.items():
            keys[piece] = keys_of(*span)
        piece_keys = np.ceil(keys).astype(np.int64)
        steps = pieces.plan(piece_keys, int(self._keys), overlapping=False)
        first, end = self._grid.closing(time.closed, time.until)
        read_pieces = piece_of[(starts >= first) & (starts < end)]
        if retained is not None and retained.any_retained_from(first, time.kept_since, time.closed):
            read_pieces = np.array(sorted(pieces.pieces_read(steps)))
        # Windows with states of their own: entries of all windows that begin in the range are
        # scanned.
        window_starts, window_ends = self._grid.windows_over(panes, BEGINNING, END)
        is_closing = (window_starts >= first) & (window_starts < end)
        sizes = [
            keys_of(first_pane, end_pane)
            for first_pane, end_pane in zip(
                np.searchsorted(panes, window_starts[is_closing]).tolist(),
                np.searchsorted(panes, window_ends[is_closing]).tolist(),
                strict=True,
            )
        ]
        return WindowCounts(
            pane_entries=sum(keys_of(*window.panes) for window in pieces.staying),
            panes_scanned=float(keys[read_pieces].sum()),
            windows_scanned=float(sum(sizes)),
            merged=sum(keys_of(*part) for step in steps.values() for part in step.parts),
        )

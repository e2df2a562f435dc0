"""Measured cost of windows, where panes may be shared or state duplicated."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.columns.arrays import values_of
from godwit.operators.windows.event_time import WindowWork

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["Closed", "WindowMeter"]

_SAMPLE = 0xF  # one hash in sixteen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Closed:
    """Windows that are over."""

    output: pa.RecordBatch
    keys: int = 0  # keys of the largest
    merged: int = 0  # keys in the parts that were merged into them
    merge_ms: float = 0.0  # CPU time for it


class WindowMeter:
    """Meters the windows of one operator in one lane and epoch."""

    def __init__(self) -> None:
        self._panes: dict[int, int] = {}
        self._keys = self._written = self._spread = self._scanned = self._merged = 0
        self._write_ms = self._spread_ms = self._scan_ms = self._merge_ms = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count CPU time towards the entries that change."""
        cpu = time.process_time()
        yield
        self._write_ms += (time.process_time() - cpu) * 1e3

    @contextmanager
    def spreading(self, *, duplicated: bool) -> Iterator[None]:
        """Count CPU time towards partial states that go to windows, if they do."""
        cpu = time.process_time()
        yield
        if duplicated:
            self._spread_ms += (time.process_time() - cpu) * 1e3

    def spread(self, entries: int) -> None:
        """Take note of partial states that went to windows."""
        self._spread = entries

    def wrote(self, entries: int) -> None:
        """Take note of the entries that changed."""
        self._written = entries

    def saw(self, panes: pa.Array, hashes: npt.NDArray[np.int64]) -> None:
        """Count the keys of the epoch's rows, in every pane and all together: one entry of each."""
        different, counts = np.unique(values_of(panes), return_counts=True)
        self._panes = dict(zip(different.tolist(), counts.tolist(), strict=True))
        sampled = hashes[(hashes >> 32) & _SAMPLE == 0]
        most = max(counts.tolist(), default=0)
        self._keys = max(self._keys, most, len(np.unique(sampled)) * (_SAMPLE + 1))

    def scanned(self, entries: int, since: float) -> None:
        """Take note of entries that were read since a moment of this process's CPU time."""
        self._scanned, self._scan_ms = entries, (time.process_time() - since) * 1e3

    def closed(self, closed: Closed, *, sees_all_keys: bool) -> None:
        """Take note of windows that are over; where the rows are all of theirs, so are the keys."""
        if not sees_all_keys:
            self._keys = max(self._keys, closed.keys)
        if closed.merged:
            self._merged, self._merge_ms = closed.merged, closed.merge_ms
        else:
            self._scan_ms += closed.merge_ms

    @property
    def work(self) -> WindowWork:
        """Everything that was measured."""
        return WindowWork(
            panes=self._panes,
            keys=self._keys,
            written=self._written,
            write_ms=self._write_ms,
            spread=self._spread,
            spread_ms=self._spread_ms,
            scanned=self._scanned,
            scan_ms=self._scan_ms,
            merged=self._merged,
            merge_ms=self._merge_ms,
        )

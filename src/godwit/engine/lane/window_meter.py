"""What windows cost a lane, where panes may be shared or state duplicated."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from godwit.columns.arrays import values_of
from godwit.operators.windows.compute import WindowedCompute
from godwit.operators.windows.in_two import ConsolidatePart
from godwit.operators.windows.moments import WindowWork

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from godwit.engine.lane.rows import LaneRows
    from godwit.operators.operator import KeyedOperator
    from godwit.operators.windows.moments import OperatorTime
    from godwit.operators.windows.operator import Closed

__all__ = ["WindowMeter"]

_SAMPLE = 0xF  # one hash in sixteen


class WindowMeter:
    """Meters one operator in one lane and epoch.

    Parameters
    ----------
    operator, told
        The operator, and the epoch's moments.

    Attributes
    ----------
    twice
        Partials of keys that were held in two slots.
    """

    def __init__(self, operator: KeyedOperator, told: OperatorTime) -> None:
        self._operator, self._told, self.twice = operator, told, 0
        self._panes: dict[int, int] = {}
        self._keys = self._written = self._spread = self._scanned = self._merged = 0
        self._write_ms = self._spread_ms = self._scan_ms = self._merge_ms = 0.0

    @property
    def _meters(self) -> bool:
        whole = self._operator
        if isinstance(whole, ConsolidatePart):
            whole = whole.whole
        return isinstance(whole, WindowedCompute) and whole.may_duplicate

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count CPU time towards the entries that change."""
        cpu = time.process_time()
        yield
        self._write_ms += (time.process_time() - cpu) * 1e3

    @contextmanager
    def spreading(self) -> Iterator[None]:
        """Count CPU time towards partial states that go to windows."""
        cpu = time.process_time()
        yield
        if self._told.duplicated:
            self._spread_ms += (time.process_time() - cpu) * 1e3

    def spread(self, rows: LaneRows) -> LaneRows:
        """Give rows to the windows that hold them, if the epoch is told to."""
        if not (self._meters and self._told.duplicated):
            return rows
        partials = rows.combined()
        self._saw(partials.keys, partials.hashes)
        with self.spreading():
            spread = partials.spread(self._told)
        self._spread = len(spread.hashes)
        return spread

    def wrote(self, keys: pa.RecordBatch, hashes: npt.NDArray[np.int64]) -> None:
        """Take note of the entries that changed."""
        self._written = len(hashes)
        if self._meters and not self._told.duplicated:
            self._saw(keys, hashes)

    def scanned(self, entries: int, since: float) -> None:
        """Take note of entries that were read since a moment of this process's CPU time."""
        self._scanned, self._scan_ms = entries, (time.process_time() - since) * 1e3

    def closed(self, closed: Closed) -> None:
        """Take note of windows that were over."""
        self.twice += closed.twice
        if isinstance(self._operator, WindowedCompute):  # else it has seen all keys of the rows
            self._keys = max(self._keys, closed.keys)
        if closed.merged:
            self._merged, self._merge_ms = closed.merged, closed.merge_ms
        else:
            self._scan_ms += closed.merge_ms

    @property
    def work(self) -> WindowWork | None:
        """What it came to; ``None`` where there is nothing to choose."""
        if not self._meters:
            return None
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

    def _saw(self, keys: pa.RecordBatch, hashes: npt.NDArray[np.int64]) -> None:
        """Count the keys of the epoch's rows, in every pane and all together."""
        assert isinstance(self._operator, WindowedCompute), "others are not metered"
        panes = values_of(keys.column(self._operator.pane_position))
        different, counts = np.unique(panes, return_counts=True)
        self._panes = dict(zip(different.tolist(), counts.tolist(), strict=True))
        sampled = hashes[(hashes >> 32) & _SAMPLE == 0]
        most = max(counts.tolist(), default=0)
        self._keys = max(self._keys, most, len(np.unique(sampled)) * (_SAMPLE + 1))

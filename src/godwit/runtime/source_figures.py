"""Figures of Godwit's own sources: what each epoch read of them, and how far behind a query is."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from godwit.engine.cluster import SourceLook

if TYPE_CHECKING:
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.source_positions import SourcePositions
    from godwit.sources.source import Lag


_LAG_SHARE: Final = 20
"""The lag of the sources is asked for in as small a part of the time."""
_LAG_PAUSE_S: Final = 0.05
_TOLD: Final = ("name", "description", "inputRowsPerSecond", "processedRowsPerSecond")


def now_us() -> int:
    """Return Unix time in microseconds: the clock of arrivals."""
    return time.time_ns() // 1000


class SourceProgress:
    """Figures of the sources of one run, in the words of Spark's progress.

    `record_epoch` and `measure_lag` ask the sources, so they are called on the thread that calls
    these; figures may be read on any thread.
    """

    def __init__(self, positions: SourcePositions, num_recent: int) -> None:
        self._positions = positions
        self._lock = threading.Lock()
        self._lags: dict[str, Lag] = {}
        # Unix time of the lags, if they are of the position of now; and of the last look at the
        # sources that found no rows
        self._lags_us: int | None = None
        self._nothing_us: int | None = None
        self._kept: deque[tuple[int, list[dict[str, Any]], float]] = deque(maxlen=num_recent)
        self._noted_s = self._lag_s = time.monotonic()

    def record_epoch(
        self, number: int, batch: SourceBatch[Any], began_s: float, ended_s: float
    ) -> None:
        """Record the sources' offsets, rows and rates of an epoch.

        `number`: its key in `recorded`.
        """
        since_s, self._noted_s = max(ended_s - self._noted_s, 1e-9), ended_s
        self._lags_us = None
        self.measure_lag()
        before = self._positions.described(batch.begins)
        after = self._positions.described(batch.ref.positions)
        figures: list[dict[str, Any]] = []
        for name, source in self._positions.sources.items():
            count = batch.rows_of(name)
            figures.append(
                {
                    "name": name,
                    "description": source.identity,
                    "startOffset": before.get(name),
                    "endOffset": after.get(name),
                    "numInputRows": count,
                    "inputRowsPerSecond": None if count is None else count / since_s,
                    "processedRowsPerSecond": None
                    if count is None
                    else count / max(ended_s - began_s, 1e-9),
                    "metrics": _lag_as_text(self._lags.get(name)),
                }
            )
        with self._lock:
            self._kept.append((number, figures, (ended_s - began_s) * 1e3))

    def measure_lag(self) -> None:
        """Measure the sources' lag, unless it was measured recently."""
        now_s = time.monotonic()
        if now_s < self._lag_s:
            return
        self._lags_us = now_us()
        self._lags = self._positions.lags()
        ended_s = time.monotonic()
        self._lag_s = ended_s + max(_LAG_SHARE * (ended_s - now_s), _LAG_PAUSE_S)

    def backlog_without(self, planned: SourceBatch[Any]) -> int | None:
        """Return the sources' backlog in rows without those of a batch; ``None`` if unknown.

        It is known if the lag was measured since the last epoch.
        """
        had, rows = self.rows_held_back(), planned.split_rows
        if self._lags_us is None or had is None or rows is None:
            return None
        return max(had - rows, 0)

    def record_no_rows(self) -> None:
        """Record that the sources have no rows now."""
        self._nothing_us = now_us()

    def observe(self, planned: SourceBatch[Any], asked_us: int) -> SourceLook:
        """Return the arrival times of a batch's rows, estimated from the polls of the sources.

        `asked_us`: time of the last poll.
        """
        at_us, names = self._lags_us, self._positions.sources
        return SourceLook(
            at_us=asked_us,
            nothing_us={} if self._nothing_us is None else dict.fromkeys(names, self._nothing_us),
            before={
                name: ((at_us, lag.rows),)
                for name, lag in self._lags.items()
                if at_us is not None and lag.rows is not None
            },
            rows={name: n for name in names if (n := planned.rows_of(name)) is not None},
        )

    @property
    def last_number(self) -> int | None:
        """Number of the last recorded epoch; ``None`` before the first."""
        with self._lock:
            return self._kept[-1][0] if self._kept else None

    def sources(self) -> list[dict[str, Any]]:
        """Return lag and rates of each source, as of the last recorded epoch."""
        with self._lock:
            figures = self._kept[-1][1] if self._kept else []
        lags = self._lags
        return [
            {
                **{key: figure[key] for key in _TOLD},
                "behind": lags[figure["name"]].rows if figure["name"] in lags else None,
                "metrics": _lag_as_text(lags.get(figure["name"])),
            }
            for figure in figures
        ]

    def rows_held_back(self) -> int | None:
        """Return the sources' backlog in rows; ``None`` if no source reports it."""
        known = [lag.rows for lag in self._lags.values() if lag.rows is not None]
        return sum(known) if known else None

    def recorded(self) -> dict[int, tuple[list[dict[str, Any]], float]]:
        """Return epoch number → figures of each source, and total milliseconds of the epoch."""
        with self._lock:
            return {number: (figures, took_ms) for number, figures, took_ms in self._kept}


def _lag_as_text(lag: Lag | None) -> dict[str, str]:
    """Return a source's lag as text, in the fields of Spark's progress."""
    if lag is None:
        return {}
    figures = {"lagRows": lag.rows, "lagBytes": lag.size_bytes, "oldestUs": lag.oldest_us}
    return {name: str(value) for name, value in figures.items() if value is not None}


def parse_file_log(log: bytes) -> list[dict[str, Any]]:
    """Return the files in one entry of a file source's log."""
    return [json.loads(line) for line in log.splitlines()[1:]]

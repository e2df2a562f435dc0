"""Latency of an epoch's rows: from their arrival at the source to the end of their delivery.

An epoch's result is visible to readers after its delivery, or after the commit if sinks deliver
nothing.  So every row counts once, with the committed epoch, independent of retries; the time that
rows wait for suspended key groups is not included.

Arrival times are the best available (`SourceLatency.arrival`):

- ``"source"``: the source's arrival time: a broker's timestamp, the time at which a file was
  written.
- ``"seen"``: estimated from polls of the source (`SeenArrivals`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.engine.cluster import SourceLook


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLatency:
    """Latencies of the rows of one source in one epoch."""

    arrival: Literal["source", "seen"]  # origin of the arrival times
    histogram: LatencyHistogram


class SeenArrivals:
    """Cumulative curve of a source's rows, from polls of the source.

    Between two polls rows arrive evenly.  Rows of the first poll count as arrived at the start of
    the run: their earlier waiting time is unknown.  Rows are taken first in, first out, so rows
    that the source holds back arrived before the poll that takes them.
    """

    def __init__(self, began_us: int) -> None:
        self._began_us = began_us
        self._popped = 0.0
        # times of polls, ascending, and total rows arrived by then
        self._times_us: list[float] = []
        self._rows: list[float] = []

    def record_backlog(self, at_us: float, beyond: float) -> None:
        """Record that a source had `beyond` unread rows at `at_us` (Unix time)."""
        if not self._times_us:
            self._times_us.append(min(self._began_us, at_us))
            self._rows.append(self._popped + beyond)
        rows = max(self._popped + beyond, self._rows[-1])
        if at_us > self._times_us[-1]:
            self._times_us.append(at_us)
            self._rows.append(rows)
        else:
            self._rows[-1] = rows

    def pop_oldest(self, rows: float) -> npt.NDArray[np.float64]:
        """Remove the oldest `rows` rows; return pieces of them, shape ``(n, 3)``.

        Each piece: number of rows, first and last arrival time.
        """
        begin, end = self._popped, self._popped + rows
        times, seen = np.array(self._times_us), np.array(self._rows)
        # Rows of the first poll arrived all at once.
        times, seen = np.concatenate((times[:1], times)), np.concatenate(([begin], seen))
        reached = seen.clip(begin, end)
        counts = np.diff(reached)
        slopes = np.divide(
            np.diff(times), np.diff(seen), out=np.zeros(len(counts)), where=np.diff(seen) > 0
        )
        first = times[:-1] + (reached[:-1] - seen[:-1]).clip(min=0) * slopes
        last = first + counts * slopes
        self._popped = end
        # Keep the last point with no more arrived rows than taken ones, and all later points.
        used = max(int(np.searchsorted(self._rows, end, "right")) - 1, 0)
        del self._times_us[:used], self._rows[:used]
        return np.column_stack((counts, first, last))[counts > 0]


class LatencyMeter:
    """Measures the latency of the epochs of one run, after their delivery."""

    def __init__(self, began_us: int) -> None:
        self._began_us = began_us  # Unix time at which the run began
        self._seen: dict[str, SeenArrivals] = {}

    def measure(
        self,
        look: SourceLook,
        rows: Mapping[str, int],
        now_us: int,
        *,
        ages: Mapping[str, LatencyHistogram],
        ago_s: float,
    ) -> dict[str, SourceLatency]:
        """Return source → latencies of its rows in an epoch delivered at `now_us`.

        `look`: poll of the sources, and known arrivals. `rows`: source → its rows after its maps.
        `ages`: source → ages of its rows `ago_s` seconds ago, for sources with arrival times.
        """
        latencies = {
            name: SourceLatency(arrival="source", histogram=histogram.later(ago_s))
            for name, histogram in ages.items()
            if histogram.rows
        }
        for name in {**dict.fromkeys(self._seen), **rows}.keys() - ages.keys():
            count, parts = rows.get(name, 0), look.arrived_us.get(name, ())
            # The curve is updated even if the source has arrival times.
            pieces = self._arrival_pieces(name, count, look)
            if not count:
                continue
            if parts:
                pieces = np.array([(count / len(parts), at_us, at_us) for at_us in parts])
            counts, first_us, last_us = pieces.T
            spread = np.column_stack((counts, (now_us - last_us) / 1e6, (now_us - first_us) / 1e6))
            latencies[name] = SourceLatency(
                arrival="source" if parts else "seen", histogram=LatencyHistogram.spread(spread)
            )
        return latencies

    def _arrival_pieces(self, name: str, count: int, look: SourceLook) -> npt.NDArray[np.float64]:
        """Return the arrivals of `count` rows that an epoch read of a source; see `pop_oldest`."""
        curve = self._seen.setdefault(name, SeenArrivals(self._began_us))
        rows = look.rows.get(name, count)
        for at_us, beyond in look.before.get(name, ()):
            curve.record_backlog(at_us, beyond)
        if name in look.nothing_us:
            curve.record_backlog(min(look.nothing_us[name], look.at_us - 1), 0)
        curve.record_backlog(look.at_us, rows)
        pieces = curve.pop_oldest(rows)
        pieces[:, 0] *= count / max(rows, 1)
        return pieces


def merged_latency(latencies: Mapping[str, SourceLatency]) -> LatencyHistogram:
    """Return the histogram of the rows of all sources."""
    return LatencyHistogram.merged(latency.histogram for latency in latencies.values())


def latency_figures(latencies: Mapping[str, SourceLatency]) -> dict[str, Any]:
    """Return an epoch's latencies for its progress: of all rows, and of each source's.

    In milliseconds: ``p50``, ``p95``, ``p99``, ``max``, ``mean``; ``sources``: the same by source,
    and ``traces``, the W3C trace contexts of some rows, if their messages have any.
    Empty without rows.
    """
    every = merged_latency(latencies)
    if not every.rows:
        return {}
    sources = {
        name: {
            "arrival": latency.arrival,
            "rows": latency.histogram.rows,
            "ahead": latency.histogram.ahead,
            **latency.histogram.figures_ms(),
            **({"traces": [*latency.histogram.traces]} if latency.histogram.traces else {}),
        }
        for name, latency in latencies.items()
    }
    return {**every.figures_ms(), "sources": sources}


def latency_entry(epoch: int, latencies: Mapping[str, SourceLatency]) -> dict[str, Any]:
    """Return an epoch's latencies for the journal: histograms that can be merged over epochs."""
    return {
        "epoch": epoch,
        "sources": {
            name: {"arrival": latency.arrival, **latency.histogram.to_dict()}
            for name, latency in latencies.items()
        },
    }

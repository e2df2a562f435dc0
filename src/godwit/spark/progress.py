"""What an epoch took: the values of ``query.recentProgress``, in StreamingQuery's names."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.lane.messages import LaneReport
    from godwit.migration import ProtocolView
    from godwit.state.records import CommitRecord

__all__ = ["Progress"]


class Progress:
    """Times the phases of one epoch and gathers its figures."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._wall = time.time()
        self._started = time.perf_counter()
        self._took_ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._took_ms[name] = (time.perf_counter() - started) * 1e3

    def finish(
        self,
        reports: Sequence[LaneReport],
        record: CommitRecord,
        view: ProtocolView,
        counting: frozenset[str],
    ) -> dict[str, Any]:
        """Put everything together.

        Parameters
        ----------
        reports, record, view
            What the lanes reported, what was committed, how the protocol stands now.
        counting
            Operators whose rows are the source's: one for each feed.

        Returns
        -------
        dict
            ``batchId``, ``timestamp`` (seconds), ``numInputRows`` (source rows after
            the DataFrame maps), ``numOutputRows``, ``sinkRows`` (sink → rows staged for it; what a
            sink cannot take under ``<sink>_rejects``), ``processedRowsPerSecond``,
            ``durationMs`` (per phase, and ``epoch``), ``laneMs`` (per phase of the lanes, the sum
            over lanes), ``changelogBytes``, ``snapshotBytes``, ``waitingKeyGroups``,
            ``inFlightKeyGroups``, ``keyGroups`` (component → executor → number).
        """
        self._took_ms["epoch"] = (time.perf_counter() - self._started) * 1e3
        lane_ms: dict[str, float] = {}
        for report in reports:
            for phase, spent in report.took_ms.items():
                lane_ms[phase] = lane_ms.get(phase, 0.0) + spent
        rows = sum(
            done.rows_in for r in reports for done in r.operators if done.operator in counting
        )
        sinks: dict[str, int] = {}
        for ref in record.outputs:
            sinks[ref.sink] = sinks.get(ref.sink, 0) + ref.rows
        places: dict[str, dict[str, int]] = {}
        for name, component in view.components.items():
            assignment = component.assignment
            places[name] = {
                executor: len(assignment.key_groups(executor)) for executor in assignment.executors
            }
        return {
            "batchId": self._epoch,
            "timestamp": self._wall,
            "numInputRows": rows,
            "numOutputRows": sum(r.rows_out for r in reports),
            "sinkRows": sinks,
            "processedRowsPerSecond": rows / self._took_ms["epoch"] * 1e3,
            "durationMs": {phase: round(ms, 1) for phase, ms in self._took_ms.items()},
            "laneMs": {phase: round(ms, 1) for phase, ms in lane_ms.items()},
            "changelogBytes": sum(s.block.length for s in record.segments),
            "snapshotBytes": sum(s.block.length for s in record.snapshots),
            "waitingKeyGroups": sum(len(c.waiting) for c in view.components.values()),
            "inFlightKeyGroups": sum(len(c.transfers) for c in view.components.values()),
            "keyGroups": places,
        }

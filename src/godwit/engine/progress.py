"""What an epoch took: the values of ``query.recentProgress``, in StreamingQuery's names."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.migration import EpochOutcome, ProtocolView

__all__ = ["Stopwatch", "progress_of"]


class Stopwatch:
    """Times the phases of one epoch, by a clock that never runs backwards."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.began = datetime.now(UTC)
        self._now_s, self._started_s = now_s, now_s()
        self._took_ms: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; of one that is gone through again, all times count."""
        started_s = self._now_s()
        try:
            yield
        finally:
            spent = (self._now_s() - started_s) * 1e3
            self._took_ms[name] = self._took_ms.get(name, 0.0) + spent

    def took_ms(self) -> dict[str, float]:
        """Return phase → milliseconds, and ``epoch``: everything until now, or until the stop."""
        return {"epoch": (self._now_s() - self._started_s) * 1e3, **self._took_ms}

    def stop(self) -> None:
        """Let the epoch be over."""
        self._took_ms = self.took_ms()


def progress_of(outcome: EpochOutcome, view: ProtocolView, watch: Stopwatch) -> dict[str, Any]:
    """Put an epoch's figures together.

    outcome, view, watch: What the epoch did, how the protocol stands now, what it took.

    Returns: ``epoch``, ``batchId`` (Spark's micro-batch; ``None`` for an epoch without input),
    ``timestamp`` (ISO 8601, UTC), ``numInputRows`` (source rows after the DataFrame maps),
    ``numOutputRows``, ``sinkRows`` (sink → rows staged for it; what a sink cannot take under
    ``<sink>_rejects``), ``crossedBytes`` (sent between operators on different executors),
    ``processedRowsPerSecond``, ``durationMs`` (per phase, and ``epoch``), ``laneMs`` (per phase of
    the lanes, the sum over lanes), ``changelogBytes``, ``snapshotBytes``, ``watermarks`` (source,
    or ``<source>/<operator>`` where maps compute the event time anew → ISO 8601, UTC),
    ``leftOutRows`` (operator → ``late``, ``ahead``, ``untimed``), ``hotKeys`` (operator → key, as
    JSON → its share of the operator's rows), ``heldTwice`` (operator → partials of keys that two
    slots held, of windows that were over), ``stateBytes`` (of the key groups touched), ``numKeys``
    (distinct keys touched), ``waitingKeyGroups``, ``suspendedKeyGroups``, ``inFlightKeyGroups``,
    ``plannedMoves`` (key groups that are to move and are not in flight yet), ``keyGroups``
    (component → executor → number), ``executors`` (executor → ``lanes``, ``draining``, ``cpuMs``
    and ``busyMs``: CPU time that its lanes spent on key groups in this epoch, and time that they
    were busy with them, waiting included).
    """
    took = watch.took_ms()
    return {
        "epoch": outcome.epoch,
        "batchId": outcome.batch,
        "timestamp": watch.began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "numInputRows": outcome.rows_in,
        "numOutputRows": outcome.rows_out,
        "sinkRows": dict(outcome.sink_rows),
        "crossedBytes": sum(sent.crossed_bytes for sent in outcome.traffic.values()),
        "processedRowsPerSecond": outcome.rows_in / took["epoch"] * 1e3,
        "durationMs": {phase: round(ms, 1) for phase, ms in took.items()},
        "laneMs": {phase: round(ms, 1) for phase, ms in outcome.lane_ms.items()},
        "changelogBytes": outcome.changelog_bytes,
        "snapshotBytes": outcome.snapshot_bytes,
        "watermarks": {source: _iso(moment) for source, moment in outcome.watermarks.items()},
        "leftOutRows": {name: dict(counts) for name, counts in outcome.left_out.items()},
        "hotKeys": {
            name: {key: round(share, 4) for key, share in keys.items()}
            for name, keys in outcome.hot_keys.items()
        },
        "heldTwice": dict(outcome.held_twice),
        "stateBytes": sum(int(load.state_bytes.sum()) for load in outcome.loads.values()),
        "numKeys": sum(int(load.keys.sum()) for load in outcome.loads.values()),
        "waitingKeyGroups": sum(len(c.waiting) for c in view.components.values()),
        "suspendedKeyGroups": sum(len(c.suspended) for c in view.components.values()),
        "plannedMoves": sum(len(c.moves) for c in view.components.values()),
        "inFlightKeyGroups": sum(len(c.transfers) for c in view.components.values()),
        "keyGroups": {
            name: {e: len(c.assignment.key_groups(e)) for e in c.assignment.executors}
            for name, c in view.components.items()
        },
        "executors": {
            name: {
                "lanes": lanes,
                "draining": name in view.draining,
                "cpuMs": round(outcome.executor_cpu_ms.get(name, 0.0), 3),
                "busyMs": round(outcome.executor_busy_ms.get(name, 0.0), 3),
            }
            for name, lanes in view.executors.items()
        },
    }


def _iso(moment_us: int) -> str:
    """Write a moment as text; one that no calendar has, as its microseconds."""
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)
    except OverflowError:
        return str(moment_us)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

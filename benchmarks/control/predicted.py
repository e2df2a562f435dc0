"""Predicted beside measured latency, on Spark: ``python -m benchmarks.control predicted``.

A stream of own rows runs on executors in processes of their own while its latency target goes up
and down, so that the controller takes and gives back executors.  Of every decision that it judged,
what it had expected stands beside what came; and of every steady period, what the model says of the
executors there are beside what was measured.

With :math:`n` executors a row takes 1 s for the epoch to begin, its fixed cost, and
:math:`2 / n` s: two are too slow for the low target, and more than two too many for the high one.
The first target is met by those that there are at the start, so that nothing is decided while
processes still compile what they run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.control.figure import Figure
from pyspark.cloudpickle import cloudpickle

import godwit as gw
from godwit.control.scaling import latency
from godwit.model import events
from godwit.ops.local_cluster import LocalCluster
from godwit.placement.preview import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.columns.python_values import KeyRows
    from godwit.control.scaling import WantedExecutors
    from godwit.control.situation import ScalingSituation

__all__ = ["LatencySchedule", "errors", "predicted"]

_TARGETS_S = (1.8, 3.2, 1.8, 3.2, 1.8)
_PHASE_S = 50.0
_ROWS_PER_S = 2000.0
"""Of a millisecond each: two of eight lanes."""
_TRIGGER = "2 seconds"
_KEYS = 400
_EXECUTORS, _LANES = 4, 2
_STARTS_S = 90.0


@dataclass(slots=True, kw_only=True)
class LatencySchedule:
    """Scaling model: a latency target that changes with time, and a record of what it said."""

    targets_s: Sequence[float]
    phase_s: float
    name: str = "latency schedule"
    paced: bool = True
    # time, executors, predicted latency of a steady stream with them, and the measured one
    told: list[tuple[float, int, float, float]] = field(default_factory=list)
    _before: tuple[int, float] = (0, 0.0)

    def wanted(self, situation: ScalingSituation) -> WantedExecutors:
        """Answer as `gw.control.latency` does for the target of now."""
        passed_s = situation.now_s - situation.started_s
        at = min(int(passed_s / self.phase_s), len(self.targets_s) - 1)
        answer = latency(f"{self.targets_s[at]} seconds").wanted(situation)
        now = situation.executors, situation.arrival_per_s
        if self._before[0] == now[0] and {"predicted_s", "measured_s"} <= answer.numbers.keys():
            predicted_s, measured_s = answer.numbers["predicted_s"], answer.numbers["measured_s"]
            self.told.append((passed_s, now[0], predicted_s, measured_s))
        self._before = now
        return answer


def errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Relative errors of (predicted, measured) pairs."""
    return [abs(predicted - measured) / measured for predicted, measured in pairs if measured > 0]


def predicted(phase_s: float = _PHASE_S) -> list[Figure]:
    """Let the target go up and down; compare what was expected with what came."""
    schedule = LatencySchedule(targets_s=_TARGETS_S, phase_s=phase_s)
    heard: list[events.Event] = []
    work = Path(tempfile.mkdtemp(prefix="godwit-predicted-"))
    try:
        with LocalCluster(_EXECUTORS, _LANES, memory="512m", work_dir=work / "cluster") as cluster:
            spark = cluster.session("predicted", {"spark.sql.shuffle.partitions": "2"})
            spark.sparkContext.setLogLevel("OFF")
            # The function below: executors have no directory of benchmarks to import it from.
            cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
            flow = gw.Flow("predicted", num_key_groups=128)
            source = gw.sources.rate(_ROWS_PER_S, num_keys=_KEYS)
            counted = (
                flow.source("rows", source)
                .key_by("key")
                .process(slow_rows, state=list, output="key long, n long", name="totals")
            )
            flow.sink("nothing", counted, gw.sinks.noop())
            query = flow.start(
                checkpoint=work / "checkpoint",
                executors=_EXECUTORS,
                sizing=gw.Sizing(executors_timeout_s=180.0),
                trigger={"processingTime": _TRIGGER},
                control=gw.Control(
                    planner="flux", period="4 seconds", scaling=schedule, max_executors=_EXECUTORS
                ),
            )
            query.add_listener(heard.append)
            try:
                _let_run(query, len(_TARGETS_S) * phase_s)
            finally:
                query.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _figures(schedule, heard)


def slow_rows(key: tuple[int], rows: KeyRows, state: list[int]) -> Iterator[tuple[int, int]]:
    """Count a key's rows; spend a millisecond on each, in which the lane waits."""
    time.sleep(len(rows) / 1e3)
    state[:] = [sum(state) + len(rows)]
    yield key[0], state[0]


def _let_run(query: gw.types.Query, seconds: float) -> None:
    """Wait for some time from the first epoch on; raise what the query fails by."""
    deadline_s = time.monotonic() + _STARTS_S + seconds
    while time.monotonic() < deadline_s:
        if (failure := query.exception()) is not None:
            raise failure
        if query.lastProgress and deadline_s > time.monotonic() + seconds:
            deadline_s = time.monotonic() + seconds
        time.sleep(0.1)


def _figures(schedule: LatencySchedule, heard: Sequence[events.Event]) -> list[Figure]:
    """Print predicted beside measured, and sum up."""
    judged = [e for e in heard if isinstance(e, events.DecisionJudged)]
    came = [(e.expected, e.measured) for e in judged if e.measured is not None]
    rows = [
        (f"{e.before} to {e.wanted}", e.verdict, f"{e.expected:.3g} s",
         "" if e.measured is None else f"{e.measured:.3g} s", f"{e.target:g} s", e.reason)
        for e in judged
    ]  # fmt: skip
    print(table(("executors", "verdict", "expected", "measured", "target", "reason"), rows))
    steady = [
        (f"{at_s:.0f} s", str(n), f"{expected_s:.3g} s", f"{measured_s:.3g} s")
        for at_s, n, expected_s, measured_s in schedule.told
    ]
    print(table(("time", "executors", "predicted", "measured"), steady))
    periods = [(expected_s, measured_s) for _, _, expected_s, measured_s in schedule.told]
    decided = [e for e in heard if isinstance(e, events.ScaledOut | events.ScaledIn)]
    return [
        Figure(what="scaling decisions", value=len(decided)),
        Figure(what="decisions judged by what came", value=len(came)),
        Figure(
            what="expected against measured latency after a decision: median error",
            value=median(errors(came) or [float("nan")]),
            target=0.15,
            good="at most",
        ),
        Figure(
            what="predicted against measured latency, period by period: median error",
            value=median(errors(periods) or [float("nan")]),
            target=0.15,
            good="at most",
        ),
    ]

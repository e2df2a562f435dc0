"""The arena's simulator beside Spark: ``python -m benchmarks.control simulated``.

A step and a wave in the rate, with Godwit's scaling and with DS2, on executors that are processes
of this machine; a row takes a millisecond in which its lane waits, so that six executors fit on two
cores.  The same load is then simulated, with the fixed time of an epoch as it was measured before
the rate changed.  Compared are the share of periods that miss the latency target, the mean latency
by period, and decisions; simulated ones are means over seeds, with standard deviations.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.control.figure import Figure
from benchmarks.control.predicted import slow_rows
from pyspark.cloudpickle import cloudpickle

import godwit as gw
from godwit.model import events
from godwit.ops.local_cluster import LocalCluster
from godwit.placement.preview import table
from godwit_lab.arena.autoscalers import AUTOSCALERS, PERIOD_S
from godwit_lab.arena.match import violated_share
from godwit_lab.simulator import (
    CostModel,
    Keys,
    Machine,
    Pool,
    Rate,
    Scenario,
    SimulatedCluster,
    SimulatedComponent,
    Simulation,
    controlled_by,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.simulator import History

__all__ = ["simulated"]

_EXECUTORS, _FIRST, _KEYS, _KEY_GROUPS = 6, 2, 400, 96
_ROW_MS, _TARGET_S, _TRIGGER_S = 1.0, 2.5, 1.0
_LEAD_S = 90.0  # until the query has certainly begun
_SEEDS = 3
_BASE_PER_S = 800.0
# share of the run at which it begins, share at which it ends, rows a second besides the base
_BLOCKS = {
    "step": ((0.4, 1.0, 1600.0),),
    "wave": ((0.2, 0.9, 600.0), (0.35, 0.75, 800.0), (0.45, 0.65, 600.0)),
}


@dataclass(slots=True)
class SparkRun:
    """Epochs and decisions of a query on Spark, as its events report them."""

    began_s: float = 0.0
    epochs: list[tuple[float, int, float, float]] = field(default_factory=list)
    decisions: list[tuple[float, int]] = field(default_factory=list)

    def record(self, event: events.Event) -> None:
        """Record an epoch with rows, or a decision on the number of executors."""
        at_s = event.at_s - self.began_s
        if isinstance(event, events.EpochCommitted) and event.rows_in and event.latency_ms:
            mean_s = event.latency_ms["mean"] / 1000
            self.epochs.append((at_s, event.rows_in, mean_s, event.duration_ms / 1000))
        if isinstance(event, events.ScaledOut | events.ScaledIn):
            self.decisions.append((at_s, event.wanted))


def _control(autoscaler: str) -> gw.Control:
    return gw.Control(
        planner="flux",
        period=f"{PERIOD_S} seconds",
        scaling=AUTOSCALERS[autoscaler].make(_TARGET_S),
        min_executors=_FIRST,
        max_executors=_EXECUTORS,
    )


def _on_spark(
    blocks: Sequence[tuple[float, float, float]], autoscaler: str, run_s: float
) -> SparkRun:
    """Run the load on Spark."""
    run = SparkRun()
    work = Path(tempfile.mkdtemp(prefix="godwit-simulated-"))
    try:
        with LocalCluster(_EXECUTORS, 1, memory="512m", work_dir=work / "cluster") as cluster:
            spark = cluster.session("simulated", {"spark.sql.shuffle.partitions": "2"})
            spark.sparkContext.setLogLevel("OFF")
            module = sys.modules[slow_rows.__module__]
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
            began = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_LEAD_S)
            run.began_s = began.timestamp()
            flow = gw.Flow("simulated", num_key_groups=_KEY_GROUPS)
            rows = flow.source("base", gw.sources.rate(_BASE_PER_S, num_keys=_KEYS, start=began))
            for number, (first, last, rate) in enumerate(blocks):
                source = gw.sources.rate(
                    rate,
                    num_keys=_KEYS,
                    start=began + dt.timedelta(seconds=first * run_s),
                    num_rows=int(rate * (last - first) * run_s),
                    seed=number + 1,
                )
                rows = rows.union(flow.source(f"block_{number}", source))
            counted = rows.key_by("key").process(
                slow_rows, state=list, output="key long, n long", name="totals"
            )
            flow.sink("nothing", counted, gw.sinks.noop())
            query = flow.start(
                checkpoint=work / "checkpoint",
                executors=_FIRST,
                sizing=gw.Sizing(executors_timeout_s=180.0),
                trigger={"processingTime": f"{_TRIGGER_S} seconds"},
                control=_control(autoscaler),
            )
            query.add_listener(run.record)
            try:
                while time.time() < run.began_s + run_s:
                    if (failure := query.exception()) is not None:
                        raise failure
                    time.sleep(0.1)
            finally:
                query.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return run


def _in_simulator(
    blocks: Sequence[tuple[float, float, float]],
    autoscaler: str,
    run_s: float,
    fixed_s: float,
    seed: int,
) -> History:
    """Simulate the load."""
    bends = sorted({0.0, *(share for first, last, _ in blocks for share in (first, last))})
    levels = [_BASE_PER_S + sum(r for a, b, r in blocks if a <= share < b) for share in bends]
    machine = Machine(cores=1)
    control = _control(autoscaler)
    scenario = Scenario(
        cluster=SimulatedCluster(
            machines=(machine,) * _FIRST,
            added=machine,
            pool=Pool(most=_EXECUTORS, start_s=(1.0, 2.0)),
        ),
        components=(SimulatedComponent(name="totals", key_groups=_KEY_GROUPS, row_ms=_ROW_MS),),
        rate=Rate(
            rows_per_s=1.0,
            steps=tuple((share * run_s, level) for share, level in zip(bends, levels, strict=True)),
        ),
        keys=Keys(number=_KEYS, zipf=0.0),
        duration_s=run_s,
        trigger_s=_TRIGGER_S,
        longest_epoch_s=control.longest_epoch_s(_TRIGGER_S),
        costs=CostModel(
            fixed_ms=1000 * fixed_s, source_row_ms=0, row_ms=0, key_ms=0, key_group_ms=0
        ),
    )
    return Simulation(scenario, seed=seed, control=controlled_by(control)).run(settle_s=10.0)


def _by_period(
    ended_s: Sequence[float], rows: Sequence[float], mean_s: Sequence[float], run_s: float
) -> np.ndarray:
    """Return the mean latency of rows by the period in which they arrived; NaN without rows."""
    periods = int(run_s / PERIOD_S)
    arrived = np.array(ended_s) - np.array(mean_s)
    period = (arrived / PERIOD_S).astype(int).clip(0, periods - 1)
    count = np.bincount(period, weights=rows, minlength=periods)
    waited = np.bincount(period, weights=np.array(rows) * np.array(mean_s), minlength=periods)
    return np.where(count > 0, waited / np.maximum(count, 1), np.nan)


def simulated(run_s: float = 90.0, autoscalers: Sequence[str] = ("godwit", "ds2")) -> list[Figure]:
    """Play every load on Spark and in the simulator; print both, and return the errors."""
    lines, latency_errors, missed_errors, decision_errors = [], [], [], []
    for load, blocks in _BLOCKS.items():
        for autoscaler in autoscalers:
            real_run = _on_spark(blocks, autoscaler, run_s)
            if not real_run.epochs:
                raise RuntimeError(f"{load}, {autoscaler}: Spark ran no epoch; free the machine")
            ended_s, rows, mean_s, took_s = map(list, zip(*real_run.epochs, strict=True))
            early = [i for i, at_s in enumerate(ended_s) if 5 <= at_s <= blocks[0][0] * run_s]
            fixed_s = float(
                np.median([took_s[i] - rows[i] * _ROW_MS / 1000 / _FIRST for i in early])
            )
            real = _by_period(ended_s, rows, mean_s, run_s)
            missed = float(np.mean(np.nan_to_num(real, nan=np.inf) > _TARGET_S))
            played = [
                _in_simulator(blocks, autoscaler, run_s, fixed_s, seed) for seed in range(_SEEDS)
            ]
            shares = [violated_share(history, _TARGET_S, run_s) for history in played]
            decided = [
                len(history.between(0, run_s).of_kind(events.ScaledOut, events.ScaledIn))
                for history in played
            ]
            model = np.nanmean(
                [
                    _by_period(
                        [e.ended_s for e in h.epochs if e.rows],
                        [e.rows for e in h.epochs if e.rows],
                        [e.delays.mean_s for e in h.epochs if e.rows],
                        run_s,
                    )
                    for h in played
                ],
                axis=0,
            )
            error = float(np.nanmedian(np.abs(model - real) / real))
            latency_errors.append(error)
            missed_errors.append(abs(float(np.mean(shares)) - missed))
            decision_errors.append(abs(float(np.mean(decided)) - len(real_run.decisions)))
            lines.append(
                (
                    load,
                    autoscaler,
                    f"{fixed_s:.2f} s",
                    f"{missed:.0%}",
                    f"{np.mean(shares):.0%} ±{np.std(shares):.0%}",
                    f"{np.nanmean(real):.2f} s",
                    f"{np.nanmean(model):.2f} s",
                    f"{error:.0%}",
                    ", ".join(f"{n} at {at_s:.0f}" for at_s, n in real_run.decisions) or "none",
                    f"{np.mean(decided):.1f} ±{np.std(decided):.1f}",
                )
            )
            print(lines[-1], file=sys.stderr, flush=True)
    header = ("load", "rule", "fixed", "missed", "simulated", "latency", "simulated",
              "error by period", "decisions", "simulated")  # fmt: skip
    print(table(header, lines))
    return [
        Figure(
            what="latency by period, simulated against Spark: median error, worst of the runs",
            value=max(latency_errors),
            target=0.25,
            good="at most",
        ),
        Figure(
            what="share of periods that miss the target, simulated less Spark: largest difference",
            value=max(missed_errors),
            target=0.1,
            good="at most",
        ),
        Figure(
            what="decisions, simulated less Spark: largest difference",
            value=max(decision_errors),
            target=1,
            good="at most",
        ),
    ]

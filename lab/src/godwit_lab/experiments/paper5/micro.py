"""Paper 5 §5.1, figures 6 to 10 and 16: a simulated calculator with a millisecond a row.

Ten thousand keys with Zipf frequencies that are shuffled ω times a minute, on 32 machines of 8
cores with 8192 key groups; rows come faster than all cores could process them, so throughput is
what a policy makes of the cores.  Latency is the time of an epoch: rows that wait at the source
because too many come are not counted, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    look_up,
    sweep,
)
from godwit_lab.experiments.paper5.policies import REASON, SYNCHRONISED, play
from godwit_lab.simulator.cluster import Machine, SimulatedCluster
from godwit_lab.simulator.flow import SimulatedComponent
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit_lab.simulator import History


SYSTEMS = ("static", "resource-centric", "executor-centric", SYNCHRONISED)
WORKLOAD = (
    "The paper's: 10,000 keys, 1 ms a row, 32 machines of 8 cores, 8192 key groups, more rows than "
    "the cores can process, of 128 bytes on links of 1 Gbit/s; one minute of virtual time if "
    "quick, else five; epochs of two seconds."
)
_KEYS = 10_000
_EPOCH_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One setting of the micro-benchmark."""

    shuffles_per_min: float = 2.0  # ω
    zipf: float = 0.5  # α
    shard_bytes: float = 32e3  # state of a key group
    executors: int = 32
    key_groups: int = 8192
    cores: int = 8
    row_ms: float = 1.0
    row_bytes: int = 128


def simulate(micro: Micro, policy: str, run: FigureRun) -> History:
    """Run one policy; the same rows come under every policy."""
    executors, cores, key_groups = micro.executors, micro.cores, micro.key_groups
    duration = run.pick(60.0, 300.0)
    capacity = 1000.0 * executors * cores / micro.row_ms
    every = 60 / micro.shuffles_per_min if micro.shuffles_per_min else duration
    scenario = Scenario(
        cluster=SimulatedCluster(machines=(Machine(cores=cores),) * executors),
        components=(
            SimulatedComponent(
                name="calculator",
                key_groups=key_groups,
                row_ms=micro.row_ms,
                key_bytes=max(1, round(micro.shard_bytes * key_groups / _KEYS)),
            ),
        ),
        rate=Rate(rows_per_s=1.1 * capacity, noise=0.05),
        keys=Keys(
            number=_KEYS,
            zipf=micro.zipf,
            shifts_s=tuple(np.arange(every, duration, every).tolist()),
        ),
        duration_s=duration,
        max_rows=int(_EPOCH_S * capacity),
        row_bytes=micro.row_bytes,
    )
    return play(scenario, policy, run, period_s=2.0)


def throughput(history: History) -> float:
    """Thousand rows a second."""
    return history.summary()["rows_per_s"] / 1000


def latency_s(history: History) -> float:
    """Median time of an epoch in seconds."""
    return history.summary()["epoch_ms"] / 1000


def vary(settings: Mapping[float, Micro], column: str, run: FigureRun) -> list[Row]:
    """Simulate every setting under every system."""

    def measure(policy: str, **setting: float) -> Row:
        history = simulate(settings[setting[column]], policy, run)
        return {
            "thousand_rows_per_s": throughput(history),
            "latency_s": latency_s(history),
            "moved_mb": history.summary()["moved_mb"],
        }

    return sweep(run, measure, **{column: settings, "policy": SYSTEMS})


def charts(column: str, label: str, *, log_x: bool = False) -> tuple[Chart, ...]:
    """Panels of throughput and latency."""
    return tuple(
        Chart(x=column, y=y, by="policy", x_label=label, y_label=y_label, log_x=log_x)
        for y, y_label in (
            ("thousand_rows_per_s", "throughput (1000 rows/s)"),
            ("latency_s", "time of an epoch, median (s)"),
        )
    )


def ratios(rows: list[Row], column: str, of: str, to: str) -> dict[float, float]:
    """Throughput of a policy over that of another, by setting."""
    found = look_up(rows, column, "policy", column="thousand_rows_per_s")
    return {value: found[value, of] / found[value, to] for value, policy in found if policy == of}


_OMEGAS = (0, 2, 4, 8, 16)


@figure(
    title="Policies by the dynamics of the keys, ω",
    claim="The executor-centric policy outperforms the others at every ω > 0 and hardly degrades; "
    "the resource-centric one outperforms static at small ω and is useless at 16.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("omega", "shuffles a minute, ω"),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)
def figure6(run: FigureRun) -> FigureResult:
    rows = vary({w: Micro(shuffles_per_min=w) for w in _OMEGAS}, "omega", run)
    static = ratios(rows, "omega", "executor-centric", "static")
    central = ratios(rows, "omega", "executor-centric", SYNCHRONISED)
    still = ratios(rows, "omega", SYNCHRONISED, "static")
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric outperforms static at every ω: smallest ratio",
                     min(static.values()), 1.0, decisive=True,
                     measure="throughput over static, ω = 0 to 16, least"),
            at_least("executor-centric outperforms resource-centric at every ω > 0: smallest ratio",
                     min(ratio for omega, ratio in central.items() if omega), 1.0,
                     measure="throughput over resource-centric, ω = 2 to 16, least"),
            at_least("its lead over resource-centric grows with ω: ratio of the last to the first",
                     central[_OMEGAS[-1]] / central[_OMEGAS[1]], 1.0),
            at_least("resource-centric outperforms static at ω = 2", still[2], 1.0),
            at_most("resource-centric is useless at ω = 16: ratio to static", still[16], 1.0),
        ),
    )  # fmt: skip


@figure(
    title="Throughput over time at ω = 2",
    claim="Static is consistently much lower; the others dip after every shuffle, the "
    "resource-centric one for 10 to 20 s, the executor-centric one for 1 to 3 s.",
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="seconds", y="thousand_rows_per_s", by="policy", x_label="virtual time (s)",
              y_label="throughput (1000 rows/s)"),
    ),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)  # fmt: skip
def figure7(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    mean: dict[str, float] = {}
    for policy in SYSTEMS:
        run.progress(policy)
        history = simulate(Micro(shuffles_per_min=2), policy, run)
        mean[policy] = throughput(history)
        rows += [
            {
                "policy": policy,
                "seconds": record.ended_s,
                "thousand_rows_per_s": record.rows / record.took_s / 1000,
            }
            for record in history.epochs
            if record.rows
        ]
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric over static: ratio of the throughputs",
                     mean["executor-centric"] / mean["static"], 1.05, decisive=True),
            at_least("resource-centric over static: ratio",
                     mean[SYNCHRONISED] / mean["static"], 1.05),
            at_least("executor-centric over resource-centric: ratio",
                     mean["executor-centric"] / mean[SYNCHRONISED], 1.0),
        ),
    )  # fmt: skip


_ROW_MS, _ROW_BYTES = ("0.01 ms", "0.1 ms", "1 ms"), (128, 2048, 8192)
_SYSTEMS = ("static", SYNCHRONISED, "executor-centric")


@figure(
    title="Costs and sizes of rows against throughput",
    claim="Throughput drops with larger and with cheaper rows, as the network of 1 Gbit/s becomes "
    "the bottleneck; the executor-centric policy is the most sensitive to the size of rows, since "
    "its rows reach remote tasks by way of their executor.",
    workload="The micro-benchmark at ω = 2 on 8 machines of 8 cores if quick, else 32, with 256 "
    "key groups a machine; rows of 128 bytes to 8 KB that cost 0.01 to 1 ms. Sources are read "
    "evenly on all machines, and an epoch's exchange takes as long as its busiest link.",
    place=RunsOn.SIMULATED,
    charts=tuple(
        Chart(x="row_bytes", y="thousand_rows_per_s", by="policy", title=f"{row_ms} a row",
              only=("row_ms", row_ms), x_label="size of a row (bytes)",
              y_label="throughput (1000 rows/s)", log_x=True, log_y=True)
        for row_ms in _ROW_MS
    ),
    reason="Rows go from the task that reads them straight to the lane of their key group, on "
    "whichever machine it is. There is no second hop, so no policy is more sensitive than another.",
)  # fmt: skip
def figure8(run: FigureRun) -> FigureResult:
    machines = run.pick(8, 32)

    def measure(row_ms: str, row_bytes: int, policy: str) -> Row:
        cost_ms = float(row_ms.removesuffix(" ms"))
        micro = Micro(executors=machines, key_groups=256 * machines, row_ms=cost_ms)
        history = simulate(replace(micro, row_bytes=row_bytes), policy, run)
        return {"thousand_rows_per_s": throughput(history)}

    rows = sweep(run, measure, row_ms=_ROW_MS, row_bytes=_ROW_BYTES, policy=_SYSTEMS)
    found = look_up(rows, "policy", "row_ms", "row_bytes", column="thousand_rows_per_s")

    def kept(system: str, row_ms: str, row_bytes: int) -> float:
        """Throughput with rows of a size, over that with the smallest ones."""
        return found[system, row_ms, row_bytes] / found[system, row_ms, _ROW_BYTES[0]]

    ours, cheap, dear, large = "executor-centric", _ROW_MS[0], _ROW_MS[-1], _ROW_BYTES[-1]
    return FigureResult(
        rows=rows,
        checks=(
            at_most("at 0.01 ms a row, 8 KB rows leave a fraction of the throughput: largest share",
                    max(kept(system, cheap, large) for system in _SYSTEMS), 0.5, decisive=True),
            at_least("at 1 ms a row, 2 KB rows cost little: smallest share",
                     min(kept(system, dear, 2048) for system in _SYSTEMS), 0.8),
            at_least("executor-centric is best where rows are small and costly: ratio to static",
                     found[ours, dear, 128] / found["static", dear, 128], 1.05),
            at_most("executor-centric is the most sensitive to the size of cheap rows: its share "
                    "over that of static", kept(ours, cheap, large) / kept("static", cheap, large),
                    0.99),
        ),
    )  # fmt: skip


_KILOBYTES = (32, 256, 2048, 32_768)


@figure(
    title="Policies by the size of state",
    claim="Both elastic policies lose as state grows; with 32 MB a shard both are worse than "
    "static, and the executor-centric one is better than the resource-centric one at every size.",
    workload=WORKLOAD + " ω = 2.",
    place=RunsOn.SIMULATED,
    charts=charts("kilobytes", "state of a shard (kB)", log_x=True),
    reason=REASON,
)
def figure9(run: FigureRun) -> FigureResult:
    settings = {float(kb): Micro(shard_bytes=1e3 * kb) for kb in _KILOBYTES}
    rows = vary(settings, "kilobytes", run)
    central = ratios(rows, "kilobytes", "executor-centric", SYNCHRONISED)
    static = ratios(rows, "kilobytes", "executor-centric", "static")
    return FigureResult(
        rows=rows,
        checks=(
            at_least("executor-centric is better than resource-centric at every size: smallest",
                     min(central.values()), 1.0),
            at_least("executor-centric is better than static with small state: ratio",
                     static[_KILOBYTES[0]], 1.05, decisive=True),
            at_most("its lead over static shrinks as state grows: ratio of the last to the first",
                    static[_KILOBYTES[-1]] / static[_KILOBYTES[0]], 1.0),
        ),
    )  # fmt: skip


_ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@figure(
    title="Policies by the skew of the keys, α",
    claim="Static suffers greatly from skew; executor-centric outperforms resource-centric up to "
    "α = 0.6 and falls behind it above 0.7.",
    workload=WORKLOAD + " ω = 2.",
    place=RunsOn.SIMULATED,
    charts=charts("alpha", "skew α"),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)
def figure10(run: FigureRun) -> FigureResult:
    rows = vary({alpha: Micro(zipf=alpha) for alpha in _ALPHAS}, "alpha", run)
    static = ratios(rows, "alpha", "executor-centric", "static")
    central = ratios(rows, "alpha", "executor-centric", SYNCHRONISED)
    found = look_up(rows, "policy", "alpha", column="thousand_rows_per_s")
    return FigureResult(
        rows=rows,
        checks=(
            at_most("static suffers from skew: throughput at α = 0.8 over that at 0",
                    found["static", 0.8] / found["static", 0.0], 0.8),
            at_least("executor-centric is better than static at α = 0.6: ratio", static[0.6], 1.1,
                     decisive=True),
            at_least("executor-centric outperforms resource-centric up to α = 0.6: smallest ratio",
                     min(central[alpha] for alpha in _ALPHAS[:4]), 1.0),
            at_most("resource-centric is better at α = 0.8: ratio", central[0.8], 1.0),
        ),
    )  # fmt: skip


_EXECUTORS, _SHARDS = 32, (16, 64, 256)
_LOADS = {
    "default (ω = 2)": Micro(),
    "data-intensive (8 KB rows)": Micro(row_bytes=8192),
    "dynamic (ω = 16)": Micro(shuffles_per_min=16),
}


@figure(
    title="Number of shards per executor",
    claim="Throughput grows with the number of shards, ever less so; 256 to 1024 per executor are "
    "good.",
    workload=WORKLOAD + " Besides, rows of 8 KB. One elastic executor for each machine; their "
    "number is not varied, as an executor of the simulator is a machine.",
    place=RunsOn.SIMULATED,
    charts=tuple(
        Chart(x="shards", y="thousand_rows_per_s", by="policy", only=("load", load), title=load,
              x_label="shards per executor", y_label="throughput (1000 rows/s)", log_x=True)
        for load in _LOADS
    ),
)  # fmt: skip
def figure16(run: FigureRun) -> FigureResult:
    def measure(load: str, shards: int, policy: str) -> Row:
        micro = replace(_LOADS[load], key_groups=shards * _EXECUTORS)
        return {"thousand_rows_per_s": throughput(simulate(micro, policy, run))}

    rows = sweep(run, measure, load=_LOADS, shards=_SHARDS, policy=SYSTEMS[:3])
    found = look_up(rows, "policy", "load", "shards", column="thousand_rows_per_s")
    few, more = (
        [
            found["executor-centric", load, 256] / found["executor-centric", load, n]
            for load in _LOADS
        ]
        for n in (16, 64)
    )
    return FigureResult(
        rows=rows,
        checks=(
            at_least("more shards give more throughput: smallest ratio of 256 to 16", min(few), 1.0,
                     decisive=True),
            at_most("the gain diminishes: largest gain from 64 to 256 shards", max(more) - 1, 0.1),
        ),
    )  # fmt: skip

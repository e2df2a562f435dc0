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
    acts,
    at_least,
    at_most,
    figure,
    sweep,
    unchecked,
)
from godwit_lab.experiments.paper5.policies import REASON, SYNCHRONISED, play
from godwit_lab.simulator.cluster import Machine, SimulatedCluster
from godwit_lab.simulator.flow import SimulatedComponent
from godwit_lab.simulator.scenario import Scenario
from godwit_lab.simulator.workload import Keys, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit_lab.cli.reproduce.figure import Data
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
    duration_s: float | None = None  # None: one minute if quick, else five


def simulate(micro: Micro, policy: str, run: FigureRun) -> History:
    """Run one policy; the same rows come under every policy."""
    executors, cores, key_groups = micro.executors, micro.cores, micro.key_groups
    duration = micro.duration_s or run.pick(60.0, 300.0)
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
            "moves": history.summary()["moves"],
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


EXECUTOR, STATIC = "executor-centric", "static"


def over(column: str, policy: str, baseline: str) -> Callable[[Data], dict[float, float]]:
    """Return a getter of the throughput of a policy over that of another, by setting."""

    def number(data: Data) -> dict[float, float]:
        measured = data.table(column, "policy", column="thousand_rows_per_s")
        settings = data.values(column)
        return {value: measured[value, policy] / measured[value, baseline] for value in settings}

    return number


def change(column: str, policy: str, first: float, last: float) -> Callable[[Data], float]:
    """Return a getter of a policy's throughput in one setting over that in another."""

    def number(data: Data) -> float:
        measured = data.table(column, "policy", column="thousand_rows_per_s")
        return measured[last, policy] / measured[first, policy]

    return number


_OMEGAS = (0, 2, 4, 8, 16)


_STATIC, _CENTRAL = (over("omega", EXECUTOR, to) for to in (STATIC, SYNCHRONISED))
_OTHER = over("omega", SYNCHRONISED, STATIC)


@figure(
    title="Policies by the dynamics of the keys, ω",
    clauses=(
        at_least("the executor-centric policy outperforms static at every ω > 0",
                 "smallest ratio", lambda data: min(_STATIC(data)[w] for w in _OMEGAS[1:]), 1.0,
                 decisive=True),
        at_least("and resource-centric at every ω > 0", "smallest ratio",
                 lambda data: min(_CENTRAL(data)[w] for w in _OMEGAS[1:]), 1.0),
        at_least("its degradation is marginal", "throughput at ω = 16 over that at 0",
                 change("omega", EXECUTOR, 0, 16), 0.9),
        at_least("resource-centric outperforms static considerably at small ω",
                 "ratio at ω = 2", lambda data: _OTHER(data)[2], 1.2),
        at_most("resource-centric is useless at ω = 16", "ratio to static",
                lambda data: _OTHER(data)[16], 1.0),
        at_least("static is relatively stable", "throughput at ω = 16 over that at 0",
                 change("omega", STATIC, 0, 16), 0.8),
        acts((EXECUTOR, SYNCHRONISED), by="policy", omega=2),
        acts((EXECUTOR, SYNCHRONISED), by="policy", omega=16),
    ),
    workload=WORKLOAD,
    place=RunsOn.SIMULATED,
    charts=charts("omega", "shuffles a minute, ω"),
    mechanism="the executor-centric policy (static in its place)",
    reason=f"{REASON} After a shuffle an epoch of two seconds and more is uneven before anything "
    "is measured; with sixteen shuffles a minute that is most epochs.",
)  # fmt: skip
def figure6(run: FigureRun) -> FigureResult:
    return FigureResult(rows=vary({w: Micro(shuffles_per_min=w) for w in _OMEGAS}, "omega", run))


_SHUFFLE_S, _WATCHED_S = 30.0, 180.0


def _dip_s(policy: str) -> Callable[[Data], float]:
    """Return a getter of the time after a shuffle in which a policy is a tenth below its level."""

    def number(data: Data) -> float:
        ends, took, rate = (
            data.column(name, policy=policy)
            for name in ("seconds", "took_s", "thousand_rows_per_s")
        )
        dips = []
        for shuffle_s in np.arange(2 * _SHUFFLE_S, _WATCHED_S - _SHUFFLE_S + 1, _SHUFFLE_S):
            level = np.median(rate[(ends > shuffle_s - _SHUFFLE_S / 2) & (ends <= shuffle_s)])
            after = (ends > shuffle_s) & (ends <= shuffle_s + _SHUFFLE_S)
            dips.append(took[after & (rate < 0.9 * level)].sum())
        return float(np.mean(dips))

    return number


def _mean(policy: str) -> Callable[[Data], float]:
    """Return a getter of a policy's throughput over the whole time."""

    def number(data: Data) -> float:
        took, rate = (
            data.column(name, policy=policy) for name in ("took_s", "thousand_rows_per_s")
        )
        return float(np.average(rate, weights=took))

    return number


@figure(
    title="Throughput over time at ω = 2",
    clauses=(
        at_most("static is consistently much lower", "its throughput over executor-centric",
                lambda data: _mean(STATIC)(data) / _mean(EXECUTOR)(data), 0.8, decisive=True),
        at_most("than resource-centric, too", "its throughput over resource-centric",
                lambda data: _mean(STATIC)(data) / _mean(SYNCHRONISED)(data), 0.8),
        at_least("resource-centric dips after a shuffle for 10 to 20 s", "mean time below 90 %",
                 _dip_s(SYNCHRONISED), 5.0, unit="s", paper=15.0),
        at_most("resource-centric dips after a shuffle for 10 to 20 s", "mean time below 90 %",
                _dip_s(SYNCHRONISED), 20.0, unit="s", paper=15.0),
        at_most("executor-centric for 1 to 3 s", "mean time below 90 %", _dip_s(EXECUTOR), 3.0,
                unit="s", paper=2.0),
        acts((EXECUTOR, SYNCHRONISED), by="policy"),
    ),
    workload=f"{WORKLOAD} Here three minutes, with a shuffle every thirty seconds.",
    place=RunsOn.SIMULATED,
    charts=(
        Chart(x="seconds", y="thousand_rows_per_s", by="policy", x_label="virtual time (s)",
              y_label="throughput (1000 rows/s)"),
    ),
    mechanism="the executor-centric policy (static in its place)",
    reason=f"{REASON} The epoch that meets a shuffle is longer than the two or three seconds of "
    "others.",
)  # fmt: skip
def figure7(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for policy in SYSTEMS:
        run.progress(policy)
        history = simulate(Micro(shuffles_per_min=2, duration_s=_WATCHED_S), policy, run)
        rows += [
            {
                "policy": policy,
                "seconds": record.ended_s,
                "took_s": record.took_s,
                "thousand_rows_per_s": record.rows / record.took_s / 1000,
                "moves": record.moves,
            }
            for record in history.epochs
            if record.rows
        ]
    return FigureResult(rows=rows)


_ROW_MS, _ROW_BYTES = ("0.01 ms", "0.1 ms", "1 ms"), (128, 2048, 8192)
_SYSTEMS = (STATIC, SYNCHRONISED, EXECUTOR)
_CHEAP, _DEAR, _LARGE = _ROW_MS[0], _ROW_MS[-1], _ROW_BYTES[-1]


def _kept(system: str, row_ms: str, row_bytes: int) -> Callable[[Data], float]:
    """Return a getter of a throughput with rows of a size, over that with the smallest ones."""

    def number(data: Data) -> float:
        measured = data.table("policy", "row_ms", "row_bytes", column="thousand_rows_per_s")
        return measured[system, row_ms, row_bytes] / measured[system, row_ms, _ROW_BYTES[0]]

    return number


def _largest(row_ms: str, row_bytes: int) -> Callable[[Data], float]:
    return lambda data: max(_kept(system, row_ms, row_bytes)(data) for system in _SYSTEMS)


def _used(system: str, row_ms: str) -> Callable[[Data], float]:
    """Return a getter of the share of the cores' time that small rows of a cost use."""
    return lambda data: (
        data.one("thousand_rows_per_s", policy=system, row_ms=row_ms, row_bytes=_ROW_BYTES[0])
        * float(row_ms.removesuffix(" ms"))
    )


@figure(
    title="Costs and sizes of rows against throughput",
    clauses=(
        at_most("throughput drops with larger rows, as the network of 1 Gbit/s becomes the "
                "bottleneck", "share that 8 KB rows of 0.01 ms leave, largest",
                _largest(_CHEAP, _LARGE), 0.5, decisive=True),
        at_most("rows of 0.01 ms and 2 KB need twice the network: a significant degradation",
                "share that they leave, largest", _largest(_CHEAP, 2048), 0.5),
        at_most("and with cheaper ones", "cores' time used at 0.01 ms over that at 1 ms, largest",
                lambda data: max(_used(s, _CHEAP)(data) / _used(s, _DEAR)(data)
                                 for s in _SYSTEMS), 0.9),
        *(
            at_most("executor-centric is the most sensitive to the size of cheap rows, as they "
                    "reach remote tasks by way of their executor",
                    f"share that 8 KB rows leave it over that of {other}",
                    lambda data, other=other: _kept(EXECUTOR, _CHEAP, _LARGE)(data)
                    / _kept(other, _CHEAP, _LARGE)(data), 0.99)
            for other in (STATIC, SYNCHRONISED)
        ),
        at_least("executor-centric is best where rows are small and costly", "ratio to static",
                 lambda data: data.one("thousand_rows_per_s", policy=EXECUTOR, row_ms=_DEAR,
                                       row_bytes=128)
                 / data.one("thousand_rows_per_s", policy=STATIC, row_ms=_DEAR, row_bytes=128),
                 1.05, beyond=True),
        *(acts((SYNCHRONISED, EXECUTOR), by="policy", row_ms=_CHEAP, row_bytes=size)
          for size in (128, _LARGE)),
    ),
    workload="The micro-benchmark at ω = 2 on 32 machines of 8 cores; rows of 128 bytes to 8 KB "
    "that cost 0.01 to 1 ms. Sources are read evenly on all machines; a run has at least forty "
    "epochs.",
    place=RunsOn.SIMULATED,
    charts=tuple(
        Chart(x="row_bytes", y="thousand_rows_per_s", by="policy", title=f"{row_ms} a row",
              only=("row_ms", row_ms), x_label="size of a row (bytes)",
              y_label="throughput (1000 rows/s)", log_x=True, log_y=True)
        for row_ms in _ROW_MS
    ),
    reason="Rows go straight to the lane of their key group, without the paper's second hop. "
    "Executor-centric leaves the smallest share because it is ahead with small rows.",
)  # fmt: skip
def figure8(run: FigureRun) -> FigureResult:
    def measure(row_ms: str, row_bytes: int, policy: str) -> Row:
        cost_ms = float(row_ms.removesuffix(" ms"))
        duration_s = _LONG_S if row_bytes > 128 and cost_ms < 1 else None
        micro = Micro(row_ms=cost_ms, row_bytes=row_bytes, duration_s=duration_s)
        history = simulate(micro, policy, run)
        return {"thousand_rows_per_s": throughput(history), "moves": history.summary()["moves"]}

    return FigureResult(
        rows=sweep(run, measure, row_ms=_ROW_MS, row_bytes=_ROW_BYTES, policy=_SYSTEMS)
    )


_LONG_S = 900.0
"""Length of a run whose epochs take half a minute each."""
_KILOBYTES = (32, 256, 2048, 32_768)
_SMALL, _HUGE = float(_KILOBYTES[0]), float(_KILOBYTES[-1])


@figure(
    title="Policies by the size of state",
    clauses=(
        at_most("executor-centric loses as state grows", "throughput with 32 MB over 32 kB",
                change("kilobytes", EXECUTOR, _SMALL, _HUGE), 0.9, decisive=True),
        at_most("so does resource-centric", "throughput with 32 MB over 32 kB",
                change("kilobytes", SYNCHRONISED, _SMALL, _HUGE), 0.9),
        at_most("with 32 MB a shard executor-centric is worse than static", "ratio",
                lambda data: over("kilobytes", EXECUTOR, STATIC)(data)[_HUGE], 0.99),
        at_most("and so is resource-centric", "ratio",
                lambda data: over("kilobytes", SYNCHRONISED, STATIC)(data)[_HUGE], 0.99),
        at_least("executor-centric is better than resource-centric at every size",
                 "smallest ratio",
                 lambda data: min(over("kilobytes", EXECUTOR, SYNCHRONISED)(data).values()), 1.0),
        *(acts((EXECUTOR, SYNCHRONISED), by="policy", kilobytes=size)
          for size in (_SMALL, _HUGE)),
    ),
    workload=f"{WORKLOAD} ω = 2. With 32 MB a shard, whose epochs take half a minute, a quarter of "
    "an hour.",
    place=RunsOn.SIMULATED,
    charts=charts("kilobytes", "state of a shard (kB)", log_x=True),
    reason=f"{REASON} With 32 MB a shard no policy moves any: throughput falls since every "
    "epoch brings all state forward.",
)  # fmt: skip
def figure9(run: FigureRun) -> FigureResult:
    settings = {
        float(kb): Micro(shard_bytes=1e3 * kb, duration_s=_LONG_S if kb == _HUGE else None)
        for kb in _KILOBYTES
    }
    return FigureResult(rows=vary(settings, "kilobytes", run))


_ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@figure(
    title="Policies by the skew of the keys, α",
    clauses=(
        at_most("static suffers greatly from skew", "throughput at α = 0.8 over that at 0",
                change("alpha", STATIC, 0.0, 0.8), 0.5),
        at_least("executor-centric is much more resistant to it below α = 0.8",
                 "ratio to static at α = 0.6",
                 lambda data: over("alpha", EXECUTOR, STATIC)(data)[0.6], 1.1, decisive=True),
        at_least("so is resource-centric", "ratio to static at α = 0.6",
                 lambda data: over("alpha", SYNCHRONISED, STATIC)(data)[0.6], 1.1),
        at_least("executor-centric outperforms resource-centric up to α = 0.6", "smallest ratio",
                 lambda data: min(over("alpha", EXECUTOR, SYNCHRONISED)(data)[alpha]
                                  for alpha in _ALPHAS[:4]), 1.0),
        at_most("and falls behind it above 0.7", "ratio at α = 0.8",
                lambda data: over("alpha", EXECUTOR, SYNCHRONISED)(data)[0.8], 1.0),
        at_most("where its performance drops sharply", "throughput at α = 0.8 over that at 0.6",
                change("alpha", EXECUTOR, 0.6, 0.8), 0.8),
        *(acts((EXECUTOR, SYNCHRONISED), by="policy", alpha=alpha) for alpha in (0.6, 0.8)),
    ),
    workload=f"{WORKLOAD} ω = 2, and ten minutes at α = 0.8 and 1, whose epochs are long.",
    place=RunsOn.SIMULATED,
    charts=charts("alpha", "skew α"),
    mechanism="the executor-centric policy (static in its place)",
    reason=REASON,
)  # fmt: skip
def figure10(run: FigureRun) -> FigureResult:
    settings = {
        alpha: Micro(zipf=alpha, duration_s=600.0 if alpha > 0.7 else None) for alpha in _ALPHAS
    }
    return FigureResult(rows=vary(settings, "alpha", run))


_EXECUTORS, _SHARDS = 32, (16, 64, 256, 1024)
_LOADS = {
    "default (ω = 2)": Micro(),
    "data-intensive (8 KB rows)": Micro(row_bytes=8192),
    "dynamic (ω = 16)": Micro(shuffles_per_min=16),
}


def _more_shards(first: int, last: int, best: Callable[..., float]) -> Callable[[Data], float]:
    """Return a getter of the throughput of `last` shards over that of `first`, of all loads."""

    def number(data: Data) -> float:
        measured = data.table("load", "shards", column="thousand_rows_per_s", policy=EXECUTOR)
        return best(measured[load, last] / measured[load, first] for load in _LOADS)

    return number


@figure(
    title="Number of shards per executor",
    clauses=(
        at_least("throughput grows with the number of shards", "smallest ratio of 256 to 16",
                 _more_shards(16, 256, min), 1.0, decisive=True),
        at_most("ever less so", "largest gain from 64 to 256 over that from 16 to 64",
                lambda data: (_more_shards(64, 256, max)(data) - 1)
                / (_more_shards(16, 64, max)(data) - 1), 1.0),
        at_most("1024 and more do not improve it further", "largest ratio of 1024 to 256",
                _more_shards(256, 1024, max), 1.1),
        unchecked("8 KB rows hurt a single executor for the whole cluster most",
                  "an executor of the simulator is a machine, so that their number is not varied"),
        acts((EXECUTOR,), by="policy", shards=256),
    ),
    workload=f"{WORKLOAD} Besides, rows of 8 KB. One elastic executor for each machine.",
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
        history = simulate(micro, policy, run)
        return {"thousand_rows_per_s": throughput(history), "moves": history.summary()["moves"]}

    rows = sweep(run, measure, load=_LOADS, shards=_SHARDS, policy=(STATIC, EXECUTOR))
    return FigureResult(rows=rows)

"""Paper 2 §5.4, figures 12 to 14: Real Jobs 2 to 4 as flows in one process, under ALBIC.

Twenty workers have five key groups of every operator.  The flow runs: in every period an epoch of
flights goes through it, Godwit measures what every key group costs and sends to whom, ALBIC plans
by that, and the plan is carried out.  COLA plans by the same measurements, and its plans
are not carried out.  The start is the worst: no two key groups that talk share a worker.

The paper's flights and weather are not public.  Here airplanes fly routes that are popular by
Zipf's law, an hour of flights an epoch.  An operator that extracts delays is keyed by airplane, as
the paper's is, though a map would do.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import godwit as gw
from godwit.control.planners.allocation.milp import plan_milp
from godwit.model.key_groups import OTHERS
from godwit.placement.problem import Limits
from godwit_lab.cli.reproduce.figure import (
    Chart,
    Clause,
    Figure,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    acts,
    at_least,
    at_most,
)
from godwit_lab.experiments.paper2.solver import distance_percent
from godwit_lab.planners.allocation.albic import plan_albic
from godwit_lab.planners.allocation.cola import plan_cola

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.placement.solution import Solution
    from godwit.testing.flows import Run
    from godwit_lab.cli.reproduce.figure import Data


_WORKERS, _KEY_GROUPS, _MOVES, _ROWS = 20, 100, 10, 4_000
_PLANES, _AIRPORTS, _CARRIERS, _HOUR_US = 2_000, 120, 12, 3_600_000_000
_FLIGHT = "at timestamp, plane string, carrier string, origin string, dest string, late int"
_DELAY = "at timestamp, plane string, carrier string, origin string, dest string, delay int"
_WEATHER = "at timestamp, airport string, rain double"


def _extract(key: tuple[str], rows: gw.types.KeyRows, seen: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the delays of an airplane's flights, and count them."""
    for row in rows:
        seen.value += 1
        yield row.at, key[0], row.carrier, row.origin, row.dest, max(row.late, 0)


def _score(key: tuple[str], rows: gw.types.KeyRows, most: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rain of an airport as a percentage of the most that it ever had."""
    for row in rows:
        most.value = max(most.value, row.rain)
        yield key[0], row.at, 100 * row.rain / most.value if most.value else 0.0


def _in_tens(flights: pa.Table) -> pa.Table:
    """Take the rain in intervals of ten."""
    tens = pc.multiply(pc.floor(pc.divide(flights["rain"], 10.0)), 10.0)
    columns = [flights["carrier"], flights["delay"], pc.cast(tens, pa.int64())]
    return pa.table(columns, names=["carrier", "delay", "rain"])


def flow_of(job: int) -> gw.Flow:
    """Describe a job; its stores are operators that keep what they would write."""
    flow = gw.Flow(f"real_job_{job}", num_key_groups=_KEY_GROUPS)
    sums: dict[str, Any] = {"flights": gw.count(), "delay": gw.sum("delay")}
    flights = flow.source("flights", gw.testing.stream(_FLIGHT), event_time="at")
    output = gw.types.Output(_DELAY, event_time="at")
    delays = flights.key_by("plane").process(_extract, name="extract", state=int, output=output)
    by_plane = delays.key_by("plane").compute(name="by_airplane", **sums)
    stored: dict[str, Any] = {"delay": gw.last("delay")}
    if job == 4:
        by_plane = by_plane.key_by("plane").compute(name="store_airplanes", **stored)
    flow.sink("airplanes", by_plane, gw.sinks.noop())
    if job >= 3:
        by_route = delays.key_by("origin", "dest").compute(name="by_route", **sums)
        flow.sink("routes", by_route, gw.sinks.noop())
    if job == 4:
        weather = flow.source("weather", gw.testing.stream(_WEATHER), event_time="at")
        rain = weather.key_by("airport").process(
            _score,
            name="rain_score",
            state=float,
            output=gw.types.Output("airport string, at timestamp, rain double", event_time="at"),
        )
        in_rain = delays.key_by("origin").join_newest(
            rain.key_by("airport"), within="3 hours", how="inner", suffix="_seen", name="in_rain"
        )
        couriers = in_rain.map(_in_tens).key_by("carrier", "rain").compute(name="couriers", **sums)
        stored_too = couriers.key_by("carrier", "rain").compute(name="store_couriers", **stored)
        flow.sink("couriers", stored_too, gw.sinks.noop())
    return flow


class _Hours:
    """Flights and weather, an hour after the other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        popular = np.arange(1, _AIRPORTS * 8 + 1) ** -0.5
        self._routes = rng.integers(0, _AIRPORTS, (_AIRPORTS * 8, 2))
        self._share = popular / popular.sum()
        self._hour = 350_000

    def next(self) -> dict[str, pa.Table]:
        """Return the next hour."""
        rng, first = self._rng, self._hour * _HOUR_US
        self._hour += 1
        plane = rng.integers(0, _PLANES, _ROWS)
        origin, dest = self._routes[rng.choice(len(self._routes), _ROWS, p=self._share)].T
        at_us = np.sort(first + rng.integers(0, _HOUR_US, _ROWS))
        return {
            "flights": pa.table(
                {
                    "at": pa.array(at_us, pa.timestamp("us", "UTC")),
                    "plane": _names("N", plane),
                    "carrier": _names("C", plane % _CARRIERS),
                    "origin": _names("A", origin),
                    "dest": _names("A", dest),
                    "late": pa.array(rng.gamma(1.0, 20.0, _ROWS).astype(np.int32) - 10),
                }
            ),
            "weather": pa.table(
                {
                    "at": pa.array(np.full(_AIRPORTS, first), pa.timestamp("us", "UTC")),
                    "airport": _names("A", np.arange(_AIRPORTS)),
                    "rain": rng.gamma(0.3, 5.0, _AIRPORTS),
                }
            ),
        }


def _names(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.array([f"{prefix}{number}" for number in numbers.tolist()])


def _apart(run: Run) -> None:
    """Place key groups so that those of one number are on another worker for every operator."""
    for shift, name in enumerate(run.placement.assignments):
        places = {g: f"w{(g + shift) % _WORKERS:02}" for g in range(_KEY_GROUPS)}
        run.migrate(places, component=name)


def _scattered(run: Run) -> float:
    """Return the rows an epoch that key groups send to all others alike."""
    with run.placement._coordinator.locked() as coordinator:  # noqa: SLF001  no planner needs them
        pairs = coordinator.recent_load.mean_pairs()
    return float(sum(each.rows[each.target == OTHERS].sum() for each in pairs.values()))


def _row(system: str, period: int, plan: Solution, scattered: float, **more: float) -> Row:
    """Return what a plan comes to; `scattered`: rows that nothing can collocate."""
    rows = float(plan.problem.traffic.rate.sum())
    return {
        "system": system,
        "period": period,
        "collocation_percent": 100 * plan.collocation_factor * rows / (rows + scattered),
        "distance_percent": distance_percent(plan),
        "moves": plan.num_moves,
        **more,
    }


@cache  # once for each job
def play(job: int, run: FigureRun) -> tuple[Row, ...]:
    """Let a job run, with a plan of ALBIC and one of COLA after every epoch."""
    rows: list[Row] = []
    hours = _Hours(run.rng(22))
    with gw.testing.cluster(
        flow_of(job), executors={f"w{n:02}": 1 for n in range(_WORKERS)}
    ) as stream:
        _apart(stream)
        sources = ("flights", "weather") if job == 4 else ("flights",)
        for _ in range(_WARM_UP):
            stream.epoch({name: table for name, table in hours.next().items() if name in sources})
        cola: np.ndarray | None = None
        for period in range(1, run.pick(*_PERIODS[job]) + 1):
            run.progress(f"Real Job {job}, period {period}")
            inputs = {name: table for name, table in hours.next().items() if name in sources}
            began = time.process_time()
            stream.epoch(inputs)
            cpu_ms = 1e3 * (time.process_time() - began)
            problem = stream.placement.problem(limits=Limits(max_moves=_MOVES))
            adaptive = plan_milp if run.off else plan_albic
            plan = adaptive(problem, time_limit_s=run.pick(0.3, 1.0), clock=time.process_time)
            for part in stream.placement.carry_out(plan):
                part.wait()
            scattered = _scattered(stream)
            rows.append(_row("ALBIC", period, plan, scattered, cpu_ms=cpu_ms))
            current = problem.current if cola is None else cola
            other = plan_cola(replace(problem, current=current, limits=Limits()))
            rows.append(_row("COLA", period, other, scattered))
            cola = other.assignment
    return tuple(rows)


_WARM_UP = 3
_PERIODS = {2: (24, 60), 3: (24, 80), 4: (40, 160)}
"""Job → periods if quick, and in full."""


def _end(system: str, column: str) -> Callable[[Data], float]:
    """Return a getter of a column of a system in its last period."""
    return lambda data: float(data.column(column, system=system)[-1])


def _mean(system: str, column: str) -> Callable[[Data], float]:
    return lambda data: float(data.column(column, system=system).mean())


def _load(data: Data) -> float:
    """Return the CPU of an epoch in the last quarter of the periods, over that in the first."""
    cpu_ms = data.column("cpu_ms", system="ALBIC")
    quarter = max(1, len(cpu_ms) // 4)
    return float(np.median(cpu_ms[-quarter:]) / np.median(cpu_ms[:quarter]))


_REACHES = at_least("ALBIC gradually reaches the collocation that COLA has at once", "ratio",
                    lambda data: _end("ALBIC", "collocation_percent")(data)
                    / _end("COLA", "collocation_percent")(data), 0.9,
                    decisive=True)  # fmt: skip
_GRADUALLY = at_most("ALBIC gradually reaches the collocation that COLA has at once",
                     "first period over last, ALBIC",
                     lambda data: data.column("collocation_percent", system="ALBIC")[0]
                     / _end("ALBIC", "collocation_percent")(data), 0.5)  # fmt: skip
_EVENER = at_most("ALBIC has the lower load distance", "ratio of the means",
                  lambda data: _mean("ALBIC", "distance_percent")(data)
                  / _mean("COLA", "distance_percent")(data), 0.999)  # fmt: skip
_TEN = at_most("ALBIC migrates 10 key groups a period", "most",
               lambda data: data.column("moves", system="ALBIC").max(), float(_MOVES),
               unit="migrations", paper=10.0)  # fmt: skip


def _collocated(percent: float, says: str) -> Clause:
    """Return the clause that the traffic is collocated that can be."""
    return at_least(says, "in the end", _end("ALBIC", "collocation_percent"), 0.9 * percent,
                    unit="%", paper=percent)  # fmt: skip


def _halved(says: str, most: float) -> Clause:
    """Return the clause that collocation lowers the load."""
    return at_most(says, "CPU of an epoch in the last quarter over that in the first", _load, most,
                   paper=0.5 if most < 0.9 else None)  # fmt: skip


def _figure(job: int, clauses: tuple[Clause, ...], workload: str) -> Figure:
    """Make the figure of a job."""
    return Figure(
        title=f"Real Job {job}",
        clauses=(*clauses, acts(("ALBIC", "COLA"), by="system")),
        workload=f"The flow of the paper's job in one process: {workload}. {_WORKERS} workers, "
        f"{_KEY_GROUPS} key groups an operator, {_MOVES} migrations a period of {_ROWS:,} flights, "
        "which are generated; loads and traffic are measured, and ALBIC's plans carried out.",
        place=RunsOn.PROCESS,
        run=lambda run: FigureResult(rows=play(job, run)),
        charts=tuple(
            Chart(x="period", y=y, by="system", x_label="period", y_label=label)
            for y, label in (
                ("collocation_percent", "collocated traffic (%)"),
                ("distance_percent", "load distance (% of the mean)"),
                ("cpu_ms", "CPU of an epoch (ms)"),
                ("moves", "migrations"),
            )
        ),
        mechanism="the look at traffic (the MILP alone)",
        reason="The paper serialises every tuple that leaves its node, half of the work. Here "
        "rows cross in columns, for 0.03 µs of CPU a row (`python -m benchmarks.fusion "
        "--in-process`), beside microseconds in an operator, and one process has no network.",
    )


figure12 = _figure(
    2,
    (
        _REACHES,
        _GRADUALLY,
        _collocated(100.0, "which is full collocation"),
        _halved("it halves the load", 0.6),
        _EVENER,
        _TEN,
        at_least("COLA nearly 200", "mean of 200 key groups", _mean("COLA", "moves"), 150.0,
                 unit="migrations", paper=200.0),
    ),
    "extract, and delays by airplane",
)  # fmt: skip


figure13 = _figure(
    3,
    (
        _REACHES,
        _GRADUALLY,
        _collocated(50.0, "which is half of that of Real Job 2, since delays by route cannot be "
                    "collocated with delays by airplane"),
        _halved("the load falls, too", 0.9),
        _EVENER,
        _TEN,
    ),
    "extract, delays by airplane, and delays by route",
)  # fmt: skip


figure14 = _figure(
    4,
    (
        at_least("COLA reaches a collocation of 61 %", "in the end",
                 _end("COLA", "collocation_percent"), 0.9 * 61, unit="%", paper=61.0),
        _REACHES,
        _GRADUALLY,
        _halved("and reduces the load index", 0.9),
        at_most("it keeps a low load distance", "ratio of the means to COLA",
                lambda data: _mean("ALBIC", "distance_percent")(data)
                / _mean("COLA", "distance_percent")(data), 0.999),
        _TEN,
    ),
    "delays, routes joined with the rain at their origin, couriers, and stores that keep what they "
    "would write",
)  # fmt: skip

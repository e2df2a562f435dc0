"""Situation of a stream, the input of a scaling model: its measurements over a period."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.placement.arrays import FloatArray

_MIN_COST_DIFFERENCE = 0.1
"""Min. relative difference of fixed costs that is attributed to the number of executors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLoad:
    """Loads of the key groups of a stage, of all its components together."""

    # shape ``(G,)``: share of a standard lane that each keeps busy at the arrival rate, descending
    loads: FloatArray
    component: str  # of the heaviest one
    key_group: int  # its number there
    key: str = ""  # the key that has most of it, as JSON, where one has
    # lanes → load of the busiest of them, as far as it was asked for: a decision asks for each
    # number of executors several times
    _min_load_cache: dict[int, float] = field(default_factory=dict, repr=False)

    def busiest(self, lanes: int, speed: float) -> float:
        """Return the busy share of the busiest of `lanes` lanes, if key groups are spread best.

        `speed`: of each lane, relative to a standard one.
        """
        if lanes not in self._min_load_cache:
            self._min_load_cache[lanes] = self._min_load_of_busiest(lanes)
        return self._min_load_cache[lanes] / speed

    def _min_load_of_busiest(self, lanes: int) -> float:
        """Return the smallest load that the busiest of `lanes` lanes can have."""
        if not len(self.loads):
            return 0.0
        summed = np.concatenate(([0.0], np.cumsum(self.loads)))
        rounds = np.arange(1, (len(self.loads) - 1) // lanes + 1)
        fullest = summed[rounds * lanes + 1] - summed[rounds * (lanes - 1)]
        share = float(summed[-1]) / lanes
        return max(float(self.loads[0]), share, float(fullest.max(initial=0.0)))

    @property
    def heaviest(self) -> float:
        """Load of the heaviest key group, in lanes of speed 1."""
        return float(self.loads[0]) if len(self.loads) else 0.0

    def scaled(self, factor: float) -> StageLoad:
        """Return the stage with its loads multiplied by `factor`."""
        known = {lanes: load * factor for lanes, load in self._min_load_cache.items()}
        return replace(self, loads=self.loads * factor, _min_load_cache=known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Measurements that calibrate the model, by number of executors."""

    fixed_s: Mapping[int, float] = field(default_factory=dict)  # of an epoch
    ratio: Mapping[int, float] = field(default_factory=dict)  # measured over predicted latency
    # load of the busiest lane over the least that it could have
    unevenness: Mapping[int, float] = field(default_factory=dict)
    # measured over predicted latency besides, while the stream does not come to rest
    error: float = 1.0

    def fixed_at(self, executors: int, now_s: float) -> float:
        """Return an epoch's seconds outside of key groups, with `executors` executors.

        Between and beyond the measured numbers by interpolation; `now_s` if nothing was measured.
        """
        measured = self.fixed_s
        if not measured:
            return now_s
        nearest_number = nearest(measured, executors)
        low, high = min(measured), max(measured)
        rise = measured[high] - measured[low]
        if (
            executors == nearest_number
            or low == high
            or rise <= _MIN_COST_DIFFERENCE * measured[low]
        ):
            return measured[nearest_number]
        if low < executors < high:
            numbers = sorted(measured)
            return float(np.interp(executors, numbers, [measured[n] for n in numbers]))
        line = measured[nearest_number] + rise / (high - low) * (executors - nearest_number)
        # At most in proportion to the executors: no epoch is for nothing.
        bound = measured[nearest_number] * executors / nearest_number
        return max(line, bound) if executors < nearest_number else min(line, bound)

    def unevenness_at(self, executors: int, cores: float) -> float:
        """Return the ratio of the busiest lane's load to the lowest possible, by executors.

        Fewer executors than were ever seen have fewer lanes with more rows each, which differ by
        less. Above the largest number seen, the nearest value is used: there the rate is higher.
        `cores`: load, in cores.
        """
        if not self.unevenness:
            return 1.0
        near = nearest(self.unevenness, executors)
        excess = self.unevenness[near] - 1
        return 1 + excess * min(
            _random_excess(executors * cores) / _random_excess(near * cores), 1.0
        )

    def ratio_at(self, executors: int) -> float:
        """Return the ratio of measured to predicted latency with `executors` executors.

        1 if never measured.
        """
        return self.error * (self.ratio[nearest(self.ratio, executors)] if self.ratio else 1.0)


def nearest(known: Mapping[int, float], executors: int) -> int:
    """Return the number in `known` that is nearest to `executors` by ratio; of two, the smaller."""
    return min(known, key=lambda n: (abs(math.log(n / executors)), n))


def _random_excess(lanes: float) -> float:
    """Return a value proportional to the busiest lane's random excess, for use in ratios."""
    return math.sqrt(lanes * math.log(1 + lanes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One component as a station of the queueing network."""

    arrival_per_s: float  # rows that reach it, as the sources offer them
    # rows that one lane of a standard executor processes; 0 where nothing was processed
    service_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSituation:
    """Measurements of the last control period, the input of a scaling model.

    Where it matters how even the load is, it is as the new plan would place the key groups.
    """

    now_s: float  # the time, and when the run began, by the controller's clock
    started_s: float
    executors: int  # executors that stay: those that are to leave do not count
    least: int  # limits on their number
    most: int
    # standard lanes of one executor: its lanes times its speed, the mean over those that stay
    lanes: float
    offered: float  # lanes of standard executors that the rows that arrive would keep busy
    evenness: float  # load index of the busiest executor under the plan over the mean, at least 1
    arrival_per_s: float  # source rows a second
    arrival_error: float = 0.0  # its standard error by noise, as a share; 0 if it is unknown
    stations: Mapping[str, Station]  # component → its station
    # mean time of an epoch, with the delivery that the next one waits for; what of it is spent on
    # no key group: whatever its rows, and for every source row
    epoch_s: float
    fixed_s: float
    per_row_s: float = 0.0
    outside_s: Mapping[str, float] = field(default_factory=dict)  # phase or sink → of `epoch_s`
    waits_for_epochs: bool = True  # whether rows wait for the end of an epoch
    # rows that the sources held back at last, because of their limit of rows per epoch;
    # ``None`` where they do not say
    backlog_rows: int | None = None
    # measured latency of rows, of the period and of the last few
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    recent_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    latest_latency: LatencyHistogram = field(default_factory=LatencyHistogram)  # of the last epoch
    cores: float = 1.0  # lanes of one executor, however fast: the mean over those that stay
    trigger_s: float = 0.0  # least time between the beginnings of epochs with input
    # time of an epoch to which its rows are limited where the stream is overloaded
    longest_epoch_s: float = math.inf
    # stage by stage, key groups by their load at the arrival rate; none: only `offered` is known
    stages: tuple[StageLoad, ...] = ()
    # share of the period that the busiest lanes of its epochs were busy, at the arrival rate; 0
    # where nothing was measured
    busiest: float = 0.0
    settled: bool = True  # whether all of its epochs had the present places
    # seconds until executors that are asked for now will have come
    lead_s: float = 0.0
    learned: Learned = field(default_factory=Learned)  # what completes the model
    # whether the budget of a period lets key groups move to executors that come as soon as they do
    fills_at_once: bool = True
    # why an executor that comes would have little to do; empty where key groups move to it
    idle: str = ""
    # greatest source rows a second until executors that are asked for now would be there, where
    # that is foreseen (`godwit.control.forecast`)
    expected_per_s: float | None = None

    @property
    def outside(self) -> float:
        """Share of the time that rows take outside the lanes, at the arrival rate."""
        return self.per_row_s * self.arrival_per_s

"""Source rows: arrival times and keys.

Invariant: the curve of arrivals depends on the workload and the seed alone, so two policies can be
compared, and delays are exact.  Row number *r* (from 0) arrives where the curve passes *r*; between
points of its grid it is a straight line.

Zipf frequencies are exact per key, rows are drawn per key group, and distinct keys are their
expectation given the rows.  A *phase* is a time in which frequencies stand still; a shift is a
random permutation of them over the keys (paper 5 §5.1: "we shuffle the frequencies of tuple keys").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.placement.arrays import FloatArray, IntArray

_GRID_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The rate is `factor` times the usual from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Arrival rate of a source: usual rate, surges and noise."""

    rows_per_s: float  # the usual rate
    # times at which it is another one; where they overlap, their factors multiply
    surges: tuple[Surge, ...] = ()
    # (time, factor), ascending: from each time on the usual rate is multiplied by the factor; as
    # measured
    steps: tuple[tuple[float, float], ...] = ()
    # share by which the rate strays, up or down, uniform, drawn again every `noise_s`
    noise: float = 0.0
    noise_s: float = 1.0  # how long one such deviation lasts

    def __post_init__(self) -> None:
        if not (self.rows_per_s >= 0 and 0 <= self.noise <= 1 and self.noise_s > 0):
            raise InvalidProblemError(
                f"A rate of {self.rows_per_s} rows per second with noise {self.noise} is wrong.",
                remedy="Give a rate that is not negative, and noise between 0 and 1.",
                field="rate",
            )

    def at_times(self, times_s: FloatArray) -> FloatArray:
        """Return the arrival rates at times, without noise."""
        rate = np.full(len(times_s), self.rows_per_s, np.float64)
        if self.steps:
            since, factors = np.array(self.steps, np.float64).T
            step = np.searchsorted(since, times_s, "right") - 1
            rate *= np.where(step < 0, 1.0, factors[step.clip(min=0)])
        for surge in self.surges:
            rate[(times_s >= surge.start_s) & (times_s < surge.end_s)] *= surge.factor
        return rate


class RowArrivals:
    """Cumulative curve of arrivals over one run.

    rate: How many rows arrive.
    duration_s: Until when; none arrive later.
    rng: Draws the noise.
    """

    def __init__(self, rate: Rate, duration_s: float, rng: np.random.Generator) -> None:
        steps = max(1, round(duration_s / _GRID_S))
        self._times: FloatArray = np.linspace(0.0, duration_s, steps + 1)
        width = duration_s / steps
        periods = int(duration_s / rate.noise_s) + 1
        stray = 1 + rate.noise * rng.uniform(-1, 1, periods)
        within = (self._times[:-1] / rate.noise_s).astype(np.int64).clip(max=periods - 1)
        per_step = rate.at_times(self._times[:-1] + width / 2) * stray[within] * width
        self._rows: FloatArray = np.concatenate(([0.0], np.cumsum(per_step)))

    def arrived_by(self, time_s: float) -> int:
        """Return the number of rows that have arrived by `time_s`."""
        return int(np.interp(time_s, self._times, self._rows) + 1e-9)

    @property
    def total(self) -> int:
        """Total number of rows that arrive."""
        return int(self._rows[-1] + 1e-9)

    def time_of(self, row: float) -> float:
        """Return the time by which `row` rows have arrived, interpolated."""
        return float(np.interp(row, self._rows, self._times))

    def pieces(self, first: int, last: int) -> FloatArray:
        """Return when the rows ``first <= r < last`` arrive, in pieces; shape ``(n, 3)``.

        Each piece: number of rows, first and last time; within a piece rows arrive at equal
        distances.
        """
        if last <= first:
            return np.empty((0, 3))
        bends = self._rows[
            np.searchsorted(self._rows, first, "right") : np.searchsorted(self._rows, last)
        ]
        rows = np.concatenate(([first], np.unique(bends), [last]))
        times = np.interp(rows, self._rows, self._times)
        return np.column_stack((np.diff(rows), times[:-1], times[1:]))


_ROWS = np.concatenate(([0.0], np.geomspace(1, 1e9, 55)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys of a workload and their shifts; the same for every component."""

    number: int = 10_000  # how many there are
    # exponent of their frequencies: the key of rank r comes in proportion to r to the -zipf
    zipf: float = 0.5
    shifts_s: tuple[float, ...] = ()  # times at which frequencies are shuffled

    def __post_init__(self) -> None:
        if self.number < 1 or self.zipf < 0 or list(self.shifts_s) != sorted(self.shifts_s):
            raise InvalidProblemError(
                f"{self.number} keys with Zipf exponent {self.zipf} and shifts at "
                f"{self.shifts_s} are wrong.",
                remedy="Give at least one key, an exponent of at least 0, and ascending times.",
                field="keys",
            )

    def phase_at(self, time_s: float) -> int:
        """Return the number of the phase at a time: the number of shifts of frequencies so far."""
        return sum(time_s >= shift for shift in self.shifts_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Key frequencies of one component between two shifts."""

    share: FloatArray  # shape ``(m,)``: share of the rows
    # shape ``(m, n)``: expected distinct keys among each number of rows in `_ROWS`
    distinct: FloatArray

    def keys_among(self, rows: np.ndarray) -> FloatArray:
        """Return the expected number of distinct keys among `rows` rows of each key group."""
        index = np.searchsorted(_ROWS, rows, side="right").clip(1, len(_ROWS) - 1)
        groups = np.arange(len(self.share))
        low, high = self.distinct[groups, index - 1], self.distinct[groups, index]
        part = (rows - _ROWS[index - 1]) / (_ROWS[index] - _ROWS[index - 1])
        keys: FloatArray = low + (high - low) * part.clip(0, 1)
        return keys


@dataclass(slots=True, kw_only=True)
class KeySpread:
    """Distribution of one component's keys over its key groups, by phase."""

    keys: Keys  # the workload's
    key_groups: int  # how many there are
    seed: tuple[int, ...]  # of the hash and of the shuffles; the same for every run of a scenario
    initial_state: FloatArray = field(init=False)
    """Shape ``(m,)``: keys that each key group has."""
    _home: IntArray = field(init=False)
    _frequency: FloatArray = field(init=False)
    _phases: dict[int, Phase] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng([*self.seed, 0])
        self._home = draw.integers(0, self.key_groups, self.keys.number, np.int32)
        weights = np.arange(1, self.keys.number + 1, dtype=np.float64) ** -self.keys.zipf
        self._frequency = weights / weights.sum()
        self.initial_state = np.bincount(self._home, minlength=self.key_groups).astype(np.float64)

    def phase(self, number: int) -> Phase:
        """Return the key frequencies after `number` shifts."""
        if number not in self._phases:
            draw = np.random.default_rng([*self.seed, 1, number])
            self._phases[number] = self._to_phase(draw.permutation(self._frequency))
        return self._phases[number]

    def _to_phase(self, frequency: FloatArray) -> Phase:
        """Return a phase: frequencies of keys, summed up by the key groups that they hash to."""
        share = np.bincount(self._home, weights=frequency, minlength=self.key_groups).astype(
            np.float64
        )
        share /= share.sum()
        within = frequency / share[self._home]
        distinct = np.empty((self.key_groups, len(_ROWS)))
        unseen = np.log1p(-within.clip(max=1 - 1e-12))
        for index, rows in enumerate(_ROWS):
            seen = -np.expm1(rows * unseen)
            distinct[:, index] = np.bincount(self._home, weights=seen, minlength=self.key_groups)
        return Phase(share=share, distinct=distinct)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredKeyGroups:
    """Key groups of one component as a running stream showed them; vectors of shape ``(m,)``.

    They replace drawn keys: shares that stay, and the bytes that a row changes for keys.
    """

    share: FloatArray  # of the source's rows; sums up to 1
    row_ms: FloatArray  # time of a lane for each of these rows
    state_bytes: FloatArray
    changed_bytes: float = 0.0  # changelog that a row adds

    @property
    def initial_state(self) -> FloatArray:
        """Bytes of state of each key group."""
        return self.state_bytes

    def phase(self, _number: int) -> Phase:
        """Return the measured frequencies, which are the same in every phase."""
        changed = np.broadcast_to(self.changed_bytes * _ROWS, (len(self.share), len(_ROWS)))
        return Phase(share=self.share, distinct=changed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Source rows of an epoch."""

    number: int | None  # of the micro-batch; ``None``: an epoch without input
    first: int  # of the source's rows
    last: int  # not taken any more
    phase: int  # frequencies that they were drawn with
    arrived: FloatArray  # when, as `godwit_lab.simulator.workload.RowArrivals.pieces` says
    # component that the source feeds → rows for each of its key groups; left out: none
    rows_of: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return self.last - self.first


class SimulatedSource(Protocol):
    """Port: source of a simulated run."""

    def arrived_by(self, time_s: float) -> int:
        """Return the number of rows that have arrived by `time_s`."""

    def batch(self, number: int, first: int, last: int) -> Batch:
        """Return micro-batch `number`, of rows ``first <= r < last``; called once per range."""

    def empty_batch(self, time_s: float, first: int) -> Batch:
        """Return an empty batch, for an epoch without input."""


class DrawnRows:
    """Rows of a scenario: a cumulative curve, and one draw per batch and component."""

    def __init__(
        self,
        rate: Rate,
        keys: Keys,
        duration_s: float,
        # component that the source feeds → where its keys are
        spreads: Mapping[str, KeySpread | MeasuredKeyGroups],
        rng: np.random.Generator,  # draws the noise of the rate, then rows
    ) -> None:
        self._arrivals = RowArrivals(rate, duration_s, rng)
        self._keys, self._spreads, self._rng = keys, spreads, rng

    def arrived_by(self, time_s: float) -> int:
        """Return the number of rows that have arrived by `time_s`."""
        return self._arrivals.arrived_by(time_s)

    def batch(self, number: int, first: int, last: int) -> Batch:
        """Return micro-batch `number`, of rows ``first <= r < last``; called once per range."""
        phase = self._keys.phase_at(self._arrivals.time_of(first))
        return Batch(
            number=number,
            first=first,
            last=last,
            phase=phase,
            arrived=self._arrivals.pieces(first, last),
            rows_of={
                name: self._rng.multinomial(last - first, spread.phase(phase).share)
                for name, spread in self._spreads.items()
            },
        )

    def empty_batch(self, time_s: float, first: int) -> Batch:
        """Return an empty batch, for an epoch without input."""
        return Batch(
            number=None,
            first=first,
            last=first,
            phase=self._keys.phase_at(time_s),
            arrived=np.empty((0, 3)),
            rows_of={},
        )

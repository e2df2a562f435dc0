"""Which keys rows have: Zipf frequencies over keys, dealt out over key groups, that shift.

Problem: what an epoch costs depends on rows and on distinct keys per key group.  Drawing every row
would cost what the real thing costs; drawing none would hide skew.

The way: frequencies are exact per key, rows are drawn per key group (one multinomial draw, or a
Poisson draw where another component decides how many there are), and distinct keys are their
expectation given the rows, which for thousands of keys is what happens within a few per cent.
A *phase* is a time in which frequencies stand still; a shift is a random permutation of the
frequencies over the keys (paper 5 §5.1: "we shuffle the frequencies of tuple keys").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray, IntArray

__all__ = ["KeySpread", "Keys", "Phase"]

_ROWS = np.concatenate(([0.0], np.geomspace(1, 1e9, 55)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of a workload, the same for every component.

    Attributes
    ----------
    number
        How many there are.
    zipf
        Exponent of their frequencies: the key of rank r comes in proportion to r to the -zipf.
    shifts_s
        Times at which frequencies are shuffled.
    """

    number: int = 10_000
    zipf: float = 0.5
    shifts_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.number < 1 or self.zipf < 0 or list(self.shifts_s) != sorted(self.shifts_s):
            raise InvalidProblemError(
                f"{self.number} keys with Zipf exponent {self.zipf} and shifts at "
                f"{self.shifts_s} are wrong.",
                remedy="Give at least one key, an exponent of at least 0, and ascending times.",
                field="keys",
            )

    def phase_at(self, time_s: float) -> int:
        """How many shifts there have been."""
        return sum(time_s >= shift for shift in self.shifts_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Frequencies over the key groups of one component, while they stand still.

    Attributes
    ----------
    share
        Shape ``(m,)``: share of the rows.
    distinct
        Shape ``(m, n)``: expected distinct keys among so many rows as `_ROWS` has.
    """

    share: FloatArray
    distinct: FloatArray

    def keys_among(self, rows: np.ndarray) -> FloatArray:
        """Shape ``(m,)``: expected distinct keys among `rows` rows of each key group."""
        at = np.searchsorted(_ROWS, rows, side="right").clip(1, len(_ROWS) - 1)
        groups = np.arange(len(self.share))
        low, high = self.distinct[groups, at - 1], self.distinct[groups, at]
        part = (rows - _ROWS[at - 1]) / (_ROWS[at] - _ROWS[at - 1])
        keys: FloatArray = low + (high - low) * part.clip(0, 1)
        return keys


@dataclass(slots=True, kw_only=True)
class KeySpread:
    """Keys of one component over its key groups, phase after phase.

    Attributes
    ----------
    keys
        The workload's.
    key_groups
        How many there are.
    seed
        Of the hash and of the shuffles; the same for every run of a scenario.
    """

    keys: Keys
    key_groups: int
    seed: tuple[int, ...]
    held: FloatArray = field(init=False)
    """Shape ``(m,)``: keys that each key group has."""
    _home: IntArray = field(init=False)
    _frequency: FloatArray = field(init=False)
    _phases: dict[int, Phase] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng([*self.seed, 0])
        self._home = draw.integers(0, self.key_groups, self.keys.number, np.int32)
        weights = np.arange(1, self.keys.number + 1, dtype=np.float64) ** -self.keys.zipf
        self._frequency = weights / weights.sum()
        self.held = np.bincount(self._home, minlength=self.key_groups).astype(np.float64)

    def phase(self, number: int) -> Phase:
        """Frequencies after `number` shifts."""
        if number not in self._phases:
            draw = np.random.default_rng([*self.seed, 1, number])
            self._phases[number] = self._made(draw.permutation(self._frequency))
        return self._phases[number]

    def _made(self, frequency: FloatArray) -> Phase:
        share = np.bincount(self._home, weights=frequency, minlength=self.key_groups).astype(
            np.float64
        )
        share /= share.sum()
        within = frequency / share[self._home]
        distinct = np.empty((self.key_groups, len(_ROWS)))
        for at, rows in enumerate(_ROWS):
            seen = -np.expm1(rows * np.log1p(-within.clip(max=1 - 1e-12)))
            distinct[:, at] = np.bincount(self._home, weights=seen, minlength=self.key_groups)
        return Phase(share=share, distinct=distinct)

"""Where rows come from: when they arrive, and which key groups they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from godwit.cluster.simulated.arrivals import Arrivals
from godwit.cluster.simulated.epoch_work import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.cluster.simulated.keys import Keys, KeySpread
    from godwit.cluster.simulated.scenario import Scenario

__all__ = ["DrawnRows", "Source"]


class Source(Protocol):
    """A source of a simulated run."""

    def until(self, time_s: float) -> int:
        """How many rows have arrived by `time_s`."""

    def batch(self, number: int, first: int, last: int) -> Batch:
        """Give rows ``first <= r < last``; asked for once."""

    def quiet(self, time_s: float, first: int) -> Batch:
        """Give no rows: an epoch without input."""


class DrawnRows:
    """Rows of a scenario: a cumulative curve, and one draw per batch and component.

    Parameters
    ----------
    scenario
        Rate and keys.
    spreads
        Component that the source feeds → where its keys are.
    rng
        Draws the noise of the rate, then rows.
    """

    def __init__(
        self, scenario: Scenario, spreads: Mapping[str, KeySpread], rng: np.random.Generator
    ) -> None:
        self._arrivals = Arrivals(scenario.rate, scenario.duration_s, rng)
        self._keys: Keys = scenario.keys
        self._spreads, self._rng = spreads, rng

    def until(self, time_s: float) -> int:
        """See `Source`."""
        return self._arrivals.until(time_s)

    def batch(self, number: int, first: int, last: int) -> Batch:
        """See `Source`."""
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

    def quiet(self, time_s: float, first: int) -> Batch:
        """See `Source`."""
        return Batch(
            number=None,
            first=first,
            last=first,
            phase=self._keys.phase_at(time_s),
            arrived=np.empty((0, 3)),
            rows_of={},
        )

"""What ALBIC aims at, as one value that plans and today's assignment are compared by.

Problem: a planner that weighs balance against collocation can go round in circles on constant
input, each plan undoing for the one what the last did for the other.

Invariant: a plan is worth its moves only if the first aim that differs gets better, by a margin.
Along a chain of plans the aims fall lexicographically, by a least amount each time; so the chain
ends, wherever it starts.

Source: paper 2 §4.3.2 gives the order: ``max_load_distance`` is a bound, and within it collocation
of pairs comes before balance.  The price between the two is our own, since without one a single
pair could cost all balance below the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.allocation.model import build_model
from godwit.planning.allocation.units import single_units

if TYPE_CHECKING:
    from godwit.planning.allocation.pairs import ScoredPairs
    from godwit.planning.arrays import IntArray
    from godwit.planning.problem import Problem, Traffic

__all__ = ["PAIR_WORTH", "Aims", "Reached"]

PAIR_WORTH = 3.0
"""Percent of the mean load index that one more pair on one executor may cost."""
_NOISE = 1e-9
"""Differences below this are rounding."""
_LEAST_EXCESS, _LEAST_LEFT, _LEAST_DISTANCE, _LEAST_PAIRS = 1e-6, 1, 1e-3, 1e-1 / PAIR_WORTH
"""By how much an aim must get better; a tenth of a per cent of the mean for load distances."""
_LEAST_APART = 0.03
"""What a move must gain at least in senders' traffic, where nothing else is gained."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Reached:
    """How far an assignment is from each aim; less is better, the first that differs decides."""

    excess: float  # sum of what is above limits on use, in shares of the limit
    left: int  # key groups on draining executors
    distance: float  # load distance in fair shares, ``max_load_distance`` where it is below that
    # traffic of pairs that are apart, in mean pairs, and the load distance from ``even_enough`` to
    # ``max_load_distance``, `PAIR_WORTH` percent of the mean for a pair
    pairs: float
    apart: float  # all traffic between executors, in what one key group sends on average
    # the load distance in fair shares, ``even_enough`` where it is below that; it is in `distance`
    # and `pairs` already and decides nothing by itself
    uneven: float = field(compare=False)


class Aims:
    """Measures assignments of one problem.

    `problem`: loads, limits and some traffic. `scored`: the pairs worth collocating.
    `max_load_distance`, `even_enough`: as for ALBIC, percent of the mean load index.
    """

    def __init__(
        self,
        problem: Problem,
        scored: ScoredPairs,
        *,
        max_load_distance: float,
        even_enough: float,
    ) -> None:
        self._traffic, self._scored = problem.traffic, scored
        self._model = build_model(problem, single_units(problem))
        self._most, self._enough = max_load_distance / 100, even_enough / 100
        self._mean_pair = float(scored.rate.mean()) if len(scored.rate) else 1.0
        senders = len(np.unique(problem.traffic.source[problem.traffic.rate > 0]))
        self._mean_sender = float(problem.traffic.rate.sum()) / senders

    def reached(self, assignment: IntArray) -> Reached:
        """Measure one assignment of key groups."""
        distance = max(self._model.over_under(assignment))
        uneven = max(distance, self._enough)
        below_most = max(0.0, min(distance, self._most) - self._enough)
        return Reached(
            excess=self._model.excess(assignment),
            left=int((~self._model.stays[assignment]).sum()),
            distance=max(distance, self._most),
            pairs=_apart(assignment, self._scored) / self._mean_pair
            + 100 * below_most / PAIR_WORTH,
            apart=_apart(assignment, self._traffic) / self._mean_sender,
            uneven=uneven,
        )

    def is_balanced(self, reached: Reached) -> bool:
        """Whether an assignment is within the limits and within ``max_load_distance``."""
        return reached.excess == 0 and reached.distance <= self._most

    def worth_moving(self, found: Reached, today: Reached, moves: int) -> bool:
        """Whether `found` is better than `today` by enough to move so many key groups for it.

        Bringing pairs together is not worth it where the load gets no more even and as much other
        traffic is parted.
        """
        for after, before, least in (
            (found.excess, today.excess, _LEAST_EXCESS),
            (found.left, today.left, _LEAST_LEFT),
            (found.distance, today.distance, _LEAST_DISTANCE),
        ):
            if after > before + _NOISE or after <= before - least:
                return after < before
        if found.pairs > today.pairs + _NOISE:
            return False
        if found.pairs <= today.pairs - _LEAST_PAIRS:
            return found.uneven < today.uneven - _NOISE or found.apart < today.apart - _NOISE
        return found.apart <= today.apart - _LEAST_APART * max(moves, 3)


def _apart(assignment: IntArray, traffic: ScoredPairs | Traffic) -> float:
    away = assignment[traffic.source] != assignment[traffic.target]
    return float(traffic.rate[away].sum())

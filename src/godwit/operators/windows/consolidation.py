"""Carrying out a consolidation plan over columns: partial states of many keys merged at once.

The states of a pane, or of a window that is built, lie in order of their keys, which are numbers
here.  Two that follow one another are merged by one call of the aggregates, row by row; where they
hold the same keys, as panes of a busy stream do, without moving anything.

Invariant: states are merged in order of event time, whatever the plan, so that only the last bits
of sums of floats tell one plan from another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.planning.windows import ConsolidationProblem, plan_consolidation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.planning.windows import ConsolidationPlan

__all__ = ["SHARES", "Partials", "consolidate", "plan_of"]

IntArray = npt.NDArray[np.int64]

SHARES = 32
_WORTH_A_SEARCH = 50_000  # merging as many keys takes about as long as the search


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partials:
    """Partial states of some keys."""

    keys: IntArray  # shape ``(n,)``: numbers of keys, ascending
    states: pa.RecordBatch  # n rows

    def then(
        self, later: Partials, merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch]
    ) -> Partials:
        """Merge with what came later."""
        count, found = len(self.keys), np.searchsorted(self.keys, later.keys)
        if np.array_equal(self.keys, later.keys):
            return Partials(keys=self.keys, states=merge(self.states, later.states))
        both = np.zeros(len(found), np.bool_)
        inside = found < count
        both[inside] = self.keys[found[inside]] == later.keys[inside]
        here, there, new = found[both], np.flatnonzero(both), np.flatnonzero(~both)
        merged = merge(self.states.take(pa.array(here)), later.states.take(pa.array(there)))
        place = np.arange(count)
        place[here] = count + np.arange(len(here))
        place = np.insert(place, found[new], count + len(here) + new)
        every = pa.concat_batches([self.states, merged, later.states])
        return Partials(
            keys=np.insert(self.keys, found[new], later.keys[new]),
            states=every.take(pa.array(place)),
        )


def plan_of(
    pane_keys: IntArray, all_keys: int, windows: Sequence[tuple[int, int]], *, overlapping: bool
) -> ConsolidationPlan:
    """Plan by the keys that were counted in the panes at hand.

    Keys count in thirty-seconds of all, so that the plan of one epoch is found again in the next.
    What is planned by is the committed state and the epoch's rows, so another attempt of the epoch
    plans the same.

    Parameters
    ----------
    pane_keys
        Shape ``(n,)``: keys in each pane.
    all_keys
        Keys in all of them.
    windows
        Positions of panes.
    overlapping
        Whether the parts of a window may overlap.
    """
    shares = np.ceil(pane_keys * (SHARES / max(all_keys, 1))).astype(np.int64)
    before = np.concatenate([[0], np.cumsum(pane_keys)])
    keys = sum(int(before[end] - before[first]) for first, end in windows)
    return _planned(
        tuple(shares.tolist()), tuple(windows), overlapping, search=keys > _WORTH_A_SEARCH
    )


@lru_cache(maxsize=64)
def _planned(
    shares: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    overlapping: bool,
    *,
    search: bool,
) -> ConsolidationPlan:
    problem = ConsolidationProblem(
        pane_keys=np.array(shares, np.float64),
        windows=windows,
        all_keys=float(SHARES),
        overlapping=overlapping,
    )
    return plan_consolidation(problem, auxiliary=search, most_nodes=16)


def consolidate(
    plan: ConsolidationPlan,
    panes: Sequence[Partials],
    merge: Callable[[pa.RecordBatch, pa.RecordBatch], pa.RecordBatch],
) -> tuple[dict[tuple[int, int], Partials], int]:
    """Build windows as a plan says.

    Parameters
    ----------
    plan
        Says the parts of each.
    panes
        What there is of every pane.
    merge
        Merges states row by row, the earlier ones first.

    Returns
    -------
    windows, keys
        Every window that was asked for, by positions of its panes; keys in the parts of all.
    """
    keys = 0
    built: dict[tuple[int, int], Partials] = {}
    for step in plan.steps:
        parts = [built[part] if part in built else panes[part[0]] for part in step.parts]
        keys += sum(len(part.keys) for part in parts)
        while len(parts) > 1:
            alone = parts[len(parts) & ~1 :]
            neighbours = zip(parts[::2], parts[1::2], strict=False)
            parts = [left.then(right, merge) for left, right in neighbours] + alone
        built[step.window] = parts[0]
    return {step.window: built[step.window] for step in plan.steps if step.asked}, keys

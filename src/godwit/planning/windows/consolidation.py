"""Consolidation: which parts every window is built from, so that the fewest keys are merged.

Problem: windows that overlap hold the same panes.  A window can be built from panes, from smaller
windows that are built anyway, and from *auxiliary* windows that nobody asked for, if others become
cheaper by more than they cost::

    panes       0   1   2   3   4   5   6   7   8   9
    asked for   ├───────────────────────┤                        6 panes
                        ├───────────────────────┤                6 panes:       12 parts
    auxiliary           ├───────────────┤                        4 panes
                ├───┼───┤               ├───┼───┤                1 + 2 and 1 + 2: 10 parts

What building a window costs is the number of keys in its parts.

Invariant: the parts of a window follow one another in order of time and hold every pane of it
exactly once, so that merging them is merging its panes, grouped otherwise; where aggregates are the
same when a row is seen twice (`ConsolidationProblem.overlapping`), at least once.

Source: the graph of ways to form complete windows and its cost, paper 3 §6.1; auxiliary windows,
Wu et al., "Factor Windows", arXiv 2008.12379 (there of one length and frequency, here single ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.arrays import FloatArray, freeze_array, require_load, set_field, wrong_value
from godwit.planning.windows.chains import chained
from godwit.planning.windows.search import Tilings, cheapest
from godwit.planning.windows.spans import Span, Spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.planning.windows.spans import Built

__all__ = [
    "ConsolidationPlan",
    "ConsolidationProblem",
    "ConsolidationStep",
    "plan_consolidation",
]

_MOST_SEARCHED = 24
_MOST_TILED = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConsolidationProblem:
    """Windows that are to be built.

    Raises `InvalidProblemError` if there is no window, one is empty, named twice or not among the
    panes, or a number of keys is none.
    """

    pane_keys: FloatArray  # shape ``(n,)``: keys in each pane, in order of time
    # what is asked for: panes from the one position up to, but not including, the other; each once
    windows: tuple[Span, ...]
    # keys in all panes together; by default those of the largest pane, as if all panes had the same
    # keys.  Keys of windows are estimated from it, as if keys were in panes independently.
    all_keys: float | None = None
    # whether the parts of a window may overlap: right for minimum and maximum, wrong for sums
    overlapping: bool = False

    def __post_init__(self) -> None:
        freeze_array(self, "pane_keys", "pane_keys", np.float64, ndim=1)
        require_load(self.pane_keys, "pane_keys")
        set_field(self, "windows", tuple((int(first), int(end)) for first, end in self.windows))
        if not self.windows or len(set(self.windows)) != len(self.windows):
            raise wrong_value("windows", self.windows, "name at least one, each once")
        for first, end in self.windows:
            if not 0 <= first < end <= len(self.pane_keys):
                raise wrong_value(
                    "windows", (first, end), f"give panes of the {len(self.pane_keys)} there are"
                )
        most = float(self.pane_keys.max())
        if self.all_keys is None:
            set_field(self, "all_keys", most)
        elif not self.all_keys >= most:
            raise wrong_value("all_keys", self.all_keys, f"the largest pane alone has {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationStep:
    """How one window is built."""

    window: Span  # positions of its panes
    parts: tuple[Span, ...]  # in order of time: windows built by earlier steps, or single panes
    asked: bool  # whether it was asked for; an auxiliary window otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationPlan:
    """How all windows are built."""

    # one for every window that was asked for and every auxiliary one, parts before what is made of
    # them
    steps: tuple[ConsolidationStep, ...]
    keys: float  # keys in the parts of all steps: what is minimised
    direct_keys: float  # the same if every window were made of panes
    bound: float  # no plan has fewer keys

    @property
    def auxiliary(self) -> tuple[Span, ...]:
        """Windows that nobody asked for."""
        return tuple(step.window for step in self.steps if not step.asked)


def plan_consolidation(
    problem: ConsolidationProblem, *, auxiliary: bool = True, most_nodes: int = 200
) -> ConsolidationPlan:
    """Choose the parts of every window.

    Parameters
    ----------
    problem
        The windows.
    auxiliary
        Whether windows may be built that were not asked for.
    most_nodes
        Sets of auxiliary windows that are looked at. The cheapest plan is found if they suffice, as
        ``plan.keys == plan.bound`` tells. It is not searched for where there are more than 24
        windows; such a plan may have two parts for every pane and four for every window.

    Returns
    -------
    ConsolidationPlan
        Deterministic, and never worse than building every window from panes.

    Examples
    --------
    Windows of 5, 10, 15 and 20 minutes, of one hour, from partials of a minute (paper 3 §6.1):

    >>> windows = [(s, s + n) for n in (5, 10, 15, 20) for s in range(0, 60, n)]
    >>> plan = plan_consolidation(ConsolidationProblem(pane_keys=[1] * 60, windows=windows))
    >>> plan.keys, plan.direct_keys
    (86.0, 240.0)
    """
    spans = Spans.of(problem.pane_keys, float(problem.all_keys or 0.0), problem.windows)
    tilings = Tilings(spans=spans, overlapping=problem.overlapping)
    direct, bound = tilings.direct(), spans.least
    found = [direct]
    if len(problem.windows) <= _MOST_TILED:
        found.append(tilings.built())
    if auxiliary and len(problem.windows) <= _MOST_SEARCHED:
        best, bound = cheapest(tilings, most_nodes)
        found.append(best)
    elif auxiliary:
        found.append(chained(spans))
    best = min(found, key=lambda built: built.keys)
    return ConsolidationPlan(
        steps=tuple(_steps(best, spans)),
        keys=best.keys,
        direct_keys=direct.keys,
        bound=min(bound, best.keys),
    )


def _steps(built: Built, spans: Spans) -> Iterator[ConsolidationStep]:
    """Give windows and their parts as panes, shorter windows first."""
    for window in sorted(built.parts, key=lambda span: (span[1] - span[0], span)):
        yield ConsolidationStep(
            window=spans.panes_of(window),
            parts=spans.parts_of(window, built),
            asked=window in spans.asked,
        )

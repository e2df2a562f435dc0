"""Windows that overlap: which parts each is built from, and what sharing panes saves (paper 3).

**Consolidation** (§6.1).  A window can be built from panes, from smaller windows that are built
anyway, and from *auxiliary* windows that the flow does not have, if others become cheaper by more
than they cost (Wu et al., "Factor Windows", arXiv 2008.12379).  Building one costs the keys in its
parts::

    panes       0   1   2   3   4   5   6   7   8   9
    asked for   ├───────────────────────┤                        6 panes
                        ├───────────────────────┤                6 panes:       12 parts
    auxiliary           ├───────────────┤                        4 panes
                ├───┼───┤               ├───┼───┤                1 + 2 and 1 + 2: 10 parts

Windows that earlier epochs built, and that stayed, are *ready*: they cost their keys to read, and
nothing to build.

Invariant: the parts of a window follow one another in order of time and hold every pane of it
exactly once, so that merging them is merging its panes, grouped otherwise; where aggregates are the
same when a row is seen twice (`ConsolidationProblem.overlapping`), at least once.

**Shared panes or duplicated state** (`is_duplicated_cheaper`, §5.1.1).  *Shared*, a row changes one
partial per key and pane, and a window that is over is merged from its panes.  *Duplicated*, it
changes one partial per key and window.  Which is cheaper depends on measured costs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from godwit.placement.arrays import FloatArray, freeze_array, require_load, set_field, wrong_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Span: TypeAlias = tuple[int, int]
"""From the first position up to, but not including, the second."""
Part: TypeAlias = "Span | int"
"""A window that is built, by its cuts; or the run of panes from one cut to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A plan: each window, by cuts, and its parts."""

    parts: Mapping[Span, tuple[Part, ...]]  # window → its parts in order of time
    keys: float  # keys in all parts


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """Windows as spans between cuts: event times at which some window begins or ends.

    Panes between two cuts are in the same windows, so they are one *run*. No auxiliary window needs
    to begin or end within a run: as it grows by a pane, what it saves its users falls in a straight
    line, and its own keys grow ever more slowly, so one end of the run or the other is best.
    """

    cuts: tuple[int, ...]  # positions of panes, ascending
    asked: frozenset[Span]  # the windows, by index of cuts
    # for every cut but the last: keys of the panes up to the next one, added up
    runs: tuple[float, ...]
    all_keys: float  # keys in all panes
    overlapping: bool  # whether the parts of a window may overlap
    ready: Mapping[Span, float]  # windows that are built already, by index of cuts → keys
    _whole: tuple[int, ...]
    _missing: tuple[float, ...]

    @classmethod
    def of(cls, problem: ConsolidationProblem) -> Spans:
        """Return the spans of a problem's windows, by the times (cuts) where any begins or ends."""
        pane_keys, all_keys = problem.pane_keys, float(problem.all_keys or 0.0)
        windows = problem.windows
        cuts = sorted({cut for window in (*windows, *problem.ready) for cut in window})
        index_of = {cut: index for index, cut in enumerate(cuts)}
        # A key is missing in a window if it is in none of its panes, of which each has its share.
        missing = 1.0 - pane_keys / max(all_keys, 1.0)
        whole = missing <= 0
        logarithms = np.log(np.where(whole, 1.0, missing))
        sums, wholes, keys = (
            np.concatenate(([0], np.cumsum(column)))[cuts]
            for column in (logarithms, whole, pane_keys)
        )
        return cls(
            cuts=tuple(cuts),
            asked=frozenset((index_of[first], index_of[end]) for first, end in windows),
            runs=tuple(np.diff(keys).tolist()),
            all_keys=all_keys,
            overlapping=problem.overlapping,
            ready={(index_of[f], index_of[e]): keys for (f, e), keys in problem.ready.items()},
            _whole=tuple(wholes.astype(int).tolist()),
            _missing=tuple(sums.tolist()),
        )

    @property
    def lower_bound(self) -> float:
        """Lower bound of the keys that any plan reads: every pane of a window once."""
        if self.ready:
            return 0.0
        inside = np.zeros(len(self.cuts), np.bool_)
        for first, end in self.asked:
            inside[first:end] = True
        return float(np.sum(np.asarray(self.runs)[inside[:-1]]))

    def keys(self, span: Span) -> float:
        """Return the estimated number of keys of a window (a span of cuts)."""
        if span in self.ready:
            return self.ready[span]
        first, end = span
        if self._whole[end] > self._whole[first]:
            return self.all_keys
        return self.all_keys * float(-np.expm1(self._missing[end] - self._missing[first]))

    def price(self, part: Part) -> float:
        """Return the number of keys that have to be read for a part of a window."""
        return self.runs[part] if isinstance(part, int) else self.keys(part)

    def price_all(self, parts: Mapping[Span, tuple[Part, ...]]) -> Built:
        """Return the plan that has these parts of each window, with the keys that it reads."""
        return Built(
            parts=parts, keys=sum(self.price(p) for pieces in parts.values() for p in pieces)
        )

    def panes_of(self, part: Part) -> Span:
        """Return the range of panes (first, end) of a part."""
        first, end = (part, part + 1) if isinstance(part, int) else part
        return self.cuts[first], self.cuts[end]

    def parts_of(self, window: Span, built: Built) -> tuple[Span, ...]:
        """Return the parts of a window as ranges of panes; a run of panes is one range each."""
        panes: list[Span] = []
        for part in built.parts[window]:
            if isinstance(part, int):
                panes += [(pane, pane + 1) for pane in range(*self.panes_of(part))]
            else:
                panes.append(self.panes_of(part))
        return tuple(panes)

    @cached_property
    def candidates(self) -> frozenset[Span]:
        """Auxiliary windows that may reduce cost: of several panes, within two windows or more."""
        cuts, asked = self.cuts, self.asked
        return frozenset(
            (first, end)
            for first in range(len(cuts))
            for end in range(first + 1, len(cuts))
            if cuts[end] - cuts[first] > 1
            and (first, end) not in asked
            and (first, end) not in self.ready
            and sum(
                window_first <= first and end <= window_end for window_first, window_end in asked
            )
            > 1
        )

    def direct(self) -> Built:
        """Return the plan that builds every window from panes."""
        return self.price_all({window: tuple(range(*window)) for window in self.asked})

    def cheapest_parts(self, auxiliary: Iterable[Span] = ()) -> Built:
        """Return the cheapest plan that builds windows from panes and from other windows.

        `auxiliary`: additional windows that may be built.
        """
        windows = self.asked.union(auxiliary)
        return self.price_all(self._all_paths(windows, windows))

    def relaxed(
        self, chosen: frozenset[Span], refused: frozenset[Span]
    ) -> tuple[float, Counter[Span]]:
        """Return a lower bound of keys read if undecided auxiliary windows cost nothing to build.

        Also returns how often each undecided one is used. `chosen`, `refused`: those decided.
        """
        windows = self.asked | chosen
        free = self.candidates - chosen - refused
        tiled = self._all_paths(windows, windows | free)
        used = Counter(
            part
            for parts in tiled.values()
            for part in parts
            if not isinstance(part, int) and part in free
        )
        return self.price_all(tiled).keys, used

    def _all_paths(
        self, windows: Iterable[Span], available: Iterable[Span]
    ) -> Mapping[Span, tuple[Part, ...]]:
        """Return the cheapest parts of each window, from the `available` windows and panes."""
        ending: dict[int, list[tuple[int, float]]] = {}
        for first, end in sorted({*available, *self.ready}, reverse=True):
            ending.setdefault(end, []).append((first, self.keys((first, end))))
        return {window: self._cheapest_path(window, ending) for window in sorted(windows)}

    def _cheapest_path(
        self, window: Span, ending: Mapping[int, list[tuple[int, float]]]
    ) -> tuple[Part, ...]:
        """Return the cheapest parts of one window.

        `ending`: cut → (first cut, keys) of windows there.
        """
        begin, last = window
        costs: list[tuple[float, int]] = [(0.0, 0)]
        steps: list[tuple[int, Part]] = []
        for end in range(begin + 1, last + 1):
            cuts = self.cuts
            keys, parts = costs[end - 1 - begin]
            cost = (keys + self.runs[end - 1], parts + cuts[end] - cuts[end - 1])
            step: tuple[int, Part] = (end - 1, end - 1)
            for first, window_keys in ending.get(end, ()):  # latest beginning first
                if first < begin:
                    break
                if (first, end) == window:
                    continue
                start = first
                if self.overlapping:
                    start = min(range(first, end), key=lambda cut: costs[cut - begin])
                keys, parts = costs[start - begin]
                if (keys + window_keys + _EQUAL, parts + 1) < cost:
                    cost, step = (keys + window_keys, parts + 1), (start, (first, end))
            costs.append(cost)
            steps.append(step)
        path: list[Part] = []
        position = last
        while position > begin:
            position, part = steps[position - begin - 1]
            path.append(part)
        return tuple(path[::-1])


_EQUAL = 1e-9


def search_auxiliary(spans: Spans, most_nodes: int) -> tuple[Built, float]:
    """Search for the auxiliary windows with the cheapest plan; return it, and a lower bound.

    Best first: a node of the search has accepted some auxiliary windows and refused others. If the
    undecided ones cost nothing to build and only to use, no plan beneath it is cheaper; where none
    of them is used, that is a plan. After `most_nodes` the best so far is returned.
    """
    best = min(spans.cheapest_parts(), chained(spans), key=lambda built: built.keys)
    no_spans: frozenset[Span] = frozenset()
    bound, used = spans.relaxed(no_spans, no_spans)
    order = count()
    nodes = [(bound, next(order), no_spans, no_spans, used)]
    for _ in range(most_nodes):
        if not nodes or nodes[0][0] >= best.keys - _EQUAL:
            return best, best.keys
        _, _, chosen, refused, used = heapq.heappop(nodes)
        if not used:
            return spans.cheapest_parts(chosen), best.keys if not nodes else nodes[0][0]
        most_used = max(used, key=lambda span: (used[span], span))
        for choice in ((chosen | {most_used}, refused), (chosen, refused | {most_used})):
            keys, used_in_bound = spans.relaxed(*choice)
            if keys < best.keys - _EQUAL:
                heapq.heappush(nodes, (keys, next(order), *choice, used_in_bound))
        candidate = spans.cheapest_parts(
            chosen | {span for span, num_uses in used.items() if num_uses > 1}
        )
        best = min(best, candidate, key=lambda built: built.keys)
    return best, min(best.keys, nodes[0][0] if nodes else best.keys)


_WORTH_CHANGING = 0.85
"""Fraction of the current cost that the alternative must stay below, since measurements vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCosts:
    """CPU time per kind of work, in milliseconds."""

    write_ms: float  # of an entry of state that changes: to find, write and bring forward
    spread_ms: float  # of a partial of a pane that goes to one window
    scan_ms: float  # of an entry that is read when windows close
    merge_ms: float  # of a key in a part that is merged into a window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCounts:
    """Amounts of work in some epochs, with shared panes and with duplicated state."""

    # keys and panes, and keys and windows, that change; once for every epoch that changes them
    pane_entries: float = 0.0
    window_entries: float = 0.0
    spread: float = 0.0  # windows of every key and pane that changes
    # entries that are read when windows close
    panes_scanned: float = 0.0
    windows_scanned: float = 0.0
    merged: float = 0.0  # keys in the parts of the windows that close

    def __add__(self, other: WindowCounts) -> WindowCounts:
        """Add the counts of two periods."""
        names = (field.name for field in fields(self))
        return WindowCounts(**{n: getattr(self, n) + getattr(other, n) for n in names})

    def shared_ms(self, costs: WindowCosts) -> float:
        """Return the CPU time with shared panes, in milliseconds."""
        written = self.pane_entries * costs.write_ms
        return written + self.panes_scanned * costs.scan_ms + self.merged * costs.merge_ms

    def duplicated_ms(self, costs: WindowCosts) -> float:
        """Return the CPU time with a state per window, in milliseconds."""
        written = self.window_entries * costs.write_ms + self.spread * costs.spread_ms
        return written + self.windows_scanned * costs.scan_ms


def is_duplicated_cheaper(counts: WindowCounts, costs: WindowCosts, *, duplicated: bool) -> bool:
    """Return whether each window should have a state of its own; a change must save enough.

    `duplicated`: whether windows have their own states today. In the paper a tuple costs E to
    process, once when shared and W times when not, and results of partial windows cost K to bring
    together (paper 3 §5.1.1). Here partials of an epoch are made per pane first, so E is the cost
    of an entry of state, and both costs are measured.

    Examples
    --------
    Two windows of some sixty panes each: of 60 panes and of 2 windows, the windows are cheaper.

    >>> costs = WindowCosts(write_ms=5, spread_ms=1, scan_ms=1, merge_ms=1)
    >>> counts = WindowCounts(pane_entries=60, window_entries=2, spread=120, merged=120)
    >>> counts.shared_ms(costs), counts.duplicated_ms(costs)
    (420.0, 130.0)
    >>> is_duplicated_cheaper(counts, costs, duplicated=False)
    True
    """
    shared_ms, duplicated_ms = counts.shared_ms(costs), counts.duplicated_ms(costs)
    if duplicated:
        return shared_ms >= _WORTH_CHANGING * duplicated_ms
    return duplicated_ms < _WORTH_CHANGING * shared_ms


def chained(spans: Spans, *, by_length: bool = False) -> Built:
    """Return the plan that builds every window from two halves, which grow from few cuts.

    For hundreds of long windows that each begin a little after the one before, as when a stream was
    quiet for a while. Cuts are chosen so that every window contains one; its halves are the parts
    before and after the cut. Halves of one cut contain one another, so each is made of the next
    smaller one and the panes beyond it: besides reading every pane at most twice, a plan has at
    most four parts a window, however long. After van Herk, Pattern Recognition Letters 13(7), 1992,
    for windows of one length.

    `by_length`: windows of about one length have cuts of their own. So short ones, each of which
    needs a cut, do not cut the halves of long ones; a pane is read twice for each
    length.
    """
    parts: dict[Span, tuple[Part, ...]] = {}

    def half(first: int, end: int) -> Part:
        """Name a half: a run that is not itself a window needs no step of its own."""
        return first if end - first == 1 and (first, end) not in spans.asked else (first, end)

    def build(window: Span, *made_of: Part) -> None:
        if half(*window) == window:
            parts.setdefault(window, made_of)

    for cut, windows in _halved_at(spans.asked, by_length=by_length):
        reached = cut
        for end in sorted({end for _, end in windows}):
            inner = () if reached == cut else (half(cut, reached),)
            build((cut, end), *inner, *range(reached, end))
            reached = end
        reached = cut
        for first in sorted({first for first, _ in windows}, reverse=True):
            inner = () if reached == cut else (half(reached, cut),)
            build((first, cut), *range(first, reached), *inner)
            reached = first
        for first, end in windows:
            build((first, end), half(first, cut), half(cut, end))
    for first, end in spans.asked:
        build((first, end), *range(first, end))  # of one run: no cut lies within
    return spans.price_all(parts)


def _halved_at(windows: Iterable[Span], *, by_length: bool) -> Iterable[tuple[int, list[Span]]]:
    """Choose cuts (see `chained`), and return each with the windows that are halved there."""
    windows_by_cut: dict[int, list[Span]] = {}
    last_cut_by_length: dict[
        int, int
    ] = {}  # power of two that a length is below, or 0 for all → the last cut
    for first, end in sorted(windows, key=lambda span: (span[1], span)):
        if end - first == 1:
            continue
        length_class = (end - first).bit_length() if by_length else 0
        if not first < last_cut_by_length.get(length_class, -1) < end:
            last_cut_by_length[length_class] = end - 1
        windows_by_cut.setdefault(last_cut_by_length[length_class], []).append((first, end))
    return windows_by_cut.items()


_MOST_SEARCHED = 24
_MOST_TILED = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConsolidationProblem:
    """Windows to be built, and the keys in panes.

    Raises `InvalidProblemError` if there is no window, one is empty, named twice or not among the
    panes, or a number of keys is invalid.
    """

    pane_keys: FloatArray  # shape ``(n,)``: keys in each pane, in order of time
    # windows to build, each once: first pane, and the pane after the last
    windows: tuple[Span, ...]
    # keys in all panes together; by default those of the largest pane, as if all panes had the same
    # keys.  Keys of windows are estimated from it, as if keys were in panes independently.
    all_keys: float | None = None
    # whether the parts of a window may overlap: right for minimum and maximum, wrong for sums
    overlapping: bool = False
    # windows that are built already, none of which is asked for → keys in each
    ready: Mapping[Span, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_array(self, "pane_keys", np.float64, ndim=1)
        require_load(self.pane_keys, "pane_keys")
        set_field(self, "windows", tuple((int(first), int(end)) for first, end in self.windows))
        if not self.windows or len(set(self.windows)) != len(self.windows):
            raise wrong_value("windows", self.windows, "give one window or more, each once")
        if not self.ready.keys().isdisjoint(self.windows):
            raise wrong_value("ready", self.ready, "leave out the windows that are to be built")
        for first, end in (*self.windows, *self.ready):
            if not 0 <= first < end <= len(self.pane_keys):
                raise wrong_value(
                    "windows", (first, end), f"give ranges within the {len(self.pane_keys)} panes"
                )
        most = float(self.pane_keys.max())
        if self.all_keys is None:
            set_field(self, "all_keys", most)
        elif not self.all_keys >= most:
            raise wrong_value("all_keys", self.all_keys, f"the largest pane alone has {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationStep:
    """One window, and the parts that it is built from."""

    window: Span  # positions of its panes
    # in order of time: windows built by earlier steps or ready, or single panes
    parts: tuple[Span, ...]
    asked: bool  # whether it was asked for; an auxiliary window otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationPlan:
    """Steps that build all windows."""

    # one for every requested and every auxiliary window, parts before the windows built from them
    steps: tuple[ConsolidationStep, ...]
    keys: float  # keys in the parts of all steps: the objective
    direct_keys: float  # the same if every window were made of panes
    bound: float  # no plan has fewer keys

    @property
    def auxiliary(self) -> tuple[Span, ...]:
        """Auxiliary windows, which are built for other windows and not emitted."""
        return tuple(step.window for step in self.steps if not step.asked)


def plan_consolidation(
    problem: ConsolidationProblem, *, auxiliary: bool = True, most_nodes: int = 200
) -> ConsolidationPlan:
    """Choose the parts that each window is merged from; never worse than from panes alone.

    The cheapest plan is found if `most_nodes` sets of auxiliary windows suffice, as ``plan.keys ==
    plan.bound`` tells. It is not searched for where there are more than 24 windows, or more than 48
    bounds of windows and ready parts; such a plan may have two parts for every pane and length
    (to a power of two), and four for every window. `auxiliary`: search for auxiliary windows.

    Examples
    --------
    Windows of 5, 10, 15 and 20 minutes, of one hour, from partials of a minute (paper 3 §6.1):

    >>> windows = [(s, s + n) for n in (5, 10, 15, 20) for s in range(0, 60, n)]
    >>> plan = plan_consolidation(ConsolidationProblem(pane_keys=[1] * 60, windows=windows))
    >>> plan.keys, plan.direct_keys
    (86.0, 240.0)
    """
    spans = Spans.of(problem)
    direct, bound = spans.direct(), spans.lower_bound
    plans = [direct]
    if len(problem.windows) <= _MOST_TILED:
        plans.append(spans.cheapest_parts())
    few_cuts = len(spans.cuts) <= 2 * _MOST_SEARCHED  # always true without ready parts
    if auxiliary and few_cuts and len(problem.windows) <= _MOST_SEARCHED:
        best, bound = search_auxiliary(spans, most_nodes)
        plans.append(best)
    elif auxiliary:
        plans += [chained(spans), chained(spans, by_length=True)]
    best = min(plans, key=lambda built: built.keys)
    return ConsolidationPlan(
        steps=tuple(_steps_of_plan(best, spans)),
        keys=best.keys,
        direct_keys=direct.keys,
        bound=min(bound, best.keys),
    )


def _steps_of_plan(built: Built, spans: Spans) -> Iterator[ConsolidationStep]:
    """Yield the steps of a plan: windows, with their parts as panes, shorter windows first."""
    for window in sorted(built.parts, key=lambda span: (span[1] - span[0], span)):
        yield ConsolidationStep(
            window=spans.panes_of(window),
            parts=spans.parts_of(window, built),
            asked=window in spans.asked,
        )

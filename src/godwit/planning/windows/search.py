"""The cheapest set of auxiliary windows: best first, bounded by what they would save for nothing.

Given the windows that are built, the parts of each follow from a shortest path along its panes.
The choice is which auxiliary ones to build.  A node of the search has said yes to some and no to
some others; if those that are left cost nothing to build and only to use, no plan beneath it is
cheaper.  Where none of them is used, that is a plan.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from godwit.planning.windows.chains import chained

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.planning.windows.spans import Built, Part, Span, Spans

__all__ = ["Tilings", "cheapest"]

_EQUAL = 1e-9


def cheapest(tilings: Tilings, most_nodes: int) -> tuple[Built, float]:
    """Search for the cheapest windows to build, auxiliary ones included.

    `tilings`: how windows are built of others. `most_nodes`: after so many the best that was found
    is returned. Returns what to build, and what no plan is cheaper than.
    """
    best = min(tilings.built(), chained(tilings.spans), key=lambda built: built.keys)
    nothing: frozenset[Span] = frozenset()
    bound, used = tilings.relaxed(nothing, nothing)
    order = count()
    nodes = [(bound, next(order), nothing, nothing, used)]
    for _ in range(most_nodes):
        if not nodes or nodes[0][0] >= best.keys - _EQUAL:
            return best, best.keys
        _, _, chosen, refused, used = heapq.heappop(nodes)
        if not used:
            return tilings.built(chosen), best.keys if not nodes else nodes[0][0]
        most_used = max(used, key=lambda span: (used[span], span))
        for choice in ((chosen | {most_used}, refused), (chosen, refused | {most_used})):
            keys, left = tilings.relaxed(*choice)
            if keys < best.keys - _EQUAL:
                heapq.heappush(nodes, (keys, next(order), *choice, left))
        found = tilings.built(chosen | {span for span, times in used.items() if times > 1})
        best = min(best, found, key=lambda built: built.keys)
    return best, min(best.keys, nodes[0][0] if nodes else best.keys)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tilings:
    """The cheapest parts of windows, where it is given which others there are."""

    spans: Spans  # the windows
    overlapping: bool  # whether parts may overlap

    @cached_property
    def candidates(self) -> frozenset[Span]:
        """Auxiliary windows that might pay: of several panes, and within two of those asked for."""
        cuts, asked = self.spans.cuts, self.spans.asked
        return frozenset(
            (first, end)
            for first in range(len(cuts))
            for end in range(first + 1, len(cuts))
            if cuts[end] - cuts[first] > 1
            and (first, end) not in asked
            and sum(a <= first and end <= b for a, b in asked) > 1
        )

    def direct(self) -> Built:
        """Every window from panes."""
        return self.spans.built({window: tuple(range(*window)) for window in self.spans.asked})

    def built(self, auxiliary: Iterable[Span] = ()) -> Built:
        """Every window from the others, and from auxiliary ones."""
        windows = self.spans.asked.union(auxiliary)
        return self.spans.built(self._tiled(windows, windows))

    def relaxed(
        self, chosen: frozenset[Span], refused: frozenset[Span]
    ) -> tuple[float, Counter[Span]]:
        """Keys if what is neither chosen nor refused is there for nothing; how often it is used."""
        windows = self.spans.asked | chosen
        free = self.candidates - chosen - refused
        tiled = self._tiled(windows, windows | free)
        used = Counter(
            part
            for parts in tiled.values()
            for part in parts
            if not isinstance(part, int) and part in free
        )
        return self.spans.built(tiled).keys, used

    def _tiled(
        self, windows: Iterable[Span], available: Iterable[Span]
    ) -> Mapping[Span, tuple[Part, ...]]:
        """Give every window its cheapest parts, of what is available."""
        ending: dict[int, list[tuple[int, float]]] = {}
        for first, end in sorted(available, reverse=True):
            ending.setdefault(end, []).append((first, self.spans.keys((first, end))))
        return {window: self._path(window, ending) for window in sorted(windows)}

    def _path(
        self, window: Span, ending: Mapping[int, list[tuple[int, float]]]
    ) -> tuple[Part, ...]:
        """Shortest path from the beginning of a window to its end; of equals the fewest parts."""
        begin, last = window
        costs: list[tuple[float, int]] = [(0.0, 0)]
        steps: list[tuple[int, Part]] = []
        for end in range(begin + 1, last + 1):
            cuts = self.spans.cuts
            keys, parts = costs[end - 1 - begin]
            cost = (keys + self.spans.runs[end - 1], parts + cuts[end] - cuts[end - 1])
            step: tuple[int, Part] = (end - 1, end - 1)
            for first, own in ending.get(end, ()):  # latest beginning first
                if first < begin:
                    break
                if (first, end) == window:
                    continue
                start = first
                if self.overlapping:
                    start = min(range(first, end), key=lambda cut: costs[cut - begin])
                keys, parts = costs[start - begin]
                if (keys + own + _EQUAL, parts + 1) < cost:
                    cost, step = (keys + own, parts + 1), (start, (first, end))
            costs.append(cost)
            steps.append(step)
        path: list[Part] = []
        at = last
        while at > begin:
            at, part = steps[at - begin - 1]
            path.append(part)
        return tuple(path[::-1])

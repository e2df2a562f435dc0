"""The cheapest way to build windows, by trying every set of auxiliary ones and every tiling."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["cheapest_keys", "keys_of"]

Span = tuple[int, int]


def keys_of(pane_keys: Sequence[float], all_keys: float, span: Span) -> float:
    """Keys of a window, if they are in its panes independently of one another."""
    missing = 1.0
    for keys in pane_keys[slice(*span)]:
        missing *= 1.0 - keys / max(all_keys, 1.0)
    return all_keys * (1.0 - missing)


def cheapest_keys(
    pane_keys: Sequence[float], all_keys: float, windows: Iterable[Span], *, overlapping: bool
) -> float:
    """Keys in all parts of the cheapest plan."""
    asked = set(windows)
    panes = len(pane_keys)
    others = [
        (first, end)
        for first in range(panes)
        for end in range(first + 2, panes + 1)
        if (first, end) not in asked
    ]

    def price(part: Span) -> float:
        return keys_of(pane_keys, all_keys, part) if part[1] - part[0] > 1 else pane_keys[part[0]]

    return min(
        sum(_tile(window, {*asked, *chosen}, price, overlapping) for window in {*asked, *chosen})
        for size in range(len(others) + 1)
        for chosen in combinations(others, size)
    )


def _tile(
    window: Span, built: set[Span], price: Callable[[Span], float], overlapping: bool
) -> float:
    first, last = window
    parts = [(pane, pane + 1) for pane in range(first, last)]
    parts += [p for p in built if p != window and first <= p[0] and p[1] <= last]
    parts = sorted(set(parts))

    @cache
    def rest(reached: int) -> float:
        if reached == last:
            return 0.0
        fitting = [
            part
            for part in parts
            if part[1] > reached and (part[0] <= reached if overlapping else part[0] == reached)
        ]
        return min(price(part) + rest(part[1]) for part in fitting)

    return rest(first)

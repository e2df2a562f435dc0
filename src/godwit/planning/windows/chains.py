"""Many windows at once: halves that grow pane by pane from few moments in between.

Problem: hundreds of long windows that each begin a little after the one before, as when a stream
was quiet for a while.  Moments are chosen so that every window holds one.  It is made of two
halves: what is before its moment and what is after.  Halves of one moment hold one another, so each
is made of the next smaller one and the panes beyond it, and every window costs two parts, however
long it is.

Invariant: besides reading every pane at most twice, a plan has at most four parts a window.

Source: van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and
octagonal kernels", Pattern Recognition Letters 13(7), 1992, for windows of one length; here of any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.planning.windows.spans import Built, Part, Span, Spans

__all__ = ["chained"]


def chained(spans: Spans) -> Built:
    """Build every window from two halves."""
    parts: dict[Span, tuple[Part, ...]] = {}

    def half(first: int, end: int) -> Part:
        """Name a half: there is nothing to build where it is one run that nobody asked for."""
        return first if end - first == 1 and (first, end) not in spans.asked else (first, end)

    def build(window: Span, *made_of: Part) -> None:
        if half(*window) == window:
            parts.setdefault(window, made_of)

    for moment, windows in _by_moment(spans.asked):
        reached = moment
        for end in sorted({end for _, end in windows}):
            inner = () if reached == moment else (half(moment, reached),)
            build((moment, end), *inner, *range(reached, end))
            reached = end
        reached = moment
        for first in sorted({first for first, _ in windows}, reverse=True):
            inner = () if reached == moment else (half(reached, moment),)
            build((first, moment), *range(first, reached), *inner)
            reached = first
        for first, end in windows:
            build((first, end), half(first, moment), half(moment, end))
    for first, end in spans.asked:
        build((first, end), *range(first, end))  # of one run: no moment lies within
    return spans.built(parts)


def _by_moment(asked: Iterable[Span]) -> Iterable[tuple[int, list[Span]]]:
    """Choose moments, and say which windows are halved at each."""
    chosen: dict[int, list[Span]] = {}
    moment = -1
    for first, end in sorted(asked, key=lambda span: (span[1], span)):
        if end - first == 1:
            continue
        if not first < moment < end:
            moment = end - 1
        chosen.setdefault(moment, []).append((first, end))
    return chosen.items()
